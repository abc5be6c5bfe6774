// The passes of sampling that touch every logit, in the widest vectors the processor has.
#pragma once

#include <cstdint>

namespace wcuda::ops {

// Finds the largest of n logits (-infinity if n is 0). Returns false if one is NaN or +infinity.
bool scan_max(const float* logits, uint32_t n, float* max);

// Returns the exact sum of weight(exp(-(max - logit))); see kernels/shared/sampling_math.h.
uint64_t scan_weight_sum(const float* logits, uint32_t n, float max);

// Computes y[i] = (max - logit[i]) / temperature and p[i] = exp(-y[i]).
void scan_probabilities(const float* logits, uint32_t n, float max, float temperature, float* y,
                        float* p);

// Returns the lowest index whose logit equals `value`, or n if there is none.
uint32_t scan_find(const float* logits, uint32_t n, float value);

}  // namespace wcuda::ops
