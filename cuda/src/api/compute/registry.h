// What other sections of the interface need of registries.
#pragma once

#include "api/compute/kernel.h"
#include "compute/registry/registry.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

// Launches a kernel that a caller registered and that runs here, with dimensions of the caller's:
// its arguments are held against the descriptor.
Status launch_described(const compute::RegistryEntry& entry, const wcuda_launch& launch,
                        const wcuda_argument* arguments, uint64_t count);

}  // namespace wcuda::api
