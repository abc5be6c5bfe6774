// A stack of free pages, a hash table of keys and a list of cached pages by last use. After
// construction nothing allocates, so no function can fail halfway.
#include "llm/engine/page_pool.h"

#include <algorithm>
#include <cstring>

namespace wcuda::engine {

PagePool::PagePool(uint32_t page_count) : pages_(page_count) {
  free_.reserve(page_count);
  in_flight_.reserve(page_count);
  for (uint32_t page = page_count; page-- > 0;) free_.push_back(page);
  size_t buckets = 1;
  while (buckets < page_count) buckets *= 2;
  buckets_.assign(buckets, kNone);
}

uint32_t PagePool::evict() {
  const uint32_t page = oldest_;
  free_cached(page);
  return page;
}

uint32_t PagePool::take() {
  const uint32_t page = free_.back();
  free_.pop_back();
  pages_[page].references = 1;
  return page;
}

void PagePool::share(uint32_t page) {
  if (pages_[page].references++ == 0) unlink_cached(page);
}

bool PagePool::release(uint32_t page) {
  Page& released = pages_[page];
  if (--released.references != 0) return false;
  if (released.is_keyed && released.computed_by.ticket == 0) {
    released.older = newest_;
    released.newer = kNone;
    (newest_ == kNone ? oldest_ : pages_[newest_].newer) = page;
    newest_ = page;
    ++cached_count_;
    return false;
  }
  forget(page);
  free_.push_back(page);
  return true;
}

uint32_t PagePool::publish(uint32_t page, const wcuda_page_key& key, ComputedBy computed_by) {
  if (pages_[page].is_keyed) return kNone;
  const uint32_t other = find_any(key);
  if (other != kNone) {
    if (pages_[other].references > 0) return kNone;
    free_cached(other);
  }
  Page& published = pages_[page];
  published.is_keyed = true;
  published.key = key;
  published.computed_by = computed_by;
  if (computed_by.ticket != 0) in_flight_.push_back(page);
  uint32_t& first = buckets_[bucket(key)];
  published.next_in_bucket = first;
  first = page;
  return other;
}

uint32_t PagePool::find(const wcuda_page_key& key) const {
  const uint32_t page = find_any(key);
  return page != kNone && pages_[page].computed_by.ticket == 0 ? page : kNone;
}

void PagePool::forget_held() {
  for (uint32_t page = 0; page < page_count(); ++page)
    if (pages_[page].references > 0) forget(page);
}

// A key is a digest, so its first bytes are distributed evenly.
size_t PagePool::bucket(const wcuda_page_key& key) const {
  uint64_t number;
  std::memcpy(&number, key.bytes, sizeof(number));
  return number & (buckets_.size() - 1);
}

uint32_t PagePool::find_any(const wcuda_page_key& key) const {
  uint32_t page = buckets_[bucket(key)];
  while (page != kNone && std::memcmp(pages_[page].key.bytes, key.bytes, sizeof(key.bytes)) != 0)
    page = pages_[page].next_in_bucket;
  return page;
}

void PagePool::remove_key(uint32_t page) {
  if (pages_[page].computed_by.ticket != 0) mark_computed(page);
  uint32_t* link = &buckets_[bucket(pages_[page].key)];
  while (*link != page) link = &pages_[*link].next_in_bucket;
  *link = pages_[page].next_in_bucket;
  pages_[page].is_keyed = false;
}

void PagePool::mark_computed(uint32_t page) {
  in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), page));
  pages_[page].computed_by = {};
}

void PagePool::free_cached(uint32_t page) {
  unlink_cached(page);
  remove_key(page);
  free_.push_back(page);
}

void PagePool::unlink_cached(uint32_t page) {
  const Page& cached = pages_[page];
  (cached.older == kNone ? oldest_ : pages_[cached.older].newer) = cached.newer;
  (cached.newer == kNone ? newest_ : pages_[cached.newer].older) = cached.older;
  --cached_count_;
}

}  // namespace wcuda::engine
