#include "llm/engine/page_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace wcuda::engine {
namespace {

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

}  // namespace
}  // namespace wcuda::engine
