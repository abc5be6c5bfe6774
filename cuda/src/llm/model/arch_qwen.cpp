// qwen2 (Qwen 2 and 2.5) and qwen3 (Qwen 3, dense). In both, rope pairs the halves of a head. qwen2
// has biases on queries, keys and values; qwen3 has none, and norms queries and keys per head.
#include "llm/model/arch.h"

namespace wcuda::model {
namespace {

Status pair_halves(const Keys&, Config* config) {
  config->rope_pairing = RopePairing::kHalves;
  return {};
}

template <Presence kBias, Presence kNorm>
void list(const Config& config, TensorList* list) {
  list_dense_decoder(config, {kBias, Presence::kNone, kNorm}, list);
}

}  // namespace

const Arch kArchQwen2{"qwen2", pair_halves, list<Presence::kRequired, Presence::kNone>};
const Arch kArchQwen3{"qwen3", pair_halves, list<Presence::kNone, Presence::kRequired>};

}  // namespace wcuda::model
