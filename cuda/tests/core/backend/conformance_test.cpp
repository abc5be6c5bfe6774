// What every backend must do, written once and run on each of them: host, trace and fault wrappers,
// and (prefix Gpu) CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "core/backend/open.h"
#include "core/backend/trace_backend.h"
#include "core/base/blake3.h"
#include "core/vram/digest.h"
#include "kernels/shared/numeric.h"
#include "llm/quant/layout_gpu.h"
#include "llm/quant/repack.h"
#include "llm/quant/tile_cases.h"
#include "support/blake3_vectors.h"

namespace wcuda {
namespace {

struct Subject {
  const char* name;
  std::function<Result<std::shared_ptr<Backend>>()> open;
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

Result<std::shared_ptr<Backend>> open_kind(int32_t kind) {
  OpenOptions options;
  options.backend = kind;
  options.host_capacity = uint64_t{256} << 20;
  WCUDA_ASSIGN(Opened opened, open_backend(options));
  return std::move(opened.backend);
}

Result<std::shared_ptr<Backend>> traced(int32_t kind) {
  WCUDA_ASSIGN(auto inner, open_kind(kind));
  auto listener = [](const Call&, const Status&) {};
  return std::shared_ptr<Backend>(std::make_shared<TraceBackend>(inner, listener));
}

Result<std::shared_ptr<Backend>> faulty(int32_t kind) {
  WCUDA_ASSIGN(auto inner, open_kind(kind));
  return std::shared_ptr<Backend>(std::make_shared<FaultBackend>(inner));
}

// One allocation, freed at the end of the scope.
class Block {
 public:
  Block(Backend& backend, MemoryKind kind, uint64_t bytes)
      : backend_(backend), kind_(kind), bytes_(bytes) {
    auto address = backend.allocate(kind, bytes);
    EXPECT_TRUE(address.ok()) << address.status().message();
    if (address.ok()) data_ = static_cast<uint8_t*>(*address);
  }
  ~Block() {
    if (!data_) return;
    EXPECT_TRUE(backend_.free(kind_, data_, bytes_).ok());
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  uint8_t* data() const { return data_; }

 private:
  Backend& backend_;
  MemoryKind kind_;
  uint64_t bytes_;
  uint8_t* data_ = nullptr;
};

class BackendConformance : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    backend_ = opened.take();
  }
  std::vector<uint8_t> read(const void* data, uint64_t bytes) {
    std::vector<uint8_t> result(bytes);
    EXPECT_TRUE(backend_->copy_to_host(result.data(), data, bytes).ok());
    return result;
  }
  static std::vector<uint8_t> counting(uint64_t bytes, uint8_t first) {
    std::vector<uint8_t> data(bytes);
    std::iota(data.begin(), data.end(), first);
    return data;
  }

  std::shared_ptr<Backend> backend_;
};

TEST_P(BackendConformance, caps_are_filled) {
  const wcuda_device_caps& caps = backend_->caps();

  EXPECT_EQ(caps.struct_size, sizeof(caps));
  EXPECT_TRUE(caps.backend == WCUDA_BACKEND_CUDA || caps.backend == WCUDA_BACKEND_HOST);
  EXPECT_EQ(caps.name_bytes, std::strlen(caps.name));
  EXPECT_GT(caps.total_memory, 0u);
  EXPECT_GT(caps.multiprocessor_count, 0);
  EXPECT_EQ(backend_->host_thread_count() > 0, backend_->is_host());
}

TEST_P(BackendConformance, device_memory_is_aligned_and_resident) {
  for (const uint64_t bytes : {1u, 255u, 256u, 100000u, 5u << 20}) {
    const Block block(*backend_, MemoryKind::kDevice, bytes);
    ASSERT_NE(block.data(), nullptr);

    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 256, 0u);
    for (const uint64_t offset : {uint64_t{0}, bytes - 1}) {
      const auto place = backend_->memory_place(block.data() + offset);
      ASSERT_TRUE(place.ok());
      EXPECT_EQ(*place, MemoryPlace::kDevice) << place_name(*place);
    }
  }
}

TEST_P(BackendConformance, pinned_memory_is_zeroed_and_not_device_memory) {
  const Block block(*backend_, MemoryKind::kPinned, 70001);
  ASSERT_NE(block.data(), nullptr);

  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(block.data(), block.data() + 70001, [](uint8_t b) { return b == 0; }));
  const auto place = backend_->memory_place(block.data());
  ASSERT_TRUE(place.ok());
  EXPECT_TRUE(*place == MemoryPlace::kPinned || *place == MemoryPlace::kMapped)
      << place_name(*place);
}

TEST_P(BackendConformance, memory_of_the_program_is_host_memory) {
  const std::vector<uint8_t> data(5000);
  for (const void* const address :
       {static_cast<const void*>(data.data()), static_cast<const void*>(data.data() + 4999)}) {
    const auto place = backend_->memory_place(address);
    ASSERT_TRUE(place.ok()) << place.status().message();
    EXPECT_EQ(*place, MemoryPlace::kHost) << place_name(*place);
  }
}

TEST_P(BackendConformance, memory_info_follows_allocations) {
  constexpr uint64_t kBytes = uint64_t{96} << 20;
  const auto before = backend_->memory_info();
  ASSERT_TRUE(before.ok());
  {
    const Block block(*backend_, MemoryKind::kDevice, kBytes);
    const auto during = backend_->memory_info();
    ASSERT_TRUE(during.ok());
    EXPECT_GE(during->reserved_bytes, before->reserved_bytes + kBytes);
    EXPECT_LE(during->free_bytes, during->total_bytes);
    // Other programs may use the same device: only a bound.
    EXPECT_LT(during->free_bytes, before->free_bytes);
  }
  ASSERT_TRUE(backend_->synchronize().ok());
  ASSERT_TRUE(backend_->trim().ok());
  const auto after = backend_->memory_info();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->reserved_bytes, before->reserved_bytes);
}

TEST_P(BackendConformance, more_than_there_is_is_out_of_memory_and_no_more) {
  for (const uint64_t bytes :
       {backend_->caps().total_memory + 1, uint64_t{1} << 50, UINT64_MAX - 4096, UINT64_MAX}) {
    const auto block = backend_->allocate(MemoryKind::kDevice, bytes);
    EXPECT_EQ(block.status().code(), WCUDA_OUT_OF_MEMORY) << block.status().message();
  }
  EXPECT_EQ(backend_->allocate(MemoryKind::kPinned, uint64_t{1} << 60).status().code(),
            WCUDA_OUT_OF_HOST_MEMORY);

  const Block block(*backend_, MemoryKind::kDevice, 4096);
  EXPECT_TRUE(backend_->fill(block.data(), 4096, 0, 1, Stream{}).ok());
  EXPECT_TRUE(backend_->synchronize().ok());
  EXPECT_TRUE(backend_->fault().ok());
}

TEST_P(BackendConformance, copies_keep_every_byte) {
  for (const uint64_t bytes : {0u, 1u, 4095u, 4096u, 4097u, 3u << 20}) {
    const Block a(*backend_, MemoryKind::kDevice, bytes + 32);
    const Block b(*backend_, MemoryKind::kDevice, bytes + 32);
    const auto data = counting(bytes, 3);

    ASSERT_TRUE(backend_->copy_to_device(a.data() + 5, data.data(), bytes).ok());
    ASSERT_TRUE(backend_->copy_on_device(b.data() + 11, a.data() + 5, bytes, Stream{}).ok());

    EXPECT_EQ(read(b.data() + 11, bytes), data);
  }
}

TEST_P(BackendConformance, asynchronous_copies_are_ordered_in_their_stream) {
  constexpr uint64_t kBytes = 1 << 20;
  const auto stream = backend_->stream_create(-1);
  ASSERT_TRUE(stream.ok());
  {
    const Block in(*backend_, MemoryKind::kPinned, kBytes),
        out(*backend_, MemoryKind::kPinned, kBytes);
    const Block device(*backend_, MemoryKind::kDevice, kBytes);
    const auto data = counting(kBytes, 9);
    std::memcpy(in.data(), data.data(), kBytes);

    ASSERT_TRUE(backend_->copy_to_device_async(device.data(), in.data(), kBytes, *stream).ok());
    ASSERT_TRUE(backend_->fill(device.data(), 16, 0xab, 1, *stream).ok());
    ASSERT_TRUE(backend_->copy_to_host_async(out.data(), device.data(), kBytes, *stream).ok());
    ASSERT_TRUE(backend_->synchronize(*stream).ok());

    EXPECT_TRUE(std::all_of(out.data(), out.data() + 16, [](uint8_t b) { return b == 0xab; }));
    EXPECT_EQ(std::memcmp(out.data() + 16, data.data() + 16, kBytes - 16), 0);
  }
  EXPECT_TRUE(backend_->stream_destroy(*stream).ok());
}

TEST_P(BackendConformance, a_stream_waits_for_another_ones_event) {
  constexpr uint64_t kBytes = 64 << 20;
  const auto first = backend_->stream_create(0), second = backend_->stream_create(0);
  const auto event = backend_->event_create();
  ASSERT_TRUE(first.ok() && second.ok() && event.ok());
  const Block a(*backend_, MemoryKind::kDevice, kBytes), b(*backend_, MemoryKind::kDevice, kBytes);
  ASSERT_TRUE(backend_->fill(b.data(), kBytes, 1, 1, Stream{}).ok());
  ASSERT_TRUE(backend_->synchronize().ok());

  for (uint8_t round = 2; round < 10; ++round) {
    ASSERT_TRUE(backend_->fill(a.data(), kBytes, round, 1, *first).ok());
    ASSERT_TRUE(backend_->event_record(*event, *first).ok());
    ASSERT_TRUE(backend_->stream_wait(*second, *event).ok());
    ASSERT_TRUE(backend_->copy_on_device(b.data(), a.data(), kBytes, *second).ok());
    ASSERT_TRUE(backend_->synchronize(*second).ok());
    EXPECT_EQ(read(b.data() + kBytes - 1, 1)[0], round);
  }

  EXPECT_TRUE(backend_->event_destroy(*event).ok());
  EXPECT_TRUE(backend_->stream_destroy(*first).ok());
  EXPECT_TRUE(backend_->stream_destroy(*second).ok());
}

TEST_P(BackendConformance, a_freed_block_is_not_reused_before_its_work_is_done) {
  constexpr uint64_t kBytes = 256 << 10;
  const auto stream = backend_->stream_create(0);
  ASSERT_TRUE(stream.ok());
  const Block out(*backend_, MemoryKind::kDevice, 64 * kBytes);
  for (uint8_t round = 0; round < 64; ++round) {
    const auto address = backend_->allocate(MemoryKind::kDevice, kBytes);
    ASSERT_TRUE(address.ok());
    ASSERT_TRUE(backend_->fill(*address, kBytes, round, 1, *stream).ok());
    ASSERT_TRUE(
        backend_->copy_on_device(out.data() + round * kBytes, *address, kBytes, *stream).ok());
    ASSERT_TRUE(backend_->free_after(*stream).ok());
    ASSERT_TRUE(backend_->free(MemoryKind::kDevice, *address, kBytes).ok());
  }
  ASSERT_TRUE(backend_->synchronize().ok());

  const auto data = read(out.data(), 64 * kBytes);
  for (uint64_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], i / kBytes) << i;
  EXPECT_TRUE(backend_->stream_destroy(*stream).ok());
}

TEST_P(BackendConformance, events_measure_time) {
  const auto start = backend_->event_create(), end = backend_->event_create();
  ASSERT_TRUE(start.ok() && end.ok());
  const Block block(*backend_, MemoryKind::kDevice, 32 << 20);
  EXPECT_EQ(backend_->event_elapsed_ms(*start, *end).status().code(), WCUDA_INVALID_STATE);

  ASSERT_TRUE(backend_->event_record(*start, Stream{}).ok());
  ASSERT_TRUE(backend_->fill(block.data(), 32 << 20, 7, 4, Stream{}).ok());
  ASSERT_TRUE(backend_->event_record(*end, Stream{}).ok());
  ASSERT_TRUE(backend_->event_synchronize(*end).ok());

  const auto done = backend_->event_done(*end);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(*done);
  const auto elapsed = backend_->event_elapsed_ms(*start, *end);
  ASSERT_TRUE(elapsed.ok()) << elapsed.status().message();
  EXPECT_GT(*elapsed, 0.0);
  EXPECT_TRUE(backend_->event_destroy(*start).ok());
  EXPECT_TRUE(backend_->event_destroy(*end).ok());
}

TEST_P(BackendConformance, destroyed_streams_and_events_are_refused) {
  const auto stream = backend_->stream_create(0);
  const auto event = backend_->event_create();
  ASSERT_TRUE(stream.ok() && event.ok());
  ASSERT_TRUE(backend_->stream_destroy(*stream).ok());
  ASSERT_TRUE(backend_->event_destroy(*event).ok());
  const auto other = backend_->stream_create(0);  // may have the driver's old address

  EXPECT_EQ(backend_->synchronize(*stream).code(), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(backend_->stream_destroy(*stream).code(), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(backend_->stream_destroy(Stream{}).code(), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(backend_->event_record(*event, Stream{}).code(), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(backend_->event_destroy(*event).code(), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(backend_->stream_wait(Stream{}, *event).code(), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(backend_->native_stream(*stream), nullptr);
  EXPECT_TRUE(backend_->stream_destroy(*other).ok());
}

TEST_P(BackendConformance, digest_equals_the_reference_at_any_alignment) {
  const auto vectors = testing::blake3_vectors();
  ASSERT_FALSE(vectors.empty());
  const auto data = testing::blake3_input(vectors.back().bytes);
  const Block block(*backend_, MemoryKind::kDevice, data.size() + 64);
  for (const uint64_t offset : {0u, 1u, 4u, 8u, 48u}) {
    ASSERT_TRUE(backend_->copy_to_device(block.data() + offset, data.data(), data.size()).ok());
    for (const auto& vector : vectors) {
      uint8_t digest[32];
      ASSERT_TRUE(vram::digest(*backend_, block.data() + offset, vector.bytes, digest).ok());
      ASSERT_EQ(testing::hex(digest), vector.digest) << vector.bytes << " bytes at " << offset;
    }
  }
}

TEST_P(BackendConformance, digests_of_pieces_equal_the_host_hash) {
  constexpr uint64_t kBytes = (uint64_t{5} << 20) + 12345;
  const Block block(*backend_, MemoryKind::kDevice, kBytes);
  std::vector<uint8_t> data(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 11);
  ASSERT_TRUE(backend_->copy_to_device(block.data(), data.data(), kBytes).ok());
  struct Range {
    uint64_t offset, bytes, first_piece;
  };
  for (const Range range : {Range{0, kBytes, 0},
                            {0, 1, 0},
                            {1, 1 << 20, 3},
                            {7, (1 << 20) + 1, 9},
                            {0, 4 << 20, uint64_t{1} << 33},
                            {2 << 20, 3000000, 2},
                            {1023, 1025, 1}}) {
    const uint64_t count = blake3::piece_count(range.bytes);
    std::vector<uint8_t> expected(count * 32), pieces(count * 32);
    blake3::hash_pieces(data.data() + range.offset, range.bytes, range.first_piece,
                        expected.data());

    const Status status = vram::digest_pieces(*backend_, block.data() + range.offset, range.bytes,
                                              range.first_piece, pieces.data());

    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(pieces, expected) << range.offset << ", " << range.bytes;
  }
}

TEST_P(BackendConformance, queued_digests_equal_the_reference) {
  const auto vectors = testing::blake3_vectors();
  ASSERT_FALSE(vectors.empty());
  const auto data = testing::blake3_input(vectors.back().bytes);
  const Block block(*backend_, MemoryKind::kDevice, data.size());
  const Block scratch(*backend_, MemoryKind::kDevice, vram::kDigestScratchBytes);
  const Block results(*backend_, MemoryKind::kDevice, 32 * vectors.size());
  const auto stream = backend_->stream_create(0);
  ASSERT_TRUE(backend_->copy_to_device(block.data(), data.data(), data.size()).ok());

  for (size_t i = 0; i < vectors.size(); ++i)
    ASSERT_TRUE(vram::digest_async(*backend_, block.data(), vectors[i].bytes,
                                   results.data() + 32 * i, scratch.data(), *stream)
                    .ok());
  std::vector<uint8_t> digests(32 * vectors.size());
  ASSERT_TRUE(backend_->synchronize(*stream).ok());
  ASSERT_TRUE(backend_->copy_to_host(digests.data(), results.data(), digests.size()).ok());

  for (size_t i = 0; i < vectors.size(); ++i)
    EXPECT_EQ(testing::hex(&digests[32 * i]), vectors[i].digest) << vectors[i].bytes;
  EXPECT_TRUE(backend_->stream_destroy(*stream).ok());
}

TEST_P(BackendConformance, repacks_weights_as_the_layout_says) {
  const testing::TileCase from = testing::tile_case(12, 37, 512);
  std::vector<uint8_t> expected(*quant::gpu_layout_bytes(12, 37, 512));
  ASSERT_TRUE(quant::pack_gpu(12, 37, 512, 0, 37, from.file.data(), expected.data()).ok());
  const Block file(*backend_, MemoryKind::kDevice, from.file.size());
  const Block records(*backend_, MemoryKind::kDevice, expected.size());
  ASSERT_TRUE(backend_->copy_to_device(file.data(), from.file.data(), from.file.size()).ok());
  quant::Repack weight;
  weight.source = file.data();
  weight.target = records.data();
  weight.type = 12;
  weight.rows = 37;
  weight.cols = 512;
  const Block bound(*backend_, MemoryKind::kDevice, sizeof(float));
  weight.scale_bound = static_cast<float*>(static_cast<void*>(bound.data()));

  ASSERT_TRUE(quant::repack(*backend_, weight, Stream{}).ok());

  std::vector<uint8_t> placed(expected.size());
  ASSERT_TRUE(backend_->copy_to_host(placed.data(), records.data(), placed.size()).ok());
  EXPECT_TRUE(placed == expected);
  float found = 0.0f, largest = 0.0f;
  ASSERT_TRUE(backend_->copy_to_host(&found, bound.data(), sizeof found).ok());
  for (size_t at = 0; at < from.file.size(); at += 144) {
    uint16_t scales[2];  // d and dmin
    std::memcpy(scales, &from.file[at], sizeof scales);
    const float of_d = 4.0f * std::fabs(half_to_float(scales[0]));
    const float of_min = std::fabs(half_to_float(scales[1])) / 1024.0f;
    if (std::isfinite(of_d) && std::isfinite(of_min)) largest = std::max({largest, of_d, of_min});
  }
  EXPECT_GT(found, 0.0f);
  EXPECT_EQ(found, largest);
  weight.cols = 100;
  EXPECT_EQ(quant::repack(*backend_, weight, Stream{}).code(), WCUDA_INVALID_ARGUMENT);
  weight.is_vector = true;
  EXPECT_EQ(quant::repack(*backend_, weight, Stream{}).code(), WCUDA_INVALID_ARGUMENT);
}

TEST_P(BackendConformance, repacks_vectors_as_floats) {
  const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8000};
  const float expected[] = {1.0f, -2.0f, 0x1p-24f, 65504.0f, -0.0f};
  const Block file(*backend_, MemoryKind::kDevice, sizeof halves);
  const Block floats(*backend_, MemoryKind::kDevice, sizeof expected);
  ASSERT_TRUE(backend_->copy_to_device(file.data(), halves, sizeof halves).ok());
  quant::Repack weight;
  weight.source = file.data();
  weight.target = floats.data();
  weight.type = 1;
  weight.is_vector = true;
  weight.rows = 5;

  ASSERT_TRUE(quant::repack(*backend_, weight, Stream{}).ok());

  float placed[5];
  ASSERT_TRUE(backend_->copy_to_host(placed, floats.data(), sizeof placed).ok());
  EXPECT_EQ(std::memcmp(placed, expected, sizeof placed), 0);
}

TEST_P(BackendConformance, modules_and_kernels_that_are_none_are_refused) {
  const Code refused = backend_->is_host() ? WCUDA_UNSUPPORTED_KERNEL : WCUDA_INVALID_HANDLE;
  EXPECT_EQ(backend_->module_unload(Module{77}).code(), refused);
  EXPECT_EQ(backend_->module_global(Module{77}, "x").status().code(), refused);
  EXPECT_EQ(backend_->kernel_find(Module{77}, "x").status().code(), refused);
  EXPECT_EQ(backend_->kernel_attributes(Kernel{77}).status().code(), refused);
  EXPECT_EQ(backend_->kernel_occupancy(Kernel{77}, 32, 0).status().code(), refused);
  EXPECT_EQ(backend_->kernel_launch(Kernel{77}, LaunchDims(), nullptr, Stream{}).code(), refused);
}

TEST_P(BackendConformance, eight_threads_do_not_disturb_each_other) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        constexpr uint64_t kBytes = 50000;
        const auto stream = backend_->stream_create(0);
        const Block block(*backend_, MemoryKind::kDevice, kBytes);
        const Block out(*backend_, MemoryKind::kPinned, kBytes);
        const auto value = static_cast<uint8_t>(t * 20 + i);
        wrong += !backend_->fill(block.data(), kBytes, value, 1, *stream).ok();
        wrong += !backend_->copy_to_host_async(out.data(), block.data(), kBytes, *stream).ok();
        wrong += !backend_->synchronize(*stream).ok();
        wrong += std::count(out.data(), out.data() + kBytes, value) != int64_t{kBytes};
        wrong += !backend_->stream_destroy(*stream).ok();
      }
    });
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0);
}

std::string name_of(const ::testing::TestParamInfo<Subject>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Host, BackendConformance,
    ::testing::Values(Subject{"host", [] { return open_kind(WCUDA_BACKEND_HOST); }},
                      Subject{"trace", [] { return traced(WCUDA_BACKEND_HOST); }},
                      Subject{"fault", [] { return faulty(WCUDA_BACKEND_HOST); }}),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Gpu, BackendConformance,
    ::testing::Values(Subject{"cuda", [] { return open_kind(WCUDA_BACKEND_CUDA); }},
                      Subject{"trace", [] { return traced(WCUDA_BACKEND_CUDA); }},
                      Subject{"fault", [] { return faulty(WCUDA_BACKEND_CUDA); }}),
    name_of);

}  // namespace
}  // namespace wcuda
