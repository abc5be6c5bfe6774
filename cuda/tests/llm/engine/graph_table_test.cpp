#include "llm/engine/graph_table.h"

#include <gtest/gtest.h>

namespace wcuda::engine {
namespace {

constexpr uint32_t kLimit = 3;
constexpr uint64_t kIdleSteps = 10;

class GraphTableTest : public ::testing::Test {
 protected:
  // One step of a class and, with a negative key, its twin. Returns whether it had a graph before.
  bool step(int key, bool has_long_rows = true) {
    std::unique_ptr<int>* const graph = table_.find(key, -key, has_long_rows);
    is_captured_ = graph != nullptr && *graph == nullptr;
    if (graph == nullptr) return false;
    if (is_captured_) *graph = std::make_unique<int>(key);
    EXPECT_EQ(**graph, key);
    return !is_captured_;
  }
  void expect_captured(int key) {
    EXPECT_FALSE(step(key));
    EXPECT_TRUE(is_captured_) << key;
  }
  void expect_none(int key) {
    EXPECT_FALSE(step(key));
    EXPECT_FALSE(is_captured_) << key;
  }
  // Twice: the second step is captured.
  void add(int key) {
    expect_none(key);
    expect_captured(key);
  }

  GraphTable<int, int> table_{kLimit, kIdleSteps};
  bool is_captured_ = false;
};

TEST_F(GraphTableTest, rows_of_one_token_are_captured_at_once_and_kept) {
  for (int key = 1; key <= 100; ++key) {
    EXPECT_FALSE(step(key, false));
    EXPECT_TRUE(is_captured_);
  }
  for (int key = 1; key <= 100; ++key) EXPECT_TRUE(step(key, false)) << key;
}

TEST_F(GraphTableTest, longer_rows_are_captured_when_their_class_or_its_twin_occurs_again) {
  add(1);
  EXPECT_TRUE(step(1));
  expect_none(2);
  expect_captured(-2);
  expect_captured(2);
}

TEST_F(GraphTableTest, graphs_in_use_are_not_replaced) {
  for (const int key : {1, 2, 3}) add(key);
  for (int round = 0; round < 20; ++round) {
    for (const int key : {1, 2, 3}) EXPECT_TRUE(step(key)) << key;
    expect_none(4);
  }
}

TEST_F(GraphTableTest, the_least_recently_used_graph_is_replaced_once_it_is_idle) {
  for (const int key : {1, 2, 3}) add(key);
  EXPECT_TRUE(step(1));  // 2 is the oldest
  expect_none(4);
  for (uint64_t i = 0; i < kIdleSteps; ++i) EXPECT_TRUE(step(i % 2 == 0 ? 1 : 3));
  expect_captured(4);
  for (const int key : {1, 3, 4}) EXPECT_TRUE(step(key)) << key;
  expect_none(2);  // it is known, but nothing is idle
  for (uint64_t i = 0; i < kIdleSteps; ++i) EXPECT_TRUE(step(i % 2 == 0 ? 3 : 4));
  expect_captured(2);
  expect_none(1);
}

TEST_F(GraphTableTest, steps_of_one_token_rows_make_no_graph_idle) {
  for (const int key : {1, 2, 3}) add(key);
  for (uint64_t i = 0; i < 10 * kIdleSteps; ++i) step(100, false);
  expect_none(4);
  expect_none(4);
}

TEST_F(GraphTableTest, a_failed_capture_takes_no_room) {
  for (const int key : {1, 2}) add(key);
  expect_none(3);
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::unique_ptr<int>* const graph = table_.find(3, -3, true);
    ASSERT_NE(graph, nullptr);
    ASSERT_EQ(*graph, nullptr);
  }
  expect_captured(3);
  expect_none(4);
  expect_none(4);
}

}  // namespace
}  // namespace wcuda::engine
