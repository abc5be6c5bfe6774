// Checked integer expressions over named numbers: "ceil_div(n, 256)".
//
//   expression = product { ("+" | "-") product }
//   product    = value { ("*" | "/" | "%") value }
//   value      = number | name | "-" value | "(" expression ")"
//              | ("ceil_div" | "round_up" | "min" | "max") "(" expression "," expression ")"
//
// Numbers are decimal. Arithmetic is signed 64-bit and never wraps. "/", "%", ceil_div (a / b,
// rounded up) and round_up (a to the next multiple of b) require a >= 0 and b >= 1.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace wcuda::jit {

constexpr size_t kExpressionBytesMax = 256;
constexpr int kExpressionDepthMax = 16;  // nested parentheses

// The names that an expression may use, each with the index of its value.
using ExpressionNames = std::map<std::string, size_t, std::less<>>;

class Expression {
 public:
  // WCUDA_INVALID_ARGUMENT with the position and the reason.
  static Result<Expression> parse(std::string_view text, const ExpressionNames& names);
  // Parses several, separated by commas; an empty text has none.
  static Result<std::vector<Expression>> parse_list(std::string_view text,
                                                    const ExpressionNames& names);
  static Expression constant(int64_t value);

  // values: of each name; a missing one is 2^63 or more. WCUDA_INVALID_ARGUMENT on overflow or
  // division by 0.
  Result<int64_t> value(const std::optional<int64_t>* values) const;

  // Whether it uses a name whose flag is not 0.
  bool uses_any(const std::vector<uint8_t>& flags) const;

  // The canonical text, equal for every spelling: no spaces, each operation in parentheses, "$2"
  // for the name of index 2.
  const std::string& canonical() const { return canonical_; }

 private:
  friend class ExpressionParser;
  enum class Op : uint8_t {
    kNumber,
    kName,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kRemainder,
    kCeilDiv,
    kRoundUp,
    kMin,
    kMax
  };
  struct Step {
    Op op;
    int64_t number;  // or the index of a name
  };
  static Result<int64_t> apply(Op op, int64_t a, int64_t b);

  std::vector<Step> steps_;  // in postfix order
  std::string canonical_;
};

// Letters, digits and "_", not beginning with a digit, at most 64 bytes, and no function's name.
bool is_expression_name(std::string_view name);

}  // namespace wcuda::jit
