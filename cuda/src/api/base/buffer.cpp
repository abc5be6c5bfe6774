// Section 7 of the header: buffers and pinned memory.
#include "api/base/buffer.h"

#include <cinttypes>
#include <string_view>

#include "api/base/context.h"
#include "core/vram/digest.h"

namespace wcuda::api {

Result<vram::View> view_of(const BufferObject& object, const char* argument, uint64_t offset,
                           uint64_t bytes) {
  auto view = object.buffer.view(offset, bytes);
  if (view.ok()) return view;
  return Status::error(view.status().code(), "%s: %s", argument, view.status().message());
}

namespace {

Result<std::shared_ptr<BufferObject>> create(const Context& context,
                                             const wcuda_buffer_options& options) {
  WCUDA_ASSIGN(const std::string_view tag, read_string(options.tag, "tag"));
  WCUDA_TRY(check_flags(options.flags, WCUDA_BUFFER_ZEROED, "flags"));
  WCUDA_TRY(check_flags(options.reserved, 0, "reserved"));
  const int32_t purpose = options.purpose ? options.purpose : WCUDA_PURPOSE_USER;
  auto object = std::make_shared<BufferObject>();
  if (options.flags & WCUDA_BUFFER_ZEROED) {
    WCUDA_ASSIGN(object->buffer, context.memory->allocate_zeroed(options.bytes, purpose, tag));
  } else {
    WCUDA_ASSIGN(object->buffer, context.memory->allocate(options.bytes, purpose, tag));
  }
  return object;
}

}  // namespace

Result<CopyRanges> ranges_of_copy(const BufferObject& target, uint64_t target_offset,
                                  const BufferObject& source, uint64_t source_offset,
                                  uint64_t bytes) {
  WCUDA_ASSIGN(const vram::View to, view_of(target, "target", target_offset, bytes));
  WCUDA_ASSIGN(const vram::View from, view_of(source, "source", source_offset, bytes));
  if (&target.buffer.memory() != &source.buffer.memory())
    return invalid_argument("target and source are of different contexts");
  if (to.data < from.data + bytes && from.data < to.data + bytes)
    return invalid_argument("ranges overlap: %" PRIu64 " bytes at %" PRIu64 " and at %" PRIu64,
                            bytes, target_offset, source_offset);
  return CopyRanges{to.data, from.data};
}

Status check_fill(uint64_t offset, uint64_t bytes, uint32_t pattern_bytes) {
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4 && pattern_bytes != 8)
    return invalid_argument("pattern_bytes: %u is not 1, 2, 4 or 8", pattern_bytes);
  if (offset % pattern_bytes != 0 || bytes % pattern_bytes != 0)
    return invalid_argument("offset %" PRIu64 " and %" PRIu64 " bytes are not multiples of %u",
                            offset, bytes, pattern_bytes);
  return {};
}

namespace {

// Copies between two buffers that the caller holds exclusively.
Status copy(BufferObject& target, uint64_t target_offset, BufferObject& source,
            uint64_t source_offset, uint64_t bytes) {
  WCUDA_ASSIGN(const CopyRanges ranges,
               ranges_of_copy(target, target_offset, source, source_offset, bytes));
  WCUDA_TRY(backend_of(target).fault());
  if (bytes == 0) return {};
  WCUDA_TRY(backend_of(target).copy_on_device(ranges.target, ranges.source, bytes, Stream{}));
  return backend_of(target).synchronize(Stream{});
}

Status fill(BufferObject& object, uint64_t offset, uint64_t bytes, uint64_t pattern,
            uint32_t pattern_bytes) {
  WCUDA_TRY(check_fill(offset, bytes, pattern_bytes));
  WCUDA_ASSIGN(const vram::View view, view_of(object, "buffer", offset, bytes));
  WCUDA_TRY(backend_of(object).fault());
  if (bytes == 0) return {};
  WCUDA_TRY(backend_of(object).fill(view.data, bytes, pattern, pattern_bytes, Stream{}));
  return backend_of(object).synchronize(Stream{});
}

}  // namespace
}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_buffer_create(wcuda_context context, const wcuda_buffer_options* options,
                                 wcuda_buffer* buffer, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_ASSIGN(const wcuda_buffer_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(buffer, "buffer"));
    WCUDA_ASSIGN(auto object, create(*parent, checked));
    return insert(std::move(object), buffer);
  });
}

void wcuda_buffer_destroy(wcuda_buffer buffer) { destroy(__func__, buffer); }

wcuda_status wcuda_buffer_size_get(wcuda_buffer buffer, uint64_t* bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(buffer, "buffer"));
    WCUDA_TRY(check_not_null(bytes, "bytes"));
    *bytes = object->buffer.bytes();
    return {};
  });
}

wcuda_status wcuda_buffer_write(wcuda_buffer buffer, uint64_t offset, const void* source,
                                uint64_t bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(buffer, "buffer"));
    if (bytes != 0) WCUDA_TRY(check_not_null(source, "source"));
    WCUDA_ASSIGN(const vram::View view, view_of(*object, "buffer", offset, bytes));
    WCUDA_TRY(backend_of(*object).fault());
    if (bytes == 0) return {};
    return object->buffer.memory().copy_to_device(view.data, source, bytes);
  });
}

wcuda_status wcuda_buffer_read(wcuda_buffer buffer, uint64_t offset, void* target, uint64_t bytes,
                               wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(buffer, "buffer"));
    if (bytes != 0) WCUDA_TRY(check_not_null(target, "target"));
    WCUDA_ASSIGN(const vram::View view, view_of(*object, "buffer", offset, bytes));
    WCUDA_TRY(backend_of(*object).fault());
    if (bytes == 0) return {};
    return backend_of(*object).copy_to_host(target, view.data, bytes);
  });
}

wcuda_status wcuda_buffer_copy(wcuda_buffer target, uint64_t target_offset, wcuda_buffer source,
                               uint64_t source_offset, uint64_t bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto to, resolve(target, "target"));
    WCUDA_ASSIGN(const auto from, resolve(source, "source"));
    WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(to->exclusive, "target"));
    if (to == from) return copy(*to, target_offset, *from, source_offset, bytes);
    WCUDA_ASSIGN(const auto other_use, ExclusiveUse::acquire(from->exclusive, "source"));
    return copy(*to, target_offset, *from, source_offset, bytes);
  });
}

wcuda_status wcuda_buffer_fill(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                               uint64_t pattern, uint32_t pattern_bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(buffer, "buffer"));
    return fill(*object, offset, bytes, pattern, pattern_bytes);
  });
}

wcuda_status wcuda_buffer_digest(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                 uint8_t digest[32], wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(buffer, "buffer"));
    WCUDA_TRY(check_not_null(digest, "digest"));
    WCUDA_ASSIGN(const vram::View view, view_of(*object, "buffer", offset, bytes));
    WCUDA_TRY(backend_of(*object).fault());
    return vram::digest(backend_of(*object), view.data, bytes, digest);
  });
}

wcuda_status wcuda_pinned_create(wcuda_context context, uint64_t bytes, wcuda_pinned* pinned,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(pinned, "pinned"));
    auto object = std::make_shared<vram::Buffer>();
    WCUDA_ASSIGN(*object, parent->memory->allocate_pinned(bytes, ""));
    return insert(std::move(object), pinned);
  });
}

void wcuda_pinned_destroy(wcuda_pinned pinned) { destroy(__func__, pinned); }

wcuda_status wcuda_pinned_data_get(wcuda_pinned pinned, void** data, uint64_t* bytes,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(pinned, "pinned"));
    WCUDA_TRY(check_not_null(data, "data"));
    WCUDA_TRY(check_not_null(bytes, "bytes"));
    *data = object->data();
    *bytes = object->bytes();
    return {};
  });
}
