// The arguments of a launch, received through the C interface.
#pragma once

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <memory>
#include <vector>

#include "api/base/buffer.h"
#include "api/base/elements.h"
#include "compute/jit/descriptor.h"
#include "compute/jit/launch.h"
#include "core/vram/memory.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

// The resolved arguments of one launch, which keeps them alive until it is queued.
class Arguments {
 public:
  Status read(const wcuda_argument* arguments, uint64_t count, const vram::Memory& memory) {
    WCUDA_ASSIGN(const auto given, read_elements(arguments, count, "arguments"));
    shapes_.reserve(count);
    values_.reserve(count);
    addresses_.reserve(count);
    held_.reserve(count);
    for (uint64_t i = 0; i < count; ++i) WCUDA_TRY(read_one(given[i], i, memory));
    complete();
    return {};
  }

  // Forgets everything but the memory that this occupies.
  void clear() {
    shapes_.clear();
    values_.clear();
    addresses_.clear();
    held_.clear();
  }

  // Instead of read: arguments whose memory the caller keeps alive. A buffer has an address, a
  // value stays where it is. Then complete().
  void add(const jit::ArgumentShape& shape, const void* value, void* address) {
    shapes_.push_back(shape);
    values_.push_back(const_cast<void*>(value));
    addresses_.push_back(address);
  }
  void complete() {
    for (size_t i = 0; i < values_.size(); ++i)
      if (shapes_[i].kind == WCUDA_ARG_BUFFER) values_[i] = reinterpret_cast<void*>(&addresses_[i]);
  }

  void used_on(Stream stream) {
    for (const Held& held : held_) held->buffer.used_on(stream);
  }

  const std::vector<jit::ArgumentShape>& shapes() const { return shapes_; }
  // In the form that the check against a signature takes.
  const std::vector<jit::DescribedArgument>& described() const {
    described_.resize(shapes_.size());
    for (size_t i = 0; i < shapes_.size(); ++i)
      described_[i] = {shapes_[i].kind, shapes_[i].access, values_[i], shapes_[i].bytes};
    return described_;
  }
  // In the form that the driver takes: the address of each value.
  void* const* values() { return values_.data(); }
  const std::vector<wcuda_host_argument>& for_host() const {
    for_host_.resize(shapes_.size());
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const bool is_buffer = shapes_[i].kind == WCUDA_ARG_BUFFER;
      for_host_[i] = {sizeof(wcuda_host_argument), shapes_[i].kind,
                      is_buffer ? addresses_[i] : values_[i], shapes_[i].bytes};
    }
    return for_host_;
  }

 private:
  using Held = Used<BufferObject>;

  Status read_one(const wcuda_argument& argument, uint64_t index, const vram::Memory& memory) {
    const auto wrong = [&](const char* what) {
      return invalid_argument("argument %" PRIu64 ": %s", index, what);
    };
    if (*jit::kind_name(argument.kind) == 0) return wrong("kind is not one of WCUDA_ARG_…");
    if ((argument.access & ~uint32_t{WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE}) != 0)
      return wrong("access has unknown bits");
    if (argument.kind == WCUDA_ARG_BUFFER) return read_buffer(argument, index, memory);
    if (argument.buffer.id != 0 || argument.offset != 0)
      return wrong("a value has no buffer and no offset");
    const uint64_t bytes = jit::scalar_bytes(argument.kind);
    if (bytes == 0 && argument.bytes == 0) return wrong("bytes is 0");
    if (bytes != 0 && argument.bytes != 0 && argument.bytes != bytes)
      return wrong("bytes is not the size of its kind");
    if (!argument.data) return wrong("data is NULL");
    add({argument.kind, 0, bytes ? bytes : argument.bytes}, argument.data, nullptr);
    return {};
  }

  Status read_buffer(const wcuda_argument& argument, uint64_t index, const vram::Memory& memory) {
    char name[32] = "argument ";
    *std::to_chars(name + 9, name + sizeof(name) - 1, index).ptr =
        0;  // fast, since every launch runs this
    WCUDA_ASSIGN(auto object, resolve(argument.buffer, name));
    if (&object->buffer.memory() != &memory)
      return invalid_argument("%s: the buffer is of another context", name);
    const uint64_t size = object->buffer.bytes();
    const uint64_t bytes = argument.bytes ? argument.bytes : size - std::min(size, argument.offset);
    const auto view = object->buffer.view(argument.offset, bytes);
    if (!view.ok())
      return Status::error(view.status().code(), "%s: %s", name, view.status().message());
    add({argument.kind, argument.access, bytes}, nullptr, view->data);
    for (const Held& held : held_)
      if (held.object == object) return {};  // a second window of one buffer
    WCUDA_ASSIGN(auto use, ExclusiveUse::acquire(object->exclusive, name));
    held_.push_back({std::move(object), std::move(use)});
    return {};
  }

  std::vector<jit::ArgumentShape> shapes_;
  std::vector<void*> values_;
  std::vector<void*> addresses_;  // of buffers
  std::vector<Held> held_;
  mutable std::vector<jit::DescribedArgument> described_;
  mutable std::vector<wcuda_host_argument> for_host_;
};

}  // namespace wcuda::api
