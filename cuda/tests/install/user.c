/* A C program on the installed library: header and archive agree, and a failure is explained. */
#include <stdio.h>
#include <worker_cuda.h>

int main(void) {
  wcuda_error error = {0};
  wcuda_abi_field field = WCUDA_ABI_FIELD_INIT;
  uint64_t count = 0;

  if (wcuda_abi_version() != WCUDA_ABI_VERSION) return 1;
  if (wcuda_abi_field_list(UINT32_MAX, &field, 1, &count, &error) != WCUDA_OUT_OF_RANGE) return 2;
  if (error.code != WCUDA_OUT_OF_RANGE || error.message_bytes == 0) return 3;
  printf("worker_cuda %s from C: %s\n", wcuda_version_string(), error.message);
  return 0;
}
