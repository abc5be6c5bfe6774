// Matrix products through the C interface against double precision, on HOST and (Gpu…) on CUDA.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dynlib.h"
#include "core/gemm/host_tile.h"
#include "kernels/shared/numeric.h"
#include "llm/quant/random_blocks.h"
#include "support/context.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

struct Case {
  int32_t type;
  int32_t output;
  uint32_t flags;
  int32_t activation;
  bool has_bias;
  float alpha, beta;
  uint64_t batch, m, n, k;
  uint64_t spare = 0;  // elements between rows, between matrices, and before each matrix
};

// Elements of one type as bytes; values are multiples of 2^-6 below 1 in f32, cut to the type else.
struct Elements {
  int32_t type = WCUDA_ARG_F32;  // 0: e4m3
  std::vector<uint8_t> bytes;

  uint64_t element_bytes() const { return type == WCUDA_ARG_F32 ? 4 : type == 0 ? 1 : 2; }
  uint64_t size() const { return bytes.size() / element_bytes(); }
  double at(uint64_t i) const {
    const uint8_t* const data = bytes.data() + i * element_bytes();
    if (type == 0) return double{e4m3_to_float(*data)};
    if (type == WCUDA_ARG_F32) {
      float value;
      std::memcpy(&value, data, 4);
      return double{value};
    }
    uint16_t bits;
    std::memcpy(&bits, data, 2);
    return double{type == WCUDA_ARG_F16 ? half_to_float(bits) : bf16_to_float(bits)};
  }
  void set(uint64_t i, float value) {
    uint8_t* const data = bytes.data() + i * element_bytes();
    const uint16_t half = type == WCUDA_ARG_F16 ? float_to_half(value) : float_to_bf16(value);
    const uint8_t small = float_to_e4m3(value);
    std::memcpy(data,
                type == 0               ? static_cast<const void*>(&small)
                : type == WCUDA_ARG_F32 ? static_cast<const void*>(&value)
                                        : &half,
                element_bytes());
  }
};

Elements random_elements(int32_t type, uint64_t count, uint64_t seed) {
  Elements result;
  result.type = type;
  result.bytes.resize(count * result.element_bytes());
  for (uint64_t i = 0; i < count; ++i)
    result.set(i, static_cast<float>(static_cast<int64_t>(splitmix64(seed << 40 | i))) * 0x1p-63f);
  return result;
}

// A stored matrix: its rows, what lies between them, and what lies before it.
struct Stored {
  uint64_t rows, cols, row_stride, batch_stride, offset, count;
  Stored(uint64_t rows, uint64_t cols, uint64_t batch, uint64_t spare)
      : rows(rows),
        cols(cols),
        row_stride(cols + spare),
        batch_stride(rows * (cols + spare) + spare),
        offset(spare),
        count(spare + batch * (rows * (cols + spare) + spare)) {}
  uint64_t at(uint64_t batch, uint64_t row, uint64_t col) const {
    return offset + batch * batch_stride + row * row_stride + col;
  }
};

int32_t input_type(int32_t type) {
  return type == WCUDA_GEMM_F16    ? WCUDA_ARG_F16
         : type == WCUDA_GEMM_BF16 ? WCUDA_ARG_BF16
         : type == WCUDA_GEMM_FP8  ? 0
                                   : WCUDA_ARG_F32;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// The bound of the header, and the rounding to the type of c; of `product`, before bias and
// activation, too.
double bound_of(const Case& c, double magnitudes, double product, double expected) {
  const double cut = c.type == WCUDA_GEMM_TF32 ? 0x1p-9 : c.type == WCUDA_GEMM_FP8 ? 0x1p-10 : 0;
  const double unit = c.output == WCUDA_ARG_F16    ? 0x1p-11
                      : c.output == WCUDA_ARG_BF16 ? 0x1p-8
                                                   : 0x1p-22;
  double bound = (4 * double(c.k) * 0x1p-24 + cut) * magnitudes;
  if (c.has_bias || c.activation != WCUDA_ACTIVATION_NONE) bound += unit * std::fabs(product);
  if (c.activation == WCUDA_ACTIVATION_GELU) bound = 1.2 * bound + 0x1p-10 * std::fabs(expected);
  return bound + unit * (std::fabs(expected) + 0x1p-12);
}

class Product {
 public:
  Product(wcuda_context context, const Case& c)
      : case_(c),
        stored_a_(c.flags & WCUDA_GEMM_TRANSPOSE_A ? c.k : c.m,
                  c.flags & WCUDA_GEMM_TRANSPOSE_A ? c.m : c.k, c.batch, c.spare),
        stored_b_(c.flags & WCUDA_GEMM_TRANSPOSE_B ? c.n : c.k,
                  c.flags & WCUDA_GEMM_TRANSPOSE_B ? c.k : c.n, c.batch, c.spare),
        stored_c_(c.m, c.n, c.batch, c.spare),
        a_(random_elements(input_type(c.type), stored_a_.count, 1)),
        b_(random_elements(input_type(c.type), stored_b_.count, 2)),
        c_(random_elements(c.output, stored_c_.count, 3)),
        bias_(random_elements(
            c.type == WCUDA_GEMM_FP8 && c.output == WCUDA_ARG_F32 ? WCUDA_ARG_BF16 : c.output, c.n,
            4)) {
    gemm.type = c.type;
    gemm.output_type = c.output;
    gemm.flags = c.flags;
    gemm.activation = c.activation;
    gemm.alpha = c.alpha;
    gemm.beta = c.beta;
    gemm.m = c.m, gemm.n = c.n, gemm.k = c.k;
    gemm.batch = c.batch;
    if (c.spare != 0) {
      gemm.row_stride_a = stored_a_.row_stride;
      gemm.row_stride_b = stored_b_.row_stride;
      gemm.row_stride_c = stored_c_.row_stride;
      gemm.batch_stride_a = stored_a_.batch_stride;
      gemm.batch_stride_b = stored_b_.batch_stride;
      gemm.batch_stride_c = stored_c_.batch_stride;
    }
    if (c.beta == 0)  // not read: a NaN there must not come out
      std::fill(c_.bytes.begin(), c_.bytes.end(), uint8_t{0xff});
    for (const Elements* each : {&a_, &b_, &c_, &bias_}) {
      buffers_.push_back(std::make_unique<TestBuffer>(context, each->bytes.size()));
      EXPECT_EQ(wcuda_buffer_write(buffers_.back()->handle(), 0, each->bytes.data(),
                                   each->bytes.size(), nullptr),
                WCUDA_OK);
      wcuda_argument argument = WCUDA_ARGUMENT_INIT;
      argument.kind = WCUDA_ARG_BUFFER;
      argument.buffer = buffers_.back()->handle();
      if (each != &bias_) argument.offset = c.spare * each->element_bytes();
      arguments.push_back(argument);
    }
    if (!c.has_bias) arguments.pop_back();
  }

  wcuda_status run(wcuda_context context, wcuda_error* error) const {
    return wcuda_gemm_run(context, &gemm, arguments.data(), arguments.size(), {0}, error);
  }

  Elements read() const {
    Elements found = c_;
    EXPECT_EQ(wcuda_buffer_read(buffers_[2]->handle(), 0, found.bytes.data(), found.bytes.size(),
                                nullptr),
              WCUDA_OK);
    return found;
  }

  wcuda_status write_c(const std::vector<uint8_t>& bytes) const {
    return wcuda_buffer_write(buffers_[2]->handle(), 0, bytes.data(), bytes.size(), nullptr);
  }

  // Largest share of the bound; everything outside c is as it was.
  double check() const {
    const Elements found = read();
    Elements outside = found;
    double worst = 0;
    for (uint64_t batch = 0; batch < case_.batch; ++batch)
      for (uint64_t row = 0; row < case_.m; ++row)
        for (uint64_t col = 0; col < case_.n; ++col) {
          const uint64_t at = stored_c_.at(batch, row, col);
          const double share = share_of_bound(batch, row, col, found.at(at));
          worst = std::isnan(share) ? INFINITY : std::max(worst, share);
          std::memcpy(&outside.bytes[at * outside.element_bytes()],
                      &c_.bytes[at * outside.element_bytes()], outside.element_bytes());
        }
    EXPECT_EQ(outside.bytes, c_.bytes) << "elements that are none of c";
    return worst;
  }

  wcuda_gemm gemm = WCUDA_GEMM_INIT;
  std::vector<wcuda_argument> arguments;

 private:
  double share_of_bound(uint64_t batch, uint64_t row, uint64_t col, double found) const {
    const bool ta = case_.flags & WCUDA_GEMM_TRANSPOSE_A, tb = case_.flags & WCUDA_GEMM_TRANSPOSE_B;
    double sum = 0, magnitudes = 0;
    for (uint64_t k = 0; k < case_.k; ++k) {
      const double term = a_.at(ta ? stored_a_.at(batch, k, row) : stored_a_.at(batch, row, k)) *
                          b_.at(tb ? stored_b_.at(batch, col, k) : stored_b_.at(batch, k, col));
      sum += term;
      magnitudes += std::fabs(term);
    }
    double expected = double{case_.alpha} * sum;
    if (case_.beta != 0) expected += double{case_.beta} * c_.at(stored_c_.at(batch, row, col));
    const double product = expected;
    if (case_.has_bias) expected += bias_.at(col);
    if (case_.activation == WCUDA_ACTIVATION_RELU) expected = std::max(expected, 0.0);
    if (case_.activation == WCUDA_ACTIVATION_GELU) expected = gelu(expected);
    return std::fabs(found - expected) /
           bound_of(case_, std::fabs(double{case_.alpha}) * magnitudes, product, expected);
  }

  Case case_;
  Stored stored_a_, stored_b_, stored_c_;
  Elements a_, b_, c_, bias_;
  std::vector<std::unique_ptr<TestBuffer>> buffers_;
};

std::string describe(const Case& c) {
  return "type " + std::to_string(c.type) + " to " + std::to_string(c.output) + ", flags " +
         std::to_string(c.flags) + ", activation " + std::to_string(c.activation) + ", bias " +
         std::to_string(c.has_bias) + ", " + std::to_string(c.batch) + " of " +
         std::to_string(c.m) + " x " + std::to_string(c.n) + " x " + std::to_string(c.k) +
         ", spare " + std::to_string(c.spare);
}

void expect_right(const TestContext& context, const Case& c) {
  SCOPED_TRACE(describe(c));
  wcuda_error error{};
  const Product product(context.handle(), c);
  ASSERT_EQ(product.run(context.handle(), &error), WCUDA_OK) << error.message;
  EXPECT_LE(product.check(), 1.0);
}

constexpr uint32_t kA = WCUDA_GEMM_TRANSPOSE_A, kB = WCUDA_GEMM_TRANSPOSE_B;
constexpr struct {
  int32_t type, output;
} kPairs[] = {{WCUDA_GEMM_F32, WCUDA_ARG_F32},   {WCUDA_GEMM_TF32, WCUDA_ARG_F32},
              {WCUDA_GEMM_F16, WCUDA_ARG_F16},   {WCUDA_GEMM_F16, WCUDA_ARG_F32},
              {WCUDA_GEMM_BF16, WCUDA_ARG_BF16}, {WCUDA_GEMM_BF16, WCUDA_ARG_F32},
              {WCUDA_GEMM_FP8, WCUDA_ARG_BF16},  {WCUDA_GEMM_FP8, WCUDA_ARG_F16},
              {WCUDA_GEMM_FP8, WCUDA_ARG_F32}};

TEST(GemmApi, every_type_transpose_and_epilogue) {
  const TestContext context;
  for (const auto& [type, output] : kPairs)
    for (const uint32_t flags : {0u, kA, kB, kA | kB})
      for (const int32_t activation :
           {WCUDA_ACTIVATION_NONE, WCUDA_ACTIVATION_RELU, WCUDA_ACTIVATION_GELU})
        expect_right(context, {type, output, flags, activation, activation != 0, 1.5f,
                               activation == WCUDA_ACTIVATION_RELU ? 0.0f : -0.5f, 2, 13, 37, 61});
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
}

// Around the sizes of tiles (96 x 128), blocks (1056 x 1024, 512 deep) and vectors.
TEST(GemmApi, odd_sizes_strides_and_batches) {
  const TestContext context;
  constexpr uint64_t sizes[][3] = {{1, 1, 1},      {12, 32, 1},    {95, 127, 511},
                                   {96, 128, 512}, {97, 129, 513}, {1057, 3, 2},
                                   {2, 1025, 3},   {5, 7, 1025},   {200, 150, 70}};
  for (const auto& [m, n, k] : sizes)
    for (const uint64_t spare : {0u, 3u})
      for (const uint32_t flags : {0u, kA | kB})
        expect_right(context,
                     {WCUDA_GEMM_F32, WCUDA_ARG_F32, flags, 0, false, 1, 0, 1, m, n, k, spare});
  expect_right(context, {WCUDA_GEMM_F32, WCUDA_ARG_F32, 0, 0, true, 1, 2, 5, 33, 65, 17, 7});
}

TEST(GemmApi, every_instruction_set_multiplies) {
  int found = 0;
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const compute::HostTile* const tile = compute::find_host_tile(name);
    if (!tile) continue;
    ++found;
    constexpr int64_t depth = 37, stride = 48;
    alignas(64) float a[depth * 16], b[depth * 32], sums[16 * stride];
    for (int i = 0; i < depth * 16; ++i) a[i] = static_cast<float>(i % 7 - 3);
    for (int i = 0; i < depth * 32; ++i) b[i] = static_cast<float>(i % 11 - 5);
    for (float& sum : sums) sum = 1.0f;
    tile->multiply(a, b, depth, sums, stride);
    for (int64_t r = 0; r < 16; ++r)
      for (int64_t c = 0; c < stride; ++c) {
        float expected = 1.0f;  // small integers: exact
        for (int64_t d = 0; d < depth && r < tile->rows && c < tile->cols; ++d)
          expected += a[d * tile->rows + r] * b[d * tile->cols + c];
        ASSERT_EQ(sums[r * stride + c], expected) << name << " " << r << " " << c;
      }
  }
  EXPECT_GE(found, 1);
}

// However many threads share the work.
TEST(GemmApi, threads_do_not_change_bits) {
  const Case c{WCUDA_GEMM_F32, WCUDA_ARG_F32, 0, 0, false, 1, 0, 1, 300, 400, 600};
  std::vector<uint8_t> first;
  for (const uint32_t threads : {1u, 2u, 5u}) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = WCUDA_BACKEND_HOST;
    options.host_thread_count = threads;
    wcuda_context context{0};
    ASSERT_EQ(wcuda_context_create(&options, &context, nullptr), WCUDA_OK);
    {
      const Product product(context, c);
      ASSERT_EQ(product.run(context, nullptr), WCUDA_OK);
      const std::vector<uint8_t> bytes = product.read().bytes;
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << threads;
    }
    wcuda_context_destroy(context);
  }
}

TEST(GemmApi, wrong_calls_are_refused_with_the_numbers) {
  const TestContext context;
  const Case plain{WCUDA_GEMM_F32, WCUDA_ARG_F32, 0, 0, true, 1, 1, 2, 4, 5, 6};
  wcuda_error error{};
  const auto refused = [&](auto&& change, wcuda_status status, const std::string& message) {
    Product product(context.handle(), plain);
    const std::vector<uint8_t> before = product.read().bytes;
    change(product);
    EXPECT_EQ(product.run(context.handle(), &error), status) << message;
    EXPECT_NE(std::string(error.message).find(message), std::string::npos) << error.message;
    EXPECT_EQ(product.read().bytes, before);
  };
  refused([](Product& p) { p.gemm.type = WCUDA_GEMM_F64; }, WCUDA_NOT_AVAILABLE, "f64");
  refused([](Product& p) { p.gemm.type = WCUDA_GEMM_INT8; }, WCUDA_NOT_AVAILABLE, "int8");
  refused([](Product& p) { p.gemm.type = 8; }, WCUDA_INVALID_ARGUMENT, "type: 8");
  refused([](Product& p) { p.gemm.output_type = WCUDA_ARG_F16; }, WCUDA_INVALID_ARGUMENT,
          "output_type: 9");
  refused([](Product& p) { p.gemm.flags = 4; }, WCUDA_INVALID_ARGUMENT, "flags");
  refused([](Product& p) { p.gemm.activation = 3; }, WCUDA_INVALID_ARGUMENT, "activation: 3");
  refused([](Product& p) { p.gemm.k = 0; }, WCUDA_INVALID_ARGUMENT, "k: 0, at least 1");
  refused([](Product& p) { p.gemm.m = uint64_t{1} << 31; }, WCUDA_INVALID_ARGUMENT,
          "m: 2147483648, at most 2147483647");
  refused([](Product& p) { p.gemm.row_stride_a = 5; }, WCUDA_INVALID_ARGUMENT,
          "a: a row stride of 5, rows have 6 elements");
  refused([](Product& p) { p.gemm.batch_stride_c = 19; }, WCUDA_INVALID_ARGUMENT,
          "c: a batch stride of 19, a matrix has 20 elements");
  refused([](Product& p) { p.gemm.m = 5; }, WCUDA_INVALID_ARGUMENT,
          "a: has 192 bytes, the product needs 240");
  refused([](Product& p) { p.gemm.batch_stride_b = uint64_t{1} << 56; }, WCUDA_INVALID_ARGUMENT,
          "b: its extent overflows");
  refused([](Product& p) { p.arguments[3].bytes = 16; }, WCUDA_INVALID_ARGUMENT,
          "bias: has 16 bytes, the product needs 20");
  refused([](Product& p) { p.arguments[3].offset = 2; }, WCUDA_INVALID_ARGUMENT, "bias: ");
  refused([](Product& p) { p.arguments[2] = p.arguments[1]; }, WCUDA_INVALID_ARGUMENT,
          "c: overlaps b");
  refused([](Product& p) { p.arguments.resize(2); }, WCUDA_ARGUMENT_COUNT, "2 given");
  refused([](Product& p) { p.arguments[2].access = WCUDA_ACCESS_READ; }, WCUDA_INVALID_ARGUMENT,
          "only reading is granted");
}

TEST(GemmApi, nothing_is_made_of_nothing) {
  const TestContext context;
  Product product(context.handle(), {WCUDA_GEMM_F32, WCUDA_ARG_F32, 0, 0, false, 1, 1, 1, 4, 5, 6});
  const std::vector<uint8_t> before = product.read().bytes;
  product.gemm.m = 0;
  EXPECT_EQ(product.run(context.handle(), nullptr), WCUDA_OK);
  EXPECT_EQ(product.read().bytes, before);
}

// The device and the library may fail at any step: an error, and nothing in the ledger.
TEST(GemmApi, failure_at_every_step_leaves_the_output) {
  const FaultContext context;
  const Product product(context.handle(),
                        {WCUDA_GEMM_F32, WCUDA_ARG_F32, 0, 0, false, 1, 1, 1, 4, 5, 6});
  const std::vector<uint8_t> before = product.read().bytes;
  context.faults().fail(CallKind::kLaunch, 1);
  EXPECT_NE(product.run(context.handle(), nullptr), WCUDA_OK);
  EXPECT_EQ(product.read().bytes, before);
}

// On a device.

bool has_library() { return DynamicLibrary::open(kCublasLtLibrary).ok(); }

TEST(GpuGemmApi, without_the_library_an_error_names_it) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  if (has_library()) GTEST_SKIP() << "cuBLASLt is here";
  wcuda_error error{};
  const Product product(context.handle(),
                        {WCUDA_GEMM_F32, WCUDA_ARG_F32, 0, 0, false, 1, 0, 1, 4, 5, 6});
  EXPECT_EQ(product.run(context.handle(), &error), WCUDA_NOT_AVAILABLE);
  EXPECT_NE(std::string(error.message).find(kCublasLtLibrary), std::string::npos) << error.message;
  EXPECT_EQ(wcuda_gemm_library_check(&error), WCUDA_NOT_AVAILABLE);
  EXPECT_NE(std::string(error.message).find(kCublasLtLibrary), std::string::npos) << error.message;
}

TEST(GemmApi, the_library_is_missing_where_the_build_or_the_loader_says_so) {
  wcuda_build_info build = WCUDA_BUILD_INFO_INIT;
  ASSERT_EQ(wcuda_build_info_get(&build, nullptr), WCUDA_OK);
  wcuda_error error{};
  const bool is_there = build.has_cuda && has_library();
  EXPECT_EQ(wcuda_gemm_library_check(&error), is_there ? WCUDA_OK : WCUDA_NOT_AVAILABLE);
  EXPECT_EQ(error.message[0] == 0, is_there);
}

TEST(GpuGemmApi, every_type_transpose_and_epilogue) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  if (!has_library()) GTEST_SKIP() << "no cuBLASLt";
  for (const auto& [type, output] : kPairs)
    for (const uint32_t flags : {0u, kA, kB, kA | kB})
      for (const int32_t activation :
           {WCUDA_ACTIVATION_NONE, WCUDA_ACTIVATION_RELU, WCUDA_ACTIVATION_GELU}) {
        const float beta = activation == WCUDA_ACTIVATION_RELU ? 0.0f : -0.5f;
        expect_right(context, {type, output, flags, activation, activation != 0, 1.5f, beta, 2, 48,
                               80, 144});
        expect_right(context,
                     {type, output, flags, activation, false, 1.5f, beta, 1, 256, 128, 512});
        expect_right(context,
                     {type, output, flags, activation, activation != 0, 1.5f, beta, 2, 13, 37, 61});
      }
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_USER).current_bytes, 0u);
  EXPECT_LE(context.memory(WCUDA_PURPOSE_SCRATCH).current_bytes, 32u << 20) << "its workspace";
}

TEST(GpuGemmApi, odd_sizes_strides_and_batches) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  if (!has_library()) GTEST_SKIP() << "no cuBLASLt";
  constexpr uint64_t sizes[][3] = {{1, 1, 1}, {1, 100, 300}, {129, 1, 65}, {200, 150, 70}};
  for (const auto& [type, output] : kPairs)
    for (const auto& [m, n, k] : sizes)
      for (const uint64_t spare : {0u, 3u})
        expect_right(context, {type, output, 0, 0, true, 1, 0, 3, m, n, k, spare});
}

// Long sums: the bound grows with k, the error hardly.
TEST(GpuGemmApi, long_sums_stay_within_the_bound) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  if (!has_library()) GTEST_SKIP() << "no cuBLASLt";
  for (const auto& [type, output] : kPairs)
    expect_right(context, {type, output, kB, 0, false, 1, 0, 1, 16, 16, 65536});
}

TEST(GpuGemmApi, gives_the_same_bits_each_time) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  if (!has_library()) GTEST_SKIP() << "no cuBLASLt";
  for (const auto& [type, output] : kPairs) {
    const Case c{type, output, kB, 0, false, 1, 0, 1, 64, 48, 8192};
    const Product first(context.handle(), c), second(context.handle(), c);
    const TestContext other_context(0, WCUDA_BACKEND_CUDA);
    const Product other(other_context.handle(), c);
    for (const Product* each : {&first, &second})
      ASSERT_EQ(each->run(context.handle(), nullptr), WCUDA_OK);
    ASSERT_EQ(other.run(other_context.handle(), nullptr), WCUDA_OK);
    EXPECT_EQ(first.read().bytes, second.read().bytes);
    EXPECT_EQ(first.read().bytes, other.read().bytes);
  }
}

// Copies into scratch, the product, the copy out of it: whichever step fails, c is as it was and
// the scratch is given back.
TEST(GpuGemmApi, fp8_by_way_of_copies_fails_at_every_step_without_a_trace) {
  if (!has_library()) GTEST_SKIP() << "no cuBLASLt";
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  options.type = WCUDA_BACKEND_CUDA;
  options.flags = WCUDA_BACKEND_WITH_FAULTS;
  wcuda_backend backend{0};
  wcuda_context context{0};
  wcuda_error error{};
  ASSERT_EQ(wcuda_backend_open(&options, &backend, &error), WCUDA_OK) << error.message;
  ASSERT_EQ(wcuda_backend_context_create(backend, &context, &error), WCUDA_OK);
  {
    const Product product(context,
                          {WCUDA_GEMM_FP8, WCUDA_ARG_BF16, kA, 0, true, 1, 1, 2, 13, 5, 6});
    const std::vector<uint8_t> before = product.read().bytes;
    const auto scratch_rows = [&] {
      wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
      EXPECT_EQ(wcuda_context_memory_get(context, WCUDA_PURPOSE_SCRATCH, &info, nullptr), WCUDA_OK);
      return info.allocation_count;
    };
    ASSERT_EQ(product.run(context, &error), WCUDA_OK) << error.message;
    EXPECT_LE(product.check(), 1.0);
    const uint64_t rows = scratch_rows();  // what stays for products on this stream
    ASSERT_EQ(product.write_c(before), WCUDA_OK);
    for (const int32_t kind : {WCUDA_FAULT_ALLOCATE, WCUDA_FAULT_LAUNCH}) {
      uint64_t k = 0;
      for (wcuda_status status = WCUDA_INTERNAL; status != WCUDA_OK;) {
        ASSERT_EQ(wcuda_backend_fault_set(backend, kind, ++k, nullptr), WCUDA_OK);
        status = product.run(context, &error);
        ASSERT_EQ(wcuda_backend_fault_set(backend, WCUDA_FAULT_NONE, 0, nullptr), WCUDA_OK);
        EXPECT_EQ(scratch_rows(), rows);
        if (status == WCUDA_OK) break;
        EXPECT_EQ(product.read().bytes, before) << "kind " << kind << ", " << k;
        ASSERT_LT(k, 30u);
      }
      EXPECT_GE(k, kind == WCUDA_FAULT_ALLOCATE ? 2u : 7u);
      ASSERT_EQ(product.write_c(before), WCUDA_OK);
    }
  }
  wcuda_context_destroy(context);
  wcuda_backend_close(backend);
}

// Large products of the catalogue go to cuBLASLt, and give what ours would.
TEST(GpuGemmApi, large_products_of_the_catalogue_are_right) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  for (const int32_t type : {WCUDA_GEMM_F32, WCUDA_GEMM_F16, WCUDA_GEMM_BF16})
    for (const bool has_bias : {true, false}) {
      const int32_t element = input_type(type);
      const Case c{type, element, 0, 0, has_bias, 1, 0, 1, 200, 150, 170};
      SCOPED_TRACE(describe(c));
      const Product product(context.handle(), c);
      std::vector<wcuda_argument> arguments = product.arguments;
      if (has_bias) std::swap(arguments[2], arguments[3]);  // y is last
      const uint64_t sizes[] = {c.m, c.k, c.n};
      for (const uint64_t& size : sizes) {
        wcuda_argument argument = WCUDA_ARGUMENT_INIT;
        argument.kind = WCUDA_ARG_U64;
        argument.data = &size;
        arguments.push_back(argument);
      }
      const std::string name = has_bias ? "linear" : "matmul";
      wcuda_error error{};
      ASSERT_EQ(wcuda_catalogue_run(context.handle(), {name.data(), name.size()}, element,
                                    arguments.data(), arguments.size(), {0}, &error),
                WCUDA_OK)
          << error.message;
      EXPECT_LE(product.check(), 1.0);
    }
}

}  // namespace
}  // namespace wcuda::testing
