//! Language models: GGUF files, memory plans, weights, engines and their steps, text and its generation.

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
