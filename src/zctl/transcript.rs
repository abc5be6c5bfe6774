//! Transcripts: what a guest asked its host and was given, as lines of JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::frame::{HEADER_BYTES, MAGIC, VERSION};
use super::guest::window;
use super::replay::Divergence;
use super::session::{Call, Record, Session, SessionOptions};
use crate::compute::GpuCompute;
use crate::core::device::Backend;
use crate::core::error::Result;

/// One line, without its newline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Head(Head),
    Read(Transfer),
    Write(Transfer),
    End { call: u64, handle: i32 },
    Request { call: u64, bytes: Vec<u8> },
    In { call: u64, range: RangeRead },
    Out { call: u64, range: RangeWritten },
    Response { call: u64, ret: i32, bytes: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    manifest: String,
    backend: String,
    memory_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Transfer {
    call: u64,
    handle: i32,
    ret: i32,
    bytes: Vec<u8>,
}

/// Bytes of the memory that a call read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeRead {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

/// Bytes of the memory that a call wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeWritten {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
        match self {
            Self::Head(head) => write!(
                f,
                r#"{{"k":"zctl","v":1,"manifest":"{}","backend":"{}","mem_cap":{}}}"#,
                head.manifest, head.backend, head.memory_bytes
            ),
            Self::Read(transfer) | Self::Write(transfer) => write!(
                f,
                r#"{{"k":"{}","i":{},"h":{},"ret":{},"b64":"{}"}}"#,
                self.kind(),
                transfer.call,
                transfer.handle,
                transfer.ret,
                base64(&transfer.bytes)
            ),
            Self::End { call, handle } => {
                write!(f, r#"{{"k":"end","i":{call},"h":{handle}}}"#)
            }
            Self::Request { call, bytes } => {
                let bytes = base64(bytes);
                write!(f, r#"{{"k":"ctl_req","i":{call},"b64":"{bytes}"}}"#)
            }
            Self::In { call, range } => write!(
                f,
                r#"{{"k":"mem_in","i":{call},"off":{},"len":{},"crc":"{:08x}"}}"#,
                range.offset, range.bytes, range.crc
            ),
            Self::Out { call, range } => write!(
                f,
                r#"{{"k":"mem_out","i":{call},"off":{},"b64":"{}"}}"#,
                range.offset,
                base64(&range.bytes)
            ),
            Self::Response { call, ret, bytes } => {
                let bytes = base64(bytes);
                write!(
                    f,
                    r#"{{"k":"ctl_res","i":{call},"ret":{ret},"b64":"{bytes}"}}"#
                )
            }
        }
    }
}

impl Line {
    fn kind(&self) -> &'static str {
        match self {
            Self::Head(_) => "zctl",
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::End { .. } => "end",
            Self::Request { .. } => "ctl_req",
            Self::In { .. } => "mem_in",
            Self::Out { .. } => "mem_out",
            Self::Response { .. } => "ctl_res",
        }
    }

    /// The line that this text should be as line of call `call`: what is missing or contradicts itself is
    /// replaced, so that the first byte that differs is the first that is wrong.
    fn read(text: &str, call: u64) -> std::result::Result<Self, (u64, String)> {
        // Values stay text until their field is known: as a tree, a list of digits takes 36 times its bytes.
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|error| {
            (
                error.column().max(1) as u64 - 1,
                "a line of JSON".to_owned(),
            )
        })?;
        let json = |key: &str| fields.get(key).map_or("", |value| value.get());
        let text_of = |key: &str| serde_json::from_str::<String>(json(key)).unwrap_or_default();
        let number = |key: &str| serde_json::from_str::<u64>(json(key)).unwrap_or(0);
        let signed = |key: &str| serde_json::from_str::<i32>(json(key)).unwrap_or(0);
        let bytes = STANDARD.decode(text_of("b64")).unwrap_or_default();
        // -1 or the number of bytes; a response has some.
        let ret = |empty: i32| match i32::try_from(bytes.len()).unwrap_or(-1) {
            0 if signed("ret") == -1 => -1,
            0 => empty,
            length => length,
        };
        let handle = signed("h");
        let transfer = |bytes| Transfer {
            call,
            handle,
            ret: ret(0),
            bytes,
        };
        let offset = number("off");
        Ok(match text_of("k").as_str() {
            "zctl" => Self::Head(Head {
                manifest: hex(&text_of("manifest"), 64),
                backend: match text_of("backend").as_str() {
                    "cuda" => "cuda".to_owned(),
                    _ => "host".to_owned(),
                },
                memory_bytes: number("mem_cap"),
            }),
            "read" => Self::Read(transfer(bytes.clone())),
            "write" => Self::Write(transfer(bytes.clone())),
            "end" => Self::End { call, handle },
            "ctl_req" => Self::Request { call, bytes },
            "mem_in" => Self::In {
                call,
                range: RangeRead {
                    offset,
                    bytes: number("len"),
                    crc: u32::from_str_radix(&hex(&text_of("crc"), 8), 16).unwrap_or(0),
                },
            },
            "mem_out" => Self::Out {
                call,
                range: RangeWritten { offset, bytes },
            },
            "ctl_res" => Self::Response {
                call,
                ret: ret(-1),
                bytes: bytes.clone(),
            },
            _ => return Err((0, "a line of a transcript".to_owned())),
        })
    }
}

/// `text` if it is so many lower-case hexadecimal digits, else zeros.
fn hex(text: &str, digits: usize) -> String {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() == digits && text.bytes().all(is_hex) {
        text.to_owned()
    } else {
        "0".repeat(digits)
    }
}

/// A call of a guest, and the number of its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) line: usize,
    pub(super) call: RecordedCall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordedCall {
    Read {
        handle: i32,
        ret: i32,
        bytes: Vec<u8>,
    },
    Write {
        handle: i32,
        ret: i32,
        bytes: Vec<u8>,
    },
    End {
        handle: i32,
    },
    Ctl(RecordedCtl),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedCtl {
    pub(super) request: Vec<u8>,
    pub(super) read: Vec<RangeRead>,
    pub(super) written: Vec<RangeWritten>,
    pub(super) ret: i32,
    pub(super) response: Vec<u8>,
}

impl RecordedCall {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::End { .. } => "end",
            Self::Ctl(_) => "ctl",
        }
    }
}

/// A transcript that was read and is right in itself. [`Replay`](super::Replay) compares a guest with it.
///
/// ```
/// use worker_cuda::zctl::Transcript;
///
/// let text = format!(
///     "{{\"k\":\"zctl\",\"v\":1,\"manifest\":\"{}\",\"backend\":\"host\",\"mem_cap\":64}}\n{}\n{}\n",
///     "0".repeat(64),
///     r#"{"k":"read","i":0,"h":0,"ret":2,"b64":"aGk="}"#,
///     r#"{"k":"end","i":1,"h":1}"#,
/// );
/// assert_eq!(text.parse::<Transcript>().unwrap().calls(), 2);
/// let wrong = text.replace("\"ret\":2", "\"ret\":3").parse::<Transcript>().unwrap_err();
/// assert_eq!((wrong.line, wrong.byte), (2, 30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    head: Head,
    pub(super) calls: Vec<Recorded>,
    /// Lines of the file.
    pub(super) lines: usize,
}

impl Transcript {
    /// How many calls were recorded.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }
    /// BLAKE3 of the manifest whose kernels were there, as 64 hexadecimal digits; without one, of nothing.
    pub fn manifest(&self) -> &str {
        &self.head.manifest
    }
    /// Where the kernels ran: `host` or `cuda`.
    pub fn backend(&self) -> &str {
        &self.head.backend
    }
    /// The guest's memory.
    pub fn memory_bytes(&self) -> u64 {
        self.head.memory_bytes
    }
}

impl FromStr for Transcript {
    type Err = Divergence;

    fn from_str(text: &str) -> std::result::Result<Self, Divergence> {
        let mut lines = Lines {
            rest: text,
            number: 0,
        };
        let head = match lines.next(0)? {
            Some(Line::Head(head)) => head,
            other => return Err(lines.unexpected("zctl", other.as_ref())),
        };
        let mut calls = Vec::new();
        while let Some(line) = lines.next(calls.len() as u64)? {
            let number = lines.number;
            let call = match line {
                Line::Read(line) => RecordedCall::Read {
                    handle: line.handle,
                    ret: line.ret,
                    bytes: line.bytes,
                },
                Line::Write(line) => RecordedCall::Write {
                    handle: line.handle,
                    ret: line.ret,
                    bytes: line.bytes,
                },
                Line::End { handle, .. } => RecordedCall::End { handle },
                Line::Request { call, bytes } => {
                    RecordedCall::Ctl(lines.ctl(call, bytes, head.memory_bytes)?)
                }
                other => return Err(lines.unexpected("a call", Some(&other))),
            };
            calls.push(Recorded { line: number, call });
        }
        Ok(Self {
            head,
            calls,
            lines: lines.number,
        })
    }
}

struct Lines<'a> {
    rest: &'a str,
    /// Of the line that was read last, from 1.
    number: usize,
}

impl Lines<'_> {
    /// None at the end.
    fn next(&mut self, call: u64) -> std::result::Result<Option<Line>, Divergence> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let Some((text, rest)) = self.rest.split_once('\n') else {
            let end = self.rest.len() as u64;
            return Err(self.wrong(end, "a newline", "the end"));
        };
        self.rest = rest;
        let line = Line::read(text, call).map_err(|(byte, expected)| {
            let found = snippet(text.as_bytes(), byte as usize);
            self.wrong(byte, expected, found)
        })?;
        let right = line.to_string();
        match first_difference(right.as_bytes(), text.as_bytes()) {
            Some(byte) => Err(self.wrong(
                byte as u64,
                snippet(right.as_bytes(), byte),
                snippet(text.as_bytes(), byte),
            )),
            None => Ok(Some(line)),
        }
    }

    fn wrong(
        &self,
        byte: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Divergence {
        Divergence::new(self.number, byte, expected, found)
    }

    fn unexpected(&self, expected: &str, found: Option<&Line>) -> Divergence {
        let byte = r#"{"k":""#.len() as u64;
        match found {
            Some(line) => self.wrong(byte, expected, line.kind()),
            None => Divergence::new(self.number + 1, 0, expected, "the end"),
        }
    }

    /// The lines of a ctl call, behind its request.
    fn ctl(
        &mut self,
        call: u64,
        request: Vec<u8>,
        memory_bytes: u64,
    ) -> std::result::Result<RecordedCtl, Divergence> {
        let mut ctl = RecordedCtl {
            request,
            ..RecordedCtl::default()
        };
        loop {
            match self.next(call)? {
                Some(Line::In { range, .. }) if ctl.written.is_empty() => {
                    let before = ctl.read.last().map(|last| (last.offset, last.bytes));
                    let is_behind = before < Some((range.offset, range.bytes));
                    self.check_range(range.offset, range.bytes, is_behind, memory_bytes)?;
                    ctl.read.push(range);
                }
                Some(Line::Out { range, .. }) => {
                    let before = ctl.written.last();
                    let end = before.map_or(0, |last| last.offset + last.bytes.len() as u64);
                    let is_behind = range.offset >= end;
                    let bytes = range.bytes.len() as u64;
                    self.check_range(range.offset, bytes, is_behind, memory_bytes)?;
                    ctl.written.push(range);
                }
                Some(Line::Response { ret, bytes, .. }) => {
                    ctl.ret = ret;
                    ctl.response = bytes;
                    self.check_response(&ctl)?;
                    return Ok(ctl);
                }
                other => return Err(self.unexpected("ctl_res", other.as_ref())),
            }
        }
    }

    fn check_range(
        &self,
        offset: u64,
        bytes: u64,
        is_behind: bool,
        memory_bytes: u64,
    ) -> std::result::Result<(), Divergence> {
        let end = offset.checked_add(bytes);
        let expected = if bytes == 0 {
            "a range with bytes".to_owned()
        } else if end.is_none_or(|end| end > memory_bytes) {
            format!("a range inside {memory_bytes} bytes")
        } else if !is_behind {
            "a range behind the one before".to_owned()
        } else {
            return Ok(());
        };
        Err(self.wrong(0, expected, format!("{bytes} bytes at {offset}")))
    }

    fn check_response(&self, ctl: &RecordedCtl) -> std::result::Result<(), Divergence> {
        if ctl.ret == -1 {
            return Ok(());
        }
        let Some(right) = response_to(&ctl.request, &ctl.response) else {
            return Err(self.wrong(0, "no response", format!("{} bytes", ctl.ret)));
        };
        match first_difference(&right, &ctl.response) {
            Some(byte) => Err(self.wrong(
                byte as u64,
                byte_at(&right, byte),
                byte_at(&ctl.response, byte),
            )),
            None => Ok(()),
        }
    }
}

/// A little-endian number of a frame.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Whether `frame` begins with the header of a request of ZCTL/1.
pub(super) fn is_zctl(frame: &[u8]) -> bool {
    frame.len() >= HEADER_BYTES && frame[..4] == MAGIC && frame[4..6] == VERSION.to_le_bytes()
}

/// `response` with every field of its header as a response to `request` has it; none if there is none.
fn response_to(request: &[u8], response: &[u8]) -> Option<Vec<u8>> {
    const ZCL1_REQUEST_BYTES: usize = 12;
    const ZCL1_RESPONSE_BYTES: usize = 20;
    let mut right = response.to_vec();
    let mut put = |at: usize, value: u32| right[at..at + 4].copy_from_slice(&value.to_le_bytes());
    if is_zctl(request) && response.len() >= HEADER_BYTES {
        for at in [0, 4, 12] {
            put(at, u32_at(request, at)?);
        }
        put(8, 0);
        put(16, u32_at(response, 16)?.min(7));
        put(20, (response.len() - HEADER_BYTES) as u32);
        put(24, 0);
        put(28, 0);
        if u32_at(request, 24)? != 0 {
            let crc = crc32fast::hash(&right);
            right[24..28].copy_from_slice(&crc.to_le_bytes());
        }
        return Some(right);
    }
    let is_zcl1 = request.len() >= ZCL1_REQUEST_BYTES && request.starts_with(b"ZCL1");
    if !is_zcl1 || response.len() < ZCL1_RESPONSE_BYTES {
        return None;
    }
    put(0, u32::from_le_bytes(*b"ZCL1"));
    put(4, 1 | (u32_at(request, 4)? & 0xffff_0000));
    put(8, u32_at(request, 8)?);
    put(12, 0);
    put(16, (response.len() - ZCL1_RESPONSE_BYTES) as u32);
    Some(right)
}

/// The first index at which two texts differ, or one ends.
pub(super) fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    (a != b).then(|| a.iter().zip(b).take_while(|(a, b)| a == b).count())
}

/// A byte as two hexadecimal digits.
pub(super) fn byte_at(bytes: &[u8], index: usize) -> String {
    match bytes.get(index) {
        Some(byte) => format!("{byte:02x}"),
        None => "the end".to_owned(),
    }
}

/// Text from `at` on, at most 24 bytes.
fn snippet(text: &[u8], at: usize) -> String {
    let rest = text.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return "the end of the line".to_owned();
    }
    format!("'{}'", String::from_utf8_lossy(&rest[..rest.len().min(24)]))
}

/// A range of the memory, as a session reported it.
enum Touched {
    Read(RangeRead),
    Written(RangeWritten),
}

type Ranges = Arc<Mutex<Vec<Touched>>>;

fn lock(ranges: &Ranges) -> MutexGuard<'_, Vec<Touched>> {
    ranges.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a transcript. A [`Cloak`](super::Cloak) with it records.
pub struct Recorder<'a> {
    writer: Box<dyn Write + 'a>,
    head: Head,
    /// Lines that wait for the memory's size, which the first line states.
    waiting: Option<Vec<u8>>,
    calls: u64,
    ranges: Ranges,
    error: Option<io::Error>,
}

impl fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

impl<'a> Recorder<'a> {
    /// For kernels on `backend`; `manifest` has the bytes of the manifest they are from, or none.
    pub fn new(writer: impl Write + 'a, backend: Backend, manifest: &[u8]) -> Self {
        let backend = match backend {
            Backend::Cuda => "cuda",
            _ => "host",
        };
        Self {
            writer: Box::new(writer),
            head: Head {
                manifest: blake3::hash(manifest).to_hex().to_string(),
                backend: backend.to_owned(),
                memory_bytes: 0,
            },
            waiting: Some(Vec::new()),
            calls: 0,
            ranges: Ranges::default(),
            error: None,
        }
    }

    /// A session whose accesses to the memory are recorded.
    pub fn session(&self, compute: &GpuCompute, options: &SessionOptions) -> Result<Session> {
        let ranges = Arc::clone(&self.ranges);
        Session::with_recorder(compute, options, move |record| match record {
            Record::Read(offset, bytes) => lock(&ranges).push(Touched::Read(RangeRead {
                offset,
                bytes: bytes.len() as u64,
                crc: crc32fast::hash(bytes),
            })),
            Record::Written(offset, bytes) => lock(&ranges).push(Touched::Written(RangeWritten {
                offset,
                bytes: bytes.to_vec(),
            })),
            _ => {}
        })
    }

    /// Writes what is buffered. The first error of all is returned here.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.begin();
        match self.error {
            Some(error) => Err(error),
            None => self.writer.flush(),
        }
    }

    /// Writes the first line, and those that waited for it.
    fn begin(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let head = format!("{}\n", Line::Head(self.head.clone()));
            self.write_bytes(head.as_bytes());
            self.write_bytes(&waiting);
        }
    }

    fn see(&mut self, memory: &[u8]) {
        if self.waiting.is_some() && !memory.is_empty() {
            self.head.memory_bytes = memory.len() as u64;
            self.begin();
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        match &mut self.waiting {
            Some(waiting) => waiting.extend(bytes),
            None if self.error.is_none() => self.error = self.writer.write_all(bytes).err(),
            None => {}
        }
    }

    fn line(&mut self, line: &Line) {
        self.write_bytes(format!("{line}\n").as_bytes());
    }

    fn transfer(&mut self, memory: &[u8], handle: i32, ptr: i32, ret: i32) -> Transfer {
        self.see(memory);
        let bytes = window(memory.len(), ptr, ret).map_or(&[][..], |window| &memory[window]);
        self.calls += 1;
        Transfer {
            call: self.calls - 1,
            handle,
            ret,
            bytes: bytes.to_vec(),
        }
    }

    pub(super) fn read(&mut self, memory: &[u8], handle: i32, ptr: i32, ret: i32) {
        let line = Line::Read(self.transfer(memory, handle, ptr, ret));
        self.line(&line);
    }

    pub(super) fn write(&mut self, memory: &[u8], handle: i32, ptr: i32, ret: i32) {
        let line = Line::Write(self.transfer(memory, handle, ptr, ret));
        self.line(&line);
    }

    pub(super) fn end(&mut self, handle: i32) {
        let call = self.calls;
        self.calls += 1;
        self.line(&Line::End { call, handle });
    }

    /// Before the call, which may overwrite the frame.
    pub(super) fn request(&mut self, memory: &[u8], call: Call) {
        self.see(memory);
        let frame = window(memory.len(), call.req_ptr, call.req_len);
        let bytes = frame.map_or(&[][..], |window| &memory[window]).to_vec();
        let call = self.calls;
        self.line(&Line::Request { call, bytes });
    }

    pub(super) fn response(&mut self, memory: &[u8], numbers: Call, ret: i32) {
        let call = self.calls;
        self.calls += 1;
        let ranges = std::mem::take(&mut *lock(&self.ranges));
        for range in ranges {
            self.line(&match range {
                Touched::Read(range) => Line::In { call, range },
                Touched::Written(range) => Line::Out { call, range },
            });
        }
        let response = window(memory.len(), numbers.resp_ptr, ret);
        let bytes = response.map_or(&[][..], |window| &memory[window]).to_vec();
        self.line(&Line::Response { call, ret, bytes });
    }
}
