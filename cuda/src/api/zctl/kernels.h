// The kernels that sessions of ZCTL/1 run: those of a registry, or, without a device, the two that
// every program knows.
#pragma once

#include <memory>
#include <string>

#include "compute/registry/registry.h"
#include "zctl/kernels.h"

namespace wcuda::api {

std::unique_ptr<zctl::Kernels> registry_kernels(std::shared_ptr<compute::Registry> registry);
// Lists "noop" and "tensor_add"; runs fail with the reason.
Result<std::unique_ptr<zctl::Kernels>> absent_kernels(std::string reason);

// Why no kernel of CUDA can run in a library without CUDA.
constexpr char kWithoutCuda[] = "CUDA runtime disabled";
bool is_built_with_cuda();

}  // namespace wcuda::api
