// Creates engines, and creates, changes and destroys their sequences.
#include "llm/engine/engine.h"

#include <algorithm>
#include <cinttypes>
#include <new>

namespace wcuda::engine {

namespace {

// A draft head and its target belong together, and its engine with one that keeps its features.
Status check_peers(const model::Model& model, const Peers& peers) {
  if (peers.draft_head != nullptr && peers.draft_head->config().draft_head.exists() &&
      peers.draft_head->target().get() != &model)
    return invalid_argument("engine option draft_head was loaded for another target model");
  const model::DraftHead& head = model.config().draft_head;
  if (!head.exists()) return {};
  if (peers.target == nullptr)
    return invalid_argument("the engine of a draft head needs the option target");
  const Limits& kept = peers.target->limits();
  if (&peers.target->model() != model.target().get())
    return invalid_argument("engine option target runs another model than the draft head's target");
  if (!kept.keeps_features ||
      !std::equal(kept.feature_layers, kept.feature_layers + model::kFeatureLayers,
                  head.target_layers))
    return invalid_argument("engine option target does not keep the features of this draft head");
  return {};
}

kernels::FeaturePages feature_pages(const Machine& machine) {
  return {machine.pool.data, machine.pool.page_count, machine.model->config().layer_count,
          machine.layout.page_layer_bytes, machine.limits.kept_feature_width};
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(std::shared_ptr<model::Model> model,
                                               const wcuda_engine_options& options,
                                               std::unique_ptr<ops::Ops> ops, Peers peers) {
  WCUDA_TRY(check_peers(*model, peers));
  std::shared_ptr<Engine> engine(new Engine());
  Machine& machine = engine->machine_;
  machine.memory = model->memory();
  const std::shared_ptr<Backend>& backend = machine.memory->shared_backend();
  const model::Config& config = model->config();
  if (!ops) {
    WCUDA_ASSIGN(ops, ops::make_ops(backend));
  }
  machine.ops = std::move(ops);
  WCUDA_ASSIGN(const Plan plan,
               plan_engine(*backend, *machine.ops, config, model->weights(), options, peers));
  machine.limits = plan.limits;
  machine.layout = plan.layout;
  machine.has_persistent_layers = plan.has_persistent_layers;
  const Layout& layout = machine.layout;
  WCUDA_ASSIGN(engine->kv_, machine.memory->allocate(layout.kv_bytes, WCUDA_PURPOSE_KV, "kv"));
  WCUDA_ASSIGN(engine->scratch_,
               machine.memory->allocate(layout.scratch_bytes, WCUDA_PURPOSE_SCRATCH, "scratch"));
  machine.model = std::move(model);
  machine.kv = static_cast<uint8_t*>(engine->kv_.data());
  machine.scratch = static_cast<uint8_t*>(engine->scratch_.data());
  WCUDA_TRY(machine.ops->prepare(machine.limits, machine.scratch + layout.ops));
  WCUDA_TRY(machine.find_gate_norms());

  ops::KvPool& pool = machine.pool;
  pool.data = machine.kv + layout.pages;
  pool.format = machine.limits.kv_type;
  pool.layer_count = layout.pool_layer_count;
  pool.page_count = machine.limits.page_count;
  pool.head_count = config.kv_head_count;
  pool.head_length = config.head_length;
  pool.row_bytes = layout.kv_row_bytes;
  if (machine.limits.keeps_features) machine.kept_features = feature_pages(machine);
  if (peers.target != nullptr) {
    machine.target_features = feature_pages(peers.target->machine_);
    WCUDA_TRY(engine->features_done_.take(*backend, backend->event_create()));
    engine->target_ = std::move(peers.target);
  }

  engine->pages_ = PagePool(machine.limits.page_count);
  engine->live_.resize(machine.limits.max_sequences);
  for (uint32_t slot = machine.limits.max_sequences; slot-- > 0;)
    engine->free_slots_.push_back(slot);
  WCUDA_ASSIGN(engine->runner_, make_runner(machine));
  if (machine.limits.poison_free_pages)
    for (uint32_t page = 0; page < machine.limits.page_count; ++page) engine->poison_page(page);
  return engine;
}

Engine::~Engine() {
  runner_.reset();  // finishes the steps in flight
  for (const auto& ticket : in_flight_) ticket->feature_pages.clear();
}

Info Engine::info() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Info info;
  info.limits = machine_.limits;
  info.kv_bytes = machine_.layout.kv_bytes;
  info.scratch_bytes = machine_.layout.scratch_bytes;
  info.sequence_count = static_cast<uint32_t>(live_.size() - free_slots_.size());
  info.steps_in_flight = static_cast<uint32_t>(in_flight_.size());
  info.free_page_count = pages_.free_count();
  info.cached_page_count = pages_.cached_count();
  info.token_bytes = machine_.layout.page_bytes / ops::kPageTokens;
  info.has_persistent_layers = machine_.has_persistent_layers;
  return info;
}

// Waits for the steps in flight. Their outputs are not in the scratch memory that this overwrites.
// A step whose late rows are not sampled would never end.
Status Engine::warm_up() {
  std::deque<std::shared_ptr<Ticket>> running;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    running = in_flight_;
    for (const auto& ticket : running)
      if (ticket->awaits_sampling)
        return Status::error(WCUDA_INVALID_STATE,
                             "the late rows of ticket %" PRIu64 " are not sampled", ticket->number);
  }
  for (const auto& ticket : running) runner_->wait(*ticket, -1);
  return runner_->warm_up();
}

Status Engine::set_profiling(bool is_on) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!in_flight_.empty())
    return Status::error(WCUDA_INVALID_STATE, "%zu steps are in flight", in_flight_.size());
  is_profiling_ = is_on;
  profile_.reset();
  return {};
}

Result<Engine::Profile> Engine::profile() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (profile_ == nullptr) return Status::error(WCUDA_INVALID_STATE, "no step has been profiled");
  Profile profile;
  profile.report.plan = profile_->plan;
  profile.report.rates = device_rates(machine_.memory->backend().caps(), machine_.ops->device());
  for (const ops::Node& node : profile_->plan.nodes)
    profile.report.costs.push_back(
        ops::node_cost(config(), machine_.model->weights(), profile_->plan, node, profile_->shape));
  profile.node_ns = profile_->node_ns;
  return profile;
}

Result<std::shared_ptr<Sequence>> Engine::create_sequence() {
  WCUDA_TRY(machine_.memory->backend().fault());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_slots_.empty())
    return Status::error(WCUDA_LIMIT_EXCEEDED, "all %u sequences of the engine are live",
                         machine_.limits.max_sequences);
  auto sequence = std::make_shared<Sequence>();
  sequence->slot = free_slots_.back();
  live_[sequence->slot] = sequence;
  free_slots_.pop_back();
  return sequence;
}

Result<std::shared_ptr<Sequence>> Engine::fork(const std::shared_ptr<Sequence>& source) {
  WCUDA_TRY(machine_.memory->backend().fault());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!source->alive) return Status::error(WCUDA_INVALID_HANDLE, "the sequence was destroyed");
  WCUDA_TRY(check_sampled(*source));
  if (free_slots_.empty())
    return Status::error(WCUDA_LIMIT_EXCEEDED, "all %u sequences of the engine are live",
                         machine_.limits.max_sequences);
  auto fork = std::make_shared<Sequence>(*source);
  fork->slot = free_slots_.back();
  fork->state_length = 0;
  const uint32_t count = source->length() + (source->can_feed ? 1 : 0);
  if (count > 0) enqueue({Command::Kind::kCopyHistory, source->slot, fork->slot, count, {}});
  for (uint32_t page : fork->pages) pages_.share(page);
  live_[fork->slot] = fork;
  free_slots_.pop_back();
  return fork;
}

Status Engine::truncate(Sequence& sequence, uint32_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!sequence.alive) return Status::error(WCUDA_INVALID_HANDLE, "the sequence was destroyed");
  if (length > sequence.length())
    return Status::error(WCUDA_OUT_OF_RANGE, "cannot truncate a sequence of %u tokens to %u",
                         sequence.length(), length);
  if (length < sequence.length()) shorten(sequence, length);
  return {};
}

void Engine::destroy(Sequence& sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!sequence.alive) return;
  shorten(sequence, 0);
  sequence.alive = false;
  free_slots_.push_back(sequence.slot);
  live_[sequence.slot].reset();
}

uint32_t Engine::length(const Sequence& sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sequence.length();
}

Status Engine::copy_tokens(const Sequence& sequence, uint32_t first, uint32_t count,
                           int32_t* target) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (uint64_t{first} + count > sequence.length())
    return Status::error(WCUDA_OUT_OF_RANGE, "tokens %u to %" PRIu64 " of a sequence of %u", first,
                         uint64_t{first} + count, sequence.length());
  if (uint64_t{first} + count > sequence.verified_length())
    return Status::error(WCUDA_INVALID_STATE,
                         "the tokens from %u on depend on drafts of a step in flight",
                         sequence.verified_length());
  const auto begin = sequence.tokens.begin() + first;
  const auto unknown = std::find(begin, begin + count, kUnknownToken);
  if (unknown != begin + count)
    return Status::error(WCUDA_INVALID_STATE,
                         "token %lld is still being sampled by a step in flight",
                         static_cast<long long>(unknown - sequence.tokens.begin()));
  std::copy(begin, begin + count, target);
  return {};
}

// Drops the tokens from position `length` on, with their pages. The caller has checked the range.
void Engine::shorten(Sequence& sequence, uint32_t length) {
  sequence.tokens.resize(length);
  sequence.can_feed = false;
  sequence.sampled = kUnknownToken;
  if (sequence.state_length > length) sequence.state_length = 0;
  trim_pages(sequence);
  auto& pending = sequence.pending;
  pending.erase(std::remove_if(pending.begin(), pending.end(),
                               [&](const PendingRow& row) { return row.first_position >= length; }),
                pending.end());
  for (PendingRow& row : pending)
    if (row.drafted_from >= length) row.drafted_from = kNoDrafts;
}

// Releases the pages that a sequence does not need for its length.
void Engine::trim_pages(Sequence& sequence) {
  const size_t keep = ceil_div(sequence.length(), ops::kPageTokens);
  while (sequence.pages.size() > keep) {
    release_page(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

Result<BorrowedPages> Engine::lend_features(const Sequence& sequence, uint32_t end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!sequence.alive) return Status::error(WCUDA_INVALID_HANDLE, "the sequence was destroyed");
  if (end > sequence.length())
    return Status::error(WCUDA_OUT_OF_RANGE, "features of %u tokens of a sequence of %u", end,
                         sequence.length());
  for (const PendingRow& row : sequence.pending)
    if (row.first_position < end)
      return Status::error(WCUDA_INVALID_STATE,
                           "the step that computes the features from position %u on is in flight",
                           row.first_position);
  std::vector<uint32_t> pages(
      sequence.pages.begin(),
      sequence.pages.begin() + static_cast<std::ptrdiff_t>(ceil_div(end, ops::kPageTokens)));
  for (const uint32_t page : pages) pages_.share(page);
  return BorrowedPages(this, std::move(pages));
}

// Called by a destructor. Without host memory a page that nothing else has is not poisoned.
void Engine::return_features(const std::vector<uint32_t>& pages) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const uint32_t page : pages) {
    if (!pages_.release(page)) continue;
    try {
      poison_page(page);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is not poisoned
    }
  }
}

BorrowedPages::~BorrowedPages() {
  if (owner_ != nullptr) owner_->return_features(pages_);
}

Status Engine::record_features(Event event) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return machine_.memory->backend().event_record(event, stream());
}

uint32_t Engine::take_page() {
  if (pages_.free_count() == pages_.cached_count()) poison_page(pages_.evict());
  return pages_.take();
}

void Engine::release_page(uint32_t page) {
  if (pages_.release(page)) poison_page(page);
}

void Engine::poison_page(uint32_t page) {
  if (machine_.limits.poison_free_pages) enqueue({Command::Kind::kPoisonPage, 0, page, 0, {}});
}

// Commands run in order, after the steps in flight and before the rows of the next step.
void Engine::enqueue(Command command) {
  if (in_flight_.empty() && commands_.empty())
    runner_->execute(command);
  else
    commands_.push_back(std::move(command));
}

}  // namespace wcuda::engine
