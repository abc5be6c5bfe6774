#include "core/base/status.h"

#include <gtest/gtest.h>

namespace wcuda {
namespace {

TEST(Status, carries_code_and_formatted_message) {
  const Status status = Status::error(WCUDA_OUT_OF_RANGE, "offset %d of %d", 7, 4);

  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(status.message(), "offset 7 of 4");
}

TEST(Status, keeps_a_message_longer_than_its_first_buffer) {
  const std::string long_name(3000, 'x');

  const Status status = Status::error(WCUDA_MALFORMED, "%s", long_name.c_str());

  EXPECT_EQ(status.message(), long_name);
}

Result<int> half(int value) {
  if (value % 2) return Status::error(WCUDA_INVALID_ARGUMENT, "%d is odd", value);
  return value / 2;
}

Status quarter(int value, int* result) {
  WCUDA_ASSIGN(int once, half(value));
  WCUDA_ASSIGN(*result, half(once));
  return {};
}

TEST(Status, assign_passes_failures_up_unchanged) {
  int result = -1;

  EXPECT_STREQ(quarter(6, &result).message(), "3 is odd");
  EXPECT_EQ(result, -1);
  EXPECT_TRUE(quarter(8, &result).ok());
  EXPECT_EQ(result, 2);
}

}  // namespace
}  // namespace wcuda
