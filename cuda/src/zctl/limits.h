// What a session permits.
#pragma once

#include <cstdint>
#include <vector>

#include "zctl/arguments.h"

namespace wcuda::zctl {

constexpr uint32_t kNoBudget = 1u << 31;  // budgets from here on are none

struct SessionLimits {
  uint32_t payload_bytes = 1u << 20;
  uint32_t arguments = 64;
  uint32_t rank = kRankMax;
  uint32_t message_bytes = 1024;
  uint64_t device_bytes = uint64_t{1} << 30;
  uint32_t budget_ms = 30000;
};

struct Policy {
  bool has_allow_list = false;
  std::vector<uint32_t> allowed;  // ids, ascending
  bool permits_non_deterministic = false;
  bool permits_modules = false;
};

// Ok, or kDenied with the reason.
Outcome check_permitted(const Policy& policy, const KernelInfo& kernel);

// Cuts UTF-8 between two characters.
void cut(std::string* text, uint64_t bytes);

}  // namespace wcuda::zctl
