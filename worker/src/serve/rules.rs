//! Answers that follow a rule: `response_format`, and the grammar of tool calls. Rules are compiled on two threads,
//! because compiling cannot be stopped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;
use worker_cuda::generate::constraints::{Compiler, Rule};
use worker_cuda::generate::service::Constraint;
use worker_cuda::text::Tokenizer;

use super::error::ApiError;
use super::fields::Fields;

type Result<T> = std::result::Result<T, ApiError>;
type Compiled = Result<Arc<dyn Constraint>>;

/// Rules that wait for a thread.
const MAX_WAITING: usize = 16;

/// Compiled rules that are kept: agents send the same ones again and again.
const MAX_KEPT: usize = 64;

/// The compilers follow rules into each other.
const STACK_BYTES: usize = 64 << 20;

/// Compiles rules.
pub struct Rules {
    jobs: SyncSender<Job>,
    kept: Mutex<VecDeque<Kept>>,
}

/// A rule that was compiled before, under its digest.
struct Kept {
    digest: [u8; 32],
    rule: Arc<dyn Constraint>,
}

/// Compiles one rule, and sends the result.
type Job = Box<dyn FnOnce(&Shared) + Send>;

/// What the threads share.
struct Shared {
    tokenizer: Option<Arc<Tokenizer>>,
    vocabulary_size: u32,
    compiler: OnceLock<std::result::Result<Compiler, String>>,
}

impl Shared {
    fn compile(&self, rule: &Rule) -> std::result::Result<Arc<dyn Constraint>, String> {
        let compiler = self.compiler.get_or_init(|| match &self.tokenizer {
            Some(tokenizer) => Compiler::new(tokenizer, self.vocabulary_size)
                .map_err(|error| format!("no rules for this vocabulary: {error}")),
            None => Err("this server has no tokenizer".into()),
        });
        let compiled = compiler.as_ref().map_err(String::clone)?.compile(rule);
        compiled.map_err(|error| error.to_string())
    }
}

impl Rules {
    pub fn new(tokenizer: Option<Arc<Tokenizer>>, vocabulary_size: u32) -> Self {
        let (jobs, receiver) = sync_channel(MAX_WAITING);
        let receiver = Arc::new(Mutex::new(receiver));
        let shared = Arc::new(Shared {
            tokenizer,
            vocabulary_size,
            compiler: OnceLock::new(),
        });
        for _ in 0..2 {
            let (receiver, shared) = (Arc::clone(&receiver), Arc::clone(&shared));
            let thread = thread::Builder::new().name("rules".into());
            // Without threads nobody takes the rules, which is reported for each of them.
            let _ = thread
                .stack_size(STACK_BYTES)
                .spawn(move || run(&receiver, &shared));
        }
        Self {
            jobs,
            kept: Mutex::default(),
        }
    }

    /// Compiles a rule, within `most` from now. `param` is the field of the request that has it.
    pub async fn compile(&self, rule: Rule, param: &'static str, most: Duration) -> Compiled {
        let digest = *blake3::hash(format!("{rule:?}").as_bytes()).as_bytes();
        if let Some(kept) = self.find(&digest) {
            return Ok(kept);
        }
        let work = move |shared: &Shared| {
            let compiled = shared.compile(&rule);
            compiled.map_err(|message| ApiError::invalid(param, format!("{param}: {message}")))
        };
        let compiled = self.run(work, param, most).await?;
        let mut list = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let rule = Arc::clone(&compiled);
        list.push_front(Kept { digest, rule });
        list.truncate(MAX_KEPT);
        Ok(compiled)
    }

    fn find(&self, digest: &[u8; 32]) -> Option<Arc<dyn Constraint>> {
        let mut list = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = list.iter().position(|kept| kept.digest == *digest)?;
        let kept = list.remove(at)?;
        let rule = Arc::clone(&kept.rule);
        list.push_front(kept);
        Some(rule)
    }

    async fn run(
        &self,
        work: impl FnOnce(&Shared) -> Compiled + Send + 'static,
        param: &'static str,
        most: Duration,
    ) -> Compiled {
        let (sender, answer) = oneshot::channel();
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&has_begun);
        let job = move |shared: &Shared| {
            begun.store(true, Ordering::Relaxed);
            if !sender.is_closed() {
                // Who waited may have left.
                let _ = sender.send(work(shared));
            }
        };
        let busy = || {
            ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "rules_busy",
                "too many rules of answers are being compiled",
            )
            .with_retry_after(most)
        };
        self.jobs.try_send(Box::new(job)).map_err(|_| busy())?;
        match timeout(most, answer).await {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) => Err(ApiError::invalid(
                param,
                format!("{param} cannot be compiled"),
            )),
            Err(_) if has_begun.load(Ordering::Relaxed) => {
                let message = format!(
                    "{param} took longer than {} ms to compile",
                    most.as_millis()
                );
                Err(ApiError::invalid(param, message))
            }
            Err(_) => Err(busy()),
        }
    }
}

fn run(jobs: &Mutex<Receiver<Job>>, shared: &Shared) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else {
            return; // the server has ended
        };
        // Its sender is dropped then, which reports the failure.
        let _ = catch_unwind(AssertUnwindSafe(|| job(shared)));
    }
}

/// Reads `response_format`. None: the answer is free.
pub fn response_format(fields: &mut Fields) -> Result<Option<Rule>> {
    let Some(mut format) = fields.take_object("response_format")? else {
        return Ok(None);
    };
    let kind = format.string("type")?.unwrap_or_default();
    let rule = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Rule::JsonObject),
        "json_schema" => Some(Rule::JsonSchema(schema(format)?)),
        "grammar" => Some(grammar(format)?),
        _ => {
            let name = format.name("type");
            let message = format!("{name} must be text, json_object, json_schema or grammar");
            return Err(ApiError::invalid(name, message));
        }
    };
    Ok(rule)
}

/// `{"json_schema":{"name","schema","strict"}}`, or without the object around, as the Responses API has it. Every
/// schema is kept strictly, and a schema that cannot be is refused.
fn schema(mut format: Fields) -> Result<Value> {
    let mut inner = match format.take_object("json_schema")? {
        Some(inner) => inner,
        None => format,
    };
    inner.required("schema")
}

fn grammar(mut format: Fields) -> Result<Rule> {
    let place = format.name("definition");
    let Value::String(definition) = format.required("definition")? else {
        return Err(ApiError::invalid(
            place.clone(),
            format!("{place} must be a string"),
        ));
    };
    match format.string("syntax")?.as_deref() {
        Some("lark") => Ok(Rule::Lark(definition)),
        Some("regex") => Ok(Rule::Regex(definition)),
        _ => {
            let name = format.name("syntax");
            let message = format!("{name} must be lark or regex");
            Err(ApiError::invalid(name, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build();
        runtime.expect("a runtime").block_on(future)
    }

    fn status(compiled: Compiled) -> u16 {
        compiled.err().expect("an error").status.as_u16()
    }

    #[test]
    fn what_takes_too_long_is_refused_and_so_is_what_cannot_begin() {
        let rules = Rules::new(None, 1);
        let short = Duration::from_millis(1);
        let long = Duration::from_secs(3600);
        let mut ends = Vec::new();
        let mut stuck = || {
            let (end, never) = sync_channel::<()>(0);
            let (begun, has_begun) = sync_channel(1);
            ends.push(end);
            let work = move |_: &Shared| -> Compiled {
                let _ = begun.send(());
                let _ = never.recv();
                Err(ApiError::internal("ended"))
            };
            (work, has_begun)
        };
        // The threads take two rules that never end.
        for _ in 0..2 {
            let (work, has_begun) = stuck();
            let running = async {
                let waits = rules.run(work, "response_format", long);
                let mut waits = std::pin::pin!(waits);
                // It is sent by the first poll.
                let _ = timeout(Duration::ZERO, &mut waits).await;
                has_begun.recv().expect("a thread takes it");
                timeout(Duration::ZERO, waits).await.is_err()
            };
            assert!(block_on(running));
        }
        // One that waits, and one that finds the queue full.
        assert_eq!(
            status(block_on(rules.run(stuck().0, "response_format", short))),
            503
        );
        for _ in 1..MAX_WAITING {
            let (work, _) = stuck();
            assert_eq!(
                status(block_on(rules.run(work, "response_format", short))),
                503
            );
        }
        let full = rules.run(stuck().0, "response_format", long);
        assert_eq!(status(block_on(full)), 503);
        drop(ends);
    }

    #[test]
    fn a_rule_that_has_begun_and_does_not_end_is_the_fault_of_the_request() {
        let rules = Rules::new(None, 1);
        // A poll that takes longer than the rule may is repeated with another one.
        let late = || {
            let (begun, has_begun) = sync_channel(1);
            let (end, never) = sync_channel::<()>(0);
            let work = move |_: &Shared| -> Compiled {
                let _ = begun.send(());
                let _ = never.recv();
                Err(ApiError::internal("ended"))
            };
            let rules = &rules;
            async move {
                let waits = rules.run(work, "response_format", Duration::from_millis(1));
                let mut waits = std::pin::pin!(waits);
                let first = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context)));
                if first.await.is_ready() {
                    return None;
                }
                has_begun.recv().expect("a thread takes it");
                let status = status(waits.await);
                drop(end);
                Some(status)
            }
        };
        let found = std::iter::repeat_with(|| block_on(late())).find_map(|status| status);
        assert_eq!(found, Some(400));
    }

    #[test]
    fn a_panic_and_a_missing_tokenizer_are_errors() {
        let rules = Rules::new(None, 1);
        let long = Duration::from_secs(3600);
        let panics = rules.run(
            |_| panic!("a compiler that panics"),
            "response_format",
            long,
        );
        assert_eq!(status(block_on(panics)), 400);
        let none = rules.compile(Rule::JsonObject, "response_format", long);
        assert_eq!(status(block_on(none)), 400);
    }
}
