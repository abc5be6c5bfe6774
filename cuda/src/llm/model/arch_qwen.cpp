// qwen2: Qwen 2 and 2.5. Biases on queries, keys and values; the rotation turns halves.
#include "llm/model/arch.h"

namespace wcuda::model {
namespace {

Status fill(const Keys&, Config* config) {
  config->rope_pairing = RopePairing::kHalves;
  return {};
}

void list(const Config& config, TensorList* list) {
  list_dense_decoder(config, {Presence::kRequired, Presence::kNone, Presence::kNone}, list);
}

}  // namespace

const Arch kArchQwen2{"qwen2", fill, list};

}  // namespace wcuda::model
