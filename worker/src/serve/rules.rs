//! Answers that follow a rule: `response_format`, and the grammar of tool calls. Rules are compiled on two threads,
//! because compiling cannot be stopped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;
use worker_cuda::ErrorKind;
use worker_cuda::generate::constraints::{Compiler, Rule};
use worker_cuda::generate::service::{Constraint, Turns};
use worker_cuda::text::Tokenizer;

use super::error::ApiError;
use super::fields::Fields;

type Result<T> = std::result::Result<T, ApiError>;

/// A rule, or why it cannot be one.
pub type Compiled = std::result::Result<Arc<dyn Constraint>, String>;

const THREADS: usize = 2;

/// Rules that wait for a thread.
const MAX_WAITING: usize = 16;

/// Compiled and refused rules that are kept: agents send the same ones again and again.
const MAX_KEPT: usize = 64;

/// Compiles rules.
pub struct Rules(Arc<Shared>);

/// What the threads share.
struct Shared {
    compile: Box<Compile>,
    /// Whether there are several tenants: each gets one thread at most, and leaves others as many places as it takes.
    has_tenants: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// None: there was no memory for it.
type Compile = dyn Fn(&Rule) -> Option<Compiled> + Send + Sync;

#[derive(Default)]
struct Queue {
    waiting: Turns<Job>,
    /// Tenants whose rules are compiled now.
    running: Vec<u32>,
    /// The latest first.
    kept: VecDeque<Kept>,
    is_closed: bool,
}

type Digest = [u8; 32];

struct Job {
    digest: Digest,
    rule: Rule,
    progress: watch::Sender<Progress>,
}

#[derive(Clone)]
enum Progress {
    Waiting,
    Begun,
    Done(Compiled),
}

struct Kept {
    digest: Digest,
    progress: watch::Receiver<Progress>,
}

impl Rules {
    /// Reads the vocabulary, and starts the threads.
    pub fn new(
        tokenizer: Option<&Arc<Tokenizer>>,
        vocabulary_size: u32,
        has_tenants: bool,
    ) -> Self {
        let compiler = match tokenizer {
            Some(tokenizer) => Compiler::new(tokenizer, vocabulary_size)
                .map_err(|error| format!("no rules for this vocabulary: {error}")),
            None => Err("this server has no tokenizer".into()),
        };
        Self::with(has_tenants, move |rule| {
            let compiler = match &compiler {
                Ok(compiler) => compiler,
                Err(message) => return Some(Err(message.clone())),
            };
            match compiler.compile(rule) {
                Err(error) if error.kind() != ErrorKind::InvalidArgument => None,
                compiled => Some(compiled.map_err(|error| error.to_string())),
            }
        })
    }

    fn with(
        has_tenants: bool,
        compile: impl Fn(&Rule) -> Option<Compiled> + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            compile: Box::new(compile),
            has_tenants,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            // Without threads nobody takes the rules, which is reported for each of them.
            let _ = thread::Builder::new()
                .name("rules".into())
                .spawn(move || shared.run());
        }
        Self(shared)
    }

    /// Compiles a rule, within `most` from now. `param` is the field of the request that has it.
    pub async fn compile(
        &self,
        tenant: u32,
        rule: Rule,
        param: &'static str,
        most: Duration,
    ) -> Result<Compiled> {
        let busy = || {
            ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "rules_busy",
                "too many rules of answers are being compiled",
            )
            .with_retry_after(most)
        };
        let mut progress = self.0.ask(tenant, rule).ok_or_else(busy)?;
        let is_done = |progress: &Progress| matches!(progress, Progress::Done(_));
        let last = match timeout(most, progress.wait_for(is_done)).await {
            Ok(Ok(done)) => Some(done.clone()),
            _ => None,
        };
        let last = last.unwrap_or_else(|| progress.borrow().clone());
        match last {
            Progress::Done(compiled) => Ok(compiled),
            Progress::Waiting => Err(busy()),
            // There was no memory for it.
            Progress::Begun if progress.has_changed().is_err() => Err(busy()),
            Progress::Begun => {
                let most = most.as_millis();
                let message = format!("{param} took longer than {most} ms to compile");
                let error = ApiError::new(StatusCode::BAD_REQUEST, "rule_too_slow", message);
                Err(error.with_param(param))
            }
        }
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far a rule is. None: there is no place for it.
    fn ask(&self, tenant: u32, rule: Rule) -> Option<watch::Receiver<Progress>> {
        let digest = *blake3::hash(format!("{rule:?}").as_bytes()).as_bytes();
        let mut queue = self.lock();
        if let Some(progress) = queue.find(&digest) {
            return Some(progress);
        }
        let taken = match self.has_tenants {
            true => queue.waiting.len_of(tenant),
            false => 0,
        };
        if queue.waiting.len() + taken >= MAX_WAITING {
            return None;
        }
        let (sender, progress) = watch::channel(Progress::Waiting);
        let job = Job {
            digest,
            rule,
            progress: sender,
        };
        queue.waiting.push(tenant, job);
        queue.keep(digest, progress.clone());
        self.changed.notify_one();
        Some(progress)
    }

    fn run(&self) {
        let mut queue = self.lock();
        while !queue.is_closed {
            let Some((tenant, job)) = queue.next(self.has_tenants) else {
                let waited = self.changed.wait(queue);
                queue = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.running.push(tenant);
            drop(queue);
            job.progress.send_replace(Progress::Begun);
            let compiled = catch_unwind(AssertUnwindSafe(|| (self.compile)(&job.rule)));
            let failed = |_| Some(Err("the rule cannot be compiled".into()));
            let compiled = compiled.unwrap_or_else(failed);
            queue = self.lock();
            if let Some(at) = queue.running.iter().position(|&other| other == tenant) {
                queue.running.swap_remove(at);
            }
            match compiled {
                Some(compiled) => {
                    job.progress.send_replace(Progress::Done(compiled));
                }
                None => queue.forget(&job.digest),
            }
            // Another thread may have left rules of this tenant.
            self.changed.notify_all();
        }
    }
}

impl Queue {
    fn find(&mut self, digest: &Digest) -> Option<watch::Receiver<Progress>> {
        let at = self.kept.iter().position(|kept| kept.digest == *digest)?;
        let kept = self.kept.remove(at)?;
        let progress = kept.progress.clone();
        self.kept.push_front(kept);
        Some(progress)
    }

    fn keep(&mut self, digest: Digest, progress: watch::Receiver<Progress>) {
        self.kept.push_front(Kept { digest, progress });
        self.kept.truncate(MAX_KEPT);
    }

    fn forget(&mut self, digest: &Digest) {
        self.kept.retain(|kept| kept.digest != *digest);
    }

    /// The next rule to compile, without those for which nobody waits any more.
    fn next(&mut self, has_tenants: bool) -> Option<(u32, Job)> {
        loop {
            let running = &self.running;
            let may_run = |tenant| !(has_tenants && running.contains(&tenant));
            let (tenant, job) = self.waiting.pop(may_run)?;
            let is_kept = self.kept.iter().any(|kept| kept.digest == job.digest);
            if job.progress.receiver_count() > usize::from(is_kept) {
                return Some((tenant, job));
            }
            self.forget(&job.digest);
        }
    }
}

/// Reads `response_format`. None: the answer is free.
pub fn response_format(fields: &mut Fields, unknown: &mut Vec<String>) -> Result<Option<Rule>> {
    let Some(mut format) = fields.take_object("response_format")? else {
        return Ok(None);
    };
    let kind = format.string("type")?.unwrap_or_default();
    let rule = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Rule::JsonObject),
        "json_schema" => Some(Rule::JsonSchema(schema(&mut format, unknown)?)),
        "grammar" => Some(grammar(&mut format)?),
        _ => {
            let name = format.name("type");
            let message = format!("{name} must be text, json_object, json_schema or grammar");
            return Err(ApiError::invalid(name, message));
        }
    };
    format.end(unknown);
    Ok(rule)
}

/// `{"json_schema":{"name","schema","strict"}}`, or without the object around, as the Responses API has it. Every
/// schema is kept strictly, and a schema that cannot be is refused.
fn schema(format: &mut Fields, unknown: &mut Vec<String>) -> Result<Value> {
    const HARMLESS: [&str; 3] = ["name", "description", "strict"];
    let Some(mut inner) = format.take_object("json_schema")? else {
        format.skip(&HARMLESS);
        return format.required("schema");
    };
    inner.skip(&HARMLESS);
    let schema = inner.required("schema")?;
    inner.end(unknown);
    Ok(schema)
}

fn grammar(format: &mut Fields) -> Result<Rule> {
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
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(3600);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build();
        runtime.expect("a runtime").block_on(future)
    }

    /// A compiler that refuses all rules. It reports the name of each, and waits for a permit if that is in capitals.
    struct Slow {
        rules: Rules,
        begun: Receiver<String>,
        /// When it is dropped, all may continue.
        permit: Sender<()>,
    }

    impl Slow {
        fn new(has_tenants: bool) -> Self {
            let (begin, begun) = channel();
            let (permit, permits) = channel();
            let permits = Mutex::new(permits);
            let rules = Rules::with(has_tenants, move |rule| {
                let Rule::Regex(name) = rule else {
                    return None;
                };
                let _ = begin.send(name.clone());
                if name.chars().all(char::is_uppercase) {
                    let _ = permits.lock().expect("no panic").recv();
                }
                assert_ne!(name, "panics");
                Some(Err(format!("not {name}")))
            });
            Self {
                rules,
                begun,
                permit,
            }
        }

        fn compile(&self, tenant: u32, name: &str, most: Duration) -> Result<Compiled> {
            let rule = Rule::Regex(name.into());
            block_on(self.rules.compile(tenant, rule, "response_format", most))
        }

        #[track_caller]
        fn assert_refused(&self, tenant: u32, name: &str) {
            let compiled = self.compile(tenant, name, LONG).expect("it is compiled");
            assert_eq!(compiled.err(), Some(format!("not {name}")));
        }

        #[track_caller]
        fn assert_status(&self, tenant: u32, name: &str, status: u16) {
            let error = self.compile(tenant, name, SHORT).err();
            assert_eq!(error.expect("an error").status.as_u16(), status, "{name}");
        }

        /// Asks for a rule without waiting for it, and keeps asking.
        fn ask(&self, tenant: u32, name: &str) -> watch::Receiver<Progress> {
            let progress = self.rules.0.ask(tenant, Rule::Regex(name.into()));
            progress.expect("there is a place")
        }
    }

    #[test]
    fn what_takes_too_long_is_refused_and_so_is_what_cannot_begin() {
        let slow = Slow::new(false);
        let _running = ["A", "B"].map(|name| slow.ask(0, name));
        for _ in 0..2 {
            slow.begun.recv().expect("a thread takes it");
        }
        slow.assert_status(0, "A", 400);
        let mut waiting = Vec::new();
        for number in 0..MAX_WAITING {
            slow.assert_status(0, &format!("waits{number}"), 503);
            waiting.push(slow.ask(0, &format!("waits{number}")));
        }
        assert!(slow.rules.0.ask(0, Rule::JsonObject).is_none());
        slow.assert_status(0, "more", 503);
        // What has ended late is known from then on.
        drop(slow.permit);
        let again = Rule::Regex("A".into());
        let again = slow.rules.compile(0, again, "response_format", LONG);
        assert!(block_on(again).expect("it is compiled").is_err());
    }

    #[test]
    fn a_tenant_leaves_a_thread_and_places_to_others() {
        let slow = Slow::new(true);
        let _running = slow.ask(0, "A");
        assert_eq!(slow.begun.recv().as_deref(), Ok("A"));
        let _waiting: Vec<_> = ["B", "C", "D", "E", "F", "G", "H", "I"]
            .map(|name| slow.ask(0, name))
            .into();
        assert!(slow.rules.0.ask(0, Rule::JsonObject).is_none());
        slow.assert_refused(1, "quick");
        slow.assert_refused(2, "quicker");
        drop(slow.permit);
        let mut order = slow.begun.iter();
        assert!(order.by_ref().take(2).eq(["quick", "quicker"]));
        assert!(order.take(8).eq(["B", "C", "D", "E", "F", "G", "H", "I"]));
    }

    #[test]
    fn equal_rules_are_compiled_once_and_failures_are_kept() {
        let slow = Slow::new(false);
        let waits = [slow.ask(0, "A"), slow.ask(1, "A")];
        slow.permit.send(()).expect("it is compiled");
        slow.assert_refused(2, "A");
        for _ in 0..2 {
            slow.assert_refused(0, "wrong");
        }
        let panics = slow.compile(0, "panics", LONG).expect("it is compiled");
        let message = "the rule cannot be compiled".to_owned();
        assert_eq!(panics.err(), Some(message));
        drop(waits);
        let begun: Vec<String> = slow.begun.try_iter().collect();
        assert_eq!(begun, ["A", "wrong", "panics"]);
        // What there was no memory for is none.
        for _ in 0..2 {
            let nothing = slow.rules.compile(0, Rule::JsonObject, "tools", LONG);
            let error = block_on(nothing).err().expect("an error");
            assert_eq!(error.status.as_u16(), 503);
        }
    }

    #[test]
    fn rules_for_which_nobody_waits_are_not_compiled() {
        let slow = Slow::new(false);
        let _running = ["A", "B"].map(|name| slow.ask(0, name));
        for _ in 0..2 {
            slow.begun.recv().expect("a thread takes it");
        }
        slow.assert_status(0, "left", 503);
        let waits = slow.ask(0, "waits");
        drop(slow.permit);
        assert_eq!(slow.begun.recv().as_deref(), Ok("waits"));
        drop(waits);
    }

    #[test]
    fn without_a_tokenizer_no_rule_is_possible() {
        let rules = Rules::new(None, 1, false);
        let none = rules.compile(0, Rule::JsonObject, "response_format", LONG);
        assert!(block_on(none).expect("it is compiled").is_err());
    }
}
