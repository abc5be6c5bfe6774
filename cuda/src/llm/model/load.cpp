// Loading: plan, reserve, upload (read and repack), seal. All or nothing: objects own everything
// acquired and release it when a step fails.
#include <algorithm>
#include <cinttypes>

#include "core/base/thread_pool.h"
#include "kernels/shared/scale_factor.h"
#include "llm/model/first_failure.h"
#include "llm/model/model.h"
#include "llm/model/plan.h"
#include "llm/model/rope.h"
#include "llm/model/upload.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_host.h"
#include "worker_cuda/llm.h"

namespace wcuda::model {
namespace {

constexpr uint64_t kProgressBytes = 16u << 20;  // progress and cancel at least this often

}  // namespace

class Loader {
 public:
  Loader(std::shared_ptr<vram::Memory> memory, std::shared_ptr<gguf::Gguf> file,
         const LoadOptions& options)
      : memory_(std::move(memory)), file_(std::move(file)), options_(options) {}

  Result<std::shared_ptr<Model>> run() {
    WCUDA_TRY(report(WCUDA_LOAD_PLAN));
    WCUDA_ASSIGN(plan_, plan_load_in_detail(memory_->backend(), *file_, options_.target.get()));
    WCUDA_TRY(check_target());
    WCUDA_TRY(read_rope_factors());
    WCUDA_TRY(read_draft_tokens());
    WCUDA_TRY(report(WCUDA_LOAD_RESERVE));
    WCUDA_TRY(reserve());
    WCUDA_TRY(report(WCUDA_LOAD_UPLOAD));
    WCUDA_TRY(upload());
    staging_.reset();
    staged_.reset();
    WCUDA_TRY(report(WCUDA_LOAD_SEAL));
    WCUDA_TRY(memory_->backend().synchronize());
    WCUDA_TRY(check_cancelled());
    return finish();
  }

 private:
  Status check_cancelled() const { return check_cancelled(done_bytes_); }
  Status check_cancelled(uint64_t done_bytes) const {
    if (!options_.is_cancelled || !options_.is_cancelled()) return {};
    return cancelled(done_bytes);
  }
  Status cancelled(uint64_t done_bytes) const {
    return Status::error(WCUDA_CANCELLED,
                         "the load was cancelled at %" PRIu64 " of %" PRIu64 " bytes", done_bytes,
                         plan_.file_bytes);
  }
  Status report(int32_t phase) const {
    WCUDA_TRY(check_cancelled());
    if (options_.progress && !options_.progress(phase, done_bytes_, plan_.file_bytes))
      return cancelled(done_bytes_);
    return check_cancelled();
  }

  Status check_target() const {
    if (!plan_.plan.config.draft_head.exists()) return {};
    if (options_.target == nullptr)
      return invalid_argument("a draft head is loaded with its target model");
    if (options_.target->memory() != memory_)
      return invalid_argument("the draft head and its target model are of different contexts");
    return {};
  }

  Status read_draft_tokens() {
    DraftHead& head = plan_.plan.config.draft_head;
    if (!head.maps_tokens) return {};
    uint64_t index = 0;
    WCUDA_CHECK(file_->find_tensor(kDraftTokensTensor, &index) != nullptr);
    std::vector<int64_t> ids(head.vocabulary_size);
    WCUDA_TRY(file_->read_tensor(index, 0, ids.data(), ids.size() * sizeof(int64_t)));
    return model::read_draft_tokens(ids, plan_.plan.config.vocabulary_size, &head);
  }

  Status read_rope_factors() {
    uint64_t index = 0;
    if (!file_->find_tensor(kRopeFactorsTensor, &index)) return {};
    std::vector<float>& frequencies = plan_.plan.config.rope_frequencies;
    std::vector<float> factors(frequencies.size());
    WCUDA_TRY(file_->read_tensor(index, 0, factors.data(), factors.size() * sizeof(float)));
    return apply_rope_factors(factors, &frequencies);
  }

  // Makes all allocations, after checking that their sum fits.
  Status reserve() {
    const uint64_t loading = plan_.plan.loading_bytes;
    const uint64_t needed = plan_.plan.weights_bytes + loading;
    WCUDA_ASSIGN(const uint64_t available, memory_->available_bytes());
    if (needed > available) {
      const bool over_budget = memory_->ledger().left_in_budget() < needed;
      return Status::error(over_budget ? WCUDA_OVER_BUDGET : WCUDA_OUT_OF_MEMORY,
                           "the weights need %" PRIu64 " bytes%s, %" PRIu64 " are left %s",
                           plan_.plan.weights_bytes,
                           loading == 0 ? "" : and_loading(loading).c_str(), available,
                           over_budget ? "in the budget" : "on the device");
    }
    // Pinning takes as long as all other allocations together, so it runs concurrently.
    WCUDA_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::create(2));
    FirstFailure failure;
    pool->parallel_for(2, [&](uint32_t part, uint32_t) {
      failure.run(part, [&] { return part == 0 ? reserve_staging() : reserve_device(); });
    });
    return failure.take();
  }
  Status reserve_staging() {
    WCUDA_ASSIGN(staging_, memory_->allocate_pinned(plan_.plan.staging_bytes, "model staging"));
    return {};
  }
  Status reserve_device() {
    const uint64_t loading = plan_.plan.loading_bytes;
    if (loading != 0) {
      WCUDA_ASSIGN(staged_, memory_->allocate(loading, WCUDA_PURPOSE_SCRATCH, "model staging"));
    }
    buffers_.reserve(plan_.tensors.size() + 1);
    WCUDA_TRY(allocate(plan_.vectors_bytes, "vectors"));
    weights_.layers.resize(plan_.plan.config.layer_count);
    targets_.resize(plan_.tensors.size());
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const PlannedTensor& tensor = plan_.tensors[i];
      if (!tensor.slot.is_vector) WCUDA_TRY(allocate(tensor.bytes, tensor.slot.name));
      targets_[i] =
          tensor.slot.is_vector ? buffers_[0].data() + tensor.offset : buffers_.back().data();
    }
    return {};
  }
  Status allocate(uint64_t bytes, const std::string& tag) {
    WCUDA_ASSIGN(vram::Buffer buffer, memory_->allocate(bytes, WCUDA_PURPOSE_WEIGHTS, tag));
    buffers_.push_back(std::move(buffer));
    return {};
  }

  static std::string and_loading(uint64_t bytes) {
    return ", and " + std::to_string(bytes) + " while they are loaded";
  }

  Status upload() {
    const std::vector<float>& frequencies = plan_.plan.config.rope_frequencies;
    WCUDA_TRY(memory_->backend().copy_to_device(buffers_[0].data() + plan_.rope_offset,
                                                frequencies.data(),
                                                frequencies.size() * sizeof(float)));
    const std::vector<int32_t>& tokens = plan_.plan.config.draft_head.tokens;
    if (!tokens.empty())
      WCUDA_TRY(memory_->backend().copy_to_device(buffers_[0].data() + plan_.draft_tokens_offset,
                                                  tokens.data(), tokens.size() * sizeof(int32_t)));
    return plan_.is_streamed ? stream_up() : pack_up();
  }

  // Loads to a device: worker threads upload pieces; this thread also reads, and reports progress.
  Status stream_up() {
    UploadArgs args;
    args.backend = &memory_->backend();
    args.file = file_.get();
    args.plan = &plan_;
    args.slices = staging_.data();
    args.staged = staged_.data();
    args.targets = &targets_;
    args.check_cancelled = [this](uint64_t done) { return check_cancelled(done); };
    args.report = [this](uint64_t done) { return report_up_to(done); };
    WCUDA_ASSIGN(uploaded_, model::upload(args));
    return {};
  }
  // Reports progress in steps of at most kProgressBytes.
  Status report_up_to(uint64_t done_bytes) {
    while (done_bytes - done_bytes_ >= kProgressBytes / 4 ||
           (done_bytes_ != done_bytes && done_bytes == plan_.file_bytes)) {
      done_bytes_ += std::min(done_bytes - done_bytes_, kProgressBytes);
      WCUDA_TRY(report(WCUDA_LOAD_UPLOAD));
    }
    return {};
  }

  // Rows (of a vector: elements) first … first + count - 1 of a tensor.
  struct Piece {
    size_t tensor;
    uint64_t first;
    uint64_t count;
  };
  std::vector<Piece> cut_into_pieces() const {
    std::vector<Piece> pieces;
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const uint64_t rows = plan_.tensors[t].slot.rows;
      const uint64_t step = rows_per_piece(plan_.tensors[t], plan_.slice_bytes);
      for (uint64_t first = 0; first < rows; first += step)
        pieces.push_back({t, first, std::min(step, rows - first)});
    }
    return pieces;
  }

  // Loads on the host, in batches of pieces: one thread per piece, one staging slice per thread.
  Status pack_up() {
    const std::vector<Piece> pieces = cut_into_pieces();
    const uint64_t at_once =
        std::clamp<uint64_t>(kProgressBytes / plan_.slice_bytes, 1, plan_.slice_count);
    WCUDA_ASSIGN(const std::unique_ptr<ThreadPool> pool,
                 ThreadPool::create(static_cast<uint32_t>(at_once)));
    uint64_t reported = 0;
    for (size_t first = 0; first < pieces.size();) {
      // Small pieces share a batch of at most kProgressBytes.
      size_t end = first;
      uint64_t batch_bytes = 0;
      while (end < pieces.size() &&
             (end == first || batch_bytes + bytes_of(pieces[end]) <= at_once * plan_.slice_bytes))
        batch_bytes += bytes_of(pieces[end++]);
      FirstFailure failure;
      pool->parallel_for(static_cast<uint32_t>(end - first), [&](uint32_t i, uint32_t thread) {
        failure.run(i, [&] {
          return upload_piece(pieces[first + i], staging_.data() + thread * plan_.slice_bytes);
        });
      });
      WCUDA_TRY(failure.take());
      done_bytes_ += batch_bytes;
      first = end;
      WCUDA_TRY(check_cancelled());
      if (done_bytes_ - reported >= kProgressBytes / 4 || first == pieces.size()) {
        WCUDA_TRY(report(WCUDA_LOAD_UPLOAD));
        reported = done_bytes_;
      }
    }
    return {};
  }
  uint64_t bytes_of(const Piece& piece) const {
    return piece.count * plan_.tensors[piece.tensor].file_row_bytes;
  }

  Status upload_piece(const Piece& piece, uint8_t* slice) const {
    const PlannedTensor& tensor = plan_.tensors[piece.tensor];
    const uint64_t bytes = bytes_of(piece);
    WCUDA_TRY(file_->read_tensor(tensor.index, piece.first * tensor.file_row_bytes, slice, bytes));
    Backend& backend = memory_->backend();
    uint8_t* target = targets_[piece.tensor];
    if (tensor.slot.is_vector) {
      uint8_t* expanded = slice + staged_vector_offset(piece.count, tensor.file_row_bytes);
      WCUDA_TRY(quant::unpack_row(*quant::find_format(tensor.type), slice, piece.count,
                                  reinterpret_cast<float*>(expanded)));
      return backend.copy_to_device(target + piece.first * sizeof(float), expanded,
                                    piece.count * sizeof(float));
    }
    if (tensor.layout == Layout::kRows)
      return backend.copy_to_device(target + piece.first * tensor.file_row_bytes, slice, bytes);
    // Host memory is the target: rows are repacked directly.
    return quant::pack_host(tensor.type, tensor.layout, tensor.slot.rows, tensor.slot.cols,
                            static_cast<uint32_t>(piece.first), static_cast<uint32_t>(piece.count),
                            slice, target);
  }

  Result<std::shared_ptr<Model>> finish() {
    std::vector<ResidentTensor> tensors(plan_.tensors.size());
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const PlannedTensor& tensor = plan_.tensors[i];
      tensors[i].name = tensor.slot.name;
      tensors[i].index = tensor.index;
      tensors[i].is_vector = tensor.slot.is_vector;
      tensors[i].matrix = {targets_[i],   tensor.bytes,     tensor.type,
                           tensor.layout, tensor.slot.rows, tensor.slot.cols};
      if (!uploaded_.digests.empty()) {
        tensors[i].digests = uploaded_.digests[i];
        if (!tensor.slot.is_vector && kernels::has_scale_factor(tensor.type))
          tensors[i].matrix.scale_factor = kernels::scale_factor(uploaded_.scale_bounds[i]);
      }
      if (tensor.slot.is_vector)
        tensor.slot.vector_in(weights_) = reinterpret_cast<const float*>(targets_[i]);
      else
        tensor.slot.matrix_in(weights_) = tensors[i].matrix;
    }
    weights_.rope_frequencies =
        reinterpret_cast<const float*>(buffers_[0].data() + plan_.rope_offset);
    if (plan_.plan.config.tied_embeddings) weights_.output = weights_.token_embedding;
    if (options_.target != nullptr)
      take_target_weights(plan_.plan.config, &options_.target->weights(), &weights_);
    if (plan_.plan.config.draft_head.maps_tokens)
      weights_.draft_tokens =
          reinterpret_cast<const int32_t*>(buffers_[0].data() + plan_.draft_tokens_offset);
    std::sort(tensors.begin(), tensors.end(),
              [](const ResidentTensor& a, const ResidentTensor& b) { return a.index < b.index; });
    const std::shared_ptr<Model> model(new Model());
    model->tensors_ = std::move(tensors);
    model->memory_ = std::move(memory_);
    model->target_ = options_.target;
    model->plan_ = std::move(plan_.plan);
    model->weights_ = std::move(weights_);
    model->buffers_ = std::move(buffers_);
    // A streamed load has computed the digests; the host computes them from the loaded weights.
    if (uploaded_.digests.empty()) WCUDA_TRY(model->take_digests());
    return model;
  }

  std::shared_ptr<vram::Memory> memory_;
  std::shared_ptr<gguf::Gguf> file_;
  const LoadOptions& options_;
  DetailedPlan plan_;
  vram::Buffer staging_;
  vram::Buffer staged_;
  std::vector<vram::Buffer> buffers_;  // [0]: all vectors; then the matrices in the plan's order
  std::vector<uint8_t*> targets_;      // of each planned tensor
  Uploaded uploaded_;                  // empty on the host
  Weights weights_;
  uint64_t done_bytes_ = 0;
};

Result<std::shared_ptr<Model>> Model::load(std::shared_ptr<vram::Memory> memory,
                                           std::shared_ptr<gguf::Gguf> file,
                                           const LoadOptions& options) {
  return Loader(std::move(memory), std::move(file), options).run();
}

}  // namespace wcuda::model
