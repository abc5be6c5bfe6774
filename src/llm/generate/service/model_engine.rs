//! The engine of a model, as a service drives it.

use std::collections::VecDeque;
use std::fmt;

use super::engine::{EngineLimits, RowSource, StepEngine, StepResults};
use super::saved::SavedSequences;
use crate::core::device::Backend;
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::{Engine, EngineInfo, Sequence, Ticket, TokenFeatures};
use crate::llm::generate::ModelDraft;
use crate::llm::gguf::{Gguf, Value};
use crate::llm::model::Model;
use crate::llm::plan::EngineOptions;
use crate::llm::step::{LateRow, Row, RowStatus, Step, StepOutput};
use crate::scheduler::{PageKey, PageSharing, Plan, RequestId, RowOutcome};

/// Positions of a page of the KV cache.
pub(super) const PAGE_TOKENS: u32 = 64;

/// KV cache on the CPU, unless less is free.
const HOST_KV_BYTES: u64 = 2 << 30;

/// Pinned memory for preempted sequences: a quarter of the KV cache, and at most this.
const MOST_SAVED_BYTES: u64 = 4 << 30;

/// Carries out plans on an [`Engine`].
pub struct ModelEngine {
    model: Model,
    options: EngineOptions,
    limits: EngineLimits,
    sequences: Vec<Option<Sequence>>, // (max_sequences)
    in_flight: VecDeque<InFlight>,
    output: StepOutput,
    keys: Vec<[u8; 32]>, // their memory is used again
    saved: SavedSequences,
    /// Those with the draft head.
    drafts: Vec<ModelDraft>,
    /// None after a reset that failed.
    engine: Option<Engine>,
}

struct InFlight {
    ticket: Ticket,
    /// Index, request and first position of the rows that return a hidden state.
    hidden_rows: Vec<(usize, RequestId, u32)>,
    /// The same of rows that return log probabilities of own tokens.
    scored_rows: Vec<(usize, RequestId, u32)>,
}

impl ModelEngine {
    /// Limits for serving a loaded model: 256 sequences and 2,048 tokens a step (CPU: 64 and 256), 20
    /// alternatives of a token, hidden states, log probabilities of prompts, and a KV cache of 90 % of the free memory (CPU: 2 GiB), or
    /// of less if all sequences together cannot use that much.
    pub fn serving_options(model: &Model) -> Result<EngineOptions> {
        Self::serving_options_with(model, EngineOptions::new())
    }

    /// The same with what `options` say of the type of the KV cache and of a draft head, on which the number of its pages
    /// depends.
    pub fn serving_options_with(model: &Model, options: EngineOptions) -> Result<EngineOptions> {
        let is_host = model.context().info()?.backend == Backend::Host;
        let (sequences, step_tokens) = if is_host { (64, 256) } else { (256, 2048) };
        let options = options
            .max_sequences(sequences)
            .max_batch_tokens(step_tokens)
            .max_top_logprobs(20)
            .hidden_states(true)
            .token_logprobs(true);
        let plan = model.plan_engine(&options.clone().kv_tokens(u64::from(PAGE_TOKENS)))?;
        let free = plan.available_bytes.saturating_sub(plan.total_bytes) / 10 * 9;
        let kv_bytes = if is_host {
            free.min(HOST_KV_BYTES)
        } else {
            free
        };
        let kv_tokens = kv_bytes / plan.kv_page_bytes.max(1) * u64::from(PAGE_TOKENS);
        let context_length = model.info().context_length.next_multiple_of(PAGE_TOKENS);
        let most = u64::from(sequences) * u64::from(context_length);
        Ok(options.kv_tokens(kv_tokens.clamp(u64::from(PAGE_TOKENS), most)))
    }

    /// Creates the engine of a model.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self> {
        let mut engine = Engine::new(model, options)?;
        let info = engine.info()?;
        let page_count = u32::try_from(info.kv_page_count).unwrap_or(u32::MAX);
        let page_bytes = u64::from(PAGE_TOKENS) * info.kv_token_bytes;
        let saved_bytes = (info.kv_page_count / 4 * page_bytes).min(MOST_SAVED_BYTES);
        let max_saved_pages = (saved_bytes / page_bytes) as u32;
        let mut saved = SavedSequences::new(model.context(), page_bytes as usize, max_saved_pages);
        let limits = EngineLimits {
            page_tokens: PAGE_TOKENS,
            max_sequences: info.max_sequences.min(info.max_batch_rows),
            max_step_tokens: info.max_batch_tokens,
            max_draft_tokens: info.max_draft_tokens,
            max_sequence_tokens: info.max_sequence_tokens,
            max_top_logprobs: info.max_top_logprobs,
            page_sharing: PageSharing::Cached,
            restore_page: saved.measure(&mut engine, info.max_sequence_tokens)?,
            max_saved_pages,
            model_digest: model_digest(model.gguf())?,
            embedding_length: match info.hidden_states {
                true => model.info().embedding_length,
                false => 0,
            },
            token_logprobs: info.token_logprobs,
            ..EngineLimits::new(page_count, model.info().vocabulary_size)
        };
        Ok(Self {
            model: model.clone(),
            options: options.clone(),
            sequences: (0..limits.max_sequences).map(|_| None).collect(),
            limits,
            in_flight: VecDeque::new(),
            output: StepOutput::default(),
            keys: Vec::new(),
            saved,
            drafts: Vec::new(),
            engine: Some(engine),
        })
    }

    /// A source of guesses with the [draft head](EngineOptions::draft_head) in the options of this engine, which it
    /// follows when the engine is created again. [`ErrorKind::InvalidState`] without a draft head.
    pub fn draft_head(&mut self, options: &EngineOptions) -> Result<ModelDraft> {
        let head = self.options.head().ok_or_else(|| {
            let message = "the engine has no option draft_head";
            Error::new(ErrorKind::InvalidState, message)
        })?;
        let engine = self.engine.as_ref().ok_or_else(no_engine)?;
        let draft = ModelDraft::head(head, engine, options)?;
        self.drafts.push(draft.clone());
        Ok(draft)
    }

    /// Lets the draft head guess tokens of this engine, which has been created again.
    fn retarget(&self) -> Result<()> {
        if let (Some(head), Some(engine)) = (self.options.head(), &self.engine) {
            for draft in &self.drafts {
                draft.set_target(head, engine)?;
            }
        }
        Ok(())
    }

    /// Sizes of the engine, and what its KV cache holds.
    pub fn info(&self) -> Result<EngineInfo> {
        self.engine.as_ref().ok_or_else(no_engine)?.info()
    }

    /// Drops all sequences. An engine that is in order afterwards is used again, otherwise replaced.
    fn reset(&mut self) -> Result<()> {
        self.sequences.fill_with(|| None);
        let mut is_usable = false;
        if let Some(engine) = &mut self.engine {
            for step in self.in_flight.drain(..) {
                // It fails like the step before it.
                let _ = engine.wait_into(step.ticket, None, &mut self.output);
            }
            // After a step that failed by itself no page has a key.
            is_usable = engine.drain().is_ok()
                && engine.info().is_ok_and(|info| {
                    info.kv_free_page_count == info.kv_page_count && info.kv_cached_page_count == 0
                });
        }
        if !is_usable {
            // Its memory is needed for the new one.
            self.drafts.iter().for_each(ModelDraft::drop_target);
            self.engine = None;
            self.engine = Some(Engine::new(&self.model, &self.options)?);
            self.retarget()?;
        }
        Ok(())
    }
}

impl StepEngine for ModelEngine {
    fn limits(&self) -> EngineLimits {
        self.limits.clone()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> Result<()> {
        if plan.resets_engine() {
            self.reset()?;
        }
        let engine = self.engine.as_mut().ok_or_else(no_engine)?;
        for publish in plan.publishes() {
            let sequence = self.sequences[publish.sequence as usize].as_ref();
            let sequence = sequence.ok_or_else(no_sequence)?;
            copy_keys(plan.keys(publish.keys), &mut self.keys);
            engine.publish(sequence, publish.first_page, &self.keys)?;
        }
        for truncation in plan.truncations() {
            let sequence = self.sequences[truncation.sequence as usize].as_ref();
            engine.truncate(sequence.ok_or_else(no_sequence)?, truncation.token_count)?;
        }
        for save in plan.saves() {
            let sequence = self.sequences[save.sequence as usize].as_ref();
            self.saved
                .save(engine, sequence.ok_or_else(no_sequence)?, save);
        }
        for &number in plan.releases() {
            self.sequences[number as usize] = None;
        }
        for &request in plan.dropped_saves() {
            self.saved.drop_saved(request);
        }
        for admission in plan.admissions() {
            let sequence = engine.create_sequence()?;
            let tokens = plan.tokens(admission.tokens);
            copy_keys(plan.keys(admission.keys), &mut self.keys);
            let attached = engine.attach(&sequence, tokens, &self.keys)?;
            if attached as usize != tokens.len() {
                let message = format!("{attached} of {} cached tokens were found", tokens.len());
                return Err(Error::new(ErrorKind::Internal, message));
            }
            self.sequences[admission.sequence as usize] = Some(sequence);
        }
        for restore in plan.restores() {
            let sequence = engine.create_sequence()?;
            let tokens = plan.tokens(restore.tokens);
            self.saved
                .restore(engine, &sequence, restore.request, tokens)?;
            self.sequences[restore.sequence as usize] = Some(sequence);
        }
        for fork in plan.forks() {
            let parent = self.sequences[fork.parent as usize].as_ref();
            let sequence = engine.fork(parent.ok_or_else(no_sequence)?)?;
            engine.truncate(&sequence, fork.token_count)?;
            self.sequences[fork.sequence as usize] = Some(sequence);
        }
        if plan.rows().is_empty() {
            return Ok(());
        }
        let mut step = Step::new();
        let (mut hidden_rows, mut scored_rows) = (Vec::new(), Vec::new());
        for (index, row) in plan.rows().iter().enumerate() {
            let sequence = self.sequences[row.sequence as usize].as_ref();
            let sequence = sequence.ok_or_else(no_sequence)?;
            let appended = match plan.tokens(row.tokens) {
                [] => Row::feed_sampled(sequence),
                tokens => Row::tokens(sequence, tokens),
            };
            let mut appended = match (row.samples, row.is_late) {
                (true, true) => appended.sample_late(rows.sampled(row).sampling),
                (true, false) => appended.sample(rows.sampled(row).sampling),
                _ => appended,
            };
            if !row.drafts.is_empty() {
                appended = appended.drafts(plan.tokens(row.drafts));
            }
            if let Some(of) = rows.hidden_state(row) {
                appended = appended.hidden_state(of);
                hidden_rows.push((index, row.request, row.first_position));
            }
            if let Some(scored) = rows.scored(row) {
                appended = appended.token_logprobs(scored.top, scored.next);
                scored_rows.push((index, row.request, row.first_position));
            }
            step.push(appended);
        }
        let ticket = engine.submit(&step)?;
        self.in_flight.push_back(InFlight {
            ticket,
            hidden_rows,
            scored_rows,
        });
        Ok(())
    }

    fn features(&self, sequence: u32) -> Option<TokenFeatures> {
        self.options.head()?;
        let sequence = self.sequences.get(sequence as usize)?.as_ref()?;
        Some(sequence.features())
    }

    fn lost_saves(&mut self) -> Vec<RequestId> {
        self.saved.take_lost()
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> Result<()> {
        let step = self.in_flight.back().ok_or_else(no_step)?;
        let engine = self.engine.as_mut().ok_or_else(no_engine)?;
        engine.sample(step.ticket, rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> Result<()> {
        let engine = self.engine.as_mut().ok_or_else(no_engine)?;
        let step = self.in_flight.pop_front().ok_or_else(no_step)?;
        engine.wait_into(step.ticket, None, &mut self.output)?;
        for row in self.output.rows() {
            let outcome = match row.status {
                RowStatus::Ok => match (self.output.sampled(row).len(), row.token) {
                    (0 | 1, token) => RowOutcome::Ok(token),
                    (sampled, token) => RowOutcome::Drafted {
                        held: sampled as u32 - 1,
                        token: token.unwrap_or_default(),
                    },
                },
                RowStatus::Held => RowOutcome::Held,
                RowStatus::EmptyMask => RowOutcome::EmptyMask,
                RowStatus::NotFinite => RowOutcome::NotFinite,
                RowStatus::Skipped => RowOutcome::Skipped,
                RowStatus::Unknown(status) => {
                    let message = format!("a row ended with status {status}, which is unknown");
                    return Err(Error::new(ErrorKind::Internal, message));
                }
            };
            let mut tokens = self.output.sampled(row).enumerate();
            let first = tokens.next().map(|(_, (_, logprob))| logprob);
            let logprob = first.unwrap_or(row.logprob);
            results.push(outcome, logprob, self.output.top_of(row, 0));
            for (index, (_, logprob)) in tokens {
                results.push_next(logprob, self.output.top_of(row, index));
            }
        }
        results.is_captured = self.output.captured;
        for (index, request, first_position) in step.hidden_rows {
            let row = &self.output.rows()[index];
            if row.status == RowStatus::Ok {
                let state = self.output.hidden_state(row);
                results.push_hidden_state(request, first_position, state);
            }
        }
        for (index, request, first_position) in step.scored_rows {
            let row = &self.output.rows()[index];
            let logprobs = self.output.token_logprobs(row);
            results.begin_scores(request, first_position);
            for (at, &logprob) in logprobs.iter().enumerate() {
                results.push_score(logprob, self.output.token_top(row, at));
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<()> {
        self.sequences.fill_with(|| None);
        self.in_flight.clear();
        self.drafts.iter().for_each(ModelDraft::drop_target);
        self.engine = None;
        let context = self.model.context().reopen()?;
        let model = Model::load(&context, self.model.gguf())?;
        let mut options = self.options.clone();
        if let Some(head) = self.options.head() {
            let head = Model::builder(&context, head.gguf())
                .target(&model)
                .load()?;
            options = options.draft_head(&head);
        }
        let mut engine = Self::new(&model, &options)?;
        let limits = EngineLimits {
            restore_page: self.limits.restore_page, // measured
            ..engine.limits.clone()
        };
        if limits != self.limits {
            let message = format!("the new engine has other limits: {limits:?}");
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        engine.drafts = std::mem::take(&mut self.drafts);
        engine.retarget()?;
        *self = engine;
        Ok(())
    }
}

/// Bytes at the start of each tensor that stand for the tensor.
const SAMPLE_BYTES: usize = 1024;

/// What distinguishes a file from those of other models, without reading all of it: its metadata except for lists, and
/// of each tensor the name, the shape and the first bytes. An engine has one model and compares its keys with no others,
/// so that nothing depends on more.
fn model_digest(gguf: &Gguf) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("worker-cuda 1 model of page keys");
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for entry in gguf.metadata() {
        let (key, value) = entry?;
        add(key.as_bytes());
        match value {
            Value::Array(list) => add(&list.len().to_le_bytes()),
            value => add(format!("{value:?}").as_bytes()),
        }
    }
    let mut sample = [0; SAMPLE_BYTES];
    for tensor in gguf.tensors() {
        let tensor = tensor?;
        let sample = &mut sample[..tensor.bytes.min(SAMPLE_BYTES as u64) as usize];
        gguf.read_tensor(tensor.index, 0, sample)?;
        add(format!("{} {} {:?}", tensor.name, tensor.type_id, tensor.dimensions).as_bytes());
        add(sample);
    }
    Ok(*hasher.finalize().as_bytes())
}

fn copy_keys(from: &[PageKey], to: &mut Vec<[u8; 32]>) {
    to.clear();
    to.extend(from.iter().map(|key| key.0));
}

fn no_step() -> Error {
    Error::new(ErrorKind::InvalidState, "no step is in flight")
}

fn no_engine() -> Error {
    Error::new(
        ErrorKind::InvalidState,
        "the engine could not be created again",
    )
}

fn no_sequence() -> Error {
    Error::new(
        ErrorKind::Internal,
        "a plan names a sequence that does not exist",
    )
}

impl fmt::Debug for ModelEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelEngine")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
