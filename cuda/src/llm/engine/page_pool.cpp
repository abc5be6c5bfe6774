// A stack of free pages and a count of references for each page.
#include "llm/engine/page_pool.h"

namespace wcuda::engine {

PagePool::PagePool(uint32_t page_count) : references_(page_count, 0) {
  free_.reserve(page_count);
  for (uint32_t page = page_count; page-- > 0;) free_.push_back(page);
}

uint32_t PagePool::take() {
  const uint32_t page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

bool PagePool::release(uint32_t page) {
  if (--references_[page] != 0) return false;
  free_.push_back(page);
  return true;
}

}  // namespace wcuda::engine
