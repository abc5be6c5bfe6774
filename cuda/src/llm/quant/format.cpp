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
  for (uint32_t part = 0; part < Block::kElements / kPartElements; ++part)
    unpack32(typed, part, out + part * kPartElements);
}

template <class Block>
constexpr Format quantized(uint32_t id, const char* name) {
  return {id, name, Block::kElements, sizeof(Block), true, unpack_block<Block>};
}

constexpr Format kFormats[] = {
    {0, "F32", 1, 4, true, unpack_f32},     {1, "F16", 1, 2, true, unpack_f16},
    quantized<BlockQ4_0>(2, "Q4_0"),        quantized<BlockQ4_1>(3, "Q4_1"),
    quantized<BlockQ5_0>(6, "Q5_0"),        quantized<BlockQ5_1>(7, "Q5_1"),
    quantized<BlockQ8_0>(8, "Q8_0"),        {9, "Q8_1", 32, 36, false, nullptr},
    quantized<BlockQ2_K>(10, "Q2_K"),       quantized<BlockQ3_K>(11, "Q3_K"),
    quantized<BlockQ4_K>(12, "Q4_K"),       quantized<BlockQ5_K>(13, "Q5_K"),
    quantized<BlockQ6_K>(14, "Q6_K"),       {15, "Q8_K", 256, 292, false, nullptr},
    quantized<BlockIQ2_XXS>(16, "IQ2_XXS"), quantized<BlockIQ2_XS>(17, "IQ2_XS"),
    quantized<BlockIQ3_XXS>(18, "IQ3_XXS"), quantized<BlockIQ1_S>(19, "IQ1_S"),
    quantized<BlockIQ4_NL>(20, "IQ4_NL"),   quantized<BlockIQ3_S>(21, "IQ3_S"),
    quantized<BlockIQ2_S>(22, "IQ2_S"),     quantized<BlockIQ4_XS>(23, "IQ4_XS"),
    {24, "I8", 1, 1, false, nullptr},       {25, "I16", 1, 2, false, nullptr},
    {26, "I32", 1, 4, false, nullptr},      {27, "I64", 1, 8, false, nullptr},
    {28, "F64", 1, 8, false, nullptr},      quantized<BlockIQ1_M>(29, "IQ1_M"),
    {30, "BF16", 1, 2, true, unpack_bf16},  quantized<BlockTQ1_0>(34, "TQ1_0"),
    quantized<BlockTQ2_0>(35, "TQ2_0"),     quantized<BlockMXFP4>(39, "MXFP4"),
    quantized<BlockNVFP4>(40, "NVFP4"),     quantized<BlockQ1_0>(41, "Q1_0"),
    quantized<BlockQ2_0>(42, "Q2_0"),
};

}  // namespace

const Format* find_format(uint32_t id) {
  for (const Format& format : kFormats)
    if (format.id == id) return &format;
  return nullptr;
}

Result<uint64_t> row_bytes(const Format& format, uint64_t elements) {
  if (elements % format.block_elements != 0)
    return Status::error(WCUDA_INVALID_ARGUMENT,
                         "%" PRIu64
                         " elements of type %s are not a multiple of its block of %" PRIu32,
                         elements, format.name, format.block_elements);
  uint64_t bytes = 0;
  if (!checked_mul(elements / format.block_elements, format.block_bytes, &bytes))
    return Status::error(WCUDA_INVALID_ARGUMENT, "%" PRIu64 " elements of type %s overflow 64 bits",
                         elements, format.name);
  return bytes;
}

Status unpack_row(const Format& format, const uint8_t* blocks, uint64_t elements, float* out) {
  if (format.unpack == nullptr)
    return Status::error(WCUDA_UNSUPPORTED, "type %s does not hold weights", format.name);
  WCUDA_TRY(row_bytes(format, elements).status());
  for (uint64_t done = 0; done < elements; done += format.block_elements) {
    format.unpack(blocks, out + done);
    blocks += format.block_bytes;
  }
  return {};
}

}  // namespace wcuda::quant
