// The arguments of a KERNEL_RUN: checked against the kernel's signature and the guest's memory, and
// moved between that memory and a block that a kernel runs on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zctl/frames.h"
#include "zctl/kernels.h"

namespace wcuda::zctl {

constexpr uint32_t kRankMax = 8;
constexpr uint32_t kArgumentCountMax = 4096;  // that a session can permit

// The answer to a run: ok, or a code with a message.
struct [[nodiscard]] Outcome {
  uint32_t code = kOk;
  std::string message;
  bool ok() const { return code == kOk; }
};
__attribute__((format(printf, 2, 3))) Outcome refuse(uint32_t code, const char* format, ...);

// A guest's memory.
struct Memory {
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

struct Window {
  uint64_t begin = 0;
  uint64_t bytes = 0;

  bool is_inside(const Memory& memory) const {
    return begin <= memory.bytes && bytes <= memory.bytes - begin;
  }
  bool overlaps(const Window& other) const {
    return bytes != 0 && other.bytes != 0 && begin < other.begin + other.bytes &&
           other.begin < begin + bytes;
  }
};

// Bytes that were read from a guest's memory or written to it.
struct Touched {
  Window window;
  const uint8_t* data;
};

// What a run's frame and its session say.
struct Arguments {
  const uint8_t* words = nullptr;  // 16 bytes each
  uint32_t count = 0;
  uint64_t base = 0;  // what offsets count from
  uint32_t rank_max = kRankMax;
  std::optional<Window> response;  // in the memory
};

// Reused from one run to the next, so that a warm run allocates nothing here.
class Marshalled {
 public:
  // Checks everything and reads what is not data of buffers. Nothing of an earlier run remains.
  Outcome read(const Kernel& kernel, const Arguments& arguments, const Memory& memory);

  const RunBlock& block() const { return block_; }
  // The same with its target.
  RunBlock block_for(const Memory& memory) const;
  uint64_t device_bytes() const { return device_bytes_; }  // of all buffers, without gaps
  const std::vector<RunArgument>& run_arguments() const { return run_arguments_; }

  // Fills the block that `kernels` staged from the memory. Once only. `keeps_copies`: for
  // read_windows().
  void gather(const Memory& memory, uint8_t* block, bool keeps_copies, Kernels* kernels);
  // WCUDA's tensor_add without tensors: what it computed.
  Outcome check_sums(const uint8_t* block) const;
  // Writes the outputs from the block to the memory.
  void scatter(const uint8_t* block, const Memory& memory, Kernels* kernels) const;

  // What was read so far, with its bytes as they were read; by offset, ascending, without
  // duplicates.
  std::vector<Touched> read_windows() const;
  std::vector<Touched> written_windows(const Memory& memory) const;

 private:
  struct Operand {
    uint8_t value[8] = {};  // of a scalar
    uint8_t descriptor_bytes[32];
    uint32_t access = 0;  // of a buffer
    uint32_t element_bytes = 0;
    uint32_t rank = 0;
    bool is_tensor = false;
    bool is_contiguous = true;
    uint32_t dims[kRankMax];
    uint32_t strides[kRankMax];  // elements
    Window descriptor, shape, stride_window, data;
    uint64_t bytes = 0;             // gathered
    uint64_t copy_offset = 0;       // of bytes by value, in by_value_
    const uint8_t* copy = nullptr;  // of the data as it was read
  };

  Outcome read_sizes(const Arguments& arguments);
  void read_integers(const jit::Signature& signature, const Arguments& arguments);
  Outcome read_one(const jit::Parameter& parameter, size_t index, const Arguments& arguments,
                   const Memory& memory);
  Outcome read_tensor(const jit::Parameter& parameter, size_t index, const Arguments& arguments,
                      const Memory& memory);
  Outcome read_bytes(const jit::Parameter& parameter, size_t index, const uint32_t words[4],
                     const Arguments& arguments, const Memory& memory);
  Outcome check_shape(const jit::Parameter& parameter, size_t index, uint64_t elements) const;
  Outcome check_scalar(const jit::Parameter& parameter, size_t index, const uint32_t words[4]);
  Outcome check_overlaps(const Arguments& arguments) const;
  void lay_out(const jit::Signature& signature);
  void copy_strided_inputs(const Memory& memory);
  uint8_t* copy_of(const Window& window);
  void gather_one(size_t index, uint8_t* source, uint8_t* block, Kernels* kernels) const;
  uint64_t place(uint64_t bytes);

  bool is_sizes_ = false;  // tensor_add without tensors
  uint64_t sum_count_ = 0;
  std::vector<Operand> operands_;
  std::vector<std::optional<int64_t>> integers_;
  std::vector<uint8_t> is_broken_;  // an integer that its own check refuses
  std::vector<uint8_t> by_value_;
  std::vector<Window> copied_;   // the data of inputs with strides; they do not overlap
  std::vector<uint8_t> copies_;  // of these, one after the other
  std::vector<RunArgument> run_arguments_;
  RunBlock block_;
  uint64_t device_bytes_ = 0;
};

}  // namespace wcuda::zctl
