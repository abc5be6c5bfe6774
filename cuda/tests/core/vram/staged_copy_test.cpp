// Copies through pinned slots, on a host that poses as a device.
#include "core/vram/staged_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/trace_backend.h"
#include "core/vram/memory.h"
#include "support/pretend_device.h"

namespace wcuda::vram {
namespace {

constexpr uint64_t kSlot = StagedCopy::kSlotBytes;

std::vector<uint8_t> pattern(uint64_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (uint64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 16);
  return data;
}

std::shared_ptr<Backend> device() { return std::make_shared<wcuda::testing::PretendDevice>(1); }

TEST(StagedCopy, keeps_every_byte_at_sizes_around_slots) {
  const auto memory = Memory::create(device(), 0);
  const std::vector<uint8_t> source = pattern(4 * kSlot + 3);
  for (const uint64_t bytes : {StagedCopy::kBytesMin, kSlot - 1, kSlot, kSlot + 1, 3 * kSlot,
                               3 * kSlot + 1, 4 * kSlot + 2}) {
    const auto buffer = memory->allocate(bytes + 1, WCUDA_PURPOSE_USER, "");
    ASSERT_TRUE(buffer.ok());
    buffer->data()[bytes] = 0x5a;

    const Status status = memory->copy_to_device(buffer->data(), source.data() + 1, bytes);

    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(std::memcmp(buffer->data(), source.data() + 1, bytes), 0) << bytes;
    EXPECT_EQ(buffer->data()[bytes], 0x5a);
  }
}

TEST(StagedCopy, slots_are_staging_in_the_ledger_until_the_memory_goes) {
  const auto backend = device();
  auto memory = Memory::create(backend, 0);
  const std::vector<uint8_t> source = pattern(kSlot);
  auto buffer = memory->allocate(kSlot, WCUDA_PURPOSE_USER, "");
  ASSERT_TRUE(memory->copy_to_device(buffer->data(), source.data(), 100).ok());
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes, 0u);

  for (int round = 0; round < 3; ++round)
    ASSERT_TRUE(memory->copy_to_device(buffer->data(), source.data(), kSlot).ok());

  const LedgerSum staging = memory->ledger().sum(WCUDA_PURPOSE_STAGING);
  EXPECT_EQ(staging.current_bytes, StagedCopy::kStagingBytes);
  EXPECT_EQ(staging.total_allocation_count, 1u);
  EXPECT_STREQ(memory->ledger().rows().back().entry.tag, "copies");
  const std::weak_ptr<Memory> watch = memory;
  buffer->reset();
  memory.reset();
  EXPECT_TRUE(watch.expired());  // the slots do not hold their owner
  EXPECT_EQ(backend->memory_info()->reserved_bytes, 0u);
}

TEST(StagedCopy, slots_are_freed_once_and_not_on_a_lost_device) {
  for (const bool is_lost : {false, true}) {
    int frees = 0;
    const auto faulty = std::make_shared<FaultBackend>(device());
    const auto traced = std::make_shared<TraceBackend>(
        faulty,
        [&](const Call& call, const Status&) { frees += call.name == std::string("free"); });
    auto memory = Memory::create(traced, 0);
    const std::vector<uint8_t> source = pattern(kSlot);
    auto buffer = memory->allocate(kSlot, WCUDA_PURPOSE_USER, "");
    ASSERT_TRUE(memory->copy_to_device(buffer->data(), source.data(), kSlot).ok());
    buffer->reset();
    frees = 0;
    if (is_lost) {
      faulty->lose_device(1);
      EXPECT_EQ(traced->synchronize().code(), WCUDA_DEVICE_LOST);
    }

    memory.reset();

    EXPECT_EQ(frees, is_lost ? 0 : 1);
  }
}

TEST(StagedCopy, only_events_that_were_created_are_destroyed) {
  int created = 0, destroyed = 0;
  const auto faulty = std::make_shared<FaultBackend>(device());
  TraceBackend traced(faulty, [&](const Call& call, const Status& status) {
    created += call.name == std::string("event_create") && status.ok();
    destroyed += call.name == std::string("event_destroy");
  });
  uint8_t staging[1];
  faulty->fail(CallKind::kOther, 2);

  EXPECT_EQ(StagedCopy::create(traced, staging).status().code(), WCUDA_DEVICE_ERROR);

  EXPECT_EQ(created, 1);
  EXPECT_EQ(destroyed, 1);
}

TEST(StagedCopy, pinned_sources_and_hosts_need_no_slots) {
  for (const bool is_host : {false, true}) {
    std::vector<std::string> calls;
    const auto traced = std::make_shared<TraceBackend>(
        is_host ? open_host_backend(0, 1).take() : device(),
        [&](const Call& call, const Status&) { calls.push_back(call.name); });
    const auto memory = Memory::create(traced, 0);
    const auto buffer = memory->allocate(kSlot, WCUDA_PURPOSE_USER, "");
    const auto pinned = memory->allocate_pinned(kSlot, "");
    calls.clear();

    ASSERT_TRUE(memory->copy_to_device(buffer->data(), pinned->data(), kSlot).ok());

    EXPECT_EQ(calls.back(), "copy_to_device");
    EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes, kSlot);
  }
}

TEST(StagedCopy, without_room_for_slots_the_driver_copies) {
  const auto memory = Memory::create(device(), 0);
  memory->set_budget(WCUDA_PURPOSE_STAGING, 1000);
  const std::vector<uint8_t> source = pattern(kSlot);
  const auto buffer = memory->allocate(kSlot, WCUDA_PURPOSE_USER, "");
  ASSERT_TRUE(memory->copy_to_device(buffer->data(), source.data(), kSlot).ok());
  EXPECT_EQ(std::memcmp(buffer->data(), source.data(), kSlot), 0);
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_STAGING).total_allocation_count, 0u);
}

TEST(StagedCopy, every_injected_failure_is_an_answer_or_another_way) {
  const std::vector<uint8_t> source = pattern(4 * kSlot);
  for (const CallKind kind :
       {CallKind::kAllocate, CallKind::kCopy, CallKind::kWait, CallKind::kOther}) {
    uint64_t failures = 0;
    for (uint64_t k = 1; k < 14; ++k) {
      const auto faulty = std::make_shared<FaultBackend>(device());
      auto memory = Memory::create(faulty, 0);
      auto buffer = memory->allocate(4 * kSlot, WCUDA_PURPOSE_USER, "");
      faulty->fail(kind, k);

      const Status status = memory->copy_to_device(buffer->data(), source.data(), 4 * kSlot);

      faulty->fail(kind, 0);
      failures += !status.ok();
      if (status.ok()) {
        EXPECT_EQ(std::memcmp(buffer->data(), source.data(), 4 * kSlot), 0);
      }
      ASSERT_TRUE(memory->copy_to_device(buffer->data(), source.data(), 4 * kSlot).ok());
      EXPECT_EQ(std::memcmp(buffer->data(), source.data(), 4 * kSlot), 0);
      buffer->reset();
      memory.reset();
      EXPECT_EQ(faulty->memory_info()->reserved_bytes, 0u);
    }
    if (kind != CallKind::kAllocate) {
      EXPECT_GT(failures, 0u) << static_cast<int>(kind);
    }
  }
}

TEST(StagedCopy, a_device_lost_at_any_call_is_an_answer) {
  const std::vector<uint8_t> source = pattern(4 * kSlot);
  for (uint64_t k = 1;; ++k) {
    const auto faulty = std::make_shared<FaultBackend>(device());
    const auto memory = Memory::create(faulty, 0);
    const auto buffer = memory->allocate(4 * kSlot, WCUDA_PURPOSE_USER, "");
    faulty->lose_device(k);
    const Status status = memory->copy_to_device(buffer->data(), source.data(), 4 * kSlot);
    if (faulty->fault().ok()) break;
    EXPECT_EQ(status.code(), WCUDA_DEVICE_LOST) << k;
    ASSERT_LT(k, 100u);
  }
}

}  // namespace
}  // namespace wcuda::vram
