#include "api/base/handles.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "support/allocation_failure.h"

namespace wcuda::api {
namespace {

uint64_t insert_int(Kind kind, int value) {
  auto id = insert(kind, std::make_shared<int>(value));
  EXPECT_TRUE(id.ok()) << id.status().message();
  return *id;
}

TEST(Handles, resolves_what_was_inserted) {
  const uint64_t id = insert_int(Kind::kBuffer, 7);

  auto object = resolve<int>(Kind::kBuffer, id, "buffer");

  ASSERT_TRUE(object.ok()) << object.status().message();
  EXPECT_EQ(**object, 7);
  remove(Kind::kBuffer, id);
}

TEST(Handles, none_foreign_and_wrong_kind_are_named) {
  const uint64_t id = insert_int(Kind::kModel, 1);

  const auto none = resolve<int>(Kind::kModel, 0, "model");
  const auto foreign = resolve<int>(Kind::kModel, 0x1234567890abcdefu, "model");
  const auto wrong = resolve<int>(Kind::kEngine, id, "engine");

  EXPECT_EQ(none.status().code(), WCUDA_INVALID_HANDLE);
  EXPECT_STREQ(none.status().message(),
               "model: handle 0x0000000000000000 is the null handle; needed: model");
  EXPECT_EQ(foreign.status().code(), WCUDA_INVALID_HANDLE);
  EXPECT_NE(std::string(foreign.status().message()).find("was never issued"), std::string::npos);
  EXPECT_EQ(wrong.status().code(), WCUDA_INVALID_HANDLE);
  EXPECT_NE(std::string(wrong.status().message()).find("is a model; needed: engine"),
            std::string::npos);
  remove(Kind::kModel, id);
}

TEST(Handles, every_single_bit_flip_is_refused) {
  const uint64_t id = insert_int(Kind::kGguf, 1);

  for (int bit = 0; bit < 64; ++bit) {
    const auto other = resolve<int>(Kind::kGguf, id ^ (uint64_t{1} << bit), "gguf");
    EXPECT_EQ(other.status().code(), WCUDA_INVALID_HANDLE) << "bit " << bit;
  }
  remove(Kind::kGguf, id);
}

TEST(Handles, removed_id_stays_dead_when_its_slot_is_used_again) {
  std::set<uint64_t> seen;

  for (int i = 0; i < 5000; ++i) {
    const uint64_t id = insert_int(Kind::kCancel, i);
    EXPECT_TRUE(seen.insert(id).second);
    EXPECT_NE(remove(Kind::kCancel, id), nullptr);
    EXPECT_EQ(remove(Kind::kCancel, id), nullptr);
  }

  for (const uint64_t id : seen) {
    const auto stale = resolve<int>(Kind::kCancel, id, "cancel");
    ASSERT_EQ(stale.status().code(), WCUDA_INVALID_HANDLE);
    ASSERT_NE(std::string(stale.status().message()).find("was destroyed"), std::string::npos);
  }
}

TEST(Handles, object_lives_as_long_as_someone_uses_it) {
  auto object = std::make_shared<int>(3);
  const std::weak_ptr<int> watch = object;
  const auto id = insert(Kind::kBuffer, std::move(object));

  auto used = resolve<int>(Kind::kBuffer, *id, "buffer");
  remove(Kind::kBuffer, *id);

  EXPECT_FALSE(watch.expired());
  used = Status::error(WCUDA_INTERNAL, "dropped");
  EXPECT_TRUE(watch.expired());
}

TEST(Handles, wrong_type_behind_the_right_kind_is_an_internal_error) {
  const uint64_t id = insert_int(Kind::kBuffer, 1);

  EXPECT_EQ(resolve<double>(Kind::kBuffer, id, "buffer").status().code(), WCUDA_INTERNAL);
  remove(Kind::kBuffer, id);
}

TEST(Handles, eight_threads_never_see_another_object) {
  constexpr int kThreads = 8;
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> shared_id{insert_int(Kind::kSequence, -1)};

  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        const int value = t * 1000000 + i;
        const uint64_t id = insert_int(Kind::kSequence, value);
        auto mine = resolve<int>(Kind::kSequence, id, "sequence");
        if (!mine.ok() || **mine != value) ++wrong;
        // Whoever swapped the id out owns its removal; others may race with that.
        const uint64_t previous = shared_id.exchange(id);
        (void)resolve<int>(Kind::kSequence, shared_id.load(), "sequence");
        if (!remove(Kind::kSequence, previous)) ++wrong;
        if (resolve<int>(Kind::kSequence, previous, "sequence").ok()) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0);
  EXPECT_NE(remove(Kind::kSequence, shared_id), nullptr);
  EXPECT_EQ(live_count(Kind::kSequence), 0u);
}

TEST(Handles, insert_survives_running_out_of_memory) {
  std::vector<uint64_t> ids;  // past one chunk of slots, so that the table grows as well
  ids.reserve(3000);
  const uint64_t live = live_count(Kind::kPinned);
  auto object = std::make_shared<int>(1);

  int failures = 0;
  for (int i = 0; i < 1500; ++i) {
    testing::FailAllocation fail(1);
    try {
      const auto id = insert(Kind::kPinned, object);
      if (id.ok()) ids.push_back(*id);
    } catch (const std::bad_alloc&) {
      ++failures;
    }
  }

  EXPECT_GE(failures, 1);
  EXPECT_EQ(live_count(Kind::kPinned), live + ids.size());
  for (const uint64_t id : ids) EXPECT_NE(remove(Kind::kPinned, id), nullptr);
  EXPECT_EQ(object.use_count(), 1);
}

}  // namespace
}  // namespace wcuda::api
