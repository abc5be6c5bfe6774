// A submit that meets every allocation failure in turn.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <new>

#include "core/base/status.h"
#include "support/allocation_failure.h"

namespace wcuda::testing {

// Submits `rows` with its k-th allocation failing, k = 1 and up, until one submit makes fewer than
// k allocations. That one must be accepted and each before it must end with
// WCUDA_OUT_OF_HOST_MEMORY, returned or thrown. After each, `check(failed, k)` looks at what it
// left. Returns the number of submits that failed; gives up after 200.
template <class Engine, class Rows, class Check>
int64_t fail_each_allocation_of_submit(Engine& engine, const Rows& rows, Check check) {
  int64_t failures = 0;
  for (bool happened = true; happened; failures += happened) {
    Status status;
    {
      const FailAllocation failure(failures + 1);
      try {
        status = engine.submit(rows).status();
      } catch (const std::bad_alloc&) {
        status = Status::error(WCUDA_OUT_OF_HOST_MEMORY, "thrown");
      }
      happened = failure.happened();
    }
    EXPECT_EQ(status.code(), happened ? WCUDA_OUT_OF_HOST_MEMORY : WCUDA_OK);
    check(happened, failures + 1);
    if (failures >= 200) {
      ADD_FAILURE() << "still allocating after " << failures << " failures";
      break;
    }
  }
  return failures;
}

}  // namespace wcuda::testing
