// InCallback: marks that this thread runs a callback of the caller. Keeps work that must wait for
// its end.
#pragma once

#include <functional>

namespace wcuda {

// While one exists, C interface calls of this thread return WCUDA_REENTRANT. Put one around
// every call of a function pointer that came through the C interface.
class InCallback {
 public:
  InCallback() { ++depth(); }
  ~InCallback() { --depth(); }
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;

  static bool active() { return depth() != 0; }

 private:
  static int& depth() {
    thread_local int value = 0;
    return value;
  }
};

// Keeps work for this thread's next run_deferred() outside callbacks, in order. Throws when the
// host is out of memory.
void defer(std::function<void()> work);

// Runs what this thread has deferred; inside a callback, and inside work that it runs, nothing.
// Called where a thread leaves the C interface, and by the library's own threads between two tasks:
// no lock is held there. The work throws nothing.
void run_deferred() noexcept;

}  // namespace wcuda
