// The limits and the tables behind jit/launch.h.
#include "compute/jit/launch.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "worker_cuda/compute.h"

namespace wcuda::jit {
namespace {

constexpr int kClusterCapability = 9;
constexpr uint64_t kClusterBlocksMax = 8;  // what every device with clusters can do
constexpr uint64_t kAddressBytes = 8;
constexpr LaunchLimits kHostLimits = {
    {2147483647, 65535, 65535}, {1024, 1024, 64}, 1024, 232448, kClusterBlocksMax};

struct KindRow {
  const char* name;
  uint32_t bytes;
};
constexpr KindRow kKinds[] = {
    {"", 0},                                              // no kind is 0
    {"i8", 1},     {"u8", 1},    {"i16", 2}, {"u16", 2},  //
    {"i32", 4},    {"u32", 4},   {"i64", 8}, {"u64", 8},  //
    {"f16", 2},    {"bf16", 2},  {"f32", 4}, {"f64", 8},  //
    {"buffer", 0}, {"bytes", 0},
};
constexpr int32_t kKindCount = sizeof(kKinds) / sizeof(kKinds[0]);
static_assert(kKindCount == WCUDA_ARG_BYTES + 1, "a row for each WCUDA_ARG_…");

Status check_axes(const char* what, const uint32_t values[3], const uint64_t limits[3]) {
  for (int i = 0; i < 3; ++i) {
    if (values[i] == 0)
      return Status::error(WCUDA_INVALID_CONFIG, "%s %s: 0, at least 1", what, kAxis[i]);
    if (values[i] > limits[i])
      return Status::error(WCUDA_INVALID_CONFIG, "%s %s: %u, at most %" PRIu64, what, kAxis[i],
                           values[i], limits[i]);
  }
  return {};
}

uint64_t product(const uint32_t values[3]) {
  // Three factors of at most 2^31 - 1, 65535 and 65535 each fit once the axes are checked.
  return uint64_t{values[0]} * values[1] * values[2];
}

Status check_cluster(const LaunchDims& dims, const LaunchLimits& limits) {
  const uint32_t* const cluster = dims.cluster;
  if (cluster[0] == 0 && cluster[1] == 0 && cluster[2] == 0) return {};
  if (limits.cluster_blocks <= 1)
    return Status::error(WCUDA_INVALID_CONFIG,
                         "cluster: the device has none, they need compute capability 9.0");
  const uint64_t each[3] = {limits.cluster_blocks, limits.cluster_blocks, limits.cluster_blocks};
  WCUDA_TRY(check_axes("cluster", cluster, each));
  if (product(cluster) > limits.cluster_blocks)
    return Status::error(WCUDA_INVALID_CONFIG, "cluster: %" PRIu64 " blocks, at most %" PRIu64,
                         product(cluster), limits.cluster_blocks);
  for (int i = 0; i < 3; ++i)
    if (dims.grid[i] % cluster[i] != 0)
      return Status::error(WCUDA_INVALID_CONFIG, "grid %s: %u is no multiple of the cluster's %u",
                           kAxis[i], dims.grid[i], cluster[i]);
  return {};
}

Status wrong_count(size_t given, size_t taken) {
  return Status::error(WCUDA_ARGUMENT_COUNT, "arguments: %zu given, the kernel takes %zu", given,
                       taken);
}

}  // namespace

LaunchLimits device_limits(const wcuda_device_caps& caps) {
  if (caps.backend == WCUDA_BACKEND_HOST) return kHostLimits;
  LaunchLimits limits = kHostLimits;  // for what a caller's backend does not report
  const auto set = [](uint64_t reported, uint64_t* limit) {
    *limit = reported ? reported : *limit;
  };
  for (int i = 0; i < 3; ++i) {
    set(static_cast<uint64_t>(caps.max_grid_dims[i]), &limits.grid[i]);
    set(static_cast<uint64_t>(caps.max_block_dims[i]), &limits.block[i]);
  }
  set(static_cast<uint64_t>(caps.max_threads_per_block), &limits.block_threads);
  set(caps.shared_memory_per_block_optin, &limits.shared_bytes);
  limits.cluster_blocks =
      caps.compute_capability_major >= kClusterCapability ? kClusterBlocksMax : 1;
  return limits;
}

LaunchLimits kernel_limits(const wcuda_device_caps& caps, const KernelAttributes& attributes) {
  LaunchLimits limits = device_limits(caps);
  limits.block_threads = std::min<uint64_t>(limits.block_threads, attributes.max_threads_per_block);
  limits.shared_bytes = std::min(limits.shared_bytes, attributes.dynamic_shared_bytes_max);
  return limits;
}

Status check_dims(const LaunchDims& dims, const LaunchLimits& limits) {
  WCUDA_TRY(check_axes("grid", dims.grid, limits.grid));
  WCUDA_TRY(check_axes("block", dims.block, limits.block));
  if (product(dims.block) > limits.block_threads)
    return Status::error(WCUDA_INVALID_CONFIG, "block: %" PRIu64 " threads, at most %" PRIu64,
                         product(dims.block), limits.block_threads);
  if (dims.shared_bytes > limits.shared_bytes)
    return Status::error(WCUDA_INVALID_CONFIG, "shared memory: %u bytes a block, at most %" PRIu64,
                         dims.shared_bytes, limits.shared_bytes);
  return check_cluster(dims, limits);
}

uint32_t scalar_bytes(int32_t kind) {
  return kind > 0 && kind < kKindCount ? kKinds[kind].bytes : 0;
}

const char* kind_name(int32_t kind) {
  return kind > 0 && kind < kKindCount ? kKinds[kind].name : "";
}

bool is_integer(int32_t kind) { return kind >= WCUDA_ARG_I8 && kind <= WCUDA_ARG_U64; }

std::optional<int64_t> integer_at(int32_t kind, const void* data) {
  uint64_t bits = 0;  // little-endian
  std::memcpy(&bits, data, scalar_bytes(kind));
  const uint32_t unused = 64 - 8 * scalar_bytes(kind);
  const bool is_signed = kKinds[kind].name[0] == 'i';
  if (is_signed) return static_cast<int64_t>(bits << unused) >> unused;
  if (bits > uint64_t{INT64_MAX}) return std::nullopt;
  return static_cast<int64_t>(bits);
}

Status check_parameters(const std::vector<KernelParameter>& parameters,
                        const std::vector<ArgumentShape>& arguments) {
  if (arguments.size() != parameters.size())
    return wrong_count(arguments.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const uint64_t bytes =
        arguments[i].kind == WCUDA_ARG_BUFFER ? kAddressBytes : arguments[i].bytes;
    if (bytes != parameters[i].bytes)
      return invalid_argument("argument %zu: %s of %" PRIu64 " bytes, the kernel takes %" PRIu64, i,
                              kind_name(arguments[i].kind), bytes, parameters[i].bytes);
  }
  return {};
}

}  // namespace wcuda::jit
