// linear_vector: checks arguments, groups matrices by type, and selects the kernels of the types.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/linear_vector_instances.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

#define WCUDA_DECLARE(type_a, type_b) extern WCUDA_LINEAR_VECTOR(type_a, type_b);
WCUDA_LINEAR_VECTOR_TYPES(WCUDA_DECLARE)
#undef WCUDA_DECLARE

namespace {

using VectorFunction = cudaError_t (*)(const VectorParams&, const VectorTuning&, const Launch&);

struct VectorEntry {
  TensorType type_a, type_b;
  VectorFunction function;
};

#define WCUDA_ENTRY(type_a, type_b) {type_a, type_b, launch_linear_vector<type_a, type_b>},
constexpr VectorEntry kEntries[] = {WCUDA_LINEAR_VECTOR_TYPES(WCUDA_ENTRY)};
#undef WCUDA_ENTRY

VectorFunction find_function(uint32_t type_a, uint32_t type_b) {
  for (const VectorEntry& entry : kEntries)
    if (entry.type_a == type_a && entry.type_b == type_b) return entry.function;
  return nullptr;
}

bool is_float(uint32_t type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

bool is_valid(const LinearArgs& args) {
  if (args.tokens == 0 || args.tokens > kLinearVectorTokensMax || args.x == nullptr ||
      args.matrix_count == 0 || args.matrix_count > kLinearMatricesMax)
    return false;
  if (is_gate(args.epilogue) &&
      (args.matrix_count != 2 || args.matrices[0].rows != args.matrices[1].rows))
    return false;
  for (uint32_t i = 0; i < args.matrix_count; ++i) {
    const Matrix& matrix = args.matrices[i];
    if (matrix.packed_tiles == nullptr || matrix.rows == 0 || matrix.cols == 0 ||
        matrix.cols != args.matrices[0].cols || matrix.cols % (is_float(matrix.type) ? 4 : 32) != 0)
      return false;
    if (args.outputs[i] == nullptr && !(is_gate(args.epilogue) && i == 1)) return false;
    if (find_function(matrix.type, matrix.type) == nullptr) return false;
  }
  return true;
}

// Launches one kernel for matrices order[0 … count - 1], of one type up to `split`, then of
// another.
cudaError_t run(const LinearArgs& args, const uint32_t* order, uint32_t count, uint32_t split,
                const VectorTuning& tuning, const Launch& launch) {
  VectorParams params = {};
  params.x = args.x;
  params.x_rows = args.x_rows;
  params.norm = args.norm;
  params.epsilon = args.epsilon;
  params.tokens = args.tokens;
  params.cols = args.matrices[0].cols;
  params.epilogue = args.epilogue;
  for (uint32_t i = 0; i < count; ++i) {
    const Matrix& matrix = args.matrices[order[i]];
    const uint32_t m_tiles = (matrix.rows + quant::kMTileRows - 1) / quant::kMTileRows;
    params.matrices[i] = {matrix.packed_tiles, args.biases[order[i]], args.outputs[order[i]],
                          matrix.rows, m_tiles};
    params.m_tiles[i < split ? 0 : 1] += m_tiles;
  }
  const uint32_t type = args.matrices[order[0]].type;
  const uint32_t other = split < count ? args.matrices[order[split]].type : type;
  return find_function(type, other)(params, tuning, launch);
}

// Computes out = act(gate) * up for gate and up matrices that no kernel processes together; both
// results (tokens, rows) are in scratch.
__global__ void gate_kernel(const float* gate, const float* up, float* out, uint32_t count,
                            Epilogue epilogue) {
  dependent_trigger();
  dependent_wait();
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    out[i] = vector::gate(epilogue, gate[i]) * up[i];
}

bool has_mixed_gate(const LinearArgs& args) {
  return is_gate(args.epilogue) && args.matrices[0].type != args.matrices[1].type;
}

uint64_t gate_bytes(const LinearArgs& args) {
  const uint64_t bytes = uint64_t{args.tokens} * args.matrices[0].rows * sizeof(float);
  return (bytes + 15) / 16 * 16;
}

cudaError_t run_mixed_gate(const LinearArgs& args, const VectorTuning& tuning,
                           const Launch& launch) {
  const uint64_t bytes = gate_bytes(args);
  if (launch.scratch == nullptr || launch.scratch_bytes < 2 * bytes) return cudaErrorInvalidValue;
  // The results are at the end of the scratch, because its beginning must stay zero between calls.
  auto* gate = static_cast<uint8_t*>(launch.scratch) + (launch.scratch_bytes - 2 * bytes) / 16 * 16;
  LinearArgs matrices = args;
  matrices.epilogue = Epilogue::kStore;
  matrices.outputs[0] = reinterpret_cast<float*>(gate);
  matrices.outputs[1] = reinterpret_cast<float*>(gate + bytes);
  Launch front = launch;
  front.scratch_bytes -= 2 * bytes;
  const cudaError_t error = linear_vector(matrices, front, tuning);
  if (error != cudaSuccess) return error;
  const uint32_t count = args.tokens * args.matrices[0].rows;
  return launch_kernel(launch, dim3((count + 255) / 256), dim3(256), 0, 0, gate_kernel,
                       static_cast<const float*>(matrices.outputs[0]),
                       static_cast<const float*>(matrices.outputs[1]), args.outputs[0], count,
                       args.epilogue);
}

}  // namespace

bool has_linear_vector(uint32_t type) { return find_function(type, type) != nullptr; }

uint64_t linear_vector_scratch_bytes(const LinearArgs& args, const Launch& launch) {
  uint64_t bytes = has_mixed_gate(args) ? 2 * gate_bytes(args) + 16 : 0;
  if (launch.compute_capability >= 90) return bytes;
  // Partial sums of up to 8 K-splits, padded to M-tiles, and a counter per cluster.
  uint64_t m_tiles = 0;
  for (uint32_t i = 0; i < args.matrix_count; ++i)
    m_tiles += (args.matrices[i].rows + quant::kMTileRows - 1) / quant::kMTileRows;
  const uint64_t clusters = m_tiles + static_cast<uint64_t>(launch.sm_count) * 2;
  const uint64_t accumulators = (2 * m_tiles + 2 * clusters) * 16 + clusters;
  return bytes + clusters * 4 + accumulators * 8 * 8 * sizeof(float) + 32;
}

cudaError_t linear_vector(const LinearArgs& args, const Launch& launch,
                          const VectorTuning& tuning) {
  if (!is_valid(args)) return cudaErrorInvalidValue;
  if (has_mixed_gate(args)) return run_mixed_gate(args, tuning, launch);
  uint32_t order[kLinearMatricesMax];
  uint32_t is_done = 0;  // one bit per matrix
  Launch next = launch;
  while (is_done + 1 != 1u << args.matrix_count) {
    // The matrices of one type, then those of a second type that the same kernel supports.
    uint32_t count = 0, split = 0, other = ~0u;
    const auto take = [&](uint32_t type) {
      for (uint32_t i = 0; i < args.matrix_count; ++i)
        if ((is_done >> i & 1) == 0 && args.matrices[i].type == type) {
          order[count++] = i;
          is_done |= 1u << i;
        }
    };
    uint32_t type = ~0u;
    for (uint32_t i = 0; i < args.matrix_count; ++i) {
      if (is_done >> i & 1) continue;
      const uint32_t candidate = args.matrices[i].type;
      if (type == ~0u) type = candidate;
      if (candidate == type) continue;
      if (find_function(type, candidate) != nullptr) other = candidate;
      if (find_function(candidate, type) != nullptr) {
        other = type;
        type = candidate;
      }
      if (other != ~0u) break;
    }
    take(type);
    split = count;
    if (other != ~0u) take(other);
    const cudaError_t error = run(args, order, count, split, tuning, next);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t linear_vector(const LinearArgs& args, const Launch& launch) {
  return linear_vector(args, launch, VectorTuning());
}

}  // namespace wcuda::kernels
