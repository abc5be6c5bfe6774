//! Language models: files, plans, weights, engines and their steps; text and generation on top.

#[cfg(feature = "text")]
pub mod compat;
pub mod engine;
#[cfg(feature = "text")]
pub mod generate;
pub mod gguf;
pub mod model;
pub mod plan;
pub mod step;
#[cfg(feature = "text")]
pub mod text;
