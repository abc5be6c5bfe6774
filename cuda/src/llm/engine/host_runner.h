// The runner of the host backend.
#pragma once

#include "llm/engine/runner.h"

namespace wcuda::engine {

std::unique_ptr<Runner> make_host_runner(const Machine& machine);

}  // namespace wcuda::engine
