// The table of tensor types, and the walk over a row's blocks.
#include "quant/format.h"

#include <cinttypes>

#include "base/checked.h"

namespace wcuda::quant {
namespace {

constexpr Format kFormats[] = {
    {0, "F32", 1, 4, true, nullptr},         {1, "F16", 1, 2, true, nullptr},
    {2, "Q4_0", 32, 18, true, nullptr},      {3, "Q4_1", 32, 20, true, nullptr},
    {6, "Q5_0", 32, 22, true, nullptr},      {7, "Q5_1", 32, 24, true, nullptr},
    {8, "Q8_0", 32, 34, true, nullptr},      {9, "Q8_1", 32, 36, false, nullptr},
    {10, "Q2_K", 256, 84, true, nullptr},    {11, "Q3_K", 256, 110, true, nullptr},
    {12, "Q4_K", 256, 144, true, nullptr},   {13, "Q5_K", 256, 176, true, nullptr},
    {14, "Q6_K", 256, 210, true, nullptr},   {15, "Q8_K", 256, 292, false, nullptr},
    {16, "IQ2_XXS", 256, 66, true, nullptr}, {17, "IQ2_XS", 256, 74, true, nullptr},
    {18, "IQ3_XXS", 256, 98, true, nullptr}, {19, "IQ1_S", 256, 50, true, nullptr},
    {20, "IQ4_NL", 32, 18, true, nullptr},   {21, "IQ3_S", 256, 110, true, nullptr},
    {22, "IQ2_S", 256, 82, true, nullptr},   {23, "IQ4_XS", 256, 136, true, nullptr},
    {24, "I8", 1, 1, false, nullptr},        {25, "I16", 1, 2, false, nullptr},
    {26, "I32", 1, 4, false, nullptr},       {27, "I64", 1, 8, false, nullptr},
    {28, "F64", 1, 8, false, nullptr},       {29, "IQ1_M", 256, 56, true, nullptr},
    {30, "BF16", 1, 2, true, nullptr},       {34, "TQ1_0", 256, 54, true, nullptr},
    {35, "TQ2_0", 256, 66, true, nullptr},   {39, "MXFP4", 32, 17, true, nullptr},
    {40, "NVFP4", 64, 36, true, nullptr},    {41, "Q1_0", 128, 18, true, nullptr},
    {42, "Q2_0", 64, 18, true, nullptr},
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
