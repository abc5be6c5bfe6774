// Records which KV pages are free and how many sequences share each page. It has only page numbers;
// the memory of the pages is elsewhere.
#pragma once

#include <cstdint>
#include <vector>

namespace wcuda::engine {

class PagePool {
 public:
  explicit PagePool(uint32_t page_count);

  uint32_t page_count() const { return static_cast<uint32_t>(references_.size()); }
  uint32_t free_count() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t references(uint32_t page) const { return references_[page]; }

  // Returns a free page, now with one reference. The caller has checked free_count().
  uint32_t take();
  void share(uint32_t page) { ++references_[page]; }
  // Returns true if the page became free.
  bool release(uint32_t page);

 private:
  std::vector<uint32_t> references_;  // (page_count) sequences that hold the page
  std::vector<uint32_t> free_;  // a stack, because the page freed last may still be in a cache
};

}  // namespace wcuda::engine
