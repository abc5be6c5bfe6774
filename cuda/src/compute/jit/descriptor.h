// Reads and checks the descriptor of a kernel, and checks calls against it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compute/jit/expression.h"
#include "core/backend/backend.h"
#include "core/base/status.h"
#include "worker_cuda/compute.h"

namespace wcuda::jit {

struct Parameter {
  std::string name;
  int32_t kind = 0;   // WCUDA_ARG_…
  int32_t dtype = 0;  // of a buffer's elements
  uint32_t access = 0;
  uint32_t layout_id = 0;                 // of a buffer or bytes; 0: none
  std::vector<Expression> shape;          // of a buffer; of bytes their size
  std::optional<Expression> least, most;  // of an integer
  std::optional<double> floor, ceiling;   // of an f32 or f64
};

// All parameters of a kernel, read and checked.
struct Signature {
  std::vector<Parameter> parameters;
  std::string canonical;
};

struct Descriptor {
  uint32_t flags = 0;
  uint32_t kernel_id = 0;
  uint32_t budget_ms = 0;
  std::string name;
  std::string module;  // that has the kernel; empty: none
  Signature signature;
  std::optional<Expression> grid[3], block[3], threads, shared_bytes;
  uint64_t sig_hash = 0;
};

// Both return WCUDA_INVALID_ARGUMENT with a message that begins with the field's name. The caller
// has checked every wcuda_string, and array elements have this version's size.
Result<Signature> read_signature(const wcuda_parameter* parameters, uint64_t count);
Result<Descriptor> read_descriptor(const wcuda_kernel_descriptor& from);

// Checks a signature against the parameter sizes that the code of a kernel states:
// WCUDA_INVALID_ARGUMENT if no argument could fit both.
Status check_fit(const Signature& signature, const std::vector<KernelParameter>& code);

// FNV-1a, 64 bits.
uint64_t fnv1a(std::string_view bytes);

// One argument of a call.
struct DescribedArgument {
  int32_t kind = 0;
  uint32_t access = 0;         // of a buffer, that the caller grants; 0: both
  const void* data = nullptr;  // of a scalar: its value
  uint64_t bytes = 0;          // of a buffer's range, of bytes
};

struct DescribedLaunch {
  LaunchDims dims;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

// Checks arguments against a signature. WCUDA_ARGUMENT_COUNT, WCUDA_INVALID_ARGUMENT with index,
// name and both numbers.
Status check_arguments(const Signature& signature, const std::vector<DescribedArgument>& arguments);
// Checks arguments against the descriptor and computes the launch; WCUDA_INVALID_CONFIG too.
Result<DescribedLaunch> plan_launch(const Descriptor& descriptor,
                                    const std::vector<DescribedArgument>& arguments);

}  // namespace wcuda::jit
