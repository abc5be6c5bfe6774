//! `serve`: HTTP for any [`Service`](worker_cuda::generate::Service), as OpenAI's clients expect it.
//!
//! ```text
//! connection ─► gate (host, origin, key) ─► input (limits, JSON) ─► fields, parameters, messages
//!                                                                         │ submit
//! client ◄─ reply: one body, or sse: a stream of chunks ◄─ generation ◄───┘ events
//! ```
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use worker_cuda::generate::Service;
//! use worker_orcd::serve::{Address, Metrics, Options, ServedModel, Server};
//!
//! fn serve(service: Service, metrics: Arc<Metrics>) -> std::io::Result<()> {
//!     let address = Address::Tcp(([127, 0, 0, 1], 8080).into());
//!     let model = ServedModel::new("my-model");
//!     let server = Server::bind(&address, service, model, Options::default(), metrics)?;
//!     println!("listening on {}", server.url()?);
//!     server.run()?;
//!     Ok(())
//! }
//! ```

pub use app::{DeviceReport, MemoryReport, Options, ResidencyCheck, ServedModel};
pub(crate) use command::{Args, run};
pub(crate) use config::{describe, with_environment, with_file};
pub use keys::Keys;
pub use log::RequestLog;
pub use metrics::Metrics;
pub use models::{LoadModel, Loadable};
pub use parameters::SamplingDefaults;
pub use server::{Address, Ended, Server, StopHandle};
#[cfg(feature = "tls")]
pub use tls::Tls;

mod anthropic;
mod app;
mod calls;
mod chat;
mod command;
mod completions;
mod config;
mod embeddings;
mod error;
mod execute;
mod fields;
mod gate;
mod generation;
mod input;
mod keys;
mod linger;
mod log;
mod messages;
mod metrics;
mod models;
mod names;
mod open_files;
mod openapi;
mod page;
mod parameters;
mod reply;
mod responses;
mod room;
mod routes;
mod rules;
mod schema;
mod server;
mod socket;
mod split;
mod sse;
#[cfg(feature = "tls")]
mod tls;
mod tools;
