// A parser by recursive descent into postfix steps, and the machine that runs them.
#include "compute/jit/expression.h"

#include <algorithm>
#include <cinttypes>

#include "core/base/text.h"

namespace wcuda::jit {
namespace {

constexpr size_t kVariableBytesMax = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

constexpr const char* kFunctions[] = {"ceil_div", "round_up", "min", "max"};

}  // namespace

bool is_expression_name(std::string_view name) {
  if (name.empty() || name.size() > kVariableBytesMax || is_digit(name[0])) return false;
  for (const char c : name)
    if (!is_digit(c) && !is_letter(c)) return false;
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) == std::end(kFunctions);
}

class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, const ExpressionNames& names)
      : text_(text), names_(names) {}

  Result<std::vector<Expression>> list() {
    if (text_.size() > kExpressionBytesMax)
      return invalid_argument("an expression of %zu bytes, at most %zu", text_.size(),
                              kExpressionBytesMax);
    std::vector<Expression> found;
    if (peek() == 0 && at_ == text_.size()) return found;
    while (true) {
      steps_.clear();
      WCUDA_ASSIGN(std::string canonical, sum(0));
      Expression each;
      each.steps_ = steps_;
      each.canonical_ = std::move(canonical);
      found.push_back(std::move(each));
      if (at_ == text_.size()) return found;
      WCUDA_TRY(expect(','));
    }
  }

 private:
  using Op = Expression::Op;

  // The next character that is no space; 0 at the end.
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  Status wrong(const char* what) const {
    return invalid_argument("'%s': at character %zu %s", printable(text_).c_str(), at_ + 1, what);
  }

  Status expect(char c) {
    if (peek() != c) {
      const char what[] = {'\'', c, '\'', ' ', 'i', 's', ' ', 'm', 'i', 's', 's', 'i', 'n', 'g', 0};
      return wrong(what);
    }
    ++at_;
    peek();
    return {};
  }

  std::string join(const std::string& a, char symbol, const std::string& b) {
    return '(' + a + symbol + b + ')';
  }

  Result<std::string> sum(int depth) {
    WCUDA_ASSIGN(std::string left, product(depth));
    while (peek() == '+' || peek() == '-') {
      const char symbol = text_[at_++];
      WCUDA_ASSIGN(const std::string right, product(depth));
      steps_.push_back({symbol == '+' ? Op::kAdd : Op::kSubtract, 0});
      left = join(left, symbol, right);
    }
    return left;
  }

  Result<std::string> product(int depth) {
    WCUDA_ASSIGN(std::string left, value(depth));
    while (peek() == '*' || peek() == '/' || peek() == '%') {
      const char symbol = text_[at_++];
      WCUDA_ASSIGN(const std::string right, value(depth));
      steps_.push_back({symbol == '*'   ? Op::kMultiply
                        : symbol == '/' ? Op::kDivide
                                        : Op::kRemainder,
                        0});
      left = join(left, symbol, right);
    }
    return left;
  }

  Result<std::string> value(int depth) {
    const char c = peek();
    if (is_digit(c)) return number();
    if (is_letter(c)) return name_or_function(depth);
    if (c == '-') return negative(depth);
    if (c != '(') return wrong("a number, a name or '(' is missing");
    if (depth == kExpressionDepthMax) return wrong("parentheses are nested too deep");
    ++at_;
    WCUDA_ASSIGN(std::string inside, sum(depth + 1));
    WCUDA_TRY(expect(')'));
    return inside;
  }

  // As 0 - value.
  Result<std::string> negative(int depth) {
    if (depth == kExpressionDepthMax) return wrong("parentheses are nested too deep");
    ++at_;
    steps_.push_back({Op::kNumber, 0});
    WCUDA_ASSIGN(const std::string inside, value(depth + 1));
    steps_.push_back({Op::kSubtract, 0});
    return join("0", '-', inside);
  }

  Result<std::string> number() {
    int64_t value = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_)
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[at_] - '0'}, &value))
        return wrong("a number is past 2^63");
    steps_.push_back({Op::kNumber, value});
    return std::to_string(value);
  }

  Result<std::string> name_or_function(int depth) {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_digit(text_[at_]) || is_letter(text_[at_]))) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    const auto function = std::find(std::begin(kFunctions), std::end(kFunctions), word);
    if (function != std::end(kFunctions)) return call(function - std::begin(kFunctions), depth);
    const auto found = names_.find(word);
    if (found == names_.end())
      return invalid_argument("'%s': '%s' is no integer parameter", printable(text_).c_str(),
                              printable(word).c_str());
    steps_.push_back({Op::kName, static_cast<int64_t>(found->second)});
    return '$' + std::to_string(found->second);
  }

  Result<std::string> call(ptrdiff_t function, int depth) {
    constexpr Op kOps[] = {Op::kCeilDiv, Op::kRoundUp, Op::kMin, Op::kMax};
    if (depth == kExpressionDepthMax) return wrong("parentheses are nested too deep");
    WCUDA_TRY(expect('('));
    WCUDA_ASSIGN(const std::string a, sum(depth + 1));
    WCUDA_TRY(expect(','));
    WCUDA_ASSIGN(const std::string b, sum(depth + 1));
    WCUDA_TRY(expect(')'));
    steps_.push_back({kOps[function], 0});
    return std::string(kFunctions[function]) + join(a, ',', b);
  }

  std::string_view text_;
  const ExpressionNames& names_;
  size_t at_ = 0;
  std::vector<Expression::Step> steps_;
};

Result<std::vector<Expression>> Expression::parse_list(std::string_view text,
                                                       const ExpressionNames& names) {
  return ExpressionParser(text, names).list();
}

Result<Expression> Expression::parse(std::string_view text, const ExpressionNames& names) {
  WCUDA_ASSIGN(auto found, parse_list(text, names));
  if (found.size() == 1) return std::move(found[0]);
  return invalid_argument("'%s': %zu expressions, one is needed", printable(text).c_str(),
                          found.size());
}

Expression Expression::constant(int64_t value) {
  Expression result;
  result.steps_.push_back({Op::kNumber, value});
  result.canonical_ = std::to_string(value);
  return result;
}

Result<int64_t> Expression::apply(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool is_past = false;
  switch (op) {
    case Op::kAdd:
      is_past = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSubtract:
      is_past = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMultiply:
      is_past = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
    default:
      if (a < 0 || b < 1)
        return invalid_argument("%" PRId64 " divided by %" PRId64 ", which takes at least 0 and 1",
                                a, b);
      if (op == Op::kRemainder) return a % b;
      result = a / b;
      if (op == Op::kDivide) return result;
      result += a % b != 0;
      if (op == Op::kRoundUp) is_past = __builtin_mul_overflow(result, b, &result);
  }
  if (!is_past) return result;
  return invalid_argument("%" PRId64 " and %" PRId64 " give more than 2^63", a, b);
}

bool Expression::uses_any(const std::vector<uint8_t>& flags) const {
  return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
    return step.op == Op::kName && flags[static_cast<size_t>(step.number)] != 0;
  });
}

Result<int64_t> Expression::value(const std::optional<int64_t>* values) const {
  int64_t stack[kExpressionBytesMax];  // no step pushes more than one, and none is without a byte
                                       // of text
  int64_t* end = stack;
  for (const Step& step : steps_) {
    if (step.op == Op::kNumber) {
      *end++ = step.number;
    } else if (step.op == Op::kName) {
      const std::optional<int64_t>& value = values[static_cast<size_t>(step.number)];
      if (!value) return invalid_argument("a number is past 2^63");
      *end++ = *value;
    } else {
      --end;
      WCUDA_ASSIGN(end[-1], apply(step.op, end[-1], end[0]));
    }
  }
  return end[-1];
}

}  // namespace wcuda::jit
