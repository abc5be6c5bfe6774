//! A device in a process of its own, for each connection of a [`Server`].
//!
//! ```text
//! client ◄──► server (Isolated) ◄─ socket pair on stdin ─► child (answer): session, kernels, device
//!                   └───── memory of the connection, a file without a name ─────┘
//! ```
//!
//! The server passes frames on and opens no device. A child that is at work [`GRACE`] past a budget is killed, as is
//! one whose device is lost, and one at work for a client that has left; a new one answers the next frame. The memory
//! outlives them all, handles of ZCL1 do not.
//!
//! To the child: u32 length, frame. From it: i32 length of the answer or what `NONE` and `RETRY` say, u8 1 if it
//! is not to be asked again, answer. An answer without bytes comes first, when its device is open.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};
use worker_cuda::zctl::{Answers, Server, ServerOptions, Session, SessionOptions, Status, refusal};
use worker_cuda::{Backend, Error, ErrorKind, GpuCompute, HealthState};

/// How long a run may be at work past its budget.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long a device may take to open.
const START: Duration = Duration::from_secs(60);
const NO_BUDGET: u32 = 1 << 31;
const NONE: i32 = -1;
const RETRY: i32 = -2;
const KERNEL_RUN: u16 = 0x0102;
const HANDLE_READ: u16 = 0x8011;
const HANDLE_WRITE: u16 = 0x8012;
const KERNEL_DESCRIBE: u16 = 0x8021;
const OPEN: u16 = 3;
/// How a payload of CAPS_OPEN begins that submits a kernel.
const SUBMIT: &[u8] = b"\x05\0\0\0accel\x07\0\0\0default\x03\0\0\0";
/// The same that waits for what was submitted.
const SYNC: &[u8] = b"\x05\0\0\0accel\x07\0\0\0default\x04\0\0\0";

type Start = dyn Fn(&Path) -> Command + Send + Sync;

/// A server whose connections have a child each. `start` says how one is started that calls [`answer`] with the
/// path it is given; one is started at once, to see whether it can be.
pub fn server(
    start: impl Fn(&Path) -> Command + Send + Sync + 'static,
    options: ServerOptions,
) -> worker_cuda::Result<Server> {
    let start: Arc<Start> = Arc::new(start);
    let of_connection = options.clone();
    let open = move || Isolated::new(Arc::clone(&start), &of_connection);
    open()?.process()?;
    Server::with_answers(move || Ok(Box::new(open()?)), options)
}

/// The server's side of a connection.
struct Isolated {
    start: Arc<Start>,
    memory: File,
    message_bytes_max: usize,
    budget_ms: u32,
    budgets_ms: HashMap<u32, u32>,
    process: Option<Process>,
    client: Option<OwnedFd>,
}

impl Isolated {
    fn new(start: Arc<Start>, options: &ServerOptions) -> worker_cuda::Result<Self> {
        let session = &options.session;
        let memory = memfd_create("zctl memory", MFdFlags::MFD_CLOEXEC)
            .map(File::from)
            .map_err(io::Error::from)
            .and_then(|file| {
                file.set_len(options.memory_bytes as u64)?;
                Ok(file)
            })
            .map_err(|error| failed("memory of a connection", &error))?;
        Ok(Self {
            start,
            memory,
            message_bytes_max: (session.message_bytes_max as usize)
                .min((session.payload_bytes_max as usize).saturating_sub(12)),
            budget_ms: session.budget_ms,
            budgets_ms: HashMap::new(),
            process: None,
            client: None,
        })
    }

    fn process(&mut self) -> worker_cuda::Result<&mut Process> {
        if self.process.as_mut().is_some_and(Process::has_ended) {
            self.process = None;
        }
        let process = match self.process.take() {
            Some(process) => process,
            None => {
                // The child opens the same file: it has no name of its own.
                let path = PathBuf::from(format!(
                    "/proc/{}/fd/{}",
                    std::process::id(),
                    self.memory.as_raw_fd()
                ));
                Process::start((self.start)(&path))
                    .map_err(|error| failed("the process of the device", &error))?
            }
        };
        Ok(self.process.insert(process))
    }

    /// Milliseconds after which the frame is answered in any case; none: it does not wait for the device, or has no
    /// budget.
    fn budget_of(&mut self, frame: &[u8]) -> Option<u32> {
        let (op, payload) = split(frame);
        let budget_ms = if is_capability(frame) {
            // What a request says only shortens the session's.
            (op == OPEN).then_some(self.budget_ms)
        } else if matches!(op, HANDLE_READ | HANDLE_WRITE) {
            Some(self.budget_ms)
        } else if op == KERNEL_RUN && payload.len() >= 16 {
            let of_kernel = self.budget_of_kernel(u32_at(payload, 0));
            [u32_at(frame, 20), self.budget_ms, of_kernel]
                .into_iter()
                .filter(|&ms| ms != 0)
                .min()
        } else {
            None
        };
        budget_ms.filter(|&ms| ms < NO_BUDGET)
    }

    fn budget_of_kernel(&mut self, id: u32) -> u32 {
        if let Some(&known) = self.budgets_ms.get(&id) {
            return known;
        }
        let frame = request(KERNEL_DESCRIBE, &[id]);
        let mut response = Vec::new();
        let asked = self
            .process()
            .map(|child| child.ask(&frame, &mut response, None, None));
        if !matches!(asked, Ok(Ok(_))) || response.len() < 48 || u32_at(&response, 16) != 0 {
            return 0; // unknown, as the run's own answer says
        }
        let budget_ms = u32_at(&response, 44);
        self.budgets_ms.insert(id, budget_ms);
        budget_ms
    }

    fn refuse(&self, frame: &[u8], status: Status, message: &str) -> Vec<u8> {
        let most = self.message_bytes_max.min(message.len());
        let end = (0..=most).rev().find(|&end| message.is_char_boundary(end));
        refusal(frame, status, &message[..end.unwrap_or(0)])
    }
}

impl Answers for Isolated {
    fn answer(&mut self, frame: &[u8], response: &mut Vec<u8>) -> bool {
        let mut tries_left = 3;
        loop {
            if let Err(error) = self.process() {
                *response = self.refuse(frame, Status::Backend, error.message());
                return true;
            }
            // Its clock starts with the child's: a device may take a second to open.
            let budget_ms = self.budget_of(frame);
            let deadline =
                budget_ms.map(|ms| Instant::now() + Duration::from_millis(ms.into()) + GRACE);
            let Some(process) = &mut self.process else {
                continue; // it ended meanwhile
            };
            let asked = process.ask(frame, response, deadline, self.client.as_ref());
            if !matches!(asked, Ok(Reply { is_last: false, .. })) {
                self.process = None;
            }
            tries_left -= 1;
            match asked {
                Ok(Reply { ret: RETRY, .. }) if tries_left > 0 => {}
                Ok(reply) => return reply.ret >= 0,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let message = format!("budget of {} ms is over", budget_ms.unwrap_or(0));
                    *response = self.refuse(frame, Status::Timeout, &message);
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return false,
                // What only lists, or moves memory, can be asked again.
                Err(_) if budget_ms.is_none() && split(frame).0 != KERNEL_RUN && tries_left > 0 => {
                }
                Err(_) => {
                    *response = self.refuse(
                        frame,
                        Status::Backend,
                        "the process of the device has ended",
                    );
                    return true;
                }
            }
        }
    }

    fn connected(&mut self, output: OwnedFd) {
        self.client = Some(output);
    }
}

/// A child, killed when this is dropped.
struct Process {
    child: Child,
    socket: UnixStream,
}

struct Reply {
    ret: i32,
    is_last: bool,
}

impl Process {
    fn start(mut command: Command) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        drop(command); // with it, our copy of their end
        let mut process = Self { child, socket };
        let seconds = START.as_secs();
        if !is_readable(&process.socket, Some(Instant::now() + START), None)? {
            let message = format!("it has not started within {seconds} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        match process.reply(&mut Vec::new()) {
            Ok(_) => Ok(process),
            Err(_) => Err(match process.child.wait() {
                Ok(status) => io::Error::other(format!("it has ended at its start: {status}")),
                Err(error) => error,
            }),
        }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Fails with `TimedOut` if the answer has not begun at `deadline`, with `ConnectionAborted` if `client` hangs up
    /// before.
    fn ask(
        &mut self,
        frame: &[u8],
        response: &mut Vec<u8>,
        deadline: Option<Instant>,
        client: Option<&OwnedFd>,
    ) -> io::Result<Reply> {
        self.socket.write_all(&(frame.len() as u32).to_le_bytes())?;
        self.socket.write_all(frame)?;
        if !is_readable(&self.socket, deadline, client)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.reply(response)
    }

    fn reply(&mut self, response: &mut Vec<u8>) -> io::Result<Reply> {
        let mut header = [0; 5];
        self.socket.read_exact(&mut header)?;
        let ret = u32_at(&header, 0) as i32;
        response.resize(ret.max(0) as usize, 0);
        self.socket.read_exact(response)?;
        Ok(Reply {
            ret,
            is_last: header[4] != 0,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child: answers the frames that come on stdin with the memory at `path`, until its parent is gone.
/// `options` are those of the session, which is one of `compute`, or one without a device.
pub fn answer(
    path: &Path,
    compute: Option<&GpuCompute>,
    session: Session,
    options: &SessionOptions,
) -> worker_cuda::Result<()> {
    let budget_ms = options.budget_ms;
    let io = |error: &io::Error| failed("the process of the device", error);
    // A run may never end; the end of stdin alone would not end it.
    set_pdeathsig(Signal::SIGKILL).map_err(|error| io(&error.into()))?;
    // A signal to the whole group is for the parent, which lets current runs end.
    ctrlc::set_handler(|| {})
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot handle SIGTERM: {error}")))?;
    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| io(&error))?;
    let mut device = Device {
        compute,
        session,
        memory: map(path).map_err(|error| io(&error))?,
        socket: socket.into(),
        late: None,
        submitted_until: None,
        budget_ms,
        response: Vec::new(),
    };
    // An error of the socket: the parent is gone.
    let _ = device.reply(0, false).and_then(|()| device.serve());
    Ok(())
}

fn map(path: &Path) -> io::Result<&'static mut [u8]> {
    let file = File::options().read(true).write(true).open(path)?;
    let Some(bytes) = NonZeroUsize::new(file.metadata()?.len() as usize) else {
        return Ok(&mut []);
    };
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping of the whole file, which is not unmapped and never shrinks; one child at a time maps
    // it, and the parent does not.
    unsafe {
        let at = mmap(None, bytes, access, MapFlags::MAP_SHARED, &file, 0)?;
        Ok(std::slice::from_raw_parts_mut(
            at.as_ptr().cast(),
            bytes.get(),
        ))
    }
}

struct Device<'a> {
    compute: Option<&'a GpuCompute>,
    session: Session,
    memory: &'static mut [u8],
    socket: UnixStream,
    late: Option<Late>,
    /// When the last submission of ZCL1 must have ended.
    submitted_until: Option<Instant>,
    budget_ms: u32,
    response: Vec<u8>,
}

/// A run that has passed its budget and is still at work.
struct Late {
    kernel_id: u32,
    until: Instant,
}

impl Device<'_> {
    fn serve(&mut self) -> io::Result<()> {
        let mut frame = Vec::new();
        loop {
            loop {
                let late = self.late.as_ref().map(|late| late.until);
                let deadline = late.into_iter().chain(self.submitted_until).min();
                let is_readable = is_readable(&self.socket, deadline, None)?;
                let is_over =
                    |until: Option<Instant>| until.is_some_and(|until| Instant::now() >= until);
                if is_over(late) && self.is_at_work()
                    || is_over(self.submitted_until) && self.has_submissions()
                {
                    // Not an ordinary exit, which would wait for the device.
                    raise(Signal::SIGKILL)?;
                }
                if is_readable {
                    break;
                }
            }
            let mut length = [0; 4];
            self.socket.read_exact(&mut length)?;
            frame.resize(u32::from_le_bytes(length) as usize, 0);
            self.socket.read_exact(&mut frame)?;
            self.answer(&frame)?;
        }
    }

    fn answer(&mut self, frame: &[u8]) -> io::Result<()> {
        let is_run = !is_capability(frame) && split(frame).0 == KERNEL_RUN;
        while is_run && self.is_at_work() {
            if self
                .late
                .as_ref()
                .is_some_and(|late| Instant::now() >= late.until)
            {
                self.response.clear();
                return self.reply(RETRY, true);
            }
            thread::sleep(Duration::from_millis(5));
        }
        if !self.session.serve(self.memory, frame, &mut self.response) {
            self.response.clear();
            return self.reply(NONE, false);
        }
        if is_run && u32_at(&self.response, 16) == Status::Timeout.number() {
            self.late = Some(Late {
                kernel_id: u32_at(split(frame).1, 0),
                until: Instant::now() + GRACE,
            });
        }
        if is_capability(frame)
            && split(frame).1.starts_with(SUBMIT)
            && self.response.get(20) == Some(&1)
            && self.budget_ms < NO_BUDGET
        {
            let budget = Duration::from_millis(self.budget_ms.into());
            self.submitted_until = Some(Instant::now() + budget + GRACE);
        }
        let ret = self.response.len() as i32;
        let is_lost = self.is_lost(frame);
        self.reply(ret, is_lost)
    }

    /// Asks the session by a run that it refuses in any case, for a wrong argument if not for this.
    fn is_at_work(&mut self) -> bool {
        let Some(late) = &self.late else {
            return false;
        };
        let frame = request(KERNEL_RUN, &[late.kernel_id, 1, 0, 0, 0, 0, 0, 0]);
        let mut response = Vec::new();
        let is_answered = self.session.serve(self.memory, &frame, &mut response);
        // Nothing else refuses with this code a kernel that has just run, but a lost device.
        let is_at_work = is_answered && u32_at(&response, 36) == Status::Backend.number();
        if !is_at_work {
            self.late = None;
        }
        is_at_work
    }

    /// Whether submissions of ZCL1 are at work on a device. On the host none is between frames.
    fn has_submissions(&mut self) -> bool {
        self.submitted_until = None;
        let info = |compute: &GpuCompute| compute.device().context().info();
        let Some(Ok(info)) = self.compute.map(info) else {
            return false;
        };
        if info.backend != Backend::Cuda {
            return false;
        }
        let text = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let params = [
            text("cuda"),
            text(&info.ordinal.to_string()),
            text("default"),
        ]
        .concat();
        let params_bytes = (params.len() as u32).to_le_bytes();
        let payload = [SYNC, &params_bytes, &params].concat();
        let mut frame = b"ZCL1\x01\0\x03\0".to_vec(); // timeout_ms 0: does not wait
        frame.extend(
            [0, 0, 0, payload.len() as u32]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        frame.extend(payload);
        let mut response = Vec::new();
        if !self.session.serve(self.memory, &frame, &mut response) {
            return false;
        }
        if response.get(20) == Some(&1) {
            self.session.end_handle(u32_at(&response, 24) as i32);
        }
        response.get(28..41) == Some(b"t_ctl_timeout")
    }

    /// Looks at the device only after what a lost one answers.
    fn is_lost(&self, frame: &[u8]) -> bool {
        let is_suspect = if is_capability(frame) {
            self.response.get(20) == Some(&0)
        } else {
            let code = u32_at(&self.response, 36); // of a run
            code == Status::Backend.number() || u32_at(&self.response, 32) as i32 == NONE
        };
        is_suspect
            && self.compute.is_some_and(|compute| {
                let health = compute.device().context().health();
                health.is_ok_and(|health| health.state == HealthState::Lost)
            })
    }

    fn reply(&mut self, ret: i32, is_last: bool) -> io::Result<()> {
        let mut bytes = ret.to_le_bytes().to_vec();
        bytes.push(is_last.into());
        bytes.extend(&self.response);
        self.socket.write_all(&bytes)
    }
}

/// False: nothing has come until `deadline`. Fails with `ConnectionAborted` if `client` hangs up before.
fn is_readable(
    socket: &UnixStream,
    deadline: Option<Instant>,
    client: Option<&OwnedFd>,
) -> io::Result<bool> {
    loop {
        let timeout = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up; of a long time a part.
                PollTimeout::from((left.as_millis() + 1).min(60_000) as u16)
            }
        };
        let mut wanted = vec![PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        // Of no events, an end and an error alone are reported.
        wanted.extend(client.map(|client| PollFd::new(client.as_fd(), PollFlags::empty())));
        match poll(&mut wanted, timeout) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Ok(false);
            }
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) if wanted[0].any() == Some(true) => return Ok(true),
            Ok(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_capability(frame: &[u8]) -> bool {
    frame.starts_with(b"ZCL1")
}

/// Operation and payload.
fn split(frame: &[u8]) -> (u16, &[u8]) {
    let header = if is_capability(frame) { 24 } else { 32 };
    let op = frame
        .get(6..8)
        .map_or(0, |op| u16::from_le_bytes([op[0], op[1]]));
    (op, frame.get(header..).unwrap_or(&[]))
}

/// 0 past the end.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| {
        u32::from_le_bytes(word.try_into().expect("four bytes"))
    })
}

fn request(op: u16, words: &[u32]) -> Vec<u8> {
    let mut frame = b"ZCTL\x01\0".to_vec();
    frame.extend(op.to_le_bytes());
    let header = [0, 0, 4 * words.len() as u32, 0, 0, 0];
    frame.extend(
        header
            .iter()
            .chain(words)
            .flat_map(|word| word.to_le_bytes()),
    );
    frame
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {error}"))
}
