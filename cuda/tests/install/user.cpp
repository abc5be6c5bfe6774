// A C++ program on the installed library.
#include <worker_cuda.h>

#include <cstdio>

int main() {
  wcuda_build_info info = WCUDA_BUILD_INFO_INIT;
  wcuda_error error = {};
  if (wcuda_build_info_get(&info, &error) != WCUDA_OK) return 1;
  std::printf("worker_cuda %s from C++: %s, %s, cuda %d\n", wcuda_version_string(), info.compiler,
              info.build_type, info.has_cuda);
  return 0;
}
