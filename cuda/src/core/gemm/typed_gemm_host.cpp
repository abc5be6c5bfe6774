// Matrix products on the host. Blocks of depth 512 are packed as f32 in the order that the inner
// loop (core/gemm/host_tile.h) reads, and tiles of 96 x 128 sums are distributed over the threads;
// the summation order depends on k alone.
#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "core/base/checked.h"
#include "core/base/thread_pool.h"
#include "core/gemm/host_tile.h"
#include "core/gemm/typed_gemm.h"
#include "kernels/shared/point_ops.h"

namespace wcuda::compute {
namespace {

using kernels::Bf16;
using kernels::Half;

// Multiples of every tile's rows and columns.
constexpr int64_t kChunkRows = 96;
constexpr int64_t kChunkCols = 128;
// Packed at a time: together 8 MiB, of which a chunk uses 440 KiB.
constexpr int64_t kBlockRows = 11 * kChunkRows;
constexpr int64_t kBlockCols = 8 * kChunkCols;
constexpr int64_t kBlockDepth = 512;
// Fewer multiplications than this finish before another thread has woken up.
constexpr double kProductsMin = 1 << 18;

struct Fp8 {
  uint8_t bits;
};
inline float read_element(float value) { return value; }
inline float read_element(Half value) { return kernels::to_float(value); }
inline float read_element(Bf16 value) { return kernels::to_float(value); }
inline float read_element(Fp8 value) { return e4m3_to_float(value.bits); }

struct AlignedFree {
  void operator()(float* data) const { ::operator delete[](data, std::align_val_t{64}); }
};
using Floats = std::unique_ptr<float[], AlignedFree>;
Floats make_floats(int64_t count) {
  return Floats(static_cast<float*>(
      ::operator new[](static_cast<size_t>(count) * sizeof(float), std::align_val_t{64})));
}

// Lanes lane0 … lane0 + width - 1 of an operand as a panel (depth, width), past `lane_count` zeros.
// A lane is a row of op(a) or a column of op(b); `lane_stride` and `depth_stride` are its
// elements'.
template <class T>
void pack_panel(const T* data, int64_t lane_stride, int64_t depth_stride, int64_t lane_count,
                int64_t lane0, int64_t width, int64_t depth, float* panel) {
  const int64_t live = std::clamp<int64_t>(lane_count - lane0, 0, width);
  const T* const first = data + lane0 * lane_stride;
  if (live < width) std::fill(panel, panel + depth * width, 0.0f);
  if (lane_stride == 1) {
    for (int64_t d = 0; d < depth; ++d)
      for (int64_t lane = 0; lane < live; ++lane)
        panel[d * width + lane] = read_element(first[d * depth_stride + lane]);
    return;
  }
  for (int64_t lane = 0; lane < live; ++lane)
    for (int64_t d = 0; d < depth; ++d)
      panel[d * width + lane] = read_element(first[lane * lane_stride + d * depth_stride]);
}

// The source of a panel: one operand, from row and column 0 of the block on.
struct Source {
  const GemmMatrix* matrix;
  int64_t batch;
  bool lanes_are_rows;  // of op(a); columns of op(b) otherwise
  int64_t lane_count;   // of the whole operand
};

void pack(const Source& source, int64_t lane0, int64_t width, int64_t depth0, int64_t depth,
          float* panel) {
  const GemmMatrix& m = *source.matrix;
  const bool lane_is_stored_row = source.lanes_are_rows != m.is_transposed;
  const int64_t lane_stride = lane_is_stored_row ? m.row_stride : 1;
  const int64_t depth_stride = lane_is_stored_row ? 1 : m.row_stride;
  const uint8_t* const data = m.data + (source.batch * m.batch_stride + depth0 * depth_stride) *
                                           gemm_element_bytes(m.element);
  const auto run = [&](auto element) {
    using T = decltype(element);
    pack_panel(reinterpret_cast<const T*>(data), lane_stride, depth_stride, source.lane_count,
               lane0, width, depth, panel);
  };
  switch (m.element) {
    case GemmElement::kF32:
      return run(float{});
    case GemmElement::kF16:
      return run(Half{});
    case GemmElement::kBf16:
      return run(Bf16{});
    case GemmElement::kE4m3:
      return run(Fp8{});
  }
}

float read_bias(const TypedGemm& gemm, int64_t col) {
  if (!gemm.bias) return 0.0f;
  if (gemm.bias_element == GemmElement::kF32) return kernels::load<float>(gemm.bias, col);
  if (gemm.bias_element == GemmElement::kF16) return kernels::load<Half>(gemm.bias, col);
  return kernels::load<Bf16>(gemm.bias, col);
}

// Writes sums (rows, cols), rows kBlockCols apart, to elements of c from row0 and col0 on.
template <class T>
void finish(const TypedGemm& gemm, int64_t batch, const float* sums, int64_t row0, int64_t rows,
            int64_t col0, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    T* const c = reinterpret_cast<T*>(gemm.c.data) + batch * gemm.c.batch_stride +
                 (row0 + r) * gemm.c.row_stride + col0;
    const float* const sum = sums + r * kBlockCols;
    for (int64_t i = 0; i < cols; ++i) {
      float value = gemm.alpha * sum[i];
      if (gemm.beta != 0.0f) value += gemm.beta * kernels::to_float(c[i]);
      if (gemm.bias) value += read_bias(gemm, col0 + i);
      if (gemm.act == GemmAct::kGelu) value = kernels::gelu(value);
      if (gemm.act == GemmAct::kRelu && value < 0.0f) value = 0.0f;  // NaN stays
      c[i] = kernels::from_float<T>(value);
    }
  }
}

void finish(const TypedGemm& gemm, int64_t batch, const float* sums, int64_t row0, int64_t rows,
            int64_t col0, int64_t cols) {
  switch (gemm.c.element) {
    case GemmElement::kF32:
      return finish<float>(gemm, batch, sums, row0, rows, col0, cols);
    case GemmElement::kF16:
      return finish<Half>(gemm, batch, sums, row0, rows, col0, cols);
    default:
      return finish<Bf16>(gemm, batch, sums, row0, rows, col0, cols);
  }
}

// Computes one block of sums (rows, cols) of one batch entry; owns its scratch memory.
class Block {
 public:
  Block(const TypedGemm& gemm, const HostTile& tile) : gemm_(gemm), tile_(tile) {
    const int64_t depth = std::min(gemm.k, kBlockDepth);
    const int64_t rows = padded(std::min(gemm.m, kBlockRows), kChunkRows);
    const int64_t cols = padded(std::min(gemm.n, kBlockCols), kChunkCols);
    a_ = make_floats(rows * depth);
    b_ = make_floats(cols * depth);
    sums_ = make_floats(rows * kBlockCols);
  }

  // for_each(count, body): body(0) … body(count - 1), in any order, on any thread.
  template <class ForEach>
  void run(int64_t batch, int64_t row0, int64_t col0, const ForEach& for_each) {
    const int64_t rows = std::min(kBlockRows, gemm_.m - row0);
    const int64_t cols = std::min(kBlockCols, gemm_.n - col0);
    const Source a{&gemm_.a, batch, true, gemm_.m}, b{&gemm_.b, batch, false, gemm_.n};
    const auto row_chunks = static_cast<uint32_t>(padded(rows, kChunkRows) / kChunkRows);
    const auto col_chunks = static_cast<uint32_t>(padded(cols, kChunkCols) / kChunkCols);
    int64_t depth0 = 0;
    do {  // once if the depth is 0
      const int64_t depth = std::min(kBlockDepth, gemm_.k - depth0);
      for_each(row_chunks + col_chunks, [&](uint32_t chunk) {
        if (chunk < row_chunks)
          pack_chunk(a, row0, chunk, kChunkRows, tile_.rows, depth0, depth, a_.get());
        else
          pack_chunk(b, col0, chunk - row_chunks, kChunkCols, tile_.cols, depth0, depth, b_.get());
      });
      for_each(row_chunks * col_chunks, [&](uint32_t chunk) {
        const int64_t row = chunk % row_chunks * kChunkRows, col = chunk / row_chunks * kChunkCols;
        float* const sums = sums_.get() + row * kBlockCols + col;
        if (depth0 == 0) clear(sums);
        multiply(row, std::min(kChunkRows, rows - row), col, std::min(kChunkCols, cols - col),
                 depth, sums);
        if (depth0 + depth >= gemm_.k)
          finish(gemm_, batch, sums, row0 + row, std::min(kChunkRows, rows - row), col0 + col,
                 std::min(kChunkCols, cols - col));
      });
      depth0 += kBlockDepth;
    } while (depth0 < gemm_.k);
  }

 private:
  static int64_t padded(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
  }

  static void pack_chunk(const Source& source, int64_t lane0, uint32_t chunk, int64_t chunk_lanes,
                         int64_t width, int64_t depth0, int64_t depth, float* panels) {
    for (int64_t lane = 0; lane < chunk_lanes; lane += width) {
      const int64_t at = chunk * chunk_lanes + lane;
      pack(source, lane0 + at, width, depth0, depth, panels + at * depth);
    }
  }

  static void clear(float* sums) {
    for (int64_t r = 0; r < kChunkRows; ++r)
      std::fill(sums + r * kBlockCols, sums + r * kBlockCols + kChunkCols, 0.0f);
  }

  void multiply(int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t depth, float* sums) {
    for (int64_t j = 0; j < cols; j += tile_.cols)
      for (int64_t i = 0; i < rows; i += tile_.rows)
        tile_.multiply(a_.get() + (row + i) * depth, b_.get() + (col + j) * depth, depth,
                       sums + i * kBlockCols + j, kBlockCols);
  }

  const TypedGemm& gemm_;
  const HostTile& tile_;
  Floats a_, b_;  // panels (rows / tile rows, depth, tile rows), and so for columns
  Floats sums_;   // (rows, kBlockCols)
};

// The threads of a context; a call that finds them in use runs on its own thread alone.
struct GemmThreads {
  std::mutex mutex;
  std::unique_ptr<ThreadPool> pool;
};

template <class ForEach>
void run_blocks(const TypedGemm& gemm, const ForEach& for_each) {
  Block block(gemm, best_host_tile());
  for (int64_t batch = 0; batch < gemm.batch; ++batch)
    for (int64_t col0 = 0; col0 < gemm.n; col0 += kBlockCols)
      for (int64_t row0 = 0; row0 < gemm.m; row0 += kBlockRows)
        block.run(batch, row0, col0, for_each);
}

}  // namespace

Status run_gemm_on_host(const TypedGemm& gemm, vram::Memory& memory) {
  const auto threads = memory.kept<GemmThreads>([] { return std::make_shared<GemmThreads>(); });
  std::unique_lock<std::mutex> lock(threads->mutex, std::defer_lock);
  const double products = double(gemm.m) * double(gemm.n) * double(gemm.k);
  const uint32_t thread_count = memory.backend().host_thread_count();
  if (products >= kProductsMin && thread_count > 1 && lock.try_lock()) {
    if (!threads->pool) {
      WCUDA_ASSIGN(threads->pool, ThreadPool::create(thread_count));
    }
    run_blocks(gemm, [&](uint32_t count, const auto& body) {
      threads->pool->parallel_for(count, [&](uint32_t chunk, uint32_t) { body(chunk); });
    });
    return {};
  }
  run_blocks(gemm, [](uint32_t count, const auto& body) {
    for (uint32_t chunk = 0; chunk < count; ++chunk) body(chunk);
  });
  return {};
}

}  // namespace wcuda::compute
