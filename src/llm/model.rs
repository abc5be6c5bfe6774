//! A model's weights on a device.

use std::ffi::c_void;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::core::callback::ParkedPanic;
use crate::core::context::CudaContext;
use crate::core::error::{Result, call};
use crate::core::native_text::fixed_text;
use crate::ffi;
use crate::llm::gguf::Gguf;

/// A loaded model. Cheap to clone; unloaded when the last clone and the last engine that uses it have been dropped.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    /// Declared, and so dropped, before the objects that it was created from.
    handle: Handle,
    info: ModelInfo,
    gguf: Gguf,
    context: CudaContext,
    /// Of a draft head.
    target: Option<Model>,
}

struct Handle(ffi::wcuda_model);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: legal on any thread; engines keep natively what they need.
        unsafe { ffi::wcuda_model_unload(self.0) }
    }
}

/// Properties of a loaded model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // the names say it; worker_cuda.h, section 10, says the rest
pub struct ModelInfo {
    /// The architecture's name in the file, for example "llama".
    pub architecture: String,
    pub layer_count: u32,
    pub parameter_count: u64,
    /// Bytes of weights on the device.
    pub weights_bytes: u64,
    pub vocabulary_size: u32,
    pub embedding_length: u32,
    pub feed_forward_length: u32,
    pub head_count: u32,
    pub kv_head_count: u32,
    pub head_length: u32,
    /// Context length that the model was trained for.
    pub context_length: u32,
    /// Positions of the sliding window; 0: none.
    pub sliding_window: u32,
    pub rope_frequency_base: f32,
}

/// BLAKE3 digests of one tensor of a loaded model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorDigests {
    /// Digest of the tensor's bytes in the file.
    pub file: [u8; 32],
    /// Digest of the tensor's memory on the device: the same bytes in another order, padded rows filled with zeros,
    /// vectors as f32.
    pub resident: [u8; 32],
}

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The current phase.
    pub phase: LoadPhase,
    /// Bytes read so far, of `total_bytes`.
    pub done_bytes: u64,
    /// Bytes of the file to be read.
    pub total_bytes: u64,
}

/// Phases of a load, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadPhase {
    /// Sizes are computed.
    Plan,
    /// Memory is reserved.
    Reserve,
    /// Bytes of the file are read, checked and rearranged.
    Upload,
    /// The loaded model is sealed.
    Seal,
    /// The last phase, reported exactly once by a load that succeeds.
    Done,
    /// A phase that this version of the crate does not know.
    Unknown(i32),
}

impl LoadPhase {
    fn from_native(phase: i32) -> Self {
        match phase {
            ffi::WCUDA_LOAD_PLAN => Self::Plan,
            ffi::WCUDA_LOAD_RESERVE => Self::Reserve,
            ffi::WCUDA_LOAD_UPLOAD => Self::Upload,
            ffi::WCUDA_LOAD_SEAL => Self::Seal,
            ffi::WCUDA_LOAD_DONE => Self::Done,
            other => Self::Unknown(other),
        }
    }
}

/// Cancels a load from any thread. Once triggered it stays triggered.
#[derive(Clone, Debug)]
pub struct CancelHandle(Arc<CancelInner>);

#[derive(Debug)]
struct CancelInner(ffi::wcuda_cancel);

impl Drop for CancelInner {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_cancel_destroy(self.0) }
    }
}

impl CancelHandle {
    /// Creates a handle that is not triggered.
    pub fn new() -> Result<Self> {
        let mut cancel = ffi::wcuda_cancel::zeroed();
        // SAFETY: `cancel` is valid.
        call(|error| unsafe { ffi::wcuda_cancel_create(&mut cancel, error) })?;
        Ok(Self(Arc::new(CancelInner(cancel))))
    }

    /// Cancels the load that uses this handle. May be called from the progress closure.
    pub fn trigger(&self) -> Result<()> {
        // SAFETY: legal on any thread, and from inside callbacks.
        call(|error| unsafe { ffi::wcuda_cancel_trigger(self.0.0, error) })
    }
}

/// How to load a model; see [`Model::builder`].
#[must_use = "nothing is loaded until `load` is called"]
pub struct ModelBuilder<'a> {
    context: &'a CudaContext,
    gguf: &'a Gguf,
    progress: Option<Box<dyn FnMut(Progress) -> ControlFlow<()> + 'a>>,
    cancel: Option<CancelHandle>,
    target: Option<&'a Model>,
}

impl Model {
    /// Loads all weights of `gguf` to the device of `context`; on an error nothing stays loaded.
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// use worker_cuda::{CudaContext, Gguf, Model};
    /// let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// println!("{} parameters", model.info().parameter_count);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load(context: &CudaContext, gguf: &Gguf) -> Result<Self> {
        Self::builder(context, gguf).load()
    }

    /// Options: progress and cancellation.
    pub fn builder<'a>(context: &'a CudaContext, gguf: &'a Gguf) -> ModelBuilder<'a> {
        ModelBuilder {
            context,
            gguf,
            progress: None,
            cancel: None,
            target: None,
        }
    }

    /// Returns the model's properties.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// The digests of tensor `index` of the file, which were computed while loading.
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a tensor that is not a weight.
    pub fn tensor_digests(&self, index: u64) -> Result<TensorDigests> {
        let mut native = ffi::wcuda_tensor_digests::init();
        // SAFETY: `native` is valid and sized.
        call(|error| unsafe {
            ffi::wcuda_model_tensor_digests_get(self.handle(), index, &mut native, error)
        })?;
        Ok(TensorDigests {
            file: native.file,
            resident: native.resident,
        })
    }

    /// Computes the digest of every resident tensor again, on the device, and compares it with the recorded one.
    /// The message of [`ErrorKind::Integrity`](crate::ErrorKind::Integrity) names the first tensor that has
    /// changed. Engines may run at the same time.
    pub fn verify(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_model_verify(self.handle(), error) })
    }

    /// The file it was loaded from.
    pub fn gguf(&self) -> &Gguf {
        &self.0.gguf
    }

    /// The context that holds it.
    pub fn context(&self) -> &CudaContext {
        &self.0.context
    }

    /// The model whose next tokens a draft head guesses; None for other models.
    pub fn target(&self) -> Option<&Model> {
        self.0.target.as_ref()
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_model {
        self.0.handle.0
    }
}

/// Whether they are clones of one loaded model.
impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Model {}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.0.info).finish()
    }
}

impl<'a> ModelBuilder<'a> {
    /// Called on the loading thread at each change of phase and at least every 16 MiB. `ControlFlow::Break` cancels
    /// the load. A panic cancels it too and is resumed by [`load`].
    ///
    /// [`load`]: Self::load
    pub fn progress(mut self, progress: impl FnMut(Progress) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Lets `cancel` cancel the load.
    pub fn cancel(mut self, cancel: &CancelHandle) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// The model whose next tokens the file guesses, which is a draft head: a file of architecture `eagle3`. Such a
    /// file is loaded with its target, and others without.
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// use worker_cuda::{CudaContext, Gguf, Model};
    ///
    /// let context = CudaContext::auto()?;
    /// let model = Model::load(&context, &Gguf::open("8b.gguf")?)?;
    /// let head = Gguf::open("8b-eagle3.gguf")?;
    /// let head = Model::builder(&context, &head).target(&model).load()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn target(mut self, target: &'a Model) -> Self {
        self.target = Some(target);
        self
    }

    /// Loads the model. On an error nothing stays loaded, and the ledger is as before. A cancelled load is
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn load(self) -> Result<Model> {
        let mut watcher = self.progress.map(|progress| Watcher {
            progress,
            panic: ParkedPanic::default(),
        });
        let mut options = ffi::wcuda_model_options::init();
        if let Some(watcher) = &mut watcher {
            options.progress = Some(trampoline);
            options.progress_user = (&raw mut *watcher).cast();
        }
        if let Some(cancel) = &self.cancel {
            options.cancel = cancel.0.0;
        }
        if let Some(target) = self.target {
            options.target = target.handle();
        }
        let mut handle = ffi::wcuda_model::zeroed();
        let loaded = self.gguf.run_reading(|| {
            // SAFETY: `options`, `watcher` and the cancel handle outlive the call, after which the
            // library keeps none of them.
            call(|error| unsafe {
                let (context, gguf) = (self.context.handle(), self.gguf.handle());
                ffi::wcuda_model_load(context, gguf, &options, &mut handle, error)
            })
        });
        let handle = loaded.map(|()| Handle(handle));
        if let Some(watcher) = &watcher {
            watcher.panic.resume();
        }
        let handle = handle?;
        let info = ModelInfo::of(&handle)?;
        let (gguf, context) = (self.gguf.clone(), self.context.clone());
        Ok(Model(Arc::new(Inner {
            handle,
            info,
            gguf,
            context,
            target: self.target.cloned(),
        })))
    }
}

impl fmt::Debug for ModelBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelBuilder")
            .field("gguf", self.gguf)
            .finish_non_exhaustive()
    }
}

impl ModelInfo {
    fn of(handle: &Handle) -> Result<Self> {
        let mut info = ffi::wcuda_model_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe { ffi::wcuda_model_info_get(handle.0, &mut info, error) })?;
        Ok(Self {
            architecture: fixed_text(&info.architecture),
            layer_count: info.layer_count,
            parameter_count: info.parameter_count,
            weights_bytes: info.weights_bytes,
            vocabulary_size: info.vocabulary_size,
            embedding_length: info.embedding_length,
            feed_forward_length: info.feed_forward_length,
            head_count: info.head_count,
            kv_head_count: info.kv_head_count,
            head_length: info.head_length,
            context_length: info.context_length,
            sliding_window: info.sliding_window,
            rope_frequency_base: info.rope_frequency_base,
        })
    }
}

struct Watcher<'a> {
    progress: Box<dyn FnMut(Progress) -> ControlFlow<()> + 'a>,
    panic: ParkedPanic,
}

/// # Safety
/// `user` is the `Watcher` of the load that is running on this thread.
unsafe extern "C" fn trampoline(
    user: *mut c_void,
    phase: i32,
    done_bytes: u64,
    total_bytes: u64,
) -> i32 {
    // SAFETY: progress is reported on the loading thread alone, one call at a time, while `load` holds
    // the watcher and does not touch it.
    let Watcher { progress, panic } = unsafe { &mut *user.cast::<Watcher<'_>>() };
    let phase = LoadPhase::from_native(phase);
    match panic.guard(|| {
        progress(Progress {
            phase,
            done_bytes,
            total_bytes,
        })
    }) {
        Some(ControlFlow::Continue(())) => 0,
        Some(ControlFlow::Break(())) | None => 1,
    }
}
