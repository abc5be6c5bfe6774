// A model and its engine behind the C interface, with the prompts and steps that end-to-end benches
// time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker_cuda.h"

namespace wcuda::bench {

Status to_status(wcuda_status status, const wcuda_error& error);

// A handle that is destroyed with its owner.
template <class Handle, void (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{0})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() { Destroy(handle_); }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_{0};
};
using Context = Owned<wcuda_context, wcuda_context_destroy>;
using Gguf = Owned<wcuda_gguf, wcuda_gguf_close>;
using Model = Owned<wcuda_model, wcuda_model_unload>;
using Engine = Owned<wcuda_engine, wcuda_engine_destroy>;
using Sequence = Owned<wcuda_sequence, wcuda_sequence_destroy>;

struct Device {
  Context context;
  int32_t backend = WCUDA_BACKEND_HOST;
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;

  // `backend` is WCUDA_BACKEND_…; `threads` those of the host backend, 0 for its default.
  static Result<Device> open(int32_t backend, uint32_t threads);
};

// Opens and loads; writes the seconds both took together. `target` is for draft heads.
Result<Model> load(const Device& device, const wcuda_source& source, double* seconds,
                   wcuda_model target = {0});

// Sequences of one engine that advance together.
class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const Device& device, wcuda_model model,
                                               const wcuda_engine_options& options);

  // Makes this the session of a draft head that reads features of the sequences of `target` with
  // the same numbers; prefill then takes what target has computed. `target` must outlive it.
  void set_target(const Session* target) { target_ = target; }
  wcuda_engine engine() const { return engine_.get(); }
  // How rows sample from here on; greedy at first. What it points to must outlive the session.
  void set_sampling(const wcuda_sampling& sampling) { sampling_ = sampling; }
  // Bytes of the KV cache for 64 tokens.
  uint64_t page_bytes() const { return page_bytes_; }
  // Captures what the first step of each shape else would.
  Status warm_up(double* seconds);
  // Leaves exactly `count` empty sequences.
  Status begin(uint32_t count);
  // Adds copies of the first sequence until there are `count`.
  Status fork(uint32_t count);
  // Appends `count` random tokens to every sequence and samples after the last: in steps as full as
  // the engine allows, two in flight. All is done when the call returns.
  Status prefill(uint32_t count);
  // Takes every sequence back to `length` - 1 tokens and appends one: what was sampled after it can
  // be fed. Returns when it is done.
  Status rewind(uint32_t length);
  // `steps` tokens for every sequence, each fed back on the device, `depth` steps in flight;
  // appends what was sampled to `tokens`, unless null.
  Status decode(uint32_t steps, std::vector<int32_t>* tokens, size_t depth = kDepth);
  // Every sequence decodes while `prompts` prompts of `length` tokens arrive one after the other,
  // `chunk` tokens a step. Appends the seconds from one step's results to the next's.
  Status mix(uint32_t prompts, uint32_t length, uint32_t chunk, std::vector<double>* seconds);
  // The same for one sequence, one step at a time, tokens fed by the caller, every logit checked to
  // be finite.
  Status decode_checked(uint32_t steps, std::vector<int32_t>* tokens);
  // A row of a sequence. Without `tokens` it has one, the one that was sampled last. With tokens, a
  // row of a draft head reads features.
  wcuda_row row(size_t sequence, const int32_t* tokens, uint32_t count,
                uint32_t flags = WCUDA_ROW_SAMPLE) const;
  // A step of these rows, then `more` tokens for every sequence as in decode.
  Status run(const std::vector<wcuda_row>& rows, uint32_t more = 0);
  // Of the step waited for last: the rows' results, and the tokens sampled by all of them if the
  // engine has drafts.
  const std::vector<wcuda_row_result>& results() const { return results_; }
  const std::vector<int32_t>& sampled_tokens() const { return sampled_tokens_; }
  // Steps that captured a graph first.
  uint64_t captured_count() const { return captured_count_; }
  wcuda_sequence sequence(size_t index) const { return sequences_[index].get(); }
  // Time that the caller's thread spends in submit, and in wait once the device is done, of each
  // step.
  Status measure_host(uint32_t steps, std::vector<double>* seconds);
  // The nodes of one such step, kernel by kernel: medians of a few.
  Status profile(std::vector<wcuda_step_node>* nodes);
  // The nodes of the step of a prompt of `count` tokens.
  Status profile_prompt(uint32_t count, std::vector<wcuda_step_node>* nodes);

 private:
  static constexpr size_t kDepth = 2;  // steps in flight

  Session() = default;
  Status profile(std::vector<wcuda_step_node>* nodes, const std::function<Status()>& submit_step);
  Status submit(const std::vector<wcuda_row>& rows);
  Status wait_oldest(std::vector<int32_t>* tokens);
  Status wait_all(std::vector<int32_t>* tokens);
  Status add_sequence();
  int32_t random_token();
  std::vector<wcuda_row> feed_rows() const;

  const Session* target_ = nullptr;
  wcuda_context context_{0};
  Engine engine_;
  std::vector<Sequence> sequences_;
  uint32_t vocabulary_size_ = 0;
  uint32_t max_batch_tokens_ = 0;
  uint32_t max_batch_rows_ = 0;
  uint64_t page_bytes_ = 0;
  uint64_t random_counter_ = 0;
  std::deque<uint64_t> in_flight_;
  uint64_t captured_count_ = 0;
  wcuda_sampling sampling_ = WCUDA_SAMPLING_INIT;
  std::vector<wcuda_row_result> results_;  // of the step waited for last; so the next five
  uint64_t result_count_ = 0;
  std::vector<int32_t> sampled_tokens_;
  std::vector<float> sampled_logprobs_;
  std::vector<uint32_t> sampled_top_counts_;
  std::vector<float> logits_;
};

}  // namespace wcuda::bench
