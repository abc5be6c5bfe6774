// Section 2 of the header: versions and what the archive was built with.
#include "api/base/guard.h"
#include "core/base/build_config.h"

#define WCUDA_TEXT_(value) #value
#define WCUDA_TEXT(value) WCUDA_TEXT_(value)

// Instruction sets that host code is compiled for besides the baseline; selected at run time.
#if defined(__x86_64__)
#define WCUDA_HOST_FEATURES "avx2;avx512"
#else
#define WCUDA_HOST_FEATURES ""
#endif

uint32_t wcuda_version_number(void) {
  return WCUDA_VERSION_MAJOR * 10000 + WCUDA_VERSION_MINOR * 100 + WCUDA_VERSION_PATCH;
}

const char* wcuda_version_string(void) {
  return WCUDA_TEXT(WCUDA_VERSION_MAJOR) "." WCUDA_TEXT(WCUDA_VERSION_MINOR) "." WCUDA_TEXT(
      WCUDA_VERSION_PATCH);
}

uint32_t wcuda_abi_version(void) { return WCUDA_ABI_VERSION; }

wcuda_status wcuda_build_info_get(wcuda_build_info* info, wcuda_error* error) {
  return wcuda::api::guarded(error, [&]() -> wcuda::Status {
    wcuda_build_info value = WCUDA_BUILD_INFO_INIT;
    value.cuda_version = WCUDA_BUILD_CUDA_VERSION;
    value.has_cuda = WCUDA_HAS_CUDA;
    value.cuda_architectures = WCUDA_BUILD_CUDA_ARCHITECTURES;
    value.compiler = WCUDA_BUILD_COMPILER;
    value.build_type = WCUDA_BUILD_TYPE;
    value.host_features = WCUDA_HOST_FEATURES;
    return wcuda::api::write_struct(value, info, "info");
  });
}
