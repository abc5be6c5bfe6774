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
};

// The features of one token.
struct FeatureRow {
  uint8_t* page;  // in the first layer of its features
  uint64_t page_bytes, layer_bytes;
  uint64_t offset;  // of its first feature

  WCUDA_HOST_DEVICE FeatureRow(const FeaturePages& pages, uint32_t index, uint32_t position)
      : page_bytes(pages.page_layer_bytes), layer_bytes(pages.page_count * page_bytes) {
    const uint64_t byte = uint64_t{position % kPagePositions} * pages.width * 2;
    const uint64_t layer = byte / page_bytes;
    page = pages.data + (pages.first_layer + layer) * layer_bytes + index * page_bytes;
    offset = byte - layer * page_bytes;
  }
  WCUDA_HOST_DEVICE uint16_t* at(uint32_t column) const {
    uint8_t* own = page;
    uint64_t byte = offset + uint64_t{column} * 2;
    for (; byte >= page_bytes; byte -= page_bytes) own += layer_bytes;
    return reinterpret_cast<uint16_t*>(own + byte);
  }
};

// Layers of KV pages that hold the features of a page.
constexpr uint64_t feature_page_layers(uint64_t width, uint64_t page_layer_bytes) {
  return (width * kPagePositions * 2 + page_layer_bytes - 1) / page_layer_bytes;
}

}  // namespace wcuda::kernels
