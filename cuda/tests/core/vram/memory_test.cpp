// Accounted memory under failures: the ledger goes back, nothing is freed too early or twice.
#include "core/vram/memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "core/backend/trace_backend.h"
#include "core/health/report.h"
#include "core/vram/digest.h"
#include "support/allocation_failure.h"

namespace wcuda::vram {
namespace {

std::shared_ptr<Backend> host() {
  auto backend = open_host_backend(1 << 20, 1);
  EXPECT_TRUE(backend.ok());
  return backend.take();
}

// Answers allocations with `answer` while there is one.
class RefusingBackend final : public WrapperBackend {
 public:
  RefusingBackend() : WrapperBackend(host()) {}
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override {
    if (answer) return answer();
    return WrapperBackend::allocate(kind, bytes);
  }
  Result<void*> allocate_scratch(uint64_t bytes, Stream stream) override {
    if (answer) return answer();
    return WrapperBackend::allocate_scratch(bytes, stream);
  }
  std::function<Status()> answer;
};

// Cannot order a free: no memory is left for what that takes.
class ThrowingBackend final : public WrapperBackend {
 public:
  ThrowingBackend() : WrapperBackend(host()) {}
  Status free_after(Stream) override { throw std::bad_alloc(); }
};

// Allocates three buffers, uses them, digests one: a small load.
Status use_memory(const std::shared_ptr<Memory>& memory, std::vector<Buffer>* kept) {
  std::vector<Buffer> buffers;
  for (uint64_t i = 1; i <= 3; ++i) {
    WCUDA_ASSIGN(Buffer buffer, memory->allocate(1000 * i, WCUDA_PURPOSE_WEIGHTS, "w"));
    buffers.push_back(std::move(buffer));
  }
  WCUDA_ASSIGN(Buffer staging, memory->allocate_pinned(500, "staging"));
  WCUDA_ASSIGN(const Stream stream, memory->backend().stream_create(0));
  Status status = [&]() -> Status {
    WCUDA_ASSIGN(const Buffer scratch, memory->scratch(300, "scratch", stream));
    WCUDA_TRY(memory->backend().fill(scratch.data(), 8, 0, 8, stream));
    for (Buffer& buffer : buffers) {
      buffer.used_on(stream);
      WCUDA_TRY(memory->backend().copy_to_device_async(buffer.data(), staging.data(), 500, stream));
      WCUDA_TRY(memory->backend().fill(buffer.data(), 8, 0, 8, stream));
    }
    WCUDA_TRY(memory->backend().synchronize(stream));
    uint8_t digest[32];
    return vram::digest(memory->backend(), buffers[0].data(), 1000, digest);
  }();
  (void)memory->backend().stream_destroy(stream);
  if (status.ok()) *kept = std::move(buffers);
  return status;
}

void expect_empty(const Memory& memory) {
  EXPECT_EQ(memory.ledger().sum(WCUDA_PURPOSE_ANY).current_bytes, 0u);
  EXPECT_EQ(memory.ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes, 0u);
  EXPECT_TRUE(memory.ledger().rows().empty());
}

TEST(VramMemory, every_injected_failure_leaves_an_empty_ledger_and_device) {
  for (const CallKind kind : {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch,
                              CallKind::kWait, CallKind::kOther}) {
    bool failed = true;
    uint64_t k = 0;
    while (failed) {
      const auto device = host();
      const auto faulty = std::make_shared<FaultBackend>(device);
      const auto memory = Memory::create(faulty, 0);
      std::vector<Buffer> kept;
      faulty->fail(kind, ++k);

      const Status status = use_memory(memory, &kept);

      failed = !status.ok();
      EXPECT_EQ(kept.size(), failed ? 0u : 3u);
      kept.clear();
      expect_empty(*memory);
      EXPECT_EQ(device->memory_info()->reserved_bytes, 0u) << "call " << k;
      ASSERT_LT(k, 200u);
    }
    EXPECT_GE(k, 2u) << "no call of kind " << static_cast<int>(kind) << " was made";
  }
}

TEST(VramMemory, losing_the_device_at_every_call_leaves_an_empty_ledger) {
  for (uint64_t k = 1;; ++k) {
    const auto device = host();
    const auto faulty = std::make_shared<FaultBackend>(device);
    const auto memory = Memory::create(faulty, 0);
    std::vector<Buffer> kept;
    faulty->lose_device(k);

    const Status status = use_memory(memory, &kept);
    const bool lost = !faulty->fault().ok();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), WCUDA_DEVICE_LOST) << status.message();
      EXPECT_EQ(memory->allocate(1, WCUDA_PURPOSE_USER, "").status().code(), WCUDA_DEVICE_LOST);
      const wcuda_health health = health::report(*memory);
      EXPECT_EQ(health.state, WCUDA_HEALTH_LOST);
      EXPECT_EQ(health.sticky_code, 719);
    }
    kept.clear();
    expect_empty(*memory);
    // What the lost device had is closed as lost, and the driver is not asked to free it.
    const LedgerSum sum = memory->ledger().sum(WCUDA_PURPOSE_ANY);
    EXPECT_EQ(device->memory_info()->reserved_bytes, sum.lost_bytes);
    EXPECT_EQ(health::report(*memory).lost_bytes, sum.lost_bytes);
    EXPECT_EQ(health::report(*memory).lost_count, sum.lost_count);
    EXPECT_TRUE(!faulty->fault().ok() || sum.lost_bytes == 0);
    EXPECT_EQ(memory->deferred_error_count(), 0u);
    if (!lost) break;
    ASSERT_LT(k, 500u);
  }
}

TEST(VramMemory, scratch_is_in_the_ledger_and_goes_after_its_stream) {
  const auto memory = Memory::create(host(), 1000);
  const Stream stream = memory->backend().stream_create(0).take();
  {
    Buffer scratch = memory->scratch(600, "scratch", stream).take();
    Buffer other;
    other = std::move(scratch);
    EXPECT_NE(other.data(), nullptr);
    EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_SCRATCH).current_bytes, 600u);
    EXPECT_EQ(memory->scratch(401, "more", stream).status().code(), WCUDA_OVER_BUDGET);
  }
  expect_empty(*memory);
  EXPECT_TRUE(memory->backend().stream_destroy(stream).ok());
}

TEST(VramMemory, scratch_moved_over_another_frees_that_one) {
  const auto memory = Memory::create(host(), 0);
  Buffer target = memory->scratch(600, "old", Stream{}).take();
  Buffer other = memory->scratch(300, "new", Stream{}).take();

  target = std::move(other);

  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_SCRATCH).current_bytes, 300u);
  target.reset();
  expect_empty(*memory);
}

TEST(VramMemory, lasting_scratch_is_in_the_ledger_until_the_memory_ends) {
  const auto device = host();
  auto memory = Memory::create(device, 1000);
  ASSERT_TRUE(memory->lasting_scratch(400, "workspace").ok());
  ASSERT_TRUE(memory->lasting_scratch(200, "another").ok());
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_SCRATCH).current_bytes, 600u);
  EXPECT_EQ(memory->lasting_scratch(401, "more").status().code(), WCUDA_OVER_BUDGET);
  EXPECT_GE(device->memory_info()->used_bytes, 600u);
  memory.reset();
  EXPECT_EQ(device->memory_info()->used_bytes, 0u);
}

TEST(VramMemory, lasting_scratch_without_host_memory_leaves_nothing) {
  for (int64_t k = 1, happened = 1; happened; ++k) {
    const auto device = host();
    auto memory = Memory::create(device, 0);
    bool is_made = false;
    {
      const wcuda::testing::FailAllocation failure(k);
      try {
        is_made = memory->lasting_scratch(600, "workspace").ok();
      } catch (const std::bad_alloc&) {
      }
      happened = failure.happened();
    }
    EXPECT_NE(is_made, happened != 0) << "allocation " << k;
    EXPECT_EQ(memory->ledger().rows().size(), is_made ? 1u : 0u) << "allocation " << k;
    memory.reset();
    EXPECT_EQ(device->memory_info()->used_bytes, 0u) << "allocation " << k;
    ASSERT_LT(k, 100);
  }
}

TEST(VramMemory, a_failed_allocation_gives_its_part_of_the_budget_back) {
  const auto backend = std::make_shared<RefusingBackend>();
  const auto memory = Memory::create(backend, 1000);
  const std::function<Status()> answers[] = {
      []() -> Status { throw std::bad_alloc(); },
      [] { return Status::error(WCUDA_OUT_OF_MEMORY, "none left"); }};
  for (const auto& answer : answers) {
    backend->answer = answer;
    for (const bool is_scratch : {false, true}) {
      try {
        const Status status = is_scratch ? memory->scratch(1000, "", Stream{}).status()
                                         : memory->allocate(1000, WCUDA_PURPOSE_USER, "").status();
        EXPECT_EQ(status.code(), WCUDA_OUT_OF_MEMORY);
      } catch (const std::bad_alloc&) {
      }
    }
    backend->answer = nullptr;
    EXPECT_TRUE(memory->allocate(1000, WCUDA_PURPOSE_USER, "").ok());
  }
}

TEST(VramMemory, a_full_device_or_host_is_reported_with_numbers_and_other_failures_unchanged) {
  const auto backend = std::make_shared<RefusingBackend>();
  const auto memory = Memory::create(backend, 5000);
  const std::string tag(70, 'x');  // 63 bytes of it are shown
  for (const Code code : {WCUDA_INVALID_ARGUMENT, WCUDA_OUT_OF_MEMORY, WCUDA_OUT_OF_HOST_MEMORY,
                          WCUDA_DEVICE_ERROR, WCUDA_DEVICE_LOST}) {
    backend->answer = [code] { return Status::error(code, "said by the driver"); };

    const Status status = memory->allocate(100, WCUDA_PURPOSE_KV, tag).status();

    const bool is_full = code == WCUDA_OUT_OF_MEMORY || code == WCUDA_OUT_OF_HOST_MEMORY;
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(
        status.message(),
        (is_full ? "kv '" + tag.substr(0, 63) + "': needs 100 bytes, budget 5000, used 0; " : "") +
            "said by the driver");
  }
}

TEST(VramMemory, out_of_memory_names_all_numbers) {
  const auto memory = Memory::create(host(), 0);
  const auto held = memory->allocate(1000000, WCUDA_PURPOSE_WEIGHTS, "w");

  const auto more = memory->allocate(100000, WCUDA_PURPOSE_KV, "pages");

  EXPECT_EQ(more.status().code(), WCUDA_OUT_OF_MEMORY);
  EXPECT_STREQ(more.status().message(),
               "kv 'pages': needs 100000 bytes, budget 0, used 1000000; the host has 48576 of "
               "1048576 bytes free");
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_KV).total_allocation_count, 0u);
}

TEST(VramMemory, health_shows_a_ledger_that_holds_more_than_the_device) {
  const auto device = host();
  const auto memory = Memory::create(device, 0);
  auto buffer = memory->allocate(5000, WCUDA_PURPOSE_USER, "");
  ASSERT_TRUE(buffer.ok());
  wcuda_health health = health::report(*memory);
  EXPECT_EQ(health.state, WCUDA_HEALTH_OK) << health.message;
  EXPECT_EQ(health.pool_used_bytes, 5000u);
  EXPECT_EQ(health.pool_reserved_bytes, 5000u);

  ASSERT_TRUE(device->free(MemoryKind::kDevice, buffer->data(), 5000).ok());
  health = health::report(*memory);

  EXPECT_EQ(health.state, WCUDA_HEALTH_DEGRADED);
  EXPECT_STREQ(health.message, "the ledger holds 5000 bytes, the device's pool 0");
}

TEST(VramMemory, over_budget_does_not_ask_the_driver) {
  int allocations = 0;
  const auto traced = std::make_shared<TraceBackend>(host(), [&](const Call& call, const Status&) {
    allocations += call.kind == CallKind::kAllocate;
  });
  const auto memory = Memory::create(traced, 100);

  EXPECT_EQ(memory->allocate(101, WCUDA_PURPOSE_USER, "").status().code(), WCUDA_OVER_BUDGET);
  EXPECT_EQ(memory->allocate(UINT64_MAX, WCUDA_PURPOSE_USER, "").status().code(),
            WCUDA_OVER_BUDGET);

  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(*memory->available_bytes(), 100u);
}

TEST(VramMemory, a_purpose_has_a_budget_of_its_own) {
  int allocations = 0;
  const auto traced = std::make_shared<TraceBackend>(host(), [&](const Call& call, const Status&) {
    allocations += call.kind == CallKind::kAllocate;
  });
  const auto memory = Memory::create(traced, 1000);
  memory->set_budget(WCUDA_PURPOSE_KV, 300);
  memory->set_budget(WCUDA_PURPOSE_STAGING, 50);
  const auto held = memory->allocate(200, WCUDA_PURPOSE_KV, "pages");
  ASSERT_TRUE(held.ok());

  const auto more = memory->allocate(101, WCUDA_PURPOSE_KV, "more");
  EXPECT_EQ(more.status().code(), WCUDA_OVER_BUDGET);
  EXPECT_STREQ(more.status().message(),
               "kv 'more': needs 101 bytes, its purpose's budget 300, used 200, free 100");
  EXPECT_EQ(memory->allocate_pinned(51, "").status().code(), WCUDA_OVER_BUDGET);
  EXPECT_EQ(memory->allocate(801, WCUDA_PURPOSE_USER, "").status().code(), WCUDA_OVER_BUDGET);
  EXPECT_EQ(allocations, 1);

  EXPECT_TRUE(memory->allocate(100, WCUDA_PURPOSE_KV, "").ok());
  EXPECT_TRUE(memory->allocate_pinned(50, "").ok());
  memory->set_budget(WCUDA_PURPOSE_KV, 10);  // below what is held: it stays
  EXPECT_EQ(memory->allocate(1, WCUDA_PURPOSE_KV, "").status().code(), WCUDA_OVER_BUDGET);
  memory->set_budget(WCUDA_PURPOSE_KV, 0);
  EXPECT_TRUE(memory->allocate(800, WCUDA_PURPOSE_KV, "").ok());
}

TEST(VramMemory, a_buffer_freed_on_a_lost_device_asks_the_driver_nothing) {
  std::vector<std::string> calls;
  const auto faulty = std::make_shared<FaultBackend>(host());
  const auto traced = std::make_shared<TraceBackend>(
      faulty, [&](const Call& call, const Status&) { calls.push_back(call.name); });
  const auto memory = Memory::create(traced, 0);
  auto buffer = memory->allocate(300, WCUDA_PURPOSE_USER, "");
  auto staging = memory->allocate_pinned(70, "");
  faulty->lose_device(1);
  EXPECT_EQ(traced->synchronize().code(), WCUDA_DEVICE_LOST);
  calls.clear();

  buffer->reset();
  staging->reset();

  EXPECT_EQ(calls, std::vector<std::string>());
  expect_empty(*memory);
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_USER).lost_bytes, 300u);
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_ANY).lost_count, 1u);
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_STAGING).lost_bytes, 70u);
}

TEST(VramMemory, free_comes_after_every_stream_that_used_the_buffer) {
  std::vector<std::string> calls;
  const auto traced = std::make_shared<TraceBackend>(host(), [&](const Call& call, const Status&) {
    calls.push_back(std::string(call.name) +
                    (call.stream.id != 0 ? " " + std::to_string(call.stream.id) : ""));
  });
  const auto memory = Memory::create(traced, 0);
  const auto one = traced->stream_create(0), two = traced->stream_create(0);
  auto buffer = memory->allocate(64, WCUDA_PURPOSE_USER, "");
  buffer->used_on(*one);
  buffer->used_on(*two);
  buffer->used_on(*one);
  ASSERT_TRUE(traced->stream_destroy(*two).ok());  // its work is over
  calls.clear();

  buffer->reset();

  const std::string first = " " + std::to_string(one->id), second = " " + std::to_string(two->id);
  EXPECT_EQ(calls,
            (std::vector<std::string>{"free_after", "free_after" + first, "free_after" + second,
                                      "synchronize" + second, "free"}));
  EXPECT_EQ(memory->deferred_error_count(), 0u);
}

TEST(VramMemory, an_exception_while_freeing_is_counted) {
  const auto memory = Memory::create(std::make_shared<ThrowingBackend>(), 0);
  auto buffer = memory->allocate(64, WCUDA_PURPOSE_USER, "");

  buffer->reset();

  EXPECT_EQ(memory->deferred_error_count(), 1u);
  expect_empty(*memory);
}

TEST(VramMemory, failures_while_freeing_are_counted_and_shown) {
  const auto faulty = std::make_shared<FaultBackend>(host());
  const auto memory = Memory::create(faulty, 0);
  auto buffer = memory->allocate(64, WCUDA_PURPOSE_USER, "");
  faulty->fail(CallKind::kOther, 1);  // what orders the free

  buffer->reset();

  EXPECT_EQ(memory->deferred_error_count(), 1u);
  expect_empty(*memory);
  const wcuda_health health = health::report(*memory);
  EXPECT_EQ(health.state, WCUDA_HEALTH_DEGRADED);
  EXPECT_STREQ(health.message, "1 failures while freeing");
  EXPECT_EQ(memory->take_deferred_error().code(), WCUDA_DEVICE_ERROR);
  EXPECT_TRUE(memory->take_deferred_error().ok());
  EXPECT_EQ(memory->deferred_error_count(), 1u);  // counts on
}

TEST(VramMemory, a_buffer_moves_with_its_row) {
  const auto memory = Memory::create(host(), 0);
  auto first = memory->allocate(64, WCUDA_PURPOSE_USER, "a");
  Buffer target;

  target = first.take();
  Buffer other = std::move(target);

  EXPECT_TRUE(target.empty());
  EXPECT_EQ(memory->ledger().rows().size(), 1u);
  other = Buffer();
  expect_empty(*memory);
}

TEST(VramMemory, buffers_keep_the_memory_alive) {
  auto memory = Memory::create(host(), 0);
  const std::weak_ptr<Memory> watch = memory;
  auto buffer = memory->allocate(64, WCUDA_PURPOSE_USER, "a");

  memory.reset();

  EXPECT_FALSE(watch.expired());
  buffer->reset();
  EXPECT_TRUE(watch.expired());
}

TEST(VramMemory, ledger_cuts_a_tag_at_a_characters_border) {
  const auto memory = Memory::create(host(), 0);
  const std::string tag = std::string(62, 'x') + "\xc3\xa9";  // 64 bytes, the field holds 63

  const auto buffer = memory->allocate(1, WCUDA_PURPOSE_USER, tag);

  EXPECT_EQ(memory->ledger().rows().at(0).entry.tag, std::string(62, 'x'));
}

}  // namespace
}  // namespace wcuda::vram
