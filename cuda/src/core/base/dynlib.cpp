// Opening libraries and finding symbols with dlopen.
#include "core/base/dynlib.h"

#include <dlfcn.h>
#include <link.h>

namespace wcuda {
namespace {

const char* last_reason() {
  const char* const reason = dlerror();
  return reason ? reason : "no reason given";
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(const char* name) {
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return Status::error(WCUDA_NOT_AVAILABLE, "%s", last_reason());
  return DynamicLibrary(handle, name);
}

std::string DynamicLibrary::path() const {
  const link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || !map || !map->l_name)
    return {};
  return map->l_name;
}

Status DynamicLibrary::find_symbol(const char* name, void** symbol) const {
  *symbol = dlsym(handle_, name);
  if (!*symbol) return Status::error(WCUDA_NOT_AVAILABLE, "%s has no %s", name_.c_str(), name);
  return {};
}

}  // namespace wcuda
