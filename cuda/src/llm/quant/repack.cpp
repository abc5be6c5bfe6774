#include "llm/quant/repack.h"

#include <algorithm>
#include <cstring>

#include "kernels/shared/scale_factor.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_gpu.h"

namespace wcuda::quant {
namespace {

Status repack_on_host(const Repack& weight) {
  const auto* const source = static_cast<const uint8_t*>(weight.source);
  if (weight.scale_bound != nullptr)
    *weight.scale_bound =
        scale_bound(weight.type, source, superblock_count(weight) * sizeof(BlockQ4_K));
  if (!weight.is_vector)
    return pack_gpu(weight.type, weight.rows, weight.cols, 0, weight.rows, source,
                    static_cast<uint8_t*>(weight.target));
  const Format* const format = find_format(weight.type);
  if (format == nullptr || format->block_elements != 1)
    return invalid_argument("tensor type %u has no single elements", weight.type);
  return unpack_row(*format, source, weight.rows, static_cast<float*>(weight.target));
}

}  // namespace

float scale_bound(uint32_t type, const uint8_t* blocks, uint64_t bytes) {
  float most = 0.0f;
  if (!kernels::has_scale_factor(type)) return most;
  for (uint64_t at = 0; at + sizeof(BlockQ4_K) <= bytes; at += sizeof(BlockQ4_K)) {
    uint16_t scales[2];
    std::memcpy(scales, blocks + at, sizeof scales);
    most = std::max(most, kernels::scale_bound(scales[0], scales[1]));
  }
  return most;
}

Status repack(Backend& backend, const Repack& weight, Stream stream) {
  return backend.run({"repack", CallKind::kLaunch, 0, stream}, [&](Backend& device) -> Status {
    if (device.is_registered()) return unsupported("this backend cannot repack weights");
    return device.is_host() ? repack_on_host(weight) : repack_on_cuda(device, weight, stream);
  });
}

}  // namespace wcuda::quant
