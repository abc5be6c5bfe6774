//! Measurements of a server, in Prometheus' text format. Written out here: the crates for it add 53 to the
//! build, and this is one function and a histogram.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use worker_cuda::generate::service::{Observation, Observer, Stats};

use super::app::App;

const FIRST_TOKEN_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN_S: [f64; 23] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const LONG_S: [f64; 18] = [
    0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    3840.0, 7680.0,
];
const MS: [f64; 14] = [
    1.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 3e5,
];

/// Counts values below each of some bounds.
#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last counts what is above all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    fn add(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        header(name, help, "histogram", out);
        let mut total = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            total += count;
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total += self.counts.last().unwrap_or(&0);
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum {}\n{name}_count {total}", self.sum);
    }
}

#[derive(Debug)]
struct Measured {
    first_token: Histogram,
    inter_token: Histogram,
    queue: Histogram,
    step: Histogram,
    request: Histogram,
    duration_ms: Histogram,
    /// Requests by how they ended.
    outcomes: BTreeMap<&'static str, u64>,
    /// Choices by why they ended.
    finished: BTreeMap<&'static str, u64>,
    /// Answers by HTTP status.
    statuses: BTreeMap<u16, u64>,
}

/// What a server has measured. Give it to the service as its observer, and to the server.
#[derive(Debug)]
pub struct Metrics(Mutex<Measured>);

impl Default for Metrics {
    fn default() -> Self {
        Self(Mutex::new(Measured {
            first_token: Histogram::new(&FIRST_TOKEN_S),
            inter_token: Histogram::new(&INTER_TOKEN_S),
            queue: Histogram::new(&LONG_S),
            step: Histogram::new(&INTER_TOKEN_S),
            request: Histogram::new(&LONG_S),
            duration_ms: Histogram::new(&MS),
            outcomes: BTreeMap::new(),
            finished: BTreeMap::new(),
            statuses: BTreeMap::new(),
        }))
    }
}

impl Observer for Metrics {
    fn observe(&self, observation: Observation<'_>) {
        let mut measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = |time: Duration| time.as_secs_f64();
        match observation {
            Observation::Queue(time) => measured.queue.add(seconds(time)),
            Observation::FirstToken(time) => measured.first_token.add(seconds(time)),
            Observation::InterToken(time) => measured.inter_token.add(seconds(time)),
            Observation::Step { duration, .. } => measured.step.add(seconds(duration)),
            Observation::Finished(reason) => {
                *measured.finished.entry(reason.as_str()).or_default() += 1;
            }
            Observation::Done(_, time) => {
                measured.request.add(seconds(time));
                measured.duration_ms.add(seconds(time) * 1e3);
                *measured.outcomes.entry("done").or_default() += 1;
            }
            Observation::Cancelled => {
                *measured.outcomes.entry("cancelled").or_default() += 1;
            }
            Observation::Failed(error) => {
                *measured.outcomes.entry(error.as_str()).or_default() += 1;
            }
            _ => {}
        }
    }
}

impl Metrics {
    pub(super) fn count_status(&self, status: u16) {
        let mut measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *measured.statuses.entry(status).or_default() += 1;
    }

    /// All of them as text.
    pub(super) fn write(&self, app: &App) -> String {
        let stats = app.stats();
        let mut out = String::with_capacity(16 << 10);
        let out = &mut out;
        let gauge = "gauge";
        let counter = "counter";
        let uptime = app.started.elapsed().as_secs_f64();
        single(
            "worker_uptime_seconds",
            "Time since the start",
            gauge,
            uptime,
            out,
        );
        if let Some(memory) = &app.model.memory {
            let values: Vec<_> = memory();
            let total: u64 = values.iter().map(|(_, bytes)| bytes).sum();
            single(
                "worker_vram_bytes",
                "Device memory in use",
                gauge,
                total,
                out,
            );
            let name = "worker_vram_purpose_bytes";
            labelled(
                name,
                "Device memory by purpose",
                gauge,
                "purpose",
                &values,
                out,
            );
        }
        for (name, help, kind, value) in [
            (
                "worker_requests_running",
                "Choices that have a sequence",
                gauge,
                stats.running.into(),
            ),
            (
                "worker_requests_waiting",
                "Choices that wait for one",
                gauge,
                stats.waiting.into(),
            ),
            (
                "worker_requests_accepted_total",
                "Accepted requests",
                counter,
                stats.accepted,
            ),
            (
                "worker_requests_rejected_total",
                "Refused requests",
                counter,
                stats.rejected,
            ),
            (
                "worker_preemptions_total",
                "Preemptions",
                counter,
                stats.preempted,
            ),
            (
                "worker_engine_faults_total",
                "Failed steps",
                counter,
                stats.engine_faults,
            ),
            (
                "worker_steps_total",
                "Steps that ended well",
                counter,
                stats.steps,
            ),
            (
                "worker_prompt_tokens_total",
                "Prompt tokens",
                counter,
                stats.prompt_tokens,
            ),
            (
                "worker_cached_tokens_total",
                "Prompt tokens that were shared",
                counter,
                stats.cached_tokens,
            ),
            (
                "worker_tokens_generated_total",
                "Generated tokens",
                counter,
                stats.generated_tokens,
            ),
            (
                "worker_draft_tokens_total",
                "Draft tokens that steps have verified",
                counter,
                stats.draft_tokens,
            ),
            (
                "worker_accepted_draft_tokens_total",
                "Draft tokens that held",
                counter,
                stats.accepted_draft_tokens,
            ),
        ] {
            single(name, help, kind, value, out);
        }
        let pages = [
            ("free", u64::from(stats.free_pages)),
            ("cached", stats.cached_pages.into()),
            ("held", stats.held_pages.into()),
        ];
        labelled(
            "worker_kv_pages",
            "Pages of the KV cache",
            gauge,
            "state",
            &pages,
            out,
        );
        self.write_measured(out);
        let mut models = vec![(app.model.id().to_owned(), app.service.stats())];
        let loaded = app.models.loaded();
        models.extend(
            loaded
                .iter()
                .map(|app| (app.model.id().to_owned(), app.service.stats())),
        );
        write_of_models(&models, out);
        std::mem::take(out)
    }

    fn write_measured(&self, out: &mut String) {
        let measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = |map: &BTreeMap<&'static str, u64>| -> Vec<(&'static str, u64)> {
            map.iter().map(|(name, count)| (*name, *count)).collect()
        };
        let (outcomes, finished) = (list(&measured.outcomes), list(&measured.finished));
        let (name, kind) = ("worker_requests_total", "counter");
        labelled(
            name,
            "Requests that have ended",
            kind,
            "outcome",
            &outcomes,
            out,
        );
        let name = "worker_choices_finished_total";
        labelled(
            name,
            "Choices that have ended",
            kind,
            "reason",
            &finished,
            out,
        );
        header(
            "worker_http_responses_total",
            "Answers by status",
            kind,
            out,
        );
        for (status, count) in &measured.statuses {
            let _ = writeln!(
                out,
                "worker_http_responses_total{{status=\"{status}\"}} {count}"
            );
        }
        for (histogram, name, help) in [
            (
                &measured.duration_ms,
                "worker_inference_duration_ms",
                "Duration of a request",
            ),
            (
                &measured.request,
                "worker_request_seconds",
                "Duration of a request",
            ),
            (
                &measured.queue,
                "worker_queue_seconds",
                "Wait of a choice for its first step",
            ),
            (
                &measured.first_token,
                "worker_time_to_first_token_seconds",
                "Submission to first token",
            ),
            (
                &measured.inter_token,
                "worker_inter_token_seconds",
                "From one token to the next",
            ),
            (&measured.step, "worker_step_seconds", "Duration of a step"),
        ] {
            histogram.write(name, help, out);
        }
    }
}

/// What routers read to choose a server, by the names that they know.
fn write_of_models(models: &[(String, Stats)], out: &mut String) {
    type Gauge = fn(&Stats) -> f64;
    let gauges: [(&str, &str, Gauge); 3] = [
        (
            "vllm:num_requests_running",
            "As worker_requests_running",
            |stats| stats.running.into(),
        ),
        (
            "vllm:num_requests_waiting",
            "As worker_requests_waiting",
            |stats| stats.waiting.into(),
        ),
        (
            "vllm:kv_cache_usage_perc",
            "Share of KV pages in use",
            Stats::page_use,
        ),
    ];
    for (name, help, value) in gauges {
        header(name, help, "gauge", out);
        for (model, stats) in models {
            let (model, value) = (label(model), value(stats));
            let _ = writeln!(out, "{name}{{model_name=\"{model}\"}} {value}");
        }
    }
    let name = "vllm:cache_config_info";
    header(name, "Size of the KV cache", "gauge", out);
    let Some((_, first)) = models.first() else {
        return;
    };
    let (size, count) = (first.page_tokens, first.page_count);
    let _ = writeln!(
        out,
        "{name}{{block_size=\"{size}\",num_gpu_blocks=\"{count}\"}} 1"
    );
}

fn header(name: &str, help: &str, kind: &str, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn single(name: &str, help: &str, kind: &str, value: impl std::fmt::Display, out: &mut String) {
    header(name, help, kind, out);
    let _ = writeln!(out, "{name} {value}");
}

fn labelled(
    name: &str,
    help: &str,
    kind: &str,
    key: &str,
    values: &[(&'static str, u64)],
    out: &mut String,
) {
    header(name, help, kind, out);
    for (value, count) in values {
        let _ = writeln!(out, "{name}{{{key}=\"{value}\"}} {count}");
    }
}

/// A text as the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_count_upwards_and_end_with_all() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.5, 0.75, 7.0] {
            histogram.add(value);
        }
        let mut text = String::new();
        histogram.write("x", "y", &mut text);
        assert_eq!(
            text,
            "# HELP x y\n# TYPE x histogram\nx_bucket{le=\"0.5\"} 1\nx_bucket{le=\"1\"} 2\n\
             x_bucket{le=\"+Inf\"} 3\nx_sum 8.25\nx_count 3\n"
        );
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
