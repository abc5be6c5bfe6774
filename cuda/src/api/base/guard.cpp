// Error structs, struct sizes and argument checks of the C interface.
#include "api/base/guard.h"

#include <cinttypes>

#include "core/base/log.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

// The most bytes of a caller's struct. A newer version may be larger than this library's, but a
// larger value is a struct_size that was never set, and reading that far would fault.
constexpr uint32_t kUnknownTailBytesMax = 4096;

}  // namespace

void fill_error(wcuda_error* error, Code code, int32_t native_code, const char* message) noexcept {
  if (!error) return;
  std::memset(error, 0, sizeof(*error));
  error->code = code;
  error->native_code = native_code;
  uint32_t used = 0;
  const auto* text = reinterpret_cast<const uint8_t*>(message);
  for (const uint8_t* const end = text + std::strlen(message); text < end;) {
    const size_t length = utf8_bytes(text, static_cast<size_t>(end - text));
    const size_t step = length ? length : 1;
    if (used + step >= WCUDA_ERROR_MESSAGE_BYTES) break;
    const bool printable = length > 1 || (length == 1 && *text >= 0x20 && *text != 0x7f);
    if (printable)
      std::memcpy(error->message + used, text, step);
    else
      error->message[used] = '?';
    used += static_cast<uint32_t>(printable ? step : 1);
    text += step;
  }
  error->message_bytes = used;
}

void guarded_destroy(const char* function, uint64_t id, Status (*destroy)(uint64_t id)) noexcept {
  if (id == 0) return;
  wcuda_error error;
  const wcuda_status status = guarded_anywhere(&error, [=]() -> Status {
    if (!InCallback::active()) return destroy(id);
    defer([=] { guarded_destroy(function, id, destroy); });
    return {};
  });
  if (status != WCUDA_OK) log_dropped(function, error.message);
}

Status remove_live(Kind kind, uint64_t id) {
  if (id == 0 || remove(kind, id)) return {};
  return Status::error(WCUDA_INVALID_HANDLE, "%s: handle 0x%016" PRIx64 " is not live",
                       kind_name(kind), id);
}

void log_dropped(const char* function, const char* message) noexcept {
  log(WCUDA_LOG_WARN, "api", "%s: %s", function, message);
}

namespace detail {

Status check_struct(const void* data, const char* argument, uint32_t first_bytes,
                    uint32_t known_bytes) {
  WCUDA_TRY(check_not_null(data, argument));
  uint32_t bytes;
  std::memcpy(&bytes, data, sizeof(bytes));
  if (bytes < first_bytes || bytes > known_bytes + kUnknownTailBytesMax)
    return invalid_argument("%s: struct_size %u is not in %u … %u; use the INIT macro", argument,
                            bytes, first_bytes, known_bytes + kUnknownTailBytesMax);
  const auto* tail = static_cast<const unsigned char*>(data);
  for (uint32_t i = known_bytes; i < bytes; ++i)
    if (tail[i] != 0)
      return unsupported("%s: byte %u of %u is set, this library knows the first %u", argument, i,
                         bytes, known_bytes);
  return {};
}

Status check_reserved(uint32_t reserved, const char* argument) {
  if (reserved == 0) return {};
  return unsupported("%s: reserved is %u, must be 0", argument, reserved);
}

}  // namespace detail

Status check_not_null(const void* pointer, const char* argument) {
  if (pointer) return {};
  return invalid_argument("%s is NULL", argument);
}

Status check_flags(uint64_t flags, uint64_t known, const char* argument) {
  if ((flags & ~known) == 0) return {};
  return invalid_argument("%s: unknown bits 0x%" PRIx64, argument, flags & ~known);
}

Status check_string(const wcuda_string& string, const char* argument) {
  if (string.bytes != 0 && !string.data)
    return invalid_argument("%s: data is NULL with %" PRIu64 " bytes", argument, string.bytes);
  if (string.bytes > INT64_MAX)
    return invalid_argument("%s: %" PRIu64 " bytes", argument, string.bytes);
  return {};
}

Result<std::string_view> read_string(const wcuda_string& string, const char* argument) {
  WCUDA_TRY(check_string(string, argument));
  return std::string_view(string.data ? string.data : "", string.bytes);
}

Result<ExclusiveUse> ExclusiveUse::acquire(Exclusive& exclusive, const char* object_name) {
  if (exclusive.busy_.exchange(true, std::memory_order_acquire))
    return Status::error(WCUDA_BUSY, "%s: another thread is using this object", object_name);
  return ExclusiveUse(&exclusive);
}

}  // namespace wcuda::api
