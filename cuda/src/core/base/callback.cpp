// Work that waits for the end of a callback.
#include "core/base/callback.h"

#include <memory>
#include <utility>

namespace wcuda {
namespace {

struct Node {
  std::function<void()> work;
  std::unique_ptr<Node> next;
};

// Plain pointers: a thread may leave the C interface while its thread_local objects are destroyed.
struct Queue {
  Node* first;
  Node* last;
  bool is_running;
};

Queue& queue() {
  thread_local Queue value{nullptr, nullptr, false};
  return value;
}

}  // namespace

void defer(std::function<void()> work) {
  auto node = std::make_unique<Node>();
  node->work = std::move(work);
  Queue& q = queue();
  Node* const added = node.get();
  if (q.last)
    q.last->next = std::move(node);
  else
    q.first = node.release();
  q.last = added;
}

void run_deferred() noexcept {
  Queue& q = queue();
  if (!q.first || q.is_running || InCallback::active()) return;
  q.is_running = true;
  while (q.first) {
    const std::unique_ptr<Node> node(q.first);
    q.first = node->next.release();
    if (!q.first) q.last = nullptr;
    node->work();  // may defer more
  }
  q.is_running = false;
}

}  // namespace wcuda
