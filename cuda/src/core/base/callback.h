// Marks the time a thread spends inside a callback of the caller's.
#pragma once

namespace wcuda {

// While one lives, calls of the C interface made by this thread are WCUDA_REENTRANT. Put one around
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

}  // namespace wcuda
