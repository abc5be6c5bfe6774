//! Where a model is at work, and how fast its memory lets a token be.

use worker_cuda::{Backend, CudaContext, DeviceCaps, Gguf, Purpose, devices};

use crate::failure::Outcome;

/// The device of a context.
pub struct Machine {
    pub backend: Backend,
    pub name: String,
    /// Of the host backend, else 0.
    pub threads: u32,
    /// Bytes a second; 0 where it is not known.
    pub bandwidth: u64,
    pub total_bytes: u64,
    /// Most that the context has held.
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

    /// A device that nothing was opened on.
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

    /// Part of the memory's bandwidth, in percent, that `bytes_per_second` is.
    pub fn share(&self, bytes_per_second: f64) -> Option<f64> {
        (self.bandwidth > 0).then(|| 100.0 * bytes_per_second / self.bandwidth as f64)
    }

    /// Tokens a second of one sequence at most, with `bytes_a_token` read for each.
    pub fn most_tokens_per_second(&self, bytes_a_token: u64) -> Option<f64> {
        (self.bandwidth > 0 && bytes_a_token > 0)
            .then(|| self.bandwidth as f64 / bytes_a_token as f64)
    }

    /// What `most_tokens_per_second` says, in words.
    pub fn limit(&self, bytes_a_token: u64) -> Option<String> {
        let most = self.most_tokens_per_second(bytes_a_token)?;
        let rate = self.bandwidth as f64 / 1e9;
        Some(format!(
            "{}: at most {most:.0} tokens a second, {rate:.0} GB/s",
            self.name
        ))
    }
}

/// Bytes of weights that computing one token reads: those of all tensors, but not of an embedding table
/// that is not the output matrix too, of which a token takes one row.
pub fn bytes_a_token(gguf: &Gguf) -> Outcome<u64> {
    let mut bytes = gguf.info().tensor_bytes;
    if gguf.tensor("output.weight")?.is_some()
        && let Some(table) = gguf.tensor("token_embd.weight")?
    {
        bytes -= table.bytes;
    }
    Ok(bytes)
}
