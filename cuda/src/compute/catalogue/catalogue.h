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

constexpr size_t kParametersMax = 16;  // of a kernel

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
  std::string call;  // for messages: "vector_add(in a[n], in b[n], out c[n], n)"
  kernels::CatalogueOp op;
  bool is_f32_only;
  bool may_alias;  // an output may be the whole of an input buffer
  std::vector<CatalogueParam> params;
  std::vector<int64_t> leading_dims;  // constant, before those of the call
};

// By name, ascending.
const std::vector<CatalogueEntry>& catalogue();
const CatalogueEntry* find_entry(std::string_view name);
// The error of a call with another number of arguments.
Status wrong_count(const CatalogueEntry& entry, uint64_t given);

// Returns the signature for elements of a WCUDA_ARG_… type, with integers as i64 and factors as
// f32. Texts belong to the entry.
std::vector<wcuda_parameter> parameters_of(const CatalogueEntry& entry, int32_t type);

// One argument of a call; the parameter's role determines which members are used.
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
                                  const CatalogueArgument* arguments, size_t count);

// Queues a call; its scratch is allocated from `memory` and freed after the call.
Status run_call(const CatalogueEntry& entry, const PreparedCall& call, vram::Memory& memory,
                Stream stream);

// Computes a call on the host, except matrix products.
void run_on_host(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count);
// The random draws among them.
void draw_on_host(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count);
// Computes a matrix product, on both backends (catalogue_gemm.cpp); uses cuBLASLt for large ones if
// it is available.
bool is_product(kernels::CatalogueOp op);
Status run_product(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                   vram::Memory& memory, Stream stream);
// Queues a call on a CUDA backend.
Status run_on_device(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                     Backend& backend, Stream stream);
// Writes the index of the first id outside `vocab`, or `count`, to 8 bytes on the device.
Status find_unknown_id(const int32_t* ids, int64_t count, int64_t vocab, int64_t* place,
                       Backend& backend, Stream stream);

}  // namespace wcuda::compute
