// Runs device functions on the device over host arrays, for unpack_gpu_test.cpp. Each returns a
// cudaError_t.
#pragma once

#include <cstdint>

namespace wcuda::testing {

// Expands blocks of a quantized ggml type; -1 for a type that has no blocks.
int unpack_on_device(uint32_t type, const uint8_t* blocks, uint64_t bytes, uint64_t element_count,
                     float* values);

// from_half (65536): half_to_float of every code. codes (65536, 3): float_to_half, float_to_bf16
// and float_to_e4m3 of values (65536).
int convert_on_device(const float* values, float* from_half, uint16_t* codes);

}  // namespace wcuda::testing
