// Limits on a GGUF file: far above any real file, and small enough not to exhaust the host.
#pragma once

#include <cstdint>

namespace wcuda::gguf {

constexpr uint64_t kMaxHeaderBytes = 512ull << 20;  // headers of all parts, up to their tensor data
constexpr uint64_t kMaxMetadataCount = 1u << 16;
constexpr uint64_t kMaxTensorCount = 1u << 18;  // of all parts together
constexpr uint64_t kMaxKeyBytes = 65535;        // the format's own
constexpr uint64_t kMaxStringBytes = 64ull << 20;
constexpr uint64_t kMaxArrayElements = 1ull << 24;
constexpr uint64_t kMaxTensorNameBytes = 63;  // ggml's, which counts the final NUL
constexpr uint32_t kMaxDimensions = 4;
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMaxAlignment = 2u << 20;
constexpr uint32_t kMaxSplits = 512;

}  // namespace wcuda::gguf
