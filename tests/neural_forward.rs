//! `neural_forward` of 100 → 64 → 32 → 16 → 5 against PyTorch (tools/golden/neural_forward.py).

use std::path::Path;

use worker_cuda::{CudaContext, ErrorKind, Layer};

use gpu::gpu;

#[path = "support/gpu.rs"]
mod gpu;

const SIZES: [usize; 5] = [100, 64, 32, 16, 5];
const BATCH: usize = 7;

/// f32 of the file, front to back.
struct Vectors(std::vec::IntoIter<f32>);

impl Vectors {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/neural_forward.bin");
        let bytes = std::fs::read(path).expect("the vectors");
        let numbers: Vec<_> = bytes
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().expect("four bytes")))
            .collect();
        Self(numbers.into_iter())
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        let taken: Vec<_> = self.0.by_ref().take(count).collect();
        assert_eq!(taken.len(), count);
        taken
    }
}

fn equals_pytorch(context: &CudaContext) {
    let mut vectors = Vectors::read();
    let x = context.alloc_from(&vectors.take(BATCH * SIZES[0])).unwrap();
    let parts: Vec<_> = SIZES
        .windows(2)
        .map(|pair| {
            let weights = context
                .alloc_from(&vectors.take(pair[0] * pair[1]))
                .unwrap();
            (weights, context.alloc_from(&vectors.take(pair[1])).unwrap())
        })
        .collect();
    let expected = vectors.take(BATCH * SIZES[4]);
    assert_eq!(vectors.0.len(), 0);
    let layers: Vec<_> = parts
        .iter()
        .zip(SIZES.windows(2))
        .map(|((weights, bias), pair)| Layer {
            weights,
            bias,
            inputs: pair[0],
            outputs: pair[1],
        })
        .collect();

    let found = context.neural_forward(&layers, &x, BATCH).unwrap();

    // f32 through four layers; PyTorch's are of double precision.
    for (found, expected) in found.to_vec().unwrap().iter().zip(&expected) {
        assert!(
            (found - expected).abs() < 2e-6,
            "{found}, {expected} expected"
        );
    }
}

#[test]
fn on_the_host_equals_pytorch() {
    equals_pytorch(&CudaContext::host().unwrap());
}

#[test]
fn gpu_equals_pytorch() {
    let Some(context) = gpu() else { return };
    equals_pytorch(&context);
}

#[test]
fn sizes_past_what_can_be_counted_are_refused() {
    let context = CudaContext::host().unwrap();
    let x = context.alloc_from(&[1.0f32, 2.0]).unwrap();
    let layer = |inputs, outputs| Layer {
        weights: &x,
        bias: &x,
        inputs,
        outputs,
    };
    for (batch, layer, message) in [
        (
            usize::MAX,
            layer(2, 1),
            format!("{} rows of 2 values overflow", usize::MAX),
        ),
        (
            2,
            layer(1, usize::MAX),
            format!("2 rows of {} values overflow", usize::MAX),
        ),
    ] {
        let error = context.neural_forward(&[layer], &x, batch).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.message(), message);
    }
}
