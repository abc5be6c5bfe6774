// The catalogue: built-in kernels by name, the same on every backend, with checked arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/vram/memory.h"
#include "kernels/shared/catalogue.h"
#include "worker_cuda/compute.h"

namespace wcuda::compute {

enum class Role { kRead, kWrite, kUpdate, kInteger, kFactor };

struct CatalogueParam {
  Role role;
  std::string name;
  bool is_i32 = false;              // a buffer of i32, whatever the call's type
  bool is_f32 = false;              // likewise
  std::vector<std::string> extent;  // of a buffer: names of integers, numbers, and oh, ow
  std::string shape;                // the same as an expression of the public signature
};

struct CatalogueEntry {
  std::string name;
  std::string signature;  // as in the header of the C interface
  kernels::CatalogueOp op;
  bool is_f32_only;
  bool may_alias;  // a buffer may be written where it is read, whole
  std::vector<CatalogueParam> params;
  std::vector<int64_t> leading_dims;  // constant, before those of the call
};

// By name, ascending.
const std::vector<CatalogueEntry>& catalogue();
const CatalogueEntry* find_entry(std::string_view name);

// The signature for elements of a WCUDA_ARG_…: integers as i64, factors as f32. Texts belong to the
// entry.
std::vector<wcuda_parameter> parameters_of(const CatalogueEntry& entry, int32_t type);

// One argument of a call, as its parameter's role needs it.
struct CatalogueArgument {
  int32_t kind = 0;         // WCUDA_ARG_…
  uint8_t* data = nullptr;  // of a buffer's range
  uint64_t bytes = 0;
  int64_t integer = 0;
  double factor = 0;
};

struct PreparedCall {
  kernels::CatalogueArgs args;
  int64_t count = 0;   // output elements
  uint64_t bytes = 0;  // of all buffers
};

// Checks number, kinds, values and extents. WCUDA_ARGUMENT_COUNT, or WCUDA_INVALID_ARGUMENT with
// the argument's index and name and both numbers.
Result<PreparedCall> prepare_call(const CatalogueEntry& entry, kernels::Dtype type,
                                  const std::vector<CatalogueArgument>& arguments);

// Queues a call; its scratch comes from `memory` and goes after it.
Status run_call(const CatalogueEntry& entry, const PreparedCall& call, vram::Memory& memory,
                Stream stream);

// The host's half, less the matrix products: computes at once.
void run_on_host(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count);
// The random draws of it.
void draw_on_host(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count);
// The matrix products, which have a way of their own on both (catalogue_gemm.cpp): cuBLASLt for
// large ones where it is there.
bool is_product(kernels::CatalogueOp op);
Status run_product(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                   vram::Memory& memory, Stream stream);
// The device's half, on a CUDA backend.
Status run_on_device(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                     Backend& backend, Stream stream);
// Writes the index of the first id outside `vocab`, or `count`, to 8 bytes on the device.
Status find_unknown_id(const int32_t* ids, int64_t count, int64_t vocab, int64_t* place,
                       Backend& backend, Stream stream);

}  // namespace wcuda::compute
