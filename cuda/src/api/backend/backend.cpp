// Section 21 of the header: backends by type, selected, opened, registered.
#include "api/backend/backend.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "api/base/elements.h"
#include "core/backend/backend_types.h"
#include "core/backend/open.h"
#include "core/backend/trace_backend.h"
#include "core/base/callback.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

Result<BackendRegistration> read_registration(const wcuda_backend_registration& from) {
  BackendRegistration to;
  WCUDA_ASSIGN(to.name, read_string(from.name, "name"));
  to.priority = from.priority;
  WCUDA_ASSIGN(to.table, read_struct(from.table, "table"));
  to.open = from.open;
  to.user = from.user;
  return to;
}

Result<Selection> select(const wcuda_selection_options& options) {
  WCUDA_TRY(check_flags(options.flags, WCUDA_SELECT_NO_HOST, "flags"));
  SelectionRequest request;
  request.preferred = options.preferred;
  request.required_features = options.required_features;
  request.ends_at_host = (options.flags & WCUDA_SELECT_NO_HOST) == 0;
  request.uses_default_fallbacks = options.fallbacks == nullptr;
  if (!options.fallbacks && options.fallback_count != 0)
    return invalid_argument("fallbacks is NULL with %u of them", options.fallback_count);
  if (options.fallbacks)
    request.fallbacks.assign(options.fallbacks, options.fallbacks + options.fallback_count);
  return select_backend(request);
}

// Writes the selection, and as many of the skipped types as fit into the caller's array.
Status write_selection(const Selection& from, wcuda_selection* target) {
  WCUDA_ASSIGN(wcuda_selection to, read_struct(target, "selection"));
  const OutputArray<wcuda_skipped_backend> skipped{to.skipped, to.skipped_capacity, "skipped"};
  const uint64_t written = std::min<uint64_t>(to.skipped_capacity, from.skipped.size());
  WCUDA_TRY(skipped.check(written));
  for (uint64_t i = 0; i < written; ++i) {
    wcuda_skipped_backend each = WCUDA_SKIPPED_BACKEND_INIT;
    each.type = from.skipped[i].type;
    each.status = from.skipped[i].why.code();
    copy_text(from.skipped[i].why.message(), each.reason, sizeof(each.reason));
    skipped.write(i, each);
  }
  to.type = from.type;
  to.ordinal = from.ordinal;
  to.skipped_count = from.skipped.size();
  write_struct(to, target);
  return {};
}

Result<std::shared_ptr<BackendObject>> open(const wcuda_backend_options& options) {
  WCUDA_TRY(check_flags(options.flags, WCUDA_BACKEND_WITH_FAULTS, "flags"));
  auto object = std::make_shared<BackendObject>();
  WCUDA_ASSIGN(object->library_folder, read_string(options.library_folder, "library_folder"));
  OpenOptions request;
  request.backend = options.type;
  request.ordinal = options.ordinal;
  request.host_capacity = options.memory_budget;
  request.host_thread_count = options.host_thread_count;
  std::string passed_over;
  if (options.type == WCUDA_BACKEND_AUTO) {
    WCUDA_ASSIGN(const Selection best, select_backend(SelectionRequest()));
    request.backend = best.type;
    if (options.ordinal == 0) request.ordinal = best.ordinal;
    passed_over = describe(best.skipped);
  }
  WCUDA_ASSIGN(Opened opened, open_backend(request));
  std::shared_ptr<Backend> backend = std::move(opened.backend);
  const wcuda_device_caps caps = backend->caps();
  if (options.flags & WCUDA_BACKEND_WITH_FAULTS)
    backend = object->faults = std::make_shared<FaultBackend>(std::move(backend));
  if (options.trace)
    backend = std::make_shared<TraceBackend>(
        std::move(backend),
        [trace = options.trace, user = options.trace_user](const Call& call, const Status& status) {
          const std::string line = trace_line(call, status);
          const InCallback inside;
          trace(user, {line.data(), line.size()});
        });
  WCUDA_ASSIGN(const int32_t device_count_there, device_count(caps.backend));
  object->context = make_context(std::move(backend), options.memory_budget, vram::Scrub::kNone);
  wcuda_backend_info& info = object->info;
  info.type = caps.backend;
  info.ordinal = caps.ordinal;
  info.device_count = static_cast<uint32_t>(device_count_there);
  info.is_traced = options.trace != nullptr;
  info.has_faults = object->faults != nullptr;
  copy_text(backend_name(caps.backend), info.name, sizeof(info.name));
  copy_text(passed_over, info.fallback_reason, sizeof(info.fallback_reason));
  log(WCUDA_LOG_INFO, "backend", "opened %s %d%s%s", info.name, info.ordinal,
      passed_over.empty() ? "" : "; passed over ", passed_over.c_str());
  return object;
}

CallKind fault_kind(int32_t kind) {
  switch (kind) {
    case WCUDA_FAULT_ALLOCATE:
      return CallKind::kAllocate;
    case WCUDA_FAULT_COPY:
      return CallKind::kCopy;
    case WCUDA_FAULT_LAUNCH:
      return CallKind::kLaunch;
    case WCUDA_FAULT_SYNCHRONIZE:
      return CallKind::kWait;
    default:
      return CallKind::kCompile;
  }
}

}  // namespace

BackendObject::~BackendObject() {
  for (const auto& [kind, id] : made) (void)remove(kind, id);
}

std::shared_ptr<void> BackendObject::take_back(Kind kind, uint64_t id) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (made.erase({kind, id}) == 0) return nullptr;
  }
  return remove(kind, id);
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_backend_register(const wcuda_backend_registration* registration, int32_t* type,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto checked, read_struct(registration, "registration"));
    WCUDA_TRY(check_not_null(type, "type"));
    WCUDA_ASSIGN(BackendRegistration read, read_registration(checked));
    WCUDA_ASSIGN(*type, register_backend(std::move(read)));
    return {};
  });
}

wcuda_status wcuda_backend_unregister(int32_t type, wcuda_error* error) {
  return guarded(error, [&] { return unregister_backend(type); });
}

wcuda_status wcuda_backend_list(uint64_t first, wcuda_backend_entry* entries, uint64_t capacity,
                                uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    const std::vector<wcuda_backend_entry> all = list_backends();
    return write_list<wcuda_backend_entry>({entries, capacity, "entries"}, first, all.size(), count,
                                           [&](uint64_t index) { return all[index]; });
  });
}

wcuda_status wcuda_backend_find(wcuda_string name, int32_t* type, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const std::string_view text, read_string(name, "name"));
    WCUDA_TRY(check_not_null(type, "type"));
    WCUDA_ASSIGN(*type, find_backend_type(std::string(text)));
    return {};
  });
}

wcuda_status wcuda_device_features_get(const wcuda_device_caps* caps, uint64_t* features,
                                       wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_device_caps checked, read_struct(caps, "caps"));
    WCUDA_TRY(check_not_null(features, "features"));
    *features = device_features(checked);
    return {};
  });
}

wcuda_status wcuda_backend_select(const wcuda_selection_options* options,
                                  wcuda_selection* selection, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_selection_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_struct(selection, "selection"));
    WCUDA_ASSIGN(const Selection found, select(checked));
    return write_selection(found, selection);
  });
}

wcuda_status wcuda_backend_open(const wcuda_backend_options* options, wcuda_backend* backend,
                                wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_backend_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(backend, "backend"));
    WCUDA_ASSIGN(auto object, wcuda::api::open(checked));
    return insert(std::move(object), backend);
  });
}

void wcuda_backend_close(wcuda_backend backend) { destroy(__func__, backend); }

wcuda_status wcuda_backend_info_get(wcuda_backend backend, wcuda_backend_info* info,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(backend, "backend"));
    wcuda_backend_info result = object->info;
    {
      const std::lock_guard<std::mutex> lock(object->mutex);
      result.live_count = object->made.size();
    }
    return write_struct(result, info, "info");
  });
}

wcuda_status wcuda_backend_table_get(wcuda_backend backend, const wcuda_backend_vtable** table,
                                     void** self, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(resolve(backend, "backend").status());
    WCUDA_TRY(check_not_null(table, "table"));
    WCUDA_TRY(check_not_null(self, "self"));
    *table = &kBackendTable;
    *self = reinterpret_cast<void*>(static_cast<uintptr_t>(backend.id));
    return {};
  });
}

wcuda_status wcuda_backend_context_create(wcuda_backend backend, wcuda_context* context,
                                          wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(backend, "backend"));
    WCUDA_TRY(check_not_null(context, "context"));
    return insert(object->context, context);
  });
}

wcuda_status wcuda_backend_fault_set(wcuda_backend backend, int32_t kind, uint64_t k,
                                     wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(backend, "backend"));
    if (kind < WCUDA_FAULT_NONE || kind > WCUDA_FAULT_LOST)
      return invalid_argument("kind: %d is not one of WCUDA_FAULT_…", kind);
    if (!object->faults)
      return Status::error(WCUDA_INVALID_STATE,
                           "backend: was not opened with WCUDA_BACKEND_WITH_FAULTS");
    const bool loses = kind == WCUDA_FAULT_LOST;
    object->faults->lose_device(loses ? k : 0);
    object->faults->fail(fault_kind(kind), loses || kind == WCUDA_FAULT_NONE ? 0 : k);
    return {};
  });
}
