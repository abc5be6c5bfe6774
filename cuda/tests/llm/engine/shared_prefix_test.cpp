#include "llm/engine/shared_prefix.h"

#include <gtest/gtest.h>

namespace wcuda::engine {
namespace {

// Rows by (first page, how many pages follow one another from it, further pages).
class Tables {
 public:
  Tables& add(uint32_t first, uint32_t count, uint32_t own) {
    std::vector<uint32_t> pages;
    for (uint32_t i = 0; i < count; ++i) pages.push_back(first + i);
    for (uint32_t i = 0; i < own; ++i) pages.push_back(next_++);
    tables_.push_back(pages);
    return *this;
  }
  std::vector<SharedPrefix> find() const {
    std::vector<PrefixRow> rows;
    for (const std::vector<uint32_t>& table : tables_)
      rows.push_back({table.data(), static_cast<uint32_t>(table.size())});
    return find_shared_prefixes(rows);
  }

 private:
  std::vector<std::vector<uint32_t>> tables_;
  uint32_t next_ = 1000000;
};

void expect_group(const SharedPrefix& group, uint32_t row, uint32_t row_count, uint32_t pages) {
  EXPECT_EQ(group.row, row);
  EXPECT_EQ(group.row_count, row_count);
  EXPECT_EQ(group.pages, pages);
}

TEST(SharedPrefix, rows_with_no_page_in_common_have_no_group) {
  Tables rows;
  for (uint32_t r = 0; r < 100; ++r) rows.add(0, 0, 300);

  EXPECT_TRUE(rows.find().empty());
  EXPECT_TRUE(Tables().find().empty());
}

TEST(SharedPrefix, consecutive_rows_form_a_group_of_what_all_have) {
  Tables rows;
  rows.add(0, 0, 70);
  for (uint32_t r = 0; r < 10; ++r) rows.add(500, r == 7 ? 61 : 64, r % 3);
  rows.add(0, 0, 70).add(900, 300, 1).add(900, 300, 0);

  const auto groups = rows.find();

  ASSERT_EQ(groups.size(), 2u);
  expect_group(groups[0], 1, 10, 60);  // whole pairs of pages
  expect_group(groups[1], 12, 2, 300);
}

TEST(SharedPrefix, a_row_with_far_less_in_common_stays_out) {
  Tables rows;
  for (uint32_t r = 0; r < 8; ++r) rows.add(500, 100, 5);
  rows.add(500, 40, 100);
  for (uint32_t r = 0; r < 8; ++r) rows.add(500, 100, 5);

  const auto groups = rows.find();

  ASSERT_EQ(groups.size(), 2u);
  expect_group(groups[0], 0, 8, 100);
  expect_group(groups[1], 8, 9, 40);
}

TEST(SharedPrefix, groups_that_save_little_are_left_alone) {
  const auto count_of = [](uint32_t row_count, uint32_t pages) {
    Tables rows;
    for (uint32_t r = 0; r < row_count; ++r) rows.add(500, pages, 3);
    return rows.find().size();
  };

  EXPECT_EQ(count_of(2, kSharedPagesSaved - 2), 0u);
  EXPECT_EQ(count_of(2, kSharedPagesSaved), 1u);
  EXPECT_EQ(count_of(500, kSharedPagesMin - 1), 0u);
  EXPECT_EQ(count_of(500, kSharedPagesMin), 1u);
}

// The page that a row writes to does not end before its token, and so is no part of a prefix.
// The step writes the page of the row's position, which ends before its last drafts.
TEST(SharedPrefix, drafts_share_no_page_that_the_step_writes) {
  const auto sequence = std::make_shared<engine::Sequence>();
  for (uint32_t page = 0; page < 10; ++page) sequence->pages.push_back(page);
  std::vector<Row> rows(60);
  for (uint32_t i = 0; i < rows.size(); ++i) {
    rows[i].sequence = sequence;
    rows[i].draft_index = i % 6;
    rows[i].step.first_position = 509 + i % 6;
  }
  const std::vector<PrefixRow> found = prefix_rows(rows);
  ASSERT_EQ(found.size(), rows.size());
  for (const PrefixRow& row : found) EXPECT_EQ(row.page_count, 7u);
  EXPECT_TRUE(find_shared_prefixes(found).empty());
}

TEST(SharedPrefix, only_pages_that_end_before_the_token_count) {
  const std::vector<uint32_t> pages(600, 7);
  const std::vector<PrefixRow> rows = {{pages.data(), 600}, {pages.data(), 519}};

  const auto groups = find_shared_prefixes(rows);

  ASSERT_EQ(groups.size(), 1u);
  expect_group(groups[0], 0, 2, 518);
}

}  // namespace
}  // namespace wcuda::engine
