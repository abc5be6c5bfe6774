// Tables: streams, events, threads, and what ends when.
#include <atomic>
#include <thread>

#include "core/backend/table_conformance.h"

namespace wcuda::testing {
namespace {

TEST_P(TableConformance, asynchronous_copies_are_ordered_in_their_stream) {
  constexpr uint64_t kBytes = 1 << 20;
  const wcuda_stream stream = make_stream();
  const auto in = allocate(kBytes, WCUDA_MEMORY_HOST_VISIBLE);
  const auto out = allocate(kBytes, WCUDA_MEMORY_HOST_VISIBLE);
  const auto device = allocate(kBytes);
  void *from = nullptr, *to = nullptr;
  ASSERT_EQ(table_->host_address(self_, in, &from, &error_), WCUDA_OK);
  ASSERT_EQ(table_->host_address(self_, out, &to, &error_), WCUDA_OK);
  const auto data = counting(kBytes, 9);
  std::memcpy(from, data.data(), kBytes);

  ASSERT_EQ(table_->copy_to_device_async(self_, device, 0, from, kBytes, stream, &error_),
            WCUDA_OK);
  ASSERT_EQ(table_->fill(self_, device, 0, 16, 0xab, 1, stream, &error_), WCUDA_OK);
  ASSERT_EQ(table_->copy_from_device_async(self_, to, device, 0, kBytes, stream, &error_),
            WCUDA_OK);
  ASSERT_EQ(table_->stream_synchronize(self_, stream, &error_), WCUDA_OK);

  const auto* const result = static_cast<const uint8_t*>(to);
  EXPECT_TRUE(std::all_of(result, result + 16, [](uint8_t byte) { return byte == 0xab; }));
  EXPECT_EQ(std::memcmp(result + 16, data.data() + 16, kBytes - 16), 0);
}

TEST_P(TableConformance, asynchronous_copies_take_ordinary_memory) {
  const auto data = counting(5000, 4);
  std::vector<uint8_t> back(5000);
  const auto device = allocate(5000);
  ASSERT_EQ(table_->copy_to_device_async(self_, device, 0, data.data(), 5000, {0}, &error_),
            WCUDA_OK);
  ASSERT_EQ(table_->copy_from_device_async(self_, back.data(), device, 0, 5000, {0}, &error_),
            WCUDA_OK);
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);
  EXPECT_EQ(back, data);
}

TEST_P(TableConformance, asynchronous_copies_past_the_end_are_refused) {
  const auto device = upload(counting(64));
  std::vector<uint8_t> data(65, 1);
  EXPECT_EQ(table_->copy_to_device_async(self_, device, 0, data.data(), 65, {0}, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(table_->copy_from_device_async(self_, data.data(), device, 60, 5, {0}, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(download(device), counting(64));
}

TEST_P(TableConformance, a_stream_waits_for_another_ones_event) {
  constexpr uint64_t kBytes = 8 << 20;
  const wcuda_stream first = make_stream(), second = make_stream();
  const wcuda_event event = make_event();
  const auto a = allocate(kBytes), b = allocate(kBytes);
  for (uint8_t round = 2; round < 10; ++round) {
    ASSERT_EQ(table_->fill(self_, a, 0, kBytes, round, 1, first, &error_), WCUDA_OK);
    ASSERT_EQ(table_->event_record(self_, event, first, &error_), WCUDA_OK);
    ASSERT_EQ(table_->event_order(self_, event, second, &error_), WCUDA_OK);
    ASSERT_EQ(table_->copy_on_device(self_, b, 0, a, 0, kBytes, second, &error_), WCUDA_OK);
    ASSERT_EQ(table_->stream_synchronize(self_, second, &error_), WCUDA_OK);
    ASSERT_EQ(download(b, kBytes - 1, 1)[0], round);
  }
}

TEST_P(TableConformance, synchronize_waits_for_every_stream) {
  constexpr uint64_t kBytes = 8 << 20;
  std::vector<wcuda_device_memory> blocks;
  for (uint8_t i = 0; i < 4; ++i) {
    blocks.push_back(allocate(kBytes));
    ASSERT_EQ(table_->fill(self_, blocks.back(), 0, kBytes, i, 1, make_stream(), &error_),
              WCUDA_OK);
  }
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);
  for (uint8_t i = 0; i < 4; ++i) EXPECT_EQ(download(blocks[i], kBytes - 1, 1)[0], i);
}

TEST_P(TableConformance, stream_0_is_there) {
  EXPECT_EQ(table_->stream_synchronize(self_, {0}, &error_), WCUDA_OK);
  const wcuda_event event = make_event();
  EXPECT_EQ(table_->event_record(self_, event, {0}, &error_), WCUDA_OK);
}

TEST_P(TableConformance, streams_have_two_priorities) {
  wcuda_stream stream{7};
  EXPECT_EQ(table_->stream_create(self_, -1, &stream, &error_), WCUDA_OK);
  stream.id = 7;
  EXPECT_EQ(table_->stream_create(self_, 1, &stream, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->stream_create(self_, -2, &stream, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(stream.id, 7u);
}

TEST_P(TableConformance, destroyed_streams_are_refused) {
  const wcuda_stream stream = make_stream();
  const auto memory = allocate(16);
  const wcuda_event event = make_event();
  ASSERT_EQ(table_->stream_destroy(self_, stream, &error_), WCUDA_OK);
  expect_refused(table_->stream_destroy(self_, stream, &error_));
  expect_refused(table_->stream_synchronize(self_, stream, &error_));
  expect_refused(table_->fill(self_, memory, 0, 16, 0, 1, stream, &error_));
  expect_refused(table_->event_record(self_, event, stream, &error_));
  expect_refused(table_->event_order(self_, event, stream, &error_));
  expect_refused(table_->stream_destroy(self_, {0}, &error_));
}

TEST_P(TableConformance, destroying_a_stream_waits_for_its_work) {
  constexpr uint64_t kBytes = 32 << 20;
  const wcuda_stream stream = make_stream();
  const auto memory = allocate(kBytes);
  ASSERT_EQ(table_->fill(self_, memory, 0, kBytes, 5, 1, stream, &error_), WCUDA_OK);
  ASSERT_EQ(table_->stream_destroy(self_, stream, &error_), WCUDA_OK);
  EXPECT_EQ(download(memory, kBytes - 1, 1)[0], 5);
}

TEST_P(TableConformance, events_measure_time) {
  const wcuda_event start = make_event(), end = make_event();
  const auto memory = allocate(32 << 20);
  double milliseconds = -1;
  EXPECT_EQ(table_->event_elapsed(self_, start, end, &milliseconds, &error_), WCUDA_INVALID_STATE);
  ASSERT_EQ(table_->event_record(self_, start, {0}, &error_), WCUDA_OK);
  ASSERT_EQ(table_->fill(self_, memory, 0, 32 << 20, 7, 4, {0}, &error_), WCUDA_OK);
  ASSERT_EQ(table_->event_record(self_, end, {0}, &error_), WCUDA_OK);
  ASSERT_EQ(table_->event_synchronize(self_, end, &error_), WCUDA_OK);
  int32_t done = 0;
  EXPECT_EQ(table_->event_done(self_, end, &done, &error_), WCUDA_OK);
  EXPECT_EQ(done, 1);
  ASSERT_EQ(table_->event_elapsed(self_, start, end, &milliseconds, &error_), WCUDA_OK);
  EXPECT_GT(milliseconds, 0.0);
}

TEST_P(TableConformance, destroyed_events_are_refused) {
  const wcuda_event event = make_event(), other = make_event();
  ASSERT_EQ(table_->event_destroy(self_, event, &error_), WCUDA_OK);
  int32_t done = 0;
  double milliseconds = 0;
  expect_refused(table_->event_destroy(self_, event, &error_));
  expect_refused(table_->event_record(self_, event, {0}, &error_));
  expect_refused(table_->event_order(self_, event, {0}, &error_));
  expect_refused(table_->event_synchronize(self_, event, &error_));
  expect_refused(table_->event_done(self_, event, &done, &error_));
  expect_refused(table_->event_elapsed(self_, event, other, &milliseconds, &error_));
}

TEST_P(TableConformance, an_event_that_was_never_recorded_counts_as_done) {
  int32_t done = 0;
  EXPECT_EQ(table_->event_done(self_, make_event(), &done, &error_), WCUDA_OK);
  EXPECT_EQ(done, 1);
}

TEST_P(TableConformance, eight_threads_do_not_disturb_each_other) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      wcuda_error error{};
      for (int i = 0; i < 1250; ++i) {  // of 8 operations
        constexpr uint64_t kBytes = 3000;
        const auto value = static_cast<uint8_t>(t * 31 + i);
        std::vector<uint8_t> data(kBytes);
        wcuda_stream stream{0};
        wcuda_device_memory memory{0, 0};
        wrong += table_->stream_create(self_, 0, &stream, &error) != WCUDA_OK;
        wrong += table_->allocate(self_, kBytes, 0, &memory, &error) != WCUDA_OK;
        wrong += table_->fill(self_, memory, 0, kBytes, value, 1, stream, &error) != WCUDA_OK;
        wrong += table_->stream_synchronize(self_, stream, &error) != WCUDA_OK;
        wrong += table_->copy_from_device(self_, data.data(), memory, 0, kBytes, &error) != 0;
        wrong += std::count(data.begin(), data.end(), value) != int64_t{kBytes};
        wrong += table_->free(self_, memory, &error) != WCUDA_OK;
        wrong += table_->stream_destroy(self_, stream, &error) != WCUDA_OK;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(live_count(), 0u);
}

TEST_P(TableConformance, of_eight_threads_that_free_one_block_one_does) {
  for (int round = 0; round < 50; ++round) {
    const auto memory = allocate(64);
    std::atomic<int> freed{0}, refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        const wcuda_status status = table_->free(self_, memory, nullptr);
        freed += status == WCUDA_OK;
        refused += status == WCUDA_INVALID_HANDLE;
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(freed, 1);
    EXPECT_EQ(refused, 7);
  }
}

TEST_P(TableConformance, deinit_ends_all_that_came_through_the_table) {
  wcuda_context context{0};
  ASSERT_EQ(wcuda_backend_context_create(backend_, &context, &error_), WCUDA_OK);
  const auto memory = allocate(1000), host = allocate(1000, WCUDA_MEMORY_HOST_VISIBLE);
  (void)make_stream();
  (void)make_event();
  EXPECT_EQ(live_count(), 4u);

  table_->deinit(self_);

  wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
  ASSERT_EQ(wcuda_context_memory_get(context, WCUDA_PURPOSE_ANY, &info, &error_), WCUDA_OK);
  EXPECT_EQ(info.allocation_count, 0u);
  uint64_t bytes = 0;
  EXPECT_EQ(wcuda_buffer_size_get({memory.id}, &bytes, nullptr), WCUDA_INVALID_HANDLE);
  void* data = nullptr;
  EXPECT_EQ(wcuda_pinned_data_get({host.id}, &data, &bytes, nullptr), WCUDA_INVALID_HANDLE);
  wcuda_context_destroy(context);
  backend_.id = 0;
}

TEST_P(TableConformance, a_table_whose_instance_ended_refuses_every_call) {
  const auto memory = allocate(16);
  table_->deinit(self_);
  wcuda_device_memory more{7, 7};
  uint8_t data[16] = {};
  EXPECT_EQ(table_->get_device_count(self_), 0u);
  expect_refused(table_->allocate(self_, 16, 0, &more, &error_));
  expect_refused(table_->free(self_, memory, &error_));
  expect_refused(table_->copy_to_device(self_, memory, 0, data, 16, &error_));
  expect_refused(table_->synchronize(self_, &error_));
  expect_refused(table_->fault(self_, &error_));
  table_->deinit(self_);
  EXPECT_EQ(more.id, 7u);
  backend_.id = 0;
}

TEST_P(TableConformance, deinit_while_threads_work_leaves_nothing) {
  std::atomic<bool> ended{false};
  std::atomic<int> rounds{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      wcuda_error error{};
      for (;;) {
        wcuda_device_memory memory{0, 0};
        uint8_t data[100] = {1};
        wcuda_status status = table_->allocate(self_, 100, 0, &memory, &error);
        if (status == WCUDA_OK)
          status = table_->copy_to_device(self_, memory, 0, data, 100, &error);
        if (status == WCUDA_OK) status = table_->free(self_, memory, &error);
        if (status == WCUDA_OK) {
          ++rounds;
          continue;
        }
        wrong += status != WCUDA_INVALID_HANDLE;
        if (ended) return;
      }
    });
  while (rounds < 1000) std::this_thread::yield();
  table_->deinit(self_);
  ended = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  expect_refused(table_->synchronize(self_, &error_));
  backend_.id = 0;
}

TEST_P(TableConformance, opening_and_ending_a_hundred_times_leaves_no_handle) {
  for (int i = 0; i < 100; ++i) {
    wcuda_backend other{0};
    const wcuda_backend_vtable* table = nullptr;
    void* self = nullptr;
    ASSERT_EQ(GetParam().open(&other, &error_), WCUDA_OK) << error_.message;
    ASSERT_EQ(wcuda_backend_table_get(other, &table, &self, &error_), WCUDA_OK);
    wcuda_device_memory memory{0, 0};
    ASSERT_EQ(table->allocate(self, 1 << 20, 0, &memory, &error_), WCUDA_OK);
    table->deinit(self);
    ASSERT_EQ(wcuda_backend_info_get(other, nullptr, &error_), WCUDA_INVALID_HANDLE);
  }
}

TEST_P(TableConformance, a_context_of_it_sees_its_memory) {
  wcuda_context context{0};
  ASSERT_EQ(wcuda_backend_context_create(backend_, &context, &error_), WCUDA_OK);
  const auto memory = upload(counting(3 << 20));
  wcuda_ledger_entry entry = WCUDA_LEDGER_ENTRY_INIT;
  uint64_t count = 0;
  ASSERT_EQ(wcuda_context_ledger_list(context, 0, &entry, 1, &count, &error_), WCUDA_OK);
  EXPECT_GE(count, 1u);
  std::vector<uint8_t> data(10);
  EXPECT_EQ(wcuda_buffer_read({memory.id}, 100, data.data(), 10, &error_), WCUDA_OK);
  EXPECT_EQ(data, counting(10, 100));
  uint8_t digest[32], again[32];
  EXPECT_EQ(wcuda_buffer_digest({memory.id}, 0, memory.bytes, digest, &error_), WCUDA_OK)
      << error_.message;
  const auto same = upload(counting(3 << 20));
  EXPECT_EQ(wcuda_buffer_digest({same.id}, 0, same.bytes, again, &error_), WCUDA_OK);
  EXPECT_EQ(std::memcmp(digest, again, 32), 0);
  wcuda_context_destroy(context);
}

TEST_P(TableConformance, memory_outlives_its_freeing_only_in_calls) {
  const auto memory = upload(counting(64));
  ASSERT_EQ(table_->free(self_, memory, &error_), WCUDA_OK);
  EXPECT_EQ(live_count(), 0u);
  uint64_t bytes = 0;
  EXPECT_EQ(wcuda_buffer_size_get({memory.id}, &bytes, nullptr), WCUDA_INVALID_HANDLE);
}

TEST_P(TableConformance, no_fault_is_reported_for_a_device_that_works) {
  EXPECT_EQ(table_->fault(self_, &error_), WCUDA_OK);
}

}  // namespace
}  // namespace wcuda::testing
