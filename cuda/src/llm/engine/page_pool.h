// Records which KV pages are free and how many sequences share each page, and finds pages by keys.
// It has only page numbers; the memory of the pages is elsewhere. The scheduler
// (src/scheduler/pages.rs) predicts the contents of this pool and depends on its rules.
//
//            take                      release, without a key
//   free  ----------->  held  ------------------------------------>  free
//                       |  ^                                          ^
//      release, keyed   |  |  share                                   |
//                       v  |                                          |
//                      cached  --- evict, least recently used first ---
//
// A cached page has a key and no owner. It counts as free, because it can be evicted.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_cuda/llm.h"

namespace wcuda::engine {

// The row of a step that computes the last positions of a page. Ticket 0: it is computed.
struct ComputedBy {
  uint64_t ticket = 0;
  uint32_t row = 0;
};

class PagePool {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit PagePool(uint32_t page_count);

  uint32_t page_count() const { return static_cast<uint32_t>(pages_.size()); }
  // With the cached ones.
  uint32_t free_count() const { return static_cast<uint32_t>(free_.size()) + cached_count_; }
  uint32_t cached_count() const { return cached_count_; }
  uint32_t references(uint32_t page) const { return pages_[page].references; }

  // Removes the key of the cached page that was used least recently, and returns the page, which is
  // free now. The caller has checked cached_count().
  uint32_t evict();
  // Returns a free page, now with one reference. The caller has checked that one is not cached.
  uint32_t take();
  void share(uint32_t page);
  // Returns true if the page became free, and not cached. The pages of a sequence are released last
  // page first: then the last page of a chain is evicted before those that it depends on.
  bool release(uint32_t page);

  // Gives a held page a key. Has no effect if the page has a key, or if another page that is held
  // or is being computed has this key. A cached page loses the key to this page, and becomes free;
  // the return value is that page, otherwise kNone.
  uint32_t publish(uint32_t page, const wcuda_page_key& key, ComputedBy computed_by);
  // Returns the computed page that has the key, or kNone.
  uint32_t find(const wcuda_page_key& key) const;
  // Removes the key of a held page before it is written to.
  void forget(uint32_t page) {
    if (pages_[page].is_keyed) remove_key(page);
  }
  // Pages whose last row has ended well can be found from now on; the others lose their keys.
  template <class EndedWell>
  void complete(uint64_t ticket, EndedWell&& ended_well) {
    for (size_t i = 0; i < in_flight_.size();) {
      Page& page = pages_[in_flight_[i]];
      if (page.computed_by.ticket != ticket)
        ++i;
      else if (!ended_well(page.computed_by.row))
        remove_key(in_flight_[i]);
      else
        mark_computed(in_flight_[i]);
    }
  }
  // Removes all keys of held pages.
  void forget_held();

 private:
  struct Page {
    uint32_t references = 0;  // sequences that hold the page
    bool is_keyed = false;
    wcuda_page_key key{};
    ComputedBy computed_by;
    uint32_t next_in_bucket = kNone;
    uint32_t older = kNone, newer = kNone;  // neighbours in the order of last use, if cached
  };

  size_t bucket(const wcuda_page_key& key) const;
  uint32_t find_any(const wcuda_page_key& key) const;
  void remove_key(uint32_t page);
  void mark_computed(uint32_t page);
  void free_cached(uint32_t page);
  void unlink_cached(uint32_t page);

  std::vector<Page> pages_;
  std::vector<uint32_t> free_;  // a stack, because the page freed last may still be in a CPU cache
  std::vector<uint32_t> buckets_;    // (a power of two) the first page of each
  std::vector<uint32_t> in_flight_;  // keyed pages that a step in flight computes
  uint32_t oldest_ = kNone, newest_ = kNone, cached_count_ = 0;
};

}  // namespace wcuda::engine
