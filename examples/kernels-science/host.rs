//! The kernels of science.cu as functions of the host: the same formulas, as plain loops.

use worker_cuda::{HostCall, HostFunctions, Result};

/// Probabilities below are left out.
const TINY: f32 = 1e-10;

fn count(call: &HostCall<'_>, index: usize) -> Result<usize> {
    Ok(call.value::<i32>(index)? as usize)
}

/// The sum of terms, to the first element of buffer `index`.
fn put_sum(call: &HostCall<'_>, index: usize, terms: impl Iterator<Item = f32>) -> Result<()> {
    call.slice_mut::<f32>(index)?[0] = terms.sum();
    Ok(())
}

fn put_sum_f64(call: &HostCall<'_>, index: usize, terms: impl Iterator<Item = f64>) -> Result<()> {
    call.slice_mut::<f64>(index)?[0] = terms.sum();
    Ok(())
}

fn relative_entropy_term(q: f32, p: f32) -> f32 {
    if q > TINY && p > TINY {
        q * (q / p).ln()
    } else {
        0.0
    }
}

/// The pairs of states that a gate on a qubit mixes.
fn pairs(qubit: usize, dim: usize) -> impl Iterator<Item = (usize, usize)> {
    let bit = 1usize << qubit;
    (0..dim)
        .filter(move |low| low & bit == 0 && low | bit < dim)
        .map(move |low| (low, low | bit))
}

/// y[i] = formula(i) for n elements of buffer `out`.
fn each(call: &HostCall<'_>, out: usize, n: usize, formula: impl Fn(usize) -> f32) -> Result<()> {
    for (i, y) in call.slice_mut::<f32>(out)?[..n].iter_mut().enumerate() {
        *y = formula(i);
    }
    Ok(())
}

/// y[i] = formula(i, y[i]) in double precision.
fn each_f64(
    call: &HostCall<'_>,
    out: usize,
    n: usize,
    formula: impl Fn(usize, f64) -> f64,
) -> Result<()> {
    for (i, y) in call.slice_mut::<f64>(out)?[..n].iter_mut().enumerate() {
        *y = formula(i, *y);
    }
    Ok(())
}

/// All of them, under the names that kernels.json uses.
pub fn functions() -> HostFunctions {
    qubits(information(neurons(inference(HostFunctions::new()))))
        .with("gemv", gemv)
        .with("hierarchical_project", hierarchical_project)
}

fn inference(functions: HostFunctions) -> HostFunctions {
    functions
        .with("kl_divergence", |call| {
            let (q, p, n) = (
                call.slice::<f32>(0)?,
                call.slice::<f32>(1)?,
                count(call, 3)?,
            );
            put_sum(call, 2, (0..n).map(|i| relative_entropy_term(q[i], p[i])))
        })
        .with("elementwise_multiply", |call| {
            let (a, b) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            each(call, 2, count(call, 3)?, |i| a[i] * b[i])
        })
        .with("normalize", |call| {
            let x = &mut call.slice_mut::<f32>(0)?[..count(call, 1)?];
            let sum: f32 = x.iter().sum();
            x.iter_mut().for_each(|x| *x /= sum);
            Ok(())
        })
        .with("free_energy", |call| {
            let (q, p) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            let (log_likelihood, n) = (call.value::<f32>(2)?, count(call, 4)?);
            let terms = (0..n).map(|i| relative_entropy_term(q[i], p[i]));
            put_sum(call, 3, terms.chain([-log_likelihood]))
        })
        .with("prediction_error", |call| {
            let (observed, predicted) = (call.slice::<f64>(1)?, call.slice::<f64>(2)?);
            let precision = call.slice::<f64>(3)?;
            each_f64(call, 0, count(call, 4)?, |i, _| {
                precision[i] * (observed[i] - predicted[i])
            })
        })
        .with("belief_update", |call| {
            let (gradient, rate) = (call.slice::<f64>(1)?, call.value::<f64>(2)?);
            each_f64(call, 0, count(call, 3)?, |i, mean| {
                mean - rate * gradient[i]
            })
        })
        .with("precision_weight", |call| {
            let (error, precision) = (call.slice::<f64>(1)?, call.slice::<f64>(2)?);
            each_f64(call, 0, count(call, 3)?, |i, _| precision[i] * error[i])
        })
        .with("kl_gaussian", |call| {
            let (mean_q, mean_p) = (call.slice::<f64>(0)?, call.slice::<f64>(2)?);
            let (variance_q, variance_p) = (call.slice::<f64>(1)?, call.slice::<f64>(3)?);
            let term = |i: usize| {
                let (vq, vp) = (variance_q[i].max(1e-10), variance_p[i].max(1e-10));
                let away = mean_q[i] - mean_p[i];
                0.5 * (vq / vp + away * away / vp - 1.0 - (vq / vp).ln())
            };
            put_sum_f64(call, 4, (0..count(call, 5)?).map(term))
        })
        .with("accuracy", |call| {
            let (error, precision) = (call.slice::<f64>(0)?, call.slice::<f64>(1)?);
            let term = |i: usize| {
                let part = (std::f64::consts::TAU / precision[i]).ln();
                -0.5 * (precision[i] * error[i] * error[i] + part)
            };
            put_sum_f64(call, 2, (0..count(call, 3)?).map(term))
        })
        .with("sum_reduction", |call| {
            let x = &call.slice::<f64>(0)?[..count(call, 2)?];
            put_sum_f64(call, 1, x.iter().copied())
        })
        .with("axpby", |call| {
            let x = call.slice::<f64>(1)?;
            let (a, b) = (call.value::<f64>(2)?, call.value::<f64>(3)?);
            each_f64(call, 0, count(call, 4)?, |i, y| a * x[i] + b * y)
        })
        .with("velocity_update", |call| {
            let gradient = call.slice::<f64>(1)?;
            let (momentum, rate) = (call.value::<f64>(2)?, call.value::<f64>(3)?);
            each_f64(call, 0, count(call, 4)?, |i, velocity| {
                momentum * velocity - rate * gradient[i]
            })
        })
}

fn neurons(functions: HostFunctions) -> HostFunctions {
    functions
        .with("leaky_integrate_fire", |call| {
            let (previous, input) = (call.slice::<f32>(1)?, call.slice::<f32>(2)?);
            let (leak, threshold) = (call.value::<f32>(3)?, call.value::<f32>(4)?);
            let (v, spikes) = (call.slice_mut::<f32>(0)?, call.slice_mut::<u8>(5)?);
            for i in 0..count(call, 6)? {
                let value = leak * previous[i] + input[i];
                spikes[i] = u8::from(value >= threshold);
                v[i] = if value >= threshold { 0.0 } else { value };
            }
            Ok(())
        })
        .with("reservoir_update", |call| {
            let (previous, input) = (call.slice::<f32>(1)?, call.slice::<f32>(2)?);
            let leak = call.value::<f32>(3)?;
            each(call, 0, count(call, 4)?, |i| {
                (1.0 - leak) * previous[i] + leak * input[i].tanh()
            })
        })
        .with("stdp_update", |call| {
            let (pre, post) = (call.slice::<f32>(1)?, call.slice::<f32>(2)?);
            let (t_pre, t_post) = (call.slice::<f32>(3)?, call.slice::<f32>(4)?);
            let rate = call.value::<f32>(5)?;
            let (tau_plus, tau_minus) = (call.value::<f32>(6)?, call.value::<f32>(7)?);
            let (n_pre, n_post) = (count(call, 8)?, count(call, 9)?);
            let w = call.slice_mut::<f32>(0)?;
            for (row, weights) in w.chunks_exact_mut(n_post).take(n_pre).enumerate() {
                for (col, w) in weights.iter_mut().enumerate() {
                    let later = t_post[col] - t_pre[row];
                    let change = if later > 0.0 {
                        (-later / tau_plus).exp()
                    } else if later < 0.0 {
                        -(later / tau_minus).exp()
                    } else {
                        0.0
                    };
                    *w = (*w + rate * pre[row] * post[col] * change).clamp(0.0, 1.0);
                }
            }
            Ok(())
        })
        .with("kuramoto_evolution", |call| {
            let (phase, frequency) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            let (coupling, n) = (call.slice::<f32>(2)?, count(call, 4)?);
            let (dt, strength) = (call.value::<f32>(5)?, call.value::<f32>(6)?);
            each(call, 3, n, |i| {
                let term = |j: usize| coupling[i * n + j] * (phase[j] - phase[i]).sin();
                let pull: f32 = (0..n).map(term).sum();
                phase[i] + dt * (frequency[i] + strength / n as f32 * pull)
            })
        })
}

fn information(functions: HostFunctions) -> HostFunctions {
    functions
        .with("entropy_production", |call| {
            let (velocity, temperature) = (call.slice::<f32>(0)?, call.value::<f32>(2)?);
            let terms = velocity[..count(call, 3)?]
                .iter()
                .map(|v| v * v / temperature);
            put_sum(call, 1, terms)
        })
        .with("order_parameter", |call| {
            let phase = &call.slice::<f32>(0)?[..count(call, 3)?];
            let n = phase.len() as f32;
            put_sum(call, 1, phase.iter().map(|phase| phase.cos() / n))?;
            put_sum(call, 2, phase.iter().map(|phase| phase.sin() / n))
        })
        .with("mutual_information", |call| {
            let (joint, bins) = (call.slice::<f32>(0)?, count(call, 4)?);
            let (px, py) = (call.slice::<f32>(1)?, call.slice::<f32>(2)?);
            let term = |i: usize| relative_entropy_term(joint[i], px[i / bins] * py[i % bins]);
            put_sum(call, 3, (0..bins * bins).map(term))
        })
        .with("histogram_2d", |call| {
            let (x, y) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            let (low, high) = (call.value::<f32>(3)?, call.value::<f32>(4)?);
            let (n, bins) = (count(call, 5)?, count(call, 6)?);
            let counts = call.slice_mut::<i32>(2)?;
            let within = low..=high;
            let bin = |v: f32| (((v - low) / (high - low) * bins as f32) as usize).min(bins - 1);
            for (x, y) in x.iter().zip(y).take(if low < high { n } else { 0 }) {
                if within.contains(x) && within.contains(y) {
                    counts[bin(*x) * bins + bin(*y)] += 1;
                }
            }
            Ok(())
        })
        .with("time_delayed_embedding", |call| {
            let series = call.slice::<f32>(0)?;
            let (n, dim, tau) = (count(call, 2)?, count(call, 3)?, count(call, 4)?);
            let rows = n - (dim - 1) * tau; // the shape of the result: at least 0
            each(call, 1, rows * dim, |i| series[i / dim + i % dim * tau])
        })
        .with("conditional_entropy", |call| {
            let (joint, marginal) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            let (n1, n2) = (count(call, 3)?, count(call, 4)?);
            let term = |i: usize| -relative_entropy_term(joint[i], marginal[i % n2]);
            put_sum(call, 2, (0..n1 * n2).map(term))
        })
}

fn qubits(functions: HostFunctions) -> HostFunctions {
    functions
        .with("hadamard_gate", |call| {
            let (qubit, dim) = (count(call, 2)?, count(call, 3)?);
            for part in [call.slice_mut::<f32>(0)?, call.slice_mut::<f32>(1)?] {
                for (low, high) in pairs(qubit, dim) {
                    let (a, b) = (part[low], part[high]);
                    part[low] = std::f32::consts::FRAC_1_SQRT_2 * (a + b);
                    part[high] = std::f32::consts::FRAC_1_SQRT_2 * (a - b);
                }
            }
            Ok(())
        })
        .with("pauli_x_gate", |call| {
            let (qubit, dim) = (count(call, 2)?, count(call, 3)?);
            for part in [call.slice_mut::<f32>(0)?, call.slice_mut::<f32>(1)?] {
                pairs(qubit, dim).for_each(|(low, high)| part.swap(low, high));
            }
            Ok(())
        })
        .with("phase_gate", |call| {
            let (qubit, dim) = (count(call, 2)?, count(call, 4)?);
            let (s, c) = call.value::<f32>(3)?.sin_cos();
            let (re, im) = (call.slice_mut::<f32>(0)?, call.slice_mut::<f32>(1)?);
            for (_, high) in pairs(qubit, dim) {
                let (x, y) = (re[high], im[high]);
                re[high] = c * x - s * y;
                im[high] = s * x + c * y;
            }
            Ok(())
        })
        .with("cnot_gate", |call| {
            let (control, target, dim) = (count(call, 2)?, count(call, 3)?, count(call, 4)?);
            for part in [call.slice_mut::<f32>(0)?, call.slice_mut::<f32>(1)?] {
                pairs(target, dim)
                    .filter(|(low, _)| control != target && low >> control & 1 == 1)
                    .for_each(|(low, high)| part.swap(low, high));
            }
            Ok(())
        })
        .with("quantum_measurement", |call| {
            let (re, im) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            each(call, 2, count(call, 3)?, |i| re[i] * re[i] + im[i] * im[i])
        })
}

fn gemv(call: &HostCall<'_>) -> Result<()> {
    let (a, x) = (call.slice::<f64>(1)?, call.slice::<f64>(2)?);
    let (m, n) = (count(call, 3)?, count(call, 4)?);
    let (alpha, beta) = (call.value::<f64>(5)?, call.value::<f64>(6)?);
    let is_transposed = call.value::<i32>(7)? == 1;
    let (rows, cols) = if is_transposed { (n, m) } else { (m, n) };
    let at = |i: usize, j: usize| {
        if is_transposed {
            a[j * n + i]
        } else {
            a[i * n + j]
        }
    };
    each_f64(call, 0, rows, |i, y| {
        let sum: f64 = (0..cols).map(|j| at(i, j) * x[j]).sum();
        alpha * sum + beta * y
    })
}

fn hierarchical_project(call: &HostCall<'_>) -> Result<()> {
    let (weights, above) = (call.slice::<f64>(1)?, call.slice::<f64>(2)?);
    let (m, n) = (count(call, 3)?, count(call, 4)?);
    each_f64(call, 0, m, |i, _| {
        (0..n).map(|j| weights[i * n + j] * above[j]).sum()
    })
}
