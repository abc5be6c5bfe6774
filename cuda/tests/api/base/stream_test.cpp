// Section 17 of the header: streams, events and copies that do not wait, on HOST and (Gpu…) on
// CUDA.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "support/context.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

class StreamBase {
 protected:
  explicit StreamBase(int32_t backend) : context_(0, backend) {}

  void copies_pass_through_pinned_memory();
  void events_order_time_and_wait();
  void what_a_copy_uses_may_be_destroyed();

  wcuda_stream stream(int32_t priority = 0) {
    wcuda_stream stream{0};
    EXPECT_EQ(wcuda_stream_create(context_.handle(), priority, &stream, &error_), WCUDA_OK)
        << error_.message;
    return stream;
  }
  wcuda_event event() {
    wcuda_event event{0};
    EXPECT_EQ(wcuda_event_create(context_.handle(), &event, &error_), WCUDA_OK) << error_.message;
    return event;
  }
  wcuda_pinned pinned(uint64_t bytes, uint8_t** data) {
    wcuda_pinned pinned{0};
    EXPECT_EQ(wcuda_pinned_create(context_.handle(), bytes, &pinned, &error_), WCUDA_OK)
        << error_.message;
    void* address = nullptr;
    uint64_t size = 0;
    EXPECT_EQ(wcuda_pinned_data_get(pinned, &address, &size, nullptr), WCUDA_OK);
    *data = static_cast<uint8_t*>(address);
    return pinned;
  }

  TestContext context_;
  wcuda_error error_{};
};

void StreamBase::copies_pass_through_pinned_memory() {
  constexpr uint64_t kBytes = 100000;
  const TestBuffer buffer(context_.handle(), kBytes);
  uint8_t *in = nullptr, *out = nullptr;
  const wcuda_pinned source = pinned(kBytes, &in), target = pinned(kBytes, &out);
  std::iota(in, in + kBytes, uint8_t{3});
  for (const wcuda_stream on : {wcuda_stream{0}, stream(0), stream(-1)}) {
    std::memset(out, 0, kBytes);
    ASSERT_EQ(wcuda_buffer_write_async(buffer.handle(), 1, source, 7, 5000, on, &error_), WCUDA_OK)
        << error_.message;
    ASSERT_EQ(wcuda_buffer_read_async(buffer.handle(), 1, target, 100, 5000, on, &error_), WCUDA_OK)
        << error_.message;
    const wcuda_event done = event();
    ASSERT_EQ(wcuda_event_record(done, on, &error_), WCUDA_OK) << error_.message;
    ASSERT_EQ(wcuda_event_wait(done, -1, &error_), WCUDA_OK) << error_.message;

    EXPECT_EQ(std::memcmp(out + 100, in + 7, 5000), 0);
    EXPECT_EQ(out[99] | out[5100], 0);
    wcuda_event_destroy(done);
    if (on.id != 0) wcuda_stream_destroy(on);
  }
  EXPECT_EQ(wcuda_buffer_write_async(buffer.handle(), kBytes, source, 0, 1, {0}, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_buffer_read_async(buffer.handle(), 0, target, kBytes, 1, {0}, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_buffer_write_async(buffer.handle(), 0, source, 0, 0, {0}, &error_), WCUDA_OK);
  wcuda_pinned_destroy(source);
  wcuda_pinned_destroy(target);
}

void StreamBase::events_order_time_and_wait() {
  const wcuda_stream first = stream(), second = stream();
  const wcuda_event begin = event(), end = event(), never = event();
  int32_t done = 0;
  EXPECT_EQ(wcuda_event_done_get(never, &done, nullptr), WCUDA_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(wcuda_event_wait(never, 0, nullptr), WCUDA_OK);
  double milliseconds = -7;
  EXPECT_EQ(wcuda_event_elapsed_get(never, end, &milliseconds, nullptr), WCUDA_INVALID_STATE);
  EXPECT_EQ(milliseconds, -7);

  ASSERT_EQ(wcuda_event_record(begin, first, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_event_order(begin, second, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_event_record(end, second, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_event_wait(end, -1, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_stream_synchronize(second, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_event_elapsed_get(begin, end, &milliseconds, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_GE(milliseconds, 0);

  wcuda_stream_destroy(first);
  EXPECT_EQ(wcuda_event_record(begin, first, &error_), WCUDA_INVALID_HANDLE);
  EXPECT_NE(std::string(error_.message).find("needed: stream"), std::string::npos);
  wcuda_stream_destroy(second);
  for (const wcuda_event event : {begin, end, never}) wcuda_event_destroy(event);
  EXPECT_EQ(wcuda_event_wait(end, 0, nullptr), WCUDA_INVALID_HANDLE);
}

void StreamBase::what_a_copy_uses_may_be_destroyed() {
  constexpr uint64_t kBytes = 8 << 20;
  for (int round = 0; round < 4; ++round) {
    uint8_t* data = nullptr;
    const wcuda_pinned host = pinned(kBytes, &data);
    const wcuda_stream on = stream();
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = kBytes;
    wcuda_buffer buffer{0};
    ASSERT_EQ(wcuda_buffer_create(context_.handle(), &options, &buffer, nullptr), WCUDA_OK);
    ASSERT_EQ(wcuda_buffer_write_async(buffer, 0, host, 0, kBytes, on, nullptr), WCUDA_OK);
    // In every order.
    if (round & 1) wcuda_stream_destroy(on);
    if (round & 2) wcuda_pinned_destroy(host);
    wcuda_buffer_destroy(buffer);
    if (!(round & 2)) wcuda_pinned_destroy(host);
    if (!(round & 1)) wcuda_stream_destroy(on);
  }
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_STAGING).current_bytes, 0u);
  EXPECT_EQ(wcuda_context_synchronize(context_.handle(), &error_), WCUDA_OK) << error_.message;
}

class Streams : public StreamBase, public ::testing::Test {
 protected:
  Streams() : StreamBase(WCUDA_BACKEND_HOST) {}
};
class GpuStreams : public StreamBase, public ::testing::Test {
 protected:
  GpuStreams() : StreamBase(WCUDA_BACKEND_CUDA) {}
};
#define WCUDA_BOTH(test)            \
  TEST_F(Streams, test) { test(); } \
  TEST_F(GpuStreams, test) { test(); }
WCUDA_BOTH(copies_pass_through_pinned_memory)
WCUDA_BOTH(events_order_time_and_wait)
WCUDA_BOTH(what_a_copy_uses_may_be_destroyed)

TEST_F(Streams, things_of_another_context_are_refused) {
  const TestContext other;
  wcuda_stream strange{0};
  ASSERT_EQ(wcuda_stream_create(other.handle(), 0, &strange, nullptr), WCUDA_OK);
  wcuda_pinned host{0};
  ASSERT_EQ(wcuda_pinned_create(other.handle(), 10, &host, nullptr), WCUDA_OK);
  const TestBuffer buffer(context_.handle(), 10);
  const wcuda_event mine = event();

  EXPECT_EQ(wcuda_event_record(mine, strange, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "stream: is of another context");
  EXPECT_EQ(wcuda_buffer_write_async(buffer.handle(), 0, host, 0, 1, {0}, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "buffer and pinned are of different contexts");
  wcuda_event_destroy(mine);
  wcuda_stream_destroy(strange);
  wcuda_pinned_destroy(host);
}

TEST_F(Streams, the_hosts_are_not_a_drivers) {
  void* native = this;
  wcuda_stream out{77};
  EXPECT_EQ(wcuda_stream_native_get(context_.handle(), {0}, &native, &error_), WCUDA_UNSUPPORTED);
  EXPECT_EQ(wcuda_stream_borrow(context_.handle(), this, &out, &error_), WCUDA_UNSUPPORTED);
  EXPECT_EQ(wcuda_stream_borrow(context_.handle(), nullptr, &out, &error_), WCUDA_INVALID_ARGUMENT);
  const TestContext other;
  wcuda_stream strange{0};
  ASSERT_EQ(wcuda_stream_create(other.handle(), 0, &strange, nullptr), WCUDA_OK);
  EXPECT_EQ(wcuda_stream_native_get(context_.handle(), strange, &native, &error_),
            WCUDA_INVALID_ARGUMENT);
  wcuda_stream_destroy(strange);
  EXPECT_EQ(native, this);
  EXPECT_EQ(out.id, 77u);
}

TEST_F(GpuStreams, an_borrowed_one_is_used_and_left_alone) {
  const wcuda_stream owned = stream();
  void *native = nullptr, *own = nullptr, *again = nullptr;
  ASSERT_EQ(wcuda_stream_native_get(context_.handle(), owned, &native, &error_), WCUDA_OK);
  ASSERT_EQ(wcuda_stream_native_get(context_.handle(), {0}, &own, &error_), WCUDA_OK);
  ASSERT_TRUE(native != nullptr && own != nullptr && native != own);

  wcuda_stream borrowed{0};
  ASSERT_EQ(wcuda_stream_borrow(context_.handle(), native, &borrowed, &error_), WCUDA_OK)
      << error_.message;
  ASSERT_EQ(wcuda_stream_native_get(context_.handle(), borrowed, &again, &error_), WCUDA_OK);
  EXPECT_EQ(again, native);
  constexpr uint64_t kBytes = 1 << 20;
  const TestBuffer buffer(context_.handle(), kBytes);
  uint8_t *in = nullptr, *out = nullptr;
  const wcuda_pinned source = pinned(kBytes, &in), target = pinned(kBytes, &out);
  std::iota(in, in + kBytes, uint8_t{5});
  // One queue by two names: in order.
  ASSERT_EQ(wcuda_buffer_write_async(buffer.handle(), 0, source, 0, kBytes, borrowed, &error_),
            WCUDA_OK)
      << error_.message;
  ASSERT_EQ(wcuda_buffer_read_async(buffer.handle(), 0, target, 0, kBytes, owned, &error_),
            WCUDA_OK)
      << error_.message;
  wcuda_stream_destroy(borrowed);  // waits
  EXPECT_EQ(std::memcmp(in, out, kBytes), 0);
  EXPECT_EQ(wcuda_stream_synchronize(borrowed, &error_), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_stream_synchronize(owned, &error_), WCUDA_OK) << error_.message;
  wcuda_stream_destroy(owned);
  wcuda_pinned_destroy(source);
  wcuda_pinned_destroy(target);
}

TEST_F(Streams, other_priorities_are_refused) {
  wcuda_stream out{77};
  for (const int32_t priority : {1, -2, INT32_MIN})
    EXPECT_EQ(wcuda_stream_create(context_.handle(), priority, &out, &error_),
              WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(out.id, 77u);
}

// Answers "not done" `left` times.
class SlowEvents final : public WrapperBackend {
 public:
  using WrapperBackend::WrapperBackend;
  Result<bool> event_done(Event event) override {
    if (left > 0) return --left, false;
    return WrapperBackend::event_done(event);
  }
  int left = 0;
};

TEST(StreamTimeout, passes_and_leaves_the_event_to_be_waited_for_again) {
  const auto backend = std::make_shared<SlowEvents>(open_host_backend(uint64_t{1} << 20, 1).take());
  auto object = std::make_shared<api::Context>();
  object->memory = vram::Memory::create(backend, 0);
  const wcuda_context context{*api::insert(api::Kind::kContext, std::move(object))};
  wcuda_event event{0};
  wcuda_error error{};
  ASSERT_EQ(wcuda_event_create(context, &event, &error), WCUDA_OK) << error.message;

  backend->left = 1 << 30;
  EXPECT_EQ(wcuda_event_wait(event, 5, &error), WCUDA_TIMEOUT);
  EXPECT_STREQ(error.message, "event: not done after 5 ms");
  EXPECT_EQ(wcuda_event_wait(event, 0, &error), WCUDA_TIMEOUT);
  backend->left = 3;
  EXPECT_EQ(wcuda_event_wait(event, INT64_MAX, &error), WCUDA_OK) << error.message;
  wcuda_event_destroy(event);
  wcuda_context_destroy(context);
}

}  // namespace
}  // namespace wcuda::testing
