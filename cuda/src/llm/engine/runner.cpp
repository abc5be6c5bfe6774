// Which runner belongs to a backend.
#include "llm/engine/runner.h"

#include "llm/engine/cuda_runner.h"
#include "llm/engine/host_runner.h"
#include "llm/ops/sampling.h"

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
