//! The owner of sealed memory.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use subtle::ConstantTimeEq;

use super::audit::{AuditEvent, AuditRecord, AuditSink, Severity};
use super::config::VramConfig;
use super::error::{VramError, VramResult};
use super::shard::{SealedShard, check_id};
use super::signature::SealKey;
use super::view::{SealedReader, SealedView};
use crate::core::callback::caught;
use crate::core::context::CudaContext;
use crate::core::error::ErrorKind;
use crate::core::ledger::Purpose;
use crate::core::memory::{PinnedBuffer, SafeCudaPtr, join_digest_pieces};
use crate::core::residency::Place;
use crate::llm::model::Model;

/// Bytes copied through pinned memory at a time.
const STAGING_BYTES: usize = 4 << 20;
const PIECE_BYTES: u64 = crate::ffi::WCUDA_DIGEST_PIECE_BYTES;

/// Optional labels of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardLabel {
    /// Name of its model.
    pub model_ref: Option<String>,
    /// Index of the part of the model, below `total_shards`.
    pub shard_index: Option<u32>,
    /// Number of parts.
    pub total_shards: Option<u32>,
}

/// Failures of the audit sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditCounters {
    /// `vram.audit.emit_failures`: records that were lost, and flushes that failed.
    pub emit_failures: u64,
    /// `vram.audit.critical_emit_failures`: those of critical events.
    pub critical_emit_failures: u64,
}

/// Seals bytes into the memory of one device, owns that memory, and verifies it. Dropping it frees all of the memory
/// and flushes the audit sink.
///
/// ```
/// use worker_cuda::CudaContext;
/// use worker_cuda::seal::{VramConfig, VramManager};
/// # fn main() -> Result<(), worker_cuda::seal::VramError> {
/// let config = VramConfig::new(b"a token of at least thirty-two bytes");
/// let mut manager = VramManager::with_context(CudaContext::host()?, config)?;
/// let shard = manager.seal_model(b"weights", 0)?;
/// manager.check_sealed(&shard)?; // fast, before each use
/// manager.verify_sealed(&shard)?; // every byte
/// assert_eq!(manager.read(&shard, 0, 4)?, b"weig");
/// manager.deallocate(&shard)?;
/// # Ok(())
/// # }
/// ```
pub struct VramManager {
    context: CudaContext,
    config: VramConfig,
    key: SealKey,
    sealed: HashMap<String, Held>,
    audit: Audit,
}

/// The memory that a shard refers to.
enum Held {
    Bytes(Arc<Sealed>),
    /// The weights of a loaded model, in place.
    Weights(Model),
}

impl Held {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(sealed) => sealed.memory.size(),
            Self::Weights(model) => model.info().weights_bytes,
        }
    }

    /// Fails unless the memory is the device's own. Reads no memory.
    fn check_place(&self) -> VramResult<()> {
        match self {
            Self::Bytes(sealed) => sealed.check_place(),
            Self::Weights(model) => Ok(model.context().check_residency().map(drop)?),
        }
    }
}

/// BLAKE3 of the resident digests of a model's weights, in the order of the file's tensors.
fn weights_digest(model: &Model) -> VramResult<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("worker-cuda sealed weights v1");
    for index in 0..model.gguf().info().tensor_count {
        match model.tensor_digests(index) {
            Ok(digests) => hasher.update(&digests.resident),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Sealed memory. A reader holds it for one read at a time.
pub(super) struct Sealed {
    pub(super) memory: SafeCudaPtr<u8>,
    digest: [u8; 32],
    /// Chaining values of each MiB; with more than one, they combine to the digest.
    pieces: Vec<[u8; 32]>,
}

impl Sealed {
    /// Fails unless the memory is the device's own.
    pub(super) fn check_place(&self) -> VramResult<()> {
        match self.memory.place()? {
            Place::Device => Ok(()),
            place => Err(VramError::PolicyViolation(format!(
                "a sealed shard is {place}"
            ))),
        }
    }

    /// The range of `bytes` bytes at `offset`, checked against the size.
    pub(super) fn range(&self, offset: u64, bytes: u64) -> VramResult<Range<u64>> {
        let size = self.memory.size();
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(offset..end),
            _ => Err(VramError::InvalidInput(format!(
                "{bytes} bytes at {offset} pass the end of a shard of {size}"
            ))),
        }
    }

    /// Reads bytes that were sealed; their MiBs are checked first.
    pub(super) fn read_into(&self, offset: u64, target: &mut [u8]) -> VramResult<()> {
        let range = self.range(offset, target.len() as u64)?;
        self.check_place()?;
        if let Some(mib) = self.first_bad_mib(range)? {
            return Err(VramError::SealVerificationFailed {
                first_bad_mib: Some(mib),
            });
        }
        Ok(self.memory.read_into(offset as usize, target)?)
    }

    /// The first MiB in a range whose chaining value has changed.
    fn first_bad_mib(&self, range: Range<u64>) -> VramResult<Option<u64>> {
        if range.is_empty() {
            return Ok(None);
        }
        let first = range.start / PIECE_BYTES;
        let start = (first * PIECE_BYTES) as usize;
        let end = range.end.div_ceil(PIECE_BYTES) * PIECE_BYTES;
        let end = end.min(self.memory.size()) as usize;
        let actual = self.memory.digest_pieces(start..end, first)?;
        let expected = &self.pieces[first as usize..][..actual.len()];
        let differs =
            |(actual, expected): (&[u8; 32], &[u8; 32])| !bool::from(actual.ct_eq(expected));
        let bad = actual.iter().zip(expected).position(differs);
        Ok(bad.map(|index| first + index as u64))
    }
}

impl VramManager {
    /// Opens CUDA device `config.gpu_device`. Without one this is an error, in tests too. The capacity is the
    /// device's memory, unless `total_vram` is less.
    pub fn new(config: VramConfig) -> VramResult<Self> {
        config.validate()?;
        // A number above i32::MAX was refused above.
        let ordinal = i32::try_from(config.gpu_device).unwrap_or(i32::MAX);
        Self::with_context(CudaContext::new(ordinal)?, config)
    }

    /// As [`new`](Self::new), from separate values, with the device's whole memory as capacity;
    /// [`VramManager::with_total_vram`] lowers it.
    pub fn new_with_token(
        token: impl AsRef<[u8]>,
        gpu_device: u32,
        audit: Option<Box<dyn AuditSink>>,
        worker_id: impl Into<String>,
    ) -> VramResult<Self> {
        let config = VramConfig::new(token)
            .gpu_device(gpu_device)
            .worker_id(worker_id);
        let mut manager = Self::new(config)?;
        manager.audit.sink = audit.map(Mutex::new);
        Ok(manager)
    }

    /// Uses an open context, which must be on device `config.gpu_device`; on the host backend that is 0. Enforces the
    /// rule that all memory is the device's own.
    pub fn with_context(context: CudaContext, mut config: VramConfig) -> VramResult<Self> {
        config.validate()?;
        if i64::from(context.device()?) != i64::from(config.gpu_device) {
            let message = format!(
                "gpu_device is {}, the context's is {}",
                config.gpu_device,
                context.device()?
            );
            return Err(VramError::ConfigError(message));
        }
        context.validate_device_properties()?;
        context.enforce_vram_only_policy()?;
        let key = SealKey::derive(&config.worker_api_token);
        config.worker_api_token = Default::default(); // zeroed; only the key is needed
        Ok(Self {
            audit: Audit::new(config.worker_id.clone()),
            context,
            config,
            key,
            sealed: HashMap::new(),
        })
    }

    /// Sets the maximum of sealed bytes, at most the device's memory.
    pub fn with_total_vram(mut self, bytes: u64) -> VramResult<Self> {
        self.config.total_vram = bytes;
        if bytes == 0 {
            return Err(VramError::ConfigError("total_vram is 0".to_owned()));
        }
        Ok(self)
    }

    /// Reports events to `sink` from now on.
    pub fn audit_to(mut self, sink: impl AuditSink + 'static) -> Self {
        self.audit.sink = Some(Mutex::new(Box::new(sink)));
        self
    }

    /// Copies `bytes` to the device and seals them.
    pub fn seal_model(&mut self, bytes: &[u8], gpu_device: u32) -> VramResult<SealedShard> {
        self.seal_reader(bytes, bytes.len() as u64, gpu_device)
    }

    /// As [`seal_model`](Self::seal_model), for `vram_bytes` bytes from a reader. At most 4 MiB of them are on the
    /// host at a time.
    pub fn seal_reader(
        &mut self,
        reader: impl Read,
        vram_bytes: u64,
        gpu_device: u32,
    ) -> VramResult<SealedShard> {
        self.seal_labelled(reader, vram_bytes, gpu_device, ShardLabel::default())
    }

    /// As [`seal_reader`](Self::seal_reader), with a label, which the signature covers.
    pub fn seal_labelled(
        &mut self,
        mut reader: impl Read,
        vram_bytes: u64,
        gpu_device: u32,
        label: ShardLabel,
    ) -> VramResult<SealedShard> {
        self.check_request(vram_bytes, gpu_device)?;
        self.check_free(vram_bytes)?;
        let shard = self.name(vram_bytes, label)?;
        let memory = self.allocate(&shard)?;
        let sealed = self.fill(memory, &mut reader)?;
        let digest = sealed.digest;
        self.keep(shard, digest, Held::Bytes(Arc::new(sealed)))
    }

    /// Seals the weights of a loaded model in place, without a copy. The model must be in this manager's context. Its
    /// memory is verified first, and stays allocated until [`VramManager::deallocate`] and the last use.
    /// [`VramManager::model`] returns the model for use.
    ///
    /// ```
    /// use worker_cuda::seal::{ShardLabel, VramConfig, VramManager};
    /// use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/tests/data/models/llama.gguf");
    /// let config = VramConfig::new(b"a token of at least thirty-two bytes");
    /// let mut manager = VramManager::with_context(CudaContext::host()?, config)?;
    /// let model = Model::load(manager.context(), &Gguf::open(path)?)?;
    /// let shard = manager.seal_weights(&model, ShardLabel::default())?;
    ///
    /// let engine = Engine::new(&manager.model(&shard)?, &EngineOptions::new())?;
    /// manager.check_sealed(&shard)?; // fast, before each use
    /// manager.verify_sealed(&shard)?; // every byte; legal while steps are in flight
    /// # drop(engine);
    /// # Ok(())
    /// # }
    /// ```
    pub fn seal_weights(&mut self, model: &Model, label: ShardLabel) -> VramResult<SealedShard> {
        if model.context().handle().id != self.context.handle().id {
            let message = "the model is in another context than the manager's";
            return Err(VramError::InvalidInput(message.into()));
        }
        let vram_bytes = model.info().weights_bytes;
        self.check_request(vram_bytes, self.config.gpu_device)?;
        let have = self.total_vram()?.saturating_sub(self.used_vram());
        if vram_bytes > have {
            let needed = vram_bytes;
            return Err(VramError::InsufficientVram { needed, have });
        }
        let shard = self.name(vram_bytes, label)?;
        let held = Held::Weights(model.clone());
        held.check_place()?;
        model.verify()?;
        self.keep(shard, weights_digest(model)?, held)
    }

    /// The model whose weights [`VramManager::seal_weights`] sealed, after the fast check. Create engines from it,
    /// and call [`VramManager::check_sealed`] before each later use of them.
    pub fn model(&self, shard: &SealedShard) -> VramResult<Model> {
        match self.find(shard)? {
            Held::Weights(model) => Ok(model.clone()),
            Held::Bytes(_) => Err(VramError::InvalidInput(
                "the shard is of bytes, not of a loaded model".into(),
            )),
        }
    }

    /// Creates a shard that is not sealed yet, and checks its label.
    fn name(&self, vram_bytes: u64, label: ShardLabel) -> VramResult<SealedShard> {
        let shard = SealedShard {
            shard_id: new_shard_id()?,
            gpu_device: self.config.gpu_device,
            vram_bytes,
            digest: String::new(),
            sealed_at: SystemTime::now(),
            model_ref: label.model_ref,
            shard_index: label.shard_index,
            total_shards: label.total_shards,
            signature: None,
        };
        shard.check()?;
        Ok(shard)
    }

    /// Signs the shard and stores its memory.
    fn keep(
        &mut self,
        mut shard: SealedShard,
        digest: [u8; 32],
        held: Held,
    ) -> VramResult<SealedShard> {
        shard.digest = hex(&digest);
        shard.signature = Some(self.key.sign(&shard.signed_bytes()?));
        self.sealed.insert(shard.shard_id.clone(), held);
        self.audit.report(AuditEvent::VramSealed {
            shard_id: shard.shard_id.clone(),
            gpu_device: shard.gpu_device,
            vram_bytes: shard.vram_bytes,
            digest: shard.digest.clone(),
        });
        Ok(shard)
    }

    /// Verifies that all of a shard's memory is unchanged.
    pub fn verify_sealed(&self, shard: &SealedShard) -> VramResult<()> {
        self.verified(shard, |held| {
            let sealed = match held {
                Held::Bytes(sealed) => sealed,
                Held::Weights(model) => {
                    return match model.verify() {
                        Err(error) if error.kind() == ErrorKind::Integrity => Ok(Some(Mismatch {
                            actual_digest: String::new(),
                            error: VramError::WeightsChanged(error.to_string()),
                        })),
                        other => Ok(other.map(|()| None)?),
                    };
                }
            };
            let end = sealed.memory.len();
            let actual = sealed.memory.digest(0..end)?;
            if bool::from(actual.ct_eq(&sealed.digest)) {
                return Ok(None);
            }
            let bad = sealed.first_bad_mib(0..end as u64)?;
            Ok(Some(Mismatch {
                actual_digest: hex(&actual),
                error: VramError::SealVerificationFailed { first_bad_mib: bad },
            }))
        })
    }

    /// Verifies that `bytes` bytes of a shard at `offset`, and the rest of the MiBs that contain them, are unchanged.
    /// Reads only these MiBs.
    pub fn verify_range(&self, shard: &SealedShard, offset: u64, bytes: u64) -> VramResult<()> {
        self.verified(shard, |held| {
            let sealed = bytes_of(held)?;
            let bad = sealed.first_bad_mib(sealed.range(offset, bytes)?)?;
            Ok(bad.map(|mib| Mismatch {
                actual_digest: String::new(),
                error: VramError::SealVerificationFailed {
                    first_bad_mib: Some(mib),
                },
            }))
        })
    }

    /// The fast check before each use: the shard is sealed and signed by this manager, its allocation is live, and
    /// its memory is the device's own. It reads no memory, so its duration does not depend on the size.
    /// [`VramManager::verify_sealed`] and [`VramManager::verify_range`] check whether the bytes are unchanged.
    pub fn check_sealed(&self, shard: &SealedShard) -> VramResult<()> {
        self.find(shard).map(|_| ())
    }

    /// Copies `bytes` bytes of a shard at `offset` to the host, after verifying them and the rest of the MiBs that
    /// contain them.
    pub fn read(&self, shard: &SealedShard, offset: u64, bytes: u64) -> VramResult<Vec<u8>> {
        self.view(shard)?.range(offset, bytes)?.read()
    }

    /// The whole shard, to read or to pass to kernels, after the fast check.
    pub fn view<'a>(&'a self, shard: &'a SealedShard) -> VramResult<SealedView<'a>> {
        let sealed = bytes_of(self.find(shard)?)?;
        Ok(SealedView::new(self, shard, sealed))
    }

    /// A reader of the shard's bytes that verifies each MiB when it is read. A sealed GGUF file is opened with it
    /// ([`Gguf::from_reader`](crate::Gguf::from_reader)) so that its model can be loaded. Reads fail after the shard
    /// has been deallocated.
    pub fn reader(&self, shard: &SealedShard) -> VramResult<SealedReader> {
        Ok(SealedReader::new(bytes_of(self.find(shard)?)?))
    }

    /// Frees a shard's memory; a model's weights are freed when the last model and engine that use them are dropped.
    /// The shard and its signature must be this manager's.
    pub fn deallocate(&mut self, shard: &SealedShard) -> VramResult<()> {
        self.check_signature(shard)?;
        let sealed = self.sealed.remove(&shard.shard_id);
        let freed_bytes = sealed.ok_or(VramError::IntegrityViolation)?.size();
        self.audit.report(AuditEvent::VramDeallocated {
            shard_id: shard.shard_id.clone(),
            freed_bytes,
            remaining_used: self.used_vram(),
            gpu_device: self.config.gpu_device,
        });
        Ok(())
    }

    /// Bytes that can still be sealed: the minimum of the device's free memory, the rest of the context's budget and
    /// the rest of `total_vram`.
    pub fn available_vram(&self) -> VramResult<u64> {
        let memory = self.context.memory(Purpose::Any)?;
        let in_budget = match memory.budget_bytes {
            0 => u64::MAX,
            budget => budget.saturating_sub(memory.current_bytes),
        };
        let in_total = self.config.total_vram.saturating_sub(self.used_vram());
        Ok(memory.device_free_bytes.min(in_budget).min(in_total))
    }

    /// Maximum of sealed bytes: the device's memory or `total_vram`, whichever is smaller.
    pub fn total_vram(&self) -> VramResult<u64> {
        Ok(self.context.get_total_vram()?.min(self.config.total_vram))
    }

    /// Bytes sealed now.
    pub fn used_vram(&self) -> u64 {
        self.sealed.values().map(Held::size).sum()
    }

    /// The device.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Number of records that the audit sink lost.
    pub fn audit_counters(&self) -> AuditCounters {
        self.audit.counters()
    }

    fn check_request(&self, vram_bytes: u64, gpu_device: u32) -> VramResult<()> {
        let limit = self.config.max_model_size;
        if gpu_device != self.config.gpu_device {
            return Err(VramError::InvalidInput(format!(
                "gpu_device {gpu_device}: this manager seals on {}",
                self.config.gpu_device
            )));
        }
        if vram_bytes == 0 {
            return Err(VramError::InvalidInput("0 bytes cannot be sealed".into()));
        }
        if vram_bytes > limit {
            return Err(VramError::InvalidInput(format!(
                "{vram_bytes} bytes are more than max_model_size, {limit}"
            )));
        }
        Ok(())
    }

    fn check_free(&self, vram_bytes: u64) -> VramResult<()> {
        let available = self.available_vram()?;
        if vram_bytes > available {
            self.report_refused(vram_bytes, available, "insufficient VRAM");
            return Err(VramError::InsufficientVram {
                needed: vram_bytes,
                have: available,
            });
        }
        Ok(())
    }

    fn allocate(&self, shard: &SealedShard) -> VramResult<SafeCudaPtr<u8>> {
        let requested = shard.vram_bytes;
        let len = usize::try_from(requested).unwrap_or(usize::MAX); // which is refused
        // SAFETY: `fill` writes all of it, or drops it.
        let memory = match unsafe { self.context.alloc_uninit(len, &shard.shard_id) } {
            Ok(memory) => memory,
            Err(error) => {
                let available = self.available_vram().unwrap_or(0);
                self.report_refused(requested, available, &error.to_string());
                return Err(match error.kind() {
                    ErrorKind::OutOfMemory | ErrorKind::OverBudget => VramError::InsufficientVram {
                        needed: requested,
                        have: available,
                    },
                    _ => error.into(),
                });
            }
        };
        self.audit.report(AuditEvent::VramAllocated {
            requested,
            allocated: memory.size(),
            available: self.available_vram().unwrap_or(0),
            used: self.used_vram() + memory.size(),
            gpu_device: self.config.gpu_device,
        });
        Ok(memory)
    }

    /// Copies the reader's bytes to the device and checks there that they arrived.
    fn fill(&self, mut memory: SafeCudaPtr<u8>, reader: &mut impl Read) -> VramResult<Sealed> {
        let total = memory.len();
        let mut staging = self.context.alloc_pinned::<u8>(total.min(STAGING_BYTES))?;
        let mut source = blake3::Hasher::new();
        let copied = copy_in(&mut memory, reader, &mut staging, &mut source);
        staging.fill(0); // what is sealed stays nowhere else
        copied?;
        let mut end = [0];
        if read_some(reader, &mut end)? != 0 {
            let message = format!("the reader gives more than {total} bytes");
            return Err(VramError::InvalidInput(message));
        }
        let pieces = memory.digest_pieces(0..total, 0)?;
        let digest = match pieces.len() {
            1 => memory.digest(0..total)?,
            _ => join_digest_pieces(&pieces)?,
        };
        if digest != *source.finalize().as_bytes() {
            let message = "the bytes on the device are not those that were read".to_owned();
            return Err(VramError::CudaAllocationFailed(message));
        }
        Ok(Sealed {
            memory,
            digest,
            pieces,
        })
    }

    /// Checks everything before the digest, in the documented order, then `compare`, and audits the outcome.
    fn verified(
        &self,
        shard: &SealedShard,
        compare: impl Fn(&Held) -> VramResult<Option<Mismatch>>,
    ) -> VramResult<()> {
        let Some(mismatch) = compare(self.find(shard)?)? else {
            self.audit.report(AuditEvent::SealVerified {
                shard_id: shard.shard_id.clone(),
            });
            return Ok(());
        };
        self.report_failed(shard, &mismatch.error, &mismatch.actual_digest);
        Err(mismatch.error)
    }

    /// Finds a shard of this manager whose memory is the device's own; its digest is not checked. A failure is
    /// audited.
    fn find(&self, shard: &SealedShard) -> VramResult<&Held> {
        if let Err(error) = self.check_signature(shard) {
            self.report_failed(shard, &error, "");
            return Err(error);
        }
        let Some(held) = self.sealed.get(&shard.shard_id) else {
            self.report_failed(shard, &VramError::IntegrityViolation, "");
            return Err(VramError::IntegrityViolation);
        };
        let placed = held.check_place();
        if let Err(VramError::PolicyViolation(violation)) = &placed {
            self.audit.report(AuditEvent::PolicyViolation {
                policy: "vram-only".into(),
                violation: violation.clone(),
                details: shard.shard_id.clone(),
                severity: Severity::Critical,
                action_taken: "verification refused".into(),
            });
        }
        placed.map(|()| held)
    }

    /// Checks that the shard is sealed, then that this manager signed it.
    fn check_signature(&self, shard: &SealedShard) -> VramResult<()> {
        let signature = match &shard.signature {
            Some(signature) if shard.is_sealed() => signature,
            _ => return Err(VramError::NotSealed),
        };
        let forged = VramError::SealVerificationFailed {
            first_bad_mib: None,
        };
        // A shard that cannot be encoded was never signed.
        match shard.signed_bytes() {
            Ok(bytes) if self.key.verify(&bytes, signature) => Ok(()),
            _ => Err(forged),
        }
    }

    fn report_refused(&self, requested: u64, available: u64, reason: &str) {
        self.audit.report(AuditEvent::VramAllocationFailed {
            requested,
            available,
            reason: reason.to_owned(),
            gpu_device: self.config.gpu_device,
        });
    }

    fn report_failed(&self, shard: &SealedShard, error: &VramError, actual_digest: &str) {
        // An id with other characters could imitate another record.
        let shard_id = match check_id(&shard.shard_id) {
            Ok(()) => shard.shard_id.clone(),
            Err(_) => "(malformed)".to_owned(),
        };
        let digest = &shard.digest;
        let is_hex = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.audit.report(AuditEvent::SealVerificationFailed {
            shard_id,
            reason: error.to_string(),
            expected_digest: if is_hex {
                digest.clone()
            } else {
                String::new()
            },
            actual_digest: actual_digest.to_owned(),
            severity: Severity::Critical,
        });
    }
}

impl Drop for VramManager {
    fn drop(&mut self) {
        self.sealed.clear();
        self.audit.flush(Severity::Info);
    }
}

impl fmt::Debug for VramManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VramManager")
            .field("config", &self.config)
            .field("shards", &self.sealed.len())
            .field("used_vram", &self.used_vram())
            .finish_non_exhaustive()
    }
}

struct Mismatch {
    actual_digest: String,
    error: VramError,
}

/// A model's weights have no defined order of bytes.
fn bytes_of(held: &Held) -> VramResult<&Arc<Sealed>> {
    match held {
        Held::Bytes(sealed) => Ok(sealed),
        Held::Weights(_) => Err(VramError::InvalidInput(
            "the shard is a loaded model's weights: they are used by engines and verified whole"
                .into(),
        )),
    }
}

/// The sink and its failures. No failure of it fails a call.
struct Audit {
    sink: Option<Mutex<Box<dyn AuditSink>>>,
    worker_id: String,
    emit_failures: AtomicU64,
    critical_emit_failures: AtomicU64,
}

impl Audit {
    fn new(worker_id: String) -> Self {
        Self {
            sink: None,
            worker_id,
            emit_failures: AtomicU64::new(0),
            critical_emit_failures: AtomicU64::new(0),
        }
    }

    fn report(&self, event: AuditEvent) {
        let severity = event.severity();
        let record = AuditRecord {
            timestamp: SystemTime::now(),
            worker_id: self.worker_id.clone(),
            event,
        };
        self.ask(severity, |sink| sink.emit(&record));
        if severity == Severity::Critical {
            self.flush(severity);
        }
    }

    fn flush(&self, severity: Severity) {
        self.ask(severity, |sink| sink.flush());
    }

    fn ask(
        &self,
        severity: Severity,
        call: impl FnOnce(&mut dyn AuditSink) -> Result<(), super::AuditError>,
    ) {
        let Some(sink) = &self.sink else { return };
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = caught(|| call(sink.as_mut()));
        if matches!(outcome, Some(Ok(()))) {
            return;
        }
        self.emit_failures.fetch_add(1, Ordering::Relaxed);
        if severity == Severity::Critical {
            self.critical_emit_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counters(&self) -> AuditCounters {
        AuditCounters {
            emit_failures: self.emit_failures.load(Ordering::Relaxed),
            critical_emit_failures: self.critical_emit_failures.load(Ordering::Relaxed),
        }
    }
}

/// Fills all of `memory` from the reader through `staging`, and hashes what was read.
fn copy_in(
    memory: &mut SafeCudaPtr<u8>,
    reader: &mut impl Read,
    staging: &mut PinnedBuffer<u8>,
    source: &mut blake3::Hasher,
) -> VramResult<()> {
    let total = memory.len();
    let mut done = 0;
    while done < total {
        let wanted = (total - done).min(staging.len());
        let mut filled = 0;
        while filled < wanted {
            match read_some(reader, &mut staging[filled..wanted])? {
                0 => {
                    let message =
                        format!("the reader ends after {} of {total} bytes", done + filled);
                    return Err(VramError::InvalidInput(message));
                }
                count => filled += count,
            }
        }
        memory.write_at(done, &staging[..wanted])?;
        source.update(&staging[..wanted]);
        done += wanted;
    }
    Ok(())
}

/// One read; a reader that reports more bytes than it had room for is refused.
fn read_some(reader: &mut impl Read, target: &mut [u8]) -> VramResult<usize> {
    loop {
        match reader.read(target) {
            Ok(count) if count <= target.len() => return Ok(count),
            Ok(_) => return Err(VramError::InvalidInput("the reader miscounts".into())),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(VramError::InvalidInput(format!(
                    "the reader failed: {error}"
                )));
            }
        }
    }
}

fn new_shard_id() -> VramResult<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        VramError::CudaAllocationFailed(format!("no random numbers from the system: {error}"))
    })?;
    Ok(format!("shard-{}", hex(&bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "tamper_tests.rs"]
mod tests;
