// The object behind a wcuda_backend: a context, and everything created through its table.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "api/base/context.h"
#include "api/base/handles.h"
#include "api/compute/kernel.h"
#include "api/compute/registry.h"
#include "compute/catalogue/catalogue.h"
#include "core/backend/fault_backend.h"
#include "worker_cuda/backend.h"

namespace wcuda::api {

struct BackendObject {
  std::shared_ptr<Context> context;
  std::shared_ptr<FaultBackend> faults;  // null: faults are not enabled
  wcuda_backend_info info = WCUDA_BACKEND_INFO_INIT;
  std::string library_folder;

  std::mutex mutex;  // guards the members below
  std::set<std::pair<Kind, uint64_t>> made;

  ~BackendObject();
  vram::Memory& memory() const { return *context->memory; }
  // Registers an object that ends with the backend, and returns its id.
  template <class T>
  Result<uint64_t> give(Kind kind, std::shared_ptr<T> object) {
    WCUDA_ASSIGN(const uint64_t id, insert(kind, std::move(object)));
    const std::lock_guard<std::mutex> lock(mutex);
    made.emplace(kind, id);
    return id;
  }
  // Removes it now; null if the id was not created through the table.
  std::shared_ptr<void> take_back(Kind kind, uint64_t id);
};

template <>
struct HandleOf<wcuda_backend> : HandleTo<Kind::kBackend, BackendObject> {};

// A kernel compiled through a table: device code, a registered kernel, one of the catalogue, or a
// kernel of a caller's table.
struct BackendKernel {
  std::shared_ptr<vram::Memory> memory;
  std::string name;
  std::shared_ptr<KernelObject> device;                     // on CUDA
  std::shared_ptr<const compute::RegistryEntry> described;  // on HOST: a caller's, by descriptor
  const compute::CatalogueEntry* builtin = nullptr;         // on HOST: of the catalogue
  Kernel own;                                               // of a caller's table
  ~BackendKernel();
};

template <>
struct HandleOf<wcuda_backend_kernel> : HandleTo<Kind::kBackendKernel, BackendKernel> {};

// The table of this library, for every backend: `self` is the id of a wcuda_backend.
extern const wcuda_backend_vtable kBackendTable;

}  // namespace wcuda::api
