// The hidden_state kernels against the formula in double precision.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/step/hidden_state.h"
#include "tests/kernels/attention/gpu_attention_fixture.h"

namespace wcuda::ops {
namespace {

TEST(GpuHiddenState, gives_each_row_its_first_its_last_or_their_sum_and_no_other_row) {
  const kernels::Launch launch = testing::device_launch();
  host::Random random(5);
  const double epsilon = 1e-5;
  // Rows of tokens and flags; the last one fills up a bucket.
  const std::vector<std::pair<uint32_t, uint32_t>> kRows = {{1, kernels::kRowHiddenLast},
                                                            {9, kernels::kRowHiddenFirst},
                                                            {9, kernels::kRowHiddenLast},
                                                            {5, 0},
                                                            {1, kernels::kRowHiddenSum},
                                                            {100, kernels::kRowHiddenSum},
                                                            {0, 0}};
  for (const uint32_t cols : {1u, 31u, 255u, 256u, 257u, 1000u}) {
    std::vector<StepRow> rows;
    uint32_t token_count = 0;
    for (const auto& [count, flags] : kRows) {
      rows.push_back({token_count, count, 0, 0, flags});
      token_count += count;
    }
    const auto row_count = static_cast<uint32_t>(rows.size());
    const auto x = random.normals(size_t{token_count} * cols, 3.0f);
    const auto norm = random.normals(cols, 1.0f);
    const DeviceBytes device_rows(rows), device_x(x), device_norm(norm),
        work(uint64_t{token_count} * sizeof(float)),
        out(std::vector<float>(size_t{row_count} * cols, NAN));

    const kernels::HiddenStateArgs args{device_rows.as<StepRow>(),
                                        row_count,
                                        token_count,
                                        cols,
                                        device_x.as<float>(),
                                        device_norm.as<float>(),
                                        static_cast<float>(epsilon),
                                        work.as<float>(),
                                        out.as<float>()};
    ASSERT_EQ(kernels::hidden_state(args, launch), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    const auto states = out.read<float>();
    for (uint32_t r = 0; r < row_count; ++r) {
      const StepRow& row = rows[r];
      std::vector<double> expected(cols, 0.0);
      for (uint32_t t = 0; t < row.token_count; ++t) {
        if (row.flags == kernels::kRowHiddenFirst && t != 0) continue;
        if (row.flags == kernels::kRowHiddenLast && t + 1 != row.token_count) continue;
        const float* const token = x.data() + size_t{row.first_token + t} * cols;
        double squares = 0.0;
        for (uint32_t c = 0; c < cols; ++c) squares += double{token[c]} * token[c];
        for (uint32_t c = 0; c < cols; ++c)
          expected[c] += token[c] * norm[c] / std::sqrt(squares / cols + epsilon);
      }
      for (uint32_t c = 0; c < cols; ++c) {
        const float value = states[size_t{r} * cols + c];
        if (row.flags == 0)
          ASSERT_TRUE(std::isnan(value)) << "row " << r << ", column " << c << " of " << cols;
        else
          ASSERT_NEAR(value, expected[c], 1e-5 * (1.0 + row.token_count))
              << "row " << r << ", column " << c << " of " << cols;
      }
    }
  }
}

}  // namespace
}  // namespace wcuda::ops
