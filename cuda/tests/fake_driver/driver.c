/* Stands in for libcuda.so.1: a driver that is too old, or one of which little is installed. */
int cuDriverGetVersion(int* version);
int cuInit(unsigned flags);

int cuDriverGetVersion(int* version) {
  *version = FAKE_DRIVER_VERSION;
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return 100; /* CUDA_ERROR_NO_DEVICE */
}
