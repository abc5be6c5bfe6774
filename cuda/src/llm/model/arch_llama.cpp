// llama: Llama 2 and 3, Mistral, SmolLM2, TinyLlama. In files, queries and keys are permuted so
// that adjacent elements are rotated as pairs.
#include "llm/model/arch.h"

namespace wcuda::model {
namespace {

Status pair_adjacent(const Keys&, Config* config) {
  config->rope_pairing = RopePairing::kAdjacent;
  return {};
}

void list(const Config& config, TensorList* list) {
  list_dense_decoder(config, {Presence::kOptional, Presence::kOptional, Presence::kNone}, list);
  list->ignore_in_layers("attn_rot_embd.weight");  // old converters wrote the rotation itself
}

}  // namespace

const Arch kArchLlama{"llama", pair_adjacent, list};

}  // namespace wcuda::model
