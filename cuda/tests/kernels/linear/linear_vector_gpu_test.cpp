// linear_vector against double precision over unpacked weights, for formats, shapes, token counts
// and epilogues; that its results repeat.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/linear/linear_vector.h"
#include "llm/quant/random_tiles.h"
#include "support/device_array.h"
#include "support/device_launch.h"

namespace wcuda::kernels {
namespace {

using testing::DeviceArray;
using testing::random_matrix;
using testing::RandomMatrix;

struct Case {
  std::vector<uint32_t> types, rows;  // of the matrices
  uint32_t cols = 0;
  uint32_t tokens = 1;
  bool has_norm = false, has_bias = false, has_x_rows = false;
  Epilogue epilogue = Epilogue::kStore;
  bool is_dependent = false;
};

std::string describe(const Case& c) {
  std::string text;
  for (size_t i = 0; i < c.types.size(); ++i)
    text += "type " + std::to_string(c.types[i]) + " rows " + std::to_string(c.rows[i]) + ", ";
  return text + std::to_string(c.cols) + " cols, " + std::to_string(c.tokens) + " tokens, norm " +
         std::to_string(c.has_norm) + ", epilogue " +
         std::to_string(static_cast<uint32_t>(c.epilogue));
}

constexpr float kEpsilon = 1e-5f;
constexpr uint32_t kXRows = 11;

// About normal, now and then ten times as large.
float random_value(uint64_t counter) {
  const uint64_t word = testing::splitmix64(counter + 1000);
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(word >> (12 * i) & 4095) / 2048.0f - 1.0f;
  return word >> 58 == 0 ? 10.0f * sum : sum;
}

std::vector<float> random_values(uint64_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = random_value(seed * 1000000 + i);
  return values;
}

struct Value {
  double value;
  double tolerance;
};

// Inputs of a case, and what is to come out.
class Problem {
 public:
  explicit Problem(const Case& c) : case_(c) {
    for (size_t i = 0; i < c.types.size(); ++i) {
      matrices_.push_back(random_matrix(*quant::find_format(c.types[i]), c.rows[i], c.cols));
      // Other rows than the matrix before.
      biases_.push_back(random_values(c.rows[i], 50 + i));
      before_.push_back(random_values(uint64_t{c.tokens} * c.rows[i], 60 + i));
      packed_tiles_.push_back(std::make_unique<DeviceArray<uint8_t>>(matrices_[i].packed_tiles));
      device_biases_.push_back(std::make_unique<DeviceArray<float>>(biases_[i]));
    }
    x_ = random_values(uint64_t{kXRows} * c.cols, 3);
    norm_ = random_values(c.cols, 4);
    for (uint32_t i = 0; i < c.tokens; ++i) x_rows_.push_back((3 * i + 2) % kXRows);
    device_x_ = std::make_unique<DeviceArray<float>>(x_);
    device_norm_ = std::make_unique<DeviceArray<float>>(norm_);
    device_x_rows_ = std::make_unique<DeviceArray<uint32_t>>(x_rows_);
  }

  // Results of the device, one vector a matrix; empty on an error.
  std::vector<std::vector<float>> run() {
    LinearArgs args;
    args.tokens = case_.tokens;
    args.x = device_x_->data();
    if (case_.has_x_rows) args.x_rows = device_x_rows_->data();
    if (case_.has_norm) args.norm = device_norm_->data();
    args.epsilon = kEpsilon;
    args.matrix_count = static_cast<uint32_t>(matrices_.size());
    args.epilogue = case_.epilogue;
    std::vector<std::unique_ptr<DeviceArray<float>>> outputs;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      args.matrices[i] = {packed_tiles_[i]->data(), case_.types[i], case_.rows[i], case_.cols};
      if (case_.has_bias) args.biases[i] = device_biases_[i]->data();
      outputs.push_back(std::make_unique<DeviceArray<float>>(before_[i]));
      args.outputs[i] = outputs[i]->data();
    }
    Launch launch = testing::device_launch();
    launch.is_dependent = case_.is_dependent;
    const uint64_t scratch_bytes = linear_vector_scratch_bytes(args, launch);
    if (scratch_ == nullptr) {
      scratch_ = std::make_unique<DeviceArray<uint8_t>>(scratch_bytes);
      scratch_->fill(0);
    }
    launch.scratch = scratch_->data();
    launch.scratch_bytes = scratch_bytes;
    std::vector<std::vector<float>> results;
    error_ = linear_vector(args, launch);
    if (error_ != cudaSuccess) return results;
    for (size_t i = 0; i < (is_gate(case_.epilogue) ? 1 : matrices_.size()); ++i)
      results.push_back(outputs[i]->read());
    if (results[0].empty()) error_ = cudaGetLastError();
    return results;
  }
  cudaError_t error() const { return error_; }

  // W · h of matrix i, with bias. The tolerance: an activation is off by up to half of amax / 32639
  // of its group of 32, from 3 tokens on of the 256 that a warp stages together, independently (8
  // standard deviations); f32 sums, 2e-6 of the sum of sizes.
  Value product(size_t i, uint32_t token, uint32_t row) const {
    const float* x = &x_[uint64_t{case_.has_x_rows ? x_rows_[token] : token} * case_.cols];
    const float* w = &matrices_[i].values[uint64_t{row} * case_.cols];
    double sum = 0.0, size = 0.0, variance = 0.0, squares = 0.0;
    const bool has_wide_scales = case_.tokens > 2;
    const uint32_t group_inputs = has_wide_scales ? 128 : 32;
    for (uint32_t group = 0; group < case_.cols; group += group_inputs) {
      double amax = 0.0, weights = 0.0;
      for (uint32_t k = group; k < group + group_inputs && k < case_.cols; ++k) {
        const double h = double{x[k]} * (case_.has_norm ? norm_[k] : 1.0f);
        sum += w[k] * h;
        size += std::fabs(w[k] * h);
        weights += double{w[k]} * w[k];
        squares += double{x[k]} * x[k];
        amax = std::max(amax, std::fabs(h));
      }
      // The 256 begin at a multiple of 128.
      if (has_wide_scales)
        for (uint32_t k = group < 128 ? 0 : group - 128; k < group + 256 && k < case_.cols; ++k)
          amax = std::max(amax, std::fabs(double{x[k]} * (case_.has_norm ? norm_[k] : 1.0f)));
      variance += weights * amax * amax / 32639.0 / 32639.0 / 12.0;
    }
    const double inverse =
        case_.has_norm ? 1.0 / std::sqrt(squares / case_.cols + double{kEpsilon}) : 1.0;
    const double bias = case_.has_bias ? biases_[i][row] : 0.0;
    return {sum * inverse + bias,
            (8.0 * std::sqrt(variance) + 2e-6 * size) * inverse + 1e-6 * std::fabs(bias)};
  }

  Value expected(size_t i, uint32_t token, uint32_t row) const {
    Value y = product(i, token, row);
    if (case_.epilogue == Epilogue::kAdd)
      y.value += before_[i][uint64_t{token} * case_.rows[i] + row];
    if (is_gate(case_.epilogue)) {
      const Value up = product(1, token, row);
      const double v = y.value;
      const double gate =
          case_.epilogue == Epilogue::kSiluGate
              ? v / (1.0 + std::exp(-v))
              : 0.5 * v * (1.0 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
      // Neither gate is steeper than 1.13.
      y.tolerance = 1.13 * y.tolerance * (std::fabs(up.value) + up.tolerance) +
                    std::fabs(gate) * up.tolerance;
      y.value = gate * up.value;
    }
    y.tolerance += 2e-6 * std::fabs(y.value) + 1e-12;
    return y;
  }

  size_t outputs() const { return is_gate(case_.epilogue) ? 1 : matrices_.size(); }

 private:
  Case case_;
  std::vector<RandomMatrix> matrices_;
  std::vector<std::vector<float>> biases_, before_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> packed_tiles_;
  std::vector<std::unique_ptr<DeviceArray<float>>> device_biases_;
  std::vector<float> x_, norm_;
  std::vector<uint32_t> x_rows_;
  std::unique_ptr<DeviceArray<float>> device_x_, device_norm_;
  std::unique_ptr<DeviceArray<uint32_t>> device_x_rows_;
  std::unique_ptr<DeviceArray<uint8_t>> scratch_;
  cudaError_t error_ = cudaSuccess;
};

void expect_right(const Case& c) {
  SCOPED_TRACE(describe(c));
  Problem problem(c);

  const std::vector<std::vector<float>> results = problem.run();
  const std::vector<std::vector<float>> again = problem.run();

  ASSERT_EQ(problem.error(), cudaSuccess);
  ASSERT_EQ(results.size(), problem.outputs());
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].size(), uint64_t{c.tokens} * c.rows[i]);
    for (uint32_t token = 0; token < c.tokens; ++token)
      for (uint32_t row = 0; row < c.rows[i]; ++row) {
        const Value expected = problem.expected(i, token, row);
        const float value = results[i][uint64_t{token} * c.rows[i] + row];
        ASSERT_NEAR(value, expected.value, expected.tolerance)
            << "matrix " << i << " token " << token << " row " << row;
      }
    ASSERT_EQ(results[i], again[i]) << "results repeat to the bit";
  }
}

// Formats with a kernel.
std::vector<const quant::Format*> formats() {
  std::vector<const quant::Format*> with_kernel;
  for (const quant::Format* format : testing::loadable_formats())
    if (has_linear_vector(format->id)) with_kernel.push_back(format);
  return with_kernel;
}

TEST(GpuLinearVector, products_of_every_format_and_token_count) {
  for (const quant::Format* format : formats()) {
    const uint32_t block = std::max(format->block_elements, 32u);
    for (const uint32_t tokens : {1u, 2u, 3u, 8u})
      for (const uint32_t blocks : {1u, 5u, 2048 / block}) {
        Case c;
        c.types = {format->id};
        c.rows = {37};
        c.cols = blocks * block;
        c.tokens = tokens;
        expect_right(c);
        if (HasFatalFailure()) return;
      }
  }
}

TEST(GpuLinearVector, norm_bias_rows_and_epilogues) {
  for (const quant::Format* format : formats())
    for (const Epilogue epilogue :
         {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSiluGate, Epilogue::kGeluTanhGate}) {
      Case c;
      c.types = {format->id, format->id};
      c.rows = is_gate(epilogue) ? std::vector<uint32_t>{77, 77} : std::vector<uint32_t>{16, 91};
      c.cols = 768;
      c.tokens = epilogue == Epilogue::kAdd ? 5 : epilogue == Epilogue::kStore ? 1 : 2;
      c.has_norm = c.has_bias = c.has_x_rows = true;
      c.epilogue = epilogue;
      expect_right(c);
      if (HasFatalFailure()) return;
    }
}

// Several blocks add up a row: of a cluster, or by memory in code for architectures without.
TEST(GpuLinearVector, rows_that_several_blocks_share) {
  for (const quant::Format* format : formats())
    for (const uint32_t tokens : {1u, 4u, 7u}) {
      if (format->id != 12 && format->id != 8 && tokens != 1) continue;
      Case c;
      c.types = {format->id};
      c.rows = {3000};
      c.cols = 4096;
      c.tokens = tokens;
      expect_right(c);
      c.rows = {70};
      c.cols = 14336;
      c.is_dependent = true;
      c.has_norm = true;
      expect_right(c);
      if (HasFatalFailure()) return;
    }
}

TEST(GpuLinearVector, matrices_of_several_types) {
  for (const uint32_t tokens : {1u, 8u}) {
    for (const std::vector<uint32_t>& types : std::vector<std::vector<uint32_t>>{
             {12, 12, 14}, {12, 14, 12}, {14, 12, 12}, {13, 13, 14}, {8, 12, 14}, {8, 8, 8}}) {
      bool is_known = true;
      for (const uint32_t type : types) is_known = is_known && has_linear_vector(type);
      if (!is_known) continue;
      Case c;
      c.types = types;
      c.rows = {1030, 250, 256};
      c.cols = 2048;
      c.tokens = tokens;
      c.has_norm = c.has_bias = true;
      expect_right(c);
      if (HasFatalFailure()) return;
    }
    for (const std::vector<uint32_t>& types :
         std::vector<std::vector<uint32_t>>{{12, 14}, {8, 12}}) {
      if (!has_linear_vector(types[0]) || !has_linear_vector(types[1])) continue;
      Case c;
      c.types = types;
      c.rows = {530, 530};
      c.cols = 1024;
      c.tokens = tokens;
      c.has_norm = c.has_bias = true;
      c.epilogue = Epilogue::kSiluGate;
      expect_right(c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GpuLinearVector, refuses_what_it_cannot_do) {
  LinearArgs args;
  EXPECT_EQ(linear_vector(args, {}), cudaErrorInvalidValue);
  DeviceArray<uint8_t> packed_tiles(4096);
  DeviceArray<float> x(256), y(16);
  args.tokens = 9;
  args.x = x.data();
  args.matrix_count = 1;
  args.matrices[0] = {packed_tiles.data(), 12, 16, 256};
  args.outputs[0] = y.data();
  EXPECT_EQ(linear_vector(args, {}), cudaErrorInvalidValue);
  args.tokens = 1;
  args.matrices[0].type = 999;
  EXPECT_EQ(linear_vector(args, {}), cudaErrorInvalidValue);
  args.matrices[0].type = 12;
  args.matrices[0].cols = 250;
  EXPECT_EQ(linear_vector(args, {}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace wcuda::kernels
