// Page commands, the forward pass and sampling on the host.
#include "llm/engine/host_runner.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "core/base/callback.h"

namespace wcuda::engine {
namespace {

void copy_page(const ops::KvPool& pool, uint32_t from, uint32_t to) {
  for (uint32_t layer = 0; layer < pool.layer_count; ++layer)
    std::memcpy(pool.keys(layer, to), pool.keys(layer, from), 2 * pool.plane_bytes());
}

// All ones is NaN in every KV type: as f16, as the f16 scale of a block, and as e4m3.
void poison_page(const ops::KvPool& pool, uint32_t page) {
  for (uint32_t layer = 0; layer < pool.layer_count; ++layer)
    std::memset(pool.keys(layer, page), 0xff, 2 * pool.plane_bytes());
}

// Moves a row that continues drafts of the previous step behind those that are accepted.
void continue_drafts(const StepInputs& inputs, const Ticket& previous, ops::StepRow& row) {
  const uint32_t accepted = accepted_drafts(previous, row.depends_on);
  row.first_position += accepted;
  inputs.positions[row.first_token] += accepted;
}

// Sets the tokens of rows that are fed back, and appends every row's tokens to its sequence's
// history. A row whose predecessor failed is skipped: it is computed, but its result is dropped.
void resolve_rows(const Machine& machine, Ticket& ticket, const Ticket* previous) {
  const StepInputs inputs = machine.inputs(ticket.parity);
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    ops::StepRow& row = inputs.rows[i];
    const bool is_fed = ticket.rows[i].is_fed();
    TicketRowResult& result = ticket.results[i];
    if (row.drafts_before() != 0) continue_drafts(inputs, *previous, row);
    int32_t* const tokens = inputs.tokens + row.first_token;
    int32_t* history = machine.history(row.sequence_slot) + row.first_position;
    if (row.depends_on != kernels::kNoDependency &&
        previous->results[row.depends_on].status != ops::RowStatus::kOk) {
      result.status = ops::RowStatus::kSkipped;
      if (is_fed) tokens[0] = 0;
      continue;
    }
    if (is_fed) tokens[0] = result.fed_token = history[0];
    std::memcpy(history, tokens, row.token_count * sizeof(int32_t));
  }
}

// Samples the late rows of a ticket, or the others.
void sample_rows(const Machine& machine, Ticket& ticket, bool are_late) {
  const uint32_t vocabulary = machine.model->config().vocabulary_size;
  const uint32_t top = machine.limits.max_top_logprobs;
  float* logits = machine.in_ticket<float>(ticket.parity, machine.layout.logits);
  int32_t* top_tokens = machine.in_ticket<int32_t>(ticket.parity, machine.layout.top_tokens);
  float* top_logprobs = machine.in_ticket<float>(ticket.parity, machine.layout.top_logprobs);
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const Row& row = ticket.rows[i];
    TicketRowResult& result = ticket.results[i];
    if (!row.is_sampled() || row.is_late() != are_late || row.is_held ||
        result.status != ops::RowStatus::kOk)
      continue;
    // Nothing that is sampled after a draft that does not hold would be used.
    if (row.is_draft() && ticket.results[i - 1].sample.token != row.draft_token) continue;
    const ops::StepRow& step = machine.inputs(ticket.parity).rows[i];
    const uint32_t position = step.first_position + step.token_count;
    int32_t* history = machine.history(step.sequence_slot);
    const uint64_t last = uint64_t{step.logits_first} + step.logits_count() - 1;
    result.sample = ops::sample(logits + last * vocabulary, vocabulary, row.sampling, history,
                                position, machine.scratch + machine.layout.runner,
                                top_tokens + i * top, top_logprobs + i * top);
    result.status = result.sample.status;
    if (result.status == ops::RowStatus::kOk) history[position] = result.sample.token;
  }
}

// Measures the times of the nodes of a step.
class NodeTimer : public NodeObserver {
 public:
  NodeTimer(StepProfile* profile, const ops::StepPlan& plan) : profile_(profile) {
    if (profile_ == nullptr) return;
    profile_->plan = plan;
    profile_->node_ns.assign(plan.nodes.size(), 0.0);
  }
  Status before(size_t) override {
    start_ = std::chrono::steady_clock::now();
    return {};
  }
  Status after(size_t node) override {
    profile_->node_ns[node] =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start_).count();
    return {};
  }

 private:
  StepProfile* const profile_;
  std::chrono::steady_clock::time_point start_;
};

// A separate thread computes one ticket after the other.
class HostRunner final : public Runner {
 public:
  explicit HostRunner(Machine machine)
      : machine_(std::move(machine)), thread_([this] { loop(); }) {}
  ~HostRunner() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    submitted_.notify_one();
    thread_.join();
  }

  Status submit(const std::shared_ptr<Ticket>& ticket) override {
    machine_.inputs(ticket->parity).write(*ticket);  // this half is no longer in use
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(ticket);
    }
    submitted_.notify_one();
    return {};
  }

  Status sample(Ticket& ticket) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ticket.has_late_samples = true;
    }
    submitted_.notify_one();
    return {};
  }

  bool wait(Ticket& ticket, int64_t timeout_ms) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_done = [&] { return ticket.done; };
    if (timeout_ms < 0) {
      finished_.wait(lock, is_done);
      return true;
    }
    return finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_done);
  }

  void pass(Ticket& last) override { wait(last, -1); }

  Status copy_pages(const std::vector<uint32_t>& pages, uint8_t* pinned, bool is_save,
                    Event done) override {
    const uint64_t bytes = 2 * machine_.pool.plane_bytes();
    for (const uint32_t page : pages)
      for (uint32_t layer = 0; layer < machine_.pool.layer_count; ++layer, pinned += bytes) {
        uint8_t* const own = machine_.pool.keys(layer, page);
        std::memcpy(is_save ? pinned : own, is_save ? own : pinned, bytes);
      }
    return machine_.memory->backend().event_record(done, {});
  }

  void execute(const Command& command) override {
    switch (command.kind) {
      case Command::Kind::kCopyPage:
        copy_page(machine_.pool, command.from, command.to);
        break;
      case Command::Kind::kPoisonPage:
        poison_page(machine_.pool, command.to);
        break;
      case Command::Kind::kCopyHistory:
        std::memcpy(machine_.history(command.to), machine_.history(command.from),
                    command.count * sizeof(int32_t));
        break;
      case Command::Kind::kWriteHistory:
        std::copy(command.tokens.begin(), command.tokens.end(), machine_.history(command.to));
        break;
    }
  }

  Status warm_up() override { return machine_.ops->warm_up(); }
  Status copy_logits(const Ticket& ticket, uint64_t first, uint64_t count, float* target) override {
    const uint64_t vocabulary = machine_.model->config().vocabulary_size;
    const float* logits = machine_.in_ticket<float>(ticket.parity, machine_.layout.logits);
    std::copy_n(logits + first * vocabulary, count * vocabulary, target);
    return {};
  }
  Status copy_hidden_state(const Ticket& ticket, size_t row, float* target) override {
    const uint64_t width = machine_.model->config().embedding_length;
    std::copy_n(
        machine_.in_ticket<float>(ticket.parity, machine_.layout.hidden_states) + row * width,
        width, target);
    return {};
  }
  Status copy_token_logprobs(const Ticket& ticket, uint64_t first, uint32_t count, uint32_t top,
                             const TokenLogprobs& target) override {
    const Layout& layout = machine_.layout;
    const uint64_t stride = machine_.limits.max_top_logprobs;
    const float* logprobs = machine_.in_ticket<float>(ticket.parity, layout.token_logprobs) + first;
    std::copy_n(logprobs, count, target.logprobs);
    for (uint64_t i = 0; i < count && top != 0; ++i) {
      const uint64_t from = (first + i) * stride;
      std::copy_n(machine_.in_ticket<int32_t>(ticket.parity, layout.token_top_tokens) + from, top,
                  target.top_tokens + i * top);
      std::copy_n(machine_.in_ticket<float>(ticket.parity, layout.token_top_logprobs) + from, top,
                  target.top_logprobs + i * top);
    }
    return {};
  }
  const int32_t* top_tokens(const Ticket& ticket) const override {
    return machine_.in_ticket<int32_t>(ticket.parity, machine_.layout.top_tokens);
  }
  const float* top_logprobs(const Ticket& ticket) const override {
    return machine_.in_ticket<float>(ticket.parity, machine_.layout.top_logprobs);
  }

 private:
  void loop() {
    std::shared_ptr<Ticket> previous;
    for (;;) {
      std::shared_ptr<Ticket> ticket;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        submitted_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        ticket = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        run(*ticket, previous.get());
      } catch (const std::bad_alloc&) {
        ticket->status = Status::error(WCUDA_OUT_OF_HOST_MEMORY, "a step ran out of host memory");
      } catch (const std::exception& failure) {
        ticket->status = Status::error(WCUDA_INTERNAL, "a step failed: %s", failure.what());
      }
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ticket->done = true;
      }
      finished_.notify_all();
      previous = std::move(ticket);
      run_deferred();
    }
  }

  void run(Ticket& ticket, const Ticket* previous) {
    auto start = std::chrono::steady_clock::now();
    for (const Command& command : ticket.commands) execute(command);
    if (ticket.follows_previous && previous && !previous->status.ok()) {
      ticket.status = previous->status;
      return;
    }
    resolve_rows(machine_, ticket, previous);

    const ops::Batch batch = machine_.batch(ticket.parity, ticket.shape);
    const ops::StepPlan plan = machine_.plan(ticket.shape);
    NodeTimer timer(ticket.profile.get(), plan);
    StepArgs step = machine_.step(ticket.parity, batch);
    std::vector<int32_t> statuses(ticket.rows.size(), kernels::kRowOk);
    step.row_statuses = statuses.data();
    ticket.status = forward(machine_.model->config(), machine_.model->weights(), *machine_.ops,
                            plan, step, ticket.profile != nullptr ? &timer : nullptr);
    for (size_t i = 0; i < statuses.size(); ++i)
      if (ticket.results[i].status == ops::RowStatus::kOk)
        ticket.results[i].status = static_cast<ops::RowStatus>(statuses[i]);
    if (ticket.status.ok()) sample_rows(machine_, ticket, false);
    std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
    if (ticket.status.ok() && ticket.late_count != 0 && wait_for_sample(ticket)) {
      start = std::chrono::steady_clock::now();
      sample_rows(machine_, ticket, true);
      time += std::chrono::steady_clock::now() - start;
    }
    ticket.device_ns = static_cast<uint64_t>(time.count());
  }

  // Returns false if the engine ends without a call of sample().
  bool wait_for_sample(const Ticket& ticket) {
    std::unique_lock<std::mutex> lock(mutex_);
    submitted_.wait(lock, [&] { return stop_ || ticket.has_late_samples; });
    return ticket.has_late_samples;
  }

  const Machine machine_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::condition_variable finished_;
  std::deque<std::shared_ptr<Ticket>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Runner> make_host_runner(const Machine& machine) {
  return std::make_unique<HostRunner>(machine);
}

}  // namespace wcuda::engine
