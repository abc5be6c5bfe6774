// Expressions of sizes: what they are worth, how they are spelt, what is refused.
#include "compute/jit/expression.h"

#include <gtest/gtest.h>

#include <cinttypes>

namespace wcuda::jit {
namespace {

const ExpressionNames kNames = {{"n", 1}, {"rows", 2}};
const std::optional<int64_t> kValues[] = {std::nullopt, 10, 3};
const std::optional<int64_t> kNoValues[] = {std::nullopt, std::nullopt, 0};

std::string refusal(const std::string& text) {
  const auto found = Expression::parse(text, kNames);
  return found.ok() ? "" : found.status().message();
}

TEST(Expression, values_follow_the_usual_precedence) {
  const struct {
    const char* text;
    int64_t value;
    const char* canonical;
  } kCases[] = {
      {"7", 7, "7"},
      {"n", 10, "$1"},
      {" n + 2 * rows ", 16, "($1+(2*$2))"},
      {"(n+2)*rows", 36, "(($1+2)*$2)"},
      {"n-1-1", 8, "(($1-1)-1)"},
      {"n/rows%2", 1, "(($1/$2)%2)"},
      {"n%4", 2, "($1%4)"},
      {"n%7", 3, "($1%7)"},
      {"ceil_div(n, 4)", 3, "ceil_div($1,4)"},
      {"ceil_div(0,256)", 0, "ceil_div(0,256)"},
      {"round_up(n,8)", 16, "round_up($1,8)"},
      {"max(1,min(n,rows))-5", -2, "(max(1,min($1,$2))-5)"},
      {"((((n))))", 10, "$1"},
      {"-n--2", -8, "((0-$1)-(0-2))"},
      {"9223372036854775807", INT64_MAX, "9223372036854775807"},
  };
  for (const auto& each : kCases) {
    const auto parsed = Expression::parse(each.text, kNames);
    ASSERT_TRUE(parsed.ok()) << each.text << ": " << parsed.status().message();
    EXPECT_EQ(parsed->canonical(), each.canonical);
    const auto value = parsed->value(kValues);
    ASSERT_TRUE(value.ok()) << each.text << ": " << value.status().message();
    EXPECT_EQ(*value, each.value) << each.text;
  }
}

TEST(Expression, lists_are_apart_by_commas) {
  const auto list = Expression::parse_list("n, ceil_div(rows, 2),4", kNames);
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[1].canonical(), "ceil_div($2,2)");
  EXPECT_EQ(Expression::parse_list("", kNames)->size(), 0u);
  EXPECT_EQ(Expression::parse_list("  ", kNames)->size(), 0u);
  EXPECT_EQ(refusal("n,n"), "'n,n': 2 expressions, one is needed");
}

TEST(Expression, arithmetic_never_wraps) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"n/0", "10 divided by 0, which takes at least 0 and 1"},
      {"(0-n)/rows", "-10 divided by 3, which takes at least 0 and 1"},
      {"n%(rows-3)", "10 divided by 0, which takes at least 0 and 1"},
      {"ceil_div(n,0-1)", "10 divided by -1, which takes at least 0 and 1"},
      {"9223372036854775807+1", "9223372036854775807 and 1 give more than 2^63"},
      {"4611686018427387904*2", "4611686018427387904 and 2 give more than 2^63"},
      {"0-9223372036854775807-2", "-9223372036854775807 and 2 give more than 2^63"},
      {"round_up(9223372036854775807,2)", "9223372036854775807 and 2 give more than 2^63"},
  };
  for (const auto& each : kCases) {
    const auto parsed = Expression::parse(each.text, kNames);
    ASSERT_TRUE(parsed.ok()) << each.text;
    const auto value = parsed->value(kValues);
    ASSERT_FALSE(value.ok()) << each.text;
    EXPECT_STREQ(value.status().message(), each.message);
  }
  const auto big = Expression::parse("n", kNames);
  EXPECT_STREQ(big->value(kNoValues).status().message(), "a number is past 2^63");
}

TEST(Expression, what_is_none_is_refused_with_its_place) {
  EXPECT_EQ(refusal(""), "'': 0 expressions, one is needed");
  EXPECT_EQ(refusal("n+"), "'n+': at character 3 a number, a name or '(' is missing");
  EXPECT_EQ(refusal("(n"), "'(n': at character 3 ')' is missing");
  EXPECT_EQ(refusal("n)"), "'n)': at character 2 ',' is missing");
  EXPECT_EQ(refusal("n n"), "'n n': at character 3 ',' is missing");
  EXPECT_EQ(refusal("+1"), "'+1': at character 1 a number, a name or '(' is missing");
  EXPECT_NE(refusal(std::string(17, '-') + "1").find("nested too deep"), std::string::npos);
  EXPECT_EQ(refusal("m"), "'m': 'm' is no integer parameter");
  EXPECT_EQ(refusal("ceil_div(n)"), "'ceil_div(n)': at character 11 ',' is missing");
  EXPECT_EQ(refusal("max"), "'max': at character 4 '(' is missing");
  EXPECT_EQ(refusal("pow(n,2)"), "'pow(n,2)': 'pow' is no integer parameter");
  EXPECT_EQ(refusal("9223372036854775808"),
            "'9223372036854775808': at character 19 a number is past 2^63");
  EXPECT_EQ(refusal(std::string("n\0", 2)), "'n\\x00': at character 2 ',' is missing");
  EXPECT_EQ(refusal(std::string(257, '1')), "an expression of 257 bytes, at most 256");
  const std::string deep = std::string(17, '(') + "1" + std::string(17, ')');
  EXPECT_NE(refusal(deep).find("nested too deep"), std::string::npos);
  EXPECT_EQ(refusal(deep.substr(1, 33)), "");
}

TEST(Expression, names_are_identifiers) {
  for (const char* name : {"n", "_", "seq_len", "x2"}) EXPECT_TRUE(is_expression_name(name));
  for (const char* name : {"", "2x", "a-b", "min", "ceil_div", "\xc3\xa9"})
    EXPECT_FALSE(is_expression_name(name));
  EXPECT_TRUE(is_expression_name(std::string(64, 'a')));
  EXPECT_FALSE(is_expression_name(std::string(65, 'a')));
}

}  // namespace
}  // namespace wcuda::jit
