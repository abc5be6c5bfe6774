// Blocks of records put back in the file's order in shared memory, for kernels that use the
// unpackers of quant_unpack.h: every type, speed second. Device code only.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/shared/packed_tile.h"
#include "kernels/shared/quant_unpack_iq.h"

namespace wcuda::kernels {

using quant::kPartElements;
using quant::kRecordRows;
using quant::RecordLayout;
using quant::RecordPart;

// 64 elements of the types that are not quantized.
struct BlockF32 {
  static constexpr uint32_t kElements = 64;
  uint32_t words[64];
};
struct BlockF16 {
  static constexpr uint32_t kElements = 64;
  uint32_t words[32];
};
struct BlockBF16 {
  static constexpr uint32_t kElements = 64;
  uint32_t words[32];
};
__device__ inline void unpack32(const BlockF32& block, uint32_t part, float* out) {
  for (uint32_t i = 0; i < kPartElements; ++i)
    out[i] = bits_float(block.words[kPartElements * part + i]);
}
__device__ inline void unpack32(const BlockF16& block, uint32_t part, float* out) {
  for (uint32_t i = 0; i < kPartElements; i += 2) {
    const uint32_t word = block.words[(kPartElements * part + i) / 2];
    out[i] = half_to_float(static_cast<uint16_t>(word));
    out[i + 1] = half_to_float(static_cast<uint16_t>(word >> 16));
  }
}
__device__ inline void unpack32(const BlockBF16& block, uint32_t part, float* out) {
  for (uint32_t i = 0; i < kPartElements; i += 2) {
    const uint32_t word = block.words[(kPartElements * part + i) / 2];
    out[i] = bf16_to_float(static_cast<uint16_t>(word));
    out[i + 1] = bf16_to_float(static_cast<uint16_t>(word >> 16));
  }
}

template <uint32_t kType>
using TypeTag = std::integral_constant<uint32_t, kType>;

// The block of a ggml type id.
inline BlockF32 block_of(TypeTag<0>);
inline BlockF16 block_of(TypeTag<1>);
inline BlockBF16 block_of(TypeTag<30>);
inline quant::BlockQ4_0 block_of(TypeTag<2>);
inline quant::BlockQ4_1 block_of(TypeTag<3>);
inline quant::BlockQ5_0 block_of(TypeTag<6>);
inline quant::BlockQ5_1 block_of(TypeTag<7>);
inline quant::BlockQ8_0 block_of(TypeTag<8>);
inline quant::BlockQ2_K block_of(TypeTag<10>);
inline quant::BlockQ3_K block_of(TypeTag<11>);
inline quant::BlockQ4_K block_of(TypeTag<12>);
inline quant::BlockQ5_K block_of(TypeTag<13>);
inline quant::BlockQ6_K block_of(TypeTag<14>);
inline quant::BlockIQ2_XXS block_of(TypeTag<16>);
inline quant::BlockIQ2_XS block_of(TypeTag<17>);
inline quant::BlockIQ3_XXS block_of(TypeTag<18>);
inline quant::BlockIQ1_S block_of(TypeTag<19>);
inline quant::BlockIQ4_NL block_of(TypeTag<20>);
inline quant::BlockIQ3_S block_of(TypeTag<21>);
inline quant::BlockIQ2_S block_of(TypeTag<22>);
inline quant::BlockIQ4_XS block_of(TypeTag<23>);
inline quant::BlockIQ1_M block_of(TypeTag<29>);
inline quant::BlockTQ1_0 block_of(TypeTag<34>);
inline quant::BlockTQ2_0 block_of(TypeTag<35>);
inline quant::BlockMXFP4 block_of(TypeTag<39>);
inline quant::BlockNVFP4 block_of(TypeTag<40>);
inline quant::BlockQ1_0 block_of(TypeTag<41>);
inline quant::BlockQ2_0 block_of(TypeTag<42>);

template <uint32_t kType>
using BlockOf = decltype(block_of(TypeTag<kType>{}));

// visitor(TypeTag<type>{}) for a type known at run time; cudaErrorInvalidValue for one that is not
// in the table.
template <class Visitor, size_t... kIndex>
cudaError_t visit_type(uint32_t type, const Visitor& visitor, std::index_sequence<kIndex...>) {
  cudaError_t status = cudaErrorInvalidValue;
  const bool is_known =
      ((quant::kRecordLayouts[kIndex].type == type &&
        (status = visitor(TypeTag<quant::kRecordLayouts[kIndex].type>{}), true)) ||
       ...);
  return is_known ? status : cudaErrorInvalidValue;
}
template <class Visitor>
cudaError_t visit_type(uint32_t type, const Visitor& visitor) {
  constexpr size_t kCount = sizeof quant::kRecordLayouts / sizeof quant::kRecordLayouts[0];
  return visit_type(type, visitor, std::make_index_sequence<kCount>{});
}

// How blocks lie in shared memory: `stride` bytes apart, the first `shift` bytes from a multiple of
// 4, so that most of a block can be copied by words.
template <uint32_t kType>
struct SharedBlocks {
  static constexpr RecordLayout kLayout = quant::record_layout(kType);
  static_assert(sizeof(BlockOf<kType>) == kLayout.block_bytes);
  static_assert(BlockOf<kType>::kElements == kLayout.block_elements);

  // The largest part decides.
  static constexpr uint32_t find_shift() {
    uint32_t largest = 0;
    for (uint32_t p = 1; p < kLayout.part_count; ++p)
      if (kLayout.parts[p].bytes > kLayout.parts[largest].bytes) largest = p;
    return (4 - kLayout.parts[largest].offset % 4) % 4;
  }
  static constexpr uint32_t kShift = find_shift();
  static_assert(alignof(BlockOf<kType>) == 1 || kShift == 0);
  static constexpr uint32_t kStride = (kShift + kLayout.block_bytes + 3) / 4 * 4;

  // Bytes of a part that are copied at once.
  WCUDA_HD static constexpr uint32_t unit_bytes(const RecordPart& part) {
    const uint32_t all = 4u | part.piece_bytes | (kShift + part.offset);
    return all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
  }
  // Where a part starts in the record.
  WCUDA_HD static constexpr uint32_t part_start(uint32_t part) {
    uint32_t start = 0;
    for (uint32_t p = 0; p < part; ++p)
      start += kRecordRows * kLayout.blocks * kLayout.parts[p].bytes;
    return start;
  }
};

}  // namespace wcuda::kernels
