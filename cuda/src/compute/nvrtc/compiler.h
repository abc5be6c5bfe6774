// NVRTC: CUDA C++ to PTX or to code of one device, at run time. Needs no device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace wcuda::nvrtc {

enum class Choice { kDefault, kOn, kOff };

struct Header {
  std::string name;  // as in #include
  std::string text;
};

// What to compile and how. Texts hold no NUL.
struct Request {
  std::string source;
  std::string name = "kernel.cu";  // in diagnostics
  std::string architecture;        // "sm_90a": code of that device; "compute_90": PTX
  std::string standard;            // "c++11", "c++14", "c++17", "c++20"; "": the compiler's default
  std::vector<std::string> defines;  // "NAME" or "NAME=value"
  std::vector<Header> headers;
  std::vector<std::string> include_folders;
  std::vector<std::string> expressions;  // names of template instances: "scale<float>"
  std::vector<std::string> extras;       // options passed as they are
  bool fast_math = false;
  bool line_info = false;
  bool debug = false;
  bool relocatable = false;
  bool default_device = false;  // functions without a marker are device functions
  Choice flush_denormals = Choice::kDefault;
  Choice precise_sqrt = Choice::kDefault;
  Choice precise_division = Choice::kDefault;
  Choice fuse_multiply_add = Choice::kDefault;
  uint32_t max_registers = 0;  // a thread; 0: no bound
};

// Checks a request. WCUDA_INVALID_ARGUMENT names what no compiler accepts: an invalid architecture
// or standard, NULs, empty names.
Status check(const Request& request);

// Returns the NVRTC options of a request that `check` accepted, in a fixed order.
std::vector<std::string> options_of(const Request& request);

// True for "sm_…": the result is code for that device, otherwise PTX.
bool wants_device_code(const Request& request);

struct Outcome {
  Status status;                             // WCUDA_COMPILE_FAILED with the first diagnostic
  std::string log;                           // all the compiler said, warnings of a success too
  std::vector<uint8_t> code;                 // PTX without a final NUL, or a cubin
  std::map<std::string, std::string> names;  // of each expression, as in the code
};

// Returns the line of a log that states the cause: the first that contains "error", else the first
// that is not empty, else "".
std::string first_diagnostic(const std::string& log);

// Identifies a version of the file by its size and time of change; "" if there is no file.
std::string file_identity(const std::string& path);

// The library. Thread-safe.
class Compiler {
 public:
  // Opens libnvrtc.so.13, from a folder or (folder "") where the system's loader finds it, with the
  // library of its built-in functions from the same folder: it looks for that one by name only, and
  // without it every compile fails. WCUDA_NOT_AVAILABLE with the loader's reason.
  static Result<std::shared_ptr<Compiler>> open(const std::string& folder);

  int version() const { return version_; }  // major * 1000 + minor * 10
  // Version, size and modification time of the library's files, so that every build has its own.
  const std::string& identity() const { return identity_; }
  // Ascending: 75, 80, …
  const std::vector<int>& architectures() const { return architectures_; }

  // Checks the request against the library's architectures too.
  Outcome compile(const Request& request) const;

 private:
  struct Library;
  explicit Compiler(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  std::shared_ptr<const Library> library_;
  int version_ = 0;
  std::string identity_;
  std::vector<int> architectures_;
};

}  // namespace wcuda::nvrtc
