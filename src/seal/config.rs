//! Configuration of a manager of sealed memory.

use std::fmt;

use zeroize::Zeroizing;

use super::error::{VramError, VramResult};

const TOKEN_BYTES_MIN: usize = 32;
const TOKEN_BYTES_MAX: usize = 1024;
const GIB: u64 = 1 << 30;

/// Configuration. The token is zeroed when this is dropped, and `Debug` does not show it.
///
/// ```
/// use worker_cuda::seal::VramConfig;
/// # fn main() -> Result<(), worker_cuda::seal::VramError> {
/// let config = VramConfig::new(b"a token of at least thirty-two bytes")
///     .max_model_size(16 << 30)
///     .worker_id("worker-1");
/// config.validate()?;
/// assert!(VramConfig::new("short").validate().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct VramConfig {
    /// The secret that the signing key is derived from: 32 to 1024 bytes.
    pub(crate) worker_api_token: Zeroizing<Vec<u8>>,
    /// The one device whose memory is sealed.
    pub gpu_device: u32,
    /// Maximum size of a shard in bytes; default 100 GiB.
    pub max_model_size: u64,
    /// Maximum of sealed bytes, at most the device's memory, which is the default.
    pub total_vram: u64,
    /// Name of the worker in audit events.
    pub worker_id: String,
}

impl VramConfig {
    /// Defaults for device 0.
    pub fn new(worker_api_token: impl AsRef<[u8]>) -> Self {
        Self {
            worker_api_token: Zeroizing::new(worker_api_token.as_ref().to_vec()),
            gpu_device: 0,
            max_model_size: 100 * GIB,
            total_vram: u64::MAX,
            worker_id: String::new(),
        }
    }

    /// Sets the device.
    pub fn gpu_device(mut self, gpu_device: u32) -> Self {
        self.gpu_device = gpu_device;
        self
    }

    /// Sets the maximum size of a shard.
    pub fn max_model_size(mut self, bytes: u64) -> Self {
        self.max_model_size = bytes;
        self
    }

    /// Sets the maximum of sealed bytes.
    pub fn total_vram(mut self, bytes: u64) -> Self {
        self.total_vram = bytes;
        self
    }

    /// Sets the name of the worker in audit events.
    pub fn worker_id(mut self, worker_id: impl Into<String>) -> Self {
        self.worker_id = worker_id.into();
        self
    }

    /// Validates every field.
    pub fn validate(&self) -> VramResult<()> {
        let length = self.worker_api_token.len();
        let problem = if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&length) {
            format!("the token has {length} bytes, not {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}")
        } else if self.max_model_size == 0 {
            "max_model_size is 0".to_owned()
        } else if self.total_vram == 0 {
            "total_vram is 0".to_owned()
        } else if i32::try_from(self.gpu_device).is_err() {
            format!("gpu_device {} is no device's number", self.gpu_device)
        } else {
            return Ok(());
        };
        Err(VramError::ConfigError(problem))
    }
}

impl fmt::Debug for VramConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VramConfig")
            .field("gpu_device", &self.gpu_device)
            .field("max_model_size", &self.max_model_size)
            .field("total_vram", &self.total_vram)
            .field("worker_id", &self.worker_id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_to_the_byte() {
        for (length, is_good) in [
            (0, false),
            (31, false),
            (32, true),
            (1024, true),
            (1025, false),
        ] {
            let config = VramConfig::new(vec![7; length]);
            assert_eq!(config.validate().is_ok(), is_good, "{length}");
        }
        let good = VramConfig::new([7; 32]);
        assert!(good.clone().max_model_size(0).validate().is_err());
        assert!(good.clone().total_vram(0).validate().is_err());
        assert!(good.clone().gpu_device(u32::MAX).validate().is_err());
        assert_eq!(good.max_model_size, 107_374_182_400);
        assert_eq!(good.total_vram, u64::MAX);
    }

    #[test]
    fn debug_does_not_show_the_token() {
        let config = VramConfig::new("a very secret token of many bytes");
        let error = VramConfig::new("short secret").validate().unwrap_err();
        for text in [format!("{config:?}"), format!("{error:?} {error}")] {
            assert!(!text.contains("secret"), "{text}");
            assert!(
                text.contains("worker_id") || text.contains("12 bytes"),
                "{text}"
            );
        }
    }
}
