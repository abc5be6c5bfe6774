// Loading, prompts and decoding through the C interface.
#include "bench/e2e_session.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/random_blocks.h"

namespace wcuda::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Status to_status(wcuda_status status, const wcuda_error& error) {
  return status == WCUDA_OK ? Status() : Status::error(status, "%s", error.message);
}

Result<Device> Device::open(int32_t backend, uint32_t threads) {
  Device device;
  wcuda_error error{};
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = backend;
  options.host_thread_count = threads;
  WCUDA_TRY(to_status(wcuda_context_create(&options, device.context.out(), &error), error));
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
  WCUDA_TRY(to_status(wcuda_context_info_get(device.context.get(), &info, &error), error));
  device.backend = info.backend;
  WCUDA_TRY(
      to_status(wcuda_device_caps_get(info.backend, info.ordinal, &device.caps, &error), error));
  return device;
}

Result<Model> load(const Device& device, const wcuda_source& source, double* seconds,
                   wcuda_model target) {
  const Clock::time_point begin = Clock::now();
  wcuda_error error{};
  Gguf gguf;
  Model model;
  wcuda_model_options options = WCUDA_MODEL_OPTIONS_INIT;
  options.target = target;
  WCUDA_TRY(to_status(wcuda_gguf_open(&source, gguf.out(), &error), error));
  WCUDA_TRY(to_status(
      wcuda_model_load(device.context.get(), gguf.get(), &options, model.out(), &error), error));
  *seconds = seconds_since(begin);
  return model;
}

Result<std::unique_ptr<Session>> Session::open(const Device& device, wcuda_model model,
                                               const wcuda_engine_options& options) {
  std::unique_ptr<Session> session(new Session);
  wcuda_error error{};
  session->context_ = device.context.get();
  WCUDA_TRY(to_status(wcuda_engine_create(model, &options, session->engine_.out(), &error), error));
  wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
  WCUDA_TRY(to_status(wcuda_model_info_get(model, &info, &error), error));
  wcuda_engine_info limits = WCUDA_ENGINE_INFO_INIT;
  WCUDA_TRY(to_status(wcuda_engine_info_get(session->engine_.get(), &limits, &error), error));
  session->vocabulary_size_ = info.vocabulary_size;
  session->max_batch_tokens_ = limits.max_batch_tokens;
  session->max_batch_rows_ = limits.max_batch_rows;
  session->page_bytes_ = limits.kv_bytes / limits.kv_page_count;
  session->results_.resize(limits.max_batch_rows, WCUDA_ROW_RESULT_INIT);
  const size_t sampled_count =
      limits.max_draft_tokens == 0 ? 0 : size_t{limits.max_batch_rows} + limits.max_draft_tokens;
  session->sampled_tokens_.resize(sampled_count);
  session->sampled_logprobs_.resize(sampled_count);
  session->sampled_top_counts_.resize(sampled_count);
  session->logits_.resize(info.vocabulary_size);
  return session;
}

Status Session::warm_up(double* seconds) {
  wcuda_error error{};
  const Clock::time_point begin = Clock::now();
  WCUDA_TRY(to_status(wcuda_engine_warm_up(engine_.get(), &error), error));
  *seconds = seconds_since(begin);
  return {};
}

int32_t Session::random_token() {
  return static_cast<int32_t>(random_word(random_counter_++) % vocabulary_size_);
}

Status Session::begin(uint32_t count) {
  sequences_.clear();
  random_counter_ = 0;
  while (sequences_.size() < count) WCUDA_TRY(add_sequence());
  return {};
}

Status Session::add_sequence() {
  wcuda_error error{};
  sequences_.emplace_back();
  return to_status(wcuda_sequence_create(engine_.get(), sequences_.back().out(), &error), error);
}

Status Session::fork(uint32_t count) {
  wcuda_error error{};
  while (sequences_.size() < count) {
    sequences_.emplace_back();
    WCUDA_TRY(to_status(wcuda_sequence_fork(sequences_[0].get(), sequences_.back().out(), &error),
                        error));
  }
  return {};
}

wcuda_row Session::row(size_t sequence, const int32_t* tokens, uint32_t count,
                       uint32_t flags) const {
  wcuda_row row = WCUDA_ROW_INIT;
  row.sequence = sequences_[sequence].get();
  row.sampling = flags & WCUDA_ROW_SAMPLE ? &sampling_ : nullptr;
  row.tokens = tokens;
  row.token_count = count;
  row.flags = tokens == nullptr ? flags | WCUDA_ROW_FEED_SAMPLED : flags;
  if (target_ != nullptr && tokens != nullptr) row.features = target_->sequence(sequence);
  return row;
}

Status Session::run(const std::vector<wcuda_row>& rows, uint32_t more) {
  WCUDA_TRY(submit(rows));
  return decode(more, nullptr);
}

Status Session::submit(const std::vector<wcuda_row>& rows) {
  wcuda_step step = WCUDA_STEP_INIT;
  step.row_count = static_cast<uint32_t>(rows.size());
  step.rows = rows.data();
  wcuda_error error{};
  uint64_t ticket = 0;
  WCUDA_TRY(to_status(wcuda_step_submit(engine_.get(), &step, &ticket, &error), error));
  in_flight_.push_back(ticket);
  return {};
}

Status Session::wait_oldest(std::vector<int32_t>* tokens) {
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  output.row_capacity = static_cast<uint32_t>(results_.size());
  output.rows = results_.data();
  output.logits = logits_.data();
  output.logits_capacity = logits_.size();
  output.sampled_capacity = sampled_tokens_.size();
  output.sampled_tokens = sampled_tokens_.data();
  output.sampled_logprobs = sampled_logprobs_.data();
  output.sampled_top_counts = sampled_top_counts_.data();
  wcuda_error error{};
  const uint64_t ticket = in_flight_.front();
  in_flight_.pop_front();
  WCUDA_TRY(to_status(wcuda_step_wait(engine_.get(), ticket, -1, &output, &error), error));
  result_count_ = output.row_count;
  captured_count_ += output.captured != 0;
  for (uint64_t i = 0; i < result_count_; ++i) {
    if (results_[i].status != WCUDA_ROW_OK)
      return Status::error(WCUDA_INTERNAL, "row %llu ended with status %d",
                           static_cast<unsigned long long>(i), results_[i].status);
    if (tokens != nullptr) tokens->push_back(results_[i].token);
  }
  return {};
}

Status Session::wait_all(std::vector<int32_t>* tokens) {
  while (!in_flight_.empty()) WCUDA_TRY(wait_oldest(tokens));
  return {};
}

Status Session::prefill(uint32_t count) {
  const size_t total = sequences_.size();
  std::vector<int32_t> tokens(total * count);
  for (int32_t& token : tokens) token = random_token();
  std::vector<uint32_t> done(total, 0);
  for (size_t first = 0; first < total;) {
    std::vector<wcuda_row> rows;
    uint32_t room = max_batch_tokens_;
    for (size_t i = first; i < total && room > 0 && rows.size() < max_batch_rows_; ++i) {
      const uint32_t piece = std::min(room, count - done[i]);
      const uint32_t flags = done[i] + piece == count ? WCUDA_ROW_SAMPLE : 0;
      rows.push_back(row(i, &tokens[i * count + done[i]], piece, flags));
      done[i] += piece;
      room -= piece;
    }
    if (in_flight_.size() == kDepth) WCUDA_TRY(wait_oldest(nullptr));
    WCUDA_TRY(submit(rows));
    while (first < total && done[first] == count) ++first;
  }
  return wait_all(nullptr);
}

Status Session::rewind(uint32_t length) {
  wcuda_error error{};
  std::vector<int32_t> tokens(sequences_.size());
  std::vector<wcuda_row> rows;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    WCUDA_TRY(to_status(wcuda_sequence_truncate(sequence(i), length - 1, &error), error));
    tokens[i] = static_cast<int32_t>(random_word(i) % vocabulary_size_);
    rows.push_back(row(i, &tokens[i], 1));
  }
  return run(rows);
}

std::vector<wcuda_row> Session::feed_rows() const {
  std::vector<wcuda_row> rows;
  for (size_t i = 0; i < sequences_.size(); ++i) rows.push_back(row(i, nullptr, 1));
  return rows;
}

Status Session::decode(uint32_t steps, std::vector<int32_t>* tokens, size_t depth) {
  const std::vector<wcuda_row> rows = feed_rows();
  for (uint32_t step = 0; step < steps; ++step) {
    if (in_flight_.size() == depth) WCUDA_TRY(wait_oldest(tokens));
    WCUDA_TRY(submit(rows));
  }
  return wait_all(tokens);
}

Status Session::mix(uint32_t prompts, uint32_t length, uint32_t chunk,
                    std::vector<double>* seconds) {
  std::vector<wcuda_row> rows = feed_rows();
  rows.emplace_back();
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = random_token();
  Clock::time_point last = Clock::now();
  const auto wait = [&]() -> Status {
    WCUDA_TRY(wait_oldest(nullptr));
    seconds->push_back(seconds_since(last));
    last = Clock::now();
    return {};
  };
  for (uint32_t prompt = 0; prompt < prompts; ++prompt) {
    WCUDA_TRY(add_sequence());
    for (uint32_t done = 0; done < length; done += chunk) {
      const uint32_t count = std::min(chunk, length - done);
      rows.back() = row(sequences_.size() - 1, &tokens[done], count,
                        done + count == length ? WCUDA_ROW_SAMPLE : 0);
      if (in_flight_.size() == kDepth) WCUDA_TRY(wait());
      WCUDA_TRY(submit(rows));
    }
  }
  while (!in_flight_.empty()) WCUDA_TRY(wait());
  return {};
}

Status Session::decode_checked(uint32_t steps, std::vector<int32_t>* tokens) {
  WCUDA_CHECK(sequences_.size() == 1);
  for (uint32_t step = 0; step < steps; ++step) {
    const int32_t fed = results_[0].token;
    const uint32_t flags = WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST;
    WCUDA_TRY(submit({row(0, &fed, 1, flags)}));
    WCUDA_TRY(wait_all(tokens));
    for (const float logit : logits_)
      if (!std::isfinite(logit))
        return Status::error(WCUDA_INTERNAL, "step %u has a logit that is not finite", step);
  }
  return {};
}

Status Session::measure_host(uint32_t steps, std::vector<double>* seconds) {
  const std::vector<wcuda_row> rows = feed_rows();
  wcuda_error error{};
  for (uint32_t step = 0; step < steps; ++step) {
    const Clock::time_point begin = Clock::now();
    WCUDA_TRY(submit(rows));
    const double submitted = seconds_since(begin);
    WCUDA_TRY(to_status(wcuda_context_synchronize(context_, &error), error));
    const Clock::time_point done = Clock::now();
    WCUDA_TRY(wait_oldest(nullptr));
    seconds->push_back(submitted + seconds_since(done));
  }
  return {};
}

Status Session::profile(std::vector<wcuda_step_node>* nodes) {
  return profile(nodes, [&] { return submit(feed_rows()); });
}

Status Session::profile_prompt(uint32_t count, std::vector<wcuda_step_node>* nodes) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = random_token();
  return profile(nodes, [&]() -> Status {
    WCUDA_TRY(begin(1));
    return submit({row(0, tokens.data(), count)});
  });
}

Status Session::profile(std::vector<wcuda_step_node>* nodes,
                        const std::function<Status()>& submit_step) {
  constexpr uint32_t kSteps = 5;
  wcuda_error error{};
  WCUDA_TRY(to_status(wcuda_engine_profile_set(engine_.get(), 1, &error), error));
  std::vector<std::vector<double>> times;
  for (uint32_t step = 0; step < kSteps; ++step) {
    WCUDA_TRY(submit_step());
    WCUDA_TRY(wait_all(nullptr));
    uint64_t count = 0;
    WCUDA_TRY(to_status(
        wcuda_engine_profile_list(engine_.get(), nullptr, 0, nullptr, 0, &count, &error), error));
    nodes->assign(count, WCUDA_STEP_NODE_INIT);
    WCUDA_TRY(to_status(
        wcuda_engine_profile_list(engine_.get(), nullptr, 0, nodes->data(), count, &count, &error),
        error));
    times.resize(count);
    for (uint64_t i = 0; i < count; ++i) times[i].push_back((*nodes)[i].measured_ns);
  }
  for (size_t i = 0; i < times.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    (*nodes)[i].measured_ns = times[i][times[i].size() / 2];
  }
  return to_status(wcuda_engine_profile_set(engine_.get(), 0, &error), error);
}

}  // namespace wcuda::bench
