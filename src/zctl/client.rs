//! The client of a served connection.

use std::io::{Read, Write};

use super::frame::{
    Answer, Arg, CAPS_LIST, HEADER_BYTES, KERNEL_DESCRIBE, KERNEL_LIST, KERNEL_RUN, MEM_INFO,
    MEM_READ, MEM_WRITE, Reader, Status, malformed, read_header, request, run_payload,
};
use crate::core::error::{Error, ErrorKind, Result};

/// A capability or a kernel of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Of a kernel: the hash of its signature.
    pub sig_hash: u64,
    /// Of a kernel: b0 equal calls may give other bits, b1 it cannot run there.
    pub flags: u32,
}

/// What KERNEL_DESCRIBE answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// The hash of its signature.
    pub sig_hash: u64,
    /// As in [`Listed`].
    pub flags: u32,
    /// Milliseconds of a run; 0: no limit of the kernel's own.
    pub budget_ms: u32,
    /// Names of its parameters.
    pub parameters: Vec<String>,
    /// The canonical signature.
    pub signature: String,
}

/// The memory and the limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Of a request and of a response.
    pub payload_bytes_max: u32,
    /// Arguments of a run.
    pub argument_count_max: u32,
    /// Of the buffers of a run.
    pub device_bytes_max: u64,
    /// Milliseconds of a run.
    pub budget_ms: u32,
}

/// Sends requests over a stream and reads their answers, one after the other.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use worker_cuda::zctl::{Client, Server, ServerOptions};
///
/// # fn main() -> worker_cuda::Result<()> {
/// let server = Server::new(None, ServerOptions::default())?;
/// let (ours, mut theirs) = UnixStream::pair().unwrap();
/// let serving = std::thread::spawn(move || server.serve(&mut theirs));
/// let mut client = Client::new(ours);
/// client.write_memory(100, b"bytes")?;
/// assert_eq!(client.read_memory(102, 3)?, b"tes");
/// assert_eq!(client.memory_info()?.memory_bytes, 16 << 20);
/// drop(client);
/// serving.join().unwrap()
/// # }
/// ```
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    req_id: u32,
    has_crc: bool,
    timeout_ms: u32,
}

impl<S: Read + Write> Client<S> {
    /// Over a stream whose other end serves.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            req_id: 0,
            has_crc: false,
            timeout_ms: 0,
        }
    }

    /// Requests have a checksum, and so have their answers.
    #[must_use]
    pub fn with_crc(mut self) -> Self {
        self.has_crc = true;
        self
    }

    /// Milliseconds that each run may take; 0: no limit of the request.
    #[must_use]
    pub fn with_timeout_ms(mut self, timeout_ms: u32) -> Self {
        self.timeout_ms = timeout_ms;
        self
    }

    /// Sends one request and returns status and payload of the answer.
    pub fn request(&mut self, op: u16, payload: &[u8]) -> Result<(Status, Vec<u8>)> {
        self.req_id = self.req_id.wrapping_add(1);
        let frame = request(op, self.req_id, self.timeout_ms, payload, self.has_crc);
        self.stream.write_all(&frame).map_err(broken)?;
        self.stream.flush().map_err(broken)?;
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).map_err(broken)?;
        let read = read_header(&header, op, self.req_id)?;
        let mut payload = Vec::new();
        // Grows with what arrives, not with what the header announces.
        let wanted = u64::from(read.payload_bytes);
        let got = (&mut self.stream)
            .take(wanted)
            .read_to_end(&mut payload)
            .map_err(broken)?;
        if got as u64 != wanted {
            return Err(malformed("the connection ended within a response"));
        }
        read.check(&header, &payload)?;
        Ok((read.status, payload))
    }

    fn expect(&mut self, op: u16, payload: &[u8]) -> Result<Vec<u8>> {
        match self.request(op, payload)? {
            (Status::Ok, payload) => Ok(payload),
            (status, _) => Err(refused(op, status)),
        }
    }

    /// The server's capabilities.
    pub fn capabilities(&mut self) -> Result<Vec<Listed>> {
        let payload = self.expect(CAPS_LIST, &[])?;
        read_list(&payload, false)
    }

    /// Its kernels.
    pub fn kernels(&mut self) -> Result<Vec<Listed>> {
        let payload = self.expect(KERNEL_LIST, &[])?;
        read_list(&payload, true)
    }

    /// One kernel.
    pub fn describe(&mut self, kernel_id: u32) -> Result<Described> {
        let payload = self.expect(KERNEL_DESCRIBE, &kernel_id.to_le_bytes())?;
        let mut reader = Reader(&payload);
        let (sig_hash, flags, budget_ms) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let count = reader.u32()?;
        let parameters = (0..count).map(|_| reader.text()).collect::<Result<_>>()?;
        let signature = reader.text()?;
        reader.end()?;
        Ok(Described {
            sig_hash,
            flags,
            budget_ms,
            parameters,
            signature,
        })
    }

    /// The memory of this connection.
    pub fn memory_info(&mut self) -> Result<MemoryInfo> {
        let payload = self.expect(MEM_INFO, &[])?;
        let mut reader = Reader(&payload);
        let info = MemoryInfo {
            memory_bytes: reader.u64()?,
            payload_bytes_max: reader.u32()?,
            argument_count_max: reader.u32()?,
            device_bytes_max: reader.u64()?,
            budget_ms: reader.u32()?,
        };
        reader.u32()?;
        reader.end()?;
        Ok(info)
    }

    /// Writes to the memory, in as many requests as the limit of a payload asks for.
    pub fn write_memory(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let most = self.bytes_a_request()?;
        for (i, part) in bytes.chunks(most).enumerate() {
            let mut payload = (offset + (i * most) as u64).to_le_bytes().to_vec();
            payload.extend(part);
            self.expect(MEM_WRITE, &payload)?;
        }
        Ok(())
    }

    /// Reads from the memory, likewise.
    pub fn read_memory(&mut self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let most = self.bytes_a_request()?;
        let mut result = Vec::new();
        while result.len() < bytes {
            let length = most.min(bytes - result.len());
            let mut payload = (offset + result.len() as u64).to_le_bytes().to_vec();
            payload.extend((length as u32).to_le_bytes());
            payload.extend([0; 4]);
            let part = self.expect(MEM_READ, &payload)?;
            if part.len() != length {
                return Err(malformed(
                    "the server returned another length than asked for",
                ));
            }
            result.extend(part);
        }
        Ok(result)
    }

    fn bytes_a_request(&mut self) -> Result<usize> {
        const HEAD: u32 = 8;
        let most = self.memory_info()?.payload_bytes_max;
        if most > HEAD {
            return Ok((most - HEAD) as usize);
        }
        Err(malformed("the limit of a payload has no room for memory"))
    }

    /// Runs a kernel on the memory. A kernel that was refused or failed is an answer, not an error.
    pub fn run(&mut self, kernel_id: u32, args: &[Arg]) -> Result<Answer> {
        match self.request(KERNEL_RUN, &run_payload(kernel_id, 0, args))? {
            (Status::Ok | Status::Timeout, payload) => Answer::read(&payload),
            (status, _) => Err(refused(KERNEL_RUN, status)),
        }
    }
}

fn read_list(payload: &[u8], has_hash: bool) -> Result<Vec<Listed>> {
    let mut reader = Reader(payload);
    let count = reader.u32()?;
    let mut list = Vec::new();
    for _ in 0..count {
        let mut listed = Listed {
            id: reader.u32()?,
            name: reader.text()?,
            sig_hash: 0,
            flags: 0,
        };
        if has_hash {
            listed.sig_hash = reader.u64()?;
            listed.flags = reader.u32()?;
        }
        list.push(listed);
    }
    reader.end()?;
    Ok(list)
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the connection broke: {error}"))
}

fn refused(op: u16, status: Status) -> Error {
    let kind = match status {
        Status::Malformed => ErrorKind::Malformed,
        Status::Unsupported => ErrorKind::Unsupported,
        Status::Timeout => ErrorKind::Timeout,
        Status::NoMemory => ErrorKind::OutOfMemory,
        Status::BadArgs => ErrorKind::InvalidArgument,
        _ => ErrorKind::NotAvailable,
    };
    let message = format!("op 0x{op:04x} was answered with status {}", status.number());
    Error::new(kind, message)
}
