// Restores blocks of packed tiles in shared memory to the order of the file, for kernels that use
// the unpackers of quant_unpack.h. Serves every type; not tuned for speed. Device code only.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/shared/packed_tile.h"
#include "kernels/shared/quant_unpack_iq.h"

namespace wcuda::kernels {

using quant::kMTileRows;
using quant::kSubBlockElements;
using quant::TileField;
using quant::TileLayout;

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
  for (uint32_t i = 0; i < kSubBlockElements; ++i)
    out[i] = bits_float(block.words[kSubBlockElements * part + i]);
}
__device__ inline void unpack32(const BlockF16& block, uint32_t part, float* out) {
  for (uint32_t i = 0; i < kSubBlockElements; i += 2) {
    const uint32_t word = block.words[(kSubBlockElements * part + i) / 2];
    out[i] = half_to_float(static_cast<uint16_t>(word));
    out[i + 1] = half_to_float(static_cast<uint16_t>(word >> 16));
  }
}
__device__ inline void unpack32(const BlockBF16& block, uint32_t part, float* out) {
  for (uint32_t i = 0; i < kSubBlockElements; i += 2) {
    const uint32_t word = block.words[(kSubBlockElements * part + i) / 2];
    out[i] = bf16_to_float(static_cast<uint16_t>(word));
    out[i + 1] = bf16_to_float(static_cast<uint16_t>(word >> 16));
  }
}

template <TensorType kType>
using TypeTag = std::integral_constant<TensorType, kType>;

// Maps a ggml type id to the struct of its block.
inline BlockF32 block_of(TypeTag<TensorType::kF32>);
inline BlockF16 block_of(TypeTag<TensorType::kF16>);
inline BlockBF16 block_of(TypeTag<TensorType::kBF16>);
inline quant::BlockQ4_0 block_of(TypeTag<TensorType::kQ4_0>);
inline quant::BlockQ4_1 block_of(TypeTag<TensorType::kQ4_1>);
inline quant::BlockQ5_0 block_of(TypeTag<TensorType::kQ5_0>);
inline quant::BlockQ5_1 block_of(TypeTag<TensorType::kQ5_1>);
inline quant::BlockQ8_0 block_of(TypeTag<TensorType::kQ8_0>);
inline quant::BlockQ2_K block_of(TypeTag<TensorType::kQ2_K>);
inline quant::BlockQ3_K block_of(TypeTag<TensorType::kQ3_K>);
inline quant::BlockQ4_K block_of(TypeTag<TensorType::kQ4_K>);
inline quant::BlockQ5_K block_of(TypeTag<TensorType::kQ5_K>);
inline quant::BlockQ6_K block_of(TypeTag<TensorType::kQ6_K>);
inline quant::BlockIQ2_XXS block_of(TypeTag<TensorType::kIQ2_XXS>);
inline quant::BlockIQ2_XS block_of(TypeTag<TensorType::kIQ2_XS>);
inline quant::BlockIQ3_XXS block_of(TypeTag<TensorType::kIQ3_XXS>);
inline quant::BlockIQ1_S block_of(TypeTag<TensorType::kIQ1_S>);
inline quant::BlockIQ4_NL block_of(TypeTag<TensorType::kIQ4_NL>);
inline quant::BlockIQ3_S block_of(TypeTag<TensorType::kIQ3_S>);
inline quant::BlockIQ2_S block_of(TypeTag<TensorType::kIQ2_S>);
inline quant::BlockIQ4_XS block_of(TypeTag<TensorType::kIQ4_XS>);
inline quant::BlockIQ1_M block_of(TypeTag<TensorType::kIQ1_M>);
inline quant::BlockTQ1_0 block_of(TypeTag<TensorType::kTQ1_0>);
inline quant::BlockTQ2_0 block_of(TypeTag<TensorType::kTQ2_0>);
inline quant::BlockMXFP4 block_of(TypeTag<TensorType::kMXFP4>);
inline quant::BlockNVFP4 block_of(TypeTag<TensorType::kNVFP4>);
inline quant::BlockQ1_0 block_of(TypeTag<TensorType::kQ1_0>);
inline quant::BlockQ2_0 block_of(TypeTag<TensorType::kQ2_0>);

template <TensorType kType>
using BlockOf = decltype(block_of(TypeTag<kType>{}));

// Calls visitor(TypeTag<type>{}) for a type known at run time; returns cudaErrorInvalidValue for
// one that is not in the table.
template <class Visitor, size_t... kIndex>
cudaError_t visit_type(uint32_t type, const Visitor& visitor, std::index_sequence<kIndex...>) {
  cudaError_t status = cudaErrorInvalidValue;
  const bool is_known = ((quant::kTileLayouts[kIndex].type == type &&
                          (status = visitor(TypeTag<quant::kTileLayouts[kIndex].type>{}), true)) ||
                         ...);
  return is_known ? status : cudaErrorInvalidValue;
}
template <class Visitor>
cudaError_t visit_type(uint32_t type, const Visitor& visitor) {
  constexpr size_t kCount = sizeof quant::kTileLayouts / sizeof quant::kTileLayouts[0];
  return visit_type(type, visitor, std::make_index_sequence<kCount>{});
}

// Layout of blocks in shared memory: kStride bytes apart, the first kShift bytes after a multiple
// of 4, so that most of a block can be copied by words.
template <TensorType kType>
struct SharedBlocks {
  static constexpr TileLayout kLayout = quant::tile_layout(kType);
  static_assert(sizeof(BlockOf<kType>) == kLayout.block_bytes);
  static_assert(BlockOf<kType>::kElements == kLayout.block_elements);

  // Aligns the largest field.
  static constexpr uint32_t find_shift() {
    uint32_t largest = 0;
    for (uint32_t p = 1; p < kLayout.field_count; ++p)
      if (kLayout.fields[p].bytes > kLayout.fields[largest].bytes) largest = p;
    return (4 - kLayout.fields[largest].offset % 4) % 4;
  }
  static constexpr uint32_t kShift = find_shift();
  static_assert(alignof(BlockOf<kType>) == 1 || kShift == 0);
  static constexpr uint32_t kStride = (kShift + kLayout.block_bytes + 3) / 4 * 4;

  // Returns the bytes of a field that can be copied at once: 4, 2 or 1.
  WCUDA_HD static constexpr uint32_t access_bytes(const TileField& part) {
    const uint32_t all = 4u | part.piece_bytes | (kShift + part.offset);
    return all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
  }
  // Returns the offset of a field in the packed tile.
  WCUDA_HD static constexpr uint32_t field_start(uint32_t part) {
    uint32_t start = 0;
    for (uint32_t p = 0; p < part; ++p)
      start += kMTileRows * kLayout.blocks * kLayout.fields[p].bytes;
    return start;
  }
};

}  // namespace wcuda::kernels
