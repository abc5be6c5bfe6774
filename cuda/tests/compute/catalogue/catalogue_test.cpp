// The catalogue against golden vectors (tools/golden/catalogue.py), and its checks, through the C
// interface, on HOST and (Gpu…) on CUDA.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "kernels/shared/numeric.h"
#include "support/arguments.h"
#include "support/context.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

enum Role : uint8_t {
  kRead,
  kWritten,
  kBoth,
  kInteger,
  kFactor,
  kWrittenI32,
  kWrittenF32,
  kReadI32
};

struct GoldenArgument {
  uint8_t role = 0;
  int64_t integer = 0;
  float factor = 0;
  uint32_t count = 0;
  std::string given;            // bytes of the type
  std::vector<float> expected;  // where written
};

struct GoldenCase {
  std::string name;
  uint8_t type = 0;
  float absolute = 0, relative = 0;
  std::vector<GoldenArgument> arguments;
};

constexpr int32_t kTypes[] = {WCUDA_ARG_F32, WCUDA_ARG_F16, WCUDA_ARG_BF16};

uint32_t element_bytes(uint8_t type, uint8_t role) {
  return type == 0 || role >= kWrittenI32 ? 4 : 2;
}

std::vector<GoldenCase> golden_cases() {
  std::ifstream file(WCUDA_TEST_DATA "/catalogue.bin", std::ios::binary);
  const std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ByteReader reader(data.data(), data.size());
  uint32_t count = 0;
  bool good = reader.read(&count);
  std::vector<GoldenCase> cases(count);
  for (GoldenCase& each : cases) {
    uint8_t name_bytes = 0, argument_count = 0;
    std::string_view view;
    good = good && reader.read(&name_bytes) && reader.take(name_bytes, &view);
    each.name = view;
    good = good && reader.read(&each.type) && reader.read(&argument_count) &&
           reader.read(&each.absolute) && reader.read(&each.relative);
    each.arguments.resize(argument_count);
    for (GoldenArgument& argument : each.arguments) {
      good = good && reader.read(&argument.role);
      if (argument.role == kInteger) good = good && reader.read(&argument.integer);
      if (argument.role == kFactor) good = good && reader.read(&argument.factor);
      if (argument.role == kInteger || argument.role == kFactor) continue;
      good = good && reader.read(&argument.count);
      const bool is_read = argument.role == kRead || argument.role == kReadI32;
      if (is_read || argument.role == kBoth) {
        good = good && reader.take(argument.count * element_bytes(each.type, argument.role), &view);
        argument.given = view;
      }
      if (is_read) continue;
      good = good && reader.take(4 * argument.count, &view);
      argument.expected.resize(good ? argument.count : 0);
      if (good) std::memcpy(argument.expected.data(), view.data(), view.size());
    }
  }
  EXPECT_TRUE(good && reader.bytes_left() == 0 && !cases.empty());
  return cases;
}

float element(const std::vector<uint8_t>& bytes, uint8_t type, size_t index) {
  if (type == 0) return load_le<float>(&bytes[4 * index]);
  const auto bits = load_le<uint16_t>(&bytes[2 * index]);
  return type == 1 ? half_to_float(bits) : bf16_to_float(bits);
}

// The arguments of a case, in buffers of their own that end with their last element.
class Call {
 public:
  Call(wcuda_context context, const GoldenCase& golden) : context_(context), golden_(golden) {
    for (const GoldenArgument& from : golden.arguments) {
      wcuda_argument to = WCUDA_ARGUMENT_INIT;
      if (from.role == kInteger) {
        to.kind = WCUDA_ARG_I64;
        to.data = &from.integer;
      } else if (from.role == kFactor) {
        to.kind = WCUDA_ARG_F32;
        to.data = &from.factor;
      } else {
        const uint64_t bytes = uint64_t{from.count} * element_bytes(golden.type, from.role);
        buffers_.push_back(std::make_unique<TestBuffer>(context, bytes));
        to.kind = WCUDA_ARG_BUFFER;
        to.buffer = buffers_.back()->handle();
        if (from.given.empty())
          EXPECT_EQ(wcuda_buffer_fill(to.buffer, 0, bytes, 0xff, 1, nullptr), WCUDA_OK);
        else
          EXPECT_EQ(wcuda_buffer_write(to.buffer, 0, from.given.data(), bytes, nullptr), WCUDA_OK);
      }
      arguments.push_back(to);
    }
  }

  wcuda_status run(wcuda_error* error) {
    return wcuda_catalogue_run(context_, text(golden_.name), kTypes[golden_.type], arguments.data(),
                               arguments.size(), {0}, error);
  }

  // The bytes of argument `index`.
  std::vector<uint8_t> read(size_t index) const {
    uint64_t bytes = 0;
    EXPECT_EQ(wcuda_buffer_size_get(arguments[index].buffer, &bytes, nullptr), WCUDA_OK);
    std::vector<uint8_t> data(bytes);
    EXPECT_EQ(wcuda_buffer_read(arguments[index].buffer, 0, data.data(), bytes, nullptr), WCUDA_OK);
    return data;
  }

  std::vector<wcuda_argument> arguments;

 private:
  const wcuda_context context_;
  const GoldenCase& golden_;
  std::vector<std::unique_ptr<TestBuffer>> buffers_;
};

void check_results(const GoldenCase& golden, const Call& call) {
  for (size_t i = 0; i < golden.arguments.size(); ++i) {
    const GoldenArgument& argument = golden.arguments[i];
    if (argument.expected.empty()) continue;
    const std::vector<uint8_t> data = call.read(i);
    int wrong = 0;
    for (size_t k = 0; k < argument.expected.size(); ++k) {
      const bool is_i32 = argument.role == kWrittenI32;
      const double expected = argument.expected[k];
      const uint8_t type = argument.role == kWrittenF32 ? 0 : golden.type;
      const double found = is_i32 ? load_le<int32_t>(&data[4 * k]) : element(data, type, k);
      const double bound = is_i32 ? 0 : golden.absolute + golden.relative * std::fabs(expected);
      if (std::fabs(found - expected) <= bound || ++wrong > 3) continue;
      ADD_FAILURE() << golden.name << " type " << int{golden.type} << " argument " << i
                    << " element " << k << ": " << found << ", expected " << expected << " within "
                    << bound;
    }
    EXPECT_EQ(wrong, 0) << golden.name;
  }
}

void every_golden_case(int32_t backend) {
  const TestContext context(0, backend);
  wcuda_error error{};
  std::set<std::string> seen;
  for (const GoldenCase& golden : golden_cases()) {
    Call call(context.handle(), golden);
    ASSERT_EQ(call.run(&error), WCUDA_OK) << golden.name << ": " << error.message;
    check_results(golden, call);
    seen.insert(golden.name);
  }
  uint64_t count = 0;
  ASSERT_EQ(wcuda_catalogue_list(0, nullptr, 0, &count, nullptr), WCUDA_OK);
  EXPECT_EQ(seen.size(), count) << "each kernel has its cases";
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
}

TEST(Catalogue, equals_numpy) { every_golden_case(WCUDA_BACKEND_HOST); }
TEST(GpuCatalogue, equals_numpy) { every_golden_case(WCUDA_BACKEND_CUDA); }

void element_wise_in_place(int32_t backend) {
  const TestContext context(0, backend);
  const TestBuffer x(context.handle(), 4 * 1000);
  std::vector<float> values(1000);
  for (int i = 0; i < 1000; ++i) values[i] = i;
  ASSERT_EQ(wcuda_buffer_write(x.handle(), 0, values.data(), 4000, nullptr), WCUDA_OK);
  const int32_t n = 1000;
  wcuda_argument buffer = WCUDA_ARGUMENT_INIT, count = WCUDA_ARGUMENT_INIT;
  buffer.kind = WCUDA_ARG_BUFFER;
  buffer.buffer = x.handle();
  count.kind = WCUDA_ARG_I32;
  count.data = &n;
  const wcuda_argument arguments[] = {buffer, buffer, buffer, count};
  wcuda_error error{};

  ASSERT_EQ(wcuda_catalogue_run(context.handle(), text("vector_add"), WCUDA_ARG_F32, arguments, 4,
                                {0}, &error),
            WCUDA_OK)
      << error.message;

  ASSERT_EQ(wcuda_buffer_read(x.handle(), 0, values.data(), 4000, nullptr), WCUDA_OK);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(values[i], 2 * i);
}

TEST(Catalogue, element_wise_kernels_write_in_place) { element_wise_in_place(WCUDA_BACKEND_HOST); }
TEST(GpuCatalogue, element_wise_kernels_write_in_place) {
  element_wise_in_place(WCUDA_BACKEND_CUDA);
}

// Sums do not depend on what else runs at the same time.
TEST(GpuCatalogue, gives_the_same_bits_each_time) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  wcuda_error error{};
  for (const GoldenCase& golden : golden_cases()) {
    Call first(context.handle(), golden), second(context.handle(), golden);
    ASSERT_EQ(first.run(&error), WCUDA_OK) << error.message;
    ASSERT_EQ(second.run(&error), WCUDA_OK) << error.message;
    for (size_t i = 0; i < golden.arguments.size(); ++i) {
      if (golden.arguments[i].expected.empty()) continue;
      EXPECT_EQ(first.read(i), second.read(i)) << golden.name;
    }
  }
}

// More elements than 32 bits count: 2^31 + 3 ones in f16.
TEST(GpuCatalogue, sums_more_than_two_to_the_31_elements) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const int64_t n = (int64_t{1} << 31) + 3;
  const TestBuffer x(context.handle(), 2 * n), sum(context.handle(), 2);
  wcuda_error error{};
  // 2^-17 each: the sum is 2^14, and the last three elements are sixteen.
  ASSERT_EQ(wcuda_buffer_fill(x.handle(), 0, 2 * n, 0x0080, 2, &error), WCUDA_OK) << error.message;
  ASSERT_EQ(wcuda_buffer_fill(x.handle(), 2 * (n - 3), 6, 0x4c00, 2, &error), WCUDA_OK);
  wcuda_argument arguments[3];
  for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
  arguments[0].kind = arguments[1].kind = WCUDA_ARG_BUFFER;
  arguments[0].buffer = x.handle();
  arguments[1].buffer = sum.handle();
  arguments[2].kind = WCUDA_ARG_I64;
  arguments[2].data = &n;

  ASSERT_EQ(wcuda_catalogue_run(context.handle(), text("reduce_sum"), WCUDA_ARG_F16, arguments, 3,
                                {0}, &error),
            WCUDA_OK)
      << error.message;

  uint16_t bits = 0;
  ASSERT_EQ(wcuda_buffer_read(sum.handle(), 0, &bits, 2, &error), WCUDA_OK) << error.message;
  // 16384 + 48, where f16 has steps of 16.
  EXPECT_EQ(half_to_float(bits), 16432.0f);
}

// All kernels of the catalogue.
std::vector<wcuda_catalogue_entry> list_catalogue() {
  uint64_t count = 0;
  EXPECT_EQ(wcuda_catalogue_list(0, nullptr, 0, &count, nullptr), WCUDA_OK);
  std::vector<wcuda_catalogue_entry> entries(count, WCUDA_CATALOGUE_ENTRY_INIT);
  EXPECT_EQ(wcuda_catalogue_list(0, entries.data(), count, &count, nullptr), WCUDA_OK);
  return entries;
}

TEST(Catalogue, lists_itself_by_name) {
  std::string last;
  for (const wcuda_catalogue_entry& kernel : list_catalogue()) {
    const std::string name(kernel.name.data, kernel.name.bytes);
    EXPECT_LT(last, name);
    last = name;
  }
  EXPECT_GE(list_catalogue().size(), 39u);
  uint64_t count = 0;
  wcuda_catalogue_entry kernel = WCUDA_CATALOGUE_ENTRY_INIT;
  EXPECT_EQ(wcuda_catalogue_list(1000, &kernel, 1, &count, nullptr), WCUDA_OUT_OF_RANGE);
}

TEST(Catalogue, states_the_signature_of_every_kernel) {
  for (const wcuda_catalogue_entry& kernel : list_catalogue()) {
    std::vector<wcuda_parameter> parameters(kernel.parameter_count, WCUDA_PARAMETER_INIT);
    uint64_t count = 0;
    ASSERT_EQ(wcuda_catalogue_parameter_list(kernel.name, WCUDA_ARG_F32, 0, parameters.data(),
                                             parameters.size(), &count, nullptr),
              WCUDA_OK);
    EXPECT_EQ(count, kernel.parameter_count);
    const wcuda_status f16 =
        wcuda_catalogue_parameter_list(kernel.name, WCUDA_ARG_F16, 0, nullptr, 0, &count, nullptr);
    EXPECT_EQ(f16, kernel.is_f32_only ? WCUDA_UNSUPPORTED : WCUDA_OK);
  }
  wcuda_parameter saxpy[4] = {WCUDA_PARAMETER_INIT};
  uint64_t count = 0;
  ASSERT_EQ(
      wcuda_catalogue_parameter_list(text("saxpy"), WCUDA_ARG_BF16, 0, saxpy, 4, &count, nullptr),
      WCUDA_OK);
  EXPECT_EQ(saxpy[0].kind, WCUDA_ARG_F32);
  EXPECT_EQ(saxpy[1].kind, WCUDA_ARG_BUFFER);
  EXPECT_EQ(saxpy[1].dtype, WCUDA_ARG_BF16);
  EXPECT_EQ(saxpy[1].access, uint32_t{WCUDA_ACCESS_READ});
  EXPECT_EQ(std::string(saxpy[2].shape.data, saxpy[2].shape.bytes), "n");
  EXPECT_EQ(saxpy[3].kind, WCUDA_ARG_I64);
}

// A case of this name and type.
const GoldenCase& golden_case(const std::string& name) {
  static const std::vector<GoldenCase> cases = golden_cases();
  for (const GoldenCase& each : cases)
    if (each.name == name && each.type == 0 && each.arguments.size() > 1 &&
        each.arguments[0].count > 1)
      return each;
  ADD_FAILURE() << name;
  return cases.front();
}

TEST(Catalogue, wrong_calls_are_refused_and_named) {
  const TestContext context;
  wcuda_error error{};
  const auto refused = [&](const char* name, auto&& change, wcuda_status status,
                           const std::string& message) {
    Call call(context.handle(), golden_case(name));
    change(call.arguments);
    EXPECT_EQ(call.run(&error), status) << message;
    EXPECT_NE(std::string(error.message).find(message), std::string::npos) << error.message;
  };
  using Arguments = std::vector<wcuda_argument>;
  const int64_t many = 302, negative = -1, huge = INT64_MAX, zero = 0, odd = 5;
  const float half = 0.5f;

  refused(
      "vector_add", [](Arguments& a) { a.pop_back(); }, WCUDA_ARGUMENT_COUNT,
      "vector_add: 3 arguments given, it takes 4: vector_add(in a[n], in b[n], out c[n], n)");
  refused(
      "vector_add", [&](Arguments& a) { a[3].data = &many; }, WCUDA_INVALID_ARGUMENT,
      "argument 0 ('a') has 1204 bytes, it needs 1208");
  refused(
      "vector_add", [&](Arguments& a) { a[3].data = &negative; }, WCUDA_INVALID_ARGUMENT,
      "argument 3 ('n') is -1, at least 0");
  refused(
      "matrix_multiply", [&](Arguments& a) { a[3].data = a[4].data = &huge; },
      WCUDA_INVALID_ARGUMENT, "has an extent that overflows");
  refused(
      "vector_add",
      [&](Arguments& a) {
        a[3].kind = WCUDA_ARG_F32;
        a[3].data = &half;
      },
      WCUDA_INVALID_ARGUMENT, "argument 3 ('n') is no integer");
  refused(
      "vector_scale",
      [&](Arguments& a) {
        a[2].kind = WCUDA_ARG_I64;
        a[2].data = &zero;
      },
      WCUDA_INVALID_ARGUMENT, "argument 2 ('alpha') is no f32 or f64");
  refused(
      "vector_add", [](Arguments& a) { a[2].access = WCUDA_ACCESS_READ; }, WCUDA_INVALID_ARGUMENT,
      "argument 2 ('c') is written, only reading is granted");
  refused(
      "matrix_transpose", [](Arguments& a) { a[1].buffer = a[0].buffer; }, WCUDA_INVALID_ARGUMENT,
      "argument 1 ('y') overlaps argument 0 ('x')");
  refused(
      "max_pool2d", [&](Arguments& a) { a[8].data = &zero; }, WCUDA_INVALID_ARGUMENT,
      "does not fit");
  refused(
      "rope_encoding", [&](Arguments& a) { a[3].data = &odd; }, WCUDA_INVALID_ARGUMENT,
      "d is 5, which is odd");
  refused(
      "multi_head_attention", [&](Arguments& a) { a[8].data = &odd; }, WCUDA_INVALID_ARGUMENT,
      "d is 12, no multiple of 5 heads");
  refused(
      "multi_head_attention", [&](Arguments& a) { a[9].data = &odd; }, WCUDA_INVALID_ARGUMENT,
      "causal is 5, not 0 or 1");
  refused(
      "top_k_sampling", [&](Arguments& a) { a[5].data = &many; }, WCUDA_INVALID_ARGUMENT,
      "k is 302, of 301 logits");
  const wcuda_argument none = WCUDA_ARGUMENT_INIT;
  EXPECT_EQ(
      wcuda_catalogue_run(context.handle(), text("nothing"), WCUDA_ARG_F32, &none, 0, {0}, &error),
      WCUDA_NOT_FOUND);
  EXPECT_EQ(
      wcuda_catalogue_run(context.handle(), text("noop"), WCUDA_ARG_F64, nullptr, 0, {0}, &error),
      WCUDA_INVALID_ARGUMENT);
  Call conv(context.handle(), golden_case("conv2d"));
  EXPECT_EQ(wcuda_catalogue_run(context.handle(), text("conv2d"), WCUDA_ARG_F16,
                                conv.arguments.data(), conv.arguments.size(), {0}, &error),
            WCUDA_UNSUPPORTED);
}

// Every unknown id, wherever it is, and nothing is written.
void unknown_ids_are_errors(int32_t backend) {
  const TestContext context(0, backend);
  const int64_t batch = 3, seq = 400, vocab = 17, d = 2;
  const TestBuffer ids(context.handle(), 4 * 1200), table(context.handle(), 4 * 34),
      y(context.handle(), 4 * 2400);
  ASSERT_EQ(wcuda_buffer_fill(table.handle(), 0, 4 * 34, 0, 1, nullptr), WCUDA_OK);
  const auto buffer = [](const TestBuffer& from) {
    wcuda_argument argument = WCUDA_ARGUMENT_INIT;
    argument.kind = WCUDA_ARG_BUFFER;
    argument.buffer = from.handle();
    return argument;
  };
  const auto integer = [](const int64_t& from) {
    wcuda_argument argument = WCUDA_ARGUMENT_INIT;
    argument.kind = WCUDA_ARG_I64;
    argument.data = &from;
    return argument;
  };
  const wcuda_argument arguments[] = {buffer(ids),  buffer(table),  buffer(y), integer(batch),
                                      integer(seq), integer(vocab), integer(d)};
  wcuda_error error{};
  const auto run = [&] {
    return wcuda_catalogue_run(context.handle(), text("embedding_lookup"), WCUDA_ARG_F32, arguments,
                               7, {0}, &error);
  };
  std::vector<uint8_t> before(4 * 2400, 0xff), after(4 * 2400);
  for (const auto& [place, id] :
       std::vector<std::pair<size_t, int32_t>>{{0, -1}, {255, 17}, {1199, INT32_MAX}}) {
    std::vector<int32_t> values(1200, 16);
    values[place] = id;
    values[1199] = place == 255 ? -5 : values[1199];  // the first is named
    ASSERT_EQ(wcuda_buffer_write(ids.handle(), 0, values.data(), 4800, nullptr), WCUDA_OK);
    ASSERT_EQ(wcuda_buffer_fill(y.handle(), 0, 9600, 0xff, 1, nullptr), WCUDA_OK);
    EXPECT_EQ(run(), WCUDA_OUT_OF_RANGE);
    EXPECT_EQ(std::string(error.message), "embedding_lookup: ids[" + std::to_string(place) +
                                              "] is " + std::to_string(id) +
                                              ", the table has 17 rows");
    ASSERT_EQ(wcuda_buffer_read(y.handle(), 0, after.data(), 9600, nullptr), WCUDA_OK);
    EXPECT_EQ(after, before);
  }
  const std::vector<int32_t> values(1200, 16);
  ASSERT_EQ(wcuda_buffer_write(ids.handle(), 0, values.data(), 4800, nullptr), WCUDA_OK);
  EXPECT_EQ(run(), WCUDA_OK) << error.message;
}
TEST(Catalogue, unknown_ids_are_errors) { unknown_ids_are_errors(WCUDA_BACKEND_HOST); }
TEST(GpuCatalogue, unknown_ids_are_errors) { unknown_ids_are_errors(WCUDA_BACKEND_CUDA); }

// A NaN comes first, equal ones by their places.
void top_k_orders_all(int32_t backend) {
  const TestContext context(0, backend);
  const float nan = std::nanf("");
  const std::vector<float> logits = {1, INFINITY, nan, -0.0f, 0, -INFINITY, nan, 1};
  const TestBuffer x(context.handle(), 32), index(context.handle(), 32), p(context.handle(), 32);
  ASSERT_EQ(wcuda_buffer_write(x.handle(), 0, logits.data(), 32, nullptr), WCUDA_OK);
  const int64_t rows = 1, width = 8;
  wcuda_argument arguments[6];
  for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
  const TestBuffer* const buffers[] = {&x, &index, &p};
  for (int i = 0; i < 6; ++i) {
    arguments[i].kind = i < 3 ? WCUDA_ARG_BUFFER : WCUDA_ARG_I64;
    if (i < 3) arguments[i].buffer = buffers[i]->handle();
    if (i >= 3) arguments[i].data = i == 3 ? &rows : &width;
  }
  wcuda_error error{};
  ASSERT_EQ(wcuda_catalogue_run(context.handle(), text("top_k_sampling"), WCUDA_ARG_F32, arguments,
                                6, {0}, &error),
            WCUDA_OK)
      << error.message;
  std::vector<int32_t> order(8);
  ASSERT_EQ(wcuda_buffer_read(index.handle(), 0, order.data(), 32, nullptr), WCUDA_OK);
  EXPECT_EQ(order, (std::vector<int32_t>{2, 6, 1, 0, 7, 3, 4, 5}));
}
TEST(Catalogue, top_k_orders_all) { top_k_orders_all(WCUDA_BACKEND_HOST); }
TEST(GpuCatalogue, top_k_orders_all) { top_k_orders_all(WCUDA_BACKEND_CUDA); }

TEST(Catalogue, nothing_at_all_is_a_size) {
  const TestContext context;
  wcuda_error error{};
  const int64_t zero = 0;
  for (const GoldenCase& golden : golden_cases()) {
    if (golden.name.find("pool") != std::string::npos ||
        golden.name.find("2col") != std::string::npos || golden.name == "col2im" ||
        golden.name == "conv2d")
      continue;  // a window needs its size
    Call call(context.handle(), golden);
    for (wcuda_argument& argument : call.arguments)
      if (argument.kind == WCUDA_ARG_I64) argument.data = &zero;
    EXPECT_EQ(call.run(&error), WCUDA_OK) << golden.name << ": " << error.message;
  }
}

TEST(Catalogue, a_failing_device_leaves_outputs_alone) {
  FaultContext context;
  const std::string name = "vector_add";
  const GoldenCase& golden = golden_case(name);
  Call call(context.handle(), golden);
  const std::vector<uint8_t> before = call.read(2);
  wcuda_error error{};
  context.faults().fail(CallKind::kLaunch, 1);

  EXPECT_NE(call.run(&error), WCUDA_OK);

  EXPECT_EQ(call.read(2), before);
  EXPECT_EQ(call.run(&error), WCUDA_OK) << error.message;
  check_results(golden, call);
}

}  // namespace
}  // namespace wcuda::testing
