// Plans a load from the header alone: finds every tensor, compares its shape with the
// hyper-parameters, and assigns its offset.
#include "llm/model/plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/base/checked.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/base/thread_pool.h"
#include "core/vram/digest.h"
#include "kernels/shared/packed_tile.h"
#include "llm/model/rope.h"
#include "llm/quant/format.h"

namespace wcuda::model {
namespace {

constexpr uint64_t kVectorAlignment = 64;
constexpr uint32_t kReaderThreadsMax = 4;
constexpr uint64_t kSliceBytesMax = 2u << 20;  // unless one row is longer

// A streamed load from the page cache to an H200 with 16 cores (CUDA 13.0, 2026-11-21) reaches 38,
// 48, 48 and 50 GB/s with 8 readers and pieces of 1, 2, 4 and 8 MiB, and 40, 49, 52 and 51 with 16
// readers. A small ring is faster overall, because allocating and freeing pinned memory takes 0.4
// ms per MB. Also, a cancelled load must stop within 16 MiB, and 8 readers hold less than that.
constexpr uint32_t kStreamReadersMax = 8;
constexpr uint64_t kStreamSliceBytes = 2u << 20;
constexpr uint64_t kPinnedPageBytes = 4096;
// The staging buffer on the device holds the largest tensor, because digests and repacking need
// whole tensors, and enough others to keep copies running.
constexpr uint64_t kDeviceStagingBytes = uint64_t{128} << 20;
constexpr uint64_t kDeviceAlignment = 256;

Status check_shape(const TensorSlot& slot, const gguf::Tensor& tensor, const Config& config) {
  const uint64_t first = slot.is_vector ? slot.rows : slot.cols;
  const uint64_t second = slot.is_vector ? 1 : slot.rows;
  const uint64_t* d = tensor.dimensions;
  if (d[0] == first && d[1] == second && d[2] == 1 && d[3] == 1) return {};
  return malformed("tensor '%s' is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                   ", the hyper-parameters of this '%s' require %" PRIu64 " x %" PRIu64,
                   slot.name.c_str(), d[0], d[1], d[2], d[3], config.architecture.c_str(), first,
                   second);
}

Result<PlannedTensor> plan_tensor(const Backend& backend, const TensorSlot& slot,
                                  const gguf::Tensor& tensor, const Config& config) {
  WCUDA_TRY(check_shape(slot, tensor, config));
  const quant::Format& format = *tensor.format;
  if (!format.is_loadable)
    return unsupported("tensor '%s' is of type %s, which no weight may have", slot.name.c_str(),
                       format.name);
  PlannedTensor planned;
  planned.slot = slot;
  planned.type = tensor.type;
  planned.file_bytes = tensor.bytes;
  planned.file_row_bytes = tensor.bytes / slot.rows;
  if (slot.is_vector) {
    if (!is_plain_type(tensor.type))
      return unsupported("tensor '%s' is of type %s, a vector must be F32, F16 or BF16",
                         slot.name.c_str(), format.name);
    planned.bytes = uint64_t{slot.rows} * sizeof(float);
    return planned;
  }
  WCUDA_ASSIGN(const quant::LayoutChoice choice,
               quant::weight_layout(backend.is_host(), tensor.type, slot.rows, slot.cols));
  planned.layout = choice.layout;
  planned.bytes = choice.bytes;
  return planned;
}

// Checks a tensor of the file that has no slot. One that belongs to the network would change the
// results, so it is rejected. Others are not used, and logged.
Status check_unused(const gguf::Tensor& tensor, const TensorList& list, const Config& config) {
  const std::string name = printable(tensor.name);
  constexpr const char* kOfTheNetwork[] = {"blk.", "token_", "position_", "output", "rope_"};
  const auto starts_with = [&](const char* start) { return name.rfind(start, 0) == 0; };
  if (starts_with("blk.")) {
    const size_t dot = name.find('.', std::strlen("blk."));
    if (dot != std::string::npos && list.is_ignored_in_layers(name.substr(dot + 1))) return {};
  }
  if (std::any_of(std::begin(kOfTheNetwork), std::end(kOfTheNetwork), starts_with))
    return unsupported("tensor '%s' is not part of architecture '%s' with %u layers", name.c_str(),
                       config.architecture.c_str(), config.layer_count);
  log(WCUDA_LOG_WARN, "model", "tensor '%s' is not used", name.c_str());
  return {};
}

Status check_rope_factors(const gguf::Tensor& tensor, const Config& config) {
  if (tensor.type == TensorType::kF32 && tensor.element_count == config.rope_frequencies.size() &&
      tensor.dimension_count == 1)
    return {};
  return unsupported("tensor '%s' is of type %s and %" PRIu64 " elements, must be F32 and %zu",
                     kRopeFactorsTensor, tensor.format->name, tensor.element_count,
                     config.rope_frequencies.size());
}

// Finds a tensor of the file for each slot, and a slot for each tensor.
Status match_tensors(const Backend& backend, const gguf::Gguf& file, const TensorList& list,
                     DetailedPlan* plan) {
  const Config& config = plan->plan.config;
  std::vector<bool> used(file.tensors().size());
  for (const TensorSlot& slot : list.slots()) {
    uint64_t index = 0;
    const gguf::Tensor* tensor = file.find_tensor(slot.name, &index);
    if (tensor == nullptr) {
      if (slot.presence != Presence::kRequired) continue;
      return malformed("tensor '%s' is missing, architecture '%s' needs it", slot.name.c_str(),
                       config.architecture.c_str());
    }
    WCUDA_ASSIGN(PlannedTensor planned, plan_tensor(backend, slot, *tensor, config));
    planned.index = index;
    used[index] = true;
    plan->plan.parameter_count += tensor->element_count;
    plan->tensors.push_back(std::move(planned));
  }
  uint64_t factors_index = 0;
  if (const gguf::Tensor* factors = file.find_tensor(kRopeFactorsTensor, &factors_index)) {
    WCUDA_TRY(check_rope_factors(*factors, config));
    used[factors_index] = true;
  }
  uint64_t tokens_index = 0;
  if (config.draft_head.exists() && file.find_tensor(kDraftTokensTensor, &tokens_index))
    used[tokens_index] = true;
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i]) WCUDA_TRY(check_unused(file.tensors()[i], list, config));
  return {};
}

// Plans pinned staging and the device staging buffer of a streamed load.
Status plan_stream(const Backend& backend, DetailedPlan* plan) {
  uint64_t largest = 0, all = 0;
  for (const PlannedTensor& tensor : plan->tensors) {
    // The file has these bytes, so no sum of them overflows.
    largest = std::max(largest, align_up(tensor.file_bytes, kDeviceAlignment));
    all += align_up(tensor.file_bytes, kDeviceAlignment);
  }
  const uint32_t threads =
      backend.host_thread_count() != 0 ? backend.host_thread_count() : available_thread_count();
  plan->slice_count = kSlicesPerReader * std::clamp(threads, 1u, kStreamReadersMax);
  plan->slice_bytes = std::min(kStreamSliceBytes, align_up(largest, kPinnedPageBytes));
  plan->plan.staging_bytes = plan->slice_count * plan->slice_bytes;
  plan->device_staging_bytes = std::max(largest, std::min(all, kDeviceStagingBytes));
  plan->digests_offset = plan->device_staging_bytes;
  plan->scale_bounds_offset = plan->digests_offset + plan->tensors.size() * sizeof(TensorDigests);
  plan->digest_scratch_offset =
      align_up(plan->scale_bounds_offset + plan->tensors.size() * sizeof(float), kDeviceAlignment);
  plan->plan.loading_bytes =
      plan->digest_scratch_offset + kRepackStreams * vram::kDigestScratchBytes;
  assign_staged_offsets(plan);
  return {};
}

// Assigns sizes and offsets to the tensors that match_tensors found.
Status assign_offsets(const Backend& backend, DetailedPlan* plan) {
  const auto take_vector = [plan](uint64_t bytes) {
    const uint64_t offset = plan->vectors_bytes;
    plan->vectors_bytes = align_up(offset + bytes, kVectorAlignment);
    return offset;
  };
  plan->rope_offset = take_vector(plan->plan.config.rope_frequencies.size() * sizeof(float));
  const DraftHead& head = plan->plan.config.draft_head;
  if (head.maps_tokens)
    plan->draft_tokens_offset = take_vector(uint64_t{head.vocabulary_size} * sizeof(int32_t));
  uint64_t matrix_bytes = 0, longest_row = 0, largest = 0;
  for (PlannedTensor& tensor : plan->tensors) {
    if (!checked_add(plan->file_bytes, tensor.file_bytes, &plan->file_bytes))
      return malformed("the tensors have more than 2^64 bytes");
    uint64_t staged = tensor.file_bytes;
    if (tensor.slot.is_vector) {
      tensor.offset = take_vector(tensor.bytes);
      staged = staged_vector_offset(tensor.slot.rows, tensor.file_row_bytes) + tensor.bytes;
    } else {
      longest_row = std::max(longest_row, tensor.file_row_bytes);
      if (!checked_add(matrix_bytes, tensor.bytes, &matrix_bytes))
        return malformed("the matrices need more than 2^64 bytes");
    }
    largest = std::max(largest, staged);
  }
  if (!checked_add(matrix_bytes, plan->vectors_bytes, &plan->plan.weights_bytes))
    return malformed("the weights need more than 2^64 bytes");
  if (plan->is_streamed) return plan_stream(backend, plan);
  plan->slice_count = std::clamp(backend.host_thread_count(), 1u, kReaderThreadsMax);
  plan->slice_bytes =
      align_up(std::max(std::min(largest, kSliceBytesMax), longest_row), kVectorAlignment);
  plan->plan.staging_bytes = plan->slice_count * plan->slice_bytes;
  return {};
}

}  // namespace

void assign_staged_offsets(DetailedPlan* plan) {
  uint64_t next = 0;
  for (size_t t = 0; t < plan->tensors.size(); ++t) {
    PlannedTensor& tensor = plan->tensors[t];
    const uint64_t bytes = align_up(tensor.file_bytes, kDeviceAlignment);
    if (next + bytes > plan->device_staging_bytes) next = 0;
    tensor.staged_offset = next;
    next += bytes;
    for (size_t before = t; before > 0 && tensor.waits_for == 0; --before) {
      const PlannedTensor& other = plan->tensors[before - 1];
      if (other.staged_offset < next &&
          tensor.staged_offset < other.staged_offset + other.file_bytes)
        tensor.waits_for = before;
    }
  }
}

uint64_t staged_vector_offset(uint64_t element_count, uint64_t file_element_bytes) {
  return align_up(element_count * file_element_bytes, kVectorAlignment);
}

uint64_t rows_per_piece(const PlannedTensor& tensor, uint64_t slice_bytes) {
  if (tensor.slot.is_vector)
    return std::max<uint64_t>(1, (slice_bytes - std::min(slice_bytes, kVectorAlignment)) /
                                     (tensor.file_row_bytes + sizeof(float)));
  const uint64_t rows = std::max<uint64_t>(1, slice_bytes / tensor.file_row_bytes);
  // Whole M-tiles: no two pieces write to one packed tile.
  return rows >= quant::kMTileRows ? rows / quant::kMTileRows * quant::kMTileRows : rows;
}

Status check_target(const Config& head, const Config& target) {
  if (target.draft_head.exists())
    return invalid_argument("the target model of a draft head is a draft head too");
  if (target.embedding_length != head.draft_head.target_width)
    return invalid_argument("the draft head is for a model of width %u, this one has %u",
                            head.draft_head.target_width, target.embedding_length);
  if (target.vocabulary_size != head.vocabulary_size)
    return invalid_argument("the draft head has a vocabulary of %u tokens, its model one of %u",
                            head.vocabulary_size, target.vocabulary_size);
  for (const uint32_t layer : head.draft_head.target_layers)
    if (layer > target.layer_count)
      return invalid_argument("the draft head reads the input of layer %u, the model has %u layers",
                              layer, target.layer_count);
  return {};
}

void take_target_weights(const Config& head, const Weights* target, Weights* weights) {
  Weight unknown;
  unknown.type = static_cast<uint32_t>(TensorType::kF16);
  unknown.rows = head.vocabulary_size;
  unknown.cols = head.embedding_length;
  if (weights->token_embedding.rows == 0)
    weights->token_embedding = target == nullptr ? unknown : target->token_embedding;
  if (weights->output.rows == 0) weights->output = target == nullptr ? unknown : target->output;
}

Result<DetailedPlan> plan_load_in_detail(const Backend& backend, const gguf::Gguf& file,
                                         const Model* target) {
  if (backend.is_registered())
    return unsupported("models run on CUDA and HOST, not on backend %d", backend.caps().backend);
  WCUDA_ASSIGN(ReadConfig read, read_config(file));
  DetailedPlan plan;
  plan.plan.config = std::move(read.config);
  const bool is_draft_head = plan.plan.config.draft_head.exists();
  if (!is_draft_head && target != nullptr)
    return invalid_argument("architecture '%s' is no draft head and has no target model",
                            plan.plan.config.architecture.c_str());
  if (target != nullptr) WCUDA_TRY(check_target(plan.plan.config, target->config()));
  TensorList list;
  read.arch->list(plan.plan.config, &list);
  WCUDA_TRY(match_tensors(backend, file, list, &plan));
  plan.plan.weights.layers.resize(plan.plan.config.layer_count);
  for (const PlannedTensor& tensor : plan.tensors)
    if (!tensor.slot.is_vector)
      tensor.slot.matrix_in(plan.plan.weights) = {
          nullptr, tensor.bytes, tensor.type, tensor.layout, tensor.slot.rows, tensor.slot.cols};
  if (plan.plan.config.tied_embeddings)
    plan.plan.weights.output = plan.plan.weights.token_embedding;
  if (is_draft_head)
    take_target_weights(plan.plan.config, target == nullptr ? nullptr : &target->weights(),
                        &plan.plan.weights);
  plan.is_streamed = !backend.is_host();
  if (plan.is_streamed)
    std::sort(plan.tensors.begin(), plan.tensors.end(),
              [](const PlannedTensor& a, const PlannedTensor& b) { return a.index < b.index; });
  WCUDA_TRY(assign_offsets(backend, &plan));
  return plan;
}

Result<LoadPlan> plan_load(const Backend& backend, const gguf::Gguf& file, const Model* target) {
  WCUDA_ASSIGN(DetailedPlan plan, plan_load_in_detail(backend, file, target));
  return plan.plan;
}

}  // namespace wcuda::model
