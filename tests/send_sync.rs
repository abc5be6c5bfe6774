//! Which types may cross threads, held at compile time.

use worker_cuda::*;

const fn send_and_sync<T: Send + Sync + 'static>() {}

const _: () = {
    send_and_sync::<CudaContext>();
    send_and_sync::<SafeCudaPtr<f32>>();
    send_and_sync::<CudaView<'static, f32>>();
    send_and_sync::<CudaViewMut<'static, f32>>();
    send_and_sync::<PinnedBuffer<u8>>();
    send_and_sync::<CudaVramAllocator>();
    send_and_sync::<Gguf>();
    send_and_sync::<Model>();
    send_and_sync::<CancelHandle>();
    send_and_sync::<Engine>();
    send_and_sync::<Sequence>();
    send_and_sync::<Ticket>();
    send_and_sync::<StepOutput>();
    send_and_sync::<Error>();
    send_and_sync::<Stream>();
    send_and_sync::<Event>();
    send_and_sync::<PendingCopy<f32>>();
    send_and_sync::<Program>();
    send_and_sync::<KernelCache>();
    send_and_sync::<CudaModule>();
    send_and_sync::<CudaFunction>();
    send_and_sync::<KernelLauncher>();
    send_and_sync::<GpuCompute>();
};

#[cfg(all(feature = "scheduler", feature = "text"))]
const _: () = {
    const fn clone<T: Clone>() {}
    clone::<generate::Service>();
    send_and_sync::<generate::Service>();
    send_and_sync::<generate::service::EventReceiver>();
    send_and_sync::<generate::service::RequestCancel>();
    send_and_sync::<generate::service::Error>();
};

#[cfg(feature = "seal")]
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<worker_cuda::seal::VramManager>();
    send_and_sync::<worker_cuda::seal::SealedShard>();
    send_and_sync::<worker_cuda::seal::VramError>();
};

#[test]
fn errors_fit_the_usual_boxes() {
    fn boxed(error: Error) -> Box<dyn std::error::Error + Send + Sync> {
        error.into()
    }
    assert_eq!(boxed(Error::new(ErrorKind::Busy, "x")).to_string(), "x");
}
