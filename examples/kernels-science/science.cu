// Kernels of the sciences: active inference, neurons, oscillators, information, qubits. Each is a
// plain loop over its elements, one thread each, or a sum by one block in a fixed order, so that a
// device gives the same bits each time. Sizes are those of kernels.json, which checks them.

namespace {

constexpr int kThreads = 256;
constexpr float kTiny = 1e-10f;  // probabilities below are left out

// The sum over all threads of a block of kThreads, to every one of them.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T parts[kThreads];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  return parts[0];
}

// The sum of term(i) over n elements by one block, to *out.
template <class T, class Term>
__device__ void sum_of(int n, T* out, const Term& term) {
  T sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += term(i);
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = sum;
}

__device__ long long thread_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ float relative_entropy_term(float q, float p) {
  return q > kTiny && p > kTiny ? q * logf(q / p) : 0.0f;
}

// The two amplitudes that a gate on qubit `qubit` mixes, by the number of the pair.
struct Pair {
  long long low, high;
  __device__ Pair(long long index, int qubit) {
    const long long bit = 1ll << qubit;
    low = (index >> qubit << (qubit + 1)) | (index & (bit - 1));
    high = low | bit;
  }
};

}  // namespace

// ---- active inference ----

// out = sum of q ln(q / p)
extern "C" __global__ void kl_divergence(const float* q, const float* p, float* out, int n) {
  sum_of(n, out, [&](int i) { return relative_entropy_term(q[i], p[i]); });
}

extern "C" __global__ void elementwise_multiply(const float* a, const float* b, float* c, int n) {
  const long long i = thread_index();
  if (i < n) c[i] = a[i] * b[i];
}

// x /= sum of x
extern "C" __global__ void normalize(float* x, int n) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += x[i];
  sum = block_sum(sum);
  for (int i = threadIdx.x; i < n; i += kThreads) x[i] /= sum;
}

// out = kl_divergence(posterior, prior) - log_likelihood
extern "C" __global__ void free_energy(const float* posterior, const float* prior,
                                       float log_likelihood, float* out, int n) {
  sum_of(n, out, [&](int i) {
    const float term = relative_entropy_term(posterior[i], prior[i]);
    return i == 0 ? term - log_likelihood : term;
  });
}

// ---- neurons ----

// v = leak * previous + input; at the threshold a spike, and v is 0 again.
extern "C" __global__ void leaky_integrate_fire(float* v, const float* previous, const float* input,
                                                float leak, float threshold, unsigned char* spikes,
                                                int n) {
  const long long i = thread_index();
  if (i >= n) return;
  const float value = leak * previous[i] + input[i];
  const bool has_spike = value >= threshold;
  spikes[i] = has_spike;
  v[i] = has_spike ? 0.0f : value;
}

// state = (1 - leak) * previous + leak * tanh(input)
extern "C" __global__ void reservoir_update(float* state, const float* previous, const float* input,
                                            float leak, int n) {
  const long long i = thread_index();
  if (i < n) state[i] = (1.0f - leak) * previous[i] + leak * tanhf(input[i]);
}

// w (n_pre, n_post) grows where the spike before came first and shrinks where it came later, by the
// product of both activities; it stays in 0 to 1.
extern "C" __global__ void stdp_update(float* w, const float* pre, const float* post,
                                       const float* t_pre, const float* t_post, float rate,
                                       float tau_plus, float tau_minus, int n_pre, int n_post) {
  const long long col = thread_index(), row = blockIdx.y;
  if (col >= n_post || row >= n_pre) return;
  const float later = t_post[col] - t_pre[row];
  float change = 0.0f;
  if (later > 0.0f) change = expf(-later / tau_plus);
  if (later < 0.0f) change = -expf(later / tau_minus);
  const long long at = row * n_post + col;
  const float value = w[at] + rate * pre[row] * post[col] * change;
  w[at] = fminf(fmaxf(value, 0.0f), 1.0f);
}

// ---- statistical mechanics ----

// next = phase + dt (frequency + strength / n * sum over j of coupling (i, j) sin(phase j - phase
// i))
extern "C" __global__ void kuramoto_evolution(const float* phase, const float* frequency,
                                              const float* coupling, float* next, int n, float dt,
                                              float strength) {
  const long long i = thread_index();
  if (i >= n) return;
  float pull = 0.0f;
  for (int j = 0; j < n; ++j) pull += coupling[i * n + j] * sinf(phase[j] - phase[i]);
  next[i] = phase[i] + dt * (frequency[i] + strength / n * pull);
}

// out = sum of velocity^2 / temperature
extern "C" __global__ void entropy_production(const float* velocity, float* out, float temperature,
                                              int n) {
  sum_of(n, out, [&](int i) { return velocity[i] * velocity[i] / temperature; });
}

// re + i im = mean of exp(i phase)
extern "C" __global__ void order_parameter(const float* phase, float* re, float* im, int n) {
  sum_of(n, re, [&](int i) { return cosf(phase[i]) / n; });
  __syncthreads();
  sum_of(n, im, [&](int i) { return sinf(phase[i]) / n; });
}

// ---- information ----

// out = sum of p ln(p / (px py)), joint (bins, bins)
extern "C" __global__ void mutual_information(const float* joint, const float* px, const float* py,
                                              float* out, int bins) {
  sum_of(bins * bins, out, [&](int i) {
    const float p = joint[i], product = px[i / bins] * py[i % bins];
    return p > kTiny && product > kTiny ? p * logf(p / product) : 0.0f;
  });
}

// Adds the points within [low, high] of both axes to counts (bins, bins), rows by x; none where
// that is no range.
extern "C" __global__ void histogram_2d(const float* x, const float* y, int* counts, float low,
                                        float high, int n, int bins) {
  const long long i = thread_index();
  if (i >= n || !(low < high)) return;
  if (!(x[i] >= low && x[i] <= high && y[i] >= low && y[i] <= high)) return;
  const int row = min(static_cast<int>((x[i] - low) / (high - low) * bins), bins - 1);
  const int col = min(static_cast<int>((y[i] - low) / (high - low) * bins), bins - 1);
  if (row < 0 || col < 0) return;           // where low is high
  atomicAdd(&counts[row * bins + col], 1);  // of integers: the order changes nothing
}

// out (n - (dim - 1) tau, dim): series[row + col * tau]
extern "C" __global__ void time_delayed_embedding(const float* series, float* out, int n, int dim,
                                                  int tau) {
  const long long i = thread_index();
  const long long rows = n - (dim - 1ll) * tau;
  if (i < rows * dim) out[i] = series[i / dim + i % dim * tau];
}

// out = -sum of p(x, z) ln(p(x, z) / p(z)), joint (n1, n2), marginal (n2)
extern "C" __global__ void conditional_entropy(const float* joint, const float* marginal,
                                               float* out, int n1, int n2) {
  sum_of(n1 * n2, out, [&](int i) { return -relative_entropy_term(joint[i], marginal[i % n2]); });
}

// ---- qubits: amplitudes re + i im of dim states, one thread a pair of them ----

extern "C" __global__ void hadamard_gate(float* re, float* im, int qubit, int dim) {
  const Pair at(thread_index(), qubit);
  if (at.high >= dim) return;
  const float root = 0.70710678118654752f;
  const float low_re = re[at.low], low_im = im[at.low];
  re[at.low] = root * (low_re + re[at.high]);
  im[at.low] = root * (low_im + im[at.high]);
  re[at.high] = root * (low_re - re[at.high]);
  im[at.high] = root * (low_im - im[at.high]);
}

namespace {

__device__ void exchange(float* re, float* im, long long a, long long b) {
  const float a_re = re[a], a_im = im[a];
  re[a] = re[b];
  im[a] = im[b];
  re[b] = a_re;
  im[b] = a_im;
}

}  // namespace

extern "C" __global__ void pauli_x_gate(float* re, float* im, int qubit, int dim) {
  const Pair at(thread_index(), qubit);
  if (at.high < dim) exchange(re, im, at.low, at.high);
}

// Turns the states in which the qubit is 1 by theta.
extern "C" __global__ void phase_gate(float* re, float* im, int qubit, float theta, int dim) {
  const Pair at(thread_index(), qubit);
  if (at.high >= dim) return;
  const float c = cosf(theta), s = sinf(theta), x = re[at.high], y = im[at.high];
  re[at.high] = c * x - s * y;
  im[at.high] = s * x + c * y;
}

extern "C" __global__ void cnot_gate(float* re, float* im, int control, int target, int dim) {
  const Pair at(thread_index(), target);
  if (at.high < dim && control != target && (at.low >> control & 1) != 0)
    exchange(re, im, at.low, at.high);
}

extern "C" __global__ void quantum_measurement(const float* re, const float* im, float* probability,
                                               int dim) {
  const long long i = thread_index();
  if (i < dim) probability[i] = re[i] * re[i] + im[i] * im[i];
}

// ---- active inference in double precision ----

// y = alpha op(a) x + beta y, a (m, n); op is the transpose where `transpose` is 1.
extern "C" __global__ void gemv(double* y, const double* a, const double* x, int m, int n,
                                double alpha, double beta, int transpose) {
  const long long i = thread_index();
  if (i >= (transpose ? n : m)) return;
  double sum = 0.0;
  for (int j = 0; j < (transpose ? m : n); ++j)
    sum += (transpose ? a[static_cast<long long>(j) * n + i] : a[i * n + j]) * x[j];
  y[i] = alpha * sum + beta * y[i];
}

// error = precision (observed - predicted)
extern "C" __global__ void prediction_error(double* error, const double* observed,
                                            const double* predicted, const double* precision,
                                            int n) {
  const long long i = thread_index();
  if (i < n) error[i] = precision[i] * (observed[i] - predicted[i]);
}

// mean -= rate * gradient
extern "C" __global__ void belief_update(double* mean, const double* gradient, double rate, int n) {
  const long long i = thread_index();
  if (i < n) mean[i] -= rate * gradient[i];
}

extern "C" __global__ void precision_weight(double* weighted, const double* error,
                                            const double* precision, int n) {
  const long long i = thread_index();
  if (i < n) weighted[i] = precision[i] * error[i];
}

// Of diagonal normal distributions: out = sum of (vq / vp + (mq - mp)^2 / vp - 1 - ln(vq / vp)) /
// 2, variances at least 1e-10.
extern "C" __global__ void kl_gaussian(const double* mean_q, const double* variance_q,
                                       const double* mean_p, const double* variance_p, double* out,
                                       int n) {
  sum_of(n, out, [&](int i) {
    const double vq = fmax(variance_q[i], 1e-10), vp = fmax(variance_p[i], 1e-10);
    const double away = mean_q[i] - mean_p[i];
    return 0.5 * (vq / vp + away * away / vp - 1.0 - log(vq / vp));
  });
}

// out = -sum of (precision error^2 + ln(2 pi / precision)) / 2
extern "C" __global__ void accuracy(const double* error, const double* precision, double* out,
                                    int n) {
  sum_of(n, out, [&](int i) {
    return -0.5 * (precision[i] * error[i] * error[i] + log(6.283185307179586 / precision[i]));
  });
}

extern "C" __global__ void sum_reduction(const double* x, double* out, int n) {
  sum_of(n, out, [&](int i) { return x[i]; });
}

// y = a x + b y
extern "C" __global__ void axpby(double* y, const double* x, double a, double b, int n) {
  const long long i = thread_index();
  if (i < n) y[i] = a * x[i] + b * y[i];
}

// velocity = momentum * velocity - rate * gradient
extern "C" __global__ void velocity_update(double* velocity, const double* gradient,
                                           double momentum, double rate, int n) {
  const long long i = thread_index();
  if (i < n) velocity[i] = momentum * velocity[i] - rate * gradient[i];
}

// What the level above expects of the one below: below (m) = weights (m, n) above (n)
extern "C" __global__ void hierarchical_project(double* below, const double* weights,
                                                const double* above, int m, int n) {
  const long long i = thread_index();
  if (i >= m) return;
  double sum = 0.0;
  for (int j = 0; j < n; ++j) sum += weights[i * n + j] * above[j];
  below[i] = sum;
}
