// Scrubbed memory: who zeroes what, when, shown by the calls and by what recycled blocks hold.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "core/backend/trace_backend.h"
#include "core/vram/memory.h"

namespace wcuda::vram {
namespace {

// Hands a freed block out again at once, contents as they were.
class RecyclingBackend final : public WrapperBackend {
 public:
  RecyclingBackend() : WrapperBackend(open_host_backend(1 << 20, 1).take()) {}
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override {
    const auto kept = kept_.find({kind, bytes});
    if (kept == kept_.end()) return WrapperBackend::allocate(kind, bytes);
    void* const address = kept->second;
    kept_.erase(kept);
    return address;
  }
  Status free(MemoryKind kind, void* address, uint64_t bytes) override {
    kept_[{kind, bytes}] = address;
    return {};
  }

 private:
  std::map<std::pair<MemoryKind, uint64_t>, void*> kept_;
};

// What a block of 1000 bytes holds that was full of 0xaa before.
std::vector<uint8_t> recycled(Scrub scrub) {
  const auto memory = Memory::create(std::make_shared<RecyclingBackend>(), 0, scrub);
  auto first = memory->allocate(1000, WCUDA_PURPOSE_USER, "");
  const uint8_t* const address = first->data();
  EXPECT_TRUE(memory->backend().fill(first->data(), 1000, 0xaa, 1, Stream{}).ok());
  first->reset();
  const auto second = memory->allocate(1000, WCUDA_PURPOSE_USER, "");
  EXPECT_EQ(second->data(), address);
  return std::vector<uint8_t>(second->data(), second->data() + 1000);
}

TEST(Scrub, recycled_memory_is_zero_with_it_and_old_without) {
  EXPECT_EQ(recycled(Scrub::kNone), std::vector<uint8_t>(1000, 0xaa));
  EXPECT_EQ(recycled(Scrub::kOnFree), std::vector<uint8_t>(1000, 0));
  EXPECT_EQ(recycled(Scrub::kOnAlloc), std::vector<uint8_t>(1000, 0));
}

TEST(Scrub, pinned_memory_is_zeroed_before_it_goes) {
  const auto device = std::make_shared<RecyclingBackend>();
  for (const Scrub scrub : {Scrub::kNone, Scrub::kOnFree}) {
    const auto memory = Memory::create(device, 0, scrub);
    auto staging = memory->allocate_pinned(5000, "");
    std::memset(staging->data(), 0x55, 5000);
    const uint8_t* const address = staging->data();

    staging->reset();

    const auto expected = std::vector<uint8_t>(5000, scrub == Scrub::kOnFree ? 0 : 0x55);
    EXPECT_EQ(std::vector<uint8_t>(address, address + 5000), expected);
  }
}

std::vector<std::string> trace_of(Scrub scrub) {
  std::vector<std::string> calls;
  const auto traced = std::make_shared<TraceBackend>(
      open_host_backend(1 << 20, 1).take(), [&](const Call& call, const Status&) {
        calls.push_back(std::string(call.name) + (call.stream.id != 0 ? " on stream" : ""));
      });
  const auto memory = Memory::create(traced, 0, scrub);
  const auto stream = traced->stream_create(0);
  calls.clear();
  auto buffer = memory->allocate(64, WCUDA_PURPOSE_USER, "");
  buffer->used_on(*stream);
  buffer->reset();
  return calls;
}

TEST(Scrub, calls_show_zeroing_after_every_use_and_before_the_free) {
  const std::vector<std::string> order = {"free_after", "free_after on stream", "free"};
  std::vector<std::string> none = {"allocate"}, on_alloc = {"allocate", "fill", "synchronize"},
                           on_free = {"allocate",    "event_create",  "event_record on stream",
                                      "stream_wait", "event_destroy", "fill"};
  for (auto* const calls : {&none, &on_alloc, &on_free})
    calls->insert(calls->end(), order.begin(), order.end());

  EXPECT_EQ(trace_of(Scrub::kNone), none);
  EXPECT_EQ(trace_of(Scrub::kOnAlloc), on_alloc);
  EXPECT_EQ(trace_of(Scrub::kOnFree), on_free);
}

TEST(Scrub, the_driver_zeroes_pinned_memory_when_it_is_allocated) {
  std::vector<std::string> calls;
  const auto traced = std::make_shared<TraceBackend>(
      open_host_backend(1 << 20, 1).take(),
      [&](const Call& call, const Status&) { calls.push_back(call.name); });
  const auto memory = Memory::create(traced, 0, Scrub::kOnAlloc);

  const auto staging = memory->allocate_pinned(64, "");

  EXPECT_EQ(calls, std::vector<std::string>{"allocate"});
}

// Its device memory cannot be touched by the host, as that of a GPU.
class DistantBackend final : public WrapperBackend {
 public:
  DistantBackend() : WrapperBackend(open_host_backend(1 << 20, 1).take()) {}
  Result<void*> allocate(MemoryKind, uint64_t bytes) override {
    return ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  Status free(MemoryKind, void* address, uint64_t bytes) override {
    EXPECT_EQ(::munmap(address, bytes), 0);
    return {};
  }
  Status fill(void*, uint64_t, uint64_t, uint32_t, Stream) override {
    ++fills;
    return {};
  }
  int fills = 0;
};

TEST(Scrub, device_memory_is_zeroed_by_the_device_alone) {
  for (const Scrub scrub : {Scrub::kOnFree, Scrub::kOnAlloc}) {
    const auto device = std::make_shared<DistantBackend>();
    const auto memory = Memory::create(device, 0, scrub);

    memory->allocate(5000, WCUDA_PURPOSE_USER, "")->reset();

    EXPECT_EQ(device->fills, 1);
  }
}

TEST(Scrub, every_injected_failure_leaves_an_empty_ledger_and_device) {
  for (const Scrub scrub : {Scrub::kOnFree, Scrub::kOnAlloc})
    for (const CallKind kind :
         {CallKind::kAllocate, CallKind::kLaunch, CallKind::kWait, CallKind::kOther}) {
      uint64_t failures = 0;
      for (uint64_t k = 1; k < 20; ++k) {
        const auto device = open_host_backend(1 << 20, 1).take();
        const auto faulty = std::make_shared<FaultBackend>(device);
        const auto memory = Memory::create(faulty, 0, scrub);
        faulty->fail(kind, k);

        auto buffer = memory->allocate(100, WCUDA_PURPOSE_USER, "");
        failures += !buffer.ok();
        if (buffer.ok()) buffer->reset();

        failures += memory->deferred_error_count();
        EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes, 0u);
        EXPECT_EQ(device->memory_info()->reserved_bytes, 0u);
      }
      if (kind != CallKind::kWait || scrub == Scrub::kOnAlloc) {
        EXPECT_GT(failures, 0u) << static_cast<int>(kind);
      }
    }
}

TEST(Scrub, borrowed_memory_is_left_alone) {
  for (const Scrub scrub : {Scrub::kOnFree, Scrub::kOnAlloc}) {
    const auto memory = Memory::create(open_host_backend(1 << 20, 1).take(), 0, scrub);
    std::vector<uint8_t> foreign(100, 7);

    memory->borrow(foreign.data(), 100, "foreign")->reset();

    EXPECT_EQ(foreign, std::vector<uint8_t>(100, 7));
  }
}

}  // namespace
}  // namespace wcuda::vram
