// InCallback: marks that this thread runs a callback of the caller.
#pragma once

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

}  // namespace wcuda
