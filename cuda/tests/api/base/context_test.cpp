// Sections 4, 5, 6 and 13 of the header on the host backend, through the C interface alone.
#include "support/context.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace wcuda::testing {
namespace {

TEST(Context, host_reports_what_it_is) {
  const TestContext context;
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;

  ASSERT_EQ(wcuda_context_info_get(context.handle(), &info, nullptr), WCUDA_OK);

  EXPECT_EQ(info.backend, WCUDA_BACKEND_HOST);
  EXPECT_EQ(info.ordinal, 0);
  EXPECT_GE(info.host_thread_count, 1u);
  EXPECT_STREQ(info.fallback_reason, "");
  EXPECT_EQ(wcuda_context_synchronize(context.handle(), nullptr), WCUDA_OK);
}

TEST(Context, auto_uses_cuda_or_says_why_not) {
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  wcuda_context context;
  wcuda_error error;
  ASSERT_EQ(wcuda_context_create(&options, &context, &error), WCUDA_OK) << error.message;
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;

  ASSERT_EQ(wcuda_context_info_get(context, &info, nullptr), WCUDA_OK);

  if (info.backend == WCUDA_BACKEND_CUDA) {
    EXPECT_STREQ(info.fallback_reason, "");
  } else {
    EXPECT_EQ(std::string(info.fallback_reason).rfind("no CUDA device: ", 0), 0u)
        << info.fallback_reason;
  }
  wcuda_context_destroy(context);
}

TEST(Context, cuda_without_a_device_is_an_error_with_the_reason) {
  int32_t count = -7;
  wcuda_error error;
  const wcuda_status status = wcuda_device_count(WCUDA_BACKEND_CUDA, &count, &error);
  if (status == WCUDA_OK) GTEST_SKIP() << "there is a device";

  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_CUDA;
  wcuda_context context{77};

  EXPECT_TRUE(status == WCUDA_NO_DEVICE || status == WCUDA_NOT_AVAILABLE) << status;
  EXPECT_EQ(std::string(error.message).rfind("no CUDA device: ", 0), 0u) << error.message;
  EXPECT_EQ(count, -7);
  EXPECT_EQ(wcuda_context_create(&options, &context, &error), status);
  EXPECT_EQ(context.id, 77u);
}

TEST(Context, create_refuses_misuse_and_leaves_the_output) {
  wcuda_context context{77};
  wcuda_error error;
  const auto create = [&](auto&& change) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = WCUDA_BACKEND_HOST;
    change(options);
    return wcuda_context_create(&options, &context, &error);
  };
  using Options = wcuda_context_options;

  EXPECT_EQ(create([](Options& o) { o.abi_version = 0; }), WCUDA_ABI_MISMATCH);
  EXPECT_STREQ(error.message, "abi_version: the caller's header has 0, this library 1");
  EXPECT_EQ(create([](Options& o) { o.struct_size = 8; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.backend = 99; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.backend = WCUDA_BACKEND_VULKAN; }), WCUDA_NOT_AVAILABLE);
  EXPECT_EQ(create([](Options& o) { o.ordinal = -1; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.ordinal = 1; }), WCUDA_NO_DEVICE);
  EXPECT_EQ(create([](Options& o) { o.flags = 1; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.host_thread_count = 100000; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_create(nullptr, &context, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(context.id, 77u);
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_HOST;
  EXPECT_EQ(wcuda_context_create(&options, nullptr, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "context is NULL");
}

TEST(Context, options_of_a_newer_header_pass_when_the_rest_is_zero) {
  struct {
    wcuda_context_options known;
    uint64_t later;
  } options = {WCUDA_CONTEXT_OPTIONS_INIT, 0};
  options.known.backend = WCUDA_BACKEND_HOST;
  options.known.struct_size = sizeof(options);
  wcuda_context context;

  ASSERT_EQ(wcuda_context_create(&options.known, &context, nullptr), WCUDA_OK);
  wcuda_context_destroy(context);
  options.later = 1;
  EXPECT_EQ(wcuda_context_create(&options.known, &context, nullptr), WCUDA_UNSUPPORTED);
}

TEST(Context, stale_and_foreign_handles_are_refused_everywhere) {
  wcuda_context stale;
  {
    const TestContext context;
    stale = context.handle();
  }
  const TestBuffer buffer(TestContext().handle(), 64);  // outlives its context
  for (const wcuda_context bad :
       {stale, wcuda_context{0}, wcuda_context{~uint64_t{0}}, wcuda_context{buffer.handle().id}}) {
    wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
    wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
    wcuda_health health = WCUDA_HEALTH_INIT;
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = 1;
    wcuda_buffer made;
    wcuda_pinned pinned;
    uint64_t count;
    EXPECT_EQ(wcuda_context_info_get(bad, &info, nullptr), WCUDA_INVALID_HANDLE);
    EXPECT_EQ(wcuda_context_synchronize(bad, nullptr), WCUDA_INVALID_HANDLE);
    EXPECT_EQ(wcuda_context_memory_get(bad, 0, &memory, nullptr), WCUDA_INVALID_HANDLE);
    EXPECT_EQ(wcuda_context_ledger_list(bad, 0, nullptr, 0, &count, nullptr), WCUDA_INVALID_HANDLE);
    EXPECT_EQ(wcuda_health_get(bad, &health, nullptr), WCUDA_INVALID_HANDLE);
    EXPECT_EQ(wcuda_buffer_create(bad, &options, &made, nullptr), WCUDA_INVALID_HANDLE);
    EXPECT_EQ(wcuda_pinned_create(bad, 1, &pinned, nullptr), WCUDA_INVALID_HANDLE);
    wcuda_context_destroy(bad);  // does nothing
  }
  uint64_t bytes = 0;
  EXPECT_EQ(wcuda_buffer_size_get(buffer.handle(), &bytes, nullptr), WCUDA_OK);
}

TEST(Context, outputs_of_every_size_rule_are_checked) {
  const TestContext context;
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
  wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
  wcuda_health health = WCUDA_HEALTH_INIT;
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  info.struct_size = memory.struct_size = health.struct_size = caps.struct_size = 4;

  EXPECT_EQ(wcuda_context_info_get(context.handle(), &info, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_info_get(context.handle(), nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_memory_get(context.handle(), 0, &memory, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_memory_get(context.handle(), 0, nullptr, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_health_get(context.handle(), &health, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_health_get(context.handle(), nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_HOST, 0, &caps, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_HOST, 0, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_count(WCUDA_BACKEND_HOST, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
}

TEST(Device, host_has_one_with_caps) {
  int32_t count = 0;
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;

  ASSERT_EQ(wcuda_device_count(WCUDA_BACKEND_HOST, &count, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_HOST, 0, &caps, nullptr), WCUDA_OK);

  EXPECT_EQ(count, 1);
  EXPECT_EQ(caps.backend, WCUDA_BACKEND_HOST);
  EXPECT_EQ(caps.name_bytes, std::strlen(caps.name));
  EXPECT_GT(caps.name_bytes, 0u);
  EXPECT_GT(caps.total_memory, uint64_t{1} << 28);
  EXPECT_GE(caps.multiprocessor_count, 1);
}

TEST(Device, bad_backend_and_ordinal_are_refused) {
  int32_t count;
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;

  EXPECT_EQ(wcuda_device_count(WCUDA_BACKEND_AUTO, &count, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_count(99, &count, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_HOST, 1, &caps, nullptr), WCUDA_NO_DEVICE);
  EXPECT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_HOST, -1, &caps, nullptr), WCUDA_INVALID_ARGUMENT);
}

TEST(LedgerApi, counts_by_purpose_with_peak_and_totals) {
  const TestContext context(1 << 20);  // the capacity, too
  {
    const TestBuffer weights(context.handle(), 1000, WCUDA_PURPOSE_WEIGHTS, "blk.0");
    const TestBuffer user(context.handle(), 24);
    wcuda_pinned pinned;
    ASSERT_EQ(wcuda_pinned_create(context.handle(), 4096, &pinned, nullptr), WCUDA_OK);

    EXPECT_EQ(context.memory(WCUDA_PURPOSE_WEIGHTS).current_bytes, 1000u);
    EXPECT_EQ(context.memory(WCUDA_PURPOSE_USER).current_bytes, 24u);
    EXPECT_EQ(context.memory(WCUDA_PURPOSE_STAGING).current_bytes, 4096u);
    const wcuda_memory_info all = context.memory(WCUDA_PURPOSE_ANY);
    EXPECT_EQ(all.current_bytes, 1024u);  // staging is host memory
    EXPECT_EQ(all.allocation_count, 2u);
    EXPECT_EQ(all.device_free_bytes, all.device_total_bytes - 1024);
    EXPECT_EQ(all.budget_bytes, uint64_t{1} << 20);
    wcuda_pinned_destroy(pinned);
  }
  const TestBuffer later(context.handle(), 10);

  const wcuda_memory_info all = context.memory(WCUDA_PURPOSE_ANY);
  EXPECT_EQ(all.current_bytes, 10u);
  EXPECT_EQ(all.peak_bytes, 1024u);
  EXPECT_EQ(all.allocation_count, 1u);
  EXPECT_EQ(all.total_allocation_count, 3u);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_STAGING).peak_bytes, 4096u);
}

TEST(LedgerApi, lists_live_allocations_oldest_first) {
  const TestContext context;
  const TestBuffer first(context.handle(), 1, WCUDA_PURPOSE_KV, "kv");
  { const TestBuffer gone(context.handle(), 2); }
  const TestBuffer third(context.handle(), 3, WCUDA_PURPOSE_SCRATCH, std::string(100, 't'));
  wcuda_ledger_entry entries[3];
  std::memset(entries, 0x5a, sizeof(entries));
  entries[0].struct_size = sizeof(entries[0]);
  uint64_t count = 0;

  ASSERT_EQ(wcuda_context_ledger_list(context.handle(), 0, entries, 3, &count, nullptr), WCUDA_OK);

  ASSERT_EQ(count, 2u);
  EXPECT_EQ(entries[0].bytes, 1u);
  EXPECT_EQ(entries[0].purpose, WCUDA_PURPOSE_KV);
  EXPECT_STREQ(entries[0].tag, "kv");
  EXPECT_EQ(entries[0].tag_bytes, 2u);
  EXPECT_EQ(entries[0].sequence_number, 1u);
  EXPECT_EQ(entries[1].sequence_number, 3u);
  EXPECT_EQ(entries[1].tag, std::string(63, 't'));
  EXPECT_EQ(entries[2].bytes, 0x5a5a5a5a5a5a5a5au);  // past the count: untouched
  uint64_t short_count = 0;
  ASSERT_EQ(wcuda_context_ledger_list(context.handle(), 0, entries, 1, &short_count, nullptr),
            WCUDA_OK);
  EXPECT_EQ(short_count, 2u);
  EXPECT_EQ(wcuda_context_ledger_list(context.handle(), 0, nullptr, 1, &count, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_ledger_list(context.handle(), 0, entries, 1, nullptr, nullptr),
            WCUDA_INVALID_ARGUMENT);
}

TEST(LedgerApi, unknown_purpose_is_refused) {
  const TestContext context;
  wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;

  EXPECT_EQ(wcuda_context_memory_get(context.handle(), 8, &info, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_memory_get(context.handle(), -1, &info, nullptr), WCUDA_INVALID_ARGUMENT);
}

TEST(HealthApi, reports_the_ledger_and_ok) {
  const TestContext context(1 << 20);
  const TestBuffer buffer(context.handle(), 5000);
  wcuda_health health = WCUDA_HEALTH_INIT;

  ASSERT_EQ(wcuda_health_get(context.handle(), &health, nullptr), WCUDA_OK);

  EXPECT_EQ(health.state, WCUDA_HEALTH_OK) << health.message;
  EXPECT_STREQ(health.message, "");
  EXPECT_EQ(health.ledger_bytes, 5000u);
  EXPECT_EQ(health.allocation_count, 1u);
  EXPECT_EQ(health.nonresident_count, 0u);
  EXPECT_EQ(health.temperature_celsius, -1);
  EXPECT_EQ(health.device_free_bytes, health.device_total_bytes - 5000);
  EXPECT_GT(health.duration_ns, 0u);
}

}  // namespace
}  // namespace wcuda::testing
