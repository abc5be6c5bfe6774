// The operations of a forward pass, queued on one CUDA stream. Each kernel starts before the
// previous one has ended, requests its first weights, and then waits for the previous kernel.
#include "llm/ops/cuda/cuda_ops.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/backend/cuda_device.h"
#include "core/base/checked.h"
#include "kernels/linear/fused_layers.h"
#include "kernels/linear/row_norm.h"
#include "kernels/ptx/code.h"
#include "kernels/sampling/token_logprobs.h"
#include "kernels/shared/arena.h"
#include "kernels/step/draft_head.h"
#include "kernels/step/embed.h"
#include "kernels/step/hidden_state.h"
#include "kernels/step/input_scatter.h"
#include "kernels/step/softcap.h"
#include "kernels/step/step.h"
#include "llm/ops/cuda/attention.h"
#include "llm/ops/cuda/linear.h"

namespace wcuda::ops {
namespace {

static_assert(kLinearWeightsMax == kernels::kLinearMatricesMax);

kernels::Matrix matrix(const Weight& weight) {
  return {static_cast<const uint8_t*>(weight.data), weight.type, weight.rows, weight.cols,
          weight.scale_factor};
}

kernels::Epilogue gate_epilogue(Activation activation) {
  return activation == Activation::kSilu ? kernels::Epilogue::kSiluGate
                                         : kernels::Epilogue::kGeluTanhGate;
}

kernels::LinearArgs linear_args(const LinearArgs& args) {
  kernels::LinearArgs linear;
  linear.tokens = args.token_count;
  linear.x = args.x;
  linear.x_rows = args.token_indices;
  linear.norm = args.norm;
  linear.epsilon = args.epsilon;
  linear.matrix_count = args.weight_count;
  for (uint32_t i = 0; i < args.weight_count; ++i) {
    linear.matrices[i] = matrix(args.weights[i]);
    linear.biases[i] = args.biases[i];
    linear.outputs[i] = args.outputs[i];
  }
  linear.epilogue = args.epilogue == Epilogue::kStore ? kernels::Epilogue::kStore
                    : args.epilogue == Epilogue::kAdd ? kernels::Epilogue::kAdd
                                                      : gate_epilogue(args.activation);
  return linear;
}

class CudaOps final : public Ops {
 public:
  CudaOps(std::shared_ptr<Backend> backend, const DeviceTraits& traits)
      : backend_(std::move(backend)), traits_(traits) {
    launch_.sm_count = backend_->caps().multiprocessor_count;
    launch_.compute_capability = traits.compute_capability;
    launch_.is_dependent = true;
  }
  ~CudaOps() override {
    if (stream_.id != 0) (void)backend_->stream_destroy(stream_);
  }

  const DeviceTraits& device() const override { return traits_; }
  uint64_t scratch_bytes(const Limits& limits) const override { return lay_out(limits).bytes; }
  Status prepare(const Limits& limits, void* scratch) override;
  Status warm_up() override { return {}; }
  Stream stream() const override { return stream_; }

  Result<float> row_norm_max(const Weight& weight, void* work, uint64_t work_bytes) override;
  Status start(const Node& node, const StartArgs& args) override;
  Status embed(const Node& node, const EmbedArgs& args) override;
  Status linear(const Node& node, const LinearArgs& args) override;
  Status persistent_layers(const Node& node, const LinearArgs* layers, uint32_t count) override;
  Status rope_kv(const Node& node, const RopeKvArgs& args) override;
  Status attention(const Node& node, const AttentionArgs& args) override;
  Status hidden_state(const Node& node, const HiddenStateArgs& args) override;
  Status softcap(const Node& node, const SoftcapArgs& args) override;
  Status keep_features(const Node& node, const KeepFeaturesArgs& args) override;
  Status read_features(const Node& node, const ReadFeaturesArgs& args) override;
  Status head_input(const Node& node, const HeadInputArgs& args) override;
  Status keep_states(const Node& node, const KeepStatesArgs& args) override;
  Status scatter_logits(const Node& node, const ScatterLogitsArgs& args) override;
  Status token_logprobs(const Node& node, const TokenLogprobsArgs& args) override;

 private:
  struct Scratch {
    uint64_t attention, linear, bytes;
  };
  Scratch lay_out(const Limits& limits) const;
  Status check(cudaError_t error, const char* call) const {
    return check_cuda(error, call, device_);
  }

  const std::shared_ptr<Backend> backend_;
  const DeviceTraits traits_;
  int device_ = 0;
  Stream stream_;
  kernels::Launch launch_;
  CudaAttention attention_;
  CudaLinear linear_;
};

CudaOps::Scratch CudaOps::lay_out(const Limits& limits) const {
  Scratch scratch{};
  Arena arena;
  scratch.attention = arena.reserve(CudaAttention::scratch_bytes(limits, launch_));
  scratch.linear = arena.reserve(CudaLinear::scratch_bytes(limits, launch_));
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
  return backend_->queue(stream_, [&]() -> Status {
    WCUDA_TRY(
        check(attention_.prepare(limits, memory + offsets.attention, launch_), "attention set-up"));
    return check(linear_.prepare(limits, launch_, memory + offsets.linear), "linear set-up");
  });
}

Result<float> CudaOps::row_norm_max(const Weight& weight, void* work, uint64_t work_bytes) {
  // The result, then as many f32 rows as fit, then the numbers of all rows.
  constexpr uint64_t kResultBytes = 256;
  const uint64_t row_bytes = uint64_t{weight.cols} * 4, numbers_bytes = uint64_t{weight.rows} * 4;
  WCUDA_CHECK(work_bytes >= kResultBytes + row_bytes + numbers_bytes);
  const uint64_t fitting = (work_bytes - kResultBytes - numbers_bytes) / row_bytes;
  const auto count_max = static_cast<uint32_t>(std::min<uint64_t>(fitting, weight.rows));
  auto* const result = static_cast<float*>(work);
  auto* const values = reinterpret_cast<float*>(static_cast<uint8_t*>(work) + kResultBytes);
  auto* const numbers = reinterpret_cast<int32_t*>(values + uint64_t{count_max} * weight.cols);
  std::vector<int32_t> rows(weight.rows);
  std::iota(rows.begin(), rows.end(), 0);
  float norm = 0.0f;
  WCUDA_TRY(backend_->copy_to_device(result, &norm, sizeof norm));
  WCUDA_TRY(backend_->copy_to_device(numbers, rows.data(), numbers_bytes));
  WCUDA_TRY(backend_->queue(stream_, [&]() -> Status {
    for (uint32_t first = 0; first < weight.rows; first += count_max) {
      const uint32_t count = std::min(count_max, weight.rows - first);
      WCUDA_TRY(check(kernels::embed(numbers + first, count, matrix(weight), 1.0f, values, launch_),
                      "embed"));
      WCUDA_TRY(check(kernels::row_norm_max(values, count, weight.cols, result, launch_),
                      "row_norm_max"));
    }
    return {};
  }));
  WCUDA_TRY(backend_->synchronize(stream_));
  WCUDA_TRY(backend_->copy_to_host(&norm, result, sizeof norm));
  return norm;
}

Status CudaOps::start(const Node& node, const StartArgs& args) {
  // This is the first kernel of a step: the previous step may still read what it overwrites.
  kernels::Launch first = launch_;
  first.is_dependent = false;
  switch (node.operation) {
    case Operation::kStartStep:
      WCUDA_CHECK(args.inputs != nullptr);
      return check(attention_.start(*args.batch, args.pool, args.window, *args.inputs, launch_),
                   "attention_plan_start");
    case Operation::kScatterInputs:
      WCUDA_CHECK(args.inputs != nullptr);
      return check(kernels::input_scatter(args.inputs->inputs, first), "input_scatter");
    case Operation::kBeginRows:
      WCUDA_CHECK(args.inputs != nullptr);
      return check(kernels::begin_step(args.inputs->begin, launch_), "begin_step");
    default:
      WCUDA_CHECK(node.operation == Operation::kPlanAttention);
      return check(attention_.plan(*args.batch, args.pool, args.window, launch_), "attention_plan");
  }
}

Status CudaOps::embed(const Node&, const EmbedArgs& args) {
  return check(kernels::embed(args.batch->tokens, args.batch->token_count, matrix(args.table),
                              args.scale, args.out, launch_),
               "embed");
}

Status CudaOps::linear(const Node& node, const LinearArgs& args) {
  if (node.output != Form::kHalf) return linear_.run(node, linear_args(args), launch_);
  WCUDA_CHECK(args.reader != nullptr && args.gate_norms != nullptr);
  WCUDA_CHECK(node.kernel == Kernel::kPackedGemm);
  return linear_.write_operand(linear_args(args), matrix(*args.reader), args.gate_norms->gate,
                               args.gate_norms->up, launch_);
}

Status CudaOps::persistent_layers(const Node& node, const LinearArgs* layers, uint32_t count) {
  WCUDA_CHECK(count == node.fused_count && count <= kernels::kFusedLayersMax);
  kernels::LinearArgs calls[kernels::kFusedLayersMax];
  for (uint32_t i = 0; i < count; ++i) calls[i] = linear_args(layers[i]);
  return linear_.run_persistent(calls, count, launch_);
}

Status CudaOps::rope_kv(const Node&, const RopeKvArgs& args) {
  return check(attention_.rope_kv(args, launch_), "rope_kv");
}

Status CudaOps::attention(const Node& node, const AttentionArgs& args) {
  kernels::HalfOperand operand;
  if (node.output == Form::kHalf || node.output == Form::kBatchHalf) {
    WCUDA_CHECK(args.reader != nullptr);
    WCUDA_ASSIGN(operand, linear_.operand_of(node.output, matrix(*args.reader),
                                             args.batch->token_count, args.out, launch_));
  }
  if (node.kernel == Kernel::kAttentionPrefill ||
      node.kernel == Kernel::kAttentionPrefillWarpgroup ||
      node.kernel == Kernel::kAttentionPrefillExpanded)
    return check(attention_.prefill(args, launch_, operand), "attention_prefill");
  if (node.kernel == Kernel::kAttentionShared)
    return check(attention_.shared(args, launch_), "attention_shared");
  if (node.kernel == Kernel::kAttentionJoin)
    return check(attention_.join(args, launch_, operand), "attention_join");
  WCUDA_CHECK(node.kernel == attention_.decode_kernel(*args.batch, args.pool, launch_));
  return check(attention_.decode(args, launch_, operand), "attention_decode");
}

Status CudaOps::hidden_state(const Node&, const HiddenStateArgs& args) {
  const kernels::HiddenStateArgs call{args.batch->rows,
                                      args.batch->row_count,
                                      args.batch->token_count,
                                      args.cols,
                                      args.x,
                                      args.norm,
                                      args.epsilon,
                                      args.work,
                                      args.out};
  return check(kernels::hidden_state(call, launch_), "hidden_state");
}

Status CudaOps::keep_features(const Node&, const KeepFeaturesArgs& args) {
  const kernels::KeepFeaturesArgs call{*args.batch, args.pages, args.x, args.thirds};
  return check(kernels::keep_features(call, launch_), "keep_features");
}

Status CudaOps::read_features(const Node&, const ReadFeaturesArgs& args) {
  const kernels::ReadFeaturesArgs call{
      *args.batch, args.pages,   args.page_tables, args.page_table_stride,
      args.norm,   args.epsilon, args.out};
  return check(kernels::read_features(call, launch_), "read_features");
}

Status CudaOps::head_input(const Node&, const HeadInputArgs& args) {
  const kernels::HeadInputArgs call{
      *args.batch,     args.cols,    args.embedding,      args.g,     args.states, args.token_norm,
      args.state_norm, args.epsilon, args.norms_residual, args.input, args.x};
  return check(kernels::head_input(call, launch_), "head_input");
}

Status CudaOps::keep_states(const Node&, const KeepStatesArgs& args) {
  const kernels::KeepStatesArgs call{*args.batch, args.cols, args.x, args.states};
  return check(kernels::keep_states(call, launch_), "keep_states");
}

Status CudaOps::scatter_logits(const Node&, const ScatterLogitsArgs& args) {
  const kernels::ScatterLogitsArgs call{args.count,  args.head_vocabulary, args.vocabulary,
                                        args.logits, args.tokens,          args.out};
  return check(kernels::scatter_logits(call, launch_), "scatter_logits");
}

Status CudaOps::softcap(const Node&, const SoftcapArgs& args) {
  return check(kernels::softcap(args.values, args.count, args.softcap, launch_), "softcap");
}

Status CudaOps::token_logprobs(const Node&, const TokenLogprobsArgs& args) {
  kernels::TokenLogprobsArgs call;
  call.token_count = args.count;
  call.vocabulary = args.vocabulary;
  call.tokens = args.tokens;
  call.logits = args.logits;
  call.top_stride = args.top_stride;
  call.logprobs = args.logprobs;
  call.top_tokens = args.top_tokens;
  call.top_logprobs = args.top_logprobs;
  call.row_statuses = args.row_statuses;
  return check(kernels::token_logprobs(call, launch_), "token_logprobs");
}

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(std::shared_ptr<Backend> backend) {
  const wcuda_device_caps& caps = backend->caps();
  DeviceTraits traits;
  traits.is_host = false;
  traits.compute_capability = backend->launch_capability();
  traits.sm_count = static_cast<uint32_t>(caps.multiprocessor_count);
  traits.shared_bytes_max = static_cast<uint32_t>(caps.shared_memory_per_block_optin);
  WCUDA_TRY(backend->queue({}, [&]() -> Status {
    kernels::Launch launch;
    launch.sm_count = caps.multiprocessor_count;
    launch.compute_capability = traits.compute_capability;
    traits.has_warpgroup_code = traits.compute_capability == 90 && kernels::has_warpgroup_code();
    traits.has_resident_grid = kernels::fused_layers_has_device(launch);
    return {};
  }));
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(std::move(backend), traits));
}

}  // namespace wcuda::ops
