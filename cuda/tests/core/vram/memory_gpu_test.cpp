// What only real device memory shows: managed, pinned and mapped memory named, nearly all of a
// device in one allocation, recycled blocks, pieces past a gigabyte. Compiled only with CUDA.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/backend/open.h"
#include "core/base/blake3.h"
#include "core/vram/digest.h"
#include "core/vram/memory.h"

namespace wcuda::vram {
namespace {

class GpuMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (IsSkipped()) return;
    memory_ = open();
    ASSERT_NE(memory_, nullptr);
  }
  static std::shared_ptr<Memory> open(Scrub scrub = Scrub::kNone) {
    OpenOptions options;
    options.backend = WCUDA_BACKEND_CUDA;
    auto opened = open_backend(options);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? Memory::create(opened->backend, 0, scrub) : nullptr;
  }
  // Borrows memory and expects the check to name it as one of `places`.
  void expect_named(void* address, const std::vector<MemoryPlace>& places) {
    auto borrowed = memory_->borrow(address, 4096, "foreign");
    ASSERT_TRUE(borrowed.ok()) << borrowed.status().message();

    const auto residency = memory_->check_residency();

    ASSERT_TRUE(residency.ok()) << residency.status().message();
    EXPECT_EQ(residency->nonresident_count, 1u);
    EXPECT_TRUE(std::count(places.begin(), places.end(), residency->first_place))
        << place_name(residency->first_place);
    EXPECT_EQ(memory_->enforce_vram_only().code(), WCUDA_NOT_RESIDENT);
    borrowed->reset();
    EXPECT_TRUE(memory_->enforce_vram_only().ok());
    EXPECT_EQ(memory_->borrow(address, 4096, "").status().code(), WCUDA_NOT_RESIDENT);
    (void)memory_->check_residency();
    memory_ = open();  // the rule is off again
  }

  std::shared_ptr<Memory> memory_;
};

TEST_F(GpuMemory, memory_that_is_not_the_devices_own_is_named) {
  const auto pinned = std::vector<MemoryPlace>{MemoryPlace::kPinned, MemoryPlace::kMapped};
  void* address = nullptr;
  ASSERT_EQ(cudaMallocManaged(&address, 4096), cudaSuccess);
  expect_named(address, {MemoryPlace::kManaged});
  EXPECT_EQ(cudaFree(address), cudaSuccess);

  for (const unsigned flags : {cudaHostAllocDefault, cudaHostAllocMapped}) {
    ASSERT_EQ(cudaHostAlloc(&address, 4096, flags), cudaSuccess);
    expect_named(address, pinned);
    EXPECT_EQ(cudaFreeHost(address), cudaSuccess);
  }

  std::vector<uint8_t> plain(3 * 4096);
  ASSERT_EQ(cudaHostRegister(plain.data(), plain.size(), cudaHostRegisterDefault), cudaSuccess);
  expect_named(plain.data(), pinned);
  EXPECT_EQ(cudaHostUnregister(plain.data()), cudaSuccess);
  expect_named(plain.data(), {MemoryPlace::kHost});
}

TEST_F(GpuMemory, memory_of_another_device_is_named) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "one device";
  void* address = nullptr;
  int before = 0;
  ASSERT_EQ(cudaGetDevice(&before), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&address, 4096), cudaSuccess);
  expect_named(address, {MemoryPlace::kOtherDevice});
  EXPECT_EQ(cudaFree(address), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(before), cudaSuccess);
}

TEST_F(GpuMemory, borrowed_device_memory_is_resident_and_used_in_place) {
  void* address = nullptr;
  ASSERT_EQ(cudaMalloc(&address, 4096), cudaSuccess);
  EXPECT_TRUE(memory_->enforce_vram_only().ok());
  auto borrowed = memory_->borrow(address, 4096, "foreign");
  ASSERT_TRUE(borrowed.ok()) << borrowed.status().message();
  EXPECT_EQ(memory_->check_residency()->nonresident_count, 0u);
  ASSERT_TRUE(memory_->backend().fill(borrowed->data(), 4096, 7, 1, Stream{}).ok());
  borrowed->reset();  // waits
  uint8_t back[4096] = {0};
  ASSERT_EQ(cudaMemcpy(back, address, 4096, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_TRUE(std::all_of(back, back + 4096, [](uint8_t byte) { return byte == 7; }));
  EXPECT_EQ(cudaFree(address), cudaSuccess);
}

TEST_F(GpuMemory, one_allocation_takes_97_percent_of_what_is_free) {
  ASSERT_TRUE(memory_->backend().trim().ok());
  const uint64_t free_bytes = memory_->backend().memory_info()->free_bytes;
  const uint64_t bytes = free_bytes / 100 * 97;

  auto buffer = memory_->allocate(bytes, WCUDA_PURPOSE_USER, "most");

  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  const uint8_t last = 42;
  uint8_t back = 0;
  ASSERT_TRUE(memory_->backend().copy_to_device(buffer->data() + bytes - 1, &last, 1).ok());
  ASSERT_TRUE(memory_->backend().copy_to_host(&back, buffer->data() + bytes - 1, 1).ok());
  EXPECT_EQ(back, last);
  EXPECT_EQ(memory_->check_residency()->nonresident_count, 0u);
}

// Whether a block that was full of 0xaa is all zeros when it is handed out again.
bool is_recycled_as_zeros(Memory& memory, bool* was_recycled) {
  constexpr uint64_t kBytes = 5000001;
  auto first = memory.allocate(kBytes, WCUDA_PURPOSE_USER, "");
  const uint8_t* const address = first->data();
  EXPECT_TRUE(memory.backend().fill(first->data(), kBytes, 0xaa, 1, Stream{}).ok());
  first->reset();
  const auto second = memory.allocate(kBytes, WCUDA_PURPOSE_USER, "");
  *was_recycled = second->data() == address;
  std::vector<uint8_t> data(kBytes);
  EXPECT_TRUE(memory.backend().copy_to_host(data.data(), second->data(), kBytes).ok());
  return std::all_of(data.begin(), data.end(), [](uint8_t byte) { return byte == 0; });
}

TEST_F(GpuMemory, recycled_memory_is_zero_with_scrubbing_and_old_without) {
  bool was_recycled = false;
  const bool plain_is_zero = is_recycled_as_zeros(*memory_, &was_recycled);
  EXPECT_TRUE(!was_recycled || !plain_is_zero);
  for (const Scrub scrub : {Scrub::kOnFree, Scrub::kOnAlloc}) {
    const auto memory = open(scrub);
    EXPECT_TRUE(is_recycled_as_zeros(*memory, &was_recycled));
    EXPECT_TRUE(was_recycled) << "the pool handed out another block";
  }
}

TEST_F(GpuMemory, a_thousand_allocations_are_checked) {
  std::vector<Buffer> buffers;
  for (uint64_t i = 0; i < 1000; ++i) {
    auto buffer = memory_->allocate(1 + i * 1000, WCUDA_PURPOSE_USER, "");
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    buffers.push_back(buffer.take());
  }
  EXPECT_EQ(memory_->check_residency()->checked_count, 1000u);
  EXPECT_EQ(memory_->check_residency()->nonresident_count, 0u);
}

TEST_F(GpuMemory, digest_of_ten_gigabytes_equals_the_hosts) {
  constexpr uint64_t kBytes = 10000000000, kPart = uint64_t{1} << 20;
  const auto buffer = memory_->allocate(kBytes, WCUDA_PURPOSE_USER, "");
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  constexpr uint64_t kPattern = 0x0123456789abcdef;
  ASSERT_TRUE(memory_->backend().fill(buffer->data(), kBytes, kPattern, 8, Stream{}).ok());
  std::vector<uint64_t> part(kPart / 8, kPattern);
  blake3::Hasher hasher;
  for (uint64_t done = 0; done < kBytes; done += kPart)
    hasher.update(part.data(), std::min(kPart, kBytes - done));
  uint8_t expected[32], digest[32];
  hasher.finish(expected);

  ASSERT_TRUE(vram::digest(memory_->backend(), buffer->data(), kBytes, digest).ok());

  EXPECT_EQ(std::memcmp(digest, expected, 32), 0);
}

TEST_F(GpuMemory, large_pageable_copies_arrive_whole) {
  constexpr uint64_t kBytes = (uint64_t{70} << 20) + 13;
  std::vector<uint8_t> source(kBytes + 1), back(kBytes);
  for (uint64_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<uint8_t>(i * 2654435761u >> 15);
  const auto buffer = memory_->allocate(kBytes, WCUDA_PURPOSE_USER, "");
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();

  ASSERT_TRUE(memory_->copy_to_device(buffer->data(), source.data() + 1, kBytes).ok());

  ASSERT_TRUE(memory_->backend().copy_to_host(back.data(), buffer->data(), kBytes).ok());
  EXPECT_EQ(std::memcmp(back.data(), source.data() + 1, kBytes), 0);
  EXPECT_EQ(memory_->ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes, StagedCopy::kStagingBytes);
}

TEST_F(GpuMemory, pieces_of_more_than_a_gigabyte_join_to_the_digest_and_name_a_flipped_bit) {
  const uint64_t bytes = (uint64_t{1} << 30) + (uint64_t{300} << 20) + 77;
  const auto buffer = memory_->allocate(bytes, WCUDA_PURPOSE_USER, "");
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  Backend& backend = memory_->backend();
  ASSERT_TRUE(backend.fill(buffer->data(), bytes, 0x5a, 1, Stream{}).ok());
  const uint64_t count = blake3::piece_count(bytes);
  std::vector<uint8_t> pieces(count * 32), changed(count * 32);
  uint8_t digest[32], joined[32];

  ASSERT_TRUE(vram::digest_pieces(backend, buffer->data(), bytes, 0, pieces.data()).ok());
  ASSERT_TRUE(vram::digest(backend, buffer->data(), bytes, digest).ok());
  blake3::join_pieces(pieces.data(), count, joined);
  EXPECT_EQ(std::memcmp(joined, digest, 32), 0);

  for (const uint64_t at : {uint64_t{0}, uint64_t{1} << 30, bytes - 1}) {
    uint8_t flipped = 0x5a ^ 0x04;
    ASSERT_TRUE(backend.copy_to_device(buffer->data() + at, &flipped, 1).ok());
    ASSERT_TRUE(vram::digest_pieces(backend, buffer->data(), bytes, 0, changed.data()).ok());
    for (uint64_t piece = 0; piece < count; ++piece)
      EXPECT_EQ(std::memcmp(&pieces[piece * 32], &changed[piece * 32], 32) != 0,
                piece == at / blake3::kPieceBytes);
    flipped = 0x5a;
    ASSERT_TRUE(backend.copy_to_device(buffer->data() + at, &flipped, 1).ok());
  }
}

}  // namespace
}  // namespace wcuda::vram
