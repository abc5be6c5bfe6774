// The registries of a context and their entries.
#include "compute/registry/registry.h"

#include <algorithm>
#include <string>

#include "core/base/text.h"

namespace wcuda::compute {
namespace {

// The registries of one context, the newest last.
struct Registries {
  std::mutex mutex;  // guards the members below
  std::vector<std::weak_ptr<Registry>> all;
};

std::shared_ptr<Registries> registries_of(vram::Memory& memory) {
  return memory.kept<Registries>([] { return std::make_shared<Registries>(); });
}

}  // namespace

Result<jit::Descriptor> describe_builtin(const CatalogueEntry& entry, int32_t type) {
  const std::vector<wcuda_parameter> parameters = parameters_of(entry, type);
  wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
  descriptor.name = {entry.name.data(), entry.name.size()};
  descriptor.parameters = parameters.data();
  descriptor.parameter_count = parameters.size();
  return jit::read_descriptor(descriptor);
}

std::shared_ptr<Registry> Registry::create(std::shared_ptr<vram::Memory> memory) {
  std::shared_ptr<Registry> registry(new Registry(std::move(memory)));
  const auto registries = registries_of(*registry->memory_);
  const std::lock_guard<std::mutex> lock(registries->mutex);
  auto& all = registries->all;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& each) { return each.expired(); }),
            all.end());
  all.push_back(registry);
  return registry;
}

Registry::Entries::const_iterator Registry::position_of(std::string_view name) const {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const auto& each) { return each.second->descriptor.name == name; });
}

Result<uint32_t> Registry::put(std::shared_ptr<RegistryEntry> entry) {
  Entry replaced;  // released after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto old = position_of(entry->descriptor.name);
  uint32_t& id = entry->descriptor.kernel_id;
  if (id == 0 && old != entries_.end()) id = old->first;
  if (id == 0) {
    const uint32_t last = entries_.empty() ? 0 : entries_.rbegin()->first;
    if (last == UINT32_MAX)
      return Status::error(WCUDA_LIMIT_EXCEEDED, "kernel_id: no id is left after %u", last);
    id = std::max(last + 1, kFirstFreeId);
  }
  const auto other = entries_.find(id);
  if (other != entries_.end() && Entries::const_iterator(other) != old)
    return invalid_argument("kernel_id: %u is that of kernel '%s'", id,
                            printable(other->second->descriptor.name).c_str());
  const uint32_t given = id;
  Entry& place = entries_[given];
  if (old != entries_.end()) {
    replaced = old->second;
    if (old->first != given) entries_.erase(old);
  }
  place = std::move(entry);
  return given;
}

Result<Registry::Entry> Registry::find(uint32_t id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(id);
  if (found != entries_.end()) return Entry(found->second);
  return Status::error(WCUDA_NOT_FOUND, "kernel_id: %u is not in the registry", id);
}

Status Registry::remove(uint32_t id) {
  WCUDA_ASSIGN(const Entry entry, find(id));  // released after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(id);
  return {};
}

Registry::Entry Registry::find_name(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = position_of(name);
  return found == entries_.end() ? nullptr : found->second;
}

std::vector<Registry::Entry> Registry::list() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Entry> all;
  all.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) all.push_back(entry);
  return all;
}

Registry::Entry find_described(vram::Memory& memory, std::string_view name) {
  std::vector<std::shared_ptr<Registry>> live;  // released after the lock
  {
    const auto registries = registries_of(memory);
    const std::lock_guard<std::mutex> lock(registries->mutex);
    for (const auto& each : registries->all)
      if (auto registry = each.lock()) live.push_back(std::move(registry));
  }
  for (auto registry = live.rbegin(); registry != live.rend(); ++registry) {
    auto found = (*registry)->find_name(name);
    if (found && !found->builtin) return found;
  }
  return nullptr;
}

}  // namespace wcuda::compute
