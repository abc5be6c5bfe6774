// Descriptors: the canonical signature and its hash, and every refusal of a call.
#include "compute/jit/descriptor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace wcuda::jit {
namespace {

wcuda_string text(const char* value) { return {value, std::char_traits<char>::length(value)}; }

wcuda_parameter buffer(const char* name, int32_t dtype, uint32_t access, const char* shape) {
  wcuda_parameter param = WCUDA_PARAMETER_INIT;
  param.name = text(name);
  param.kind = WCUDA_ARG_BUFFER;
  param.dtype = dtype;
  param.access = access;
  param.shape = text(shape);
  return param;
}
wcuda_parameter scalar(const char* name, int32_t kind, const char* min = "", const char* max = "") {
  wcuda_parameter param = WCUDA_PARAMETER_INIT;
  param.name = text(name);
  param.kind = kind;
  param.min = text(min);
  param.max = text(max);
  return param;
}

// y (rows, cols) = x * factor, for a number of columns of at most 4096.
struct Scaled {
  std::vector<wcuda_parameter> params = {
      buffer("x", WCUDA_ARG_F32, WCUDA_ACCESS_READ, "rows, cols"),
      buffer("y", WCUDA_ARG_F32, WCUDA_ACCESS_WRITE, "rows, cols"),
      scalar("rows", WCUDA_ARG_I32, "1"),
      scalar("cols", WCUDA_ARG_U64, "1", "min(4096, rows * 1024)"),
      scalar("factor", WCUDA_ARG_F32, "-1e3", "1000"),
  };
  wcuda_kernel_descriptor native() {
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    descriptor.name = text("scaled");
    descriptor.parameters = params.data();
    descriptor.parameter_count = params.size();
    descriptor.grid[0] = text("ceil_div(cols, 128)");
    descriptor.grid[1] = text("rows");
    descriptor.block[0] = text("128");
    descriptor.shared_bytes = text("4 * 128");
    return descriptor;
  }
  std::string refusal(const wcuda_kernel_descriptor& descriptor) {
    const auto read = read_descriptor(descriptor);
    return read.ok() ? "" : read.status().message();
  }
  std::string refusal() { return refusal(native()); }
};

TEST(Descriptor, the_signature_is_canonical) {
  Scaled scaled;
  const auto first = read_descriptor(scaled.native());
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->signature.canonical,
            "r f32[$2,$3];w f32[$2,$3];i32{1..};u64{1..min(4096,($2*1024))};f32{-1000..1000};");

  scaled.params[2].name = text("m");
  scaled.params[0].shape = scaled.params[1].shape = text("( m ),cols");
  scaled.params[3].max = text("min(4096,(m*1024))");
  scaled.params[4].max = text("1e3");
  wcuda_kernel_descriptor renamed = scaled.native();
  renamed.name = text("another");
  renamed.grid[1] = text("m");
  const auto second = read_descriptor(renamed);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->sig_hash, first->sig_hash);
  scaled.params[0].layout_id = 7;
  scaled.params[1].layout = WCUDA_LAYOUT_COLUMN_MAJOR;
  const auto third = read_descriptor(renamed);
  EXPECT_EQ(third->signature.canonical.substr(0, 32), "r f32[$2,$3] #7;w f32[$2,$3] col");
  EXPECT_NE(third->sig_hash, first->sig_hash);
}

// The vectors of the hash's authors (draft-eastlake-fnv).
TEST(Descriptor, the_hash_is_fnv_1a) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
}

TEST(Descriptor, mistakes_name_their_field) {
  Scaled scaled;
  const auto with = [&](auto change) {
    Scaled changed;
    change(changed.params);
    return changed.refusal();
  };
  using Params = std::vector<wcuda_parameter>;
  EXPECT_EQ(with([](Params& p) { p[0].shape = text("factor"); }),
            "parameters[0].shape: 'factor': 'factor' is no integer parameter");
  EXPECT_EQ(with([](Params& p) { p[1].name = text("x"); }),
            "parameters[1].name: is another parameter's too");
  EXPECT_EQ(with([](Params& p) { p[1].name = text("max"); }),
            "parameters[1].name: is not 1 to 64 letters, digits and '_', or is a function");
  EXPECT_EQ(with([](Params& p) { p[1].dtype = WCUDA_ARG_BUFFER; }),
            "parameters[1].dtype: is no WCUDA_ARG_… of a scalar");
  EXPECT_EQ(with([](Params& p) { p[1].access = 4; }), "parameters[1].access: has unknown bits");
  EXPECT_EQ(with([](Params& p) { p[1].layout = 3; }),
            "parameters[1].layout: is not one of WCUDA_LAYOUT_…");
  EXPECT_EQ(with([](Params& p) { p[1].min = text("1"); }),
            "parameters[1].min: only integers, f32 and f64 have bounds");
  EXPECT_EQ(with([](Params& p) { p[1].shape = text("1,1,1,1,1,1,1,1,1"); }),
            "parameters[1].shape: more than 8 dimensions");
  EXPECT_EQ(with([](Params& p) { p[2].shape = text("1"); }),
            "parameters[2].shape: a scalar has none");
  EXPECT_EQ(with([](Params& p) { p[2].dtype = 1; }),
            "parameters[2].kind: only a buffer has a dtype, an access and a layout");
  EXPECT_EQ(with([](Params& p) { p[2].kind = 15; }),
            "parameters[2].kind: is not one of WCUDA_ARG_…");
  EXPECT_EQ(with([](Params& p) { p[4].max = text("inf"); }),
            "parameters[4].max: is no finite number");
  EXPECT_EQ(with([](Params& p) { p[2].kind = WCUDA_ARG_BYTES, p[2].shape = text("0"); }),
            "parameters[0].shape: 'rows, cols': 'rows' is no integer parameter");
  EXPECT_EQ(with([](Params& p) { p[4] = scalar("f", WCUDA_ARG_BYTES), p[4].shape = text("5000"); }),
            "parameters[4].shape: is not 1 to 4096 bytes");

  wcuda_kernel_descriptor descriptor = scaled.native();
  descriptor.grid[2] = text("n");
  EXPECT_EQ(scaled.refusal(descriptor), "grid[2]: 'n': 'n' is no integer parameter");
  descriptor = scaled.native();
  descriptor.threads = text("rows");
  EXPECT_EQ(scaled.refusal(descriptor), "threads: given, and grid[0] too");
  descriptor = scaled.native();
  descriptor.flags = WCUDA_KERNEL_NOT_HERE;
  EXPECT_EQ(scaled.refusal(descriptor),
            "flags: has bits that are not WCUDA_KERNEL_NON_DETERMINISTIC");
  for (const std::string& name : {std::string(), std::string(128, 'a'), std::string("a\n")}) {
    descriptor = scaled.native();
    descriptor.name = {name.data(), name.size()};
    EXPECT_EQ(scaled.refusal(descriptor),
              "name: is not 1 to 127 bytes of UTF-8 without control characters");
    if (name.empty()) continue;  // of no module
    descriptor = scaled.native();
    descriptor.module = {name.data(), name.size()};
    EXPECT_EQ(scaled.refusal(descriptor),
              "module: is not 0 to 127 bytes of UTF-8 without control characters");
  }
}

struct Call {
  int32_t rows = 2;
  uint64_t cols = 300;
  float factor = 2;
  std::vector<DescribedArgument> arguments() const {
    return {{WCUDA_ARG_BUFFER, WCUDA_ACCESS_READ, nullptr, 2400},
            {WCUDA_ARG_BUFFER, 0, nullptr, 2402},
            {WCUDA_ARG_I32, 0, &rows, 4},
            {WCUDA_ARG_U64, 0, &cols, 8},
            {WCUDA_ARG_F32, 0, &factor, 4}};
  }
};

std::string refusal(const Descriptor& descriptor, const std::vector<DescribedArgument>& arguments) {
  const auto plan = plan_launch(descriptor, arguments);
  return plan.ok() ? "" : plan.status().message();
}

TEST(Descriptor, the_launch_follows_from_the_arguments) {
  Scaled scaled;
  const auto descriptor = read_descriptor(scaled.native());
  const Call call;

  const auto plan = plan_launch(*descriptor, call.arguments());

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const LaunchDims& dims = plan->dims;
  EXPECT_EQ(std::vector<uint32_t>(dims.grid, dims.grid + 3), (std::vector<uint32_t>{3, 2, 1}));
  EXPECT_EQ(std::vector<uint32_t>(dims.block, dims.block + 3), (std::vector<uint32_t>{128, 1, 1}));
  EXPECT_EQ(dims.shared_bytes, 512u);
  EXPECT_EQ(plan->elements, 768u);
  EXPECT_EQ(plan->bytes, 4800u);
}

TEST(Descriptor, threads_give_the_grid) {
  Scaled scaled;
  wcuda_kernel_descriptor native = scaled.native();
  native.grid[0] = native.grid[1] = native.block[0] = wcuda_string{nullptr, 0};
  native.threads = text("rows * cols - 600");
  const auto descriptor = read_descriptor(native);
  Call call;
  const auto blocks = [&] { return plan_launch(*descriptor, call.arguments()); };

  EXPECT_EQ(blocks()->dims.grid[0], 1u);  // no threads are one block
  EXPECT_EQ(blocks()->elements, 0u);
  call.cols = 299;
  EXPECT_EQ(refusal(*descriptor, call.arguments()), "threads: -2, at least 0");
  native.threads = text("rows * cols - 343");
  call.cols = 300;
  EXPECT_EQ(plan_launch(*read_descriptor(native), call.arguments())->dims.grid[0], 2u);
  native.threads = text("rows * 1099511627776");
  EXPECT_EQ(refusal(*read_descriptor(native), call.arguments()),
            "threads: 2199023255552, more than a grid can have");
}

TEST(Descriptor, wrong_arguments_are_named_with_both_numbers) {
  Scaled scaled;
  const auto descriptor = read_descriptor(scaled.native());
  const auto with = [&](auto change) {
    Call call;
    auto arguments = call.arguments();
    change(call, arguments);
    return refusal(*descriptor, arguments);
  };
  using Arguments = std::vector<DescribedArgument>;
  EXPECT_EQ(with([](Call&, Arguments& a) { a.pop_back(); }),
            "arguments: 4 given, the kernel takes 5");
  EXPECT_EQ(with([](Call&, Arguments& a) { a[2].kind = WCUDA_ARG_U32; }),
            "argument 2 ('rows') is u32, the kernel takes i32");
  EXPECT_EQ(with([](Call&, Arguments& a) { a[1].access = WCUDA_ACCESS_READ; }),
            "argument 1 ('y') is written by the kernel, only reading is granted");
  EXPECT_EQ(with([](Call&, Arguments& a) { a[0].bytes = 2399; }),
            "argument 0 ('x') has 599 elements, the kernel needs 600");
  EXPECT_EQ(with([](Call& c, Arguments&) { c.rows = 0; }), "argument 2 ('rows') is 0, at least 1");
  EXPECT_EQ(with([](Call& c, Arguments&) { c.rows = -2; }),
            "argument 2 ('rows') is -2, at least 1");
  EXPECT_EQ(with([](Call& c, Arguments& a) { c.cols = 2049, a[0].bytes = a[1].bytes = 1 << 20; }),
            "argument 3 ('cols') is 2049, at most 2048");
  EXPECT_EQ(with([](Call& c, Arguments&) { c.cols = UINT64_MAX; }),
            "argument 3 ('cols') is past 2^63, at most 2048");
  EXPECT_EQ(with([](Call& c, Arguments&) { c.cols = INT64_MAX; }),
            "argument 3 ('cols') is 9223372036854775807, at most 2048");
  EXPECT_EQ(with([](Call& c, Arguments&) { c.factor = 1001; }),
            "argument 4 ('factor') is 1001, at most 1000");
  EXPECT_EQ(with([](Call& c, Arguments&) {
              c.factor = std::numeric_limits<float>::quiet_NaN();
            }).substr(0, 24),
            "argument 4 ('factor') is");
}

TEST(Descriptor, integers_of_every_width_are_read_with_their_sign) {
  const struct {
    int32_t kind;
    uint64_t bytes;
    int64_t least;
  } kCases[] = {{WCUDA_ARG_I8, 1, INT8_MIN},   {WCUDA_ARG_U8, 1, 0},
                {WCUDA_ARG_I16, 2, INT16_MIN}, {WCUDA_ARG_U16, 2, 0},
                {WCUDA_ARG_I32, 4, INT32_MIN}, {WCUDA_ARG_U32, 4, 0},
                {WCUDA_ARG_I64, 8, INT64_MIN}};
  for (const auto& each : kCases) {
    const wcuda_parameter param = scalar("n", each.kind, "1", "100");
    const auto signature = read_signature(&param, 1);
    ASSERT_TRUE(signature.ok()) << signature.status().message();
    // Only the bytes of the number itself may count: those after it are all ones.
    const auto refusal_of = [&](uint64_t value) {
      uint8_t data[16];
      std::fill(data, data + 16, 0xff);
      std::memcpy(data, &value, each.bytes);
      const Status status = check_arguments(*signature, {{each.kind, 0, data, each.bytes}});
      return status.ok() ? std::string() : std::string(status.message());
    };
    EXPECT_EQ(refusal_of(100), "") << each.kind;
    EXPECT_EQ(refusal_of(101), "argument 0 ('n') is 101, at most 100") << each.kind;
    const uint64_t top_bit = uint64_t{1} << (8 * each.bytes - 1);
    const std::string highest = each.least != 0 ? std::to_string(each.least) + ", at least 1"
                                                : std::to_string(top_bit) + ", at most 100";
    EXPECT_EQ(refusal_of(top_bit), "argument 0 ('n') is " + highest);
  }
}

TEST(Descriptor, extents_never_wrap) {
  Scaled scaled;
  scaled.params[2].min = scaled.params[3].min = scaled.params[3].max = text("");
  const auto descriptor = read_descriptor(scaled.native());
  Call call;
  call.rows = -2;
  EXPECT_EQ(refusal(*descriptor, call.arguments()),
            "argument 0 ('x') has an extent of -2, at least 0");
  call.rows = 2;
  call.cols = UINT64_MAX;
  EXPECT_EQ(refusal(*descriptor, call.arguments()),
            "argument 0 ('x') has no extent: a number is past 2^63");
  call.cols = INT64_MAX;
  EXPECT_EQ(refusal(*descriptor, call.arguments()),
            "argument 0 ('x') has 600 elements, the kernel needs 18446744073709551614");
  call.rows = 3;
  EXPECT_EQ(refusal(*descriptor, call.arguments()),
            "argument 0 ('x') has an extent that overflows");
}

TEST(Descriptor, a_launch_out_of_numbers_is_refused) {
  Scaled scaled;
  wcuda_kernel_descriptor native = scaled.native();
  Call call;
  const auto with = [&](wcuda_string* field, const char* expression) {
    const wcuda_string kept = std::exchange(*field, text(expression));
    const auto plan = plan_launch(*read_descriptor(native), call.arguments());
    *field = kept;
    EXPECT_EQ(plan.status().code(), WCUDA_INVALID_CONFIG);
    return std::string(plan.status().message());
  };
  EXPECT_EQ(with(&native.grid[1], "rows - 3"), "grid y: -1, must be 0 to 4294967295");
  EXPECT_EQ(with(&native.block[0], "4294967296"), "block x: 4294967296, must be 0 to 4294967295");
  EXPECT_EQ(with(&native.shared_bytes, "rows / 0"),
            "shared memory: 2 divided by 0, which takes at least 0 and 1");
}

TEST(Signature, fits_the_code_or_is_refused) {
  wcuda_parameter bytes = WCUDA_PARAMETER_INIT;
  bytes.name = text("config");
  bytes.kind = WCUDA_ARG_BYTES;
  bytes.shape = text("20");
  const wcuda_parameter parameters[] = {buffer("x", WCUDA_ARG_F32, 0, "4"),
                                        scalar("factor", WCUDA_ARG_F32), bytes};
  const auto signature = read_signature(parameters, 3);
  ASSERT_TRUE(signature.ok()) << signature.status().message();

  EXPECT_TRUE(check_fit(*signature, {{0, 8}, {8, 4}, {12, 20}}).ok());
  EXPECT_STREQ(check_fit(*signature, {{0, 8}}).message(),
               "parameters: 3 given, the kernel's code has 1");
  EXPECT_STREQ(check_fit(*signature, {{0, 8}, {8, 8}, {16, 20}}).message(),
               "parameters[1]: f32 of 4 bytes, the kernel's code takes 8");
  EXPECT_STREQ(check_fit(*signature, {{0, 8}, {8, 4}, {12, 21}}).message(),
               "parameters[2]: bytes of 20 bytes, the kernel's code takes 21");
  EXPECT_STREQ(check_fit(*signature, {{0, 8}, {8, 4}, {12, 19}}).message(),
               "parameters[2]: bytes of 20 bytes, the kernel's code takes 19");
}

}  // namespace
}  // namespace wcuda::jit
