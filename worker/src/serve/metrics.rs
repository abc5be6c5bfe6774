//! Measurements of a server, in Prometheus' text format.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use metrics::{
    Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    with_local_recorder,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use worker_cuda::generate::service::{Observation, Observer};

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

/// Name, meaning and bounds.
const HISTOGRAMS: [(&str, &str, &[f64]); 6] = [
    ("worker_inference_duration_ms", "Duration of a request", &MS),
    ("worker_request_seconds", "Duration of a request", &LONG_S),
    (
        "worker_queue_seconds",
        "Wait of a choice for its first step",
        &LONG_S,
    ),
    (
        "worker_time_to_first_token_seconds",
        "Submission to first token",
        &FIRST_TOKEN_S,
    ),
    (
        "worker_inter_token_seconds",
        "From one token to the next",
        &INTER_TOKEN_S,
    ),
    ("worker_step_seconds", "Duration of a step", &INTER_TOKEN_S),
];

const REQUESTS: &str = "worker_requests_total";
const FINISHED: &str = "worker_choices_finished_total";
const RESPONSES: &str = "worker_http_responses_total";

/// What a server has measured. Give it to the service as its observer, and to the server, which adds durations to the
/// histograms ten times a second while it runs; until then each takes 8 bytes.
#[derive(Debug)]
pub struct Metrics {
    /// The exporter loses durations that are recorded while it adds others to a histogram.
    recorder: RwLock<PrometheusRecorder>,
    duration_ms: Histogram,
    request: Histogram,
    queue: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    step: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let builder = PrometheusBuilder::new();
        let builder = HISTOGRAMS
            .iter()
            .fold(builder, |builder, (name, _, bounds)| {
                let matcher = Matcher::Full((*name).into());
                let with_bounds = builder.set_buckets_for_metric(matcher, bounds);
                with_bounds.unwrap_or_default() // an error only without bounds
            });
        let recorder = builder.build_recorder();
        let [duration_ms, request, queue, first_token, inter_token, step] =
            with_local_recorder(&recorder, || {
                describe_counter!(REQUESTS, "Requests that have ended");
                describe_counter!(FINISHED, "Choices that have ended");
                describe_counter!(RESPONSES, "Answers by status");
                HISTOGRAMS.map(|(name, help, _)| {
                    describe_histogram!(name, help);
                    histogram!(name)
                })
            });
        Self {
            recorder: RwLock::new(recorder),
            duration_ms,
            request,
            queue,
            first_token,
            inter_token,
            step,
        }
    }
}

impl Observer for Metrics {
    fn observe(&self, observation: Observation<'_>) {
        let recorder = self.shared();
        let count = |name, label, value: &'static str| {
            with_local_recorder(&*recorder, || counter!(name, label => value).increment(1));
        };
        match observation {
            Observation::Queue(time) => self.queue.record(time),
            Observation::FirstToken(time) => self.first_token.record(time),
            Observation::InterToken(time) => self.inter_token.record(time),
            Observation::Step { duration, .. } => self.step.record(duration),
            Observation::Finished(reason) => count(FINISHED, "reason", reason.as_str()),
            Observation::Done(_, time) => {
                self.request.record(time);
                self.duration_ms.record(time.as_secs_f64() * 1e3);
                count(REQUESTS, "outcome", "done");
            }
            Observation::Cancelled => count(REQUESTS, "outcome", "cancelled"),
            Observation::Failed(error) => count(REQUESTS, "outcome", error.as_str()),
            _ => {}
        }
    }
}

impl Metrics {
    pub(super) fn count_status(&self, status: u16) {
        let recorder = self.shared();
        with_local_recorder(&*recorder, || {
            counter!(RESPONSES, "status" => status.to_string()).increment(1);
        });
    }

    /// Adds the durations since the last call to the histograms.
    pub(super) fn upkeep(&self) {
        self.exclusive().handle().run_upkeep();
    }

    fn measured(&self) -> String {
        self.exclusive().handle().render()
    }

    fn shared(&self) -> RwLockReadGuard<'_, PrometheusRecorder> {
        self.recorder.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, PrometheusRecorder> {
        self.recorder
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them as text, with what the service counts itself.
    pub(super) fn write(&self, app: &App) -> String {
        // The service's counts are set in a recorder of this answer alone: a model that was unloaded is not in it.
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || report(app));
        let text = recorder.handle().render() + &self.measured();
        text.replace("\n\n", "\n")
    }
}

/// Sets what is known at this moment.
fn report(app: &App) {
    let stats = app.stats();
    if let Some(memory) = &app.model.memory {
        let purposes = memory();
        let total: u64 = purposes.iter().map(|(_, bytes)| bytes).sum();
        set(
            "worker_vram_bytes",
            "Device memory in use",
            &[],
            total as f64,
        );
        for (purpose, bytes) in purposes {
            let name = "worker_vram_purpose_bytes";
            let labels = [("purpose", purpose.to_owned())];
            set(name, "Device memory by purpose", &labels, bytes as f64);
        }
    }
    for (name, help, value) in [
        (
            "worker_uptime_seconds",
            "Time since the start",
            app.started.elapsed().as_secs_f64(),
        ),
        (
            "worker_requests_running",
            "Choices that have a sequence",
            stats.running.into(),
        ),
        (
            "worker_requests_waiting",
            "Choices that wait for one",
            stats.waiting.into(),
        ),
    ] {
        set(name, help, &[], value);
    }
    for (name, help, value) in [
        (
            "worker_requests_accepted_total",
            "Accepted requests",
            stats.accepted,
        ),
        (
            "worker_requests_rejected_total",
            "Refused requests",
            stats.rejected,
        ),
        ("worker_preemptions_total", "Preemptions", stats.preempted),
        (
            "worker_engine_faults_total",
            "Failed steps",
            stats.engine_faults,
        ),
        ("worker_steps_total", "Steps that ended well", stats.steps),
        (
            "worker_prompt_tokens_total",
            "Prompt tokens",
            stats.prompt_tokens,
        ),
        (
            "worker_cached_tokens_total",
            "Prompt tokens that were shared",
            stats.cached_tokens,
        ),
        (
            "worker_tokens_generated_total",
            "Generated tokens",
            stats.generated_tokens,
        ),
        (
            "worker_draft_tokens_total",
            "Draft tokens that steps have verified",
            stats.draft_tokens,
        ),
        (
            "worker_accepted_draft_tokens_total",
            "Draft tokens that held",
            stats.accepted_draft_tokens,
        ),
    ] {
        describe_counter!(name, help);
        counter!(name).absolute(value);
    }
    for (state, pages) in [
        ("free", stats.free_pages),
        ("cached", stats.cached_pages),
        ("held", stats.held_pages),
    ] {
        let labels = [("state", state.to_owned())];
        set(
            "worker_kv_pages",
            "Pages of the KV cache",
            &labels,
            pages.into(),
        );
    }
    report_model(app);
    for app in app.models.loaded() {
        report_model(&app);
    }
    let stats = app.service.stats();
    let labels = [
        ("block_size", stats.page_tokens.to_string()),
        ("num_gpu_blocks", stats.page_count.to_string()),
    ];
    set(
        "vllm:cache_config_info",
        "Size of the KV cache",
        &labels,
        1.0,
    );
}

/// What routers read to choose a server, by the names that they know.
fn report_model(app: &App) {
    let stats = app.service.stats();
    let labels = [("model_name", app.model.id().to_owned())];
    for (name, help, value) in [
        (
            "vllm:num_requests_running",
            "As worker_requests_running",
            stats.running.into(),
        ),
        (
            "vllm:num_requests_waiting",
            "As worker_requests_waiting",
            stats.waiting.into(),
        ),
        (
            "vllm:kv_cache_usage_perc",
            "Share of KV pages in use",
            stats.page_use(),
        ),
    ] {
        set(name, help, &labels, value);
    }
}

fn set(name: &'static str, help: &'static str, labels: &[(&'static str, String)], value: f64) {
    describe_gauge!(name, help);
    gauge!(name, labels).set(value);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn histograms_count_upwards_and_end_with_all() {
        let metrics = Metrics::default();
        for seconds in [0.5, 0.75, 7000.0] {
            metrics.observe(Observation::Queue(Duration::from_secs_f64(seconds)));
        }

        let text = metrics.measured();

        let (_, text) = text
            .split_once("# HELP worker_queue_seconds Wait of a choice for its first step\n")
            .expect("a histogram");
        let lines: Vec<&str> = text.lines().take(21).collect();
        assert_eq!(lines[0], "# TYPE worker_queue_seconds histogram");
        assert_eq!(lines[1], "worker_queue_seconds_bucket{le=\"0.01\"} 0");
        assert_eq!(lines[4], "worker_queue_seconds_bucket{le=\"0.5\"} 1");
        assert_eq!(lines[5], "worker_queue_seconds_bucket{le=\"1\"} 2");
        assert_eq!(lines[17], "worker_queue_seconds_bucket{le=\"3840\"} 2");
        assert_eq!(
            lines[18..],
            [
                "worker_queue_seconds_bucket{le=\"7680\"} 3",
                "worker_queue_seconds_bucket{le=\"+Inf\"} 3",
                "worker_queue_seconds_sum 7001.25",
            ]
        );
    }

    #[test]
    fn labels_are_escaped() {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            set("x", "y", &[("z", "a\"b\\c\nd".into())], 1.0)
        });
        let text = recorder.handle().render();
        assert!(text.contains("x{z=\"a\\\"b\\\\c\\nd\"} 1"), "{text}");
    }

    #[test]
    fn nothing_is_lost_while_others_read_and_servers_are_apart() {
        const COUNT: u32 = 100_000;
        let (metrics, other) = (Metrics::default(), Metrics::default());
        let is_over = std::sync::atomic::AtomicBool::new(false);

        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    metrics.upkeep();
                }
            });
            let measuring = [(); 2].map(|()| {
                scope.spawn(|| {
                    (0..COUNT)
                        .for_each(|_| metrics.observe(Observation::InterToken(Duration::ZERO)))
                })
            });
            for thread in measuring {
                thread.join().expect("no panic");
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            reading.join().expect("no panic");
        });

        let count = |metrics: &Metrics| {
            let text = metrics.measured();
            let count = text
                .lines()
                .find_map(|line| line.strip_prefix("worker_inter_token_seconds_count "));
            count.expect("a histogram").parse::<u32>().expect("a count")
        };
        assert_eq!((count(&metrics), count(&other)), (2 * COUNT, 0));
    }
}
