// Sections 11 and 12 of the header: engines, sequences, steps.
#include "llm/engine/engine.h"

#include <algorithm>
#include <optional>

#include "api/base/buffer.h"
#include "api/base/elements.h"
#include "api/base/stream.h"
#include "api/llm/handles.h"
#include "api/llm/step_nodes.h"
#include "worker_cuda/llm.h"

using namespace wcuda;
using namespace wcuda::api;

namespace wcuda::api {

struct SequenceObject {
  std::shared_ptr<EngineObject> owner;
  std::shared_ptr<engine::Sequence> sequence;
};

}  // namespace wcuda::api

template <>
struct wcuda::api::HandleOf<wcuda_sequence> : HandleTo<Kind::kSequence, SequenceObject> {};

namespace {

// A sequence whose engine the call uses alone.
struct UsedSequence {
  std::shared_ptr<SequenceObject> object;
  ExclusiveUse use;
  engine::Engine& engine() const { return *object->owner->engine; }
};
Result<UsedSequence> use_sequence(wcuda_sequence handle) {
  WCUDA_ASSIGN(auto object, resolve(handle, "sequence"));
  WCUDA_ASSIGN(auto alone, ExclusiveUse::acquire(object->owner->exclusive, "engine"));
  return UsedSequence{std::move(object), std::move(alone)};
}

// Creates the handle of a new sequence; if that fails, destroys the sequence.
Status insert_sequence(const std::shared_ptr<EngineObject>& owner,
                       const std::shared_ptr<engine::Sequence>& sequence, wcuda_sequence* handle) {
  Status inserted =
      insert(std::make_shared<SequenceObject>(SequenceObject{owner, sequence}), handle);
  if (!inserted.ok()) owner->engine->destroy(*sequence);
  return inserted;
}

Status check_mask(const uint32_t* mask, uint64_t mask_words, uint32_t vocabulary,
                  uint32_t mask_count = 1) {
  const uint64_t needed = ceil_div(vocabulary, 32) * mask_count;
  if (!mask || mask_words == needed) return {};
  return invalid_argument("mask_words is %llu, %u masks of a vocabulary of %u need %llu",
                          static_cast<unsigned long long>(mask_words), mask_count, vocabulary,
                          static_cast<unsigned long long>(needed));
}

// The pinned memory and the event of a copy of a sequence.
struct UsedCopy {
  vram::View pinned;  // up to its end
  std::shared_ptr<vram::Buffer> memory;
  std::shared_ptr<EventObject> done;
};
Result<UsedCopy> use_copy(const engine::Engine& engine, wcuda_pinned pinned, uint64_t offset,
                          wcuda_event done) {
  UsedCopy copy;
  WCUDA_ASSIGN(copy.memory, resolve(pinned, "pinned"));
  WCUDA_ASSIGN(copy.done, resolve(done, "done"));
  if (&copy.memory->memory() != engine.memory().get() || copy.done->memory != engine.memory())
    return invalid_argument("the sequence, pinned and done are of different contexts");
  const uint64_t bytes = copy.memory->bytes() - std::min(offset, copy.memory->bytes());
  WCUDA_ASSIGN(copy.pinned, use_pinned(*copy.memory, offset, bytes, engine.stream()));
  return copy;
}

Status read_sampling(const wcuda_sampling* pointer, uint32_t vocabulary, uint32_t mask_count,
                     ops::Sampling* sampling) {
  if (!pointer) return {};
  WCUDA_ASSIGN(const wcuda_sampling given, read_struct(pointer, "sampling"));
  WCUDA_TRY(check_flags(given.flags, WCUDA_SAMPLING_RAW_LOGPROBS | WCUDA_SAMPLING_NO_LOGPROB,
                        "sampling flags"));
  sampling->has_raw_logprobs = (given.flags & WCUDA_SAMPLING_RAW_LOGPROBS) != 0 ? 1 : 0;
  sampling->omits_logprob = (given.flags & WCUDA_SAMPLING_NO_LOGPROB) != 0 ? 1 : 0;
  sampling->temperature = given.temperature;
  sampling->top_k = given.top_k;
  sampling->top_p = given.top_p;
  sampling->min_p = given.min_p;
  sampling->typical_p = given.typical_p;
  sampling->repetition_penalty = given.repetition_penalty;
  sampling->frequency_penalty = given.frequency_penalty;
  sampling->presence_penalty = given.presence_penalty;
  sampling->penalty_last_n = given.penalty_last_n;
  sampling->penalty_from = given.penalty_from;
  sampling->seed = given.seed;
  sampling->top_logprobs = given.top_logprobs;
  if (given.bias_count > vocabulary)
    return invalid_argument("bias_count is %llu, the vocabulary has %u",
                            static_cast<unsigned long long>(given.bias_count), vocabulary);
  if (given.bias_count > 0) {
    WCUDA_TRY(check_not_null(given.bias_tokens, "bias_tokens"));
    WCUDA_TRY(check_not_null(given.bias_values, "bias_values"));
  }
  sampling->bias_count = static_cast<uint32_t>(given.bias_count);
  sampling->bias_tokens = given.bias_tokens;
  sampling->bias_values = given.bias_values;
  WCUDA_TRY(check_mask(given.mask, given.mask_words, vocabulary, mask_count));
  sampling->mask = given.mask;
  return {};
}

static_assert(kernels::kRowFeedSampled == WCUDA_ROW_FEED_SAMPLED &&
              kernels::kRowSample == WCUDA_ROW_SAMPLE &&
              kernels::kRowLogitsLast == WCUDA_ROW_LOGITS_LAST &&
              kernels::kRowLogitsAll == WCUDA_ROW_LOGITS_ALL &&
              kernels::kRowSampleLate == WCUDA_ROW_SAMPLE_LATE &&
              kernels::kRowHiddenLast == WCUDA_ROW_HIDDEN_LAST &&
              kernels::kRowHiddenFirst == WCUDA_ROW_HIDDEN_FIRST &&
              kernels::kRowHiddenSum == WCUDA_ROW_HIDDEN_SUM &&
              kernels::kRowTokenLogprobs == WCUDA_ROW_TOKEN_LOGPROBS);

Status read_drafts(const wcuda_row& given, uint32_t index, uint32_t vocabulary, engine::Row* row) {
  if (given.draft_count > WCUDA_ROW_DRAFT_TOKENS_MAX)
    return Status::error(WCUDA_LIMIT_EXCEEDED, "row %u: %u draft tokens, at most %u are possible",
                         index, given.draft_count, WCUDA_ROW_DRAFT_TOKENS_MAX);
  if (given.stop_count > vocabulary)
    return invalid_argument("row %u: stop_count is %u, the vocabulary has %u", index,
                            given.stop_count, vocabulary);
  if (given.stop_count > 0) WCUDA_TRY(check_not_null(given.stop_tokens, "row.stop_tokens"));
  if (given.draft_count == 0) return {};
  WCUDA_TRY(check_not_null(given.draft_tokens, "row.draft_tokens"));
  constexpr uint32_t kExcluded =
      WCUDA_ROW_SAMPLE_LATE | kernels::kRowHidden | WCUDA_ROW_TOKEN_LOGPROBS;
  if (!row->is_sampled() || (given.flags & kExcluded) != 0)
    return invalid_argument(
        "row %u: draft tokens need WCUDA_ROW_SAMPLE, without WCUDA_ROW_SAMPLE_LATE, hidden states "
        "and WCUDA_ROW_TOKEN_LOGPROBS",
        index);
  row->drafts = given.draft_tokens;
  row->draft_count = given.draft_count;
  row->stop_tokens.assign(given.stop_tokens, given.stop_tokens + given.stop_count);
  return {};
}

Status read_row(const EngineObject& owner, const wcuda_row& given, uint32_t index,
                engine::Row* row) {
  constexpr uint32_t kKnownFlags =
      WCUDA_ROW_FEED_SAMPLED | WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST | WCUDA_ROW_LOGITS_ALL |
      WCUDA_ROW_SAMPLE_LATE | kernels::kRowHidden | WCUDA_ROW_TOKEN_LOGPROBS;
  WCUDA_TRY(check_flags(given.flags, kKnownFlags, "row flags"));
  const uint32_t hidden = given.flags & kernels::kRowHidden;
  if ((hidden & (hidden - 1)) != 0)
    return invalid_argument("row %u: WCUDA_ROW_HIDDEN_LAST, _FIRST and _SUM exclude each other",
                            index);
  WCUDA_ASSIGN(const auto object, resolve(given.sequence, "row.sequence"));
  if (object->owner.get() != &owner)
    return Status::error(WCUDA_INVALID_HANDLE, "row %u: the sequence is of another engine", index);
  row->sequence = object->sequence;
  if (given.features.id != 0) {
    WCUDA_ASSIGN(const auto features, resolve(given.features, "row.features"));
    if (features->owner->engine.get() != owner.engine->target())
      return Status::error(WCUDA_INVALID_HANDLE,
                           "row %u: row.features is no sequence of the engine's target", index);
    row->features = features->sequence;
  }
  row->tokens = given.tokens;
  row->step.flags = given.flags;
  row->step.token_count = given.token_count;
  if (row->is_fed() && (given.tokens || given.token_count != 1))
    return invalid_argument(
        "row %u: a row that feeds the sampled token has tokens NULL and token_count 1, not %u",
        index, given.token_count);
  if (!row->is_fed() && (!given.tokens || given.token_count == 0))
    return invalid_argument("row %u has no tokens", index);
  if ((given.flags & WCUDA_ROW_TOKEN_LOGPROBS) != 0) {
    if (row->is_fed())
      return invalid_argument("row %u: WCUDA_ROW_TOKEN_LOGPROBS excludes WCUDA_ROW_FEED_SAMPLED",
                              index);
    row->next_token = given.next_token;
    row->token_top = given.token_top_logprobs;
  }
  if (!row->is_sampled() && given.sampling)
    return invalid_argument("row %u has sampling but not WCUDA_ROW_SAMPLE", index);
  if (!row->is_sampled() && row->is_late())
    return invalid_argument("row %u has WCUDA_ROW_SAMPLE_LATE but not WCUDA_ROW_SAMPLE", index);
  WCUDA_TRY(read_drafts(given, index, owner.engine->config().vocabulary_size, row));
  WCUDA_TRY(read_sampling(given.sampling, owner.engine->config().vocabulary_size,
                          1 + row->draft_count, &row->sampling));
  if (row->is_late() && row->sampling.mask)
    return invalid_argument("row %u is late: wcuda_step_sample takes its mask", index);
  return {};
}

}  // namespace

wcuda_status wcuda_engine_create(wcuda_model model, const wcuda_engine_options* options,
                                 wcuda_engine* engine, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(engine, "engine"));
    WCUDA_ASSIGN(const auto loaded, resolve(model, "model"));
    WCUDA_ASSIGN(const auto given, read_struct_or(kEngineDefaults, options, "options"));
    WCUDA_ASSIGN(auto peers, resolve_peers(given));
    const auto object = std::make_shared<EngineObject>();
    WCUDA_ASSIGN(object->engine, engine::Engine::create(loaded, given, nullptr, std::move(peers)));
    if (given.target.id != 0) {
      WCUDA_ASSIGN(object->target, resolve(given.target, "options->target"));
    }
    return insert(object, engine);
  });
}

void wcuda_engine_destroy(wcuda_engine engine) {
  guarded_destroy("wcuda_engine_destroy", engine.id, [](uint64_t id) -> Status {
    WCUDA_ASSIGN(const auto object, resolve<EngineObject>(Kind::kEngine, id, "engine"));
    WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(object->exclusive, "engine"));
    remove(Kind::kEngine, id);
    return object->engine->drain();
  });
}

wcuda_status wcuda_engine_info_get(wcuda_engine engine, wcuda_engine_info* info,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(info, "info"));
    WCUDA_ASSIGN(const auto object, resolve(engine, "engine"));
    const engine::Info found = object->engine->info();
    const engine::Limits& limits = found.limits;
    wcuda_engine_info out = WCUDA_ENGINE_INFO_INIT;
    out.kv_type = static_cast<int32_t>(limits.kv_type);
    out.flags = (limits.batch_invariant ? WCUDA_ENGINE_BATCH_INVARIANT : 0) |
                (limits.poison_free_pages ? WCUDA_ENGINE_POISON_FREE_PAGES : 0) |
                (limits.has_hidden_states ? WCUDA_ENGINE_HIDDEN_STATES : 0) |
                (limits.has_token_logprobs ? WCUDA_ENGINE_TOKEN_LOGPROBS : 0) |
                (found.has_persistent_layers ? WCUDA_ENGINE_PERSISTENT_LAYERS_ON
                                             : WCUDA_ENGINE_PERSISTENT_LAYERS_OFF);
    out.max_sequences = limits.max_sequences;
    out.max_batch_tokens = limits.max_batch_tokens;
    out.max_batch_rows = limits.max_step_rows;
    out.max_sequence_tokens = limits.max_sequence_tokens;
    out.max_logits_rows = limits.max_logits_rows;
    out.max_top_logprobs = limits.max_top_logprobs;
    out.sequence_count = found.sequence_count;
    out.steps_in_flight = found.steps_in_flight;
    out.kv_page_count = limits.page_count;
    out.kv_free_page_count = found.free_page_count;
    out.kv_bytes = found.kv_bytes;
    out.scratch_bytes = found.scratch_bytes;
    out.kv_cached_page_count = found.cached_page_count;
    out.kv_held_page_count = limits.page_count - found.free_page_count;
    out.kv_token_bytes = found.token_bytes;
    out.max_draft_tokens = limits.max_draft_tokens;
    return write_struct(out, info, "info");
  });
}

wcuda_status wcuda_engine_warm_up(wcuda_engine engine, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    return object->engine->warm_up();
  });
}

wcuda_status wcuda_engine_profile_set(wcuda_engine engine, int32_t is_on, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    return object->engine->set_profiling(is_on != 0);
  });
}

wcuda_status wcuda_engine_profile_list(wcuda_engine engine, wcuda_step_rates* rates, uint64_t first,
                                       wcuda_step_node* nodes, uint64_t capacity, uint64_t* count,
                                       wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (rates) WCUDA_TRY(check_struct(rates, "rates"));
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    WCUDA_ASSIGN(const engine::Engine::Profile profile, object->engine->profile());
    return write_steps(profile.report, profile.node_ns.data(), rates, first,
                       {nodes, capacity, "nodes"}, count);
  });
}

wcuda_status wcuda_engine_drain(wcuda_engine engine, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    return object->engine->drain();
  });
}

wcuda_status wcuda_sequence_create(wcuda_engine engine, wcuda_sequence* sequence,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(sequence, "sequence"));
    WCUDA_ASSIGN(const auto owner, use(engine, "engine"));
    WCUDA_ASSIGN(auto created, owner->engine->create_sequence());
    return insert_sequence(owner.object, created, sequence);
  });
}

wcuda_status wcuda_sequence_fork(wcuda_sequence sequence, wcuda_sequence* fork,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(fork, "fork"));
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    WCUDA_ASSIGN(auto forked, used.engine().fork(used.object->sequence));
    return insert_sequence(used.object->owner, forked, fork);
  });
}

wcuda_status wcuda_sequence_truncate(wcuda_sequence sequence, uint32_t length, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    return used.engine().truncate(*used.object->sequence, length);
  });
}

void wcuda_sequence_destroy(wcuda_sequence sequence) {
  guarded_destroy("wcuda_sequence_destroy", sequence.id, [](uint64_t id) -> Status {
    WCUDA_ASSIGN(const auto object, resolve<SequenceObject>(Kind::kSequence, id, "sequence"));
    remove(Kind::kSequence, id);
    object->owner->engine->destroy(*object->sequence);
    return {};
  });
}

wcuda_status wcuda_sequence_length_get(wcuda_sequence sequence, uint32_t* length,
                                       wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(length, "length"));
    WCUDA_ASSIGN(const auto object, resolve(sequence, "sequence"));
    *length = object->owner->engine->length(*object->sequence);
    return {};
  });
}

wcuda_status wcuda_sequence_tokens_get(wcuda_sequence sequence, uint32_t first, uint32_t count,
                                       int32_t* tokens, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (count > 0) WCUDA_TRY(check_not_null(tokens, "tokens"));
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    return used.engine().copy_tokens(*used.object->sequence, first, count, tokens);
  });
}

wcuda_status wcuda_sequence_publish(wcuda_sequence sequence, uint32_t first_page,
                                    const wcuda_page_key* keys, uint32_t count,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (count > 0) WCUDA_TRY(check_not_null(keys, "keys"));
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    return used.engine().publish(*used.object->sequence, first_page, keys, count);
  });
}

wcuda_status wcuda_sequence_attach(wcuda_sequence sequence, const int32_t* tokens,
                                   uint32_t token_count, const wcuda_page_key* keys,
                                   uint32_t key_count, uint32_t* attached, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (token_count > 0) WCUDA_TRY(check_not_null(tokens, "tokens"));
    if (key_count > 0) WCUDA_TRY(check_not_null(keys, "keys"));
    WCUDA_TRY(check_not_null(attached, "attached"));
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    WCUDA_ASSIGN(*attached, used.engine().attach(*used.object->sequence, tokens, token_count, keys,
                                                 key_count));
    return {};
  });
}

wcuda_status wcuda_sequence_save(wcuda_sequence sequence, wcuda_pinned pinned, uint64_t offset,
                                 wcuda_event done, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    WCUDA_ASSIGN(const UsedCopy copy, use_copy(used.engine(), pinned, offset, done));
    return used.engine().save(*used.object->sequence, copy.pinned, copy.done->event);
  });
}

wcuda_status wcuda_sequence_restore(wcuda_sequence sequence, const int32_t* tokens,
                                    uint32_t token_count, wcuda_pinned pinned, uint64_t offset,
                                    wcuda_event done, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (token_count > 0) WCUDA_TRY(check_not_null(tokens, "tokens"));
    WCUDA_ASSIGN(const auto used, use_sequence(sequence));
    WCUDA_ASSIGN(const UsedCopy copy, use_copy(used.engine(), pinned, offset, done));
    return used.engine().restore(*used.object->sequence, tokens, token_count, copy.pinned,
                                 copy.done->event);
  });
}

wcuda_status wcuda_step_submit(wcuda_engine engine, const wcuda_step* step, uint64_t* ticket,
                               wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(ticket, "ticket"));
    WCUDA_ASSIGN(const wcuda_step given, read_struct(step, "step"));
    WCUDA_TRY(check_flags(given.flags, 0, "step flags"));
    WCUDA_TRY(check_not_null(given.rows, "step.rows"));
    if (given.row_count == 0) return invalid_argument("a step needs at least one row");
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    const uint32_t limit = object->engine->limits().max_step_rows;
    if (given.row_count > limit)
      return Status::error(WCUDA_LIMIT_EXCEEDED, "a step of %u rows, max_batch_rows is %u",
                           given.row_count, limit);
    std::vector<engine::Row> rows(given.row_count);
    const auto read = [&](const wcuda_row& row, uint64_t i) {
      return read_row(*object, row, static_cast<uint32_t>(i), &rows[i]);
    };
    WCUDA_TRY(for_each_element(given.rows, given.row_count, "rows", read));
    // Reading features queues work on the target's stream.
    std::optional<ExclusiveUse> target;
    if (std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.features; })) {
      WCUDA_ASSIGN(auto alone, ExclusiveUse::acquire(object->target->exclusive, "target engine"));
      target.emplace(std::move(alone));
    }
    WCUDA_ASSIGN(*ticket, object->engine->submit(std::move(rows)));
    return {};
  });
}

wcuda_status wcuda_step_sample(wcuda_engine engine, uint64_t ticket, const wcuda_late_row* rows,
                               uint64_t row_count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    const engine::Engine& owner = *object->engine;
    if (row_count > owner.limits().max_step_rows)
      return Status::error(WCUDA_LIMIT_EXCEEDED, "%llu late rows, max_batch_rows is %u",
                           static_cast<unsigned long long>(row_count),
                           owner.limits().max_step_rows);
    std::vector<engine::Engine::LateRow> late;
    const auto read = [&](const wcuda_late_row& row, uint64_t) {
      late.push_back({row.is_held != 0, row.mask});
      return check_mask(row.mask, row.mask_words, owner.config().vocabulary_size);
    };
    WCUDA_TRY(for_each_element(rows, row_count, "rows", read));
    return object->engine->sample(ticket, late);
  });
}

wcuda_status wcuda_step_wait(wcuda_engine engine, uint64_t ticket, int64_t timeout_ms,
                             wcuda_step_output* output, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(wcuda_step_output out, read_struct(output, "output"));
    WCUDA_ASSIGN(const auto object, use(engine, "engine"));
    // The engine writes results at this version's size; the caller's array may have another
    // stride.
    const OutputArray<wcuda_row_result> target{out.rows, out.rows ? out.row_capacity : 0, "rows"};
    WCUDA_TRY(target.check(target.capacity));
    const uint32_t row_capacity = out.row_capacity;
    std::vector<wcuda_row_result> results(
        std::min<uint64_t>(target.capacity, object->engine->limits().max_step_rows));
    out.rows = results.empty() ? nullptr : results.data();
    out.row_capacity = static_cast<uint32_t>(results.size());
    WCUDA_TRY(object->engine->wait(ticket, timeout_ms, &out));
    for (uint64_t i = 0; i < out.row_count; ++i) target.write(i, results[i]);
    out.rows = target.data;
    out.row_capacity = row_capacity;
    write_struct(out, output);
    return {};
  });
}
