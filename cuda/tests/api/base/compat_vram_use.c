/* The vram_* functions of worker_cuda_compat.h as a C program uses them. COMPAT_VRAM_USE returns
 * how many checks failed. `has_device`: whether the backend has a device. */
#include <stdio.h>
#include <worker_cuda_compat.h>

#ifndef COMPAT_VRAM_USE
#define COMPAT_VRAM_USE compat_vram_use_cuda
#endif
int COMPAT_VRAM_USE(int has_device);

static int failures;
#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

#define BYTES 5000

static void check_refusals(void) {
  char byte = 0;
  void* ptr = &byte;
  size_t bytes = 1;
  CHECK(vram_malloc(NULL, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_malloc(&ptr, 0) == VRAM_ERROR_INVALID_VALUE && ptr == NULL);
  CHECK(vram_free(NULL) == VRAM_SUCCESS);
  CHECK(vram_free(&byte) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_h2d(NULL, &byte, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_h2d(&byte, NULL, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_d2h(NULL, &byte, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_d2h(&byte, NULL, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_h2d(&byte, &byte, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_h2d(&byte, &byte, 0) == VRAM_SUCCESS);
  CHECK(vram_memcpy_d2h(&byte, &byte, 0) == VRAM_SUCCESS);
  CHECK(vram_get_info(NULL, &bytes) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_get_info(&bytes, NULL) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_get_device_count(NULL) == VRAM_ERROR_INVALID_VALUE);
}

static void check_memory(void) {
  unsigned char source[BYTES], back[BYTES];
  char *one = NULL, *two = NULL;
  void* ptr = source;
  size_t free_before = 0, free_now = 0, total = 0, i;
  int count = -1;
  for (i = 0; i < BYTES; ++i) source[i] = (unsigned char)(i * 7);
  CHECK(vram_get_device_count(&count) == VRAM_SUCCESS && count > 0);
  CHECK(vram_set_device(0) == VRAM_SUCCESS);
  CHECK(vram_set_device(-1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_set_device(count) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_get_info(&free_before, &total) == VRAM_SUCCESS);
  CHECK(free_before <= total && total > 0);
  CHECK(vram_malloc(&ptr, BYTES) == VRAM_SUCCESS);
  one = (char*)ptr;
  CHECK(vram_malloc(&ptr, BYTES) == VRAM_SUCCESS);
  two = (char*)ptr;
  if (one == NULL || two == NULL) return;
  CHECK((uintptr_t)one % 256 == 0 && (uintptr_t)two % 256 == 0);

  CHECK(vram_memcpy_h2d(one, source, BYTES) == VRAM_SUCCESS);
  CHECK(vram_memcpy_d2h(back, one, BYTES) == VRAM_SUCCESS);
  CHECK(memcmp(back, source, BYTES) == 0);
  CHECK(vram_memcpy_h2d(one + 100, source, 50) == VRAM_SUCCESS); /* inside the block */
  CHECK(vram_memcpy_d2h(back, one + 99, 52) == VRAM_SUCCESS);
  CHECK(back[0] == source[99] && memcmp(back + 1, source, 50) == 0 && back[51] == source[150]);

  CHECK(vram_memcpy_h2d(one, source, BYTES + 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_h2d(one + BYTES - 1, source, 2) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_d2h(back, one + BYTES, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_d2h(back, one, (size_t)-1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_free(one + 1) == VRAM_ERROR_INVALID_VALUE); /* not where it begins */

  CHECK(vram_free(one) == VRAM_SUCCESS);
  CHECK(vram_free(one) == VRAM_ERROR_INVALID_VALUE); /* a second time */
  CHECK(vram_memcpy_d2h(back, one, 1) == VRAM_ERROR_INVALID_VALUE);
  CHECK(vram_memcpy_d2h(back, two, BYTES) == VRAM_SUCCESS);
  CHECK(vram_free(two) == VRAM_SUCCESS);

  ptr = source;
  CHECK(vram_malloc(&ptr, total + (size_t)1) == VRAM_ERROR_ALLOCATION_FAILED && ptr == NULL);
  CHECK(vram_malloc(&ptr, (size_t)-1) == VRAM_ERROR_ALLOCATION_FAILED && ptr == NULL);
  CHECK(vram_get_info(&free_now, &total) == VRAM_SUCCESS && free_now <= total);
  vram_reset_mock_state();
}

static void check_absence(void) {
  size_t free_bytes = 1, total = 1;
  void* ptr = &free_bytes;
  int count = 7;
  CHECK(vram_malloc(&ptr, 1) == VRAM_ERROR_DRIVER && ptr == NULL);
  CHECK(vram_get_info(&free_bytes, &total) == VRAM_ERROR_DRIVER && free_bytes == 0 && total == 0);
  CHECK(vram_set_device(0) == VRAM_ERROR_DRIVER);
  CHECK(vram_get_device_count(&count) == VRAM_ERROR_DRIVER && count == 0);
  vram_reset_mock_state();
}

int COMPAT_VRAM_USE(int has_device) {
  failures = 0;
  check_refusals();
  if (has_device)
    check_memory();
  else
    check_absence();
  return failures;
}
