// Inputs of the fuzzers as code, cache entries and launches.
#include "fuzz/jit_entry.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "compute/jit/cache_entry.h"
#include "compute/jit/code_kind.h"
#include "compute/jit/descriptor.h"
#include "compute/jit/launch.h"
#include "core/base/blake3.h"
#include "core/base/bytes.h"

namespace wcuda::fuzz {
namespace {

std::string check_failure(const Status& status, bool is_expected) {
  if (!is_expected) return "status " + std::to_string(status.code());
  const std::string message = status.message();
  if (message.empty() || message.find('\n') != std::string::npos) return "a message of no one line";
  return "";
}

// The input in memory of exactly its size.
std::unique_ptr<uint8_t[]> exact_copy(const uint8_t* data, size_t bytes) {
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes]);
  if (bytes != 0) std::memcpy(copy.get(), data, bytes);
  return copy;
}

}  // namespace

std::string exercise_code(const uint8_t* data, size_t bytes) {
  const auto copy = exact_copy(data, bytes);
  const auto kind = jit::code_kind(copy.get(), bytes);
  if (!kind.ok()) return check_failure(kind.status(), kind.status().code() == WCUDA_MALFORMED);
  const bool begins_as_elf = bytes >= 4 && std::memcmp(copy.get(), "\177ELF", 4) == 0;
  if ((*kind == jit::CodeKind::kCubin) != begins_as_elf) return "a cubin that is no ELF file";
  if (*kind == jit::CodeKind::kFatbin &&
      load_le<uint16_t>(&copy[6]) + load_le<uint64_t>(&copy[8]) > bytes)
    return "a fatbin that is cut short";
  if (*kind == jit::CodeKind::kCubin) {
    const uint64_t count = load_le<uint16_t>(&copy[60]), from = load_le<uint64_t>(&copy[40]);
    if (from > bytes || 64 * count > bytes - from) return "a cubin without its section headers";
  }
  return "";
}

std::string exercise_cache(const uint8_t* data, size_t bytes) {
  constexpr size_t kHead = 8 + 32 + 32;
  jit::CacheKey key{};
  auto copy = exact_copy(data, bytes);
  if (bytes >= kHead) std::memcpy(key.data(), &copy[8], 32);
  for (const bool with_digest : {false, true}) {
    if (with_digest) {
      if (bytes < kHead) return "";
      blake3::hash(&copy[kHead], bytes - kHead, &copy[40]);
    }
    const std::string_view view(reinterpret_cast<const char*>(copy.get()), bytes);
    const auto found = jit::decode_entry(key, view);
    if (!found) continue;
    // Names are in order when they are written: only then are the bytes the same.
    const auto written = jit::encode_entry(key, *found);
    const auto again =
        jit::decode_entry(key, {reinterpret_cast<const char*>(written.data()), written.size()});
    if (!again || again->code != found->code || again->log != found->log ||
        again->names != found->names)
      return "an entry that is another one when it is written again";
  }
  return "";
}

std::string exercise_launch(const uint8_t* data, size_t bytes) {
  ByteReader reader(data, bytes);
  LaunchDims dims;
  std::array<uint32_t, 3> grid{}, block{}, cluster{};
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  uint8_t flags = 0;
  KernelAttributes attributes;
  (void)(reader.read(&flags) && reader.read(&grid) && reader.read(&block) &&
         reader.read(&cluster) && reader.read(&dims.shared_bytes) &&
         reader.read(&attributes.max_threads_per_block) &&
         reader.read(&attributes.dynamic_shared_bytes_max));
  std::copy_n(grid.data(), 3, dims.grid);
  std::copy_n(block.data(), 3, dims.block);
  std::copy_n(cluster.data(), 3, dims.cluster);
  caps.backend = flags & 1 ? WCUDA_BACKEND_HOST : WCUDA_BACKEND_CUDA;
  for (int i = 0; i < 3; ++i) {
    caps.max_grid_dims[i] = i == 0 ? INT32_MAX : 65535;
    caps.max_block_dims[i] = i == 2 ? 64 : 1024;
  }
  caps.max_threads_per_block = 1024;
  caps.shared_memory_per_block_optin = 232448;
  caps.compute_capability_major = flags & 2 ? 9 : 8;
  const jit::LaunchLimits limits =
      flags & 4 ? jit::kernel_limits(caps, attributes) : jit::device_limits(caps);
  const Status status = jit::check_dims(dims, limits);
  if (!status.ok()) {
    const std::string wrong = check_failure(status, status.code() == WCUDA_INVALID_CONFIG);
    if (!wrong.empty()) return wrong;
  } else {
    const uint64_t threads = uint64_t{dims.block[0]} * dims.block[1] * dims.block[2];
    if (threads == 0 || threads > limits.block_threads || dims.grid[0] == 0 ||
        dims.grid[0] > limits.grid[0] || dims.shared_bytes > limits.shared_bytes)
      return "a launch past its limits";
  }

  // Names a to z: one parameter each, sized by the byte that follows.
  std::vector<wcuda_parameter> signature;
  std::vector<KernelParameter> parameters;
  std::vector<jit::ArgumentShape> arguments;
  struct {
    uint8_t what;
    int8_t kind;
    uint8_t access, bytes;
  } item;
  while (reader.read(&item)) {
    if (item.what % 3 == 0) {
      static constexpr char kNames[] = "abcdefghijklmnopqrstuvwxyz";
      static constexpr char kSizes[] = "1048576";
      wcuda_parameter parameter = WCUDA_PARAMETER_INIT;
      parameter.name = {kNames + signature.size() % 26, 1};
      parameter.kind = item.kind;
      parameter.access = item.access;
      parameter.dtype = item.kind == WCUDA_ARG_BUFFER ? item.bytes % 16 : 0;
      parameter.shape = {kSizes, item.bytes % sizeof(kSizes)};
      signature.push_back(parameter);
    }
    if (item.what % 3 == 1) parameters.push_back({8 * parameters.size(), item.bytes});
    if (item.what % 3 == 2) arguments.push_back({item.kind, item.access, item.bytes});
  }
  const auto read = jit::read_signature(signature.data(), signature.size());
  const Status by_code = jit::check_parameters(parameters, arguments);
  for (const Status& each :
       {read.status(), by_code, read.ok() ? jit::check_fit(*read, parameters) : Status()}) {
    if (each.ok()) continue;
    const bool is_expected =
        each.code() == WCUDA_INVALID_ARGUMENT || each.code() == WCUDA_ARGUMENT_COUNT;
    const std::string wrong = check_failure(each, is_expected);
    if (!wrong.empty()) return wrong;
  }
  if (by_code.ok() && arguments.size() != parameters.size())
    return "too few arguments for the code";
  return "";
}

}  // namespace wcuda::fuzz
