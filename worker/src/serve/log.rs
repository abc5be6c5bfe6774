//! The log: one record a request, as a line of JSON.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use serde_json::{Map, Value, json};
use worker_cuda::generate::FinishReason;
use worker_cuda::generate::service::Event;

use super::app::{App, unix_seconds};
use super::keys::Caller;

/// Takes the lines, without line ends.
pub type RequestLog = dyn Fn(&str) + Send + Sync;

/// Lines that wait to be written.
const LINES_MAX: usize = 1024;

/// Writes lines on a thread of its own, so that a reader that stalls or has left holds up no request. Lines that
/// do not fit are dropped, and counted in the next one that does.
pub fn line_writer(mut output: impl Write + Send + 'static) -> Arc<RequestLog> {
    let (sender, lines) = mpsc::sync_channel::<String>(LINES_MAX);
    std::thread::spawn(move || {
        for line in lines {
            // Nobody is left to hear of an error.
            let _ = writeln!(output, "{line}");
        }
    });
    let dropped = AtomicU64::new(0);
    Arc::new(move |line: &str| {
        let lost = dropped.swap(0, Relaxed);
        let mut text = line.to_owned();
        if lost > 0 {
            text = format!("{{\"dropped_lines\":{lost}}}\n{text}");
        }
        if sender.try_send(text).is_err() {
            dropped.fetch_add(lost + 1, Relaxed);
        }
    })
}

/// A line that belongs to no request.
pub fn warning(level: &str, part: &str, message: &str) -> String {
    let line = json!({ "time": unix_seconds(), "level": level, "part": part, "message": message });
    line.to_string()
}

/// What is known of a request. It is written when the last clone of its `Arc` is dropped: after the last byte of
/// the answer, or when the client has left.
pub struct Entry {
    app: Arc<App>,
    record: Mutex<Record>,
}

/// Counts are over all choices and inputs.
#[derive(Default)]
struct Record {
    head: Map<String, Value>,
    status: u16,
    begun: Duration,
    accepted: bool,
    prompt_tokens: usize,
    cached_tokens: u32,
    completion_tokens: u32,
    queued: Option<Duration>,
    /// (choices): times of the first and the last token.
    spans: Vec<Option<(Duration, Duration)>>,
    /// A choice was cancelled.
    was_cancelled: bool,
    end: Option<Result<(), &'static str>>,
    texts: Option<(String, String)>,
}

impl Entry {
    pub fn new(app: &Arc<App>, id: &str, method: &str, path: &str) -> Self {
        let head = json!({ "time": unix_seconds(), "id": id, "method": method, "path": path });
        let Value::Object(head) = head else {
            unreachable!("json! of braces is an object")
        };
        let record = Record {
            head,
            begun: app.service.clock().now(),
            ..Record::default()
        };
        Self {
            app: Arc::clone(app),
            record: Mutex::new(record),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_caller(&self, caller: &Caller) {
        let name: &str = &caller.name;
        self.lock().head.insert("tenant".into(), name.into());
    }

    pub fn set_status(&self, status: u16) {
        self.lock().status = status;
    }

    /// The service of `app` has accepted the request with this prompt, or with the next one of several.
    pub fn accept(&self, app: &App, prompt: &[worker_cuda::Token], choices: u32) {
        let mut record = self.lock();
        record.accepted = true;
        record.prompt_tokens += prompt.len() * choices as usize;
        if self.app.options.log_texts {
            let tokenizer = app.service.tokenizer();
            let text = tokenizer.and_then(|tokenizer| {
                let options = worker_cuda::text::DecodeOptions {
                    show_special: true,
                    at_text_start: true,
                };
                tokenizer.decode(prompt, options).ok()
            });
            let texts = record.texts.get_or_insert_default();
            texts.0.push_str(&text.unwrap_or_default());
        }
    }

    /// Something was reported for it.
    pub fn observe(&self, event: &Event) {
        if self.app.options.log.is_none() {
            return;
        }
        let now = self.app.service.clock().now();
        let mut record = self.lock();
        let mut append = |text: &str| {
            if let Some((_, answer)) = &mut record.texts {
                answer.push_str(text);
            }
        };
        match event {
            Event::Token(token) => {
                append(&token.text);
                record.add_token(token.choice as usize, now);
            }
            Event::Finished { reason, text, .. } => {
                append(text);
                record.was_cancelled |= *reason == FinishReason::Cancelled;
            }
            Event::Started {
                queued,
                cached_tokens,
                ..
            } => {
                record.queued.get_or_insert(*queued);
                record.cached_tokens += cached_tokens;
            }
            Event::Done(_) => record.end = Some(Ok(())),
            Event::Failed(error) => record.end = Some(Err(error.as_str())),
            _ => {}
        }
    }
}

impl Record {
    fn add_token(&mut self, choice: usize, now: Duration) {
        if self.spans.len() <= choice {
            self.spans.resize(choice + 1, None);
        }
        self.spans[choice].get_or_insert((now, now)).1 = now;
        self.completion_tokens += 1;
    }

    /// Mean time between tokens of the same choice.
    fn between_tokens(&self) -> Option<Duration> {
        let spans = self.spans.iter().flatten();
        let gaps = self.completion_tokens - spans.clone().count() as u32;
        let time: Duration = spans.map(|(first, last)| last.saturating_sub(*first)).sum();
        time.checked_div(gaps)
    }

    fn outcome(&self) -> &'static str {
        match &self.end {
            Some(Ok(())) if self.was_cancelled => "cancelled",
            Some(Ok(())) => "done",
            Some(Err(name)) => name,
            // Without a status the client has left before an answer began.
            None if self.accepted || self.status == 0 => "cancelled",
            None if self.status < 400 => "answered",
            None => "refused",
        }
    }

    fn line(&mut self, now: Duration) -> String {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let mut line = std::mem::take(&mut self.head);
        let mut set = |name: &str, value: Value| line.insert(name.to_owned(), value);
        set("status", self.status.into());
        set("outcome", self.outcome().into());
        set("total_ms", ms(now.saturating_sub(self.begun)).into());
        if self.accepted {
            set("prompt_tokens", self.prompt_tokens.into());
            set("cached_tokens", self.cached_tokens.into());
            set("completion_tokens", self.completion_tokens.into());
            set("queue_ms", json!(self.queued.map(ms)));
            let first = self.spans.iter().flatten().map(|(first, _)| *first).min();
            let first = first.map(|time| time.saturating_sub(self.begun));
            set("ttft_ms", json!(first.map(ms)));
            let between = self.between_tokens();
            set("itl_ms", json!(between.map(ms)));
        }
        if let Some((prompt, answer)) = &self.texts {
            set("prompt", prompt.as_str().into());
            set("answer", answer.as_str().into());
        }
        Value::Object(line).to_string()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(log) = &self.app.options.log {
            let now = self.app.service.clock().now();
            let line = self.lock().line(now);
            log(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a line only when the test lets it.
    struct Slow(mpsc::Receiver<()>, mpsc::Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0.recv().is_err() {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_time_between_tokens_is_that_of_a_choice() {
        let mut record = Record {
            accepted: true,
            begun: Duration::from_millis(5),
            ..Record::default()
        };
        assert_eq!(record.between_tokens(), None);
        for (ms, choice) in [(15, 1), (15, 0), (25, 1), (25, 0), (37, 1)] {
            record.add_token(choice, Duration::from_millis(ms));
        }
        let line: Value =
            serde_json::from_str(&record.line(Duration::from_millis(45))).expect("JSON");
        let times =
            ["ttft_ms", "itl_ms", "total_ms", "completion_tokens"].map(|name| line[name].as_f64());
        // 22 ms between three tokens, 10 ms between two.
        assert_eq!(times, [10.0, 10.667, 40.0, 5.0].map(Some));
    }

    #[test]
    fn who_leaves_before_an_answer_has_cancelled() {
        let mut record = Record::default();
        assert_eq!(record.outcome(), "cancelled");
        record.status = 200;
        assert_eq!(record.outcome(), "answered");
        record.status = 400;
        assert_eq!(record.outcome(), "refused");
    }

    #[test]
    fn a_reader_that_stalls_or_leaves_holds_up_nobody() {
        let (go, may_go) = mpsc::channel();
        let (written, has_written) = mpsc::channel();
        let log = line_writer(Slow(may_go, written));
        // Each of these would wait for ever for the reader.
        for _ in 0..2 * LINES_MAX {
            log("line");
        }
        go.send(()).expect("it writes");
        assert!(has_written.recv().expect("bytes").starts_with(b"line"));
        drop(go);
        log("after the reader has left");
    }
}
