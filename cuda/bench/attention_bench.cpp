// Speed of attention on CUDA: decode with the turning and storing of the new keys and values as a
// share of the memory's read rate, prefill in TFLOP/s without, and the kernel that does it there.
// Each layer of a graph has keys and values of its own, so that none lie in L2. Prefill of
// quantized keys and values is timed twice; `*`: pages are converted to f16 before.
//
//   attention_bench [[TYPE:]ROWSxPOSITIONS[/SHARED] …]
//
// times decode of 8B at these instead of the whole list: f16 unless TYPE says q8_0, fp8 or int10;
// the first SHARED positions, whole pages, are those of all rows. Then each kernel is timed alone
// too; in a layer they overlap. HEADS/KV_HEADS/LENGTH:TOKENS-POSITIONS times prefill of the last
// TOKENS before POSITIONS in f16.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "bench/device_limits.h"
#include "bench/graph_seconds.h"
#include "kernels/ptx/code.h"
#include "kernels/shared/numeric.h"
#include "llm/ops/cuda/attention.h"
#include "llm/ops/host/kv_rows.h"

namespace {

using namespace wcuda;
using namespace wcuda::ops;

constexpr int kRepeats = 7;

// Rate and share of the limit, to the end of a line.
void print_read(double bytes, double seconds, const char* note = "") {
  bench::print_bandwidth(bytes, seconds, bench::device_limits());
  std::printf("%s\n", note);
}
void print_products(double flop, double seconds) {
  bench::print_flops(flop, seconds, bench::device_limits());
  std::printf("\n");
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* device_array(uint64_t count) {
  void* data = nullptr;
  check(cudaMalloc(&data, std::max<uint64_t>(count * sizeof(T), 256)), "cudaMalloc");
  return static_cast<T*>(data);
}
template <class T>
T* upload(const std::vector<T>& values) {
  T* data = device_array<T>(values.size());
  check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return data;
}

struct Shape {
  const char* name;
  uint32_t heads, kv_heads, head_length;
};
constexpr Shape k8B = {"8B", 32, 8, 128};
constexpr Shape k1B = {"1B", 32, 8, 64};
constexpr Shape k70B = {"70B", 64, 8, 128};

// A step of equal rows over a pool of random values, and what its layers need.
class Work {
 public:
  Work(const Shape& shape, KvType type, uint32_t rows, uint32_t row_tokens, uint32_t positions,
       bool batch_invariant, uint32_t shared_positions = 0)
      : shape_(shape),
        rows_(rows),
        row_tokens_(row_tokens),
        positions_(positions),
        shared_positions_(shared_positions) {
    const uint32_t row_pages = (positions + kPageTokens - 1) / kPageTokens;
    pool_.format = type;
    pool_.head_count = shape.kv_heads;
    pool_.head_length = shape.head_length;
    pool_.row_bytes = kv_row_bytes(type, shape.head_length);
    pool_.page_count = rows * row_pages;
    const uint64_t layer_bytes = uint64_t{pool_.page_count} * 2 * pool_.plane_bytes();
    pool_.layer_count = static_cast<uint32_t>(
        std::min<uint64_t>(64, std::max<uint64_t>(2, 512'000'000 / layer_bytes)));
    if (row_tokens > 1) pool_.layer_count = 2;
    fill_pool(layer_bytes * pool_.layer_count);

    std::vector<uint32_t> token_positions, token_rows, page_tables(pool_.page_count);
    std::vector<StepRow> batch_rows;
    for (uint32_t r = 0; r < rows; ++r) {
      batch_rows.push_back({r * row_tokens, row_tokens, positions - row_tokens, r});
      for (uint32_t t = 0; t < row_tokens; ++t) {
        token_positions.push_back(positions - row_tokens + t);
        token_rows.push_back(r);
      }
    }
    for (uint32_t i = 0; i < pool_.page_count; ++i) page_tables[i] = i;
    std::shuffle(page_tables.begin(), page_tables.end(), std::mt19937(1));
    if (shared_positions != 0) {
      batch_.has_shared_prefix = true;
      batch_rows[0].shared_rows = static_cast<uint16_t>(rows);
      for (uint32_t r = 0; r < rows; ++r) {
        batch_rows[r].shared_pages = static_cast<uint16_t>(shared_positions / kPageTokens);
        std::copy_n(page_tables.begin(), batch_rows[r].shared_pages,
                    page_tables.begin() + r * row_pages);
      }
    }
    batch_.token_count = rows * row_tokens;
    batch_.row_count = rows;
    batch_.page_table_stride = row_pages;
    batch_.max_row_tokens = row_tokens;
    batch_.max_positions = row_pages * kPageTokens;
    batch_.positions = upload(token_positions);
    batch_.token_rows = upload(token_rows);
    batch_.rows = upload(batch_rows);
    batch_.page_tables = upload(page_tables);

    std::mt19937 engine(2);
    std::normal_distribution<float> normal;
    std::vector<float> query(uint64_t{batch_.token_count} * shape.heads * shape.head_length);
    for (float& value : query) value = normal(engine);
    query_ = upload(query);
    out_ = device_array<float>(query.size());
    const uint64_t kv_floats = uint64_t{batch_.token_count} * shape.kv_heads * shape.head_length;
    key_ = upload(std::vector<float>(kv_floats, 0.5f));
    value_ = upload(std::vector<float>(kv_floats, 0.25f));
    frequencies_ = upload(std::vector<float>(128, 0.01f));

    limits_.max_batch_tokens = batch_.token_count;
    limits_.max_batch_rows = rows;
    limits_.max_sequence_tokens = positions;
    limits_.head_count = shape.heads;
    limits_.kv_head_count = shape.kv_heads;
    limits_.head_length = shape.head_length;
    limits_.kv_type = type;
    limits_.batch_invariant = batch_invariant;
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&launch_.sm_count, cudaDevAttrMultiProcessorCount, device), "sm");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "major");
    launch_.compute_capability = major * 10;
    check(cudaStreamCreate(&launch_.stream), "stream");
    scratch_ = device_array<uint8_t>(CudaAttention::scratch_bytes(limits_, launch_));
    check(attention_.prepare(limits_, scratch_, launch_), "prepare");
  }
  ~Work() {
    cudaStreamDestroy(launch_.stream);
    for (const void* data :
         {static_cast<const void*>(batch_.positions), static_cast<const void*>(batch_.token_rows),
          static_cast<const void*>(batch_.rows), static_cast<const void*>(batch_.page_tables),
          static_cast<const void*>(query_), static_cast<const void*>(out_),
          static_cast<const void*>(key_), static_cast<const void*>(value_),
          static_cast<const void*>(frequencies_), static_cast<const void*>(scratch_),
          static_cast<const void*>(pool_.data)})
      cudaFree(const_cast<void*>(data));
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Seconds of one layer's attention, as kernels of one graph. `with_layers` false: of the plan.
  struct Times {
    double least, median;
  };
  template <class Layer>
  Times time(const Layer& layer) {
    constexpr uint32_t kLayersMin = 16;
    const uint32_t count = std::max(kLayersMin, pool_.layer_count);
    const std::vector<double> seconds = bench::graph_seconds(
        launch_.stream, kRepeats,
        [&] {
          launch_.is_dependent = false;
          check(attention_.plan(batch_, pool_, 0, launch_), "attention plan");
          launch_.is_dependent = true;
          for (uint32_t i = 0; i < count; ++i) check(layer(i % pool_.layer_count), "layer");
        },
        [](cudaError_t error) { check(error, "graph"); });
    return {seconds[0] / count, seconds[seconds.size() / 2] / count};
  }
  Times time_rope() {
    return time([&](uint32_t layer) { return attention_.rope_kv(rope_args(layer), launch_); });
  }
  Times time_attention() {
    return time([&](uint32_t layer) { return attend(layer, false); });
  }
  // Both, as they follow each other in a layer.
  Times time_layer() {
    return time([&](uint32_t layer) { return attend(layer, row_tokens_ == 1); });
  }
  // In a step with shared positions: attention_decode, attention_shared, attention_join.
  Times time_shared_kernel(uint32_t kernel) {
    return time([&](uint32_t layer) { return attend_shared(layer, kernel, kernel + 1); });
  }
  double kv_bytes() const {
    const double positions = 1.0 * rows_ * (positions_ - shared_positions_);
    return 2.0 * (positions + shared_positions_) * shape_.kv_heads * pool_.row_bytes;
  }
  double flop() const {
    double pairs = 0.0;
    for (uint32_t t = 0; t < row_tokens_; ++t) pairs += positions_ - t;
    return 4.0 * rows_ * pairs * shape_.heads * shape_.head_length;
  }
  uint32_t token_count() const { return batch_.token_count; }
  // From now on, pages are converted to f16 first; returns whether an engine would do so.
  bool convert_pages() {
    DeviceTraits traits;
    traits.compute_capability = launch_.compute_capability;
    traits.has_warpgroup_code = kernels::has_warpgroup_code();
    batch_.expanded_heads =
        choose_expanded_heads(limits_, traits, {rows_, batch_.token_count, pool_.page_count});
    return batch_.expanded_heads != 0;
  }

 private:
  RopeKvArgs rope_args(uint32_t layer) const {
    RopeKvArgs args{};
    args.batch = &batch_;
    args.rope = {RopePairing::kHalves, shape_.head_length, frequencies_, 1.0f};
    args.head_count = shape_.heads;
    args.pool = pool_;
    args.layer = layer;
    args.query = query_;
    args.key = key_;
    args.value = value_;
    return args;
  }
  AttentionArgs attention_args(uint32_t layer) const {
    return {&batch_, query_, shape_.heads, 1.0f / std::sqrt(static_cast<float>(shape_.head_length)),
            0,       pool_,  layer,        out_};
  }
  // The kernels from `first` to before `end` of a step with shared positions.
  cudaError_t attend_shared(uint32_t layer, uint32_t first, uint32_t end) {
    const RopeKvArgs rope = rope_args(layer);
    AttentionArgs args = attention_args(layer);
    args.rope_kv = &rope;
    cudaError_t status = cudaSuccess;
    for (uint32_t kernel = first; kernel < end && status == cudaSuccess; ++kernel)
      status = kernel == 0   ? attention_.decode(args, launch_)
               : kernel == 1 ? attention_.shared(args, launch_)
                             : attention_.join(args, launch_);
    return status;
  }
  // rotates: rotary embedding and storing on the way, as in steps of rows of one token.
  cudaError_t attend(uint32_t layer, bool rotates) {
    if (shared_positions_ != 0) return attend_shared(layer, 0, 3);
    const RopeKvArgs rope = rope_args(layer);
    AttentionArgs args = attention_args(layer);
    if (rotates) args.rope_kv = &rope;
    if (row_tokens_ != 1) {
      const cudaError_t status = attention_.prefill(args, launch_);
      if (status != cudaSuccess) return status;
    }
    return attention_.decode(args, launch_);
  }
  void fill_pool(uint64_t bytes) {
    std::mt19937 engine(3);
    std::normal_distribution<float> normal;
    const uint64_t rows = std::min<uint64_t>(bytes / pool_.row_bytes, 8192);
    std::vector<uint8_t> pattern(rows * pool_.row_bytes);
    std::vector<float> row(shape_.head_length);
    for (uint64_t r = 0; r < rows; ++r) {
      for (float& value : row) value = normal(engine);
      host::write_kv_row(pool_.format, row.data(), shape_.head_length, static_cast<uint32_t>(r),
                         &pattern[r * pool_.row_bytes]);
    }
    pool_.data = device_array<uint8_t>(bytes);
    for (uint64_t at = 0; at < bytes; at += pattern.size())
      check(cudaMemcpy(pool_.data + at, pattern.data(),
                       std::min<uint64_t>(pattern.size(), bytes - at), cudaMemcpyHostToDevice),
            "copy");
  }

  Shape shape_;
  uint32_t rows_, row_tokens_, positions_, shared_positions_;
  KvPool pool_;
  Batch batch_;
  Limits limits_;
  kernels::Launch launch_;
  CudaAttention attention_;
  float *query_ = nullptr, *out_ = nullptr, *key_ = nullptr, *value_ = nullptr;
  float* frequencies_ = nullptr;
  uint8_t* scratch_ = nullptr;
};

constexpr KvType kTypes[] = {KvType::kF16, KvType::kQ8_0, KvType::kFp8E4m3, KvType::kInt10};
constexpr const char* kTypeNames[] = {"f16", "q8_0", "fp8", "int10"};

void decode(const Shape& shape, KvType type, uint32_t rows, uint32_t positions,
            bool batch_invariant = false, uint32_t shared_positions = 0) {
  Work work(shape, type, rows, 1, positions, batch_invariant, shared_positions);
  const auto times = work.time_layer();
  std::printf("decode  %-4s %-5s %4u x %-6u %9.2f us %9.2f us", shape.name,
              kTypeNames[static_cast<int>(type)], rows, positions, times.least * 1e6,
              times.median * 1e6);
  print_read(work.kv_bytes(), times.median, batch_invariant ? "  batch-invariant" : "");
  if (shared_positions == 0) return;
  uint32_t kernel = 0;
  std::printf("  %u positions shared; alone:", shared_positions);
  for (const char* name : {"attention_decode", "attention_shared", "attention_join"})
    std::printf(" %s %.2f", name, work.time_shared_kernel(kernel++).median * 1e6);
  std::printf(" us\n");
}

void prefill(const Shape& shape, KvType type, uint32_t tokens, uint32_t positions) {
  Work work(shape, type, 1, tokens, positions, false);
  const auto print = [&](char mark) {
    const auto times = work.time_attention();
    std::printf("prefill %-4s %-5s%c %4u / %-6u %9.1f us %9.1f us", shape.name,
                kTypeNames[static_cast<int>(type)], mark, tokens, positions, times.least * 1e6,
                times.median * 1e6);
    print_products(work.flop(), times.median);
  };
  print(' ');
  if (work.convert_pages()) print('*');
}

void rope(const Shape& shape, KvType type, uint32_t tokens) {
  Work work(shape, type, 1, tokens, tokens, false);
  const auto times = work.time_rope();
  const double bytes = (2.0 * shape.heads + 2.0 * shape.kv_heads) * shape.head_length * 4 * tokens +
                       2.0 * shape.kv_heads * kv_row_bytes(type, shape.head_length) * tokens;
  std::printf("rope_kv %-4s %-5s %4u tokens   %9.2f us %9.2f us", shape.name,
              kTypeNames[static_cast<int>(type)], tokens, times.least * 1e6, times.median * 1e6);
  print_read(bytes, times.median);
}

}  // namespace

int main(int argument_count, char** arguments) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, %d SM; least and median of %d\n", properties.name,
              properties.multiProcessorCount, kRepeats);
  for (int i = 1; i < argument_count; ++i) {
    Shape heads{"", 0, 0, 0};
    uint32_t tokens = 0, last = 0;
    if (std::sscanf(arguments[i], "%u/%u/%u:%u-%u", &heads.heads, &heads.kv_heads,
                    &heads.head_length, &tokens, &last) == 5 &&
        heads.kv_heads != 0 && tokens > 1 && tokens <= last) {
      std::printf("%u/%u/%u ", heads.heads, heads.kv_heads, heads.head_length);
      prefill(heads, KvType::kF16, tokens, last);
      continue;
    }
    KvType type = KvType::kF16;
    const char* shape = arguments[i];
    for (const KvType known : kTypes) {
      const char* const name = kTypeNames[static_cast<int>(known)];
      const size_t length = std::strlen(name);
      if (std::strncmp(shape, name, length) != 0 || shape[length] != ':') continue;
      type = known;
      shape += length + 1;
      break;
    }
    char* end = nullptr;
    const auto rows = static_cast<uint32_t>(std::strtoul(shape, &end, 10));
    const auto positions = *end == 'x' ? static_cast<uint32_t>(std::strtoul(end + 1, &end, 10)) : 0;
    const auto shared = *end == '/' ? static_cast<uint32_t>(std::strtoul(end + 1, &end, 10)) : 0;
    if (rows == 0 || positions == 0 || *end != '\0' || shared % kPageTokens != 0 ||
        shared >= positions) {
      std::fprintf(stderr, "'%s' is not [TYPE:]ROWSxPOSITIONS[/SHARED]\n", arguments[i]);
      return 2;
    }
    decode(k8B, type, rows, positions, false, shared);
  }
  if (argument_count > 1) return 0;
  for (const KvType type : kTypes) {
    decode(k8B, type, 1, 512);
    decode(k8B, type, 1, 4096);
    decode(k8B, type, 1, 16384);
    decode(k8B, type, 8, 4096);
    decode(k8B, type, 8, 16384);
    for (const uint32_t rows : {64u, 256u, 512u}) decode(k8B, type, rows, 160);
    decode(k8B, type, 64, 1024);
    decode(k8B, type, 256, 1024);
    decode(k8B, type, 64, 4256, false, 4096);
  }
  decode(k1B, KvType::kF16, 1, 512);
  decode(k70B, KvType::kF16, 1, 512);
  decode(k70B, KvType::kF16, 1, 16384);
  decode(k8B, KvType::kF16, 1, 512, true);
  decode(k8B, KvType::kF16, 1, 16384, true);
  decode(k8B, KvType::kF16, 64, 1024, true);
  for (const KvType type : kTypes) {
    prefill(k8B, type, 512, 512);
    prefill(k8B, type, 2048, 2048);
    prefill(k8B, type, 8192, 8192);
    prefill(k8B, type, 4096, 16384);
    // Few tokens after many: several blocks share a tile of tokens and a head.
    prefill(k8B, type, 704, 2816);
    prefill(k8B, type, 576, 4096);
    prefill(k8B, type, 128, 8192);
    prefill(k8B, type, 256, 256);
    prefill(k8B, type, 256, 8192);
    prefill(k8B, type, 512, 32768);
    prefill(k8B, type, 2048, 131072);
  }
  prefill(k1B, KvType::kF16, 4096, 4096);
  for (const KvType type : kTypes) rope(k8B, type, 2048);
  return 0;
}
