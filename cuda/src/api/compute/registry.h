// Functions of registries that other sections of the interface use.
#pragma once

#include "api/compute/kernel.h"
#include "compute/registry/registry.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

template <>
struct HandleOf<wcuda_registry> : HandleTo<Kind::kRegistry, compute::Registry> {};

// Launches a registered kernel that this backend can run, with the caller's dimensions. Checks its
// arguments against the descriptor.
Status launch_described(const compute::RegistryEntry& entry, const wcuda_launch& launch,
                        const wcuda_argument* arguments, uint64_t count);

// WCUDA_UNSUPPORTED_KERNEL unless the backend of `memory` can run it.
Status check_runs_here(const compute::RegistryEntry& entry, const vram::Memory& memory);

// What queue_run checks.
Status check_run(const compute::RegistryEntry& entry, const Arguments& given);

// Queues a run with the launch that the descriptor computes, after all checks. The caller keeps the
// memory of the arguments.
Status queue_run(const compute::RegistryEntry& entry, vram::Memory& memory, Arguments* given,
                 Stream stream);

}  // namespace wcuda::api
