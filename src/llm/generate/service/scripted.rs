//! An engine without a model, whose answers are fixed: for tests of what uses a service.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::engine::{EngineLimits, RowSource, StepEngine, StepResults};
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::Token;
use crate::llm::step::{HiddenState, LateRow, Sampling};
use crate::scheduler::{Plan, RequestId, RowOutcome};

type Script = dyn FnMut(&[Token], u64) -> Vec<Token> + Send;

/// Answers each prompt with fixed tokens, and verifies drafts. It computes nothing, so that it needs no device; pages and
/// limits are those that are stated. Value i of the hidden state of a token is its id plus i. The log probability of a
/// token of a prompt is minus its position, and its alternatives are the ids from 0 on, each 0.5 less than the one before.
///
/// ```
/// use worker_cuda::generate::service::{
///     EngineLimits, Event, Options, Request, ScriptedEngine, Service,
/// };
///
/// // Repeats the prompt, then ends the text with token 0.
/// let engine = ScriptedEngine::new(EngineLimits::new(16, 100), |prompt, _| {
///     let mut answer = prompt.to_vec();
///     answer.push(0);
///     answer
/// });
/// let mut options = Options::default();
/// options.end_tokens = vec![0];
/// let service = Service::start(engine, None, options)?;
/// let mut tokens = Vec::new();
/// for event in service.submit(&Request::tokens([5, 6, 7]))? {
///     if let Event::Token(token) = event {
///         tokens.push(token.token);
///     }
/// }
/// assert_eq!(tokens, [5, 6, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ScriptedEngine {
    limits: EngineLimits,
    script: Box<Script>,
    sequences: HashMap<u32, Sequence>, // by their numbers in plans
    in_flight: VecDeque<Vec<ScriptedRow>>,
    control: ScriptControl,
}

#[derive(Default)]
struct Sequence {
    tokens: Vec<Token>,
    answer: Option<Vec<Token>>,
    sampled: Option<Token>,
}

struct ScriptedRow {
    token: Option<Token>,
    /// Drafts that hold, if there are any.
    held: Option<u32>,
    top: usize,
    /// Sequence and first position, if it is late.
    late: Option<(u32, u32)>,
    is_held: bool,
    /// Request, first position and state.
    hidden: Option<(RequestId, u32, Vec<f32>)>,
    /// Request and first position, tokens that are scored, and alternatives to each.
    scored: Option<(RequestId, u32, u32, u32)>,
}

/// Holds, continues and breaks a [`ScriptedEngine`] that a service owns. Clones share one engine. An
/// engine that is held keeps its service from ending.
#[derive(Clone, Default)]
pub struct ScriptControl(Arc<(Mutex<Control>, Condvar)>);

#[derive(Default)]
struct Control {
    is_held: bool,
    /// Steps that may end although the engine is held.
    permits: u64,
    /// The engine waits for a permit.
    waits: bool,
    failures: u64,
    loses_device: bool,
    sequence_count: usize,
}

impl ScriptedEngine {
    /// An engine that answers a prompt with what `script` returns for its tokens and the seed. After the
    /// last token of the answer it repeats that token. The script may be called more than once for one
    /// request. In place of a token that a mask forbids comes the first one that it allows.
    pub fn new(
        limits: EngineLimits,
        script: impl FnMut(&[Token], u64) -> Vec<Token> + Send + 'static,
    ) -> Self {
        Self {
            limits,
            script: Box::new(script),
            sequences: HashMap::new(),
            in_flight: VecDeque::new(),
            control: ScriptControl::default(),
        }
    }

    /// Controls it from another thread.
    pub fn control(&self) -> ScriptControl {
        self.control.clone()
    }
}

impl ScriptControl {
    /// From now on steps end only by [`step`](Self::step).
    pub fn hold(&self) {
        self.set(|control| control.is_held = true);
    }

    /// Lets `count` more steps end, of those that are held now or come later.
    pub fn step(&self, count: u64) {
        self.set(|control| {
            control.permits += count;
            control.waits = false;
        });
    }

    /// Lets all steps end.
    pub fn release(&self) {
        self.set(|control| (control.is_held, control.permits) = (false, 0));
    }

    /// Waits until a step is held.
    pub fn wait_until_held(&self) {
        let mut control = self.lock();
        while !control.waits {
            let waited = self.0.1.wait(control);
            control = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next `count` steps that end fail.
    pub fn fail(&self, count: u64) {
        self.set(|control| control.failures += count);
    }

    /// The next step that ends reports the device as lost.
    pub fn lose_device(&self) {
        self.set(|control| control.loses_device = true);
    }

    /// Sequences that exist.
    pub fn sequence_count(&self) -> usize {
        self.lock().sequence_count
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Control)) {
        change(&mut self.lock());
        self.0.1.notify_all();
    }

    /// Waits until the next step may end; how it ends.
    fn pass(&self) -> Result<()> {
        let mut control = self.lock();
        while control.is_held && control.permits == 0 {
            control.waits = true;
            self.0.1.notify_all();
            let waited = self.0.1.wait(control);
            control = waited.unwrap_or_else(PoisonError::into_inner);
        }
        control.waits = false;
        control.permits = control.permits.saturating_sub(1);
        if control.loses_device {
            return Err(Error::new(ErrorKind::DeviceLost, "the script lost it"));
        }
        if control.failures > 0 {
            control.failures -= 1;
            return Err(Error::new(ErrorKind::DeviceError, "the script failed"));
        }
        Ok(())
    }
}

impl StepEngine for ScriptedEngine {
    fn limits(&self) -> EngineLimits {
        self.limits.clone()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> Result<()> {
        if plan.resets_engine() {
            self.sequences.clear();
            self.in_flight.clear();
        }
        for truncation in plan.truncations() {
            if let Some(sequence) = self.sequences.get_mut(&truncation.sequence) {
                sequence.tokens.truncate(truncation.token_count as usize);
            }
        }
        for number in plan.releases() {
            self.sequences.remove(number);
        }
        for admission in plan.admissions() {
            let sequence = Sequence {
                tokens: plan.tokens(admission.tokens).to_vec(),
                ..Sequence::default()
            };
            self.sequences.insert(admission.sequence, sequence);
        }
        for fork in plan.forks() {
            let parent = self.sequences.get(&fork.parent).into_iter();
            let tokens = parent.flat_map(|parent| &parent.tokens).copied();
            let sequence = Sequence {
                tokens: tokens.take(fork.token_count as usize).collect(),
                ..Sequence::default()
            };
            self.sequences.insert(fork.sequence, sequence);
        }
        let sequence_count = self.sequences.len();
        self.control
            .set(|control| control.sequence_count = sequence_count);
        let mut step = Vec::with_capacity(plan.rows().len());
        for row in plan.rows() {
            let sequence = self.sequences.entry(row.sequence).or_default();
            match plan.tokens(row.tokens) {
                [] => sequence.tokens.extend(sequence.sampled),
                tokens => sequence.tokens.extend_from_slice(tokens),
            }
            let (mut token, mut top, mut held) = (None, 0, None);
            if row.samples {
                let sampled = rows.sampled(row);
                check(sampled.sampling, self.limits.vocabulary_size)?;
                let prompt = &sequence.tokens[..sampled.prompt_tokens as usize];
                let answer = sequence
                    .answer
                    .get_or_insert_with(|| (self.script)(prompt, sampled.sampling.seed));
                let drafts = plan.tokens(row.drafts);
                let masks = match (row.is_late, sampled.sampling.mask.as_slice()) {
                    (true, _) | (_, []) => &[],
                    (_, masks) => masks,
                };
                let words = masks.len() / (1 + drafts.len());
                let at = |offset: usize| {
                    let next = answer
                        .get(sampled.index as usize + offset)
                        .or(answer.last());
                    let mask = &masks[offset * words..][..words];
                    allowed(next.copied().unwrap_or_default(), mask)
                };
                let holds = (0..)
                    .zip(drafts)
                    .take_while(|&(offset, draft)| *draft == at(offset));
                let count = holds.count();
                held = (!drafts.is_empty()).then_some(count as u32);
                let next = at(count);
                sequence.tokens.extend_from_slice(&drafts[..count]);
                token = Some(next);
                top = usize::from(sampled.sampling.top_logprobs > 0);
            }
            sequence.sampled = token;
            let hidden = rows.hidden_state(row).map(|of| {
                let tokens = plan.tokens(row.tokens);
                let state = hidden_state(of, tokens, self.limits.embedding_length);
                (row.request, row.first_position, state)
            });
            let scored = rows.scored(row).map(|scored| {
                let count = row.token_count - 1 + u32::from(scored.next.is_some());
                (row.request, row.first_position, count, scored.top)
            });
            step.push(ScriptedRow {
                token,
                held,
                top,
                late: row.is_late.then_some((row.sequence, row.first_position)),
                is_held: false,
                hidden,
                scored,
            });
        }
        if !step.is_empty() {
            self.in_flight.push_back(step);
        }
        Ok(())
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> Result<()> {
        let step = self.in_flight.back_mut();
        let step = step.into_iter().flatten();
        let late = step.filter_map(|row| row.late.map(|at| (row, at)));
        for ((row, (number, first_position)), how) in late.zip(rows) {
            let sequence = self.sequences.entry(number).or_default();
            match how {
                LateRow::Sample(mask) => row.token = row.token.map(|token| allowed(token, mask)),
                LateRow::Hold => {
                    (row.token, row.is_held) = (None, true);
                    sequence.tokens.truncate(first_position as usize);
                }
            }
            sequence.sampled = row.token;
        }
        Ok(())
    }

    fn wait(&mut self, results: &mut StepResults) -> Result<()> {
        self.control.pass()?;
        for row in self.in_flight.pop_front().unwrap_or_default() {
            let outcome = match (row.is_held, row.held, row.token) {
                (true, ..) => RowOutcome::Held,
                (_, Some(held), Some(token)) => RowOutcome::Drafted { held, token },
                (.., token) => RowOutcome::Ok(token),
            };
            let top = row.token.map(|token| (token, 0.0));
            results.push(outcome, 0.0, top.into_iter().take(row.top));
            for _ in 0..row.held.unwrap_or(0) {
                results.push_next(0.0, top.into_iter().take(row.top));
            }
            if let Some((request, first_position, state)) = row.hidden {
                results.push_hidden_state(request, first_position, &state);
            }
            if let Some((request, first_position, count, top)) = row.scored {
                results.begin_scores(request, first_position);
                for position in (first_position + 1..).take(count as usize) {
                    let alternatives = (0..top).map(|token| (token, -0.5 * token as f32));
                    results.push_score(-(position as f32), alternatives);
                }
            }
        }
        Ok(())
    }
}

/// (width) of a row with these tokens.
fn hidden_state(of: HiddenState, tokens: &[Token], width: u32) -> Vec<f32> {
    let tokens = match of {
        HiddenState::First => &tokens[..1],
        HiddenState::Last => &tokens[tokens.len() - 1..],
        HiddenState::Sum => tokens,
    };
    let value = |i| tokens.iter().map(|token| (token + i) as f32).sum();
    (0..width).map(value).collect()
}

/// The token, or the first one that the mask allows.
fn allowed(token: Token, mask: &[u32]) -> Token {
    let allows = |token: Token| {
        let word = mask.get(token as usize / 32);
        word.is_none_or(|word| word >> (token % 32) & 1 == 1)
    };
    let mut others = 0..32 * mask.len() as Token;
    match allows(token) {
        true => token,
        false => others.find(|&other| allows(other)).unwrap_or(token),
    }
}

/// Refuses what engines refuse.
fn check(sampling: &Sampling, vocabulary_size: u32) -> Result<()> {
    let past = |(token, _): &&(Token, f32)| *token >= vocabulary_size;
    match sampling.bias.iter().find(past) {
        Some((token, _)) => {
            let message = format!("a bias for token {token}, the vocabulary has {vocabulary_size}");
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
        None => Ok(()),
    }
}

impl fmt::Debug for ScriptedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedEngine")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ScriptControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptControl({} sequences)", self.sequence_count())
    }
}
