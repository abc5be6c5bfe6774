// Page commands, the forward pass and sampling on the host.
#include "llm/engine/host_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>

#include "core/base/callback.h"

namespace wcuda::engine {
namespace {

void copy_page(const ops::KvPool& pool, uint32_t from, uint32_t to) {
  for (uint32_t layer = 0; layer < pool.layer_count; ++layer)
    std::memcpy(pool.keys(layer, to), pool.keys(layer, from), 2 * pool.plane_bytes());
}

// All ones is NaN in every KV type: as f16, as the f16 scale of a q8_0 block, and as e4m3.
void poison_page(const ops::KvPool& pool, uint32_t page) {
  for (uint32_t layer = 0; layer < pool.layer_count; ++layer)
    std::memset(pool.keys(layer, page), 0xff, 2 * pool.plane_bytes());
}

// Resolves the tokens of fed rows and appends every row's tokens to its sequence's history. A row
// whose predecessor did not end well is skipped: it computes like the others, and its result is
// dropped.
void resolve_rows(const Machine& machine, Ticket& ticket, const Ticket* previous) {
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const ops::StepRow& row = ticket.rows[i].step;
    const bool is_fed = ticket.rows[i].is_fed();
    TicketRowResult& result = ticket.results[i];
    int32_t* history = machine.history(row.sequence_slot) + row.first_position;
    if (row.depends_on != kernels::kNoDependency &&
        previous->results[row.depends_on].status != ops::RowStatus::kOk) {
      result.status = ops::RowStatus::kSkipped;
      if (is_fed) ticket.tokens[row.first_token] = 0;
      continue;
    }
    int32_t* tokens = &ticket.tokens[row.first_token];
    if (is_fed) tokens[0] = result.fed_token = history[0];
    std::memcpy(history, tokens, row.token_count * sizeof(int32_t));
  }
}

void sample_rows(const Machine& machine, Ticket& ticket) {
  const uint32_t vocabulary = machine.model->config().vocabulary_size;
  const uint32_t top = machine.limits.max_top_logprobs;
  float* logits = machine.in_ticket<float>(ticket.parity, machine.layout.logits);
  int32_t* top_tokens = machine.in_ticket<int32_t>(ticket.parity, machine.layout.top_tokens);
  float* top_logprobs = machine.in_ticket<float>(ticket.parity, machine.layout.top_logprobs);
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const Row& row = ticket.rows[i];
    TicketRowResult& result = ticket.results[i];
    if (!row.is_sampled() || result.status != ops::RowStatus::kOk) continue;
    const uint32_t position = row.end_position();
    int32_t* history = machine.history(row.step.sequence_slot);
    const uint64_t last = uint64_t{row.step.logits_first} + row.step.logits_count() - 1;
    result.sample = ops::sample(logits + last * vocabulary, vocabulary, row.sampling, history,
                                position, machine.scratch + machine.layout.runner,
                                top_tokens + i * top, top_logprobs + i * top);
    result.status = result.sample.status;
    if (result.status == ops::RowStatus::kOk) history[position] = result.sample.token;
  }
}

// Times of the nodes of a step.
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

}  // namespace

void HostRunner::execute(const Command& command) {
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
  }
}

HostRunner::HostRunner(const Machine& machine) : machine_(machine), thread_([this] { loop(); }) {}

HostRunner::~HostRunner() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  submitted_.notify_one();
  thread_.join();
}

Status HostRunner::submit(const std::shared_ptr<Ticket>& ticket) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(ticket);
  }
  submitted_.notify_one();
  return {};
}

bool HostRunner::wait(Ticket& ticket, int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_done = [&] { return ticket.done; };
  if (timeout_ms < 0) {
    finished_.wait(lock, is_done);
    return true;
  }
  return finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_done);
}

Status HostRunner::copy_logits(const Ticket& ticket, uint64_t first, uint64_t count,
                               float* target) {
  const uint64_t vocabulary = machine_.model->config().vocabulary_size;
  const float* logits = machine_.in_ticket<float>(ticket.parity, machine_.layout.logits);
  std::copy_n(logits + first * vocabulary, count * vocabulary, target);
  return {};
}

const int32_t* HostRunner::top_tokens(const Ticket& ticket) const {
  return machine_.in_ticket<int32_t>(ticket.parity, machine_.layout.top_tokens);
}

const float* HostRunner::top_logprobs(const Ticket& ticket) const {
  return machine_.in_ticket<float>(ticket.parity, machine_.layout.top_logprobs);
}

void HostRunner::loop() {
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

void HostRunner::run(Ticket& ticket, const Ticket* previous) {
  const auto start = std::chrono::steady_clock::now();
  for (const Command& command : ticket.commands) execute(command);
  if (ticket.follows_previous && previous && !previous->status.ok()) {
    ticket.status = previous->status;
    return;
  }
  resolve_rows(machine_, ticket, previous);

  const Layout& layout = machine_.layout;
  ops::Batch batch;
  batch.token_count = static_cast<uint32_t>(ticket.tokens.size());
  batch.row_count = static_cast<uint32_t>(ticket.rows.size());
  batch.page_table_stride = machine_.limits.pages_per_sequence();
  auto* const rows = machine_.in_ticket<ops::StepRow>(ticket.parity, layout.rows);
  auto* const tables = machine_.in_ticket<uint32_t>(ticket.parity, layout.page_tables);
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const Row& row = ticket.rows[i];
    batch.max_row_tokens = std::max(batch.max_row_tokens, row.step.token_count);
    batch.max_positions = std::max(batch.max_positions, row.end_position());
    rows[i] = row.step;
    std::copy_n(&ticket.pages[row.step.page_first], row.page_count(),
                tables + i * batch.page_table_stride);
  }
  const auto place = [&](const auto& source, uint64_t offset) {
    using T = typename std::decay_t<decltype(source)>::value_type;
    T* target = machine_.in_ticket<T>(ticket.parity, offset);
    std::copy(source.begin(), source.end(), target);
    return target;
  };
  batch.tokens = place(ticket.tokens, layout.tokens);
  batch.positions = place(ticket.positions, layout.positions);
  batch.token_rows = place(ticket.token_rows, layout.token_rows);
  batch.rows = rows;
  batch.page_tables = tables;

  ops::StepShape shape;
  shape.token_count = batch.token_count;
  shape.row_count = batch.row_count;
  shape.logits_count = static_cast<uint32_t>(ticket.logits_indices.size());
  StepArgs step;
  step.batch = &batch;
  step.pool = machine_.pool;
  step.activations = machine_.activations();
  step.logits_indices = place(ticket.logits_indices, layout.logits_indices);
  step.logits = machine_.in_ticket<float>(ticket.parity, layout.logits);
  const ops::StepPlan plan = machine_.plan(shape);
  NodeTimer timer(ticket.profile.get(), plan);
  ticket.status = forward(machine_.model->config(), machine_.model->weights(), *machine_.ops, plan,
                          step, ticket.profile != nullptr ? &timer : nullptr);
  if (ticket.status.ok()) sample_rows(machine_, ticket);
  ticket.device_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

}  // namespace wcuda::engine
