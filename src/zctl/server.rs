//! Served connections: frames in, answers out, in order.

use std::collections::HashMap;
use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{CAPABILITY_HEADER_BYTES, CAPABILITY_MAGIC, HEADER_BYTES, MAGIC, VERSION};
use super::session::{Session, SessionOptions};
use crate::compute::GpuCompute;
use crate::core::callback::caught;
use crate::core::error::{Error, ErrorKind, Result};
use crate::ffi;

const MEMORY_BYTES_MAX: usize = 1 << 30;
const BUFFER_BYTES: usize = 1 << 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A stream that frames come from and answers go to.
pub trait Connection: Read + Write {
    /// Bounds each read. A stream that cannot ignores it.
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let _ = timeout;
        Ok(())
    }

    /// What answers are written to, where that is a socket or a pipe.
    fn output(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Connection for UnixStream {
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        UnixStream::set_read_timeout(self, timeout)
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// How a [`Server`] serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Of every connection's session.
    pub session: SessionOptions,
    /// Memory of a connection; at most 1 GiB.
    pub memory_bytes: usize,
    /// Connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// A frame that is not complete so long after its first byte closes its connection; so does an answer that
    /// the client does not take.
    pub frame_timeout: Duration,
    /// Without kernels: why, as runs are answered.
    pub reason: String,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            memory_bytes: 16 << 20,
            connections_max: 16,
            frame_timeout: Duration::from_secs(30),
            reason: String::new(),
        }
    }
}

/// Serves the kernels of a [`GpuCompute`]: each connection has a session and a memory of its own.
///
/// ```no_run
/// use std::sync::Arc;
/// use worker_cuda::zctl::{Server, ServerOptions};
/// use worker_cuda::{CudaContext, GpuCompute};
///
/// # fn main() -> worker_cuda::Result<()> {
/// let compute = Arc::new(GpuCompute::with_context(&CudaContext::auto()?)?);
/// let listener = Server::new(Some(compute), ServerOptions::default())?.listen("kernels.sock")?;
/// let stop = listener.stop_handle(); // for another thread, or a signal
/// # drop(stop);
/// listener.run()
/// # }
/// ```
pub struct Server {
    open: Box<Open>,
    options: ServerOptions,
}

/// Answers the frames of one connection, for a [`Server`].
pub trait Answers {
    /// Answers a frame, which is as long as its header says. `response` is replaced; false: there is no answer,
    /// and the connection is to be closed.
    fn answer(&mut self, frame: &[u8], response: &mut Vec<u8>) -> bool;

    /// Receives the connection's output before the first frame. It hangs up when nobody waits for an answer any more.
    fn connected(&mut self, output: OwnedFd) {
        let _ = output;
    }
}

type Open = dyn Fn() -> Result<Box<dyn Answers>> + Send + Sync;

/// A session and the memory of its connection.
struct Served {
    session: Session,
    memory: Vec<u8>,
}

impl Answers for Served {
    fn answer(&mut self, frame: &[u8], response: &mut Vec<u8>) -> bool {
        self.session.serve(&mut self.memory, frame, response)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Without `compute`, listing works and runs are answered with the reason of the options.
    pub fn new(compute: Option<Arc<GpuCompute>>, options: ServerOptions) -> Result<Self> {
        let ServerOptions {
            session: of_session,
            memory_bytes,
            reason,
            ..
        } = options.clone();
        let session = move || {
            let registry = match &compute {
                Some(compute) => compute.native_registry(),
                None => ffi::wcuda_registry::zeroed(),
            };
            Session::create(registry, &reason, &of_session, None)
        };
        session()?; // refuses wrong limits now
        let open = move || -> Result<Box<dyn Answers>> {
            Ok(Box::new(Served {
                session: session()?,
                memory: vec![0; memory_bytes],
            }))
        };
        Self::with_answers(open, options)
    }

    /// Each connection gets what `open` returns, on the thread that serves it. Of the options, only those of
    /// frames and connections count.
    pub fn with_answers(
        open: impl Fn() -> Result<Box<dyn Answers>> + Send + Sync + 'static,
        options: ServerOptions,
    ) -> Result<Self> {
        if options.memory_bytes > MEMORY_BYTES_MAX {
            let message = format!(
                "memory_bytes: {}, at most {MEMORY_BYTES_MAX}",
                options.memory_bytes
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let open = Box::new(open);
        Ok(Self { open, options })
    }

    /// Serves one connection until its end, or until it is to be closed: another magic or version, a payload
    /// over the limit, a frame that does not arrive. A connection that breaks is no error.
    pub fn serve(&self, stream: &mut impl Connection) -> Result<()> {
        self.serve_while(stream, &|answer| answer())
    }

    /// The same, with each answer given inside `around`.
    pub fn serve_while(
        &self,
        stream: &mut impl Connection,
        around: &dyn Fn(&mut dyn FnMut() -> bool) -> bool,
    ) -> Result<()> {
        let mut answers = (self.open)()?;
        if let Some(Ok(output)) = stream.output().map(|output| output.try_clone_to_owned()) {
            answers.connected(output);
        }
        let mut frames = Frames::new(&self.options);
        let mut response = Vec::new();
        loop {
            let (frame, is_last) = match frames.next(stream) {
                Next::Frame(frame) => (frame, false),
                Next::TooLong(header) => (header, true),
                Next::Closed => return Ok(()),
            };
            let mut answer = || {
                answers.answer(frame, &mut response)
                    && write_within(stream, &response, self.options.frame_timeout)
            };
            if !around(&mut answer) || is_last {
                return Ok(());
            }
        }
    }

    /// Listens on a socket with mode 0600 at a path where nothing is yet. [`Listener::run`] serves.
    pub fn listen(self, path: impl AsRef<Path>) -> Result<Listener> {
        let path = path.as_ref().to_owned();
        let describe =
            |error: io::Error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()));
        let listener = bind_private(&path).map_err(describe)?;
        let listening = listener.try_clone().map_err(describe)?;
        let listening = UnixStream::from(OwnedFd::from(listening));
        Ok(Listener {
            server: Arc::new(self),
            listener,
            stop: Stop(Arc::new(Stopping {
                is_stopped: AtomicBool::new(false),
                path,
                listening,
                streams: Mutex::default(),
            })),
        })
    }
}

/// Binds in a folder that nobody else can enter, and moves the socket when its mode is right: at no time can
/// anybody else connect.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = create_private_folder(parent)?;
    let inner = folder.join("s");
    let bound = UnixListener::bind(&inner).and_then(|listener| {
        std::fs::set_permissions(&inner, Permissions::from_mode(0o600))?;
        std::fs::hard_link(&inner, path)?;
        Ok(listener)
    });
    let _ = std::fs::remove_file(&inner);
    let _ = std::fs::remove_dir(&folder);
    bound
}

/// Creates a folder with a name of its own: other threads bind too, and a process that was killed may have left one.
fn create_private_folder(parent: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!(".zctl-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|()| folder),
        }
    }
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    server: Arc<Server>,
    listener: UnixListener,
    stop: Stop,
}

/// Ends [`Listener::run`], from any thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Stopping>);

#[derive(Debug)]
struct Stopping {
    is_stopped: AtomicBool,
    path: PathBuf,
    /// The socket that accepts.
    listening: UnixStream,
    streams: Mutex<HashMap<u64, UnixStream>>,
}

impl Stopping {
    fn streams(&self) -> MutexGuard<'_, HashMap<u64, UnixStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    /// No further frames are read; those that were read are answered.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
        for stream in self.0.streams().values() {
            let _ = stream.shutdown(Shutdown::Read);
        }
        // Wakes the thread that accepts, whatever has become of the path.
        let _ = self.0.listening.shutdown(Shutdown::Both);
    }
}

impl Listener {
    /// What ends [`Listener::run`].
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves each connection on a thread of its own until [`Stop::stop`]; then waits for them and removes the
    /// socket.
    pub fn run(self) -> Result<()> {
        let mut threads: Vec<thread::JoinHandle<()>> = Vec::new();
        let mut number = 0;
        for stream in self.listener.incoming() {
            if self.stop.0.is_stopped.load(Ordering::SeqCst) {
                break;
            }
            threads.retain(|thread| !thread.is_finished());
            let Ok(stream) = stream else {
                // Of no room, for the most part, which others give back.
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if self.stop.0.streams().len() >= self.server.options.connections_max {
                continue; // closed
            }
            number += 1;
            if let Some(thread) = self.start(number, stream) {
                threads.push(thread);
            }
        }
        // A connection accepted while stop() went through the list.
        for stream in self.stop.0.streams().values() {
            let _ = stream.shutdown(Shutdown::Read);
        }
        for thread in threads {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.stop.0.path);
        Ok(())
    }

    /// None: the machine has no room for another connection, which is closed.
    fn start(&self, number: u64, mut stream: UnixStream) -> Option<thread::JoinHandle<()>> {
        let timeout = self.server.options.frame_timeout;
        stream.set_write_timeout(Some(timeout)).ok()?;
        let stopping = Arc::clone(&self.stop.0);
        stopping.streams().insert(number, stream.try_clone().ok()?);
        let server = Arc::clone(&self.server);
        let served = Arc::clone(&stopping);
        let thread = thread::Builder::new().spawn(move || {
            // What answers may panic: the connection ends all the same.
            caught(|| server.serve(&mut stream));
            // The clone in the list would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
            served.streams().remove(&number);
        });
        if thread.is_err() {
            stopping.streams().remove(&number);
        }
        thread.ok()
    }
}

/// False when the connection breaks, and when the client takes longer.
fn write_within(stream: &mut impl Connection, mut bytes: &[u8], timeout: Duration) -> bool {
    let begin = Instant::now();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) if written > 0 => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
        if !bytes.is_empty() && begin.elapsed() >= timeout {
            return false;
        }
    }
    stream.flush().is_ok()
}

enum Next<'a> {
    Frame(&'a [u8]),
    /// The header of a frame whose payload is over the limit.
    TooLong(&'a [u8]),
    Closed,
}

/// Frames out of a stream.
struct Frames {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    payload_bytes_max: usize,
    timeout: Duration,
    is_bounded: bool,
}

impl Frames {
    fn new(options: &ServerOptions) -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES],
            begin: 0,
            end: 0,
            payload_bytes_max: options.session.payload_bytes_max as usize,
            timeout: options.frame_timeout,
            is_bounded: false,
        }
    }

    fn next(&mut self, stream: &mut impl Connection) -> Next<'_> {
        let mut first_byte: Option<Instant> = None;
        loop {
            let have = &self.buffer[self.begin..self.end];
            let is_capability = have.len() >= 4 && have[..4] == CAPABILITY_MAGIC;
            if have.len() >= 4 && !is_capability && have[..4] != MAGIC {
                return Next::Closed;
            }
            let (header, length_at) = if is_capability {
                (CAPABILITY_HEADER_BYTES, 20)
            } else {
                (HEADER_BYTES, 16)
            };
            let mut needed = header;
            if have.len() >= header {
                // ZCL1 has an answer to another version.
                if !is_capability && have[4..6] != VERSION.to_le_bytes() {
                    return Next::Closed;
                }
                let length = &have[length_at..length_at + 4];
                let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
                if length as usize > self.payload_bytes_max {
                    return Next::TooLong(&self.buffer[self.begin..self.begin + header]);
                }
                needed += length as usize;
                if have.len() >= needed {
                    let begin = self.begin;
                    self.begin += needed;
                    return Next::Frame(&self.buffer[begin..begin + needed]);
                }
            }
            let is_partial = !have.is_empty();
            if is_partial && first_byte.is_none() {
                first_byte = Some(Instant::now());
            }
            if !self.fill(stream, needed, first_byte) {
                return Next::Closed;
            }
        }
    }

    /// Reads once; false at the end, when the connection breaks, and when the frame took too long.
    fn fill(
        &mut self,
        stream: &mut impl Connection,
        needed: usize,
        first_byte: Option<Instant>,
    ) -> bool {
        self.make_room(needed);
        loop {
            let left = match first_byte {
                Some(begin) => match self.timeout.checked_sub(begin.elapsed()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return false,
                },
                None => None,
            };
            if left.is_some() || self.is_bounded {
                self.is_bounded = left.is_some();
                if stream.set_read_timeout(left).is_err() {
                    return false;
                }
            }
            match stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => return false,
                Ok(bytes) => {
                    self.end += bytes;
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// The buffer grows with what has arrived, not with what a header announces.
    fn make_room(&mut self, needed: usize) {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        if self.begin > 0 && self.begin + needed > self.buffer.len() {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
    }
}
