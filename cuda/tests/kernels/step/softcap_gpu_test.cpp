// The softcap kernel against the formula in double precision.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/step/softcap.h"
#include "tests/kernels/attention/gpu_attention_fixture.h"

namespace wcuda::ops {
namespace {

TEST(GpuSoftcap, bounds_each_value_and_no_other) {
  const kernels::Launch launch = testing::device_launch();
  host::Random random(12);
  // Around one block, and more than the grid has threads.
  for (const uint32_t count : {1u, 255u, 256u, 257u, 1000003u}) {
    auto before = random.normals(count + 1, 40.0f);
    before[0] = 1e6f;
    const DeviceBytes values(before);

    ASSERT_EQ(kernels::softcap(values.as<float>(), count, 30.0f, launch), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    const auto after = values.read<float>();
    for (uint32_t i = 0; i < count; ++i)
      ASSERT_NEAR(after[i], 30.0 * std::tanh(before[i] / 30.0), 2e-5) << count << " values, " << i;
    EXPECT_EQ(after[count], before[count]);
  }
}

TEST(GpuSoftcap, refuses_what_is_no_softcap) {
  const kernels::Launch launch = testing::device_launch();
  const DeviceBytes values(std::vector<float>(4, 1.0f));

  for (const float softcap : {0.0f, -1.0f, NAN})
    EXPECT_EQ(kernels::softcap(values.as<float>(), 4, softcap, launch), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::softcap(nullptr, 4, 30.0f, launch), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::softcap(values.as<float>(), 0, 30.0f, launch), cudaSuccess);
}

}  // namespace
}  // namespace wcuda::ops
