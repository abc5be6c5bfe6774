// Inputs of the fuzzer as descriptors of kernels and calls of them.
#include "fuzz/descriptor_entry.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "compute/jit/descriptor.h"
#include "compute/jit/launch.h"

namespace wcuda::fuzz {
namespace {

// The part before a separator; all of it where there is none.
std::string_view take(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return part;
}

wcuda_string as_string(std::string_view text) { return {text.data(), text.size()}; }

wcuda_parameter read_param(std::string_view line) {
  wcuda_parameter param = WCUDA_PARAMETER_INIT;
  const auto number = [&](char zero) {
    const int value = line.empty() ? 0 : line[0] - zero;
    line.remove_prefix(line.empty() ? 0 : 1);
    return value;
  };
  param.kind = number('a');
  param.dtype = number('a');
  param.access = static_cast<uint32_t>(number('0'));
  param.name = as_string(take(&line, '|'));
  param.shape = as_string(take(&line, '|'));
  param.min = as_string(take(&line, '|'));
  param.max = as_string(line);
  return param;
}

std::string check_message(const Status& status) {
  const std::string message = status.message();
  if (message.empty() || message.find('\n') != std::string::npos) return "a message of no one line";
  return "";
}

// Arguments of a call: eight bytes each, which say a number, or how large a buffer is.
std::string call(const jit::Descriptor& descriptor, std::string_view values) {
  std::vector<uint64_t> numbers(descriptor.signature.parameters.size());
  for (uint64_t& number : numbers) {
    const std::string_view eight = values.substr(0, 8);
    if (!eight.empty()) std::memcpy(&number, eight.data(), eight.size());
    values.remove_prefix(eight.size());
  }
  std::vector<jit::DescribedArgument> arguments;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const jit::Parameter& param = descriptor.signature.parameters[i];
    const uint64_t bytes = jit::scalar_bytes(param.kind);
    arguments.push_back({param.kind, 0, &numbers[i], bytes != 0 ? bytes : numbers[i]});
  }
  const auto launch = jit::plan_launch(descriptor, arguments);
  if (!launch.ok()) return check_message(launch.status());
  uint64_t given = 0;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (descriptor.signature.parameters[i].kind == WCUDA_ARG_BUFFER &&
        __builtin_add_overflow(given, numbers[i], &given))
      return "";
  if (launch->bytes > given) return "more bytes than the buffers have";
  if (descriptor.threads) {
    const uint64_t threads = uint64_t{launch->dims.grid[0]} * launch->dims.block[0];
    if (launch->dims.block[0] != 0 && threads < launch->elements) return "too few threads";
  }
  return "";
}

}  // namespace

std::string exercise_descriptor(const uint8_t* data, size_t bytes) {
  std::string_view text(reinterpret_cast<const char*>(data), bytes);
  std::string_view lines = take(&text, '\0');
  std::string_view head = take(&lines, '\n');
  wcuda_kernel_descriptor native = WCUDA_KERNEL_DESCRIPTOR_INIT;
  native.name = as_string("k");
  for (wcuda_string* const field :
       {&native.grid[0], &native.grid[1], &native.grid[2], &native.block[0], &native.block[1],
        &native.block[2], &native.threads, &native.shared_bytes})
    *field = as_string(take(&head, '|'));
  std::vector<wcuda_parameter> params;
  while (!lines.empty()) params.push_back(read_param(take(&lines, '\n')));
  native.parameters = params.data();
  native.parameter_count = params.size();

  const auto descriptor = jit::read_descriptor(native);
  if (!descriptor.ok()) return check_message(descriptor.status());
  if (descriptor->sig_hash != jit::fnv1a(descriptor->signature.canonical))
    return "a hash of another text";
  const auto is_end = [](char c) { return c == ';'; };
  const std::string& signature = descriptor->signature.canonical;
  if (std::count_if(signature.begin(), signature.end(), is_end) !=
      static_cast<ptrdiff_t>(params.size()))
    return "a signature of another number of parameters";
  return call(*descriptor, text);
}

}  // namespace wcuda::fuzz
