//! Runs a kernel's GPU and CPU version on the same inputs and reports the largest difference.

use super::copies::Copies;
use super::gpu_compute::{GpuCompute, Registered};
use crate::compute::module::GpuArg;
use crate::compute::registry::ParamSpec;
use crate::core::error::{Error, ErrorKind, Result};
use crate::ffi;

/// One element that the device and the host computed differently.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// Index of the argument.
    pub argument: usize,
    /// Its name.
    pub name: String,
    /// Index of the element within its window.
    pub element: usize,
    /// The result of the host function.
    pub host: f64,
    /// The result of the device code.
    pub device: f64,
    /// `|device - host| / max(1, |host|)`; infinite where one of them is NaN.
    pub difference: f64,
}

/// Result of [`GpuCompute::check_parity`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Parity {
    /// Number of elements compared, in arguments declared as written.
    pub compared: u64,
    /// The largest difference, the first of equal ones; None if all elements are equal.
    pub largest: Option<Difference>,
    /// Whether all differences are within the tolerance.
    pub within: bool,
}

impl GpuCompute {
    /// Runs the device code and the host function of a kernel on copies of the same arguments, which stay unchanged,
    /// and compares all arguments declared as written. Needs a GPU and both versions:
    /// [`ErrorKind::UnsupportedKernel`] otherwise.
    ///
    /// ```
    /// # use worker_cuda::{GpuArg, GpuCompute};
    /// # fn check(compute: &GpuCompute) -> worker_cuda::Result<()> {
    /// let x = compute.device().upload(&[1.0f32; 1000])?;
    /// let mut y = compute.device().allocate::<f32>(1000)?;
    /// let parity = compute.check_parity("scale", &[GpuArg::from(&x), (&mut y).into()], 1e-6)?;
    /// assert!(parity.within, "{:?}", parity.largest);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_parity(&self, name: &str, args: &[GpuArg<'_>], tolerance: f64) -> Result<Parity> {
        let found = self.find(name)?;
        let unsupported = || {
            let message = format!(
                "kernel '{name}': parity needs device code, a GPU for it, and a host function"
            );
            Error::new(ErrorKind::UnsupportedKernel, message)
        };
        let Registered::Described(kernel) = &*found else {
            return Err(unsupported());
        };
        kernel.own.check(args)?;
        let on_host = kernel.on_host.as_ref().ok_or_else(unsupported)?;
        kernel.own.function().ok_or_else(unsupported)?;
        let device_copies = Copies::new(kernel.own.context(), args)?;
        let host_copies = Copies::new(on_host.context(), args)?;
        host_copies.run(on_host)?;
        device_copies.run(&kernel.own)?;
        compare(kernel.own.params(), &device_copies, &host_copies, tolerance)
    }
}

/// Compares the outputs of two runs.
fn compare(
    params: &[ParamSpec],
    on_device: &Copies<'_>,
    on_host: &Copies<'_>,
    tolerance: f64,
) -> Result<Parity> {
    let mut parity = Parity {
        compared: 0,
        largest: None,
        within: true,
    };
    for (argument, param) in params.iter().enumerate() {
        if !param.is_buffer() || !param.is_written() {
            continue;
        }
        let kind = param.dtype;
        let (found, expected) = (on_device.bytes(argument)?, on_host.bytes(argument)?);
        let width = param.element_bytes().max(1) as usize;
        for (element, (device, host)) in found
            .chunks_exact(width)
            .zip(expected.chunks_exact(width))
            .enumerate()
        {
            parity.compared += 1;
            if device == host {
                continue;
            }
            let (device, host) = (number(kind, device), number(kind, host));
            let difference = difference(device, host);
            parity.within &= difference <= tolerance;
            if difference > parity.largest.as_ref().map_or(0.0, |at| at.difference) {
                parity.largest = Some(Difference {
                    argument,
                    name: param.name.clone(),
                    element,
                    host,
                    device,
                    difference,
                });
            }
        }
    }
    Ok(parity)
}

/// Two zeros, and two NaNs, are equal.
fn difference(device: f64, host: f64) -> f64 {
    if device == host || (device.is_nan() && host.is_nan()) {
        return 0.0;
    }
    let difference = (device - host).abs() / host.abs().max(1.0);
    if difference.is_nan() {
        f64::INFINITY
    } else {
        difference
    }
}

fn number(kind: i32, bytes: &[u8]) -> f64 {
    let mut wide = [0u8; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    let bits = u64::from_le_bytes(wide);
    match kind {
        ffi::WCUDA_ARG_I8 => f64::from(bits as i8),
        ffi::WCUDA_ARG_I16 => f64::from(bits as i16),
        ffi::WCUDA_ARG_I32 => f64::from(bits as i32),
        ffi::WCUDA_ARG_I64 => bits as i64 as f64,
        ffi::WCUDA_ARG_F16 => half(bits as u16),
        ffi::WCUDA_ARG_BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
        ffi::WCUDA_ARG_F32 => f64::from(f32::from_bits(bits as u32)),
        ffi::WCUDA_ARG_F64 => f64::from_bits(bits),
        _ => bits as f64,
    }
}

/// An IEEE half by its bits.
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match i32::from(bits >> 10 & 31) {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::KernelSpec;
    use crate::compute::copies::run_on_copies;
    use crate::compute::runnable::Runnable;
    use crate::core::context::CudaContext;

    /// Adds 1 to all, and `more` to element 3; fails above 50.
    fn add_one(more: f32) -> (GpuCompute, KernelSpec) {
        let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
        let spec = KernelSpec::new("add_one")
            .write::<f32>("x", [4.into()])
            .host(move |call| {
                let x = call.slice_mut::<f32>(0)?;
                x.iter_mut().for_each(|x| *x += 1.0);
                x[3] += more;
                if x[0] > 50.0 {
                    return Err(Error::new(ErrorKind::LimitExceeded, "above 50"));
                }
                Ok(())
            });
        (compute, spec)
    }

    /// Runs with the kernel as it stands on a host context.
    fn with_kernel<R>(more: f32, body: impl FnOnce(&GpuCompute, &Runnable) -> R) -> R {
        let (compute, spec) = add_one(more);
        let prepared = compute
            .prepare(&spec.descriptor, "add_one", None, spec.host)
            .unwrap();
        body(&compute, &prepared.kernel.own)
    }

    #[test]
    fn the_largest_difference_is_found_and_inputs_stay() {
        with_kernel(0.0, |compute, first| {
            with_kernel(100.0, |_, second| {
                let mut x = compute.device().upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
                let args = [GpuArg::from(&mut x)];
                let on_device = Copies::new(first.context(), &args).unwrap();
                let on_host = Copies::new(second.context(), &args).unwrap();
                on_device.run(first).unwrap();
                on_host.run(second).unwrap();

                let parity = compare(first.params(), &on_device, &on_host, 1e-3).unwrap();

                assert_eq!((parity.compared, parity.within), (4, false));
                let largest = parity.largest.unwrap();
                assert_eq!((largest.argument, largest.element), (0, 3));
                assert_eq!((largest.device, largest.host), (5.0, 105.0));
                assert_eq!(largest.difference, 100.0 / 105.0);
                assert_eq!(largest.name, "x");
                let same = compare(first.params(), &on_host, &on_host, 0.0).unwrap();
                assert_eq!((same.largest, same.within), (None, true));
                drop((on_device, on_host));
                assert_eq!(x.to_vec().unwrap(), [1.0, 2.0, 3.0, 4.0]);
            });
        });
    }

    #[test]
    fn a_host_function_on_copies_writes_back_when_it_succeeds() {
        with_kernel(0.0, |compute, kernel| {
            let mut x = compute.device().upload(&[48.5f32; 4]).unwrap();
            let mut run = || {
                let ran = run_on_copies(kernel, &[GpuArg::from(&mut x)]).map(|_| ());
                (ran, x.to_vec().unwrap())
            };
            assert_eq!(run().1, [49.5; 4]);
            let (failed, after) = run();
            assert_eq!(failed.unwrap_err().message(), "above 50");
            assert_eq!(after, [49.5; 4], "nothing is copied back");
        });
    }

    #[test]
    fn halves_are_read() {
        for (bits, value) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f64.powi(-24))] {
            assert_eq!(half(bits), value);
        }
        assert_eq!(half(0x7c00), f64::INFINITY);
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn numbers_of_every_kind_are_compared() {
        assert_eq!(number(ffi::WCUDA_ARG_I16, &(-3i16).to_le_bytes()), -3.0);
        assert_eq!(number(ffi::WCUDA_ARG_U16, &65533u16.to_le_bytes()), 65533.0);
        assert_eq!(number(ffi::WCUDA_ARG_F64, &0.5f64.to_le_bytes()), 0.5);
        assert_eq!(difference(f64::NAN, f64::NAN), 0.0);
        assert_eq!(difference(f64::NAN, 1.0), f64::INFINITY);
        assert_eq!(difference(f64::INFINITY, f64::INFINITY), 0.0);
        assert_eq!(difference(3.0, 4.0), 0.25);
    }
}
