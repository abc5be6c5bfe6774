//! An engine runs steps of a model on its sequences.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::core::callback::lock_outside_callbacks;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::memory::PinnedBuffer;
use crate::core::stream::PendingCopy;
use crate::ffi;
use crate::llm::model::Model;
use crate::llm::plan::{EngineOptions, KvType, StepPlan};
use crate::llm::step::{LateRow, NativeStep, Row, Step, StepOutput};

/// Id of a token, below the model's vocabulary size.
pub type Token = u32;

/// Runs a model: owns pages for keys and values, scratch memory, and a queue of at most two steps. Dropping it waits
/// for the steps in flight; its memory is freed when its sequences have been dropped too.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Sampling, Step};
/// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
/// let mut engine = Engine::new(&model, &EngineOptions::new().max_sequences(4))?;
/// let sequence = engine.create_sequence()?;
/// let greedy = Sampling::greedy();
/// let step = Step::new().row(Row::tokens(&sequence, &[1, 2, 3]).sample(&greedy));
/// let ticket = engine.submit(&step)?;
/// println!("next: {:?}", engine.wait(ticket)?.rows()[0].token);
/// # Ok(())
/// # }
/// ```
pub struct Engine {
    /// Declared, and so dropped, before the model.
    handle: Handle,
    model: Model,
    /// The outputs requested from each step in flight, oldest first.
    in_flight: VecDeque<Pending>,
    native: NativeStep,
    /// Of the engine whose features the engine of a draft head reads.
    target_turn: Option<Arc<Mutex<()>>>,
}

struct Handle {
    native: ffi::wcuda_engine,
    /// Held by every call that the library refuses while another one runs. Besides the owner, only the engines of draft
    /// heads use this one, while they submit.
    turn: Arc<Mutex<()>>,
}

impl Handle {
    fn take_turn(&self) -> Result<MutexGuard<'_, ()>> {
        lock_outside_callbacks(&self.turn)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Inside a callback, the engine is destroyed when the call has returned that runs it.
        let _turn = self.take_turn();
        // SAFETY: no other call on the engine is running.
        unsafe { ffi::wcuda_engine_destroy(self.native) }
    }
}

/// A step in flight. It is a plain number: forgetting it leaves the step in the engine's queue until
/// [`Engine::drain`] or a drop of the engine ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// Sizes of a step's outputs.
#[derive(Clone, Copy, Default)]
pub(crate) struct OutputSize {
    pub(crate) rows: usize,
    pub(crate) top: usize,
    pub(crate) logits_rows: usize,
    pub(crate) hidden_states: usize,
    pub(crate) sampled: usize,
    pub(crate) token_logprobs: usize,
    pub(crate) token_top: usize,
}

struct Pending {
    ticket: Ticket,
    size: OutputSize,
}

/// The limits in force and their current use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the names are those of `EngineOptions`
pub struct EngineInfo {
    pub kv_type: KvType,
    pub batch_invariant: bool,
    pub hidden_states: bool,
    pub token_logprobs: bool,
    /// Whether steps of one token use persistent fused layers.
    pub has_persistent_layers: bool,
    pub max_sequences: u32,
    pub max_batch_tokens: u32,
    pub max_batch_rows: u32,
    pub max_sequence_tokens: u32,
    pub max_logits_rows: u32,
    pub max_top_logprobs: u32,
    pub max_draft_tokens: u32,
    /// Live sequences.
    pub sequence_count: u32,
    /// Steps in flight.
    pub steps_in_flight: u32,
    /// Number of KV pages, of 64 positions each.
    pub kv_page_count: u64,
    /// Free pages, including cached ones, counted after the steps in flight.
    pub kv_free_page_count: u64,
    /// Pages with a key that no sequence holds.
    pub kv_cached_page_count: u64,
    /// Pages that sequences hold; the others are free.
    pub kv_held_page_count: u64,
    /// Bytes of the keys and values of one position, and of its features if these are kept.
    pub kv_token_bytes: u64,
    /// Bytes of pages, page tables and token history.
    pub kv_bytes: u64,
    /// Bytes of activations, logits and sampling.
    pub scratch_bytes: u64,
}

/// The tokens of one conversation with their keys and values. Dropping it returns its pages to the engine.
/// Only the engine that created it can use it.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Step};
/// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
/// # let mut engine = Engine::new(&model, &EngineOptions::new())?;
/// let prompt = engine.create_sequence()?;
/// let ticket = engine.submit(&Step::new().row(Row::tokens(&prompt, &[1, 2, 3])))?;
/// engine.wait(ticket)?;
/// // Two answers to one prompt: the fork shares its pages until one of the two writes.
/// let other = engine.fork(&prompt)?;
/// engine.truncate(&other, 2)?;
/// assert_eq!((prompt.len()?, other.len()?), (3, 2));
/// # Ok(())
/// # }
/// ```
pub struct Sequence {
    handle: ffi::wcuda_sequence,
    engine: ffi::wcuda_engine,
}

/// Names the features of a [`Sequence`], which rows of a [draft head](Engine::of_draft_head) read. When the sequence has
/// been dropped, using them is an error.
#[derive(Clone, Copy, Debug)]
pub struct TokenFeatures(pub(crate) ffi::wcuda_sequence);

impl Engine {
    /// Reserves memory for keys and values and for the intermediate results of a step.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self> {
        Self::create(model, options.to_native())
    }

    /// Creates the engine of a draft head, whose rows read [features](crate::Row::features) of sequences of `target`. That
    /// engine runs the model for which the head was loaded, with the option
    /// [`draft_head`](EngineOptions::draft_head). Its memory is freed when both engines have been dropped. A step
    /// with features is [`ErrorKind::Busy`] while another thread uses that engine, whose calls wait until such a step is
    /// submitted.
    ///
    /// ```no_run
    /// # fn f(model: &worker_cuda::Model, head: &worker_cuda::Model) -> worker_cuda::Result<()> {
    /// use worker_cuda::{Engine, EngineOptions, Row, Sampling, Step};
    ///
    /// let mut engine = Engine::new(model, &EngineOptions::new().draft_head(head))?;
    /// let mut drafting = Engine::of_draft_head(head, &EngineOptions::new(), &engine)?;
    /// let (text, guesses) = (engine.create_sequence()?, drafting.create_sequence()?);
    /// let ticket = engine.submit(&Step::new().row(Row::tokens(&text, &[1, 2, 3])))?;
    /// engine.wait(ticket)?;
    /// // The tokens that follow positions 0 and 1; the guess is the token after 3.
    /// let greedy = Sampling::greedy();
    /// let row = Row::tokens(&guesses, &[2, 3]).features(text.features()).sample(&greedy);
    /// let ticket = drafting.submit(&Step::new().row(row))?;
    /// println!("{:?}", drafting.wait(ticket)?.rows()[0].token);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_draft_head(head: &Model, options: &EngineOptions, target: &Engine) -> Result<Self> {
        let mut options = options.to_native();
        options.target = target.handle.native;
        let mut engine = Self::create(head, options)?;
        engine.target_turn = Some(target.handle.turn.clone());
        Ok(engine)
    }

    fn create(model: &Model, options: ffi::wcuda_engine_options) -> Result<Self> {
        let mut handle = ffi::wcuda_engine::zeroed();
        // SAFETY: `options` and `handle` are valid for the call.
        call(|error| unsafe {
            ffi::wcuda_engine_create(model.handle(), &options, &mut handle, error)
        })?;
        Ok(Self {
            handle: Handle {
                native: handle,
                turn: Arc::default(),
            },
            model: model.clone(),
            in_flight: VecDeque::new(),
            native: NativeStep::default(),
            target_turn: None,
        })
    }

    /// The model it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the limits in force and their current use.
    pub fn info(&self) -> Result<EngineInfo> {
        let mut info = ffi::wcuda_engine_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe { ffi::wcuda_engine_info_get(self.handle.native, &mut info, error) })?;
        Ok(EngineInfo {
            kv_type: KvType::from_native(info.kv_type),
            batch_invariant: info.flags & ffi::WCUDA_ENGINE_BATCH_INVARIANT != 0,
            hidden_states: info.flags & ffi::WCUDA_ENGINE_HIDDEN_STATES != 0,
            token_logprobs: info.flags & ffi::WCUDA_ENGINE_TOKEN_LOGPROBS != 0,
            has_persistent_layers: info.flags & ffi::WCUDA_ENGINE_PERSISTENT_LAYERS_ON != 0,
            max_sequences: info.max_sequences,
            max_batch_tokens: info.max_batch_tokens,
            max_batch_rows: info.max_batch_rows,
            max_sequence_tokens: info.max_sequence_tokens,
            max_logits_rows: info.max_logits_rows,
            max_top_logprobs: info.max_top_logprobs,
            max_draft_tokens: info.max_draft_tokens,
            sequence_count: info.sequence_count,
            steps_in_flight: info.steps_in_flight,
            kv_page_count: info.kv_page_count,
            kv_free_page_count: info.kv_free_page_count,
            kv_cached_page_count: info.kv_cached_page_count,
            kv_held_page_count: info.kv_held_page_count,
            kv_token_bytes: info.kv_token_bytes,
            kv_bytes: info.kv_bytes,
            scratch_bytes: info.scratch_bytes,
        })
    }

    /// While profiling is on, a step runs kernel by kernel with an event around each node, which is slower. It is an
    /// error to change it while a step is in flight.
    pub fn set_profiling(&mut self, on: bool) -> Result<()> {
        let _turn = self.handle.take_turn()?;
        // SAFETY: `&mut self` shows that no other call on the engine is running.
        call(|error| unsafe { ffi::wcuda_engine_profile_set(self.handle.native, on.into(), error) })
    }

    /// The nodes of the last profiled step that was waited for, with the time of each node alone. Sampling is not
    /// listed. Bytes and FLOPs count every row like the first row.
    pub fn profile(&mut self) -> Result<StepPlan> {
        let _turn = self.handle.take_turn()?;
        StepPlan::read(|rates, nodes, capacity, count| {
            // SAFETY: as above; the structs are valid and sized, `nodes` has as many as is said.
            call(|error| unsafe {
                ffi::wcuda_engine_profile_list(
                    self.handle.native,
                    rates,
                    0,
                    nodes,
                    capacity,
                    count,
                    error,
                )
            })
        })
    }

    /// Prepares now what the first step of each shape would otherwise prepare.
    pub fn warm_up(&mut self) -> Result<()> {
        let _turn = self.handle.take_turn()?;
        // SAFETY: `&mut self` shows that no other call on the engine is running.
        call(|error| unsafe { ffi::wcuda_engine_warm_up(self.handle.native, error) })
    }

    /// Creates an empty sequence, which has no pages yet.
    pub fn create_sequence(&mut self) -> Result<Sequence> {
        let mut handle = ffi::wcuda_sequence::zeroed();
        let _turn = self.handle.take_turn()?;
        // SAFETY: `handle` is valid, and `&mut self` holds the engine.
        call(|error| unsafe {
            ffi::wcuda_sequence_create(self.handle.native, &mut handle, error)
        })?;
        Ok(Sequence {
            handle,
            engine: self.handle.native,
        })
    }

    /// Creates a second sequence with the same tokens. Both share pages until one of them writes. Takes effect after
    /// the steps in flight. Two forks that sample with the same seed draw the same tokens.
    pub fn fork(&mut self, sequence: &Sequence) -> Result<Sequence> {
        self.expect_own(sequence)?;
        let mut handle = ffi::wcuda_sequence::zeroed();
        let _turn = self.handle.take_turn()?;
        // SAFETY: `handle` is valid, and `&mut self` holds the sequence's engine.
        call(|error| unsafe { ffi::wcuda_sequence_fork(sequence.handle, &mut handle, error) })?;
        Ok(Sequence {
            handle,
            engine: self.handle.native,
        })
    }

    /// Removes all but the first `length` tokens of a sequence. Takes effect after the steps in flight.
    pub fn truncate(&mut self, sequence: &Sequence, length: u32) -> Result<()> {
        self.expect_own(sequence)?;
        let _turn = self.handle.take_turn()?;
        // SAFETY: `&mut self` holds the sequence's engine.
        call(|error| unsafe { ffi::wcuda_sequence_truncate(sequence.handle, length, error) })
    }

    /// Gives keys to full pages of a sequence, from page `first_page` on, so that [`attach`](Self::attach) finds
    /// them. A page has 64 positions. Pages of steps in flight are found once these have been waited for, unless they
    /// fail. Pages that no sequence holds any more are cached: they stay until their memory is needed.
    ///
    /// Pages with equal keys must have equal contents, so a key depends on the tokens of the page and on all tokens
    /// before them.
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Step};
    /// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// # let mut engine = Engine::new(&model, &EngineOptions::new())?;
    /// # let prompt: Vec<u32> = (0..100).collect();
    /// # let digest = |tokens: &[u32]| [tokens.len() as u8; 32];
    /// let key = digest(&prompt[..64]); // of a cryptographic hash
    /// let first = engine.create_sequence()?;
    /// let ticket = engine.submit(&Step::new().row(Row::tokens(&first, &prompt)))?;
    /// engine.publish(&first, 0, &[key])?;
    /// engine.wait(ticket)?;
    /// drop(first);
    ///
    /// let second = engine.create_sequence()?;
    /// let attached = engine.attach(&second, &prompt, &[key])? as usize;
    /// assert_eq!(attached, 64);
    /// engine.submit(&Step::new().row(Row::tokens(&second, &prompt[attached..])))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish(
        &mut self,
        sequence: &Sequence,
        first_page: u32,
        keys: &[[u8; 32]],
    ) -> Result<()> {
        self.expect_own(sequence)?;
        let count = count_of(keys.len(), "keys")?;
        let _turn = self.handle.take_turn()?;
        // SAFETY: a key is 32 bytes in both languages; `&mut self` holds the sequence's engine.
        call(|error| unsafe {
            ffi::wcuda_sequence_publish(
                sequence.handle,
                first_page,
                keys.as_ptr().cast(),
                count,
                error,
            )
        })
    }

    /// Fills an empty sequence with the longest run of pages that have the keys `keys[0]`, `keys[1]` and so on, and
    /// returns the number of tokens that it has then. `tokens` begins with the tokens of these pages.
    pub fn attach(
        &mut self,
        sequence: &Sequence,
        tokens: &[Token],
        keys: &[[u8; 32]],
    ) -> Result<u32> {
        self.expect_own(sequence)?;
        let token_count = count_of(tokens.len(), "tokens")?;
        let key_count = count_of(keys.len(), "keys")?;
        let mut attached = 0;
        let _turn = self.handle.take_turn()?;
        // SAFETY: as above; the lengths are those of the slices.
        call(|error| unsafe {
            ffi::wcuda_sequence_attach(
                sequence.handle,
                tokens.as_ptr().cast(),
                token_count,
                keys.as_ptr().cast(),
                key_count,
                &mut attached,
                error,
            )
        })?;
        Ok(attached)
    }

    /// Queues a copy of a sequence's keys and values into pinned memory, after the steps in flight.
    /// [`PendingCopy::wait`] returns the memory. It has room for every page of the sequence: 64 times
    /// [`EngineInfo::kv_token_bytes`] each. Tokens are not copied. The sequence may be changed or dropped at once. On
    /// the CPU this waits for the steps in flight and copies.
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Step};
    /// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// # let mut engine = Engine::new(&model, &EngineOptions::new())?;
    /// # let tokens = [1, 2, 3];
    /// let sequence = engine.create_sequence()?;
    /// engine.submit(&Step::new().row(Row::tokens(&sequence, &tokens)))?;
    /// let bytes = 64 * engine.info()?.kv_token_bytes as usize; // of one page
    /// let saved = engine.save(&sequence, model.context().alloc_pinned::<u8>(bytes)?)?;
    /// drop(sequence); // its page is free for others
    ///
    /// let sequence = engine.create_sequence()?;
    /// let restored = engine.restore(&sequence, &tokens, saved.wait()?)?;
    /// engine.submit(&Step::new().row(Row::tokens(&sequence, &[4])))?;
    /// let _memory = restored.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn save(
        &mut self,
        sequence: &Sequence,
        target: PinnedBuffer<u8>,
    ) -> Result<PendingCopy<u8>> {
        self.expect_own(sequence)?;
        let _turn = self.handle.take_turn()?;
        PendingCopy::start(self.model.context(), target, |pinned, event| {
            // SAFETY: the pending copy owns the memory, and the library keeps it until the copy is done even if
            // that is forgotten; `&mut self` holds the sequence's engine.
            call(|error| unsafe {
                ffi::wcuda_sequence_save(sequence.handle, pinned, 0, event.handle(), error)
            })
        })
    }

    /// Fills an empty sequence with tokens and queues a copy of their keys and values from memory that
    /// [`save`](Self::save) has filled, for the same model and type of the KV cache and a sequence that began with
    /// these tokens. Steps that are submitted later run after the copy.
    pub fn restore(
        &mut self,
        sequence: &Sequence,
        tokens: &[Token],
        source: PinnedBuffer<u8>,
    ) -> Result<PendingCopy<u8>> {
        self.expect_own(sequence)?;
        let count = count_of(tokens.len(), "tokens")?;
        let tokens = tokens.as_ptr().cast();
        let _turn = self.handle.take_turn()?;
        PendingCopy::start(self.model.context(), source, |pinned, event| {
            // SAFETY: as above; `tokens` has `count` ids, which the call copies.
            call(|error| unsafe {
                ffi::wcuda_sequence_restore(
                    sequence.handle,
                    tokens,
                    count,
                    pinned,
                    0,
                    event.handle(),
                    error,
                )
            })
        })
    }

    /// Returns tokens `first` … `first + count - 1` of a sequence. A token that a step in flight has yet to sample
    /// is [`ErrorKind::InvalidState`].
    pub fn tokens(&mut self, sequence: &Sequence, first: u32, count: u32) -> Result<Vec<Token>> {
        self.expect_own(sequence)?;
        let length = sequence.len()?;
        if first.checked_add(count).is_none_or(|end| end > length) {
            let message = format!("{count} tokens at {first} of a sequence of {length}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        let mut tokens = vec![0 as Token; count as usize];
        let data = tokens.as_mut_ptr().cast();
        let _turn = self.handle.take_turn()?;
        // SAFETY: `tokens` is valid for `count` ids, and `&mut self` holds the sequence's engine.
        call(|error| unsafe {
            ffi::wcuda_sequence_tokens_get(sequence.handle, first, count, data, error)
        })?;
        Ok(tokens)
    }

    /// Checks a step, reserves its pages and queues it. Copies its inputs and does not wait for the device. Two
    /// steps may be in flight; a third is [`ErrorKind::QueueFull`]. A failed call changes nothing.
    pub fn submit(&mut self, step: &Step<'_>) -> Result<Ticket> {
        for row in step.rows() {
            self.expect_own(row.sequence)?;
        }
        let native = self.native.build(step)?;
        let _turn = self.handle.take_turn()?;
        let _target_turn = match &self.target_turn {
            Some(turn) if step.rows().iter().any(Row::has_features) => Some(lock_if_free(turn)?),
            _ => None,
        };
        let mut ticket = 0;
        // SAFETY: `native` and all it points to are valid for the call, which copies them.
        call(|error| unsafe {
            ffi::wcuda_step_submit(self.handle.native, &native, &mut ticket, error)
        })?;
        let ticket = Ticket(ticket);
        self.in_flight.push_back(Pending {
            ticket,
            size: step.output_size(),
        });
        Ok(ticket)
    }

    /// Samples the rows of a step that were submitted [late](crate::Row::sample_late): `rows` has one element for each
    /// of them, in their order. Does not wait for the device. Until then, the sequences of these rows can neither be
    /// forked nor have rows in the next step, and waiting for the step is [`ErrorKind::InvalidState`]. A step can be
    /// sampled once; a failed call changes nothing.
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, LateRow, Model, Row, Sampling, Step, Token};
    /// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// # let allowed_after = |_: Token| vec![u32::MAX; 1536];
    /// let mut engine = Engine::new(&model, &EngineOptions::new())?;
    /// let (sequence, greedy) = (engine.create_sequence()?, Sampling::greedy());
    /// let first = Step::new().row(Row::tokens(&sequence, &[1, 2, 3]).sample(&greedy));
    /// let next = Step::new().row(Row::feed_sampled(&sequence).sample_late(&greedy));
    /// let first = engine.submit(&first)?;
    /// let next = engine.submit(&next)?;
    /// if let Some(token) = engine.wait(first)?.rows()[0].token {
    ///     let mask = allowed_after(token); // computed while `next` runs
    ///     engine.sample(next, &[LateRow::Sample(&mask)])?;
    ///     println!("{:?}", engine.wait(next)?.rows()[0].token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn sample(&mut self, ticket: Ticket, rows: &[LateRow<'_>]) -> Result<()> {
        let native: Vec<_> = rows.iter().map(|row| row.to_native()).collect();
        let count = native.len() as u64;
        let _turn = self.handle.take_turn()?;
        // SAFETY: `native` and the masks are valid for the call, which copies them; `&mut self` holds the engine.
        call(|error| unsafe {
            ffi::wcuda_step_sample(self.handle.native, ticket.0, native.as_ptr(), count, error)
        })
    }

    /// Waits for a step, which must be the oldest in flight, and returns its outputs.
    pub fn wait(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let mut output = StepOutput::default();
        self.wait_into(ticket, None, &mut output)?;
        Ok(output)
    }

    /// As [`wait`](Self::wait), into an output whose memory is reused, for at most `timeout`. If the time passes,
    /// this is [`ErrorKind::Timeout`], and the step stays in flight.
    pub fn wait_into(
        &mut self,
        ticket: Ticket,
        timeout: Option<Duration>,
        output: &mut StepOutput,
    ) -> Result<()> {
        let pending = self
            .in_flight
            .iter()
            .find(|pending| pending.ticket == ticket);
        let size = pending.map_or_else(OutputSize::default, |pending| pending.size);
        let info = self.model.info();
        let widths = [info.vocabulary_size, info.embedding_length].map(|width| width as usize);
        let timeout_ms = timeout.map_or(-1, |timeout| {
            timeout.as_millis().try_into().unwrap_or(i64::MAX)
        });
        let _turn = self.handle.take_turn()?;
        let waited = output.fill(size, widths, |native| {
            // SAFETY: `native` points to memory of the sizes it states; `&mut self` holds the engine.
            call(|error| unsafe {
                ffi::wcuda_step_wait(self.handle.native, ticket.0, timeout_ms, native, error)
            })
        });
        if waited.as_ref().err().is_none_or(ends_ticket) {
            self.in_flight.retain(|pending| pending.ticket != ticket);
        }
        waited
    }

    /// Tickets in flight, oldest first.
    pub fn in_flight(&self) -> impl ExactSizeIterator<Item = Ticket> {
        self.in_flight.iter().map(|pending| pending.ticket)
    }

    /// Waits for all steps in flight and discards their outputs.
    pub fn drain(&mut self) -> Result<()> {
        let _turn = self.handle.take_turn()?;
        // SAFETY: `&mut self` shows that no other call on the engine is running.
        let drained = call(|error| unsafe { ffi::wcuda_engine_drain(self.handle.native, error) });
        if drained.as_ref().err().is_none_or(ends_ticket) {
            self.in_flight.clear();
        }
        drained
    }

    /// Waits for the steps in flight and frees the engine; returns the error that a drop could not return.
    pub fn close(mut self) -> Result<()> {
        self.drain()
    }

    fn expect_own(&self, sequence: &Sequence) -> Result<()> {
        if sequence.engine.id == self.handle.native.id {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            "the sequence belongs to another engine",
        ))
    }
}

/// Locks the turn of another engine.
fn lock_if_free(turn: &Mutex<()>) -> Result<MutexGuard<'_, ()>> {
    match turn.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            let message = "target engine: another thread is using this object";
            Err(Error::new(ErrorKind::Busy, message))
        }
    }
}

fn count_of(length: usize, name: &str) -> Result<u32> {
    u32::try_from(length)
        .map_err(|_| Error::new(ErrorKind::LimitExceeded, format!("{length} {name}")))
}

/// Whether a failure of `wcuda_step_wait` ended its ticket.
fn ends_ticket(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Timeout
            | ErrorKind::BufferTooSmall
            | ErrorKind::InvalidState
            | ErrorKind::InvalidArgument
            | ErrorKind::Reentrant
            | ErrorKind::Busy
    )
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.model)
            .field("in_flight", &self.in_flight.len())
            .finish()
    }
}

impl Sequence {
    /// Its features, if the engine keeps them for a draft head.
    pub fn features(&self) -> TokenFeatures {
        TokenFeatures(self.handle)
    }

    /// Tokens submitted so far, including those of steps in flight. An upper bound while [drafts](crate::Row::drafts) of
    /// the sequence are in flight.
    pub fn len(&self) -> Result<u32> {
        let mut length = 0;
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_sequence_length_get(self.handle, &mut length, error) })?;
        Ok(length)
    }

    /// Whether nothing has been submitted yet.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_sequence {
        self.handle
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_sequence_destroy(self.handle) }
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({:#x})", self.handle.id)
    }
}
