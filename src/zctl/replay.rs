//! Replay: a host that gives a guest what was recorded, and ends with the first call that differs.

use std::fmt;

use super::guest::{Host, window};
use super::session::Call;
use super::transcript::{
    Recorded, RecordedCall, RecordedCtl, Transcript, byte_at, first_difference, is_zctl, u32_at,
};

/// Where a guest, or the text of a transcript, first differs from what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// Of the transcript, from 1.
    pub line: usize,
    /// From 0: in a frame or in written bytes; of a range of the memory its offset; else in the line.
    pub byte: u64,
    /// What was recorded.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Divergence {
    pub(super) fn new(
        line: usize,
        byte: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            line,
            byte,
            expected: expected.into(),
            found: found.into(),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, byte {}: expected {}, found {}",
            self.line, self.byte, self.expected, self.found
        )
    }
}

impl std::error::Error for Divergence {}

/// Runs guests without a device, from a transcript. After the first divergence every call fails.
///
/// ```
/// use worker_cuda::zctl::{Host, Replay, Transcript};
///
/// let text = format!(
///     "{{\"k\":\"zctl\",\"v\":1,\"manifest\":\"{}\",\"backend\":\"host\",\"mem_cap\":64}}\n{}\n",
///     "0".repeat(64),
///     r#"{"k":"read","i":0,"h":0,"ret":2,"b64":"aGk="}"#,
/// );
/// let transcript: Transcript = text.parse().unwrap();
/// let mut replay = Replay::new(&transcript);
/// let mut memory = [0; 64];
/// assert_eq!(replay.read(0, &mut memory, 8, 16), 2);
/// assert_eq!(memory[8..10], *b"hi");
/// assert_eq!(replay.read(0, &mut memory, 8, 16), -1);
/// assert_eq!(replay.finish().unwrap_err().line, 3);
/// ```
pub struct Replay<'a> {
    transcript: &'a Transcript,
    next: usize,
    input: i32,
    has_seen_memory: bool,
    divergence: Option<Divergence>,
    at_divergence: Box<dyn FnMut(&Divergence) + 'a>,
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("next", &self.next)
            .field("divergence", &self.divergence)
            .finish_non_exhaustive()
    }
}

type Outcome<T> = Result<T, Divergence>;

impl<'a> Replay<'a> {
    /// From the first call on, with the handles of [`Handles::Abi`](super::Handles).
    pub fn new(transcript: &'a Transcript) -> Self {
        Self {
            transcript,
            next: 0,
            input: 0,
            has_seen_memory: false,
            divergence: None,
            at_divergence: Box::new(|_| ()),
        }
    }

    /// Handles have these numbers.
    pub fn with_handles(mut self, handles: super::Handles) -> Self {
        self.input = handles.input();
        self
    }

    /// At the first divergence, within the guest's call: a guest that ignores failures may never return.
    pub fn at_divergence(mut self, function: impl FnMut(&Divergence) + 'a) -> Self {
        self.at_divergence = Box::new(function);
        self
    }

    /// When the guest has ended: whether all calls were as recorded, and none is left. Returns their number.
    pub fn finish(self) -> Outcome<usize> {
        match (self.divergence, self.transcript.calls.get(self.next)) {
            (Some(divergence), _) => Err(divergence),
            (None, Some(left)) => {
                let kind = left.call.kind();
                Err(Divergence::new(left.line, 0, kind, "the end of the guest"))
            }
            (None, None) => Ok(self.next),
        }
    }

    /// Compares a call with the next one by `compare`.
    fn call(
        &mut self,
        kind: &'static str,
        memory_bytes: usize,
        compare: impl FnOnce(&'a Recorded) -> Outcome<i32>,
    ) -> i32 {
        if self.divergence.is_some() {
            return -1;
        }
        match self.try_call(kind, memory_bytes, compare) {
            Ok(ret) => ret,
            Err(divergence) => {
                (self.at_divergence)(&divergence);
                self.divergence = Some(divergence);
                -1
            }
        }
    }

    fn try_call(
        &mut self,
        kind: &'static str,
        memory_bytes: usize,
        compare: impl FnOnce(&'a Recorded) -> Outcome<i32>,
    ) -> Outcome<i32> {
        let transcript = self.transcript;
        if !self.has_seen_memory && memory_bytes != 0 {
            self.has_seen_memory = true;
            let recorded = transcript.memory_bytes();
            if recorded != memory_bytes as u64 {
                let [expected, found] =
                    [recorded, memory_bytes as u64].map(|bytes| format!("{bytes} bytes of memory"));
                return Err(Divergence::new(1, 0, expected, found));
            }
        }
        let Some(recorded) = transcript.calls.get(self.next) else {
            let line = transcript.lines + 1;
            return Err(Divergence::new(line, 0, "the end of the guest", kind));
        };
        if recorded.call.kind() != kind {
            let expected = recorded.call.kind();
            return Err(Divergence::new(recorded.line, 0, expected, kind));
        }
        let ret = compare(recorded)?;
        self.next += 1;
        Ok(ret)
    }
}

fn check_handle(recorded: &Recorded, expected: i32, found: i32) -> Outcome<()> {
    if expected == found {
        return Ok(());
    }
    let [expected, found] = [expected, found].map(|handle| format!("handle {handle}"));
    Err(Divergence::new(recorded.line, 0, expected, found))
}

/// The window at `ptr` that `ret` bytes go to.
fn room(
    line: usize,
    memory_bytes: usize,
    ptr: i32,
    cap: i32,
    ret: i32,
) -> Outcome<std::ops::Range<usize>> {
    let wrong = |found| Divergence::new(line, 0, format!("room for {ret} bytes"), found);
    let window = window(memory_bytes, ptr, cap)
        .ok_or_else(|| wrong("a window outside the memory".to_owned()))?;
    if window.len() < ret as usize {
        return Err(wrong(format!("{cap} bytes")));
    }
    Ok(window.start..window.start + ret as usize)
}

fn check_bytes(line: usize, expected: &[u8], found: &[u8]) -> Outcome<()> {
    match first_difference(expected, found) {
        Some(byte) => Err(Divergence::new(
            line,
            byte as u64,
            byte_at(expected, byte),
            byte_at(found, byte),
        )),
        None => Ok(()),
    }
}

impl Host for Replay<'_> {
    fn stdio(&self) -> (i32, i32) {
        (self.input, self.input + 1)
    }

    fn read(&mut self, handle: i32, memory: &mut [u8], ptr: i32, cap: i32) -> i32 {
        self.call("read", memory.len(), |recorded| {
            let RecordedCall::Read {
                handle: expected,
                ret,
                bytes,
            } = &recorded.call
            else {
                return Ok(-1);
            };
            check_handle(recorded, *expected, handle)?;
            if *ret >= 0 {
                let window = room(recorded.line, memory.len(), ptr, cap, *ret)?;
                memory[window].copy_from_slice(bytes);
            }
            Ok(*ret)
        })
    }

    fn write(&mut self, handle: i32, memory: &[u8], ptr: i32, len: i32) -> i32 {
        self.call("write", memory.len(), |recorded| {
            let RecordedCall::Write {
                handle: expected,
                ret,
                bytes,
            } = &recorded.call
            else {
                return Ok(-1);
            };
            check_handle(recorded, *expected, handle)?;
            if *ret >= 0 {
                let window = room(recorded.line, memory.len(), ptr, len, 0)?.start;
                check_bytes(recorded.line, bytes, &memory[window..][..len as usize])?;
            }
            Ok(*ret)
        })
    }

    fn end(&mut self, handle: i32) {
        self.call("end", 0, |recorded| {
            if let RecordedCall::End { handle: expected } = recorded.call {
                check_handle(recorded, expected, handle)?;
            }
            Ok(0)
        });
    }

    fn log(&mut self, _: &[u8], _: (i32, i32), _: (i32, i32)) {}

    fn ctl(&mut self, _: Option<i32>, memory: &mut [u8], call: Call) -> i32 {
        self.call("ctl", memory.len(), |recorded| match &recorded.call {
            RecordedCall::Ctl(ctl) => replay_ctl(recorded.line, ctl, memory, call),
            _ => Ok(-1),
        })
    }
}

fn replay_ctl(line: usize, ctl: &RecordedCtl, memory: &mut [u8], call: Call) -> Outcome<i32> {
    let frame = window(memory.len(), call.req_ptr, call.req_len);
    let frame = frame.map_or(&[][..], |window| &memory[window]);
    check_bytes(line, &ctl.request, frame)?;
    let last_line = line + ctl.read.len() + ctl.written.len() + 1;
    let response = match ctl.ret {
        -1 => 0..0,
        ret => room(last_line, memory.len(), call.resp_ptr, call.resp_cap, ret)?,
    };
    for (index, range) in ctl.read.iter().enumerate() {
        let line = line + 1 + index;
        let bytes = bytes_at(memory, range.offset, range.bytes).ok_or_else(|| {
            let found = format!("{} bytes of memory", memory.len());
            Divergence::new(line, range.offset, format!("{} bytes", range.bytes), found)
        })?;
        let found = crc32fast::hash(bytes);
        if found != range.crc {
            let [expected, found] = [range.crc, found].map(|crc| format!("crc {crc:08x}"));
            return Err(Divergence::new(line, range.offset, expected, found));
        }
    }
    if let Some((offset, bytes)) = first_missing(ctl, memory) {
        let expected = format!("{bytes} bytes that the call read or wrote");
        return Err(Divergence::new(
            last_line,
            offset,
            expected,
            "no line of them",
        ));
    }
    for (index, range) in ctl.written.iter().enumerate() {
        let bytes = range.bytes.len() as u64;
        let Some(end) = bytes_at(memory, range.offset, bytes).map(|_| range.offset + bytes) else {
            let line = line + 1 + ctl.read.len() + index;
            let found = format!("{} bytes of memory", memory.len());
            return Err(Divergence::new(
                line,
                range.offset,
                format!("{bytes} bytes"),
                found,
            ));
        };
        memory[range.offset as usize..end as usize].copy_from_slice(&range.bytes);
    }
    memory[response].copy_from_slice(&ctl.response);
    Ok(ctl.ret)
}

fn bytes_at(memory: &[u8], offset: u64, bytes: u64) -> Option<&[u8]> {
    let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
    memory.get(usize::try_from(offset).ok()?..end)
}

/// The first range that a run with these arguments read or wrote, and of which there is no line. None if the
/// frame is no run, or the run failed.
fn first_missing(ctl: &RecordedCtl, memory: &[u8]) -> Option<(u64, u64)> {
    const KERNEL_RUN: u32 = super::frame::KERNEL_RUN as u32;
    const HEADER: usize = super::frame::HEADER_BYTES;
    let word = |at: usize| u32_at(&ctl.request, HEADER + at).map(u64::from);
    if !is_zctl(&ctl.request)
        || u32_at(&ctl.request, 4)? >> 16 != KERNEL_RUN
        || u32_at(&ctl.response, HEADER) != Some(1)
    {
        return None;
    }
    let was_read = |range: (u64, u64)| {
        ctl.read
            .iter()
            .any(|each| (each.offset, each.bytes) == range)
    };
    let was_written = |range: (u64, u64)| {
        let is_it = |each: &super::transcript::RangeWritten| {
            (each.offset, each.bytes.len() as u64) == range
        };
        ctl.written.iter().any(is_it)
    };
    let base = word(8)?;
    for index in 0..word(4)? as usize {
        let at = 16 + 16 * index;
        let (kind, offset, bytes) = (word(at)?, base + word(at + 4)?, word(at + 8)?);
        let (data, others) = match kind {
            10 | 12 => ((offset, bytes), Vec::new()),
            11 => tensor_ranges(memory, base, offset)?,
            _ => continue,
        };
        let is_missing =
            |range: (u64, u64), is_there: bool| (range.1 != 0 && !is_there).then_some(range);
        let missing = others
            .into_iter()
            .find_map(|range| is_missing(range, was_read(range)))
            .or_else(|| is_missing(data, was_read(data) || was_written(data)));
        if missing.is_some() {
            return missing;
        }
    }
    None
}

type Bytes = (u64, u64);

/// The data of a tensor; its descriptor, shape and strides. None if they make no sense.
fn tensor_ranges(memory: &[u8], base: u64, descriptor: u64) -> Option<(Bytes, Vec<Bytes>)> {
    const ELEMENT_BYTES: [u64; 12] = [4, 2, 2, 8, 1, 1, 2, 2, 4, 4, 8, 8];
    let word = |offset: u64| u32_at(memory, usize::try_from(offset).ok()?).map(u64::from);
    let field = |index: u64| word(descriptor + 4 * index);
    let element = *ELEMENT_BYTES.get((field(0)? as usize).checked_sub(1)?)?;
    let rank = field(1)?;
    let (shape, strides) = (base + field(5)?, field(6)?);
    let mut others = vec![(descriptor, 32), (shape, 4 * rank)];
    if strides != 0 {
        others.push((base + strides, 4 * rank));
    }
    // From the last dimension to the first: elements from the first to the last, if there are any.
    let (mut extent, mut contiguous) = (1u64, 1u64);
    for index in (0..rank).rev() {
        let dim = word(shape + 4 * index)?;
        let stride = match strides {
            0 => contiguous,
            _ => word(base + strides + 4 * index)?,
        };
        contiguous = contiguous.checked_mul(dim)?;
        let span = dim.saturating_sub(1).checked_mul(stride)?;
        extent = extent.checked_add(span)?;
    }
    let extent = if contiguous == 0 { 0 } else { extent };
    let data = (base + field(3)?, extent.checked_mul(element)?);
    Some((data, others))
}
