// Makes `operator new` throw std::bad_alloc on demand, to prove that every entry point survives it,
// and counts its calls.
#pragma once

#include <cstdint>

namespace wcuda::testing {

// While one lives, this thread's k-th call of operator new from now on (k = 1: the next) throws
// std::bad_alloc, once. Other threads are not touched.
class FailAllocation {
 public:
  explicit FailAllocation(int64_t k);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
  // True once the failure has happened: false after a run means it made fewer than k allocations.
  bool happened() const;
};

// The calls of operator new on this thread so far.
int64_t allocation_count();

}  // namespace wcuda::testing
