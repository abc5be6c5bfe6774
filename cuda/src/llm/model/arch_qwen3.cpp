// qwen3: Qwen 3, dense. Queries and keys are normed a head, without biases; the rotation turns
// halves.
#include "llm/model/arch.h"

namespace wcuda::model {
namespace {

Status fill(const Keys&, Config* config) {
  config->rope_pairing = RopePairing::kHalves;
  return {};
}

void list(const Config& config, TensorList* list) {
  list_dense_decoder(config, {Presence::kNone, Presence::kNone, Presence::kRequired}, list);
}

}  // namespace

const Arch kArchQwen3{"qwen3", fill, list};

}  // namespace wcuda::model
