// Kernels of a context by id and by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "compute/catalogue/catalogue.h"
#include "compute/jit/descriptor.h"
#include "core/vram/memory.h"

namespace wcuda::compute {

// Ids that older callers know, with the signature hashes they expect. Ids are assigned from
// kFirstFreeId.
constexpr uint32_t kNoopId = 1, kTensorAddId = 2, kFirstFreeId = 3;
constexpr uint64_t kNoopHash = 0, kTensorAddHash = 0xa1;

// Runs the kernel of a caller.
class Runnable {
 public:
  virtual ~Runnable() = default;
  // Returns whether the context's backend can run it.
  virtual bool runs_here() const = 0;
};

// A kernel of a registry: of a caller, or built in. Immutable.
struct RegistryEntry {
  jit::Descriptor descriptor;
  std::shared_ptr<const Runnable> kernel;      // of a caller; null: none here, or built in
  const CatalogueEntry* builtin = nullptr;     // of the catalogue
  kernels::Dtype type = kernels::Dtype::kF32;  // of its elements

  bool runs_here() const { return builtin || (kernel && kernel->runs_here()); }
  // WCUDA_KERNEL_….
  uint32_t flags() const { return descriptor.flags | (runs_here() ? 0 : WCUDA_KERNEL_NOT_HERE); }
};

// Returns the descriptor of a built-in kernel for elements of a WCUDA_ARG_… type.
Result<jit::Descriptor> describe_builtin(const CatalogueEntry& entry, int32_t type);

// Thread-safe. An entry stays valid after it is replaced or removed.
class Registry {
 public:
  using Entry = std::shared_ptr<const RegistryEntry>;

  // A registry of a context, which find_described sees as long as it lives.
  static std::shared_ptr<Registry> create(std::shared_ptr<vram::Memory> memory);

  const std::shared_ptr<vram::Memory>& memory() const { return memory_; }

  // Adds an entry under the requested id, else that of the kernel it replaces (of the same name),
  // else a new one. WCUDA_INVALID_ARGUMENT for the id of another kernel.
  Result<uint32_t> put(std::shared_ptr<RegistryEntry> entry);
  // WCUDA_NOT_FOUND for an unknown id.
  Result<Entry> find(uint32_t id) const;
  Status remove(uint32_t id);
  // Null for an unknown name.
  Entry find_name(std::string_view name) const;
  // By id, ascending.
  std::vector<Entry> list() const;

 private:
  using Entries = std::map<uint32_t, Entry>;
  explicit Registry(std::shared_ptr<vram::Memory> memory) : memory_(std::move(memory)) {}
  Entries::const_iterator position_of(std::string_view name) const;

  const std::shared_ptr<vram::Memory> memory_;
  mutable std::mutex mutex_;
  Entries entries_;  // guarded by mutex_
};

// Finds a kernel that a caller registered by this name, in the newest registry of the context that
// has one; null if none has.
Registry::Entry find_described(vram::Memory& memory, std::string_view name);

}  // namespace wcuda::compute
