// Functions of registries that other sections of the interface use.
#pragma once

#include "api/compute/kernel.h"
#include "compute/registry/registry.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

// Launches a registered kernel that this backend can run, with the caller's dimensions. Checks its
// arguments against the descriptor.
Status launch_described(const compute::RegistryEntry& entry, const wcuda_launch& launch,
                        const wcuda_argument* arguments, uint64_t count);

}  // namespace wcuda::api
