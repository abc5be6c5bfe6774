// Which runner belongs to a backend.
#include "engine/runner.h"

#include "engine/cuda_runner.h"
#include "engine/host_runner.h"
#include "ops/sampling.h"

namespace wcuda::engine {

uint64_t runner_bytes(const Backend& backend, const Limits& limits, const model::Config& config) {
  if (!backend.is_host()) return cuda_runner_bytes(limits, config);
  return ops::sample_work_bytes(config.vocabulary_size);
}

Result<std::unique_ptr<Runner>> make_runner(const Machine& machine) {
  if (!machine.memory->backend().is_host()) return make_cuda_runner(machine);
  return std::unique_ptr<Runner>(std::make_unique<HostRunner>(machine));
}

}  // namespace wcuda::engine
