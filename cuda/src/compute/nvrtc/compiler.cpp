// Opening NVRTC and driving one compile.
#include "compute/nvrtc/compiler.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <string_view>

#include "compute/nvrtc/functions.h"
#include "core/base/dynlib.h"
#include "core/base/text.h"

namespace wcuda::nvrtc {
namespace {

constexpr size_t kMessageLineBytes = 400;  // of a diagnostic, in a status message

struct Architecture {
  bool is_device = false;  // "sm_", else "compute_"
  int number = 0;          // 90 of "sm_90a"
};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// "sm_" or "compute_", two or three digits, and "a" or "f" or nothing.
Result<Architecture> parse_architecture(const std::string& text) {
  Architecture result;
  result.is_device = starts_with(text, "sm_");
  std::string_view rest = text;
  if (result.is_device || starts_with(text, "compute_"))
    rest.remove_prefix(result.is_device ? 3 : 8);
  else
    rest = "";
  size_t digits = 0;
  while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9')
    result.number = result.number * 10 + (rest[digits++] - '0');
  const std::string_view suffix = rest.substr(digits);
  if (digits < 2 || digits > 3 || !(suffix.empty() || suffix == "a" || suffix == "f"))
    return invalid_argument("architecture '%s': is not of the form sm_NN or compute_NN (sm_90a)",
                            printable(text).c_str());
  return result;
}

Status check_text(const std::string& text, const char* what, bool may_be_empty) {
  if (text.find('\0') != std::string::npos)
    return invalid_argument("%s: has a NUL at byte %zu", what, text.find('\0'));
  if (text.empty() && !may_be_empty) return invalid_argument("%s: is empty", what);
  return {};
}

Status check_texts(const std::vector<std::string>& texts, const char* what) {
  for (const std::string& text : texts) WCUDA_TRY(check_text(text, what, false));
  return {};
}

void add_choice(std::vector<std::string>& options, const char* name, Choice choice) {
  if (choice == Choice::kDefault) return;
  options.push_back(std::string(name) + (choice == Choice::kOn ? "=true" : "=false"));
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> result;
  result.reserve(texts.size());
  for (const std::string& text : texts) result.push_back(text.c_str());
  return result;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

// A program of the library, destroyed with it.
class Program {
 public:
  explicit Program(const Functions& functions) : functions_(functions) {}
  ~Program() {
    if (handle_) (void)functions_.destroy(&handle_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Status create(const Request& request) {
    std::vector<std::string> texts, names;
    for (const Header& header : request.headers) {
      texts.push_back(header.text);
      names.push_back(header.name);
    }
    const auto text_pointers = pointers(texts), name_pointers = pointers(names);
    WCUDA_TRY(answer(functions_.create(&handle_, request.source.c_str(), request.name.c_str(),
                                       static_cast<int>(names.size()), text_pointers.data(),
                                       name_pointers.data()),
                     "nvrtcCreateProgram"));
    for (const std::string& expression : request.expressions)
      WCUDA_TRY(
          answer(functions_.add_expression(handle_, expression.c_str()), "nvrtcAddNameExpression"));
    return {};
  }

  int compile(const std::vector<std::string>& options) {
    const auto option_pointers = pointers(options);
    return functions_.compile(handle_, static_cast<int>(options.size()), option_pointers.data());
  }

  std::string log() {
    size_t bytes = 0;
    if (functions_.log_bytes(handle_, &bytes) != kSuccess || bytes == 0) return {};
    std::string text(bytes, '\0');
    if (functions_.log(handle_, text.data()) != kSuccess) return {};
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

  Result<std::vector<uint8_t>> code(bool device_code) {
    size_t bytes = 0;
    WCUDA_TRY(answer(device_code ? functions_.cubin_bytes(handle_, &bytes)
                                 : functions_.ptx_bytes(handle_, &bytes),
                     "the size of the code"));
    std::vector<uint8_t> result(bytes);
    char* const target = reinterpret_cast<char*>(result.data());
    WCUDA_TRY(
        answer(device_code ? functions_.cubin(handle_, target) : functions_.ptx(handle_, target),
               "the code"));
    if (!device_code)
      while (!result.empty() && result.back() == 0) result.pop_back();
    return result;
  }

  Result<std::string> name_of(const std::string& expression) {
    const char* name = nullptr;
    WCUDA_TRY(
        answer(functions_.lowered_name(handle_, expression.c_str(), &name), "nvrtcGetLoweredName"));
    return std::string(name);
  }

  Status answer(int result, const char* what) const {
    if (result == kSuccess) return {};
    return Status::native_error(
        result == kOutOfMemory ? WCUDA_OUT_OF_HOST_MEMORY : WCUDA_COMPILE_FAILED, result,
        "NVRTC, %s: %s", what, functions_.error_string(result));
  }

 private:
  const Functions& functions_;
  void* handle_ = nullptr;
};

}  // namespace

struct Compiler::Library {
  Functions functions;
};

Status check(const Request& request) {
  WCUDA_TRY(check_text(request.source, "source", false));
  WCUDA_TRY(check_text(request.name, "name", false));
  WCUDA_TRY(parse_architecture(request.architecture).status());
  WCUDA_TRY(check_texts(request.defines, "define"));
  WCUDA_TRY(check_texts(request.include_folders, "include folder"));
  WCUDA_TRY(check_texts(request.expressions, "expression"));
  WCUDA_TRY(check_texts(request.extras, "extra option"));
  for (const Header& header : request.headers) {
    WCUDA_TRY(check_text(header.name, "header's name", false));
    WCUDA_TRY(check_text(header.text, "header", true));
  }
  for (const char* known : {"", "c++11", "c++14", "c++17", "c++20"})
    if (request.standard == known) return {};
  return invalid_argument("standard '%s': is not c++11, c++14, c++17 or c++20",
                          printable(request.standard).c_str());
}

std::vector<std::string> options_of(const Request& request) {
  // The source is in no folder: without this option NVRTC would search for headers in the working
  // directory of the process.
  std::vector<std::string> options{"--gpu-architecture=" + request.architecture,
                                   "--no-source-include"};
  if (!request.standard.empty()) options.push_back("--std=" + request.standard);
  // First, so that the options below override what it implies.
  if (request.fast_math) options.emplace_back("--use_fast_math");
  add_choice(options, "--ftz", request.flush_denormals);
  add_choice(options, "--prec-sqrt", request.precise_sqrt);
  add_choice(options, "--prec-div", request.precise_division);
  add_choice(options, "--fmad", request.fuse_multiply_add);
  if (request.max_registers != 0)
    options.push_back("--maxrregcount=" + std::to_string(request.max_registers));
  if (request.line_info) options.emplace_back("--generate-line-info");
  if (request.debug) options.emplace_back("--device-debug");
  if (request.relocatable) options.emplace_back("--relocatable-device-code=true");
  if (request.default_device) options.emplace_back("--device-as-default-execution-space");
  for (const std::string& define : request.defines) options.push_back("--define-macro=" + define);
  for (const std::string& folder : request.include_folders)
    options.push_back("--include-path=" + folder);
  options.insert(options.end(), request.extras.begin(), request.extras.end());
  return options;
}

bool wants_device_code(const Request& request) { return starts_with(request.architecture, "sm_"); }

std::string first_diagnostic(const std::string& log) {
  std::string first;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, std::min(end - begin, kMessageLineBytes));
    if (line.find("error:") != std::string::npos) return line;
    if (first.empty()) first = line;
    begin = end + 1;
  }
  return first;
}

std::string file_identity(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return "";
  return std::to_string(found.st_size) + " bytes of " + std::to_string(found.st_mtim.tv_sec) + "." +
         std::to_string(found.st_mtim.tv_nsec);
}

Result<std::shared_ptr<Compiler>> Compiler::open(const std::string& folder) {
  WCUDA_TRY(check_text(folder, "library folder", true));
  static std::mutex mutex;
  static auto* const opened = new std::map<std::string, std::shared_ptr<Compiler>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = opened->find(folder);
  if (found != opened->end()) return std::shared_ptr<Compiler>(found->second);

  const std::string path = (folder.empty() ? "" : folder + "/") + kNvrtcLibrary;
  WCUDA_ASSIGN(const DynamicLibrary library, DynamicLibrary::open(path.c_str()));
  auto loaded = std::make_shared<Library>();
  Functions& f = loaded->functions;
  WCUDA_TRY(library.find("nvrtcGetErrorString", &f.error_string));
  WCUDA_TRY(library.find("nvrtcVersion", &f.version));
  WCUDA_TRY(library.find("nvrtcGetNumSupportedArchs", &f.architecture_count));
  WCUDA_TRY(library.find("nvrtcGetSupportedArchs", &f.architectures));
  WCUDA_TRY(library.find("nvrtcCreateProgram", &f.create));
  WCUDA_TRY(library.find("nvrtcDestroyProgram", &f.destroy));
  WCUDA_TRY(library.find("nvrtcCompileProgram", &f.compile));
  WCUDA_TRY(library.find("nvrtcGetPTXSize", &f.ptx_bytes));
  WCUDA_TRY(library.find("nvrtcGetPTX", &f.ptx));
  WCUDA_TRY(library.find("nvrtcGetCUBINSize", &f.cubin_bytes));
  WCUDA_TRY(library.find("nvrtcGetCUBIN", &f.cubin));
  WCUDA_TRY(library.find("nvrtcGetProgramLogSize", &f.log_bytes));
  WCUDA_TRY(library.find("nvrtcGetProgramLog", &f.log));
  WCUDA_TRY(library.find("nvrtcAddNameExpression", &f.add_expression));
  WCUDA_TRY(library.find("nvrtcGetLoweredName", &f.lowered_name));

  int major = 0, minor = 0, count = 0;
  if (f.version(&major, &minor) != kSuccess || f.architecture_count(&count) != kSuccess)
    return Status::error(WCUDA_NOT_AVAILABLE, "%s does not report its version", kNvrtcLibrary);
  std::shared_ptr<Compiler> compiler(new Compiler(loaded));
  compiler->version_ = major * 1000 + minor * 10;
  compiler->architectures_.resize(static_cast<size_t>(std::max(count, 1)));
  if (f.architectures(compiler->architectures_.data()) != kSuccess)
    return Status::error(WCUDA_NOT_AVAILABLE, "%s does not report its architectures",
                         kNvrtcLibrary);
  const std::string builtins = folder_of(library.path()) + "libnvrtc-builtins.so." +
                               std::to_string(major) + "." + std::to_string(minor);
  compiler->identity_ = std::to_string(compiler->version_) + "; " + file_identity(library.path()) +
                        "; " + file_identity(builtins);
  // NVRTC finds a library that is already loaded under this name. A failure here appears, with its
  // reason, in the log of a compile.
  (void)DynamicLibrary::open(builtins.c_str());
  opened->emplace(folder, compiler);
  return compiler;
}

Outcome Compiler::compile(const Request& request) const {
  Outcome outcome;
  outcome.status = [&]() -> Status {
    WCUDA_TRY(check(request));
    WCUDA_ASSIGN(const Architecture architecture, parse_architecture(request.architecture));
    if (std::find(architectures_.begin(), architectures_.end(), architecture.number) ==
        architectures_.end()) {
      std::string known;
      for (const int number : architectures_) known += " " + std::to_string(number);
      return unsupported("architecture '%s': NVRTC %d.%d knows%s", request.architecture.c_str(),
                         version_ / 1000, version_ % 1000 / 10, known.c_str());
    }
    Program program(library_->functions);
    WCUDA_TRY(program.create(request));
    const int result = program.compile(options_of(request));
    outcome.log = program.log();
    if (result != kSuccess) {
      const std::string line = first_diagnostic(outcome.log);
      if (line.empty()) return program.answer(result, "compile");
      return Status::native_error(
          result == kInvalidOption ? WCUDA_INVALID_ARGUMENT : WCUDA_COMPILE_FAILED, result, "%s",
          line.c_str());
    }
    for (const std::string& expression : request.expressions) {
      WCUDA_ASSIGN(outcome.names[expression], program.name_of(expression));
    }
    WCUDA_ASSIGN(outcome.code, program.code(architecture.is_device));
    return {};
  }();
  if (!outcome.status.ok()) {
    outcome.code.clear();
    outcome.names.clear();
  }
  return outcome;
}

}  // namespace wcuda::nvrtc
