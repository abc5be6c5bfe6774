// The trace backend reports each call; the fault backend fails the requested one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "core/backend/host_memory.h"
#include "core/backend/trace_backend.h"
#include "core/vram/digest.h"

namespace wcuda {
namespace {

std::shared_ptr<Backend> host() {
  auto backend = open_host_backend(1 << 20, 1);
  EXPECT_TRUE(backend.ok());
  return backend.take();
}

TEST(TraceBackend, reports_calls_in_order_with_their_results) {
  std::vector<std::string> lines;
  TraceBackend backend(host(), [&](const Call& call, const Status& status) {
    lines.push_back(std::string(call.name) + " " + std::to_string(call.bytes) + " " +
                    wcuda_status_name(status.code()));
  });

  auto block = backend.allocate(MemoryKind::kDevice, 100);
  EXPECT_TRUE(backend.fill(*block, 96, 1, 1, Stream{}).ok());
  EXPECT_FALSE(backend.allocate(MemoryKind::kDevice, 2 << 20).ok());
  EXPECT_TRUE(backend.free(MemoryKind::kDevice, *block, 100).ok());

  EXPECT_EQ(lines, (std::vector<std::string>{"allocate 100 WCUDA_OK", "fill 96 WCUDA_OK",
                                             "allocate 2097152 WCUDA_OUT_OF_MEMORY",
                                             "free 100 WCUDA_OK"}));
}

// A device that has a way of its own for scratch, as CUDA has.
class ScratchDevice final : public WrapperBackend {
 public:
  ScratchDevice() : WrapperBackend(host()) {}
  Result<void*> allocate_scratch(uint64_t bytes, Stream stream) override {
    ++scratch_count;
    return WrapperBackend::allocate_scratch(bytes, stream);
  }
  Status free_scratch(void* address, uint64_t bytes, Stream stream) override {
    --scratch_count;
    return WrapperBackend::free_scratch(address, bytes, stream);
  }
  int scratch_count = 0;
};

TEST(TraceBackend, scratch_is_the_devices_own_and_reported) {
  const auto device = std::make_shared<ScratchDevice>();
  std::vector<std::string> lines;
  TraceBackend backend(device, [&](const Call& call, const Status& status) {
    lines.push_back(trace_line(call, status));
  });
  auto stream = backend.stream_create(0);
  lines.clear();

  auto block = backend.allocate_scratch(100, *stream);
  EXPECT_EQ(device->scratch_count, 1);
  EXPECT_TRUE(backend.free_scratch(*block, 100, *stream).ok());

  EXPECT_EQ(device->scratch_count, 0);
  ASSERT_EQ(lines.size(), 2u) << "nothing else is asked of the device";
  EXPECT_EQ(lines[0].rfind(R"({"slot":"allocate","bytes":100,"stream":1,)", 0), 0u) << lines[0];
  EXPECT_EQ(lines[1].rfind(R"({"slot":"free","bytes":100,"stream":1,)", 0), 0u) << lines[1];
}

TEST(FaultBackend, scratch_counts_as_an_allocation) {
  const auto device = std::make_shared<ScratchDevice>();
  FaultBackend backend(device);
  backend.fail(CallKind::kAllocate, 2);

  auto first = backend.allocate_scratch(10, Stream{});
  EXPECT_EQ(backend.allocate_scratch(10, Stream{}).status().code(), WCUDA_OUT_OF_MEMORY);

  EXPECT_EQ(device->scratch_count, 1);
  backend.lose_device(1);
  EXPECT_FALSE(backend.synchronize().ok());
  EXPECT_TRUE(backend.free_scratch(*first, 10, Stream{}).ok()) << "legal on a lost device";
  EXPECT_EQ(device->scratch_count, 0);
}

TEST(FaultBackend, fails_the_kth_call_of_a_kind_once) {
  FaultBackend backend(host());
  backend.fail(CallKind::kAllocate, 2);

  auto first = backend.allocate(MemoryKind::kDevice, 10);
  auto second = backend.allocate(MemoryKind::kDevice, 10);
  auto third = backend.allocate(MemoryKind::kDevice, 10);

  EXPECT_TRUE(first.ok());
  EXPECT_EQ(second.status().code(), WCUDA_OUT_OF_MEMORY);
  EXPECT_TRUE(third.ok());
  EXPECT_TRUE(backend.fault().ok());
  EXPECT_TRUE(backend.free(MemoryKind::kDevice, *first, 10).ok());
  EXPECT_TRUE(backend.free(MemoryKind::kDevice, *third, 10).ok());
}

TEST(FaultBackend, a_lost_device_stays_lost_and_lets_things_be_freed) {
  FaultBackend backend(host());
  auto block = backend.allocate(MemoryKind::kDevice, 16);
  backend.lose_device(2);
  uint8_t digest[32];

  EXPECT_TRUE(backend.fill(*block, 16, 0, 1, Stream{}).ok());
  EXPECT_EQ(backend.fill(*block, 16, 0, 1, Stream{}).code(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(backend.fault().code(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(backend.allocate(MemoryKind::kDevice, 1).status().code(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(vram::digest(backend, *block, 16, digest).code(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(backend.memory_info().status().code(), WCUDA_DEVICE_LOST);
  EXPECT_TRUE(backend.free(MemoryKind::kDevice, *block, 16).ok());
}

TEST(HostBackend, refuses_to_free_what_it_did_not_allocate) {
  const auto backend = host();
  auto block = backend->allocate(MemoryKind::kDevice, 16);
  int other = 0;

  EXPECT_EQ(backend->free(MemoryKind::kDevice, &other, 4).code(), WCUDA_INTERNAL);
  EXPECT_EQ(backend->free(MemoryKind::kPinned, *block, 16).code(), WCUDA_INTERNAL);
  EXPECT_EQ(backend->free(MemoryKind::kDevice, *block, 17).code(), WCUDA_INTERNAL);
  EXPECT_TRUE(backend->free(MemoryKind::kDevice, *block, 16).ok());
  EXPECT_EQ(backend->free(MemoryKind::kDevice, *block, 16).code(), WCUDA_INTERNAL);
}

TEST(HostBackend, capacity_is_kept_to_the_byte) {
  const auto backend = host();
  auto most = backend->allocate(MemoryKind::kDevice, (1 << 20) - 1);
  auto one = backend->allocate(MemoryKind::kDevice, 1);

  const auto none = backend->allocate(MemoryKind::kDevice, 1);

  EXPECT_STREQ(none.status().message(), "the host has 0 of 1048576 bytes free");
  EXPECT_TRUE(backend->free(MemoryKind::kDevice, *most, (1 << 20) - 1).ok());
  EXPECT_TRUE(backend->free(MemoryKind::kDevice, *one, 1).ok());
}

}  // namespace
}  // namespace wcuda
