#include "llm/engine/page_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace wcuda::engine {
namespace {

// Keys 1 and 9 are in the same bucket of a pool of 8 pages or fewer.
wcuda_page_key key(uint8_t number) { return {{number}}; }

const auto kWell = [](uint32_t) { return true; };
const auto kFailed = [](uint32_t) { return false; };

TEST(PagePool, hands_out_every_page_once) {
  PagePool pool(5);

  std::set<uint32_t> pages;
  while (pool.free_count() > 0) pages.insert(pool.take());

  EXPECT_EQ(pages, (std::set<uint32_t>{0, 1, 2, 3, 4}));
}

TEST(PagePool, a_shared_page_is_free_after_its_last_release) {
  PagePool pool(2);
  const uint32_t page = pool.take();
  pool.share(page);
  pool.share(page);

  EXPECT_FALSE(pool.release(page));
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.free_count(), 1u);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.free_count(), 2u);
  EXPECT_EQ(pool.references(page), 0u);
}

TEST(PagePool, a_page_with_a_key_is_cached_and_evicted_in_the_order_of_last_use) {
  PagePool pool(3);
  const uint32_t a = pool.take(), b = pool.take(), c = pool.take();
  pool.publish(a, key(1), {});
  pool.publish(b, key(2), {});
  pool.publish(c, key(9), {});
  for (const uint32_t page : {c, a, b}) EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.free_count(), 3u);
  EXPECT_EQ(pool.cached_count(), 3u);

  pool.share(a);  // out of the middle of the list, and then to its end
  EXPECT_EQ(pool.cached_count(), 2u);
  EXPECT_FALSE(pool.release(a));

  EXPECT_EQ(pool.evict(), c);
  EXPECT_EQ(pool.find(key(9)), PagePool::kNone);
  EXPECT_EQ(pool.find(key(1)), a);
  EXPECT_EQ(pool.evict(), b);
  EXPECT_EQ(pool.evict(), a);
  EXPECT_EQ(pool.free_count(), 3u);
  EXPECT_EQ(pool.cached_count(), 0u);
}

TEST(PagePool, a_page_in_flight_is_found_after_its_ticket_and_not_after_a_failure) {
  PagePool pool(4);
  const uint32_t a = pool.take(), b = pool.take(), c = pool.take();
  pool.publish(a, key(1), {7, 0});
  pool.publish(b, key(2), {7, 1});
  pool.publish(c, key(9), {8, 0});
  EXPECT_EQ(pool.publish(pool.take(), key(1), {}), PagePool::kNone);
  EXPECT_EQ(pool.find(key(1)), PagePool::kNone);

  pool.complete(7, [](uint32_t row) { return row == 1; });
  EXPECT_EQ(pool.find(key(1)), PagePool::kNone);
  EXPECT_EQ(pool.find(key(2)), b);
  EXPECT_EQ(pool.find(key(9)), PagePool::kNone);
  EXPECT_TRUE(pool.release(c)) << "a page that is still computed is not cached";
  pool.complete(8, kWell);
  EXPECT_EQ(pool.find(key(9)), PagePool::kNone);
  pool.publish(a, key(9), {9, 0});
  pool.complete(9, kFailed);
  EXPECT_EQ(pool.find(key(9)), PagePool::kNone);
}

TEST(PagePool, a_cached_page_gives_its_key_to_a_held_one) {
  PagePool pool(2);
  const uint32_t a = pool.take(), b = pool.take();
  pool.publish(a, key(1), {});
  EXPECT_EQ(pool.publish(b, key(1), {}), PagePool::kNone);
  EXPECT_EQ(pool.find(key(1)), a);
  pool.release(a);

  EXPECT_EQ(pool.publish(b, key(1), {}), a);

  EXPECT_EQ(pool.find(key(1)), b);
  EXPECT_EQ(pool.cached_count(), 0u);
  EXPECT_EQ(pool.free_count(), 1u);
  pool.forget_held();
  EXPECT_EQ(pool.find(key(1)), PagePool::kNone);
  EXPECT_TRUE(pool.release(b));
}

}  // namespace
}  // namespace wcuda::engine
