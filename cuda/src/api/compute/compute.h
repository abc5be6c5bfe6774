// Functions of the catalogue that other sections of the interface use.
#pragma once

#include "api/compute/arguments.h"
#include "compute/catalogue/catalogue.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

// WCUDA_ARG_F32, _F16 or _BF16, else WCUDA_INVALID_ARGUMENT.
Result<kernels::Dtype> read_element_type(int32_t type);

// Finds a kernel by name; WCUDA_NOT_FOUND.
Result<const compute::CatalogueEntry*> find_builtin(const wcuda_string& name);

// WCUDA_UNSUPPORTED for a type that the kernel does not support.
Status check_type(const compute::CatalogueEntry& entry, int32_t type);

// Checks the arguments of a call. `given` holds them until the call is queued.
Result<compute::PreparedCall> prepare_builtin(const compute::CatalogueEntry& entry,
                                              kernels::Dtype type, const vram::Memory& memory,
                                              const wcuda_argument* arguments, uint64_t count,
                                              Arguments* given);

// The same with arguments that were read.
Result<compute::PreparedCall> prepare_read(const compute::CatalogueEntry& entry,
                                           kernels::Dtype type, const Arguments& given);

// Queues the call.
Status run_builtin(const compute::CatalogueEntry& entry, const compute::PreparedCall& call,
                   vram::Memory& memory, wcuda_stream stream, Arguments* given);

}  // namespace wcuda::api
