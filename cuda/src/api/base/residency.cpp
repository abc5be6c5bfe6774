// Section 14 of the header: budgets by purpose, location of memory, borrowed memory.
#include <cstring>
#include <string_view>

#include "api/base/buffer.h"
#include "api/base/context.h"
#include "core/backend/device_limits.h"
#include "core/backend/open.h"

using namespace wcuda;
using namespace wcuda::api;

namespace {

Status borrow(const Context& context, void* address, const wcuda_buffer_options& options,
              wcuda_buffer* buffer) {
  WCUDA_ASSIGN(const std::string_view tag, read_string(options.tag, "tag"));
  WCUDA_TRY(check_flags(options.flags, 0, "flags"));
  WCUDA_TRY(check_flags(options.reserved, 0, "reserved"));
  if (options.purpose != 0)
    return invalid_argument("purpose: %d, borrowed memory has its own: 0", options.purpose);
  auto object = std::make_shared<BufferObject>();
  WCUDA_ASSIGN(object->buffer, context.memory->borrow(address, options.bytes, tag));
  return insert(std::move(object), buffer);
}

}  // namespace

wcuda_status wcuda_context_budget_set(wcuda_context context, int32_t purpose, uint64_t bytes,
                                      wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    if (purpose < WCUDA_PURPOSE_WEIGHTS || purpose > WCUDA_PURPOSE_USER)
      return invalid_argument("purpose: %d is not in %d … %d", purpose, WCUDA_PURPOSE_WEIGHTS,
                              WCUDA_PURPOSE_USER);
    object->memory->set_budget(purpose, bytes);
    return {};
  });
}

wcuda_status wcuda_device_check(int32_t backend, int32_t ordinal, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_device_caps caps, device_caps(backend, ordinal));
    return check_device_limits(caps);
  });
}

wcuda_status wcuda_context_residency_get(wcuda_context context, wcuda_residency* residency,
                                         wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    WCUDA_TRY(object->memory->backend().fault());
    WCUDA_ASSIGN(const vram::Residency found, object->memory->check_residency());
    wcuda_residency value = WCUDA_RESIDENCY_INIT;
    value.first_place = static_cast<int32_t>(found.first_place);
    value.checked_count = found.checked_count;
    value.nonresident_count = found.nonresident_count;
    value.managed_count = found.managed_count;
    value.first_bytes = found.first.bytes;
    value.first_sequence_number = found.first.sequence_number;
    value.first_purpose = found.first.purpose;
    value.first_tag_bytes = found.first.tag_bytes;
    std::memcpy(value.first_tag, found.first.tag, sizeof(value.first_tag));
    return write_struct(value, residency, "residency");
  });
}

wcuda_status wcuda_context_vram_only_enforce(wcuda_context context, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    WCUDA_TRY(object->memory->backend().fault());
    return object->memory->enforce_vram_only();
  });
}

wcuda_status wcuda_context_vram_only_get(wcuda_context context, int32_t* is_enforced,
                                         wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    WCUDA_TRY(check_not_null(is_enforced, "is_enforced"));
    *is_enforced = object->memory->vram_only();
    return {};
  });
}

wcuda_status wcuda_buffer_borrow(wcuda_context context, void* address,
                                 const wcuda_buffer_options* options, wcuda_buffer* buffer,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(address, "address"));
    WCUDA_ASSIGN(const wcuda_buffer_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(buffer, "buffer"));
    return borrow(*parent, address, checked, buffer);
  });
}

wcuda_status wcuda_buffer_place_get(wcuda_buffer buffer, int32_t* place, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(buffer, "buffer"));
    WCUDA_TRY(check_not_null(place, "place"));
    WCUDA_ASSIGN(const MemoryPlace found, backend_of(*object).memory_place(object->buffer.data()));
    *place = static_cast<int32_t>(found);
    return {};
  });
}

wcuda_status wcuda_buffer_address_get(wcuda_buffer buffer, void** address, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(buffer, "buffer"));
    WCUDA_TRY(check_not_null(address, "address"));
    *address = object->buffer.data();
    return {};
  });
}

wcuda_status wcuda_context_deferred_error_take(wcuda_context context, wcuda_error* deferred,
                                               wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    WCUDA_TRY(check_not_null(deferred, "deferred"));
    const Status oldest = object->memory->take_deferred_error();
    fill_error(deferred, oldest.code(), oldest.native_code(), oldest.message());
    return {};
  });
}
