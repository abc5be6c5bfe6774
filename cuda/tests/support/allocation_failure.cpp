#include "support/allocation_failure.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t countdown = 0;  // 0: off, or has happened
thread_local bool has_happened = false;
thread_local int64_t count = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  ++count;
  if (countdown > 0 && --countdown == 0) {
    has_happened = true;
    throw std::bad_alloc();
  }
  if (bytes == 0) bytes = 1;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
// The standard library's nothrow forms would call the ones above, a sanitizer's would not.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return allocate(bytes, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace wcuda::testing {

FailAllocation::FailAllocation(int64_t k) {
  has_happened = false;
  countdown = k;
}
FailAllocation::~FailAllocation() { countdown = 0; }
bool FailAllocation::happened() const { return has_happened; }

int64_t allocation_count() { return count; }

}  // namespace wcuda::testing
