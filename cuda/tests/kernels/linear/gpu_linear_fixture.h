// A linear layer with random weights on the device, and its result in double precision from the
// unpacked weights.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/ptx/code.h"
#include "llm/ops/cuda/linear.h"
#include "llm/quant/random_tiles.h"
#include "support/device_array.h"
#include "support/device_launch.h"

namespace wcuda::testing {

using kernels::Epilogue;

inline float random_unit(uint64_t seed, uint64_t i) {  // -1 … 1
  return static_cast<float>(static_cast<int64_t>(splitmix64(seed << 32 ^ i)) * 0x1p-63);
}

struct LinearCase {
  std::vector<uint32_t> types;  // of each matrix
  std::vector<uint32_t> rows;
  uint32_t cols = 256;
  uint32_t columns = 9;
  Epilogue epilogue = Epilogue::kStore;
  bool has_norm = false;
  bool has_bias = false;
  bool has_x_rows = false;
  float x_scale = 1.0f;
  bool is_centred =
      false;  // Q2_K, Q4_K, Q5_K: mins in the middle of the codes, as models have them
  // Columns of each group, which has matrices and biases of its own; columns past the last group
  // have none. Empty: one matrix for all columns.
  std::vector<uint32_t> groups = {};
};

class LinearProblem {
 public:
  explicit LinearProblem(const LinearCase& c) : case_(c) {
    const uint32_t x_count = c.columns + (c.has_x_rows ? 3 : 0);
    x_.resize(uint64_t{x_count} * c.cols);
    for (uint64_t i = 0; i < x_.size(); ++i) {
      // Columns of very different magnitude.
      const float magnitude = c.x_scale * std::ldexp(1.0f, static_cast<int>(i / c.cols % 7) - 3);
      x_[i] = random_unit(1, i) * magnitude;
    }
    if (c.has_norm)
      for (uint32_t k = 0; k < c.cols; ++k) norm_.push_back(random_unit(2, k) * 2.0f);
    if (c.has_x_rows)
      for (uint32_t i = 0; i < c.columns; ++i) x_rows_.push_back((i * 7 + 2) % x_count);
    for (size_t g = 0; g < c.groups.size(); ++g)
      group_of_.insert(group_of_.end(), c.groups[g], static_cast<uint32_t>(g));
    const auto groups = std::max(static_cast<uint32_t>(c.groups.size()), 1u);
    for (size_t m = 0; m < c.types.size(); ++m) {
      const uint32_t all_rows = groups * c.rows[m];
      matrices_.push_back(tame_matrix(*quant::find_format(c.types[m]), all_rows, c.cols));
      if (c.is_centred) centre(matrices_[m]);
      if (!c.groups.empty()) pack_groups(matrices_[m], c.rows[m]);
      biases_.emplace_back();
      for (uint32_t r = 0; c.has_bias && r < all_rows; ++r)
        biases_[m].push_back(random_unit(3 + m, r) * 5.0f);
      previous_.emplace_back();
      for (uint64_t i = 0; i < uint64_t{c.columns} * c.rows[m]; ++i)
        previous_[m].push_back(random_unit(7 + m, i) * 3.0f);
    }
    device_x_ = std::make_unique<DeviceArray<float>>(x_);
    if (c.has_norm) device_norm_ = std::make_unique<DeviceArray<float>>(norm_);
    if (c.has_x_rows) device_x_rows_ = std::make_unique<DeviceArray<uint32_t>>(x_rows_);
    for (size_t m = 0; m < matrices_.size(); ++m) {
      device_packed_tiles_.push_back(
          std::make_unique<DeviceArray<uint8_t>>(matrices_[m].packed_tiles));
      device_biases_.push_back(std::make_unique<DeviceArray<float>>(biases_[m]));
    }
  }

  const LinearCase& parameters() const { return case_; }
  size_t output_count() const { return is_gate() ? 1 : matrices_.size(); }
  float row_norm_max(size_t m) const {
    double largest = 0;
    for (uint32_t r = 0; r < case_.rows[m]; ++r) {
      double sum = 0;
      for (uint32_t k = 0; k < case_.cols; ++k) {
        const double value = matrices_[m].values[uint64_t{r} * case_.cols + k];
        sum += value * value;
      }
      largest = std::max(largest, sum);
    }
    return static_cast<float>(std::sqrt(largest));
  }

  // Limits under which CudaLinear can run it.
  ops::Limits limits() const {
    ops::Limits limits{};
    limits.max_batch_tokens = case_.columns;
    limits.embedding_length = limits.feed_forward_length = case_.cols;
    for (const uint32_t rows : case_.rows)
      limits.vocabulary_size = std::max(limits.vocabulary_size, 2 * rows);
    return limits;
  }

  // Columns first … first + count - 1 of the layer through `run`, a function of LinearArgs that
  // queues it. Outputs of each matrix, (count, rows); empty after an error.
  template <class Run>
  std::vector<std::vector<float>> outputs(Run&& run, uint32_t first, uint32_t count) const {
    kernels::LinearArgs args;
    args.tokens = count;
    args.x = device_x_->data();
    if (case_.has_x_rows)
      args.x_rows = device_x_rows_->data() + first;
    else
      args.x += uint64_t{first} * case_.cols;
    if (case_.has_norm) args.norm = device_norm_->data();
    args.epsilon = kEpsilon;
    args.epilogue = case_.epilogue;
    args.matrix_count = static_cast<uint32_t>(matrices_.size());
    std::vector<std::unique_ptr<DeviceArray<float>>> device_outputs;
    for (size_t m = 0; m < matrices_.size(); ++m) {
      args.matrices[m] = {device_packed_tiles_[m]->data(), matrices_[m].format->id, case_.rows[m],
                          matrices_[m].cols, scale_factor_of(matrices_[m])};
      if (case_.has_bias) args.biases[m] = device_biases_[m]->data();
      const float* const begin = previous_[m].data() + uint64_t{first} * case_.rows[m];
      device_outputs.push_back(std::make_unique<DeviceArray<float>>(
          std::vector<float>(begin, begin + uint64_t{count} * case_.rows[m])));
      args.outputs[m] = device_outputs[m]->data();
    }
    run(args);
    std::vector<std::vector<float>> outputs;
    for (size_t m = 0; m < output_count(); ++m) outputs.push_back(device_outputs[m]->read());
    return outputs;
  }

  // f16 operands: each product is off by up to 2^-11 of its size for the weight (a code's scale and
  // min are rounded too: three times that), as much for the input. Errors are of random sign, so
  // the root mean square over all outputs must stay below 2^-10 of that of the outputs before the
  // epilogue. Of centred weights below 1.75 * 2^-12: 3.9e-4 seen, 5.9e-4 with scale and min
  // rounded. Codes of Q4_K are not centred: below 1.06 * 2^-11, 4.8e-4 seen.
  void expect_close(const std::vector<std::vector<float>>& outputs) const {
    const double error_max = !case_.is_centred      ? 0x1p-10
                             : case_.types[0] == 12 ? 0x1.1p-11
                                                    : 0x1.cp-12;
    ASSERT_EQ(outputs.size(), output_count());
    std::vector<Product> products;
    for (size_t m = 0; m < matrices_.size(); ++m) products.push_back(product(m));
    for (size_t m = 0; m < outputs.size(); ++m) {
      const uint32_t rows = case_.rows[m];
      ASSERT_EQ(outputs[m].size(), uint64_t{case_.columns} * rows);
      double error_sum = 0, square_sum = 0;
      for (uint64_t i = products[m].values.size(); i < outputs[m].size(); ++i)
        ASSERT_EQ(outputs[m][i], previous_[m][i]) << "a column without a group";
      for (uint64_t i = 0; i < products[m].values.size(); ++i) {
        double expected = products[m].values[i], bound = products[m].bounds[i];
        if (case_.epilogue == Epilogue::kAdd) expected += previous_[m][i];
        if (is_gate()) {
          const double gate = products[0].values[i], up = products[1].values[i];
          expected = activation(gate) * up;
          // Both activations have slopes below 1.13.
          bound = 1.13 * products[0].bounds[i] * (std::fabs(up) + products[1].bounds[i]) +
                  std::fabs(activation(gate)) * products[1].bounds[i];
        }
        const double error = outputs[m][i] - expected;
        ASSERT_LE(std::fabs(error), bound + 1e-6 * std::fabs(expected))
            << "matrix " << m << " column " << i / rows << " row " << i % rows << ": "
            << outputs[m][i] << " for " << expected;
        // Relative to the column: columns differ in magnitude.
        const double norm = products[m].norms[i / rows];
        error_sum += error * error / (norm * norm);
        square_sum += 1;
      }
      if (is_gate() || square_sum == 0) continue;
      EXPECT_LE(std::sqrt(error_sum / square_sum), error_max) << "matrix " << m;
    }
  }

 private:
  static constexpr float kEpsilon = 1e-5f;
  struct Product {
    std::vector<double> values;  // with bias
    std::vector<double> bounds;  // of the error
    std::vector<double> norms;   // (columns) root mean square of the values without bias
  };

  bool is_gate() const {
    return case_.epilogue == Epilogue::kSiluGate || case_.epilogue == Epilogue::kGeluTanhGate;
  }
  double activation(double x) const {
    if (case_.epilogue == Epilogue::kSiluGate) return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }

  // Random blocks whose scales are those of real weights: no power of two of an MXFP4 block beyond
  // 2^-7 … 1.
  static RandomMatrix tame_matrix(const quant::Format& format, uint32_t rows, uint32_t cols) {
    RandomMatrix matrix = random_matrix(format, rows, cols);
    if (format.id != 39) return matrix;
    for (size_t i = 0; i < matrix.file.size(); i += format.block_bytes)
      matrix.file[i] = static_cast<uint8_t>(120 + matrix.file[i] % 8);
    read_file(matrix);
    return matrix;
  }

  // Each group's min code is its scale code, and dmin is d times the mean of the codes.
  static void centre(RandomMatrix& matrix) {
    const quant::Format& format = *matrix.format;
    const bool is_q2 = format.id == 10;
    const float mean = is_q2 ? 1.5f : format.id == 12 ? 7.5f : 15.5f;
    const auto double_nibble = [](uint8_t byte) { return static_cast<uint8_t>(byte % 16 * 17); };
    for (size_t i = 0; i < matrix.file.size(); i += format.block_bytes) {
      uint8_t* const block = &matrix.file[i];
      for (uint32_t k = 0; k < 16 && is_q2; ++k) block[k] = double_nibble(block[k]);
      for (uint32_t k = 0; k < 4 && !is_q2; ++k) {
        block[8 + k] = block[4 + k];
        block[12 + k] = double_nibble(block[12 + k]);
      }
      uint16_t d[2];
      std::memcpy(d, block + (is_q2 ? 80 : 0), 4);
      d[1] = float_to_half(half_to_float(d[0]) * mean);
      std::memcpy(block + (is_q2 ? 80 : 0), d, 4);
    }
    read_file(matrix);
  }

  // Packed tiles of the matrices of all groups, which follow each other in the file.
  static void pack_groups(RandomMatrix& matrix, uint32_t rows) {
    const size_t group_bytes = matrix.file.size() / (matrix.rows / rows);
    matrix.packed_tiles.clear();
    for (auto begin = matrix.file.begin(); begin != matrix.file.end();
         begin += static_cast<ptrdiff_t>(group_bytes)) {
      const std::vector<uint8_t> file(begin, begin + static_cast<ptrdiff_t>(group_bytes));
      const std::vector<uint8_t> tiles = pack_tiles(*matrix.format, rows, matrix.cols, file);
      matrix.packed_tiles.insert(matrix.packed_tiles.end(), tiles.begin(), tiles.end());
    }
  }

  // Values and packed tiles of a matrix whose file has changed.
  static void read_file(RandomMatrix& matrix) {
    const quant::Format& format = *matrix.format;
    const uint64_t row_bytes = uint64_t{matrix.cols} / format.block_elements * format.block_bytes;
    for (uint32_t row = 0; row < matrix.rows; ++row)
      EXPECT_TRUE(quant::unpack_row(format, &matrix.file[row * row_bytes], matrix.cols,
                                    &matrix.values[uint64_t{row} * matrix.cols])
                      .ok());
    matrix.packed_tiles = pack_tiles(format, matrix.rows, matrix.cols, matrix.file);
  }

  Product product(size_t m) const {
    const uint32_t rows = case_.rows[m], cols = case_.cols;
    Product result;
    // The scale factor makes weights that are far below the largest subnormal: off by up to 2^-25.
    const RandomMatrix& matrix = matrices_[m];
    const double smallest = kernels::has_scale_factor(matrix.format->id)
                                ? 0x1p-25 * kernels::kScaleFactorDivisor / scale_factor_of(matrix)
                                : 0.0;
    std::vector<double> h(cols);
    const uint32_t columns =
        case_.groups.empty() ? case_.columns : static_cast<uint32_t>(group_of_.size());
    for (uint32_t c = 0; c < columns; ++c) {
      const uint64_t first_row = case_.groups.empty() ? 0 : uint64_t{group_of_[c]} * rows;
      const float* x = &x_[uint64_t{case_.has_x_rows ? x_rows_[c] : c} * cols];
      double square_sum = 0, norm = 0;
      for (uint32_t k = 0; k < cols; ++k) square_sum += double{x[k]} * x[k];
      const double inverse = case_.has_norm ? 1 / std::sqrt(square_sum / cols + kEpsilon) : 1;
      for (uint32_t k = 0; k < cols; ++k)
        h[k] = x[k] * inverse * (case_.has_norm ? double{norm_[k]} : 1.0);
      double inputs = 0;
      for (const double value : h) inputs += std::fabs(value);
      for (uint32_t r = 0; r < rows; ++r) {
        // Several sums at a time: a single one waits for each of its additions.
        constexpr uint32_t kSums = 8;
        double sums[kSums] = {}, magnitudes[kSums] = {};
        const float* w = &matrix.values[(first_row + r) * cols];
        for (uint32_t first = 0; first + kSums <= cols; first += kSums)
          for (uint32_t i = 0; i < kSums; ++i) {
            const double value = w[first + i] * h[first + i];
            sums[i] += value;
            magnitudes[i] += std::fabs(value);
          }
        for (uint32_t k = cols / kSums * kSums; k < cols; ++k) {
          sums[0] += w[k] * h[k];
          magnitudes[0] += std::fabs(w[k] * h[k]);
        }
        const double sum = std::accumulate(sums, sums + kSums, 0.0);
        const double magnitude = std::accumulate(magnitudes, magnitudes + kSums, 0.0);
        norm += sum * sum;
        result.bounds.push_back(magnitude * 4 * 0x1p-11 + inputs * smallest);
        result.values.push_back(sum + (case_.has_bias ? biases_[m][first_row + r] : 0.0f));
      }
      result.norms.push_back(std::sqrt(norm / rows));
    }
    return result;
  }

  LinearCase case_;
  std::vector<float> x_, norm_;
  std::vector<uint32_t> x_rows_;
  std::vector<uint32_t> group_of_;  // (columns that have one)
  std::vector<RandomMatrix> matrices_;
  std::vector<std::vector<float>> biases_, previous_;
  std::unique_ptr<DeviceArray<float>> device_x_, device_norm_;
  std::unique_ptr<DeviceArray<uint32_t>> device_x_rows_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> device_packed_tiles_;
  std::vector<std::unique_ptr<DeviceArray<float>>> device_biases_;
};

inline ops::DeviceTraits device_traits(const kernels::Launch& launch) {
  ops::DeviceTraits traits;
  traits.is_host = false;
  traits.compute_capability = launch.compute_capability;
  traits.sm_count = static_cast<uint32_t>(launch.sm_count);
  traits.has_warpgroup_code = launch.compute_capability == 90 && kernels::has_warpgroup_code();
  return traits;
}

// A CudaLinear with its scratch memory.
class PreparedLinear {
 public:
  explicit PreparedLinear(const ops::Limits& limits, uint32_t batch_max = ops::kBatchTokensMax)
      : limits_(limits),
        batch_max_(batch_max),
        scratch_(ops::CudaLinear::scratch_bytes(limits, launch)) {
    EXPECT_EQ(scratch_.status(), cudaSuccess) << "scratch memory of the layer";
    scratch_.fill(0xff);  // NaN wherever something is read before it is written
    EXPECT_EQ(linear_.prepare(limits, launch, scratch_.data()), cudaSuccess);
  }
  ops::Node node(const kernels::LinearArgs& args) const {
    ops::LinearShape shape;
    shape.token_count = args.tokens;
    shape.matrix_count = args.matrix_count;
    for (uint32_t m = 0; m < args.matrix_count; ++m) {
      shape.types[m] = args.matrices[m].type;
      shape.rows[m] = args.matrices[m].rows;
    }
    shape.cols = args.matrices[0].cols;
    shape.is_gate = args.epilogue >= Epilogue::kSiluGate;
    shape.is_added = args.epilogue == Epilogue::kAdd;
    shape.has_norm = args.norm != nullptr;
    ops::Node node;
    node.kernel = ops::linear_kernel(shape, limits_, device_traits(launch), batch_max_);
    return node;
  }
  void operator()(const kernels::LinearArgs& args) {
    const Status status = linear_.run(node(args), args, launch);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // Gate and up that write the f16 operand of `reader`, and the layer that reads it.
  void write_operand(const kernels::LinearArgs& args, const kernels::Matrix& reader,
                     float gate_norm, float up_norm) {
    const Status status = linear_.write_operand(args, reader, gate_norm, up_norm, launch);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void read_operand(const kernels::LinearArgs& args) {
    ops::Node reader = node(args);
    reader.input = ops::Form::kHalf;
    const Status status = linear_.run(reader, args, launch);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  kernels::Launch launch = device_launch();

 private:
  ops::Limits limits_;
  uint32_t batch_max_;
  DeviceArray<uint8_t> scratch_;
  ops::CudaLinear linear_;
};

}  // namespace wcuda::testing
