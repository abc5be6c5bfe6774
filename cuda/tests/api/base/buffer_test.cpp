// Section 7 of the header through the C interface, on the host backend and (Gpu…) on CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/allocation_failure.h"
#include "support/blake3_vectors.h"
#include "support/context.h"

namespace wcuda::testing {
namespace {

class BufferBase {
 protected:
  explicit BufferBase(int32_t backend) : context_(0, backend) {}

  std::vector<uint8_t> read(wcuda_buffer buffer, uint64_t bytes) {
    std::vector<uint8_t> data(bytes);
    EXPECT_EQ(wcuda_buffer_read(buffer, 0, data.data(), bytes, nullptr), WCUDA_OK);
    return data;
  }

  void write_then_read();
  void out_of_range_reports_the_numbers();
  void copy_between_and_within();
  void fill_patterns();
  void digest_equals_the_reference();
  void pinned_is_aligned_zeroed_and_counted();

  TestContext context_;
  wcuda_error error_{};
};

void BufferBase::write_then_read() {
  for (const uint64_t bytes : {1u, 255u, 256u, 257u, 4097u, 3000001u}) {
    const TestBuffer buffer(context_.handle(), bytes);
    std::vector<uint8_t> data(bytes);
    std::iota(data.begin(), data.end(), uint8_t{1});

    ASSERT_EQ(wcuda_buffer_write(buffer.handle(), 0, data.data(), bytes, &error_), WCUDA_OK)
        << error_.message;
    EXPECT_EQ(read(buffer.handle(), bytes), data);

    data[bytes - 1] = 99;
    ASSERT_EQ(wcuda_buffer_write(buffer.handle(), bytes - 1, &data[bytes - 1], 1, nullptr),
              WCUDA_OK);
    EXPECT_EQ(read(buffer.handle(), bytes), data);
    uint64_t size = 0;
    EXPECT_EQ(wcuda_buffer_size_get(buffer.handle(), &size, nullptr), WCUDA_OK);
    EXPECT_EQ(size, bytes);
  }
}

void BufferBase::out_of_range_reports_the_numbers() {
  const TestBuffer buffer(context_.handle(), 100), other(context_.handle(), 50);
  uint8_t data[200] = {};
  uint8_t digest[32];
  constexpr uint64_t kHuge = UINT64_MAX;

  EXPECT_EQ(wcuda_buffer_write(buffer.handle(), 50, data, 51, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, "buffer: offset 50 and 51 bytes, the buffer has 100");
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 101}, {101, 0}, {100, 1}, {kHuge, 1}, {1, kHuge}, {kHuge, kHuge}, {2, kHuge - 1}}) {
    EXPECT_EQ(wcuda_buffer_write(buffer.handle(), offset, data, bytes, nullptr),
              WCUDA_OUT_OF_RANGE);
    EXPECT_EQ(wcuda_buffer_read(buffer.handle(), offset, data, bytes, nullptr), WCUDA_OUT_OF_RANGE);
    EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), offset, bytes, 0, 1, nullptr), WCUDA_OUT_OF_RANGE);
    EXPECT_EQ(wcuda_buffer_digest(buffer.handle(), offset, bytes, digest, nullptr),
              WCUDA_OUT_OF_RANGE);
    EXPECT_EQ(wcuda_buffer_copy(buffer.handle(), offset, other.handle(), 0, bytes, nullptr),
              WCUDA_OUT_OF_RANGE);
    EXPECT_EQ(wcuda_buffer_copy(other.handle(), 0, buffer.handle(), offset, bytes, nullptr),
              WCUDA_OUT_OF_RANGE);
  }
  EXPECT_EQ(wcuda_buffer_write(buffer.handle(), 100, nullptr, 0, nullptr), WCUDA_OK);
  EXPECT_EQ(wcuda_buffer_read(buffer.handle(), 100, nullptr, 0, nullptr), WCUDA_OK);
  EXPECT_EQ(wcuda_buffer_copy(buffer.handle(), 100, other.handle(), 50, 0, nullptr), WCUDA_OK);
}

void BufferBase::copy_between_and_within() {
  const TestBuffer a(context_.handle(), 1000), b(context_.handle(), 1000);
  std::vector<uint8_t> data(1000);
  std::iota(data.begin(), data.end(), uint8_t{0});
  ASSERT_EQ(wcuda_buffer_write(a.handle(), 0, data.data(), 1000, nullptr), WCUDA_OK);

  ASSERT_EQ(wcuda_buffer_copy(b.handle(), 0, a.handle(), 0, 1000, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_buffer_copy(b.handle(), 7, a.handle(), 501, 93, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_buffer_copy(b.handle(), 100, b.handle(), 0, 100, nullptr), WCUDA_OK);

  std::vector<uint8_t> expected = data;
  std::copy_n(data.begin() + 501, 93, expected.begin() + 7);
  std::copy_n(std::vector<uint8_t>(expected).begin(), 100, expected.begin() + 100);
  EXPECT_EQ(read(b.handle(), 1000), expected);
  EXPECT_EQ(wcuda_buffer_copy(b.handle(), 99, b.handle(), 0, 100, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "ranges overlap: 100 bytes at 99 and at 0");
  EXPECT_EQ(read(b.handle(), 1000), expected);
}

void BufferBase::fill_patterns() {
  constexpr uint64_t kBytes = 100000;
  const TestBuffer buffer(context_.handle(), kBytes);
  const uint64_t pattern = 0x8877665544332211u;
  for (const uint32_t width : {1u, 2u, 4u, 8u})
    for (const uint64_t offset : {0u, 8u, 16u, 24u, 8u * 31})
      for (const uint64_t bytes : {0u, 8u, 16u, 24u, 40u, 4096u, 16384u, 16392u, 99000u}) {
        std::vector<uint8_t> expected(kBytes, 0xee);
        ASSERT_EQ(wcuda_buffer_write(buffer.handle(), 0, expected.data(), kBytes, nullptr),
                  WCUDA_OK);
        ASSERT_EQ(
            wcuda_buffer_fill(buffer.handle(), offset + width, bytes, pattern, width, &error_),
            WCUDA_OK)
            << error_.message;
        for (uint64_t i = 0; i < bytes; ++i)
          expected[offset + width + i] = static_cast<uint8_t>(pattern >> (8 * (i % width)));
        ASSERT_EQ(read(buffer.handle(), kBytes), expected)
            << bytes << " bytes of a pattern of " << width << " at " << offset + width;
      }
  EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 8, 0, 3, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 8, 0, 0, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 2, 8, 0, 4, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 9, 0, 2, nullptr), WCUDA_INVALID_ARGUMENT);
}

void BufferBase::digest_equals_the_reference() {
  const auto vectors = blake3_vectors();
  const auto data = blake3_input(vectors.back().bytes);
  for (const uint64_t offset : {0u, 1u, 16u, 1000u}) {
    const TestBuffer buffer(context_.handle(), data.size() + offset);
    ASSERT_EQ(wcuda_buffer_write(buffer.handle(), offset, data.data(), data.size(), nullptr),
              WCUDA_OK);
    for (const auto& vector : vectors) {
      uint8_t digest[32];
      ASSERT_EQ(wcuda_buffer_digest(buffer.handle(), offset, vector.bytes, digest, &error_),
                WCUDA_OK)
          << error_.message;
      ASSERT_EQ(hex(digest), vector.digest) << vector.bytes << " bytes at " << offset;
    }
  }
}

void BufferBase::pinned_is_aligned_zeroed_and_counted() {
  for (const uint64_t bytes : {1u, 4096u, 5000u, 9000000u}) {
    wcuda_pinned pinned;
    ASSERT_EQ(wcuda_pinned_create(context_.handle(), bytes, &pinned, &error_), WCUDA_OK)
        << error_.message;
    void* data = nullptr;
    uint64_t size = 0;
    ASSERT_EQ(wcuda_pinned_data_get(pinned, &data, &size, nullptr), WCUDA_OK);

    EXPECT_EQ(size, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
    const auto* first = static_cast<const uint8_t*>(data);
    EXPECT_TRUE(std::all_of(first, first + bytes, [](uint8_t b) { return b == 0; }));
    EXPECT_EQ(context_.memory(WCUDA_PURPOSE_STAGING).current_bytes, bytes);
    std::memset(data, 7, bytes);

    wcuda_pinned_destroy(pinned);
    EXPECT_EQ(wcuda_pinned_data_get(pinned, &data, &size, nullptr), WCUDA_INVALID_HANDLE);
  }
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_STAGING).current_bytes, 0u);
}

class Buffer : public ::testing::Test, protected BufferBase {
 protected:
  Buffer() : BufferBase(WCUDA_BACKEND_HOST) {}
};
TEST_F(Buffer, write_then_read) { write_then_read(); }
TEST_F(Buffer, out_of_range_reports_the_numbers) { out_of_range_reports_the_numbers(); }
TEST_F(Buffer, copy_between_and_within) { copy_between_and_within(); }
TEST_F(Buffer, fill_patterns) { fill_patterns(); }
TEST_F(Buffer, digest_equals_the_reference) { digest_equals_the_reference(); }
TEST_F(Buffer, pinned_is_aligned_zeroed_and_counted) { pinned_is_aligned_zeroed_and_counted(); }

class GpuBuffer : public ::testing::Test, protected BufferBase {
 protected:
  GpuBuffer() : BufferBase(WCUDA_BACKEND_CUDA) {}
};
TEST_F(GpuBuffer, write_then_read) { write_then_read(); }
TEST_F(GpuBuffer, out_of_range_reports_the_numbers) { out_of_range_reports_the_numbers(); }
TEST_F(GpuBuffer, copy_between_and_within) { copy_between_and_within(); }
TEST_F(GpuBuffer, fill_patterns) { fill_patterns(); }
TEST_F(GpuBuffer, digest_equals_the_reference) { digest_equals_the_reference(); }
TEST_F(GpuBuffer, pinned_is_aligned_zeroed_and_counted) { pinned_is_aligned_zeroed_and_counted(); }

TEST_F(Buffer, create_refuses_misuse_and_leaves_the_output) {
  wcuda_buffer buffer{77};
  const auto create = [&](auto&& change) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = 100;
    change(options);
    return wcuda_buffer_create(context_.handle(), &options, &buffer, &error_);
  };
  using Options = wcuda_buffer_options;

  EXPECT_EQ(create([](Options& o) { o.bytes = 0; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.struct_size = 0; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.purpose = WCUDA_PURPOSE_STAGING; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.purpose = 7; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.purpose = -1; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.tag.bytes = 5; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.bytes = UINT64_MAX; }), WCUDA_OUT_OF_MEMORY);
  EXPECT_EQ(create([](Options& o) { o.bytes = uint64_t{1} << 60; }), WCUDA_OUT_OF_MEMORY);
  EXPECT_EQ(buffer.id, 77u);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).peak_bytes, 0u);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).total_allocation_count, 0u);
  EXPECT_EQ(wcuda_buffer_create(context_.handle(), nullptr, &buffer, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_pinned_create(context_.handle(), 0, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  wcuda_pinned pinned{77};
  EXPECT_EQ(wcuda_pinned_create(context_.handle(), 0, &pinned, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(pinned.id, 77u);
}

TEST_F(Buffer, null_pointers_are_named) {
  const TestBuffer buffer(context_.handle(), 8);

  EXPECT_EQ(wcuda_buffer_write(buffer.handle(), 0, nullptr, 1, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "source is NULL");
  EXPECT_EQ(wcuda_buffer_read(buffer.handle(), 0, nullptr, 1, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "target is NULL");
  EXPECT_EQ(wcuda_buffer_digest(buffer.handle(), 0, 1, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_size_get(buffer.handle(), nullptr, &error_), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Buffer, stale_handles_are_refused_and_double_destroy_is_harmless) {
  wcuda_buffer stale;
  {
    const TestBuffer buffer(context_.handle(), 8);
    stale = buffer.handle();
  }
  const TestBuffer reuses_the_slot(context_.handle(), 8);
  uint8_t data[32];
  uint64_t bytes;

  wcuda_buffer_destroy(stale);
  wcuda_buffer_destroy(wcuda_buffer{0});

  EXPECT_EQ(wcuda_buffer_size_get(stale, &bytes, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_write(stale, 0, data, 1, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_read(stale, 0, data, 1, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_fill(stale, 0, 1, 0, 1, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_digest(stale, 0, 1, data, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_copy(stale, 0, reuses_the_slot.handle(), 0, 1, &error_),
            WCUDA_INVALID_HANDLE);
  EXPECT_EQ(std::string(error_.message).rfind("target: ", 0), 0u);
  EXPECT_EQ(wcuda_buffer_copy(reuses_the_slot.handle(), 0, stale, 0, 1, &error_),
            WCUDA_INVALID_HANDLE);
  EXPECT_EQ(std::string(error_.message).rfind("source: ", 0), 0u);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).allocation_count, 1u);
}

TEST_F(Buffer, copy_between_contexts_is_refused) {
  const TestContext other_context;
  const TestBuffer a(context_.handle(), 8), b(other_context.handle(), 8);

  EXPECT_EQ(wcuda_buffer_copy(a.handle(), 0, b.handle(), 0, 8, nullptr), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Buffer, budget_is_kept_to_the_byte) {
  const TestContext context(1000);
  const TestBuffer first(context.handle(), 600);
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 401;
  options.tag = {"big", 3};
  wcuda_buffer buffer{77};

  EXPECT_EQ(wcuda_buffer_create(context.handle(), &options, &buffer, &error_), WCUDA_OVER_BUDGET);
  EXPECT_STREQ(error_.message, "user 'big': needs 401 bytes, budget 1000, used 600, free 400");
  EXPECT_EQ(buffer.id, 77u);
  const TestBuffer second(context.handle(), 400);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).current_bytes, 1000u);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).device_free_bytes, 0u);
  wcuda_pinned pinned;  // staging is host memory
  EXPECT_EQ(wcuda_pinned_create(context.handle(), 5000, &pinned, nullptr), WCUDA_OK);
  wcuda_pinned_destroy(pinned);
}

// On a host of which little is used: what is free is its capacity less what is held.
class SmallBuffer : public Buffer {
 protected:
  static constexpr uint64_t kSmallBytes = 1 << 20;
  const TestContext small_{kSmallBytes};
};

TEST_F(SmallBuffer, create_survives_running_out_of_host_memory_at_every_step) {
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 3000;
  options.tag = {"tag", 3};
  int64_t k = 0;
  for (bool happened = true; happened; wcuda_context_synchronize(small_.handle(), nullptr)) {
    wcuda_buffer buffer{77};
    wcuda_status status;
    {
      const FailAllocation fail(++k);
      status = wcuda_buffer_create(small_.handle(), &options, &buffer, &error_);
      happened = fail.happened();
    }
    ASSERT_EQ(status, happened ? WCUDA_OUT_OF_HOST_MEMORY : WCUDA_OK) << "allocation " << k;
    if (happened) {
      ASSERT_EQ(buffer.id, 77u);
    } else {
      wcuda_buffer_destroy(buffer);
    }
    ASSERT_EQ(small_.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u) << "allocation " << k;
    ASSERT_EQ(small_.memory(WCUDA_PURPOSE_ANY).device_free_bytes, kSmallBytes);
  }
  EXPECT_GE(k, 4);  // object, row, block, handle: some of them failed
}

TEST_F(SmallBuffer, destroy_survives_running_out_of_host_memory_at_every_step) {
  for (int64_t k = 1; k <= 12; ++k) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = 100;
    wcuda_buffer buffer;
    ASSERT_EQ(wcuda_buffer_create(small_.handle(), &options, &buffer, nullptr), WCUDA_OK);
    {
      const FailAllocation fail(k);
      wcuda_buffer_destroy(buffer);
    }
    ASSERT_EQ(small_.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u) << "allocation " << k;
    ASSERT_EQ(small_.memory(WCUDA_PURPOSE_ANY).device_free_bytes, kSmallBytes)
        << "allocation " << k;
  }
}

TEST_F(Buffer, zeroed_ones_are_zero_whatever_was_there) {
  for (const uint64_t bytes : {1u, 3000u, 65535u, 65536u, 5000000u}) {
    for (int i = 0; i < 4; ++i) {
      {
        const TestBuffer before(context_.handle(), bytes);
        ASSERT_EQ(wcuda_buffer_fill(before.handle(), 0, bytes, 0xa5, 1, &error_), WCUDA_OK);
      }
      wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
      options.bytes = bytes;
      options.flags = WCUDA_BUFFER_ZEROED;
      wcuda_buffer buffer{0};
      ASSERT_EQ(wcuda_buffer_create(context_.handle(), &options, &buffer, &error_), WCUDA_OK);
      EXPECT_EQ(read(buffer, bytes), std::vector<uint8_t>(bytes, 0)) << bytes;
      wcuda_buffer_destroy(buffer);
    }
  }
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 1;
  options.flags = WCUDA_BUFFER_ZEROED << 1;
  wcuda_buffer buffer{77};
  EXPECT_EQ(wcuda_buffer_create(context_.handle(), &options, &buffer, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(buffer.id, 77u);
}

TEST_F(Buffer, eight_threads_allocate_use_and_free) {
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const uint64_t bytes = 1 + static_cast<uint64_t>((t * 131 + i * 977) % 20000);
        const TestBuffer buffer(context_.handle(), bytes);
        std::vector<uint8_t> data(bytes, static_cast<uint8_t>(t)), back(bytes);
        failures += wcuda_buffer_write(buffer.handle(), 0, data.data(), bytes, nullptr) != WCUDA_OK;
        failures += wcuda_buffer_read(buffer.handle(), 0, back.data(), bytes, nullptr) != WCUDA_OK;
        failures += back != data;
        failures += context_.memory(WCUDA_PURPOSE_ANY).current_bytes < bytes;
      }
    });
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(failures, 0);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).total_allocation_count, 1600u);
}

TEST_F(Buffer, overlapping_use_is_busy_or_done_never_torn) {
  constexpr uint64_t kBytes = 1 << 20;
  const TestBuffer buffer(context_.handle(), kBytes);
  std::atomic<int> busy{0}, wrong{0};
  // Again until two threads have met, which one processor may put off.
  for (int round = 0; round < 50 && busy == 0; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        std::vector<uint8_t> data(kBytes, static_cast<uint8_t>(t));
        for (int i = 0; i < 50; ++i) {
          const bool reads = i % 2 == 1;
          const wcuda_status status =
              reads ? wcuda_buffer_read(buffer.handle(), 0, data.data(), kBytes, nullptr)
                    : wcuda_buffer_write(buffer.handle(), 0, data.data(), kBytes, nullptr);
          if (status == WCUDA_BUSY) {
            ++busy;
          } else {
            wrong += status != WCUDA_OK;
            if (reads) wrong += std::count(data.begin(), data.end(), data[0]) != int64_t{kBytes};
          }
          std::fill(data.begin(), data.end(), static_cast<uint8_t>(t));
        }
      });
    for (auto& thread : threads) thread.join();
  }

  EXPECT_EQ(wrong, 0);
  EXPECT_GT(busy, 0) << "eight threads never met";
}

TEST_F(Buffer, destroying_a_buffer_in_use_waits_for_the_call) {
  std::vector<uint8_t> data(1 << 20, 3);
  for (int i = 0; i < 50; ++i) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = data.size();
    wcuda_buffer buffer;
    ASSERT_EQ(wcuda_buffer_create(context_.handle(), &options, &buffer, nullptr), WCUDA_OK);
    std::thread user([&] {
      while (wcuda_buffer_write(buffer, 0, data.data(), data.size(), nullptr) == WCUDA_OK) {
      }
    });
    std::this_thread::yield();
    wcuda_buffer_destroy(buffer);
    user.join();
  }
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
}

}  // namespace
}  // namespace wcuda::testing
