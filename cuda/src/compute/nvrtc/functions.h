// The functions of NVRTC 13 that are used, declared from its public manual. The library is opened
// at run time, and its header is not needed to build.
#pragma once

#include <cstddef>

namespace wcuda::nvrtc {

constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 1;
constexpr int kInvalidOption = 5;
constexpr int kCompilation = 6;

struct Functions {
  const char* (*error_string)(int result);
  int (*version)(int* major, int* minor);
  int (*architecture_count)(int* count);
  int (*architectures)(int* values);
  int (*create)(void** program, const char* source, const char* name, int header_count,
                const char* const* headers, const char* const* header_names);
  int (*destroy)(void** program);
  int (*compile)(void* program, int option_count, const char* const* options);
  int (*ptx_bytes)(void* program, size_t* bytes);
  int (*ptx)(void* program, char* text);
  int (*cubin_bytes)(void* program, size_t* bytes);
  int (*cubin)(void* program, char* code);
  int (*log_bytes)(void* program, size_t* bytes);
  int (*log)(void* program, char* text);
  int (*add_expression)(void* program, const char* expression);
  int (*lowered_name)(void* program, const char* expression, const char** name);
};

}  // namespace wcuda::nvrtc
