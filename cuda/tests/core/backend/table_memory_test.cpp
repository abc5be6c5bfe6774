// Tables: devices, memory, copies and fills.
#include <set>

#include "core/backend/table_conformance.h"

namespace wcuda::testing {
namespace {

TEST_P(TableConformance, table_is_complete_and_states_its_size) {
  EXPECT_EQ(table_->struct_size, sizeof(wcuda_backend_vtable));
  EXPECT_TRUE(table_->deinit && table_->allocate && table_->compile_kernel && table_->fault);
}

TEST_P(TableConformance, there_is_a_device) { EXPECT_GE(table_->get_device_count(self_), 1u); }

TEST_P(TableConformance, caps_are_filled) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  ASSERT_EQ(table_->get_device_caps(self_, 0, &caps, &error_), WCUDA_OK) << error_.message;
  EXPECT_GT(caps.name_bytes, 0u);
  EXPECT_GT(caps.total_memory, 0u);
  EXPECT_EQ(caps.ordinal, 0);
}

TEST_P(TableConformance, caps_smaller_than_those_of_version_1_are_refused) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  caps.struct_size = offsetof(wcuda_device_caps, unified_memory);
  caps.unified_memory = 77;
  EXPECT_EQ(table_->get_device_caps(self_, 0, &caps, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(caps.struct_size, offsetof(wcuda_device_caps, unified_memory));
  EXPECT_EQ(caps.unified_memory, 77);
}

TEST_P(TableConformance, caps_past_the_last_device_are_no_device) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  const uint32_t count = table_->get_device_count(self_);
  EXPECT_EQ(table_->get_device_caps(self_, count, &caps, &error_), WCUDA_NO_DEVICE);
  EXPECT_EQ(table_->get_device_caps(self_, UINT32_MAX, &caps, &error_), WCUDA_NO_DEVICE);
}

TEST_P(TableConformance, unified_memory_means_managed_or_integrated) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  ASSERT_EQ(table_->get_device_caps(self_, 0, &caps, &error_), WCUDA_OK);
  if (is_cuda())
    EXPECT_EQ(caps.unified_memory, caps.supports_managed_memory || caps.is_integrated);
  else
    EXPECT_EQ(caps.unified_memory, 1);
}

TEST_P(TableConformance, memory_has_an_id_and_its_size) {
  const wcuda_device_memory memory = allocate(1000);
  EXPECT_NE(memory.id, 0u);
  EXPECT_EQ(memory.bytes, 1000u);
}

TEST_P(TableConformance, one_byte_can_be_allocated) {
  const wcuda_device_memory memory = upload(std::vector<uint8_t>{42});
  EXPECT_EQ(download(memory), std::vector<uint8_t>{42});
}

TEST_P(TableConformance, no_bytes_are_refused) {
  wcuda_device_memory memory{7, 7};
  EXPECT_EQ(table_->allocate(self_, 0, 0, &memory, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(memory.id, 7u);
}

TEST_P(TableConformance, more_than_there_is_is_out_of_memory) {
  wcuda_device_memory memory{7, 7};
  for (const uint64_t bytes : {uint64_t{1} << 50, UINT64_MAX - 4096, UINT64_MAX}) {
    const wcuda_status status = table_->allocate(self_, bytes, 0, &memory, &error_);
    EXPECT_TRUE(status == WCUDA_OUT_OF_MEMORY || status == WCUDA_OVER_BUDGET) << error_.message;
    EXPECT_EQ(memory.id, 7u);
  }
  EXPECT_EQ(table_->fault(self_, &error_), WCUDA_OK);
}

TEST_P(TableConformance, half_of_free_memory_can_be_had) {
  uint64_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(table_->memory_info(self_, &free_bytes, &total_bytes, &error_), WCUDA_OK);
  const wcuda_device_memory memory = allocate(free_bytes / 2);
  const auto last = counting(1, 9);
  EXPECT_EQ(table_->copy_to_device(self_, memory, memory.bytes - 1, last.data(), 1, &error_),
            WCUDA_OK);
  EXPECT_EQ(download(memory, memory.bytes - 1, 1), last);
}

TEST_P(TableConformance, flags_of_zero_mean_device_memory) {
  const wcuda_device_memory memory = allocate(16, 0);
  void* address = nullptr;
  expect_refused(table_->host_address(self_, memory, &address, &error_));
}

TEST_P(TableConformance, unknown_flags_are_refused) {
  wcuda_device_memory memory{7, 7};
  for (const uint8_t flags : {0x10, 0x80, 0xf1})
    EXPECT_EQ(table_->allocate(self_, 16, flags, &memory, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->allocate(self_, 16, WCUDA_MEMORY_CACHED, &memory, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(memory.id, 7u);
}

TEST_P(TableConformance, host_visible_memory_is_zeroed_and_can_be_written) {
  const wcuda_device_memory memory =
      allocate(5000, WCUDA_MEMORY_HOST_VISIBLE | WCUDA_MEMORY_HOST_COHERENT | WCUDA_MEMORY_CACHED);
  void* address = nullptr;
  ASSERT_EQ(table_->host_address(self_, memory, &address, &error_), WCUDA_OK) << error_.message;
  auto* const data = static_cast<uint8_t*>(address);
  EXPECT_TRUE(std::all_of(data, data + 5000, [](uint8_t byte) { return byte == 0; }));
  std::memset(data, 1, 5000);
}

TEST_P(TableConformance, host_visible_memory_is_no_device_memory) {
  const wcuda_device_memory memory = allocate(64, WCUDA_MEMORY_HOST_VISIBLE);
  uint8_t data[64] = {};
  expect_refused(table_->copy_to_device(self_, memory, 0, data, 64, &error_));
  expect_refused(table_->copy_from_device(self_, data, memory, 0, 64, &error_));
  expect_refused(table_->fill(self_, memory, 0, 64, 0, 1, {0}, &error_));
}

TEST_P(TableConformance, memory_info_follows_allocations) {
  uint64_t before = 0, during = 0, total = 0;
  ASSERT_EQ(table_->memory_info(self_, &before, &total, &error_), WCUDA_OK);
  (void)allocate(uint64_t{100} << 20);
  ASSERT_EQ(table_->memory_info(self_, &during, &total, &error_), WCUDA_OK);
  EXPECT_LT(during, before);
  EXPECT_LE(before, total);
}

TEST_P(TableConformance, freed_memory_is_refused_by_every_slot) {
  const wcuda_device_memory memory = allocate(64), other = allocate(64);
  ASSERT_EQ(table_->free(self_, memory, &error_), WCUDA_OK);
  uint8_t data[64] = {};
  expect_refused(table_->free(self_, memory, &error_));
  expect_refused(table_->copy_to_device(self_, memory, 0, data, 64, &error_));
  expect_refused(table_->copy_from_device(self_, data, memory, 0, 64, &error_));
  expect_refused(table_->copy_to_device_async(self_, memory, 0, data, 64, {0}, &error_));
  expect_refused(table_->copy_from_device_async(self_, data, memory, 0, 64, {0}, &error_));
  expect_refused(table_->copy_on_device(self_, memory, 0, other, 0, 64, {0}, &error_));
  expect_refused(table_->copy_on_device(self_, other, 0, memory, 0, 64, {0}, &error_));
  expect_refused(table_->fill(self_, memory, 0, 64, 0, 1, {0}, &error_));
}

TEST_P(TableConformance, a_stale_handle_never_means_newer_memory) {
  const wcuda_device_memory old = allocate(64);
  ASSERT_EQ(table_->free(self_, old, &error_), WCUDA_OK);
  for (int i = 0; i < 100; ++i) {
    const wcuda_device_memory next = allocate(64);
    EXPECT_NE(next.id, old.id);
    expect_refused(table_->free(self_, old, &error_));
    ASSERT_EQ(table_->free(self_, next, &error_), WCUDA_OK);
  }
}

TEST_P(TableConformance, handles_that_were_never_given_out_are_refused) {
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{0x0200000001ffffff}, UINT64_MAX})
    expect_refused(table_->free(self_, {id, 64}, &error_));
  expect_refused(table_->free(self_, {reinterpret_cast<uintptr_t>(&error_), 64}, &error_));
}

TEST_P(TableConformance, a_handle_with_another_size_is_refused) {
  wcuda_device_memory memory = allocate(64);
  memory.bytes = 65;
  uint8_t data[65] = {};
  expect_refused(table_->copy_to_device(self_, memory, 0, data, 65, &error_));
  expect_refused(table_->free(self_, memory, &error_));
  memory.bytes = 64;
  EXPECT_EQ(table_->free(self_, memory, &error_), WCUDA_OK);
}

TEST_P(TableConformance, memory_of_another_instance_is_refused) {
  wcuda_backend other{0};
  const wcuda_backend_vtable* table = nullptr;
  void* self = nullptr;
  ASSERT_EQ(GetParam().open(&other, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_backend_table_get(other, &table, &self, &error_), WCUDA_OK);
  const wcuda_device_memory memory = allocate(64);
  const wcuda_device_memory pinned = allocate(64, WCUDA_MEMORY_HOST_VISIBLE);
  uint8_t data[64] = {};

  expect_refused(table->copy_to_device(self, memory, 0, data, 64, &error_));
  expect_refused(table->free(self, memory, &error_));
  expect_refused(table->free(self, pinned, &error_));

  EXPECT_EQ(table_->free(self_, memory, &error_), WCUDA_OK);
  EXPECT_EQ(table_->free(self_, pinned, &error_), WCUDA_OK);
  table->deinit(self);
}

TEST_P(TableConformance, copies_keep_every_byte_at_any_offset) {
  for (const uint64_t bytes : {1u, 255u, 4096u, 4097u, 3u << 20}) {
    const auto data = counting(bytes, 3);
    const wcuda_device_memory memory = allocate(bytes + 7);
    ASSERT_EQ(table_->copy_to_device(self_, memory, 5, data.data(), bytes, &error_), WCUDA_OK);
    EXPECT_EQ(download(memory, 5, bytes), data);
  }
}

TEST_P(TableConformance, large_copies_keep_every_byte) {
  constexpr uint64_t kBytes = (uint64_t{40} << 20) + 1;
  std::vector<uint8_t> data(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  EXPECT_TRUE(download(upload(data)) == data);
}

TEST_P(TableConformance, copies_of_nothing_do_nothing) {
  const wcuda_device_memory memory = upload(counting(16));
  EXPECT_EQ(table_->copy_to_device(self_, memory, 16, nullptr, 0, &error_), WCUDA_OK);
  EXPECT_EQ(table_->copy_from_device(self_, nullptr, memory, 0, 0, &error_), WCUDA_OK);
  EXPECT_EQ(table_->copy_on_device(self_, memory, 3, memory, 9, 0, {0}, &error_), WCUDA_OK);
  EXPECT_EQ(table_->fill(self_, memory, 16, 0, 1, 1, {0}, &error_), WCUDA_OK);
  EXPECT_EQ(download(memory), counting(16));
}

TEST_P(TableConformance, copies_past_the_end_are_refused_and_change_nothing) {
  const wcuda_device_memory memory = upload(counting(64));
  std::vector<uint8_t> data(65, 0xee);
  struct {
    uint64_t offset, bytes;
  } const ranges[] = {{0, 65}, {1, 64}, {65, 0}, {64, 1}, {UINT64_MAX, 1}, {1, UINT64_MAX}};
  for (const auto& range : ranges) {
    EXPECT_EQ(
        table_->copy_to_device(self_, memory, range.offset, data.data(), range.bytes, &error_),
        WCUDA_OUT_OF_RANGE)
        << range.offset << ", " << range.bytes;
    EXPECT_EQ(
        table_->copy_from_device(self_, data.data(), memory, range.offset, range.bytes, &error_),
        WCUDA_OUT_OF_RANGE);
  }
  EXPECT_EQ(download(memory), counting(64));
  EXPECT_EQ(data, std::vector<uint8_t>(65, 0xee));
}

TEST_P(TableConformance, null_host_memory_is_refused) {
  const wcuda_device_memory memory = allocate(64);
  EXPECT_EQ(table_->copy_to_device(self_, memory, 0, nullptr, 1, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->copy_from_device(self_, nullptr, memory, 0, 1, &error_),
            WCUDA_INVALID_ARGUMENT);
}

TEST_P(TableConformance, device_copies_keep_every_byte) {
  const wcuda_device_memory from = upload(counting(5000, 7)), to = allocate(5000);
  ASSERT_EQ(table_->copy_on_device(self_, to, 11, from, 3, 4000, {0}, &error_), WCUDA_OK);
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);
  EXPECT_EQ(download(to, 11, 4000), counting(4000, 10));
}

TEST_P(TableConformance, device_copies_within_one_block_need_ranges_apart) {
  const wcuda_device_memory memory = upload(counting(100));
  for (const uint64_t target : {0u, 1u, 39u, 10u})
    EXPECT_EQ(table_->copy_on_device(self_, memory, target, memory, 10, 40, {0}, &error_),
              WCUDA_INVALID_ARGUMENT)
        << target;
  EXPECT_EQ(download(memory), counting(100));
  ASSERT_EQ(table_->copy_on_device(self_, memory, 50, memory, 10, 40, {0}, &error_), WCUDA_OK);
  EXPECT_EQ(download(memory, 50, 40), counting(40, 10));
}

TEST_P(TableConformance, device_copies_past_either_end_are_refused) {
  const wcuda_device_memory small = upload(counting(10)), large = allocate(100);
  EXPECT_EQ(table_->copy_on_device(self_, small, 0, large, 0, 11, {0}, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(table_->copy_on_device(self_, large, 0, small, 0, 11, {0}, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(download(small), counting(10));
}

TEST_P(TableConformance, fill_repeats_patterns_of_each_width) {
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    const wcuda_device_memory memory = allocate(64);
    constexpr uint64_t kPattern = 0x8877665544332211;
    ASSERT_EQ(table_->fill(self_, memory, 0, 64, kPattern, width, {0}, &error_), WCUDA_OK);
    ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);
    const auto data = download(memory);
    for (uint64_t i = 0; i < 64; ++i)
      ASSERT_EQ(data[i], static_cast<uint8_t>(kPattern >> (8 * (i % width)))) << width;
  }
}

TEST_P(TableConformance, fill_keeps_to_its_range) {
  const wcuda_device_memory memory = upload(counting(100));
  ASSERT_EQ(table_->fill(self_, memory, 3, 50, 0xaa, 1, {0}, &error_), WCUDA_OK);
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 3, 50, 0xaa);
  EXPECT_EQ(download(memory), expected);
}

TEST_P(TableConformance, fills_that_make_no_sense_are_refused) {
  const wcuda_device_memory memory = upload(counting(64));
  EXPECT_EQ(table_->fill(self_, memory, 0, 60, 0, 3, {0}, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->fill(self_, memory, 0, 64, 0, 0, {0}, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->fill(self_, memory, 2, 32, 0, 4, {0}, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->fill(self_, memory, 0, 30, 0, 4, {0}, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->fill(self_, memory, 0, 65, 0, 1, {0}, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(download(memory), counting(64));
}

TEST_P(TableConformance, many_blocks_are_apart) {
  std::vector<wcuda_device_memory> blocks;
  std::set<uint64_t> ids;
  for (int i = 0; i < 300; ++i)
    blocks.push_back(upload(std::vector<uint8_t>(17, static_cast<uint8_t>(i))));
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(ids.insert(blocks[i].id).second);
    ASSERT_EQ(download(blocks[i]), std::vector<uint8_t>(17, static_cast<uint8_t>(i)));
  }
}

TEST_P(TableConformance, null_outputs_are_refused) {
  EXPECT_EQ(table_->allocate(self_, 16, 0, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->get_device_caps(self_, 0, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->memory_info(self_, nullptr, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(live_count(), 0u);
}

TEST_P(TableConformance, a_failure_needs_no_error_struct) {
  EXPECT_EQ(table_->free(self_, {1, 1}, nullptr), WCUDA_INVALID_HANDLE);
}

}  // namespace
}  // namespace wcuda::testing
