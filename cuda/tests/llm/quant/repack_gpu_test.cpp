// The kernels that lay weights out, against the host's version, bit for bit.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/memory/repack.h"
#include "llm/quant/layout_gpu.h"
#include "llm/quant/tile_cases.h"

namespace wcuda::quant {
namespace {

using testing::tile_case;
using testing::TileCase;

// Device memory with a pattern in it and some more behind, which must stay as it is.
class GuardedArray {
 public:
  static constexpr size_t kGuardBytes = 256;
  static constexpr uint8_t kPattern = 0xA5;
  explicit GuardedArray(size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes + kGuardBytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, kPattern, bytes + kGuardBytes), cudaSuccess);
  }
  ~GuardedArray() { cudaFree(data_); }
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  void set(size_t offset, const std::vector<uint8_t>& bytes) {
    EXPECT_EQ(cudaMemcpy(data() + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<uint8_t> get() const {
    std::vector<uint8_t> bytes(bytes_ + kGuardBytes);
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = bytes_; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], kPattern) << i - bytes_;
    bytes.resize(bytes_);
    return bytes;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// `shift`: the file's bytes start so many bytes past an aligned address.
void expect_same_as_host(const TileCase& from, uint32_t shift) {
  SCOPED_TRACE(from.name() + " + " + std::to_string(shift));
  std::vector<uint8_t> expected(*gpu_layout_bytes(from.type, from.rows, from.cols));
  ASSERT_TRUE(
      pack_gpu(from.type, from.rows, from.cols, 0, from.rows, from.file.data(), expected.data())
          .ok());
  GuardedArray file(from.file.size() + shift), packed_tiles(expected.size());
  file.set(shift, from.file);

  ASSERT_EQ(kernels::repack(from.type, from.rows, from.cols, 0, from.rows, file.data() + shift,
                            packed_tiles.data(), nullptr),
            cudaSuccess);

  EXPECT_TRUE(packed_tiles.get() == expected);
}

TEST(GpuRepack, gives_the_bytes_of_the_host_for_every_type_and_odd_sizes) {
  for (const TileCase& from : testing::read_tile_cases()) expect_same_as_host(from, 0);
  for (const Format* format : testing::loadable_formats()) {
    const uint32_t unit = format->block_elements == 1 ? 64 : format->block_elements;
    expect_same_as_host(tile_case(format->id, 333, unit * 16), 0);  // whole runs of packed tiles
    expect_same_as_host(tile_case(format->id, 17, unit * 41), 0);
  }
}

TEST(GpuRepack, takes_file_rows_at_any_address) {
  for (const uint32_t shift : {1u, 2u, 4u, 8u, 16u})
    for (const uint32_t type : {0u, 3u, 14u, 39u})
      expect_same_as_host(tile_case(type, 35, 4096), shift);
}

TEST(GpuRepack, m_tiles_in_parts_equal_all_at_once) {
  const TileCase from = tile_case(12, 53, 1024);
  const uint64_t row_bytes = from.file.size() / 53;
  std::vector<uint8_t> expected(*gpu_layout_bytes(12, 53, 1024));
  ASSERT_TRUE(pack_gpu(12, 53, 1024, 0, 53, from.file.data(), expected.data()).ok());
  GuardedArray file(from.file.size()), packed_tiles(expected.size());
  file.set(0, from.file);

  for (const auto& [first, count] : {std::pair{32u, 21u}, {0u, 16u}, {16u, 16u}})
    ASSERT_EQ(kernels::repack(12, 53, 1024, first, count, file.data() + first * row_bytes,
                              packed_tiles.data(), nullptr),
              cudaSuccess);

  EXPECT_TRUE(packed_tiles.get() == expected);
}

TEST(GpuRepack, refuses_half_m_tiles_and_unknown_types) {
  GuardedArray memory(4096);
  uint8_t* m = memory.data();
  EXPECT_EQ(kernels::repack(3, 64, 64, 8, 16, m, m, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::repack(3, 64, 64, 0, 8, m, m, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::repack(3, 64, 64, 64, 16, m, m, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::repack(3, 64, 33, 0, 16, m, m, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::repack(9, 64, 64, 0, 16, m, m, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::repack(4, 64, 64, 0, 16, m, m, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::repack(3, 64, 64, 64, 0, m, m, nullptr), cudaSuccess);
}

TEST(GpuRepack, expands_vectors_to_the_floats_of_the_host) {
  for (const uint32_t type : {0u, 1u, 30u}) {
    constexpr uint32_t kCount = 65537;
    const TileCase from = tile_case(type, 1, kCount);
    std::vector<float> expected(kCount);
    ASSERT_TRUE(unpack_row(*find_format(type), from.file.data(), kCount, expected.data()).ok());
    GuardedArray file(from.file.size()), out(kCount * sizeof(float));
    file.set(0, from.file);

    ASSERT_EQ(kernels::expand_vector(type, kCount, file.data(),
                                     reinterpret_cast<float*>(out.data()), nullptr),
              cudaSuccess);

    const std::vector<uint8_t> bytes = out.get();
    for (uint32_t i = 0; i < kCount; ++i) {
      float value;
      std::memcpy(&value, &bytes[i * 4], 4);
      if (std::isnan(expected[i]))
        ASSERT_TRUE(std::isnan(value)) << i;
      else
        ASSERT_EQ(value, expected[i]) << i;
    }
  }
  EXPECT_EQ(kernels::expand_vector(2, 32, nullptr, nullptr, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace wcuda::quant
