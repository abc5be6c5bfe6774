// The device of a session's capabilities: buffers, submissions and modules on the context of a
// registry.
#pragma once

#include <memory>

#include "compute/registry/registry.h"
#include "zctl/device.h"

namespace wcuda::api {

std::unique_ptr<zctl::Device> registry_device(std::shared_ptr<compute::Registry> registry);

}  // namespace wcuda::api
