#include "llm/engine/shared_prefix.h"

#include <algorithm>

namespace wcuda::engine {

std::vector<PrefixRow> prefix_rows(const std::vector<Row>& rows) {
  std::vector<PrefixRow> found;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ops::StepRow& head = rows[i - rows[i].draft_index].step;
    found.push_back({rows[i].sequence->pages.data(), head.first_position / ops::kPageTokens});
  }
  return found;
}

std::vector<SharedPrefix> find_shared_prefixes(const std::vector<PrefixRow>& rows) {
  constexpr uint32_t kPagesMax = UINT16_MAX - 1;  // as StepRow::shared_pages
  std::vector<SharedPrefix> groups;
  uint64_t saved = 0;
  for (uint32_t first = 0; first < rows.size();) {
    const PrefixRow& leader = rows[first];
    uint32_t pages = std::min(leader.page_count, kPagesMax), end = first + 1;
    for (; end < rows.size(); ++end) {
      const uint32_t limit = std::min(pages, rows[end].page_count);
      const uint32_t* const other =
          std::mismatch(leader.pages, leader.pages + limit, rows[end].pages).first;
      const auto common = static_cast<uint32_t>(other - leader.pages) / 2 * 2;
      // A row that has less in common than half of the others' prefix would cost them more.
      if (common < kSharedPagesMin || (end > first + 1 && common < pages / 2)) break;
      pages = common;
    }
    const uint32_t count = end - first;
    if (count > 1) {
      groups.push_back({first, count, pages});
      saved += uint64_t{count - 1} * pages;
    }
    first = end;
  }
  if (saved < kSharedPagesSaved) groups.clear();
  return groups;
}

}  // namespace wcuda::engine
