// A table of slots with generations. A slot whose generations are used up is retired, so that no id
// is used twice.
#include "api/base/handles.h"

#include <atomic>
#include <cinttypes>
#include <mutex>
#include <vector>

namespace wcuda::api {
namespace {

// id = kind (8 bits) | generation (32) | slot (24).
constexpr int kSlotBits = 24;
constexpr int kGenerationBits = 32;
constexpr uint32_t kChunkSlots = 1024;
constexpr uint32_t kChunkCount = (1u << kSlotBits) / kChunkSlots;
constexpr int kKindCount = 20;

struct Slot {
  std::mutex mutex;         // a slot's own: calls on different objects never meet
  uint32_t generation = 0;  // of the last id issued
  Kind kind{};
  const void* tag = nullptr;
  std::shared_ptr<void> object;  // null: free
};

struct Table {
  std::atomic<Slot*> chunks[kChunkCount] = {};  // chunks are never moved or freed
  std::atomic<uint64_t> live[kKindCount] = {};
  std::mutex mutex;  // guards the members below
  uint32_t slot_count = 0;
  std::vector<uint32_t> free_slots;
};

// Never destroyed: handles may be used while static objects are destroyed.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

uint64_t make_id(Kind kind, uint32_t generation, uint32_t slot) {
  return (uint64_t{static_cast<uint8_t>(kind)} << (kSlotBits + kGenerationBits)) |
         (uint64_t{generation} << kSlotBits) | slot;
}
uint32_t slot_of(uint64_t id) { return id & ((1u << kSlotBits) - 1); }
uint32_t generation_of(uint64_t id) { return static_cast<uint32_t>(id >> kSlotBits); }
uint32_t kind_of(uint64_t id) { return static_cast<uint32_t>(id >> (kSlotBits + kGenerationBits)); }

Slot* find_slot(uint64_t id) {
  const uint32_t index = slot_of(id);
  Slot* const chunk = table().chunks[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk ? &chunk[index % kChunkSlots] : nullptr;
}

// Returns the index of a free slot; grows the table by a chunk if there is none.
Result<uint32_t> take_slot() {
  Table& t = table();
  std::lock_guard<std::mutex> lock(t.mutex);
  if (t.free_slots.empty()) {
    const uint32_t chunk = t.slot_count / kChunkSlots;
    if (chunk == kChunkCount)
      return Status::error(WCUDA_LIMIT_EXCEEDED, "all %u handles are in use or used up",
                           t.slot_count);
    // Reserves room for every slot, so that freeing one cannot fail.
    t.free_slots.reserve(t.slot_count + kChunkSlots);
    t.chunks[chunk].store(new Slot[kChunkSlots], std::memory_order_release);
    for (uint32_t i = kChunkSlots; i > 0; --i) t.free_slots.push_back(t.slot_count + i - 1);
    t.slot_count += kChunkSlots;
  }
  const uint32_t index = t.free_slots.back();
  t.free_slots.pop_back();
  return index;
}

Status invalid(const char* argument, Kind kind, uint64_t id, const char* why) {
  return Status::error(WCUDA_INVALID_HANDLE, "%s: handle 0x%016" PRIx64 " %s; needed: %s", argument,
                       id, why, kind_name(kind));
}

}  // namespace

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[kKindCount] = {
      "",         "context", "buffer",         "pinned buffer", "gguf",
      "cancel",   "model",   "engine",         "sequence",      "program",
      "module",   "kernel",  "stream",         "event",         "kernel cache",
      "registry", "backend", "backend kernel", "failover",      "zctl session"};
  const auto index = static_cast<uint8_t>(kind);
  return index < kKindCount ? kNames[index] : "";
}

namespace detail {

Result<uint64_t> insert(Kind kind, std::shared_ptr<void> object, const void* tag) {
  WCUDA_CHECK(object != nullptr);
  WCUDA_ASSIGN(const uint32_t index, take_slot());
  Slot& slot = *find_slot(index);
  std::lock_guard<std::mutex> lock(slot.mutex);
  ++slot.generation;
  slot.kind = kind;
  slot.tag = tag;
  slot.object = std::move(object);
  table().live[static_cast<uint8_t>(kind)].fetch_add(1, std::memory_order_relaxed);
  return make_id(kind, slot.generation, index);
}

Result<std::shared_ptr<void>> resolve(Kind kind, uint64_t id, const char* argument,
                                      const void* tag) {
  if (id == 0) return invalid(argument, kind, id, "is the null handle");
  const uint32_t id_kind = kind_of(id);
  Slot* const slot = find_slot(id);
  if (id_kind == 0 || id_kind >= kKindCount || generation_of(id) == 0 || !slot)
    return invalid(argument, kind, id, "was never issued");
  if (id_kind != static_cast<uint8_t>(kind)) {
    const std::string why = std::string("is a ") + kind_name(static_cast<Kind>(id_kind));
    return invalid(argument, kind, id, why.c_str());
  }
  std::lock_guard<std::mutex> lock(slot->mutex);
  if (slot->generation == generation_of(id) && slot->kind == kind && slot->object) {
    WCUDA_CHECK(slot->tag == tag);
    return slot->object;
  }
  const bool was_issued = generation_of(id) <= slot->generation;
  return invalid(argument, kind, id, was_issued ? "was destroyed" : "was never issued");
}

}  // namespace detail

std::shared_ptr<void> remove(Kind kind, uint64_t id) noexcept {
  Slot* const slot = id == 0 ? nullptr : find_slot(id);
  if (!slot || kind_of(id) != static_cast<uint8_t>(kind)) return nullptr;
  std::shared_ptr<void> object;
  uint32_t generation;
  {
    std::lock_guard<std::mutex> lock(slot->mutex);
    if (slot->generation != generation_of(id) || slot->kind != kind) return nullptr;
    object = std::move(slot->object);
    slot->object = nullptr;
    generation = slot->generation;
  }
  if (!object) return nullptr;
  Table& t = table();
  t.live[static_cast<uint8_t>(kind)].fetch_sub(1, std::memory_order_relaxed);
  if (generation != UINT32_MAX) {
    std::lock_guard<std::mutex> lock(t.mutex);
    t.free_slots.push_back(slot_of(id));
  }
  return object;
}

uint64_t live_count(Kind kind) noexcept {
  return table().live[static_cast<uint8_t>(kind)].load(std::memory_order_relaxed);
}

}  // namespace wcuda::api
