// Which classes of steps have captured graphs. Pure, so that it is tested without a device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace wcuda::engine {

// The graphs of steps whose rows have one token each are kept. Steps with longer rows have many
// classes: such a step becomes a graph when its class occurs again, and at most `limit` of these
// graphs exist. One that has not been used for `idle_steps` steps with longer rows is replaced; if
// all are in use, further classes have none, because capturing costs more than a launch gains.
template <class Key, class Graph>
class GraphTable {
 public:
  GraphTable(uint32_t limit, uint64_t idle_steps) : limit_(limit), idle_steps_(idle_steps) {}

  // Notes a step. Returns the place of its graph, null if it is to be captured now; or null if the
  // step has no graph. Classes `key` and `twin` become known together.
  std::unique_ptr<Graph>* find(const Key& key, const Key& twin, bool has_long_rows) {
    const auto [place, is_new] = slots_.try_emplace(key);
    if (is_new) slots_.try_emplace(twin);
    Slot& slot = place->second;
    slot.has_long_rows = has_long_rows;
    if (has_long_rows) slot.last_step = ++step_;
    if (slot.graph == nullptr && has_long_rows && (is_new || !make_room())) return nullptr;
    return &slot.graph;
  }
  void clear() { slots_.clear(); }

 private:
  struct Slot {
    std::unique_ptr<Graph> graph;
    bool has_long_rows = false;
    uint64_t last_step = 0;
  };

  // Returns whether there is room for one more graph of longer rows.
  bool make_room() {
    uint32_t count = 0;
    Slot* oldest = nullptr;
    for (auto& [key, slot] : slots_) {
      if (slot.graph == nullptr || !slot.has_long_rows) continue;
      ++count;
      if (oldest == nullptr || slot.last_step < oldest->last_step) oldest = &slot;
    }
    if (count < limit_) return true;
    if (oldest == nullptr || step_ - oldest->last_step < idle_steps_) return false;
    oldest->graph.reset();
    return true;
  }

  const uint32_t limit_;
  const uint64_t idle_steps_;
  uint64_t step_ = 0;  // steps with longer rows so far
  std::map<Key, Slot> slots_;
};

}  // namespace wcuda::engine
