// A kernel that traps loses the device for the whole process, so this is a program of its own.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "worker_cuda.h"

namespace {

int failures = 0;

#define CHECK(condition)                                         \
  do {                                                           \
    if (!(condition)) {                                          \
      std::printf("FAILED line %d: %s\n", __LINE__, #condition); \
      ++failures;                                                \
    }                                                            \
  } while (0)

__global__ void trap_kernel() { __trap(); }

wcuda_context create(int32_t backend, wcuda_status* status, wcuda_error* error) {
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = backend;
  wcuda_context context{0};
  *status = wcuda_context_create(&options, &context, error);
  return context;
}

wcuda_buffer create_buffer(wcuda_context context, wcuda_status* status) {
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 4096;
  wcuda_buffer buffer{0};
  *status = wcuda_buffer_create(context, &options, &buffer, nullptr);
  return buffer;
}

void expect_lost(wcuda_context context, wcuda_buffer buffer) {
  wcuda_error error{};
  uint8_t data[32];
  wcuda_status status;
  CHECK(wcuda_context_synchronize(context, &error) == WCUDA_DEVICE_LOST);
  CHECK(error.native_code != 0);
  std::printf("message: %s\n", error.message);
  CHECK(wcuda_buffer_read(buffer, 0, data, 32, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_buffer_write(buffer, 0, data, 32, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_buffer_fill(buffer, 0, 32, 0, 1, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_buffer_digest(buffer, 0, 32, data, nullptr) == WCUDA_DEVICE_LOST);
  create_buffer(context, &status);
  CHECK(status == WCUDA_DEVICE_LOST);

  wcuda_health health = WCUDA_HEALTH_INIT;
  CHECK(wcuda_health_get(context, &health, nullptr) == WCUDA_OK);
  CHECK(health.state == WCUDA_HEALTH_LOST);
  CHECK(health.sticky_code == error.native_code);
  CHECK(std::strlen(health.message) > 0);
}

void expect_works(wcuda_context context) {
  wcuda_status status;
  const wcuda_buffer buffer = create_buffer(context, &status);
  CHECK(status == WCUDA_OK);
  CHECK(wcuda_buffer_fill(buffer, 0, 4096, 7, 1, nullptr) == WCUDA_OK);
  wcuda_buffer_destroy(buffer);
}

}  // namespace

// 0: passed, 1: failed, 77: no device.
int main() {
  wcuda_status status;
  wcuda_error error{};
  const wcuda_context first = create(WCUDA_BACKEND_CUDA, &status, &error);
  if (status != WCUDA_OK) {
    std::printf("skipped: %s\n", error.message);
    return 77;
  }
  const wcuda_context second = create(WCUDA_BACKEND_CUDA, &status, &error);
  const wcuda_context host = create(WCUDA_BACKEND_HOST, &status, &error);
  const wcuda_buffer buffer = create_buffer(first, &status);
  const wcuda_buffer other = create_buffer(second, &status);
  CHECK(status == WCUDA_OK);

  trap_kernel<<<1, 1>>>();
  CHECK(cudaDeviceSynchronize() != cudaSuccess);

  expect_lost(first, buffer);
  expect_lost(second, other);
  expect_works(host);
  create(WCUDA_BACKEND_CUDA, &status, &error);
  CHECK(status == WCUDA_DEVICE_LOST);
  const wcuda_context fallback = create(WCUDA_BACKEND_AUTO, &status, &error);
  CHECK(status == WCUDA_OK);
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
  CHECK(wcuda_context_info_get(fallback, &info, nullptr) == WCUDA_OK);
  CHECK(info.backend == WCUDA_BACKEND_HOST);
  std::printf("fallback: %s\n", info.fallback_reason);

  wcuda_context_destroy(first);
  wcuda_buffer_destroy(buffer);
  wcuda_buffer_destroy(other);
  wcuda_context_destroy(second);
  wcuda_context_destroy(fallback);
  expect_works(host);
  wcuda_context_destroy(host);
  std::printf("%d checks failed\n", failures);
  return failures ? 1 : 0;
}
