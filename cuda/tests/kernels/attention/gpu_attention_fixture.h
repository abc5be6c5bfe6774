// A step and its pool in device memory, for the tests of attention on CUDA.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "llm/ops/cuda/attention.h"
#include "support/device_launch.h"
#include "tests/llm/ops/host_fixture.h"

namespace wcuda::ops {

// Device memory that frees itself.
class DeviceBytes {
 public:
  explicit DeviceBytes(uint64_t bytes) : bytes_(bytes) {
    if (cudaMalloc(&data_, std::max<uint64_t>(bytes, 256)) != cudaSuccess) data_ = nullptr;
  }
  template <class T>
  explicit DeviceBytes(const std::vector<T>& values) : DeviceBytes(values.size() * sizeof(T)) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <class T>
  std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  uint64_t bytes_;
};

// A step of the host fixture with its arrays on the device.
struct DeviceStep {
  DeviceBytes positions, token_rows, rows, page_tables;
  Batch batch;

  explicit DeviceStep(const host::Step& step)
      : positions(step.positions),
        token_rows(step.token_rows),
        rows(step.rows),
        page_tables(step.page_tables),
        batch(step.batch) {
    batch.tokens = nullptr;
    batch.positions = positions.as<uint32_t>();
    batch.token_rows = token_rows.as<uint32_t>();
    batch.rows = rows.as<StepRow>();
    batch.page_tables = page_tables.as<uint32_t>();
    batch.max_row_tokens = batch.max_positions = 0;
    for (const StepRow& row : step.rows) {
      batch.max_row_tokens = std::max(batch.max_row_tokens, row.token_count);
      batch.max_positions = std::max(batch.max_positions, row.first_position + row.token_count);
    }
  }
};

struct ScoreOptions {
  float softcap = 0.0f;
  Vector sinks = nullptr;
};

// CudaAttention with its scratch memory.
struct DeviceAttention {
  kernels::Launch launch = testing::device_launch();
  DeviceBytes scratch;
  CudaAttention attention;

  explicit DeviceAttention(const Limits& limits)
      : scratch(CudaAttention::scratch_bytes(limits, launch)) {
    // All NaN, but for what the call clears.
    const uint64_t bytes = CudaAttention::scratch_bytes(limits, launch);
    EXPECT_EQ(cudaMemset(scratch.as<void>(), 0xff, bytes), cudaSuccess);
    EXPECT_EQ(attention.prepare(limits, scratch.as<void>(), launch), cudaSuccess);
  }

  // Results of one call of attention; NaN where nothing was written.
  std::vector<float> run(const DeviceStep& step, const KvPool& pool, const DeviceBytes& query,
                         uint32_t heads, float scale, uint32_t window,
                         const ScoreOptions& options = {}, const RopeKvArgs* rope_kv = nullptr,
                         const kernels::HalfOperand& operand = {}) {
    const uint64_t floats = uint64_t{step.batch.token_count} * heads * pool.head_length;
    DeviceBytes out(std::vector<float>(floats, NAN));
    EXPECT_EQ(attention.plan(step.batch, pool, window, launch), cudaSuccess);
    AttentionArgs args{&step.batch, query.as<float>(), heads, scale, window, pool,
                       0,           out.as<float>()};
    args.rope_kv = rope_kv;
    args.softcap = options.softcap;
    args.sinks = options.sinks;
    if (step.batch.max_row_tokens != 1) {
      EXPECT_EQ(attention.prefill(args, launch, operand), cudaSuccess);
    }
    if (step.batch.has_shared_prefix) {
      EXPECT_EQ(attention.decode(args, launch), cudaSuccess);
      EXPECT_EQ(attention.shared(args, launch), cudaSuccess);
      EXPECT_EQ(attention.join(args, launch, operand), cudaSuccess);
    } else {
      EXPECT_EQ(attention.decode(args, launch, operand), cudaSuccess);
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return out.read<float>();
  }
};

}  // namespace wcuda::ops
