//! Frames as a client writes and reads them.

use crate::core::error::{Error, ErrorKind, Result};

pub(super) const HEADER_BYTES: usize = 32;
pub(super) const MAGIC: [u8; 4] = *b"ZCTL";
pub(super) const VERSION: u16 = 1;
/// ZCL1's.
pub(super) const CAPABILITY_MAGIC: [u8; 4] = *b"ZCL1";
pub(super) const CAPABILITY_HEADER_BYTES: usize = 24;

pub(super) const CAPS_LIST: u16 = 0x0001;
pub(super) const KERNEL_LIST: u16 = 0x0101;
pub(super) const KERNEL_RUN: u16 = 0x0102;
pub(super) const MEM_WRITE: u16 = 0x8001;
pub(super) const MEM_READ: u16 = 0x8002;
pub(super) const MEM_INFO: u16 = 0x8003;
const HANDLE_READ: u16 = 0x8011;
const HANDLE_WRITE: u16 = 0x8012;
pub(super) const KERNEL_DESCRIBE: u16 = 0x8021;

/// The status of a response, and of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// 0.
    Ok,
    /// 1: wrong lengths, fields or bounds.
    Malformed,
    /// 2: unknown operation.
    Unsupported,
    /// 3: not allowed.
    Denied,
    /// 4: a budget is over.
    Timeout,
    /// 5: no memory, or over a limit.
    NoMemory,
    /// 6: device or runtime.
    Backend,
    /// 7: arguments.
    BadArgs,
    /// Any other number.
    Unknown(u32),
}

impl Status {
    /// The status of a number on the wire.
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Ok,
            1 => Self::Malformed,
            2 => Self::Unsupported,
            3 => Self::Denied,
            4 => Self::Timeout,
            5 => Self::NoMemory,
            6 => Self::Backend,
            7 => Self::BadArgs,
            other => Self::Unknown(other),
        }
    }

    /// Its number on the wire.
    pub fn number(self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::Malformed => 1,
            Self::Unsupported => 2,
            Self::Denied => 3,
            Self::Timeout => 4,
            Self::NoMemory => 5,
            Self::Backend => 6,
            Self::BadArgs => 7,
            Self::Unknown(other) => other,
        }
    }
}

/// An argument of a run. Offsets are of the memory of the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Arg {
    /// A signed integer, for any integer parameter that can hold it.
    I32(i32),
    /// An unsigned integer, or the bits of an f32, f16 or bf16.
    U32(u32),
    /// As `I32`.
    I64(i64),
    /// As `U32`, or the bits of an f64.
    U64(u64),
    /// An f32.
    F32(f32),
    /// An f64.
    F64(f64),
    /// A buffer, or bytes by value.
    Bytes {
        /// Where they begin.
        offset: u32,
        /// How many.
        length: u32,
    },
    /// A tensor, by the offset of its descriptor.
    Tensor {
        /// Of the 32 bytes of the descriptor.
        descriptor: u32,
    },
    /// As `Bytes`, for a parameter with this layout.
    Layout {
        /// Where the bytes begin.
        offset: u32,
        /// How many.
        length: u32,
        /// The number of the layout, not 0.
        layout_id: u32,
    },
}

impl Arg {
    fn words(self) -> [u32; 4] {
        let wide = |kind, bits: u64| [kind, bits as u32, (bits >> 32) as u32, 0];
        match self {
            Self::I32(value) => [1, value as u32, 0, 0],
            Self::U32(value) => [2, value, 0, 0],
            Self::I64(value) => wide(3, value as u64),
            Self::U64(value) => wide(4, value),
            Self::F32(value) => [5, value.to_bits(), 0, 0],
            Self::F64(value) => wide(6, value.to_bits()),
            Self::Bytes { offset, length } => [10, offset, length, 0],
            Self::Tensor { descriptor } => [11, descriptor, 32, 0],
            Self::Layout {
                offset,
                length,
                layout_id,
            } => [12, offset, length, layout_id],
        }
    }
}

/// The payload of KERNEL_RUN.
pub(super) fn run_payload(kernel_id: u32, base: u32, args: &[Arg]) -> Vec<u8> {
    let head = [kernel_id, args.len() as u32, base, 0];
    let words = args.iter().flat_map(|arg| arg.words());
    head.into_iter()
        .chain(words)
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// What a run was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// [`Status::Ok`] after a run.
    pub status: Status,
    /// Why it did not run.
    pub message: String,
}

impl Answer {
    /// Whether the kernel ran.
    pub fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }

    pub(super) fn read(payload: &[u8]) -> Result<Self> {
        let mut reader = Reader(payload);
        let ok = reader.u32()?;
        let code = reader.u32()?;
        let bytes = reader.u32()? as usize;
        let message = String::from_utf8_lossy(reader.take(bytes)?).into_owned();
        reader.end()?;
        if (ok == 1) != (code == 0) || ok > 1 {
            return Err(malformed("the answer to a run contradicts itself"));
        }
        Ok(Self {
            status: Status::from_number(code),
            message,
        })
    }
}

pub(super) fn malformed(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what.into())
}

/// Bytes of a response, front to back.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        if bytes > self.0.len() {
            return Err(malformed("a response ends within a field"));
        }
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let bytes = self.u32()? as usize;
        Ok(String::from_utf8_lossy(self.take(bytes)?).into_owned())
    }

    pub(super) fn end(&self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(malformed(format!(
            "{} bytes are left at the end of a response",
            self.0.len()
        )))
    }
}

/// A request's frame.
pub(super) fn request(
    op: u16,
    req_id: u32,
    timeout_ms: u32,
    payload: &[u8],
    has_crc: bool,
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    frame.extend(MAGIC);
    frame.extend(VERSION.to_le_bytes());
    frame.extend(op.to_le_bytes());
    for field in [0, req_id, payload.len() as u32, timeout_ms, 0, 0] {
        frame.extend(field.to_le_bytes());
    }
    frame.extend(payload);
    if has_crc {
        let sum = crc32fast::hash(&frame);
        frame[24..28].copy_from_slice(&sum.to_le_bytes());
    }
    frame
}

/// The answer to a well-formed request of ZCTL/1 or ZCL1 that the session behind a connection cannot give: a run, an
/// operation of ZCL1 or a handle fails with `status` and `message`, everything else with status 6.
pub fn refusal(request: &[u8], status: Status, message: &str) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut begin = [0; HEADER_BYTES]; // of a frame that is no whole one: 0
    let bytes = request.len().min(HEADER_BYTES);
    begin[..bytes].copy_from_slice(&request[..bytes]);
    if begin.starts_with(&CAPABILITY_MAGIC) {
        let (trace, what) = match status {
            Status::Timeout => ("t_ctl_timeout", "operation timed out"),
            _ => ("t_accel_launch_failed", "launch failed"),
        };
        let payload = [vec![0; 4], text(trace), text(what), text(message)].concat();
        let mut frame = begin[..12].to_vec();
        frame.extend([0; 4]);
        frame.extend(text("")); // the length
        frame[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        return [frame, payload].concat();
    }
    let (op, req_id) = (&begin[6..8], &begin[12..16]);
    let (status, payload): (Status, Vec<u8>) = match u16::from_le_bytes([op[0], op[1]]) {
        KERNEL_RUN => {
            let of_header = match status {
                Status::Timeout => status,
                _ => Status::Ok,
            };
            let body: Vec<u8> = words(&[0, status.number()]);
            (of_header, [body, text(message)].concat())
        }
        HANDLE_READ | HANDLE_WRITE => (Status::Ok, words(&[u32::MAX])),
        _ => (Status::Backend, Vec::new()),
    };
    let mut frame = [&begin[..8], &[0; 4][..], req_id].concat();
    let length = payload.len() as u32;
    frame.extend::<Vec<u8>>(words(&[status.number(), length, 0, 0]));
    frame.extend(payload);
    if begin[24..28] != [0; 4] {
        let sum = crc32fast::hash(&frame);
        frame[24..28].copy_from_slice(&sum.to_le_bytes());
    }
    frame
}

/// The header of a response, checked against its request.
pub(super) struct ResponseHeader {
    pub(super) status: Status,
    pub(super) payload_bytes: u32,
    crc: u32,
}

pub(super) fn read_header(
    header: &[u8; HEADER_BYTES],
    op: u16,
    req_id: u32,
) -> Result<ResponseHeader> {
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let half = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().expect("two bytes"));
    if header[..4] != MAGIC || half(4) != VERSION {
        return Err(malformed("the response is no frame of ZCTL/1"));
    }
    if half(6) != op || word(12) != req_id {
        return Err(malformed("the response is to another request"));
    }
    if word(8) != 0 || word(28) != 0 {
        return Err(malformed("flags or tail of the response are not 0"));
    }
    Ok(ResponseHeader {
        status: Status::from_number(word(16)),
        payload_bytes: word(20),
        crc: word(24),
    })
}

impl ResponseHeader {
    /// Whether the checksum, if there is one, is right.
    pub(super) fn check(&self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> Result<()> {
        if self.crc == 0 {
            return Ok(());
        }
        let mut plain = *header;
        plain[24..28].fill(0);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&plain);
        hasher.update(payload);
        if hasher.finalize() == self.crc {
            return Ok(());
        }
        Err(malformed("the checksum of the response is wrong"))
    }
}
