// Kernels for the fuzzers of ZCTL/1 and ZCL1, in plain memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/bytes.h"
#include "worker_cuda/compute.h"
#include "zctl/session.h"

namespace wcuda::fuzz {

constexpr uint32_t kPayloadBytesMax = 2048;

inline wcuda_string text(const char* value) { return {value, std::strlen(value)}; }

inline wcuda_parameter parameter(const char* name, int32_t kind, const char* shape = "",
                                 uint32_t access = 0, const char* min = "") {
  wcuda_parameter result = WCUDA_PARAMETER_INIT;
  result.name = text(name);
  result.kind = kind;
  result.shape = text(shape);
  result.min = text(min);
  if (kind == WCUDA_ARG_BUFFER) {
    result.dtype = access == WCUDA_ACCESS_READ ? WCUDA_ARG_F32 : WCUDA_ARG_U8;
    result.access = access;
    result.layout_id = 7;
  }
  return result;
}

// Signatures are read once: most of an execution would be that.
class Catalogue {
 public:
  Catalogue() {
    constexpr int32_t kBuffer = WCUDA_ARG_BUFFER;
    constexpr uint32_t kRead = WCUDA_ACCESS_READ, kWrite = WCUDA_ACCESS_WRITE;
    add(1, "noop", 0, {});
    add(2, "tensor_add", 0,
        {parameter("a", kBuffer, "n", kRead), parameter("b", kBuffer, "n", kRead),
         parameter("c", kBuffer, "n", kWrite), parameter("n", WCUDA_ARG_I64)});
    add(3, "update", 0,
        {parameter("x", kBuffer, "rows, columns % 5", kRead | kWrite),
         parameter("rows", WCUDA_ARG_U8, "", 0, "columns / 2"),
         parameter("columns", WCUDA_ARG_U64)});
    add(4, "values", WCUDA_KERNEL_NON_DETERMINISTIC,
        {parameter("i", WCUDA_ARG_I16), parameter("h", WCUDA_ARG_F16),
         parameter("f", WCUDA_ARG_F32, "", 0, "-1"), parameter("d", WCUDA_ARG_F64),
         parameter("s", WCUDA_ARG_BYTES, "12")});
    add(5, "late", 0, {parameter("x", kBuffer, "4", kWrite)});
    add(6, "absent", WCUDA_KERNEL_NOT_HERE, {});
  }
  const std::vector<zctl::Kernel>& kernels() const { return kernels_; }

 private:
  void add(uint32_t id, const char* name, uint32_t flags,
           const std::vector<wcuda_parameter>& parameters) {
    auto signature = std::make_shared<jit::Signature>(
        jit::read_signature(parameters.data(), parameters.size()).take());
    zctl::Kernel kernel;
    kernel.info = {id, flags, 0, id, name};
    kernel.signature = signature.get();
    kernel.entry = std::move(signature);
    kernels_.push_back(std::move(kernel));
  }

  std::vector<zctl::Kernel> kernels_;
};

// Whether a response of ZCL1 is as long as its header says.
inline bool has_stated_size(const uint8_t* response, uint64_t bytes) {
  return bytes >= 24 && load_le<uint32_t>(response + 16) == bytes - 20;
}

// Runs by filling what is written; "late" is past its deadline.
class PlainKernels : public zctl::Kernels {
 public:
  void list(const std::function<void(const zctl::KernelInfo&)>& each) override {
    for (const zctl::Kernel& kernel : kernels_) each(kernel.info);
  }
  bool find(uint32_t id, zctl::Kernel* kernel) override {
    if (id == 0 || id > kernels_.size()) return false;
    *kernel = kernels_[id - 1];
    return true;
  }
  bool find_name(std::string_view name, zctl::Kernel* kernel) override {
    for (const zctl::Kernel& each : kernels_)
      if (each.info.name == name) {
        *kernel = each;
        return true;
      }
    return false;
  }
  Status check_ready(const zctl::Kernel& kernel) override {
    if ((kernel.info.flags & WCUDA_KERNEL_NOT_HERE) == 0) return {};
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "has no code");
  }
  Result<uint8_t*> stage(uint64_t bytes) override {
    // Exactly sized: a sanitizer sees a byte too many.
    block_ = std::make_unique<uint8_t[]>(bytes);
    return block_.get();
  }
  Result<bool> run(const zctl::Kernel& kernel, const std::vector<zctl::RunArgument>& arguments,
                   const zctl::RunBlock& block, zctl::Clock::time_point) override {
    if (kernel.info.id == 2) return add_floats(arguments);
    if (block.bytes != 0)
      std::memset(block_.get() + block.download_begin, 0x5a, block.bytes - block.download_begin);
    if (kernel.info.id == 5) return Status::error(WCUDA_TIMEOUT, "late");
    return false;
  }

 private:
  // Of the older form too, whose sums are checked. c has elements of one byte else.
  Result<bool> add_floats(const std::vector<zctl::RunArgument>& arguments) {
    const uint64_t count = std::min(arguments[0].bytes, arguments[2].bytes) / sizeof(float);
    for (uint64_t i = 0; i < count; ++i) {
      const auto at = [&](size_t index) { return block_.get() + arguments[index].offset + 4 * i; };
      store_le(at(2), load_le<float>(at(0)) + load_le<float>(at(1)));
    }
    return false;
  }

  static const std::vector<zctl::Kernel>& all() {
    static const Catalogue catalogue;
    return catalogue.kernels();
  }

  const std::vector<zctl::Kernel>& kernels_ = all();
  std::unique_ptr<uint8_t[]> block_;
};

}  // namespace wcuda::fuzz
