// Limits of launches and the checks of arguments, without a device.
#include "compute/jit/launch.h"

#include <gtest/gtest.h>

#include <string>

namespace wcuda::jit {
namespace {

LaunchLimits host_limits() {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  caps.backend = WCUDA_BACKEND_HOST;
  return device_limits(caps);
}

void expect_refused(const LaunchDims& dims, const LaunchLimits& limits, const char* message) {
  const Status status = check_dims(dims, limits);
  EXPECT_EQ(status.code(), WCUDA_INVALID_CONFIG) << message;
  EXPECT_STREQ(status.message(), message);
}

TEST(LaunchDims, zero_and_excess_are_refused_with_value_and_limit) {
  const LaunchLimits limits = host_limits();
  LaunchDims dims;
  EXPECT_TRUE(check_dims(dims, limits).ok());

  dims.grid[1] = 0;
  expect_refused(dims, limits, "grid y: 0, at least 1");
  dims.grid[1] = 65536;
  expect_refused(dims, limits, "grid y: 65536, at most 65535");
  dims.grid[1] = 65535;
  dims.grid[0] = 2147483647;
  EXPECT_TRUE(check_dims(dims, limits).ok());
  dims.grid[0] = 2147483648u;
  expect_refused(dims, limits, "grid x: 2147483648, at most 2147483647");

  dims = {};
  dims.block[2] = 0;
  expect_refused(dims, limits, "block z: 0, at least 1");
  dims.block[2] = 65;
  expect_refused(dims, limits, "block z: 65, at most 64");
  dims.block[2] = 64;
  dims.block[0] = 17;
  expect_refused(dims, limits, "block: 1088 threads, at most 1024");
  dims.block[0] = UINT32_MAX;
  expect_refused(dims, limits, "block x: 4294967295, at most 1024");

  dims = {};
  dims.shared_bytes = 232449;
  expect_refused(dims, limits, "shared memory: 232449 bytes a block, at most 232448");
}

TEST(LaunchDims, clusters_divide_the_grid_and_have_at_most_eight_blocks) {
  LaunchLimits limits = host_limits();
  LaunchDims dims;
  dims.grid[0] = 12;
  dims.grid[1] = 4;
  dims.cluster[0] = 4;
  expect_refused(dims, limits, "cluster y: 0, at least 1");
  dims.cluster[0] = 0;
  dims.cluster[1] = 4;
  expect_refused(dims, limits, "cluster x: 0, at least 1");
  dims.cluster[0] = 4;
  dims.cluster[1] = dims.cluster[2] = 1;
  EXPECT_TRUE(check_dims(dims, limits).ok());
  dims.cluster[1] = 2;
  EXPECT_TRUE(check_dims(dims, limits).ok());
  dims.cluster[1] = 4;
  expect_refused(dims, limits, "cluster: 16 blocks, at most 8");
  dims.cluster[0] = 5;
  dims.cluster[1] = 1;
  expect_refused(dims, limits, "grid x: 12 is no multiple of the cluster's 5");
  limits.cluster_blocks = 1;
  expect_refused(dims, limits, "cluster: the device has none, they need compute capability 9.0");
}

TEST(LaunchLimits, a_kernel_may_allow_less_than_its_device) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  caps.backend = WCUDA_BACKEND_CUDA;
  caps.compute_capability_major = 8;
  caps.max_grid_dims[0] = 100;
  caps.max_block_dims[0] = caps.max_threads_per_block = 1024;
  caps.shared_memory_per_block_optin = 1000;
  KernelAttributes attributes;
  attributes.max_threads_per_block = 512;
  attributes.dynamic_shared_bytes_max = 900;

  const LaunchLimits limits = kernel_limits(caps, attributes);

  EXPECT_EQ(limits.grid[0], 100u);
  EXPECT_EQ(limits.block_threads, 512u);
  EXPECT_EQ(limits.shared_bytes, 900u);
  EXPECT_EQ(limits.cluster_blocks, 1u);
}

TEST(LaunchKinds, sizes_and_names) {
  const uint32_t bytes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 0, 0, 0};
  for (int32_t kind = 0; kind <= WCUDA_ARG_BYTES + 1; ++kind)
    EXPECT_EQ(scalar_bytes(kind), bytes[kind]) << kind;
  EXPECT_STREQ(kind_name(WCUDA_ARG_BF16), "bf16");
  EXPECT_STREQ(kind_name(WCUDA_ARG_BUFFER), "buffer");
  EXPECT_STREQ(kind_name(0), "");
  EXPECT_STREQ(kind_name(-1), "");
  EXPECT_STREQ(kind_name(99), "");
}

TEST(LaunchArguments, by_the_sizes_in_the_code) {
  const std::vector<KernelParameter> parameters = {{0, 8}, {8, 4}, {12, 24}};
  const ArgumentShape buffer{WCUDA_ARG_BUFFER, 0, 100}, number{WCUDA_ARG_I32, 0, 4},
      bytes{WCUDA_ARG_BYTES, 0, 24}, wide{WCUDA_ARG_F64, 0, 8};
  EXPECT_TRUE(check_parameters(parameters, {buffer, number, bytes}).ok());
  EXPECT_TRUE(check_parameters({}, {}).ok());

  Status status = check_parameters(parameters, {buffer, number});
  EXPECT_EQ(status.code(), WCUDA_ARGUMENT_COUNT);
  EXPECT_STREQ(status.message(), "arguments: 2 given, the kernel takes 3");
  status = check_parameters(parameters, {buffer, wide, bytes});
  EXPECT_EQ(status.code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(status.message(), "argument 1: f64 of 8 bytes, the kernel takes 4");
}

TEST(LaunchArguments, more_than_32_are_all_checked) {
  const std::vector<KernelParameter> parameters(100, KernelParameter{0, 4});
  std::vector<ArgumentShape> arguments(100, ArgumentShape{WCUDA_ARG_F32, 0, 4});
  EXPECT_TRUE(check_parameters(parameters, arguments).ok());
  arguments[99] = {WCUDA_ARG_F16, 0, 2};
  EXPECT_STREQ(check_parameters(parameters, arguments).message(),
               "argument 99: f16 of 2 bytes, the kernel takes 4");
}

}  // namespace
}  // namespace wcuda::jit
