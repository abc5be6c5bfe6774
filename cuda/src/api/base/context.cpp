// Section 5 of the header: contexts.
#include "api/base/context.h"

#include "api/base/guard.h"
#include "core/backend/backend_types.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

Result<std::shared_ptr<Context>> create(const wcuda_context_options& options) {
  WCUDA_ASSIGN(OpenOptions open, read_context_options(options));
  open.backend = options.backend;
  open.ordinal = options.ordinal;
  WCUDA_ASSIGN(Opened opened, open_backend(open));
  auto context = make_context(std::move(opened.backend), options.memory_budget,
                              static_cast<vram::Scrub>(options.scrub));
  copy_text(opened.fallback_reason, context->info.fallback_reason,
            sizeof(context->info.fallback_reason));
  return context;
}

}  // namespace

Result<OpenOptions> read_context_options(const wcuda_context_options& options) {
  if (options.abi_version != WCUDA_ABI_VERSION)
    return Status::error(WCUDA_ABI_MISMATCH,
                         "abi_version: the caller's header has %u, this library %d",
                         options.abi_version, WCUDA_ABI_VERSION);
  WCUDA_TRY(check_flags(options.flags, 0, "flags"));
  if (options.scrub < WCUDA_SCRUB_NONE || options.scrub > WCUDA_SCRUB_ON_ALLOC)
    return invalid_argument("scrub: %d is not one of WCUDA_SCRUB_…", options.scrub);
  OpenOptions open;
  open.host_capacity = options.memory_budget;
  open.host_thread_count = options.host_thread_count;
  return open;
}

std::shared_ptr<Context> make_context(std::shared_ptr<Backend> backend, uint64_t budget,
                                      vram::Scrub scrub) {
  auto context = std::make_shared<Context>();
  context->info = WCUDA_CONTEXT_INFO_INIT;
  context->info.backend = backend->caps().backend;
  context->info.ordinal = backend->caps().ordinal;
  context->info.host_thread_count = backend->host_thread_count();
  context->memory = vram::Memory::create(std::move(backend), budget, scrub);
  return context;
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_context_create(const wcuda_context_options* options, wcuda_context* context,
                                  wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_context_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(context, "context"));
    WCUDA_ASSIGN(auto object, create(checked));
    const wcuda_context_info& info = object->info;
    log(WCUDA_LOG_INFO, "context", "opened %s %d%s%s", backend_name(info.backend).c_str(),
        info.ordinal, info.fallback_reason[0] ? "; " : "", info.fallback_reason);
    return insert(std::move(object), context);
  });
}

void wcuda_context_destroy(wcuda_context context) {
  guarded_destroy("wcuda_context_destroy", context.id, [](uint64_t id) -> Status {
    const auto object = std::static_pointer_cast<Context>(remove(Kind::kContext, id));
    if (!object) return remove_live(Kind::kContext, id);
    object->memory->log_leaks();
    return {};
  });
}

wcuda_status wcuda_context_info_get(wcuda_context context, wcuda_context_info* info,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    return write_struct(object->info, info, "info");
  });
}

wcuda_status wcuda_context_synchronize(wcuda_context context, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    return object->memory->backend().synchronize();
  });
}
