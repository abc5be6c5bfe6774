// Selects the compiled version of an attention kernel for a head length and a format of the KV
// cache. Only for .cu files.
#pragma once

#include <cstdint>

#include "kernels/shared/kv_pages.h"

namespace wcuda::kernels {

template <class Versions, int kLength>
auto find_version(KvFormat format) {
  switch (format) {
    case KvFormat::kQ8_0:
      return Versions::template version<kLength, KvFormat::kQ8_0>();
    case KvFormat::kInt10:
      return Versions::template version<kLength, KvFormat::kInt10>();
    case KvFormat::kFp8E4m3:
      return Versions::template version<kLength, KvFormat::kFp8E4m3>();
    default:
      return Versions::template version<kLength, KvFormat::kF16>();
  }
}

// Returns Versions::version<kLength, kFormat>() for the smallest kLength of 64, 128 and 256 (up to
// Versions::kLengthMax) that is at least head_length.
template <class Versions>
auto find_version(KvFormat format, uint32_t head_length) {
  if constexpr (Versions::kLengthMax > 128) {
    if (head_length > 128) return find_version<Versions, 256>(format);
  }
  return head_length > 64 ? find_version<Versions, 128>(format)
                          : find_version<Versions, 64>(format);
}

}  // namespace wcuda::kernels
