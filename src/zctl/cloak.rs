//! The host of a guest: its input and output, a session, and a transcript if one is recorded.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::str::FromStr;

use super::guest::{Host, window};
use super::session::{Call, Session};
use super::transcript::Recorder;
use crate::core::error::{Error, ErrorKind};
use crate::ffi;

/// The published numberings of handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handles {
    /// in 1, out 2, log 3, ctl 4.
    Pack,
    /// in 0, out 1, log 2, ctl 3.
    #[default]
    Abi,
    /// in 0, out 1, log 2; no handle for ctl.
    Guide,
}

impl Handles {
    pub(super) fn input(self) -> i32 {
        i32::from(self == Self::Pack)
    }
    fn ctl(self) -> Option<i32> {
        (self != Self::Guide).then(|| self.input() + 3)
    }
}

/// How many bytes successive reads of the input give: `all-at-once`, `one-byte`, `powers-of-two`,
/// `crlf-adversary` or `seeded-random`, with `:SEED` behind it.
///
/// ```
/// use worker_cuda::zctl::Chunks;
///
/// let chunks: Chunks = "seeded-random:7".parse()?;
/// assert!("two-bytes".parse::<Chunks>().is_err());
/// # let _ = chunks;
/// # Ok::<(), worker_cuda::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    schedule: Schedule,
    /// Of powers-of-two, how often it was asked; of seeded-random, the state.
    state: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Schedule {
    #[default]
    AllAtOnce,
    OneByte,
    PowersOfTwo,
    CrlfAdversary,
    SeededRandom,
}

impl FromStr for Chunks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            let message = format!(
                "chunks '{text}': not all-at-once, one-byte, powers-of-two, crlf-adversary or \
                 seeded-random[:SEED]"
            );
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let (name, seed) = match text.split_once(':') {
            Some((name, seed)) => (name, seed.parse().map_err(|_| wrong())?),
            None => (text, 0),
        };
        let schedule = match name {
            "all-at-once" => Schedule::AllAtOnce,
            "one-byte" => Schedule::OneByte,
            "powers-of-two" => Schedule::PowersOfTwo,
            "crlf-adversary" => Schedule::CrlfAdversary,
            "seeded-random" => Schedule::SeededRandom,
            _ => return Err(wrong()),
        };
        let state = if schedule == Schedule::SeededRandom {
            seed
        } else {
            0
        };
        Ok(Self { schedule, state })
    }
}

impl Chunks {
    /// How many bytes the next read gives, at most `cap` of them.
    fn next(&mut self, cap: usize) -> usize {
        let bytes = match self.schedule {
            Schedule::AllAtOnce => cap,
            Schedule::OneByte => 1,
            Schedule::PowersOfTwo => {
                let step = self.state;
                self.state = (step + 1) % 13;
                1 << step
            }
            Schedule::CrlfAdversary => 7,
            Schedule::SeededRandom => 1 + (self.random() % 64) as usize,
        };
        bytes.min(cap)
    }

    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.state;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Runs guests: what they read, write, log and call goes to streams and a session.
///
/// ```
/// use worker_cuda::zctl::{Call, Cloak, Host};
///
/// let mut output = Vec::new();
/// let mut cloak = Cloak::new(&b"hello"[..], &mut output, std::io::sink());
/// let mut memory = [0; 64];
/// assert_eq!(cloak.read(0, &mut memory, 60, 4), 4);
/// assert_eq!(cloak.read(0, &mut memory, 60, 5), -1); // past the end of the memory
/// assert_eq!(cloak.write(1, &memory, 60, 4), 4);
/// cloak.finish()?;
/// assert_eq!(output, b"hell");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Cloak<'a> {
    input: BufReader<Box<dyn Read + 'a>>,
    output: Box<dyn Write + 'a>,
    log: Box<dyn Write + 'a>,
    session: Option<Session>,
    handles: Handles,
    chunks: Chunks,
    /// By the distance from the handle of the input: in, out, log.
    ended: [bool; 3],
    recorder: Option<Recorder<'a>>,
}

impl fmt::Debug for Cloak<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloak")
            .field("handles", &self.handles)
            .field("chunks", &self.chunks)
            .finish_non_exhaustive()
    }
}

impl<'a> Cloak<'a> {
    /// Without a session: CAPS_LIST lists no capability, every other op is unknown.
    pub fn new(input: impl Read + 'a, output: impl Write + 'a, log: impl Write + 'a) -> Self {
        Self {
            input: BufReader::new(Box::new(input)),
            output: Box::new(output),
            log: Box::new(log),
            session: None,
            handles: Handles::default(),
            chunks: Chunks::default(),
            ended: [false; 3],
            recorder: None,
        }
    }

    /// Frames are answered by this session. To record, use that of [`Recorder::session`].
    pub fn with_session(mut self, session: Session) -> Self {
        self.session = Some(session);
        self
    }

    /// Handles have these numbers.
    pub fn with_handles(mut self, handles: Handles) -> Self {
        self.handles = handles;
        self
    }

    /// Reads of the input give so many bytes.
    pub fn with_chunks(mut self, chunks: Chunks) -> Self {
        self.chunks = chunks;
        self
    }

    /// What the guest asks and is given is recorded.
    pub fn with_recorder(mut self, recorder: Recorder<'a>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Writes what is buffered. An error of the transcript is returned here.
    pub fn finish(mut self) -> io::Result<()> {
        let flushed = self.output.flush();
        let recorded = self.recorder.take().map_or(Ok(()), Recorder::finish);
        flushed.and(recorded)
    }

    /// The index in `ended` of a handle of ours that has not ended.
    fn open(&self, handle: i32) -> Option<usize> {
        let index = usize::try_from(handle.checked_sub(self.handles.input())?).ok()?;
        (self.ended.get(index) == Some(&false)).then_some(index)
    }

    /// The session, if the handle lies behind ours.
    fn session_of(&mut self, handle: i32) -> Option<&mut Session> {
        let last = self.handles.input() + 2;
        self.session.as_mut().filter(|_| handle > last)
    }

    fn try_read(&mut self, handle: i32, memory: &mut [u8], ptr: i32, cap: i32) -> Option<i32> {
        if let Some(session) = self.session_of(handle) {
            return Some(session.read_handle(handle, memory, ptr, cap));
        }
        if self.open(handle)? != 0 {
            return None;
        }
        let window = window(memory.len(), ptr, cap)?;
        if window.is_empty() {
            return Some(0);
        }
        let chunk = self.chunks.next(window.len());
        let target = &mut memory[window][..chunk];
        let to_line_end = self.chunks.schedule == Schedule::CrlfAdversary;
        let bytes = fill(&mut self.input, target, to_line_end).ok()?;
        i32::try_from(bytes).ok()
    }

    fn try_write(&mut self, handle: i32, memory: &[u8], ptr: i32, len: i32) -> Option<i32> {
        if let Some(session) = self.session_of(handle) {
            return Some(session.write_handle(handle, memory, ptr, len));
        }
        let stream = match self.open(handle)? {
            1 => &mut self.output,
            2 => &mut self.log,
            _ => return None,
        };
        let window = window(memory.len(), ptr, len)?;
        stream.write_all(&memory[window]).ok()?;
        Some(len)
    }

    fn answer(&mut self, handle: Option<i32>, memory: &mut [u8], call: Call) -> i32 {
        if handle.is_some() && handle != self.handles.ctl() {
            return -1;
        }
        match &mut self.session {
            Some(session) => session.call(memory, call),
            // SAFETY: the memory is as long as its length says.
            None => unsafe {
                ffi::wcuda_zctl_call(
                    ffi::wcuda_zctl_session::zeroed(),
                    memory.as_mut_ptr().cast(),
                    memory.len() as u64,
                    call.req_ptr,
                    call.req_len,
                    call.resp_ptr,
                    call.resp_cap,
                    call.timeout_ms,
                )
            },
        }
    }
}

impl Host for Cloak<'_> {
    fn stdio(&self) -> (i32, i32) {
        (self.handles.input(), self.handles.input() + 1)
    }

    fn read(&mut self, handle: i32, memory: &mut [u8], ptr: i32, cap: i32) -> i32 {
        let ret = self.try_read(handle, memory, ptr, cap).unwrap_or(-1);
        if let Some(recorder) = &mut self.recorder {
            recorder.read(memory, handle, ptr, ret);
        }
        ret
    }

    fn write(&mut self, handle: i32, memory: &[u8], ptr: i32, len: i32) -> i32 {
        let ret = self.try_write(handle, memory, ptr, len).unwrap_or(-1);
        if let Some(recorder) = &mut self.recorder {
            recorder.write(memory, handle, ptr, ret);
        }
        ret
    }

    fn end(&mut self, handle: i32) {
        if let Some(session) = self.session_of(handle) {
            session.end_handle(handle);
        } else if let Some(index) = self.open(handle) {
            if index == 1 {
                let _ = self.output.flush();
            }
            self.ended[index] = true;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.end(handle);
        }
    }

    fn log(&mut self, memory: &[u8], topic: (i32, i32), message: (i32, i32)) {
        let part = |(ptr, bytes)| window(memory.len(), ptr, bytes).map(|window| &memory[window]);
        let (Some(topic), Some(message)) = (part(topic), part(message)) else {
            return;
        };
        let mut line = [topic, b": ", message].concat();
        for byte in &mut line {
            if byte.is_ascii_control() {
                *byte = b' ';
            }
        }
        line.push(b'\n');
        let _ = self.log.write_all(&line);
    }

    fn ctl(&mut self, handle: Option<i32>, memory: &mut [u8], call: Call) -> i32 {
        if let Some(recorder) = &mut self.recorder {
            recorder.request(memory, call);
        }
        let ret = self.answer(handle, memory, call);
        if let Some(recorder) = &mut self.recorder {
            recorder.response(memory, call, ret);
        }
        ret
    }
}

/// Reads until the target is full, the input ends, or a line does. An error after some bytes waits for the
/// next read.
fn fill(input: &mut impl BufRead, target: &mut [u8], to_line_end: bool) -> io::Result<usize> {
    let mut count = 0;
    while count < target.len() {
        let available = match input.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if count == 0 => return Err(error),
            Err(_) => break,
        };
        let room = &mut target[count..];
        let mut bytes = available.len().min(room.len());
        let line_end = available[..bytes]
            .iter()
            .position(|byte| matches!(byte, b'\r' | b'\n'))
            .filter(|_| to_line_end);
        if let Some(at) = line_end {
            bytes = at + 1;
        }
        room[..bytes].copy_from_slice(&available[..bytes]);
        input.consume(bytes);
        count += bytes;
        if bytes == 0 || line_end.is_some() {
            break;
        }
    }
    Ok(count)
}
