// Rotary position embedding: the frequency of each pair, with scaling.
#pragma once

#include <vector>

#include "core/base/status.h"
#include "llm/model/keys.h"
#include "llm/model/model.h"

namespace wcuda::model {

// Fills the rope members of a Config whose head_length and context_length are set: dimension count,
// base, frequencies (computed in double, rounded once to f32) and magnitude. Scaling types: none,
// linear, yarn (Peng, Quesnelle, Fan, Shippole: YaRN, 2023; as llama.cpp and transformers compute
// it).
Status read_rope(const Keys& keys, Config* config);

// The tensor with the factors of Llama 3, (rope_dimension_count / 2). Each frequency is divided by
// its factor. A factor must be finite and above 0.
constexpr const char* kRopeFactorsTensor = "rope_freqs.weight";
Status apply_rope_factors(const std::vector<float>& factors, std::vector<float>* frequencies);

}  // namespace wcuda::model
