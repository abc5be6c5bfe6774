// The passes of sampling that touch every logit, in the widest vectors the processor has.
#pragma once

#include <cstdint>

namespace wcuda::ops {

// The largest of n logits (-infinity if n is 0); false when one is NaN or +infinity.
bool scan_max(const float* logits, uint32_t n, float* max);

// The sum of weight(exp(-(max - logit))), exact: see kernels/shared/sampling_math.h.
uint64_t scan_weight_sum(const float* logits, uint32_t n, float max);

// y[i] = (max - logit[i]) / temperature, p[i] = exp(-y[i]).
void scan_probabilities(const float* logits, uint32_t n, float max, float temperature, float* y,
                        float* p);

// The lowest index whose logit equals `value`; n if there is none.
uint32_t scan_find(const float* logits, uint32_t n, float value);

}  // namespace wcuda::ops
