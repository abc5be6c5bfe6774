// Shared libraries opened at run time by versioned name, so that a binary needs none of them to
// start.
#pragma once

#include <string>

#include "core/base/status.h"

namespace wcuda {

// NVIDIA's libraries, by the names that drivers and toolkits of CUDA 13 install.
inline constexpr const char kNvmlLibrary[] = "libnvidia-ml.so.1";  // comes with the driver
inline constexpr const char kCublasLtLibrary[] = "libcublasLt.so.13";
inline constexpr const char kNvrtcLibrary[] = "libnvrtc.so.13";
inline constexpr const char kNcclLibrary[] = "libnccl.so.2";

// A library that stays loaded for the life of the process: its threads and exit handlers do not
// survive an unload.
class DynamicLibrary {
 public:
  // WCUDA_NOT_AVAILABLE with the loader's reason.
  static Result<DynamicLibrary> open(const char* name);

  // The file it was loaded from; "" if the loader does not report it.
  std::string path() const;

  // WCUDA_NOT_AVAILABLE when the library lacks it.
  template <class Function>
  Status find(const char* name, Function** function) const {
    void* symbol = nullptr;
    WCUDA_TRY(find_symbol(name, &symbol));
    *function = reinterpret_cast<Function*>(symbol);
    return {};
  }

 private:
  DynamicLibrary(void* handle, const char* name) : handle_(handle), name_(name) {}
  Status find_symbol(const char* name, void** symbol) const;

  void* handle_;
  std::string name_;
};

}  // namespace wcuda
