// Steps on a CUDA device.
//
// submit() writes the inputs of a step into pinned memory and queues their copy on a separate
// stream, so that it runs while the previous step computes. Then it queues the kernels: those that
// distribute the inputs, feed back tokens, update histories and plan attention (one kernel if
// possible); the forward pass; sampling, which writes its results into pinned memory.
//
// If each row has one token, the step is a graph that was captured for its shape class
// (docs/ARCHITECTURE.md). Rows that fill up a bucket have no tokens and do nothing. Steps with
// longer rows become graphs when their class occurs again, if graph_table.h has room; until then,
// and with more tokens, they are queued kernel by kernel.
//
// Rows that continue drafts of the previous step get their positions from a kernel before all
// others of the step, and outside its graph.
//
// sample() copies parameters and masks of late rows behind the inputs of their step, and queues one
// more kernel for them. Its outputs lie apart, because it writes one for every row.
#include "llm/engine/cuda_runner.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/backend/cuda_device.h"
#include "core/backend/cuda_graph.h"
#include "core/backend/owned.h"
#include "kernels/sampling/sample.h"
#include "kernels/sampling/token_logprobs.h"
#include "kernels/shared/arena.h"
#include "kernels/step/continue_drafts.h"
#include "kernels/step/step.h"
#include "llm/engine/device_order.h"
#include "llm/engine/graph_table.h"
#include "llm/engine/shared_prefix.h"
#include "llm/engine/step_shape.h"

namespace wcuda::engine {
namespace {

// A step can have one row with bias for the whole vocabulary, and this many entries for each row.
constexpr uint64_t kBiasEntriesPerRow = 512;

// The inputs that are copied to the device in each step, in the order of the segments.
enum Segment : uint32_t {
  kTokens,
  kPositions,
  kTokenRows,
  kRows,
  kPageTables,
  kLogitsIndices,
  kSampleRows,
  kBiasTokens,
  kBiasValues,
  kMasks,
  kFeatureTables,
  kScoredIndices,  // this and the next only in steps that have scored tokens
  kScored,
  kSegmentCount,
};
static_assert(kSegmentCount <= kernels::kInputSegmentsMax);

// Elements of the inputs of a step.
struct InputCounts {
  uint64_t tokens = 0, rows = 0, logits = 0, scored = 0;
  uint64_t table_rows = 0, table_pages = 0;      // page tables, and pages of each
  uint64_t feature_rows = 0, feature_pages = 0;  // likewise of the target
  uint64_t bias_entries = 0;
  uint64_t masks = 0, mask_words = 0;  // masks, and words of each
  uint64_t late_rows = 0;
};

// The inputs of a step in their block. Offsets are from its start.
struct PlacedInputs {
  StepInputs step{};
  kernels::SampleRow* sample_rows = nullptr;  // (rows)
  int32_t* bias_tokens = nullptr;             // (bias_entries)
  float* bias_values = nullptr;               // likewise
  uint32_t* masks = nullptr;                  // (masks, mask_stride)
  uint64_t mask_stride = 0;
  kernels::SampleRow* late_rows = nullptr;  // (late_rows) behind what the step itself reads
  uint64_t late_offset = 0;                 // of late_rows
  uint64_t late_masks_offset = 0;           // of masks of late rows, the last in the block
};

// Places the inputs of a step in `block`, and writes the header there. Over a null block it only
// measures: offsets are those in a block for the same counts.
PlacedInputs place_inputs(const InputCounts& counts, uint8_t* block) {
  Arena arena(block, 16);
  auto* const header = arena.take<kernels::InputHeader>(1);
  // Places rows of `length` elements, each at a multiple of 16 bytes, and returns the distance of
  // rows in elements.
  const auto place = [&](Segment segment, uint64_t row_count, uint64_t length, auto** rows) {
    using Element = std::remove_reference_t<decltype(**rows)>;
    const uint64_t row_bytes = length * sizeof(Element), pitch = align_up(row_bytes, 16);
    if (header != nullptr)
      header->segments[segment] = {static_cast<uint32_t>(row_count),
                                   static_cast<uint32_t>(row_bytes),
                                   static_cast<uint32_t>(arena.bytes()), 0};
    *rows = reinterpret_cast<Element*>(arena.take<uint8_t>(row_count * pitch));
    return pitch / sizeof(Element);
  };
  PlacedInputs inputs;
  StepInputs& step = inputs.step;
  place(kTokens, 1, counts.tokens, &step.tokens);
  place(kPositions, 1, counts.tokens, &step.positions);
  place(kTokenRows, 1, counts.tokens, &step.token_rows);
  place(kLogitsIndices, 1, counts.logits, &step.logits_indices);
  place(kRows, 1, counts.rows, &step.rows);
  place(kScoredIndices, 1, counts.scored, &step.scored_indices);
  place(kScored, 1, counts.scored, &step.scored);
  step.page_table_stride =
      place(kPageTables, counts.table_rows, counts.table_pages, &step.page_tables);
  step.feature_table_stride =
      place(kFeatureTables, counts.feature_rows, counts.feature_pages, &step.feature_tables);
  place(kSampleRows, 1, counts.rows, &inputs.sample_rows);
  place(kBiasTokens, 1, counts.bias_entries, &inputs.bias_tokens);
  place(kBiasValues, 1, counts.bias_entries, &inputs.bias_values);
  inputs.mask_stride = place(kMasks, counts.masks, counts.mask_words, &inputs.masks);
  inputs.late_offset = arena.bytes();
  inputs.late_rows = arena.take<kernels::SampleRow>(counts.late_rows);
  inputs.late_masks_offset = arena.bytes();
  return inputs;
}

struct Sizes {
  Sizes(const Limits& limits, const model::Config& config)
      : vocabulary(config.vocabulary_size),
        mask_words(static_cast<uint32_t>(ceil_div(config.vocabulary_size, 32))),
        bias_entries(config.vocabulary_size + kBiasEntriesPerRow * limits.max_batch_rows) {
    const uint64_t tokens = limits.max_batch_tokens, rows = limits.max_batch_rows;
    InputCounts most;
    most.tokens = tokens;
    most.rows = most.table_rows = most.feature_rows = most.masks = most.late_rows = rows;
    most.logits = limits.max_logits_rows;
    most.scored = limits.max_scored_tokens();
    most.table_pages = limits.pages_per_sequence();
    most.feature_pages = limits.target_sequence_pages;
    most.bias_entries = bias_entries;
    most.mask_words = mask_words;
    // Masks of late rows, which come last, need no room of their own: a row has one mask at most.
    input_bytes = align_up(place_inputs(most, nullptr).late_masks_offset, 256);
    // Device memory for the data that the ticket blocks do not have.
    Arena device;
    device_sample_rows = device.reserve({rows, sizeof(kernels::SampleRow)});
    device_bias_tokens = device.reserve({bias_entries, sizeof(int32_t)});
    device_bias_values = device.reserve({bias_entries, sizeof(float)});
    device_masks = device.reserve({rows, mask_words * sizeof(uint32_t)});
    device_inputs = device.reserve({2, input_bytes});
    device_statuses = device.reserve({2 * rows, sizeof(int32_t)});
    // This suffices for all devices. Where blocks keep a row's logits, the launcher needs less.
    device_sample = device.reserve(kernels::sample_scratch_bytes(static_cast<uint32_t>(rows),
                                                                 vocabulary, kPortableCapability));
    device_bytes = device.bytes();
    // Pinned memory of one ticket. The inputs come first.
    Arena pinned;
    pinned.reserve(input_bytes);
    outputs = pinned.reserve({rows, sizeof(kernels::SampleOutput)});
    late_outputs = pinned.reserve({rows, sizeof(kernels::SampleOutput)});
    fed_tokens = pinned.reserve({rows, sizeof(int32_t)});
    top_tokens = pinned.reserve({rows * limits.max_top_logprobs, sizeof(int32_t)});
    top_logprobs = pinned.reserve({rows * limits.max_top_logprobs, sizeof(float)});
    pinned_bytes = pinned.bytes();
  }

  static constexpr int32_t kPortableCapability = 80;
  uint32_t vocabulary;
  uint32_t mask_words;
  uint64_t bias_entries;
  uint64_t input_bytes;  // of one ticket, at most
  uint64_t device_sample_rows, device_bias_tokens, device_bias_values, device_masks, device_inputs,
      device_statuses, device_sample, device_bytes;
  uint64_t outputs, late_outputs, fed_tokens, top_tokens, top_logprobs, pinned_bytes;
};

// The shape for which a graph is captured.
struct Shape : ops::StepShape {
  uint32_t parity = 0;
  bool has_filters = false;
  bool has_raw_logprobs = false;  // a kernel after `sample` computes log probabilities
};

// Returns whether log probabilities are of other logits than a row samples from.
bool needs_raw_logprobs(const ops::Sampling& s) {
  return s.has_raw_logprobs && ops::changes_logits(s);
}

bool needs_filters(const ops::Sampling& s) {
  const bool filters = s.top_k != 0 || (s.top_p > 0.0f && s.top_p < 1.0f) || s.min_p > 0.0f ||
                       (s.typical_p > 0.0f && s.typical_p < 1.0f);
  return (s.top_logprobs > 0 && !needs_raw_logprobs(s)) || (s.temperature > 0.0f && filters);
}

// Sets which kernel computes the log probabilities of a row.
void write_logprobs(const ops::Sampling& sampling, kernels::SampleRow* row) {
  const bool is_raw = needs_raw_logprobs(sampling);
  row->has_raw_logprobs = is_raw ? 1 : 0;
  row->omits_logprob = sampling.omits_logprob;
  row->top_logprobs = is_raw ? 0 : sampling.top_logprobs;
  row->raw_top_logprobs = is_raw ? sampling.top_logprobs : 0;
}

class CudaRunner final : public Runner {
 public:
  explicit CudaRunner(const Machine& machine)
      : machine_(machine),
        backend_(machine.memory->backend()),
        sizes_(machine.limits, machine.model->config()),
        stream_(machine.ops->stream()) {}
  ~CudaRunner() override;
  Status prepare();

  Status submit(const std::shared_ptr<Ticket>& ticket) override;
  Status sample(Ticket& ticket) override;
  bool wait(Ticket& ticket, int64_t timeout_ms) override;
  void pass(Ticket&) override {}  // all work is on one stream
  void execute(const Command& command) override;
  Status copy_pages(const std::vector<uint32_t>& pages, uint8_t* pinned, bool is_save,
                    Event done) override;
  Status warm_up() override;
  Status copy_logits(const Ticket& ticket, uint64_t first, uint64_t count, float* target) override;
  Status copy_hidden_state(const Ticket& ticket, size_t row, float* target) override;
  Status copy_token_logprobs(const Ticket& ticket, uint64_t first, uint32_t count, uint32_t top,
                             const TokenLogprobs& target) override;
  const int32_t* top_tokens(const Ticket& ticket) const override {
    return pinned<int32_t>(ticket.parity, sizes_.top_tokens);
  }
  const float* top_logprobs(const Ticket& ticket) const override {
    return pinned<float>(ticket.parity, sizes_.top_logprobs);
  }

 private:
  // parity, rows, tokens, shortest and longest row, positions, logits, expanded heads, filters, raw
  // log probabilities, shared prefix, hidden states, drafts, features
  using GraphKey = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                              uint32_t, bool, bool, bool, bool, bool, bool>;
  struct CapturedStep {
    std::unique_ptr<CudaGraph> graph;
    bool has_persistent_layers = false;
  };

  template <class T>
  T* pinned(uint32_t parity, uint64_t offset) const {
    return reinterpret_cast<T*>(pinned_.data() + parity * sizes_.pinned_bytes + offset);
  }
  template <class T>
  T* on_device(uint64_t offset) const {
    return reinterpret_cast<T*>(machine_.scratch + machine_.layout.runner + offset);
  }
  uint8_t* device_inputs(uint32_t parity) const {
    return on_device<uint8_t>(sizes_.device_inputs + parity * sizes_.input_bytes);
  }
  int32_t* statuses(uint32_t parity) const {
    return on_device<int32_t>(sizes_.device_statuses) + parity * machine_.limits.max_batch_rows;
  }
  Status check(cudaError_t error, const char* call) const {
    return check_cuda(error, call, device_);
  }
  kernels::Launch launch(bool is_dependent) const;
  kernels::PagePool page_pool() const;

  Status check_bias(const Ticket& ticket) const;
  Shape shape_of(const Ticket& ticket) const;
  // Marks rows whose leading pages are worth reading once; returns whether there are any.
  bool mark_shared_prefixes(const ops::StepShape& shape, std::vector<Row>* rows) const;
  Status start_step(const Shape& shape, Ticket* ticket);
  // Queues the step kernel by kernel, with an event before the first node and after each node.
  Status profile_step(const Shape& shape, const Ticket& ticket);
  // Writes the inputs of a step into pinned memory and returns their bytes.
  uint64_t write_inputs(const Ticket& ticket, const Shape& shape);
  void write_sampling(const Ticket& ticket, const PlacedInputs& inputs);
  InputCounts count_inputs(const Ticket& ticket, const Shape& shape) const;
  // Writes the inputs of late rows behind those of their step.
  struct LateInputs {
    uint64_t end = 0;  // offset in the inputs; 0: all rows are held
    bool has_filters = false;
    bool has_raw_logprobs = false;
  };
  LateInputs write_late_inputs(const Ticket& ticket);
  Status queue_late_samples(const Ticket& ticket, const LateInputs& inputs);
  // Queues the copy of the inputs from `first` to `end`.
  Status queue_copy(uint32_t parity, uint64_t first, uint64_t end);
  Status run_command(const Command& command);
  Status queue_step(const Ticket& ticket, bool has_persistent_layers,
                    const std::function<Status()>& queue);
  Status queue_continue_drafts(const Ticket& ticket);
  Status queue_kernels(const Shape& shape, const ops::StepPlan& plan,
                       NodeObserver* observer = nullptr);
  // What all rows of a ticket have in common.
  kernels::SampleArgs sample_args(uint32_t parity) const;
  Status queue_sample(const kernels::SampleArgs& sample, bool has_raw_logprobs, bool is_dependent);
  kernels::InputScatterArgs input_scatter_args(const Shape& shape) const;
  // Returns the graph of a step, or null if it is queued kernel by kernel.
  Result<const CapturedStep*> find_graph(const Shape& shape, bool* captured);
  void take_results(Ticket& ticket);

  const Machine machine_;
  Backend& backend_;
  const Sizes sizes_;
  const Stream stream_;
  int device_ = 0;
  cudaStream_t native_stream_ = nullptr;
  vram::Buffer pinned_;  // two tickets
  OwnedStream input_stream_;
  OwnedEvent copied_[2], started_[2], ended_[2], late_started_[2], late_ended_[2];
  // Offsets of the parameters of late rows in a ticket's inputs, and of their masks.
  uint64_t late_rows_[2] = {}, late_masks_[2] = {};
  std::vector<OwnedEvent> profile_events_[2];
  Status last_status_;  // of the last step that was waited for
  GraphTable<GraphKey, CapturedStep> graphs_{kLongRowGraphsMax, kIdleGraphSteps};
  std::shared_ptr<DeviceOrder> order_;  // set if steps may have persistent layers
};

Status CudaRunner::prepare() {
  WCUDA_ASSIGN(device_, cuda_ordinal(backend_.caps().ordinal));
  native_stream_ = static_cast<cudaStream_t>(backend_.native_stream(stream_));
  WCUDA_CHECK(native_stream_ != nullptr);
  if (machine_.has_persistent_layers) order_ = DeviceOrder::of(backend_.caps().ordinal);
  WCUDA_ASSIGN(pinned_, machine_.memory->allocate_pinned(2 * sizes_.pinned_bytes, "step exchange"));
  // The stream has a high priority, so that the inputs of a step do not wait for the running step.
  WCUDA_TRY(input_stream_.take(backend_, backend_.stream_create(-1)));
  for (OwnedEvent* const events : {copied_, started_, ended_, late_started_, late_ended_})
    for (int i = 0; i < 2; ++i) WCUDA_TRY(events[i].take(backend_, backend_.event_create()));
  // Padding tokens compute with the contents of this memory, so it must be initialized.
  WCUDA_TRY(backend_.fill(machine_.scratch, machine_.layout.scratch_bytes, 0, 4, stream_));
  WCUDA_TRY(backend_.fill(machine_.kv, machine_.layout.kv_bytes, 0, 4, stream_));
  // The inputs of the first step are copied into this scratch memory, after the fill.
  WCUDA_TRY(backend_.event_record(copied_[0], stream_));
  return backend_.stream_wait(input_stream_, copied_[0]);
}

CudaRunner::~CudaRunner() {
  (void)backend_.synchronize(stream_);
  graphs_.clear();
  if (order_ != nullptr) order_->leave(this);
}

kernels::Launch CudaRunner::launch(bool is_dependent) const {
  kernels::Launch launch;
  launch.stream = native_stream_;
  launch.sm_count = backend_.caps().multiprocessor_count;
  launch.compute_capability = backend_.launch_capability();
  launch.is_dependent = is_dependent;
  return launch;
}

kernels::PagePool CudaRunner::page_pool() const {
  const ops::KvPool& pool = machine_.pool;
  return {pool.data, pool.layer_count, pool.page_count, pool.plane_bytes()};
}

// ---- submit

Status CudaRunner::check_bias(const Ticket& ticket) const {
  uint64_t entries = 0;
  for (const Row& row : ticket.rows) entries += row.bias_tokens.size();
  if (entries <= sizes_.bias_entries) return {};
  return Status::error(WCUDA_LIMIT_EXCEEDED,
                       "the rows of a step have %" PRIu64 " bias entries, at most %" PRIu64
                       " fit (the vocabulary and %" PRIu64 " a row)",
                       entries, sizes_.bias_entries, kBiasEntriesPerRow);
}

Shape CudaRunner::shape_of(const Ticket& ticket) const {
  Shape shape;
  shape.parity = ticket.parity;
  for (const Row& row : ticket.rows) {
    if (!row.is_sampled() || row.is_late()) continue;
    shape.has_filters |= needs_filters(row.sampling);
    shape.has_raw_logprobs |= needs_raw_logprobs(row.sampling);
  }
  static_cast<ops::StepShape&>(shape) =
      launched_shape(ticket.shape, machine_.limits, machine_.has_persistent_layers);
  shape.expanded_heads =
      ops::choose_expanded_heads(machine_.limits, machine_.ops->device(), ticket.shape.long_rows);
  return shape;
}

bool CudaRunner::mark_shared_prefixes(const ops::StepShape& shape, std::vector<Row>* rows) const {
  if (!ops::allows_shared_prefix(machine_.model->config(), machine_.limits, machine_.ops->device(),
                                 shape))
    return false;
  const std::vector<SharedPrefix> shared = find_shared_prefixes(prefix_rows(*rows));
  for (const SharedPrefix& prefix : shared) {
    for (uint32_t i = 0; i < prefix.row_count; ++i)
      (*rows)[prefix.row + i].step.shared_pages = static_cast<uint16_t>(prefix.pages);
    (*rows)[prefix.row].step.shared_rows = static_cast<uint16_t>(prefix.row_count);
  }
  return !shared.empty();
}

InputCounts CudaRunner::count_inputs(const Ticket& ticket, const Shape& shape) const {
  const ops::StepShape& used = ticket.shape;
  InputCounts counts;
  counts.tokens = shape.token_count;
  counts.rows = shape.row_count;
  counts.logits = shape.logits_count;
  counts.scored = used.scored_count;
  counts.table_rows = used.row_count;
  counts.table_pages = ceil_div(used.max_positions, ops::kPageTokens);
  for (const BorrowedPages& borrowed : ticket.feature_pages)
    counts.feature_pages = std::max<uint64_t>(counts.feature_pages, borrowed.list().size());
  counts.feature_rows = counts.feature_pages == 0 ? 0 : used.row_count;
  counts.mask_words = sizes_.mask_words;
  for (const Row& row : ticket.rows) {
    counts.bias_entries += row.bias_tokens.size();
    counts.masks += row.mask.empty() ? 0 : 1;
  }
  counts.late_rows = ticket.late_count == 0 ? 0 : ticket.rows.size();
  return counts;
}

uint64_t CudaRunner::write_inputs(const Ticket& ticket, const Shape& shape) {
  const InputCounts counts = count_inputs(ticket, shape);
  const PlacedInputs inputs = place_inputs(counts, pinned<uint8_t>(shape.parity, 0));
  late_rows_[shape.parity] = inputs.late_offset;
  late_masks_[shape.parity] = inputs.late_masks_offset;
  const ops::StepShape& used = ticket.shape;
  const StepInputs& step = inputs.step;
  std::fill(step.tokens + used.token_count, step.tokens + counts.tokens, 0);
  std::fill(step.positions + used.token_count, step.positions + counts.tokens, 0);
  std::fill(step.token_rows + used.token_count, step.token_rows + counts.tokens,
            kernels::kDeadToken);
  std::fill(step.logits_indices + used.logits_count, step.logits_indices + counts.logits, 0);
  std::fill(step.rows + used.row_count, step.rows + counts.rows, ops::StepRow());
  kernels::SampleRow none{};
  none.mask_row = kernels::kNoMask;
  std::fill_n(inputs.sample_rows, counts.rows, none);
  std::fill_n(inputs.late_rows, counts.late_rows, none);
  step.write(ticket);
  write_sampling(ticket, inputs);
  return inputs.late_offset;
}

void CudaRunner::write_sampling(const Ticket& ticket, const PlacedInputs& inputs) {
  int32_t* bias_tokens = inputs.bias_tokens;
  float* bias_values = inputs.bias_values;
  uint32_t bias_first = 0, bias_count = 0, mask_count = 0;
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const Row& row = ticket.rows[i];
    if (!row.is_sampled()) continue;
    kernels::SampleRow& out = row.is_late() ? inputs.late_rows[i] : inputs.sample_rows[i];
    out = static_cast<const kernels::SampleRow&>(row.sampling);
    write_logprobs(row.sampling, &out);
    out.is_sampled = 1;
    out.logits_row = row.step.logits_first + row.step.logits_count() - 1;
    out.sequence_slot = row.step.sequence_slot;
    out.position = row.end_position();
    if (!row.is_draft()) bias_first = std::exchange(bias_count, bias_count + out.bias_count);
    out.bias_first = bias_first;
    bias_tokens = std::copy(row.bias_tokens.begin(), row.bias_tokens.end(), bias_tokens);
    bias_values = std::copy(row.bias_values.begin(), row.bias_values.end(), bias_values);
    out.mask_row = row.mask.empty() ? kernels::kNoMask : mask_count++;
    if (!row.mask.empty())
      std::copy(row.mask.begin(), row.mask.end(), inputs.masks + out.mask_row * inputs.mask_stride);
  }
}

Status CudaRunner::submit(const std::shared_ptr<Ticket>& ticket) {
  WCUDA_TRY(check_bias(*ticket));
  Shape shape = shape_of(*ticket);
  shape.has_shared_prefix = mark_shared_prefixes(shape, &ticket->rows);
  const uint64_t input_bytes = write_inputs(*ticket, shape);
  while (!ticket->commands.empty()) {
    // Commands run in order. If submit fails, the ticket keeps those that have not run.
    for (size_t done = 0; done < ticket->commands.size(); ++done) {
      const Status status = run_command(ticket->commands[done]);
      if (status.ok()) continue;
      ticket->commands.erase(ticket->commands.begin(),
                             ticket->commands.begin() + static_cast<std::ptrdiff_t>(done));
      return status;
    }
    ticket->commands.clear();
  }
  Status started = queue_copy(shape.parity, 0, input_bytes);
  if (started.ok()) started = start_step(shape, ticket.get());
  // The next attempt overwrites memory that queued work may still read.
  if (!started.ok()) {
    (void)backend_.synchronize(input_stream_);
    (void)backend_.synchronize(stream_);
  }
  return started;
}

// The copy runs while the previous step computes. The ticket before that, which used the same half
// of the memory, has been waited for.
Status CudaRunner::queue_copy(uint32_t parity, uint64_t first, uint64_t end) {
  WCUDA_TRY(backend_.copy_to_device_async(
      device_inputs(parity) + first, pinned<uint8_t>(parity, first), end - first, input_stream_));
  WCUDA_TRY(backend_.event_record(copied_[parity], input_stream_));
  return backend_.stream_wait(stream_, copied_[parity]);
}

Status CudaRunner::start_step(const Shape& shape, Ticket* ticket) {
  if (ticket->profile != nullptr) return profile_step(shape, *ticket);
  WCUDA_ASSIGN(const CapturedStep* const step, find_graph(shape, &ticket->captured));
  if (step == nullptr)
    return queue_step(*ticket, false, [&] {
      return backend_.queue(stream_, [&] { return queue_kernels(shape, machine_.plan(shape)); });
    });
  return queue_step(*ticket, step->has_persistent_layers,
                    [&] { return step->graph->launch(stream_); });
}

Status CudaRunner::profile_step(const Shape& shape, const Ticket& ticket) {
  class Recorder : public NodeObserver {
   public:
    Recorder(Backend& backend, Stream stream, const std::vector<OwnedEvent>& events)
        : backend_(backend), stream_(stream), events_(events) {}
    Status before(size_t node) override {
      return node == 0 ? backend_.event_record(events_[0], stream_) : Status();
    }
    Status after(size_t node) override { return backend_.event_record(events_[node + 1], stream_); }

   private:
    Backend& backend_;
    const Stream stream_;
    const std::vector<OwnedEvent>& events_;
  };
  StepProfile* const profile = ticket.profile.get();
  profile->plan = machine_.plan(shape);
  std::vector<OwnedEvent>& events = profile_events_[shape.parity];
  while (events.size() <= profile->plan.nodes.size()) {
    OwnedEvent event;
    WCUDA_TRY(event.take(backend_, backend_.event_create()));
    events.push_back(std::move(event));
  }
  Recorder recorder(backend_, stream_, events);
  return backend_.queue(stream_, [&] {
    return queue_step(ticket, profile->plan.has_persistent_layers,
                      [&] { return queue_kernels(shape, profile->plan, &recorder); });
  });
}

Status CudaRunner::queue_step(const Ticket& ticket, bool has_persistent_layers,
                              const std::function<Status()>& queue) {
  const Event ended = ended_[ticket.parity];
  const auto timed = [&]() -> Status {
    WCUDA_TRY(backend_.event_record(started_[ticket.parity], stream_));
    if (ticket.continues_drafts) WCUDA_TRY(queue_continue_drafts(ticket));
    WCUDA_TRY(queue());
    return backend_.event_record(ended, stream_);
  };
  return has_persistent_layers ? order_->run(this, backend_, stream_, ended, timed) : timed();
}

Status CudaRunner::queue_continue_drafts(const Ticket& ticket) {
  const StepInputs previous = machine_.inputs(1 - ticket.parity);
  kernels::ContinueDraftsArgs args;
  args.block = device_inputs(ticket.parity);
  args.rows = kRows;
  args.positions = kPositions;
  args.sample_rows = kSampleRows;
  args.previous_rows = previous.rows;
  args.previous_statuses = statuses(1 - ticket.parity);
  args.previous_tokens = previous.tokens;
  args.history = machine_.history(0);
  args.history_stride = machine_.limits.history_stride();
  return backend_.queue(stream_, [&] {
    return check(kernels::continue_drafts(args, ticket.shape.row_count, launch(false)),
                 "continue_drafts");
  });
}

Result<const CudaRunner::CapturedStep*> CudaRunner::find_graph(const Shape& shape, bool* captured) {
  if (!may_be_graph(shape)) return nullptr;
  const auto key_of = [&shape](uint32_t parity) {
    return GraphKey{parity,
                    shape.row_count,
                    shape.token_count,
                    shape.min_row_tokens,
                    shape.max_row_tokens,
                    shape.max_positions,
                    shape.logits_count,
                    shape.expanded_heads,
                    shape.has_filters,
                    shape.has_raw_logprobs,
                    shape.has_shared_prefix,
                    shape.has_hidden_states,
                    shape.has_drafts,
                    shape.has_features};
  };
  std::unique_ptr<CapturedStep>* const place =
      graphs_.find(key_of(shape.parity), key_of(1 - shape.parity), shape.max_row_tokens != 1);
  if (place == nullptr) return nullptr;
  if (*place != nullptr) return place->get();
  *captured = true;
  const ops::StepPlan plan = machine_.plan(shape);
  auto step = std::make_unique<CapturedStep>();
  WCUDA_ASSIGN(step->graph,
               CudaGraph::capture(backend_, stream_, [&] { return queue_kernels(shape, plan); }));
  step->has_persistent_layers = plan.has_persistent_layers;
  *place = std::move(step);
  return place->get();
}

kernels::InputScatterArgs CudaRunner::input_scatter_args(const Shape& shape) const {
  const Layout& layout = machine_.layout;
  kernels::InputScatterArgs args;
  args.block = device_inputs(shape.parity);
  args.segment_count = shape.scored_count != 0 ? kSegmentCount : kScoredIndices;
  const auto in_ticket = [&](uint64_t offset) {
    return machine_.in_ticket<uint8_t>(shape.parity, offset);
  };
  args.targets[kTokens] = in_ticket(layout.tokens);
  args.targets[kPositions] = in_ticket(layout.positions);
  args.targets[kTokenRows] = in_ticket(layout.token_rows);
  args.targets[kRows] = in_ticket(layout.rows);
  args.targets[kPageTables] = in_ticket(layout.page_tables);
  args.target_strides[kPageTables] = machine_.limits.pages_per_sequence() * sizeof(uint32_t);
  args.targets[kLogitsIndices] = in_ticket(layout.logits_indices);
  args.targets[kSampleRows] = on_device<uint8_t>(sizes_.device_sample_rows);
  args.targets[kBiasTokens] = on_device<uint8_t>(sizes_.device_bias_tokens);
  args.targets[kBiasValues] = on_device<uint8_t>(sizes_.device_bias_values);
  args.targets[kMasks] = on_device<uint8_t>(sizes_.device_masks);
  args.target_strides[kMasks] = sizes_.mask_words * sizeof(uint32_t);
  args.targets[kFeatureTables] = in_ticket(layout.feature_tables);
  args.target_strides[kFeatureTables] = machine_.limits.target_sequence_pages * sizeof(uint32_t);
  args.targets[kScoredIndices] = in_ticket(layout.scored_indices);
  args.targets[kScored] = in_ticket(layout.scored);
  return args;
}

Status CudaRunner::queue_kernels(const Shape& shape, const ops::StepPlan& plan,
                                 NodeObserver* observer) {
  const uint32_t parity = shape.parity;
  const ops::Batch batch = machine_.batch(parity, shape);
  kernels::StepStart start;
  start.inputs = input_scatter_args(shape);
  start.tokens = kTokens;
  start.rows = kRows;
  start.page_tables = kPageTables;
  kernels::BeginStepArgs& begin = start.begin;
  begin.row_count = shape.row_count;
  begin.history_stride = machine_.limits.history_stride();
  begin.rows = batch.rows;
  begin.previous_statuses = statuses(1 - parity);
  begin.statuses = statuses(parity);
  begin.tokens = machine_.inputs(parity).tokens;
  begin.fed_tokens = pinned<int32_t>(parity, sizes_.fed_tokens);
  begin.history = machine_.history(0);
  StepArgs step = machine_.step(parity, batch);
  step.inputs = &start;
  step.row_statuses = statuses(parity);
  WCUDA_TRY(forward(machine_.model->config(), machine_.model->weights(), *machine_.ops, plan, step,
                    observer));

  kernels::SampleArgs sample = sample_args(parity);
  sample.row_count = shape.row_count;
  sample.has_filters = shape.has_filters;
  sample.rows = on_device<kernels::SampleRow>(sizes_.device_sample_rows);
  sample.logits_count = shape.logits_count;
  sample.bias_tokens = on_device<int32_t>(sizes_.device_bias_tokens);
  sample.bias_values = on_device<float>(sizes_.device_bias_values);
  sample.masks = on_device<uint32_t>(sizes_.device_masks);
  sample.outputs = pinned<kernels::SampleOutput>(parity, sizes_.outputs);
  return queue_sample(sample, shape.has_raw_logprobs, true);
}

Status CudaRunner::queue_sample(const kernels::SampleArgs& sample, bool has_raw_logprobs,
                                bool is_dependent) {
  WCUDA_TRY(check(kernels::sample(sample, launch(is_dependent)), "sample"));
  if (!has_raw_logprobs) return {};
  kernels::RawLogprobsArgs raw;
  raw.row_count = sample.row_count;
  raw.vocabulary = sample.vocabulary;
  raw.rows = sample.rows;
  raw.logits = sample.logits;
  raw.history = sample.history;
  raw.history_stride = sample.history_stride;
  raw.statuses = sample.statuses;
  raw.outputs = sample.outputs;
  raw.top_stride = sample.top_stride;
  raw.top_tokens = sample.top_tokens;
  raw.top_logprobs = sample.top_logprobs;
  return check(kernels::raw_logprobs(raw, launch(is_dependent)), "raw_logprobs");
}

kernels::SampleArgs CudaRunner::sample_args(uint32_t parity) const {
  kernels::SampleArgs sample;
  sample.vocabulary = sizes_.vocabulary;
  sample.logits = machine_.in_ticket<float>(parity, machine_.layout.logits);
  sample.history = machine_.history(0);
  sample.history_stride = machine_.limits.history_stride();
  sample.statuses = statuses(parity);
  sample.top_stride = machine_.limits.max_top_logprobs;
  sample.top_tokens = pinned<int32_t>(parity, sizes_.top_tokens);
  sample.top_logprobs = pinned<float>(parity, sizes_.top_logprobs);
  sample.scratch = on_device<uint8_t>(sizes_.device_sample);
  return sample;
}

// ---- late rows

Status CudaRunner::sample(Ticket& ticket) {
  const LateInputs inputs = write_late_inputs(ticket);
  if (inputs.end == 0) return {};
  const uint32_t parity = ticket.parity;
  Status queued = queue_copy(parity, late_rows_[parity], inputs.end);
  if (queued.ok()) queued = backend_.event_record(late_started_[parity], stream_);
  if (queued.ok())
    queued = backend_.queue(stream_, [&] { return queue_late_samples(ticket, inputs); });
  if (queued.ok()) queued = backend_.event_record(late_ended_[parity], stream_);
  ticket.has_late_samples = queued.ok();
  // The next attempt overwrites memory that queued work may still read.
  if (!queued.ok()) {
    (void)backend_.synchronize(input_stream_);
    (void)backend_.synchronize(stream_);
  }
  return queued;
}

CudaRunner::LateInputs CudaRunner::write_late_inputs(const Ticket& ticket) {
  auto* const rows = pinned<kernels::SampleRow>(ticket.parity, late_rows_[ticket.parity]);
  auto* masks = pinned<uint32_t>(ticket.parity, late_masks_[ticket.parity]);
  LateInputs inputs;
  uint32_t sampled_count = 0, mask_count = 0;
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const Row& row = ticket.rows[i];
    if (!row.is_late()) continue;
    rows[i].is_sampled = row.is_held ? 0 : 1;
    rows[i].mask_row = kernels::kNoMask;
    if (row.is_held) continue;
    ++sampled_count;
    inputs.has_filters |= needs_filters(row.sampling);
    inputs.has_raw_logprobs |= needs_raw_logprobs(row.sampling);
    write_logprobs(row.sampling, &rows[i]);
    if (row.mask.empty()) continue;
    rows[i].mask_row = mask_count++;
    masks = std::copy(row.mask.begin(), row.mask.end(), masks);
  }
  if (sampled_count != 0)
    inputs.end =
        late_masks_[ticket.parity] + uint64_t{mask_count} * sizes_.mask_words * sizeof(uint32_t);
  return inputs;
}

Status CudaRunner::queue_late_samples(const Ticket& ticket, const LateInputs& inputs) {
  const uint32_t parity = ticket.parity;
  const auto* const header = pinned<kernels::InputHeader>(parity, 0);
  const auto at = [&](uint64_t offset) { return device_inputs(parity) + offset; };
  kernels::SampleArgs sample = sample_args(parity);
  sample.row_count = ticket.shape.row_count;
  sample.has_filters = inputs.has_filters;
  auto* const rows = reinterpret_cast<kernels::SampleRow*>(at(late_rows_[parity]));
  if (ticket.continues_drafts)
    WCUDA_TRY(check(kernels::place_late_samples(machine_.inputs(parity).rows, rows,
                                                sample.row_count, launch(false)),
                    "place_late_samples"));
  sample.rows = rows;
  sample.logits_count = ticket.shape.logits_count;
  // Those on the device may already be of the next step.
  sample.bias_tokens = reinterpret_cast<const int32_t*>(at(header->segments[kBiasTokens].offset));
  sample.bias_values = reinterpret_cast<const float*>(at(header->segments[kBiasValues].offset));
  sample.masks = reinterpret_cast<const uint32_t*>(at(late_masks_[parity]));
  sample.outputs = pinned<kernels::SampleOutput>(parity, sizes_.late_outputs);
  return queue_sample(sample, inputs.has_raw_logprobs, false);
}

// ---- commands

Status CudaRunner::run_command(const Command& command) {
  return backend_.queue(stream_, [&]() -> Status {
    switch (command.kind) {
      case Command::Kind::kCopyPage:
        return check(kernels::copy_page(page_pool(), command.from, command.to, launch(false)),
                     "copy_page");
      case Command::Kind::kPoisonPage:
        return check(kernels::poison_page(page_pool(), command.to, launch(false)), "poison_page");
      case Command::Kind::kCopyHistory:
        return check(kernels::copy_history(machine_.history(0), machine_.limits.history_stride(),
                                           command.from, command.to, command.count, launch(false)),
                     "copy_history");
      case Command::Kind::kWriteHistory:
        return check(
            kernels::write_history(machine_.history(command.to), command.tokens.data(),
                                   static_cast<uint32_t>(command.tokens.size()), launch(false)),
            "write_history");
    }
    return {};
  });
}

// The command is queued, so later submissions run after it. It fails only if the device is lost,
// and then the next step fails too.
void CudaRunner::execute(const Command& command) { (void)run_command(command); }

Status CudaRunner::copy_pages(const std::vector<uint32_t>& pages, uint8_t* pinned, bool is_save,
                              Event done) {
  const uint64_t bytes = 2 * machine_.pool.plane_bytes();
  const auto queue = [&]() -> Status {
    for (const uint32_t page : pages)
      for (uint32_t layer = 0; layer < machine_.pool.layer_count; ++layer, pinned += bytes) {
        uint8_t* const own = machine_.pool.keys(layer, page);
        WCUDA_TRY(is_save ? backend_.copy_to_host_async(pinned, own, bytes, stream_)
                          : backend_.copy_to_device_async(own, pinned, bytes, stream_));
      }
    return backend_.event_record(done, stream_);
  };
  Status queued = queue();
  if (!queued.ok()) (void)backend_.synchronize(stream_);  // the memory may be used again
  return queued;
}

// ---- wait

bool CudaRunner::wait(Ticket& ticket, int64_t timeout_ms) {
  if (ticket.done) return true;
  const Event ended = ticket.has_late_samples ? late_ended_[ticket.parity] : ended_[ticket.parity];
  if (timeout_ms < 0) {
    ticket.status = backend_.event_synchronize(ended);
  } else {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    for (;;) {
      const Result<bool> is_done = backend_.event_done(ended);
      ticket.status = is_done.status();
      if (!is_done.ok() || *is_done) break;
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::yield();
    }
  }
  if (!ticket.status.ok()) (void)backend_.synchronize(stream_);  // another step will use its memory
  if (ticket.status.ok() && ticket.follows_previous) ticket.status = last_status_;
  last_status_ = ticket.status;
  if (ticket.status.ok()) take_results(ticket);
  ticket.done = true;
  return true;
}

void CudaRunner::take_results(Ticket& ticket) {
  const auto* const outputs = pinned<kernels::SampleOutput>(ticket.parity, sizes_.outputs);
  const auto* const late_outputs =
      pinned<kernels::SampleOutput>(ticket.parity, sizes_.late_outputs);
  const auto* const fed_tokens = pinned<int32_t>(ticket.parity, sizes_.fed_tokens);
  for (size_t i = 0; i < ticket.results.size(); ++i) {
    TicketRowResult& result = ticket.results[i];
    const bool is_late = ticket.rows[i].is_late() && ticket.has_late_samples;
    const kernels::SampleOutput& output = is_late ? late_outputs[i] : outputs[i];
    result.status = static_cast<ops::RowStatus>(output.status);
    if (ticket.rows[i].is_fed() && result.status != ops::RowStatus::kSkipped)
      result.fed_token = fed_tokens[i];
    result.sample = {result.status, output.token, output.logprob, output.top_count};
  }
  const auto add_time = [&](Event from, Event to) {
    const Result<double> elapsed = backend_.event_elapsed_ms(from, to);
    if (elapsed.ok()) ticket.device_ns += static_cast<uint64_t>(*elapsed * 1e6);
  };
  add_time(started_[ticket.parity], ended_[ticket.parity]);
  if (ticket.has_late_samples) add_time(late_started_[ticket.parity], late_ended_[ticket.parity]);
  if (ticket.profile == nullptr) return;
  const std::vector<OwnedEvent>& events = profile_events_[ticket.parity];
  for (size_t node = 0; node < ticket.profile->plan.nodes.size(); ++node) {
    const Result<double> ms = backend_.event_elapsed_ms(events[node], events[node + 1]);
    ticket.profile->node_ns.push_back(ms.ok() ? *ms * 1e6 : 0.0);
  }
}

Status CudaRunner::copy_logits(const Ticket& ticket, uint64_t first, uint64_t count,
                               float* target) {
  const float* const logits = machine_.in_ticket<float>(ticket.parity, machine_.layout.logits);
  return backend_.copy_to_host(target, logits + first * sizes_.vocabulary,
                               count * sizes_.vocabulary * sizeof(float));
}

Status CudaRunner::copy_hidden_state(const Ticket& ticket, size_t row, float* target) {
  const uint64_t width = machine_.model->config().embedding_length;
  const float* const states =
      machine_.in_ticket<float>(ticket.parity, machine_.layout.hidden_states);
  return backend_.copy_to_host(target, states + row * width, width * sizeof(float));
}

Status CudaRunner::copy_token_logprobs(const Ticket& ticket, uint64_t first, uint32_t count,
                                       uint32_t top, const TokenLogprobs& target) {
  const Layout& layout = machine_.layout;
  const uint64_t stride = machine_.limits.max_top_logprobs;
  WCUDA_TRY(backend_.copy_to_host(
      target.logprobs, machine_.in_ticket<float>(ticket.parity, layout.token_logprobs) + first,
      count * sizeof(float)));
  if (top == 0) return {};
  // Rows of the stride come to the host at once, and are packed there.
  std::vector<uint32_t> values(count * stride);
  const auto copy = [&](uint64_t offset, void* packed) -> Status {
    WCUDA_TRY(backend_.copy_to_host(
        values.data(), machine_.in_ticket<uint32_t>(ticket.parity, offset) + first * stride,
        values.size() * sizeof(uint32_t)));
    for (uint64_t i = 0; i < count; ++i)
      std::memcpy(static_cast<uint32_t*>(packed) + i * top, &values[i * stride],
                  top * sizeof(uint32_t));
    return {};
  };
  WCUDA_TRY(copy(layout.token_top_tokens, target.top_tokens));
  return copy(layout.token_top_logprobs, target.top_logprobs);
}

// ---- warm-up

Status CudaRunner::warm_up() {
  WCUDA_TRY(machine_.ops->warm_up());
  for (const ops::StepShape& known :
       warm_up_shapes(machine_.limits, machine_.has_persistent_layers)) {
    Shape shape;
    static_cast<ops::StepShape&>(shape) = known;
    for (shape.parity = 0; shape.parity < 2; ++shape.parity)
      for (const bool has_filters : {false, true}) {
        shape.has_filters = has_filters;
        bool captured = false;
        WCUDA_TRY(find_graph(shape, &captured).status());
      }
  }
  return {};
}

}  // namespace

uint64_t cuda_runner_bytes(const Limits& limits, const model::Config& config) {
  return Sizes(limits, config).device_bytes;
}

Result<std::unique_ptr<Runner>> make_cuda_runner(const Machine& machine) {
  auto runner = std::make_unique<CudaRunner>(machine);
  WCUDA_TRY(runner->prepare());
  return std::unique_ptr<Runner>(std::move(runner));
}

}  // namespace wcuda::engine
