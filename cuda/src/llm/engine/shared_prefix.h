// Rows of a step whose sequences share leading pages, which no row of the step writes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "llm/engine/ticket.h"

namespace wcuda::engine {

// A row of one token.
struct PrefixRow {
  const uint32_t* pages;
  uint32_t page_count;  // that end before its token; of a draft, before the token of its row
};
// Returns those of a ticket, of which each row has one token.
std::vector<PrefixRow> prefix_rows(const std::vector<Row>& rows);

// Consecutive rows with the same first `pages` pages.
struct SharedPrefix {
  uint32_t row, row_count;
  uint32_t pages;  // an even number
};

// A kernel for shared pages needs some 15 us a layer and a thousandth of that for each page it need
// not read again (8B on an H200): steps that save less have none.
constexpr uint32_t kSharedPagesMin = 8;  // of a row
constexpr uint32_t kSharedPagesSaved = 512;

// Returns disjoint groups in ascending order; empty where they would save too little.
std::vector<SharedPrefix> find_shared_prefixes(const std::vector<PrefixRow>& rows);

}  // namespace wcuda::engine
