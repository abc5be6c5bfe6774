//! Models that admins load and unload while the server runs: `/v1/models/{id}/load` and `/unload`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{self, FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::State;

use super::app::{App, ServedModel};
use super::error::ApiError;
use super::generation::blocking;
use super::routes::json_response;
use super::sse::{event_response, write_named};

/// A model that can be loaded while a server runs.
pub trait LoadModel: Send + Sync {
    /// Whether there is room for it. An error has the bytes that it needs and those that are free.
    fn check_room(&self) -> Result<(), String>;

    /// Loads it. `progress` gets the bytes that are loaded and those of all, and returns whether to continue.
    fn load(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Service, ServedModel), String>;
}

/// A model that a server can load, and its names.
#[derive(Clone)]
pub struct Loadable {
    names: Vec<String>,
    model: Arc<dyn LoadModel>,
}

impl Loadable {
    /// A model that requests call by these names, at least one.
    pub fn new(names: Vec<String>, model: Arc<dyn LoadModel>) -> Self {
        Self { names, model }
    }
}

/// The models that can be loaded.
pub struct Models(Vec<Slot>);

struct Slot {
    loadable: Loadable,
    state: Mutex<SlotState>,
}

enum SlotState {
    Unloaded,
    Loading,
    Ready(Arc<App>),
    /// Until its requests have ended; nothing after that.
    Unloading(Weak<App>),
}

impl SlotState {
    fn name(&self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Ready(app) => app.state(),
            Self::Unloading(_) => "unloading",
        }
    }

    /// The model, while it has requests or may have.
    fn app(&self) -> Option<Arc<App>> {
        match self {
            Self::Ready(app) => Some(Arc::clone(app)),
            Self::Unloading(app) => app.upgrade(),
            Self::Unloaded | Self::Loading => None,
        }
    }
}

impl Slot {
    fn id(&self) -> &str {
        self.loadable.names.first().map_or("model", String::as_str)
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self, state: &SlotState) -> ApiError {
        let message = format!("the model '{}' is {}", self.id(), state.name());
        ApiError::new(StatusCode::CONFLICT, "model_busy", message)
    }
}

impl Models {
    pub fn new(list: Vec<Loadable>) -> Self {
        let slots = list.into_iter().map(|loadable| Slot {
            loadable,
            state: Mutex::new(SlotState::Unloaded),
        });
        Self(slots.collect())
    }

    fn slot(&self, name: &str) -> Option<&Slot> {
        let is_it = |slot: &&Slot| slot.loadable.names.iter().any(|known| known == name);
        self.0.iter().find(is_it)
    }

    /// The model of this name if it is loaded; None if there is no such model.
    pub fn find(&self, name: &str) -> Option<Result<Arc<App>, ApiError>> {
        let slot = self.slot(name)?;
        Some(match &*slot.lock() {
            SlotState::Ready(app) => Ok(Arc::clone(app)),
            state => {
                let message = format!("the model '{name}' is {}", state.name());
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let error = ApiError::new(status, "model_not_loaded", message).with_param("model");
                Err(error.with_retry_after(RETRY))
            }
        })
    }

    /// All their names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().flat_map(|slot| &slot.loadable.names)
    }

    /// Those that are loaded, also while their last requests end.
    pub fn loaded(&self) -> Vec<Arc<App>> {
        self.0.iter().filter_map(|slot| slot.lock().app()).collect()
    }

    /// From now on this model, whose requests have ended, is not one of those that are loaded.
    pub fn forget(&self, unloaded: &App) {
        for slot in &self.0 {
            let mut state = slot.lock();
            if let SlotState::Unloading(app) = &mut *state
                && std::ptr::eq(app.as_ptr(), unloaded)
            {
                *app = Weak::new();
            }
        }
    }

    /// The entries of `/v1/models`, or the one of a name.
    pub fn describe(&self, name: Option<&str>) -> Vec<Value> {
        let slots = self.0.iter().filter(|slot| {
            let is_it = |name: &str| slot.loadable.names.iter().any(|known| known == name);
            name.is_none_or(is_it)
        });
        let entry = |slot: &Slot| match &*slot.lock() {
            SlotState::Ready(app) => app.describe(),
            state => json!({
                "id": slot.id(),
                "object": "model",
                "owned_by": "worker-orcd",
                "state": state.name(),
            }),
        };
        slots.map(entry).collect()
    }

    /// Ends all services, and lets go of them. Returns how many requests were cut short.
    pub fn close(&self, most: Duration) -> u32 {
        let apps = self.0.iter().filter_map(|slot| {
            let mut state = slot.lock();
            let app = state.app();
            *state = SlotState::Unloading(app.as_ref().map_or_else(Weak::new, Arc::downgrade));
            app
        });
        let apps: Vec<_> = apps.collect();
        for app in &apps {
            app.service.begin_drain(most);
        }
        let end = |app: &Arc<App>| {
            // If the model is being unloaded, another thread waits for those of its service.
            while !matches!(app.service.state(), State::Stopped | State::Lost) {
                thread::sleep(STOP_PERIOD);
            }
            app.service.drain(most)
        };
        apps.iter().map(end).sum()
    }
}

/// How often a service that ends is asked whether it has ended.
const STOP_PERIOD: Duration = Duration::from_millis(10);

/// How long a client waits for a model that is not loaded.
const RETRY: Duration = Duration::from_secs(10);

/// Events of progress: one per hundredth.
const PARTS: u64 = 100;

/// The name of a model in a path.
pub struct ModelName(pub String);

impl FromRequestParts<Arc<App>> for ModelName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, app).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => {
                let message = "the name of the model in the path is not UTF-8";
                let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
                Err(error.with_param("model"))
            }
        }
    }
}

fn unknown_model(app: &App, name: &str) -> ApiError {
    match app.model.find(name) {
        Ok(()) => {
            let message = format!("the model '{name}' is loaded as long as the server runs");
            ApiError::new(StatusCode::CONFLICT, "model_fixed", message).with_param("model")
        }
        Err(error) => error,
    }
}

/// `POST /v1/models/{id}/load`: a stream of events `progress`, and `loaded` or `error`. A client that leaves ends the
/// loading.
pub async fn load(
    extract::State(app): extract::State<Arc<App>>,
    ModelName(name): ModelName,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let slot = app.models.slot(&name);
    let slot = slot.ok_or_else(|| unknown_model(&app, &name))?;
    {
        let mut state = slot.lock();
        match &*state {
            SlotState::Unloaded => *state = SlotState::Loading,
            SlotState::Ready(_) => {
                let _ = sender.send(loaded(slot));
                return Ok(event_response(Body::new(Events(events))));
            }
            state => return Err(slot.busy(state)),
        }
    }
    let loading = Loading {
        app: Arc::clone(&app),
        name,
        result: None,
    };
    // Whoever leaves here drops it, and the model is unloaded as before.
    let loading = blocking(move || {
        let model = Arc::clone(&loading.slot().loadable.model);
        model.check_room().map_err(|message| {
            ApiError::new(StatusCode::CONFLICT, "no_room", message).with_param("model")
        })?;
        Ok(loading)
    })
    .await?;
    thread::spawn(move || loading.run(&sender));
    Ok(event_response(Body::new(Events(events))))
}

fn loaded(slot: &Slot) -> Vec<u8> {
    let mut out = Vec::new();
    write_named("loaded", json!({ "id": slot.id() }), &mut out);
    out
}

/// A slot that is being loaded. Dropping it unloads the slot again if nothing was loaded.
struct Loading {
    app: Arc<App>,
    name: String,
    result: Option<Arc<App>>,
}

impl Loading {
    fn slot(&self) -> &Slot {
        let slot = self.app.models.slot(&self.name);
        slot.unwrap_or_else(|| unreachable!("slots are never removed"))
    }

    fn run(mut self, sender: &mpsc::UnboundedSender<Vec<u8>>) {
        let app = Arc::clone(&self.app);
        let mut last = None;
        let mut progress = |done: u64, all: u64| {
            let part = u128::from(done) * u128::from(PARTS) / u128::from(all.max(1));
            if last.replace(part) == Some(part) {
                return !sender.is_closed() && !app.draining.load(Relaxed);
            }
            let mut out = Vec::new();
            let event = json!({ "done_bytes": done, "total_bytes": all });
            write_named("progress", event, &mut out);
            sender.send(out).is_ok() && !app.draining.load(Relaxed)
        };
        let model = Arc::clone(&self.slot().loadable.model);
        let event = match model.load(&mut progress) {
            Ok((service, mut model)) => {
                model.names.clone_from(&self.slot().loadable.names);
                let app = App::new(service, model, Arc::clone(&self.app.common));
                self.result = Some(Arc::new(app));
                loaded(self.slot())
            }
            Err(message) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                let error = ApiError::new(status, "load_failed", message);
                let mut out = Vec::new();
                write_named("error", error.to_json(), &mut out);
                out
            }
        };
        // First the state, then the event that reports it.
        drop(self);
        let _ = sender.send(event);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let result = self.result.take();
        let mut state = self.slot().lock();
        // The server may have ended meanwhile.
        if let SlotState::Loading = *state {
            *state = result.map_or(SlotState::Unloaded, SlotState::Ready);
        }
    }
}

/// `POST /v1/models/{id}/unload`: lets the requests of the model end, and answers when its memory is free.
pub async fn unload(
    extract::State(app): extract::State<Arc<App>>,
    ModelName(name): ModelName,
) -> Result<Response, ApiError> {
    let slot = app.models.slot(&name);
    let slot = slot.ok_or_else(|| unknown_model(&app, &name))?;
    let unloaded = {
        let mut state = slot.lock();
        match &*state {
            SlotState::Ready(app) => {
                let app = Arc::clone(app);
                *state = SlotState::Unloading(Arc::downgrade(&app));
                Some(app)
            }
            SlotState::Unloaded => None,
            other => return Err(slot.busy(other)),
        }
    };
    let mut cut = 0;
    if let Some(unloaded) = unloaded {
        let (ended, drained) = oneshot::channel();
        let (app, name) = (Arc::clone(&app), name.clone());
        // It is unloaded to the end, also if the client leaves.
        thread::spawn(move || {
            let cut = unloaded.service.drain(app.options.drain_timeout);
            app.keep_counts(&unloaded);
            drop(unloaded);
            if let Some(slot) = app.models.slot(&name) {
                *slot.lock() = SlotState::Unloaded;
            }
            let _ = ended.send(cut);
        });
        cut = drained.await.unwrap_or(0);
    }
    let answer = json!({ "id": slot.id(), "state": "unloaded", "cut_requests": cut });
    Ok(json_response(&answer))
}

/// The events of one loading.
struct Events(mpsc::UnboundedReceiver<Vec<u8>>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = self.0.poll_recv(context);
        event.map(|event| event.map(|bytes| Ok(Frame::data(bytes.into()))))
    }
}
