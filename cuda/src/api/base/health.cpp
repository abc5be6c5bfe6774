// Section 13 of the header: health.
#include "api/base/context.h"
#include "api/base/guard.h"
#include "core/health/report.h"

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_health_get(wcuda_context context, wcuda_health* health, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    return write_struct(health::report(*object->memory), health, "health");
  });
}
