#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/base/elements.h"
#include "core/base/log.h"
#include "support/allocation_failure.h"

namespace wcuda::api {
namespace {

TEST(Guard, success_leaves_the_error_untouched) {
  wcuda_error error;
  std::memset(&error, 0x5a, sizeof(error));
  const wcuda_error before = error;

  EXPECT_EQ(guarded(&error, [] { return Status(); }), WCUDA_OK);

  EXPECT_EQ(std::memcmp(&error, &before, sizeof(error)), 0);
}

TEST(Guard, failure_fills_code_native_code_and_message) {
  wcuda_error error;

  const auto status = guarded(
      &error, [] { return Status::native_error(WCUDA_IO, 2, "open '%s': no such file", "a"); });

  EXPECT_EQ(status, WCUDA_IO);
  EXPECT_EQ(error.code, WCUDA_IO);
  EXPECT_EQ(error.native_code, 2);
  EXPECT_STREQ(error.message, "open 'a': no such file");
  EXPECT_EQ(error.message_bytes, std::strlen(error.message));
}

TEST(Guard, a_null_error_is_allowed) {
  EXPECT_EQ(guarded(nullptr, [] { return Status::error(WCUDA_IO, "x"); }), WCUDA_IO);
}

TEST(Guard, exceptions_become_statuses) {
  wcuda_error error;

  EXPECT_EQ(guarded(&error, []() -> Status { throw std::bad_alloc(); }), WCUDA_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(error.code, WCUDA_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(guarded(&error, []() -> Status { throw std::runtime_error("why"); }), WCUDA_INTERNAL);
  EXPECT_STREQ(error.message, "why");
  EXPECT_EQ(guarded(&error, []() -> Status { throw 5; }), WCUDA_INTERNAL);
  EXPECT_STREQ(error.message, "an exception of unknown type");
}

TEST(Guard, an_entry_point_survives_running_out_of_memory) {
  wcuda_error error;
  uint64_t count = 0;
  wcuda_status status;
  {
    testing::FailAllocation fail(1);
    status = wcuda_abi_field_list(UINT32_MAX, nullptr, 0, &count,
                                  &error);  // its failure allocates a message
    ASSERT_TRUE(fail.happened());
  }

  EXPECT_EQ(status, WCUDA_OUT_OF_HOST_MEMORY);
}

TEST(Guard, calls_inside_a_callback_are_refused) {
  wcuda_error error;
  const InCallback in_callback;

  EXPECT_EQ(guarded(&error, [] { return Status(); }), WCUDA_REENTRANT);
  EXPECT_EQ(error.code, WCUDA_REENTRANT);
}

std::vector<uint64_t>* destroyed_ids = nullptr;
Status note_id(uint64_t id) {
  destroyed_ids->push_back(id);
  if (id == 2) return Status::error(WCUDA_INVALID_HANDLE, "no such handle");
  return {};
}

TEST(Guard, a_destroy_inside_a_callback_acts_when_the_call_returns) {
  std::vector<uint64_t> ids;
  destroyed_ids = &ids;
  const auto call = [&](const auto& body) {
    EXPECT_EQ(guarded(nullptr,
                      [&] {
                        const InCallback in_callback;
                        body();
                        EXPECT_TRUE(ids.empty());
                        return Status();
                      }),
              WCUDA_OK);
  };

  call([] {
    for (const uint64_t id : {7, 0, 2, 5}) guarded_destroy("test", id, note_id);
    const InCallback deeper;
    guarded_destroy("test", 9, note_id);
  });

  EXPECT_EQ(ids, (std::vector<uint64_t>{7, 2, 5, 9})) << "in order, id 0 left out";
  ids.clear();
  guarded_destroy("test", 3, note_id);
  EXPECT_EQ(ids, std::vector<uint64_t>{3});
  ids.clear();
  call([] {});
  EXPECT_TRUE(ids.empty());
}

TEST(Guard, a_destroy_that_is_deferred_may_defer_more) {
  std::vector<uint64_t> ids;
  destroyed_ids = &ids;

  EXPECT_EQ(guarded(nullptr,
                    [] {
                      const InCallback in_callback;
                      guarded_destroy("test", 1, [](uint64_t id) {
                        (void)note_id(id);
                        const InCallback release;
                        guarded_destroy("test", 4, note_id);
                        return Status();
                      });
                      return Status();
                    }),
            WCUDA_OK);

  EXPECT_EQ(ids, (std::vector<uint64_t>{1, 4}));
}

TEST(Guard, messages_are_cut_at_a_character_border) {
  for (size_t lead = 0; lead < 4; ++lead) {
    std::string message(lead, 'x');
    while (message.size() < 600) message += "\xe2\x82\xac";  // EURO SIGN, 3 bytes
    wcuda_error error;

    fill_error(&error, WCUDA_IO, 0, message.c_str());

    EXPECT_LT(error.message_bytes, uint32_t{WCUDA_ERROR_MESSAGE_BYTES});
    EXPECT_GE(error.message_bytes, uint32_t{WCUDA_ERROR_MESSAGE_BYTES} - 3);
    EXPECT_EQ((error.message_bytes - lead) % 3, 0u);
    EXPECT_EQ(std::strlen(error.message), error.message_bytes);
    EXPECT_EQ(message.compare(0, error.message_bytes, error.message), 0);
  }
}

TEST(Guard, messages_are_one_line_of_valid_utf8) {
  wcuda_error error;

  fill_error(&error, WCUDA_IO, 0,
             "a\nb\x7f \xff \xc3\xa9 \xed\xa0\x80 \xc0\x80 \xf0\x9f\x98\x80 \xe2\x82");

  EXPECT_STREQ(error.message, "a?b? ? \xc3\xa9 ??? ?? \xf0\x9f\x98\x80 ??");
}

struct Newer {
  wcuda_health known;
  uint64_t later;
};

TEST(Guard, struct_shorter_than_the_first_version_is_refused) {
  wcuda_health health = WCUDA_HEALTH_INIT;
  constexpr uint32_t kFirst = kFirstBytes<wcuda_health>;
  static_assert(kFirst <= sizeof(health));
  health.struct_size = kFirst;
  EXPECT_TRUE(check_struct(&health, "health").ok());
  for (const uint32_t bytes : {0u, 1u, 4u, kFirst - 1, UINT32_MAX}) {
    health.struct_size = bytes;
    EXPECT_EQ(check_struct(&health, "health").code(), WCUDA_INVALID_ARGUMENT) << bytes;
  }
  EXPECT_EQ(check_struct<wcuda_health>(nullptr, "health").code(), WCUDA_INVALID_ARGUMENT);
}

TEST(Guard, unknown_tail_must_be_zero) {
  Newer newer;
  std::memset(static_cast<void*>(&newer), 0, sizeof(newer));
  newer.known.struct_size = sizeof(newer);

  EXPECT_TRUE(check_struct(&newer.known, "health").ok());
  newer.later = uint64_t{1} << 63;
  const Status status = check_struct(&newer.known, "health");

  EXPECT_EQ(status.code(), WCUDA_UNSUPPORTED);
}

TEST(Guard, write_keeps_the_callers_size_and_tail) {
  Newer newer;
  std::memset(static_cast<void*>(&newer), 0, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  newer.later = 77;
  wcuda_health value = WCUDA_HEALTH_INIT;
  value.duration_ns = 5;

  write_struct(value, &newer.known);

  EXPECT_EQ(newer.known.struct_size, sizeof(newer));
  EXPECT_EQ(newer.known.duration_ns, 5u);
  EXPECT_EQ(newer.later, 77u);
}

struct NewerArgument {
  wcuda_argument known;
  uint64_t later;
};

TEST(Guard, elements_are_found_at_the_callers_distance) {
  NewerArgument given[3];
  std::memset(static_cast<void*>(given), 0, sizeof(given));
  for (int32_t i = 0; i < 3; ++i) {
    given[i].known.struct_size = sizeof(NewerArgument);
    given[i].known.kind = i + 1;
  }

  const auto read = read_elements(&given[0].known, 3, "arguments");
  given[1].later = 1;
  const auto tail = read_elements(&given[0].known, 3, "arguments");
  given[1] = given[0];
  given[1].known.struct_size = sizeof(wcuda_argument);
  const auto mixed = read_elements(&given[0].known, 3, "arguments");

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)[2].kind, 3);
  EXPECT_EQ(tail.status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(std::string(tail.status().message()).rfind("arguments[1]: ", 0), 0u)
      << tail.status().message();
  EXPECT_EQ(mixed.status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(mixed.status().message(),
               "arguments[1]: struct_size 48, that of the first element is 56");
  EXPECT_TRUE(read_elements<wcuda_argument>(nullptr, 0, "arguments").ok());
  EXPECT_EQ(read_elements<wcuda_argument>(nullptr, 1, "arguments").status().code(),
            WCUDA_INVALID_ARGUMENT);
}

TEST(Guard, reading_elements_allocates_the_result_and_nothing_else) {
  wcuda_argument given[3];
  for (wcuda_argument& argument : given) argument = WCUDA_ARGUMENT_INIT;

  const testing::FailAllocation second(2);
  const auto read = read_elements(given, 3, "an argument whose name takes memory of its own");

  EXPECT_EQ(read->size(), 3u);
  EXPECT_FALSE(second.happened());
}

TEST(Guard, written_elements_have_the_distance_of_the_first_and_a_zero_tail) {
  NewerArgument target[2];
  std::memset(static_cast<void*>(target), 0x5a, sizeof(target));
  target[0].known.struct_size = sizeof(NewerArgument);
  target[0].later = 0;
  const OutputArray<wcuda_argument> array{&target[0].known, 2, "arguments"};
  wcuda_argument value = WCUDA_ARGUMENT_INIT;
  value.kind = 7;

  ASSERT_TRUE(array.check(2).ok());
  array.write(1, value);

  EXPECT_EQ(target[1].known.struct_size, sizeof(NewerArgument));
  EXPECT_EQ(target[1].known.kind, 7);
  EXPECT_EQ(target[1].later, 0u);
  target[0].later = 1;
  EXPECT_EQ(array.check(2).code(), WCUDA_UNSUPPORTED);
}

TEST(Guard, exclusive_use_is_busy_until_given_back) {
  Exclusive exclusive;
  {
    const auto first = ExclusiveUse::acquire(exclusive, "engine");
    const auto second = ExclusiveUse::acquire(exclusive, "engine");
    EXPECT_TRUE(first.ok());
    EXPECT_EQ(second.status().code(), WCUDA_BUSY);
  }
  EXPECT_TRUE(ExclusiveUse::acquire(exclusive, "engine").ok());
}

TEST(Guard, unknown_flag_bits_are_named) {
  EXPECT_TRUE(check_flags(5, 7, "flags").ok());
  EXPECT_STREQ(check_flags(0x18, 7, "flags").message(), "flags: unknown bits 0x18");
}

TEST(Guard, string_needs_data_when_it_has_bytes) {
  EXPECT_TRUE(check_string({nullptr, 0}, "tag").ok());
  EXPECT_EQ(check_string({nullptr, 1}, "tag").code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(check_string({"x", UINT64_MAX}, "tag").code(), WCUDA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace wcuda::api
