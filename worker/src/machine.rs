//! The device that runs a model, and the speed limit of its memory.

use worker_cuda::{Backend, CudaContext, DeviceCaps, Gguf, Purpose, devices};

use crate::failure::Outcome;

/// The device of a context.
pub struct Machine {
    pub backend: Backend,
    pub name: String,
    /// Threads of the CPU backend, else 0.
    pub threads: u32,
    /// Bytes per second; 0 if unknown.
    pub bandwidth: u64,
    pub total_bytes: u64,
    /// Peak memory of the context.
    pub peak_bytes: u64,
}

impl Machine {
    pub fn of(context: &CudaContext) -> Outcome<Self> {
        let info = context.info()?;
        let caps = devices(info.backend)?
            .into_iter()
            .find(|caps| caps.ordinal == info.ordinal);
        Ok(Self {
            backend: info.backend,
            threads: info.host_threads,
            peak_bytes: context.memory(Purpose::Any)?.peak_bytes,
            ..Self::unused(caps.as_ref(), info.backend)
        })
    }

    /// A device without an open context.
    pub fn from_caps(caps: &DeviceCaps) -> Self {
        Self::unused(Some(caps), caps.backend)
    }

    fn unused(caps: Option<&DeviceCaps>, backend: Backend) -> Self {
        Self {
            backend,
            name: caps.map_or_else(String::new, |caps| caps.name.clone()),
            threads: 0,
            bandwidth: caps.map_or(0, |caps| caps.memory_bandwidth),
            total_bytes: caps.map_or(0, |caps| caps.total_memory),
            peak_bytes: 0,
        }
    }

    /// "NVIDIA H200 (cuda)", "AMD EPYC (host, 8 threads)".
    pub fn label(&self) -> String {
        let threads = match self.threads {
            0 => String::new(),
            threads => format!(", {threads} threads"),
        };
        format!("{} ({}{threads})", self.name, self.backend)
    }

    /// Share of the memory bandwidth, in percent.
    pub fn share(&self, bytes_per_second: f64) -> Option<f64> {
        (self.bandwidth > 0).then(|| 100.0 * bytes_per_second / self.bandwidth as f64)
    }

    /// Upper limit of tokens per second of one sequence that reads `bytes_per_token`.
    pub fn tokens_per_second_max(&self, bytes_per_token: u64) -> Option<f64> {
        (self.bandwidth > 0 && bytes_per_token > 0)
            .then(|| self.bandwidth as f64 / bytes_per_token as f64)
    }

    /// `tokens_per_second_max` in words.
    pub fn limit(&self, bytes_per_token: u64) -> Option<String> {
        let most = self.tokens_per_second_max(bytes_per_token)?;
        let rate = self.bandwidth as f64 / 1e9;
        Some(format!(
            "{}: at most {most:.0} tokens/s at {rate:.0} GB/s",
            self.name
        ))
    }
}

/// Bytes of weights read for one token: all tensors, except an embedding table that is not also the output
/// matrix, of which a token reads one row.
pub fn bytes_per_token(gguf: &Gguf) -> Outcome<u64> {
    let mut bytes = gguf.info().tensor_bytes;
    if gguf.tensor("output.weight")?.is_some()
        && let Some(table) = gguf.tensor("token_embd.weight")?
    {
        bytes -= table.bytes;
    }
    Ok(bytes)
}
