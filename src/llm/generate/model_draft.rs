//! A draft model: guesses of a smaller model of the same vocabulary.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Draft;
use crate::core::device::Backend;
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::log::{self, Level};
use crate::llm::engine::{Engine, EngineInfo, Sequence, Ticket, Token, TokenFeatures};
use crate::llm::gguf::Gguf;
use crate::llm::model::Model;
use crate::llm::plan::{EngineOptions, KvType};
use crate::llm::step::{Row, RowStatus, Sampling, Step, StepOutput};
use crate::llm::text::{TokenType, Vocabulary};

/// Positions of a page of the KV cache.
const PAGE_TOKENS: usize = 64;

/// Tokens that a text may be ahead of its draft sequence when its next tokens are guessed. One that is further ahead is
/// caught up with first.
const TOKENS_AHEAD: usize = 32;

/// Texts that a service guesses at once, and the most positions of the KV cache for them.
const SERVED_SEQUENCES: u32 = 16;
const SERVED_TOKENS: u64 = 64 << 10;

/// KV cache of a service's draft model on the CPU, unless less is free.
const HOST_KV_BYTES: u64 = 256 << 20;

/// Guesses tokens of a second model, which is smaller and has the same vocabulary: those that it would sample with the
/// same parameters and seed, so that both often choose the same, or the most probable ones until the parameters are
/// known, and of a draft head. Fast where that model often agrees with the first one, whatever the text.
///
/// Each source has one sequence of the draft model's engine, which it fills in chunks of the engine's batch when guesses
/// are wanted. Clones share the engine: each is a source of its own, and guesses that several have
/// [prepared](Draft::prepare) are computed in the same steps. Dropping a source returns its pages.
///
/// Without room for its sequence a source guesses nothing. After an error of the engine, which is one message in the
/// [log](crate::log), no source guesses anything more.
///
/// ```no_run
/// # fn f() -> worker_cuda::Result<()> {
/// use worker_cuda::generate::{ModelDraft, Session};
/// use worker_cuda::{CudaContext, EngineOptions, Gguf, Model};
///
/// let context = CudaContext::auto()?;
/// let model = Model::load(&context, &Gguf::open("8b.gguf")?)?;
/// let small = Model::load(&context, &Gguf::open("0.5b.gguf")?)?;
/// let draft = ModelDraft::new(&small, &model, &EngineOptions::new().max_sequences(1))?;
/// let mut session = Session::new(&model, &EngineOptions::new().max_draft_tokens(8))?;
/// session.set_draft(Some(Box::new(draft)));
/// # Ok(())
/// # }
/// ```
pub struct ModelDraft {
    shared: Arc<Shared>,
    text: Arc<Mutex<Text>>,
}

struct Shared {
    computer: Mutex<Computer>,
    is_head: bool,
    has_failed: AtomicBool,
    /// How often a head has got another target.
    targets: AtomicU32,
    /// Tokens that both models have are below this.
    vocabulary_size: u32,
}

/// Computes guesses of all sources of one engine.
struct Computer {
    /// None after an error, or while a head has no target.
    engine: Option<Engine>,
    info: EngineInfo,
    options: EngineOptions,
    /// Texts of which guesses are prepared.
    prepared: Vec<Weak<Mutex<Text>>>,
    output: StepOutput,
}

/// The text of one source, as far as the engine has it.
#[derive(Default)]
struct Text {
    sequence: Option<Sequence>,
    /// What a head reads: of a sequence that has computed all tokens but the last.
    features: Option<TokenFeatures>,
    /// The number of the target in whose engine its sequence is.
    target: u32,
    /// Tokens of the sequence that the text begins with. The sequence of a head has no first token.
    held: Vec<Token>,
    /// Those of the text that follow.
    missing: Vec<Token>,
    /// How guesses are sampled.
    sampling: Sampling,
    /// Guesses that are wanted, and those that are computed.
    limit: usize,
    guesses: Vec<Token>,
    state: State,
    /// There was no sequence for it, or too few pages.
    lacks_room: bool,
}

/// Whether guesses are wanted.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Prepared,
    /// They, or none, are there.
    Computed,
}

/// What the steps of one computation have done for a text.
struct Progress {
    /// Guesses that it gets; 0: it is caught up with, or cannot be guessed.
    limit: usize,
    /// Missing tokens that are fed at all, and those that steps have.
    wanted: usize,
    fed: usize,
    /// Samplings submitted, and what they returned.
    sampling: usize,
    guesses: Vec<Token>,
    has_failed: bool,
}

impl ModelDraft {
    /// Creates an engine for `draft`, which guesses tokens of `model`. It needs a sequence for each text that is guessed
    /// at once; other options are those of any engine.
    ///
    /// [`ErrorKind::InvalidArgument`] if the vocabularies do not [fit](Self::check).
    pub fn new(draft: &Model, model: &Model, options: &EngineOptions) -> Result<Self> {
        Self::check(draft.gguf(), model.gguf())?;
        let sizes = [draft, model].map(|model| model.info().vocabulary_size);
        let engine = Engine::new(draft, options)?;
        Self::with_engine(engine, options, false, sizes[0].min(sizes[1]))
    }

    /// Creates an engine for a draft head, which guesses tokens of the model of `target` from what that has computed. The
    /// head was loaded [for that model](crate::model::ModelBuilder::target), and `target` has the option
    /// [`draft_head`](EngineOptions::draft_head). A head is a single layer, so that a guess takes less time than one of a
    /// model, and a few features of the model make it right more often.
    ///
    /// ```no_run
    /// # fn f(model: &worker_cuda::Model, head: &worker_cuda::Model) -> worker_cuda::Result<()> {
    /// use worker_cuda::EngineOptions;
    /// use worker_cuda::generate::{ModelDraft, Session};
    ///
    /// let options = EngineOptions::new().max_draft_tokens(8).draft_head(head);
    /// let mut session = Session::new(model, &options)?;
    /// let one = EngineOptions::new().max_sequences(1);
    /// let draft = ModelDraft::head(head, session.engine(), &one)?;
    /// session.set_draft(Some(Box::new(draft)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn head(head: &Model, target: &Engine, options: &EngineOptions) -> Result<Self> {
        let engine = Engine::of_draft_head(head, options, target)?;
        Self::with_engine(engine, options, true, head.info().vocabulary_size)
    }

    fn with_engine(
        mut engine: Engine,
        options: &EngineOptions,
        is_head: bool,
        vocabulary_size: u32,
    ) -> Result<Self> {
        // The first guesses must not look slow.
        engine.warm_up()?;
        let computer = Computer {
            info: engine.info()?,
            engine: Some(engine),
            options: options.clone(),
            prepared: Vec::new(),
            output: StepOutput::default(),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                computer: Mutex::new(computer),
                is_head,
                has_failed: AtomicBool::new(false),
                targets: AtomicU32::new(0),
                vocabulary_size,
            }),
            text: Arc::default(),
        })
    }

    /// Drops the engine of a head, which keeps that of its target. Until [`set_target`](Self::set_target) no source
    /// guesses.
    pub(super) fn drop_target(&self) {
        self.shared.has_failed.store(true, Relaxed);
        lock(&self.shared.computer).engine = None;
    }

    /// Lets a head guess tokens of another engine. Its texts have no sequences in the new engine.
    pub(super) fn set_target(&self, head: &Model, target: &Engine) -> Result<()> {
        let mut computer = lock(&self.shared.computer);
        computer.engine = None;
        let mut engine = Engine::of_draft_head(head, &computer.options, target)?;
        engine.warm_up()?;
        computer.engine = Some(engine);
        self.shared.targets.fetch_add(1, Relaxed);
        self.shared.has_failed.store(false, Relaxed);
        Ok(())
    }

    /// Whether the model of a file can guess the tokens of another one. [`ErrorKind::InvalidArgument`] if not: the tokens
    /// that both have must be equal, and the ids that begin and end texts and turns. One may have more tokens than the
    /// other at its end, as padding.
    pub fn check(draft: &Gguf, model: &Gguf) -> Result<()> {
        check_vocabulary(
            &Vocabulary::from_gguf(draft)?,
            &Vocabulary::from_gguf(model)?,
        )
    }

    /// Options for a draft model that serves: 16 sequences, and a KV cache of 65,536 positions, or of a tenth of the free
    /// memory (CPU: 256 MiB) if that is less. It leaves the rest to the [engine](super::service::ModelEngine::serving_options)
    /// of the model, if that is created later.
    pub fn serving_options(draft: &Model, kv_type: KvType) -> Result<EngineOptions> {
        let is_host = draft.context().info()?.backend == Backend::Host;
        let options = EngineOptions::new()
            .max_sequences(SERVED_SEQUENCES)
            .max_batch_tokens(if is_host { 256 } else { 512 })
            .kv_type(kv_type);
        let page = PAGE_TOKENS as u64;
        let plan = draft.plan_engine(&options.clone().kv_tokens(page))?;
        let free = plan.available_bytes.saturating_sub(plan.total_bytes) / 10;
        let kv_bytes = if is_host {
            free.min(HOST_KV_BYTES)
        } else {
            free
        };
        let kv_tokens = kv_bytes / plan.kv_page_bytes.max(1) * page;
        let context_length = draft.info().context_length.next_multiple_of(page as u32);
        let most = SERVED_TOKENS.min(u64::from(SERVED_SEQUENCES) * u64::from(context_length));
        Ok(options.kv_tokens(kv_tokens.clamp(page, most.max(page))))
    }

    /// Sizes of the engine, and what its KV cache holds.
    pub fn info(&self) -> Result<EngineInfo> {
        let computer = lock(&self.shared.computer);
        let engine = computer.engine.as_ref().ok_or_else(|| {
            let message = "the engine of the draft model has failed";
            Error::new(ErrorKind::NotAvailable, message)
        })?;
        engine.info()
    }
}

impl Clone for ModelDraft {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            text: Arc::default(),
        }
    }
}

impl Draft for ModelDraft {
    fn begin(&mut self, _: &[Token], _: &[Token]) {
        lock(&self.text).sampling = Sampling {
            no_logprob: true,
            ..Sampling::greedy()
        };
    }

    fn sample_like(&mut self, sampling: &Sampling) {
        // The positions of a head's sequence are those of other tokens.
        if self.shared.is_head {
            return;
        }
        let bias = sampling.bias.iter().copied();
        let known = |&(token, _): &(Token, f32)| token < self.shared.vocabulary_size;
        lock(&self.text).sampling = Sampling {
            bias: bias.filter(known).collect(),
            mask: Vec::new(),
            top_logprobs: 0,
            raw_logprobs: false,
            no_logprob: true,
            ..*sampling
        };
    }

    fn follow(&mut self, features: Option<TokenFeatures>) {
        lock(&self.text).features = features;
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        let state = lock(&self.text).state;
        if state == State::Idle {
            self.prepare(tokens, limit);
        }
        if state != State::Computed {
            let failed = lock(&self.shared.computer).compute(&self.shared);
            // Without the locks: the sink is the caller's, and may ask for `info`.
            if let Some(error) = failed {
                let message = format!("the draft model guesses nothing more: {error}");
                log::emit(Level::Error, "draft", &message);
            }
        }
        let text = &mut *lock(&self.text);
        let known = text.guesses.iter().take(limit);
        drafts.extend(known.take_while(|&&token| token < self.shared.vocabulary_size));
        text.guesses.clear();
        text.state = State::Idle;
    }

    /// Whether there was room for its sequence, and the engine has not failed.
    fn is_computed(&self) -> bool {
        !self.shared.has_failed.load(Relaxed) && !lock(&self.text).lacks_room
    }

    fn prepare(&mut self, tokens: &[Token], limit: usize) {
        // The head's token at a position is the one that follows it in the text.
        let tokens = &tokens[usize::from(self.shared.is_head).min(tokens.len())..];
        let mut text = lock(&self.text);
        let target = self.shared.targets.load(Relaxed);
        if std::mem::replace(&mut text.target, target) != target {
            text.sequence = None;
            text.held.clear();
        }
        let pairs = text.held.iter().zip(tokens);
        let common = pairs.take_while(|(held, token)| held == token).count();
        // The last token is computed to guess the next.
        let kept = common.min(tokens.len().saturating_sub(1));
        text.held.truncate(kept);
        text.missing.clear();
        text.missing.extend_from_slice(&tokens[kept..]);
        text.limit = limit;
        text.guesses.clear();
        let before = std::mem::replace(&mut text.state, State::Prepared);
        drop(text);
        if before != State::Prepared {
            let mut computer = lock(&self.shared.computer);
            computer.prepared.push(Arc::downgrade(&self.text));
        }
    }
}

impl fmt::Debug for ModelDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDraft")
            .field("vocabulary_size", &self.shared.vocabulary_size)
            .finish_non_exhaustive()
    }
}

impl Computer {
    /// Computes what is prepared. The texts get their guesses, or none. Returns the error after which there are no more.
    fn compute(&mut self, shared: &Shared) -> Option<Error> {
        let prepared = std::mem::take(&mut self.prepared);
        let prepared: Vec<_> = prepared.iter().filter_map(Weak::upgrade).collect();
        let mut texts: Vec<_> = prepared.iter().map(|text| lock(text)).collect();
        for text in &mut texts {
            text.state = State::Computed;
        }
        let engine = self.engine.as_mut()?;
        let mut batch = Batch {
            engine,
            info: &self.info,
            is_head: shared.is_head,
            output: &mut self.output,
        };
        let error = batch.run(&mut texts).err()?;
        self.engine = None;
        shared.has_failed.store(true, Relaxed);
        for text in &mut texts {
            (text.sequence, text.guesses) = (None, Vec::new());
        }
        Some(error)
    }
}

/// One computation of guesses.
struct Batch<'a> {
    engine: &'a mut Engine,
    info: &'a EngineInfo,
    is_head: bool,
    output: &'a mut StepOutput,
}

/// A step in flight, with the text of each row, and whether it samples.
type InFlight = (Ticket, Vec<(usize, bool)>);

impl Batch<'_> {
    /// An error is one after which the engine cannot be used.
    fn run(&mut self, texts: &mut [MutexGuard<'_, Text>]) -> Result<()> {
        let mut all = self.admit(texts)?;
        let mut in_flight = VecDeque::new();
        loop {
            // The row after one that samples has its token on the device, so that no step waits for the host.
            while in_flight.len() < 2 {
                match self.submit(texts, &mut all) {
                    Ok(Some(step)) => in_flight.push_back(step),
                    Ok(None) => break,
                    // There are no more guesses this time.
                    Err(error) if self.is_passing(error.kind()) => {
                        for (text, progress) in texts.iter_mut().zip(&mut all) {
                            (text.lacks_room, progress.has_failed) = (true, true);
                        }
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            let Some((ticket, rows)) = in_flight.pop_front() else {
                break;
            };
            self.engine.wait_into(ticket, None, self.output)?;
            for (&(text, samples), row) in rows.iter().zip(self.output.rows()) {
                let progress = &mut all[text];
                progress.has_failed |= row.status != RowStatus::Ok;
                if samples && !progress.has_failed {
                    progress.guesses.extend(row.token);
                }
            }
        }
        for (text, progress) in texts.iter_mut().zip(all) {
            text.take(progress, self.is_head)?;
        }
        Ok(())
    }

    /// Whether the engine can be used after this error: others have taken the pages, a text's sampling parameters are
    /// wrong or have too many biases for one step, or the sequence that a head reads has been dropped or has another
    /// length.
    fn is_passing(&self, kind: ErrorKind) -> bool {
        use ErrorKind::{
            Busy, InvalidArgument, InvalidHandle, InvalidState, LimitExceeded, OutOfPages,
            OutOfRange,
        };
        let of_target = [Busy, InvalidHandle, InvalidState, OutOfRange].contains(&kind);
        let of_text = [OutOfPages, InvalidArgument, LimitExceeded].contains(&kind);
        of_text || self.is_head && of_target
    }

    /// Gives each text a sequence that holds the beginning of it, if there is room for all of it.
    fn admit(&mut self, texts: &mut [MutexGuard<'_, Text>]) -> Result<Vec<Progress>> {
        let info = self.engine.info()?;
        let mut free_pages = info.kv_free_page_count;
        let mut free_sequences = info.max_sequences.saturating_sub(info.sequence_count);
        let mut all = Vec::new();
        for text in texts {
            let length = text.held.len() + text.missing.len();
            // The last guess is not fed.
            let most = (self.info.max_sequence_tokens as usize + 1).saturating_sub(length);
            let limit = text.limit.min(most);
            let pages = |tokens: usize| tokens.div_ceil(PAGE_TOKENS) as u64;
            let needed = pages(length + limit.saturating_sub(1)) - pages(text.held.len());
            let has_sequence = text.sequence.is_some();
            let vocabulary_size = self.engine.model().info().vocabulary_size;
            let is_known = text.missing.iter().all(|&token| token < vocabulary_size);
            let is_empty = text.missing.is_empty();
            let fits = needed <= free_pages && (has_sequence || free_sequences > 0);
            let lacks_features = self.is_head && text.features.is_none();
            text.lacks_room = !fits || limit == 0 || is_empty || !is_known || lacks_features;
            let mut progress = Progress {
                limit,
                wanted: text.missing.len(),
                fed: 0,
                sampling: 0,
                guesses: Vec::new(),
                has_failed: text.lacks_room,
            };
            if text.lacks_room {
                // Others can use its pages.
                text.sequence = None;
                text.held.clear();
            } else {
                free_pages -= needed;
                free_sequences -= u32::from(!has_sequence);
                let kept = text.held.len() as u32;
                match &text.sequence {
                    Some(sequence) if sequence.len()? > kept => {
                        self.engine.truncate(sequence, kept)?;
                    }
                    Some(_) => {}
                    None => text.sequence = Some(self.engine.create_sequence()?),
                }
            }
            if progress.wanted > TOKENS_AHEAD {
                progress.wanted = progress.wanted.min(self.info.max_batch_tokens as usize);
                progress.limit = 0;
            }
            all.push(progress);
        }
        Ok(all)
    }

    /// The next step. None if all is submitted.
    fn submit(
        &mut self,
        texts: &[MutexGuard<'_, Text>],
        all: &mut [Progress],
    ) -> Result<Option<InFlight>> {
        let mut free_tokens = self.info.max_batch_tokens as usize;
        let (mut step, mut rows, mut fed) = (Step::new(), Vec::new(), Vec::new());
        for (index, (text, progress)) in texts.iter().zip(&*all).enumerate() {
            let Some(sequence) = text.sequence.as_ref().filter(|_| !progress.has_failed) else {
                continue;
            };
            let rest = progress.wanted - progress.fed;
            let count = rest.min(free_tokens);
            let is_last = count == rest && progress.sampling < progress.limit;
            if rows.len() == self.info.max_batch_rows as usize
                || free_tokens == 0
                || rest == 0 && !is_last
            {
                continue;
            }
            let row = match rest {
                0 => Row::feed_sampled(sequence),
                _ => Row::tokens(sequence, &text.missing[progress.fed..][..count]),
            };
            let row = match text.features.filter(|_| self.is_head && rest > 0) {
                Some(features) => row.features(features),
                None => row,
            };
            step.push(match is_last {
                true => row.sample(&text.sampling),
                false => row,
            });
            rows.push((index, is_last));
            fed.push(count);
            free_tokens -= count.max(1);
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let ticket = self.engine.submit(&step)?;
        for (&(index, samples), count) in rows.iter().zip(fed) {
            all[index].fed += count;
            all[index].sampling += usize::from(samples);
        }
        Ok(Some((ticket, rows)))
    }
}

impl Text {
    /// Notes what its sequence has, and takes the guesses. A head computes guesses that hold again, from features.
    fn take(&mut self, progress: Progress, is_head: bool) -> Result<()> {
        let Some(sequence) = &self.sequence else {
            return Ok(());
        };
        let length = sequence.len()? as usize;
        self.held.extend_from_slice(&self.missing[..progress.fed]);
        if !is_head {
            self.held.extend_from_slice(&progress.guesses);
        }
        self.held.truncate(length);
        self.guesses = progress.guesses;
        Ok(())
    }
}

/// An error names the first difference.
fn check_vocabulary(draft: &Vocabulary, model: &Vocabulary) -> Result<()> {
    let differ = |what: String| {
        let message = format!("the draft model has another vocabulary: {what}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    };
    let kind = |vocabulary: &Vocabulary, id: usize| {
        let kind = vocabulary.token_types.get(id).copied();
        kind.unwrap_or(TokenType::Normal)
    };
    let sizes = [draft, model].map(|vocabulary| vocabulary.tokens.len());
    for id in 0..sizes[0].min(sizes[1]) {
        let [of_draft, of_model] =
            [draft, model].map(|vocabulary| (&vocabulary.tokens[id], kind(vocabulary, id)));
        if of_draft != of_model {
            return differ(format!(
                "token {id} is {:?} ({:?}), of {}; in the model it is {:?} ({:?}), of {}",
                of_draft.0, of_draft.1, sizes[0], of_model.0, of_model.1, sizes[1]
            ));
        }
    }
    if sizes.contains(&0) && sizes[0] != sizes[1] {
        return differ(format!(
            "it has {} tokens, the model {}",
            sizes[0], sizes[1]
        ));
    }
    let ids = [
        ("begins a text", draft.bos_id, model.bos_id),
        ("ends a text", draft.eos_id, model.eos_id),
        ("ends a turn", draft.eot_id, model.eot_id),
    ];
    for (role, of_draft, of_model) in ids {
        if of_draft != of_model {
            let name = |id: Option<u32>| id.map_or("none".into(), |id| id.to_string());
            return differ(format!(
                "the token that {role} is {}; in the model it is {}",
                name(of_draft),
                name(of_model)
            ));
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
