// Features of tokens in the pages of their sequence, as host and kernels address them.
#pragma once

#include <cstdint>

#include "kernels/shared/host_device.h"
#include "kernels/shared/kv_pages.h"

namespace wcuda::kernels {

// A page holds bf16 (64 positions, width) in as many layers of the KV pages as that needs, behind
// those of the model. So what copies, saves or clears pages does the same with features.
struct FeaturePages {
  uint8_t* data = nullptr;  // of the KV pages
  uint32_t page_count = 0;
  uint32_t first_layer = 0;
  uint64_t page_layer_bytes = 0;  // of a page in one layer, keys and values; even
  uint32_t width = 0;

  WCUDA_HOST_DEVICE uint16_t* at(uint32_t page, uint32_t position, uint32_t column) const {
    const uint64_t byte = (uint64_t{position % kPagePositions} * width + column) * 2;
    const uint64_t layer = first_layer + byte / page_layer_bytes;
    return reinterpret_cast<uint16_t*>(data + (layer * page_count + page) * page_layer_bytes +
                                       byte % page_layer_bytes);
  }
};

// Layers of KV pages that hold the features of a page.
constexpr uint64_t feature_page_layers(uint64_t width, uint64_t page_layer_bytes) {
  return (width * kPagePositions * 2 + page_layer_bytes - 1) / page_layer_bytes;
}

}  // namespace wcuda::kernels
