//! ZCTL/1: kernels for programs that know only bytes (feature `zctl`).
//!
//! A [`Session`] answers exact frames with the kernels of a [`GpuCompute`](crate::GpuCompute): in process,
//! where request and response lie in a guest's memory, or for a [`Server`], which gives each connection a
//! session and a memory of its own. A [`Client`] speaks to any server. The format is in `docs/FORMATS.md`.
//!
//! A [`Cloak`] runs a [`Guest`] that is native code: its input and output are streams, its frames go to a
//! session. A [`Recorder`] writes down what the guest asked and was given, and a [`Replay`] runs it again from
//! this [`Transcript`], without a device.
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use std::sync::Arc;
//! use worker_cuda::zctl::{Arg, Client, Server, ServerOptions};
//! use worker_cuda::{CudaContext, ElementType, GpuCompute};
//!
//! # fn main() -> worker_cuda::Result<()> {
//! let compute = Arc::new(GpuCompute::with_context(&CudaContext::host()?)?);
//! compute.register_builtin("vector_add", ElementType::F32, 7)?;
//! let server = Server::new(Some(compute), ServerOptions::default())?;
//! let (ours, mut theirs) = UnixStream::pair().unwrap();
//! let serving = std::thread::spawn(move || server.serve(&mut theirs));
//!
//! let mut client = Client::new(ours);
//! let numbers: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! client.write_memory(0, &numbers)?;
//! let answer = client.run(7, &[
//!     Arg::Bytes { offset: 0, length: 8 },
//!     Arg::Bytes { offset: 0, length: 8 },
//!     Arg::Bytes { offset: 64, length: 8 },
//!     Arg::I32(2),
//! ])?;
//! assert!(answer.is_ok(), "{}", answer.message);
//! assert_eq!(client.read_memory(68, 4)?, 4.0f32.to_le_bytes());
//! drop(client);
//! serving.join().unwrap()?;
//! # Ok(())
//! # }
//! ```

mod client;
mod cloak;
mod frame;
mod guest;
mod replay;
mod server;
mod session;
mod transcript;

pub use client::{Client, Described, Listed, MemoryInfo};
pub use cloak::{Chunks, Cloak, Handles};
pub use frame::{Answer, Arg, Status, refusal};
pub use guest::{Arena, Guest, GuestEntry, GuestHeap, Host, Shape, Trap};
pub use replay::{Divergence, Replay};
pub use server::{Answers, Connection, Listener, Server, ServerOptions, Stop};
pub use session::{Call, ForeignModules, Record, Session, SessionOptions};
pub use transcript::{Recorder, Transcript};
