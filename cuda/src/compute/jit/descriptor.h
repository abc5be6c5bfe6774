// What a kernel's descriptor says, read and checked once, and what a call of it must be like.
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

struct DescribedParam {
  std::string name;
  int32_t kind = 0;   // WCUDA_ARG_…
  int32_t dtype = 0;  // of a buffer's elements
  uint32_t access = 0;
  std::vector<Expression> shape;          // of a buffer; of bytes their size
  std::optional<Expression> least, most;  // of an integer
  std::optional<double> floor, ceiling;   // of an f32 or f64
};

struct Descriptor {
  uint32_t flags = 0;
  uint32_t kernel_id = 0;
  uint32_t budget_ms = 0;
  std::string name;
  std::vector<DescribedParam> params;
  std::optional<Expression> grid[3], block[3], threads, shared_bytes;
  std::string signature;  // canonical
  uint64_t sig_hash = 0;
};

// WCUDA_INVALID_ARGUMENT beginning with the field's name. Every text has been checked to be one.
Result<Descriptor> read_descriptor(const wcuda_kernel_descriptor& from);

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

// Holds arguments against the descriptor and works out the launch. WCUDA_ARGUMENT_COUNT,
// WCUDA_INVALID_ARGUMENT with index, name and both numbers, WCUDA_INVALID_CONFIG.
Result<DescribedLaunch> plan_launch(const Descriptor& descriptor,
                                    const std::vector<DescribedArgument>& arguments);

}  // namespace wcuda::jit
