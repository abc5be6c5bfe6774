//! Accepts connections, and ends in an orderly way.

use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{
    SocketAddr as UnixAddress, UnixListener as StdUnixListener, UnixStream as StdUnixStream,
};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::State;

use super::app::{App, Common, Options, ServedModel};
use super::gate::Local;
use super::log::warning;
use super::metrics::Metrics;
use super::routes::router;
use super::socket::{Connection, Socket};
#[cfg(feature = "tls")]
use super::tls::Tls;

const MAX_HEADERS: usize = 100;
/// Threads of the runtime. Handlers only move text; tokenizing has threads of its own.
const RUNTIME_THREADS: usize = 2;
const BLOCKING_THREADS: usize = 8;
/// How often the state of the service is looked at.
const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// Longest time for the last bytes of answers after all requests have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, for example without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket, made with mode 0600.
    Unix(PathBuf),
}

enum Listener {
    Tcp(StdTcpListener),
    Unix(StdUnixListener, PathBuf, Identity),
}

/// How a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requests have ended.
    Drained,
    /// So many were cut short.
    Cut(u32),
    /// The device is lost.
    Lost,
}

/// A server that listens. [`run`](Self::run) answers.
pub struct Server {
    listener: Listener,
    app: Arc<App>,
    runtime: Runtime,
}

/// Ends a server from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle(watch::Sender<u32>);

impl StopHandle {
    /// The first call refuses new requests and lets the others end; the second cuts them short.
    pub fn stop(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// Whether a server may listen there: other addresses than loopback need keys.
pub fn check_address(address: &Address, options: &Options) -> Result<(), String> {
    match address {
        Address::Tcp(address) if !address.ip().is_loopback() && options.keys.is_empty() => Err(
            format!("{address} can be reached from other machines, which requires --api-key-file"),
        ),
        _ => Ok(()),
    }
}

impl Server {
    /// Listens. Clients that connect before [`run`](Self::run) wait.
    pub fn bind(
        address: &Address,
        service: Service,
        model: ServedModel,
        options: Options,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        check_address(address, &options)
            .map_err(|message| io::Error::new(io::ErrorKind::InvalidInput, message))?;
        let listener = match address {
            Address::Tcp(address) => {
                let listener = StdTcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            Address::Unix(path) => {
                let listener = bind_unix(path)?;
                listener.set_nonblocking(true)?;
                let identity = identity(path).ok_or(io::ErrorKind::NotFound)?;
                Listener::Unix(listener, path.clone(), identity)
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("http")
            .enable_all()
            .build()?;
        Ok(Self {
            listener,
            app: Arc::new(App::new(
                service,
                model,
                Arc::new(Common::new(options, metrics)),
            )),
            runtime,
        })
    }

    /// "http://127.0.0.1:8080" or "unix:/run/worker.sock".
    pub fn url(&self) -> io::Result<String> {
        Ok(match &self.listener {
            Listener::Tcp(listener) => {
                let scheme = if self.app.options.has_tls() {
                    "https"
                } else {
                    "http"
                };
                format!("{scheme}://{}", listener.local_addr()?)
            }
            Listener::Unix(_, path, _) => format!("unix:{}", path.display()),
        })
    }

    /// Ends it.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.app.stop.clone())
    }

    /// Answers until it is stopped or the device is lost.
    pub fn run(self) -> io::Result<Ended> {
        let Self {
            listener,
            app,
            runtime,
        } = self;
        let ended = runtime.block_on(serve(listener, &app));
        // Threads that tokenize for clients that have left are not waited for.
        runtime.shutdown_background();
        ended
    }
}

/// Device and inode of a socket.
type Identity = (u64, u64);

/// Of the socket at a path; None if nothing or something else is there.
fn identity(path: &Path) -> Option<Identity> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let is_socket = metadata.file_type().is_socket();
    is_socket.then(|| (metadata.dev(), metadata.ino()))
}

/// Listens with mode 0600 from the first moment: the socket is made in a folder of its own, which only this
/// user can enter, and linked to its place afterwards. Takes the place of a socket that nobody listens on.
fn bind_unix(path: &Path) -> io::Result<StdUnixListener> {
    let is_stale = || {
        StdUnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    UnixAddress::from_pathname(path)?; // a longer one could be linked, and no client could connect to it
    if identity(path).is_some() && is_stale() {
        fs::remove_file(path)?;
    }
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let parent = path.parent().unwrap_or(Path::new(""));
    let folder = parent.join(format!(".{:08x}", u32::from_le_bytes(random)));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let private = folder.join("s");
    let bound = StdUnixListener::bind(&private).and_then(|listener| {
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600))?;
        fs::hard_link(&private, path)?; // fails if something is there
        Ok(listener)
    });
    let _ = fs::remove_file(&private);
    let _ = fs::remove_dir(&folder);
    bound
}

async fn serve(listener: Listener, app: &Arc<App>) -> io::Result<Ended> {
    let connections = Arc::new(Semaphore::new(app.options.max_connections));
    let (close, closing) = watch::channel(false);
    let local = Local(matches!(listener, Listener::Unix(..)));
    let shared = Shared {
        router: router(app, local),
        #[cfg(feature = "tls")]
        tls: app.options.tls.clone().filter(|_| !local.0),
        options: Limits::new(&app.options),
        connections: Arc::clone(&connections),
        closing,
    };
    let (listener, path) = match listener {
        Listener::Tcp(listener) => (Acceptor::Tcp(TcpListener::from_std(listener)?), None),
        Listener::Unix(listener, path, identity) => (
            Acceptor::Unix(UnixListener::from_std(listener)?),
            Some((path, identity)),
        ),
    };
    let accepting = tokio::spawn(accept(listener, shared));
    let checking = tokio::spawn(check_residency(Arc::clone(app)));
    let measuring = tokio::spawn(keep_metrics(Arc::clone(&app.metrics)));
    let ended = until_ended(app).await;
    accepting.abort();
    checking.abort();
    if let Some((path, ours)) = path
        && identity(&path) == Some(ours)
    {
        let _ = fs::remove_file(path);
    }
    close.send_replace(true);
    let all = app.options.max_connections as u32;
    let _ = timeout(CLOSE_TIMEOUT, connections.acquire_many(all)).await;
    measuring.abort();
    Ok(ended)
}

/// Bounds what measurements take while nobody reads `/metrics`.
async fn keep_metrics(metrics: Arc<Metrics>) {
    loop {
        sleep(WATCH_PERIOD).await;
        metrics.upkeep();
    }
}

/// Looks again and again where the memory is.
async fn check_residency(app: Arc<App>) {
    let Some(check) = app.model.residency.clone() else {
        return;
    };
    loop {
        sleep(app.options.residency_period).await;
        let check = Arc::clone(&check);
        let checked = tokio::task::spawn_blocking(move || check()).await;
        let is_resident = matches!(checked, Ok(Ok(())));
        let was_resident = app.is_resident.swap(is_resident, Ordering::Relaxed);
        if let (Ok(Err(message)), true, Some(log)) = (checked, was_resident, &app.options.log) {
            log(&warning("error", "memory", &message));
        }
    }
}

/// Waits for a signal or the loss of the device, and lets requests end.
async fn until_ended(app: &Arc<App>) -> Ended {
    let mut stops = app.stop.subscribe();
    while *stops.borrow_and_update() == 0 {
        let is_over = |app: &Arc<App>| matches!(app.service.state(), State::Lost);
        if app.service.state() == State::Stopped || app.all().iter().any(is_over) {
            break;
        }
        let _ = timeout(WATCH_PERIOD, stops.changed()).await;
    }
    app.draining.store(true, Ordering::Relaxed);
    let most = app.options.drain_timeout;
    let all = app.all();
    let is_lost = |app: &Arc<App>| app.service.state() == State::Lost;
    // A thread of its own: those of the runtime may be busy with prompts.
    let (ended, mut drained) = oneshot::channel();
    let ending = Arc::clone(app);
    std::thread::spawn(move || {
        ending.service.begin_drain(most);
        let cut = ending.models.close(most);
        ended.send(cut + ending.service.drain(most))
    });
    let mut hastened = false;
    let cut = loop {
        match timeout(WATCH_PERIOD, &mut drained).await {
            Ok(cut) => break cut.unwrap_or(0),
            Err(_) if *stops.borrow() > 1 && !hastened => {
                hastened = true;
                for app in &all {
                    app.service.begin_drain(Duration::ZERO);
                }
            }
            Err(_) => {}
        }
    };
    match cut {
        _ if all.iter().any(is_lost) => Ended::Lost,
        0 => Ended::Drained,
        cut => Ended::Cut(cut),
    }
}

/// What connections need.
#[derive(Clone)]
struct Shared {
    router: Router,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    options: Limits,
    connections: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

#[derive(Clone, Copy)]
struct Limits {
    header_timeout: Duration,
    write_timeout: Duration,
}

impl Limits {
    fn new(options: &Options) -> Self {
        Self {
            header_timeout: options.header_timeout,
            write_timeout: options.write_timeout,
        }
    }
}

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens leave at once.
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

async fn accept(listener: Acceptor, shared: Shared) {
    while let Ok(permit) = Arc::clone(&shared.connections).acquire_owned().await {
        match listener.accept().await {
            Ok(socket) => {
                tokio::spawn(connection(socket, shared.clone(), permit));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(socket: Socket, shared: Shared, _permit: OwnedSemaphorePermit) {
    let socket = Arc::new(socket);
    let stream = Connection::new(Arc::clone(&socket), shared.options.write_timeout);
    #[cfg(feature = "tls")]
    if let Some(tls) = &shared.tls {
        let handshake = tls.acceptor().accept(stream);
        // Clients that fail here have sent no TLS, or too slowly.
        if let Ok(Ok(stream)) = timeout(shared.options.header_timeout, handshake).await {
            answer(stream, &socket, shared).await;
        }
        return;
    }
    answer(stream, &socket, shared).await;
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    socket: &Socket,
    shared: Shared,
) {
    let mut closing = shared.closing;
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.options.header_timeout)
            .max_headers(MAX_HEADERS)
            .serve_connection(
                TokioIo::new(stream),
                TowerToHyperService::new(shared.router)
            )
    );
    let mut closing = pin!(closing.wait_for(|closes| *closes));
    let mut is_ending = false;
    let mut look = None;
    poll_fn(|context| {
        if !is_ending && closing.as_mut().poll(context).is_ready() {
            is_ending = true;
            connection.as_mut().graceful_shutdown();
        }
        // Errors are those of the client: it has left, or has sent no HTTP.
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        socket.poll_left(context, &mut look)
    })
    .await;
}
