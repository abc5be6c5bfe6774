// The operations of a forward pass, queued on one CUDA stream. A layer is the kernels of
// attention_input (product, then rope and KV write, which attention does on the way when rows have
// one token), attention, project, feed_forward_input, project; each starts before the one ahead has
// ended and waits for it once its weights are on the way.
#include "llm/ops/cuda/cuda_ops.h"

#include "core/backend/cuda_device.h"
#include "core/base/checked.h"
#include "kernels/shared/arena.h"
#include "kernels/step/embed.h"
#include "llm/ops/cuda/attention.h"
#include "llm/ops/cuda/chained_layers.h"
#include "llm/ops/cuda/linear.h"

namespace wcuda::ops {
namespace {

kernels::Matrix matrix(const Weight& weight) {
  return {static_cast<const uint8_t*>(weight.data), weight.type, weight.rows, weight.cols};
}

class CudaOps final : public Ops {
 public:
  explicit CudaOps(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {
    launch_.sm_count = backend_->caps().multiprocessor_count;
    launch_.compute_capability = backend_->launch_capability();
    launch_.is_dependent = true;
  }
  ~CudaOps() override {
    if (stream_.id != 0) (void)backend_->stream_destroy(stream_);
  }

  uint64_t scratch_bytes(const Limits& limits) const override { return lay_out(limits).bytes; }
  Status prepare(const Limits& limits, void* scratch) override;
  Status warm_up() override { return {}; }
  Stream stream() const override { return stream_; }

  Status begin_step(const Batch& batch, const KvPool& pool, uint32_t window) override {
    linear_.begin_step();
    chain_.begin_step();
    return check(attention_.begin_step(batch, pool, window, launch_), "attention plan");
  }
  Status embed(const EmbedArgs& args) override;
  Status attention_input(const AttentionInputArgs& args) override;
  Status attention(const AttentionArgs& args) override;
  Status project(const ProjectArgs& args) override;
  Status feed_forward_input(const FeedForwardInputArgs& args) override;
  Status logits(const LogitsArgs& args) override;
  Status end_step() override { return chain_.flush(launch_); }

 private:
  struct Scratch {
    uint64_t key, value;  // f32 (max_batch_tokens, kv_head_count * head_length)
    uint64_t joined;      // queries, keys and values of a long step
    uint64_t attention, linear, chain, bytes;
  };
  Scratch lay_out(const Limits& limits) const;
  Status check(cudaError_t error, const char* call) const {
    return check_cuda(error, call, device_);
  }

  const std::shared_ptr<Backend> backend_;
  int device_ = 0;
  Stream stream_;
  kernels::Launch launch_;
  float* key_ = nullptr;
  float* value_ = nullptr;
  float* joined_ = nullptr;
  CudaAttention attention_;
  CudaLinear linear_;
  ChainedLayers chain_;
};

CudaOps::Scratch CudaOps::lay_out(const Limits& limits) const {
  const uint64_t row = uint64_t{limits.kv_head_count} * limits.head_length * sizeof(float);
  const uint64_t query_row = uint64_t{limits.head_count} * limits.head_length * sizeof(float);
  Scratch scratch{};
  Arena arena;
  scratch.key = arena.reserve(limits.max_batch_tokens * row);
  scratch.value = arena.reserve(limits.max_batch_tokens * row);
  scratch.joined = arena.reserve(limits.max_batch_tokens * (query_row + 2 * row));
  scratch.attention =
      arena.reserve(CudaAttention::scratch_bytes(limits, static_cast<uint32_t>(launch_.sm_count)));
  scratch.linear = arena.reserve(CudaLinear::scratch_bytes(limits, launch_));
  scratch.chain = arena.reserve(ChainedLayers::scratch_bytes(limits));
  scratch.bytes = arena.bytes();
  return scratch;
}

Status CudaOps::prepare(const Limits& limits, void* scratch) {
  WCUDA_CHECK(scratch != nullptr && stream_.id == 0);
  WCUDA_ASSIGN(device_, cuda_ordinal(backend_->caps().ordinal));
  WCUDA_ASSIGN(stream_, backend_->stream_create(0));
  launch_.stream = static_cast<cudaStream_t>(backend_->native_stream(stream_));
  const Scratch offsets = lay_out(limits);
  auto* const memory = static_cast<uint8_t*>(scratch);
  key_ = reinterpret_cast<float*>(memory + offsets.key);
  value_ = reinterpret_cast<float*>(memory + offsets.value);
  joined_ = reinterpret_cast<float*>(memory + offsets.joined);
  return backend_->queue(stream_, [&]() -> Status {
    WCUDA_TRY(
        check(attention_.prepare(limits, memory + offsets.attention, launch_), "attention set-up"));
    WCUDA_TRY(linear_.prepare(limits, launch_, memory + offsets.linear));
    return chain_.prepare(limits, device_, memory + offsets.chain, &linear_, launch_);
  });
}

Status CudaOps::embed(const EmbedArgs& args) {
  return check(kernels::embed(args.batch->tokens, args.batch->token_count, matrix(args.table),
                              args.scale, args.out, launch_),
               "embed");
}

Status CudaOps::attention_input(const AttentionInputArgs& args) {
  kernels::LinearArgs linear;
  linear.columns = args.batch->token_count;
  linear.x = args.x;
  linear.norm = args.norm;
  linear.epsilon = args.epsilon;
  linear.matrix_count = 3;
  const Weight* const weights[] = {&args.query, &args.key, &args.value};
  const Vector biases[] = {args.query_bias, args.key_bias, args.value_bias};
  float* const outputs[] = {args.query_out, key_, value_};
  for (int i = 0; i < 3; ++i) {
    linear.matrices[i] = matrix(*weights[i]);
    linear.biases[i] = biases[i];
    linear.outputs[i] = outputs[i];
  }
  if (linear_.joins(linear) && !CudaAttention::leaves_rope(args)) {
    WCUDA_TRY(linear_.run_joined(linear, joined_, launch_));
    return check(attention_.rope_joined_kv(args, joined_, launch_), "rope and KV write");
  }
  WCUDA_TRY(chain_.run(linear, launch_));
  return check(attention_.rope_kv(args, key_, value_, launch_), "rope and KV write");
}

Status CudaOps::attention(const AttentionArgs& args) {
  // A chain leaves no room beside it: what is early waits for it to end.
  AttentionOptions options;
  options.triggers_early = chain_.has_chained();
  if (!CudaAttention::has_half(args, launch_) ||
      !linear_.takes_half(args.batch->token_count, args.head_count * args.pool.head_length))
    return check(attention_.attention(args, launch_, options), "attention");
  linear_.half_input(args.out);
  return check(attention_.attention_half(args, launch_), "attention");
}

Status CudaOps::project(const ProjectArgs& args) {
  kernels::LinearArgs linear;
  linear.columns = args.token_count;
  linear.x = args.x;
  linear.matrix_count = 1;
  linear.matrices[0] = matrix(args.weight);
  linear.biases[0] = args.bias;
  linear.outputs[0] = args.residual;
  linear.epilogue = kernels::Epilogue::kAdd;
  return args.token_count == 1 ? chain_.queue(linear, launch_) : linear_.run(linear, launch_);
}

Status CudaOps::feed_forward_input(const FeedForwardInputArgs& args) {
  kernels::LinearArgs linear;
  linear.columns = args.token_count;
  linear.x = args.x;
  linear.norm = args.norm;
  linear.epsilon = args.epsilon;
  linear.matrix_count = 2;
  linear.matrices[0] = matrix(args.gate);
  linear.matrices[1] = matrix(args.up);
  linear.biases[0] = args.gate_bias;
  linear.biases[1] = args.up_bias;
  linear.outputs[0] = args.out;
  linear.epilogue = args.activation == Activation::kSilu ? kernels::Epilogue::kSiluGate
                                                         : kernels::Epilogue::kGeluTanhGate;
  return args.token_count == 1 ? chain_.queue(linear, launch_)
                               : linear_.run_hidden(linear, launch_);
}

Status CudaOps::logits(const LogitsArgs& args) {
  kernels::LinearArgs linear;
  linear.columns = args.logits_count;
  linear.x = args.x;
  linear.x_rows = args.token_indices;
  linear.norm = args.norm;
  linear.epsilon = args.epsilon;
  linear.matrix_count = 1;
  linear.matrices[0] = matrix(args.output);
  linear.biases[0] = args.bias;
  linear.outputs[0] = args.logits;
  return chain_.run(linear, launch_);
}

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(std::shared_ptr<Backend> backend) {
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(std::move(backend)));
}

}  // namespace wcuda::ops
