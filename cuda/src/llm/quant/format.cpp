// The table of tensor types, and the walk over a row's blocks.
#include "llm/quant/format.h"

#include <cinttypes>

#include "core/base/checked.h"
#include "kernels/shared/quant_unpack.h"
#include "kernels/shared/quant_unpack_iq.h"

namespace wcuda::quant {
namespace {

void unpack_f32(const uint8_t* block, float* out) { *out = bits_float(load_u32(block)); }
void unpack_f16(const uint8_t* block, float* out) { *out = load_half(block); }
void unpack_bf16(const uint8_t* block, float* out) { *out = bf16_to_float(load_u16(block)); }

template <class Block>
void unpack_block(const uint8_t* block, float* out) {
  const Block& typed = *reinterpret_cast<const Block*>(block);  // all members are bytes
  for (uint32_t part = 0; part < Block::kElements / kSubBlockElements; ++part)
    unpack32(typed, part, out + part * kSubBlockElements);
}

template <class Block>
constexpr Format quantized(TensorType id, const char* name) {
  return {id, name, Block::kElements, sizeof(Block), true, unpack_block<Block>};
}

constexpr Format kFormats[] = {
    {TensorType::kF32, "F32", 1, 4, true, unpack_f32},
    {TensorType::kF16, "F16", 1, 2, true, unpack_f16},
    quantized<BlockQ4_0>(TensorType::kQ4_0, "Q4_0"),
    quantized<BlockQ4_1>(TensorType::kQ4_1, "Q4_1"),
    quantized<BlockQ5_0>(TensorType::kQ5_0, "Q5_0"),
    quantized<BlockQ5_1>(TensorType::kQ5_1, "Q5_1"),
    quantized<BlockQ8_0>(TensorType::kQ8_0, "Q8_0"),
    {TensorType::kQ8_1, "Q8_1", 32, 36, false, nullptr},
    quantized<BlockQ2_K>(TensorType::kQ2_K, "Q2_K"),
    quantized<BlockQ3_K>(TensorType::kQ3_K, "Q3_K"),
    quantized<BlockQ4_K>(TensorType::kQ4_K, "Q4_K"),
    quantized<BlockQ5_K>(TensorType::kQ5_K, "Q5_K"),
    quantized<BlockQ6_K>(TensorType::kQ6_K, "Q6_K"),
    {TensorType::kQ8_K, "Q8_K", 256, 292, false, nullptr},
    quantized<BlockIQ2_XXS>(TensorType::kIQ2_XXS, "IQ2_XXS"),
    quantized<BlockIQ2_XS>(TensorType::kIQ2_XS, "IQ2_XS"),
    quantized<BlockIQ3_XXS>(TensorType::kIQ3_XXS, "IQ3_XXS"),
    quantized<BlockIQ1_S>(TensorType::kIQ1_S, "IQ1_S"),
    quantized<BlockIQ4_NL>(TensorType::kIQ4_NL, "IQ4_NL"),
    quantized<BlockIQ3_S>(TensorType::kIQ3_S, "IQ3_S"),
    quantized<BlockIQ2_S>(TensorType::kIQ2_S, "IQ2_S"),
    quantized<BlockIQ4_XS>(TensorType::kIQ4_XS, "IQ4_XS"),
    {TensorType::kI8, "I8", 1, 1, false, nullptr},
    {TensorType::kI16, "I16", 1, 2, false, nullptr},
    {TensorType::kI32, "I32", 1, 4, false, nullptr},
    {TensorType::kI64, "I64", 1, 8, false, nullptr},
    {TensorType::kF64, "F64", 1, 8, false, nullptr},
    quantized<BlockIQ1_M>(TensorType::kIQ1_M, "IQ1_M"),
    {TensorType::kBF16, "BF16", 1, 2, true, unpack_bf16},
    quantized<BlockTQ1_0>(TensorType::kTQ1_0, "TQ1_0"),
    quantized<BlockTQ2_0>(TensorType::kTQ2_0, "TQ2_0"),
    quantized<BlockMXFP4>(TensorType::kMXFP4, "MXFP4"),
    quantized<BlockNVFP4>(TensorType::kNVFP4, "NVFP4"),
    quantized<BlockQ1_0>(TensorType::kQ1_0, "Q1_0"),
    quantized<BlockQ2_0>(TensorType::kQ2_0, "Q2_0"),
};

}  // namespace

const Format* find_format(uint32_t id) {
  for (const Format& format : kFormats)
    if (format.id == id) return &format;
  return nullptr;
}

Result<uint64_t> row_bytes(const Format& format, uint64_t elements) {
  if (elements % format.block_elements != 0)
    return invalid_argument("%" PRIu64
                            " elements of type %s are not a multiple of its block of %" PRIu32,
                            elements, format.name, format.block_elements);
  uint64_t bytes = 0;
  if (!checked_mul(elements / format.block_elements, format.block_bytes, &bytes))
    return invalid_argument("%" PRIu64 " elements of type %s overflow 64 bits", elements,
                            format.name);
  return bytes;
}

Status unpack_row(const Format& format, const uint8_t* blocks, uint64_t elements, float* out) {
  if (format.unpack == nullptr) return unsupported("type %s does not hold weights", format.name);
  WCUDA_TRY(row_bytes(format, elements).status());
  for (uint64_t done = 0; done < elements; done += format.block_elements) {
    format.unpack(blocks, out + done);
    blocks += format.block_bytes;
  }
  return {};
}

}  // namespace wcuda::quant
