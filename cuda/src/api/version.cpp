// Section 2 of the header: versions and what the archive was built with.
#include "api/guard.h"

#define WCUDA_TEXT_(value) #value
#define WCUDA_TEXT(value) WCUDA_TEXT_(value)

// Set by CMake for this file.
#ifndef WCUDA_BUILD_TYPE
#define WCUDA_BUILD_TYPE ""
#endif
#ifndef WCUDA_BUILD_CUDA_VERSION
#define WCUDA_BUILD_CUDA_VERSION 0
#endif
#ifndef WCUDA_BUILD_CUDA_ARCHITECTURES
#define WCUDA_BUILD_CUDA_ARCHITECTURES ""
#endif
#ifndef WCUDA_BUILD_HOST_FEATURES
#define WCUDA_BUILD_HOST_FEATURES ""
#endif

namespace {

#if defined(__clang__)
constexpr char kCompiler[] = "Clang " WCUDA_TEXT(__clang_major__) "." WCUDA_TEXT(
    __clang_minor__) "." WCUDA_TEXT(__clang_patchlevel__);
#elif defined(__GNUC__)
constexpr char kCompiler[] =
    "GNU " WCUDA_TEXT(__GNUC__) "." WCUDA_TEXT(__GNUC_MINOR__) "." WCUDA_TEXT(__GNUC_PATCHLEVEL__);
#else
constexpr char kCompiler[] = "unknown";
#endif

}  // namespace

extern "C" uint32_t wcuda_version_number(void) {
  return WCUDA_VERSION_MAJOR * 10000 + WCUDA_VERSION_MINOR * 100 + WCUDA_VERSION_PATCH;
}

extern "C" const char* wcuda_version_string(void) {
  return WCUDA_TEXT(WCUDA_VERSION_MAJOR) "." WCUDA_TEXT(WCUDA_VERSION_MINOR) "." WCUDA_TEXT(
      WCUDA_VERSION_PATCH);
}

extern "C" uint32_t wcuda_abi_version(void) { return WCUDA_ABI_VERSION; }

extern "C" wcuda_status wcuda_build_info_get(wcuda_build_info* info, wcuda_error* error) {
  return wcuda::api::guarded(error, [&]() -> wcuda::Status {
    WCUDA_TRY(wcuda::api::check_struct(info, "info"));
    wcuda_build_info value = WCUDA_BUILD_INFO_INIT;
    value.cuda_version = WCUDA_BUILD_CUDA_VERSION;
    value.has_cuda = WCUDA_BUILD_CUDA_VERSION != 0;
    value.cuda_architectures = WCUDA_BUILD_CUDA_ARCHITECTURES;
    value.compiler = kCompiler;
    value.build_type = WCUDA_BUILD_TYPE;
    value.host_features = WCUDA_BUILD_HOST_FEATURES;
    wcuda::api::write_struct(value, info);
    return {};
  });
}
