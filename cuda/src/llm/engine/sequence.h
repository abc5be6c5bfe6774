// The state of one sequence on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace wcuda::engine {

constexpr int32_t kUnknownToken = -1;  // sampled by a step in flight
constexpr uint32_t kNoDrafts = UINT32_MAX;

// A row in flight whose tokens are part of a sequence. It is a row of the sequence itself, or of
// the sequence from which it was forked.
//
// After drafts in flight, of which perhaps not all are accepted, positions are bounds: those that
// follow if all are. Engine::finish corrects them.
struct PendingRow {
  uint64_t ticket;
  uint32_t row;
  uint32_t first_position;
  uint32_t drafted_from = kNoDrafts;  // position of its first draft that is part of the sequence
};

struct Sequence {
  uint32_t slot = 0;
  bool alive = true;
  std::vector<uint32_t> pages;      // page of each 64 positions, exactly as many as length needs
  std::vector<int32_t> tokens;      // (length) kUnknownToken if not known yet
  int32_t sampled = kUnknownToken;  // token drawn for position `length`, once known
  bool can_feed = false;            // a token was, or is being, drawn for position `length`
  bool awaits_sampling = false;     // has a late row that Engine::sample has not had yet
  uint32_t state_length = 0;        // length of which the engine of a draft head has the state
  std::vector<PendingRow> pending;  // at most one per ticket in flight, oldest first

  uint32_t length() const { return static_cast<uint32_t>(tokens.size()); }
  // Up to the drafts in flight, of which only the first may remain.
  uint32_t verified_length() const {
    uint32_t verified = length();
    for (const PendingRow& row : pending) verified = std::min(verified, row.drafted_from);
    return verified;
  }
};

}  // namespace wcuda::engine
