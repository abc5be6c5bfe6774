// Launch heuristics of linear_vector over the rows of linear_table.h.
#include "kernels/linear/vector_plan.h"

#include <algorithm>

#include "kernels/linear/linear_table.h"
#include "kernels/shared/rounding.h"
#include "kernels/shared/tile_sizes.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kKSplitsMax = 8;
constexpr uint32_t kRingBytes = 116 * 1024;  // of all warps, if a CTA has the SM alone
constexpr uint32_t kAccumulatorBytes =
    24 * 1024;  // per set of two; a single set may have twice as much

const VectorCosts& costs_of(const VectorDevice& device, uint32_t tokens) {
  return find_costs(kVectorCosts, device.compute_capability, tokens);
}

uint32_t k_tiles_of(const VectorParams& params, const VectorEngine& engine) {
  return divide_up(params.cols, engine.stage_inputs);
}
uint32_t x_bytes(const VectorParams& params, const VectorEngine& engine, uint32_t k_splits) {
  const uint32_t k_tiles = divide_up(k_tiles_of(params, engine), k_splits);
  return round_up(k_tiles * (engine.x_codes_bytes + engine.x_scales_bytes), 128);
}

// Returns the number of clusters, out of `clusters`, for the first problem. It minimises the bytes
// that the busiest cluster reads; ties are broken by the bytes of the problems. (Query, key and
// value of 8B Q4_K_M: 4 and 2 M-tiles rather than 4 and 3.)
uint32_t partition_clusters(const uint32_t (&items)[2], const VectorProblem (&problems)[2],
                            uint32_t clusters) {
  const uint64_t bytes[2] = {uint64_t{items[0]} * problems[0].m_tile_bytes,
                             uint64_t{items[1]} * problems[1].m_tile_bytes};
  uint64_t least = ~uint64_t{0}, least_rest = ~uint64_t{0};
  uint32_t best = 1;
  for (uint32_t first = 1; first < clusters; ++first) {
    const uint32_t second = clusters - first;
    const uint64_t most =
        std::max(uint64_t{divide_up(items[0], first)} * problems[0].m_tile_bytes,
                 uint64_t{divide_up(items[1], second)} * problems[1].m_tile_bytes);
    const uint64_t rest = std::max(bytes[0] / first, bytes[1] / second);
    if (most > least || (most == least && rest >= least_rest)) continue;
    least = most;
    least_rest = rest;
    best = first;
  }
  return best;
}

// Divides the clusters among the problems, and the items of each among its clusters.
void divide_items(VectorParams* params, const uint32_t (&items)[2], uint32_t width,
                  uint32_t clusters) {
  uint32_t counts[2] = {std::min(clusters, items[0]), 0};
  if (items[1] != 0) {
    const uint32_t first = partition_clusters(items, params->problems, clusters);
    counts[0] = std::min(first, items[0]);
    counts[1] = std::min(clusters > first ? clusters - first : 1, items[1]);
  }
  params->m_tiles_max = 0;
  for (int i = 0; i < 2; ++i) {
    params->problems[i].clusters = counts[i];
    if (counts[i] == 0) continue;
    params->problems[i].items = partition_evenly(items[i], counts[i]);
    params->m_tiles_max = std::max(params->m_tiles_max, divide_up(items[i], counts[i]) * width);
  }
}

// Chooses K-warps and M-warps that minimise the work of the busiest warp.
void arrange_warps(VectorParams* params, uint32_t warps, const VectorCosts& costs,
                   uint32_t m_warps) {
  const uint32_t k_tiles = params->k_splits.base, m_tiles = params->m_tiles_max;
  uint32_t best = ~0u;
  for (uint32_t count = 1; count <= warps; ++count) {
    if (m_warps != 0 ? count != m_warps : count > costs.m_warps_max) continue;
    uint32_t k_warps = std::min(warps / count, k_tiles);
    k_warps = divide_up(k_tiles, divide_up(k_tiles, k_warps));  // not more than shorten the work
    const uint32_t own_m_tiles = divide_up(m_tiles, count);
    const uint32_t work = divide_up(k_tiles, k_warps) * own_m_tiles * kKTileCost +
                          own_m_tiles * costs.m_tile_end + (count != 1 ? costs.m_warps : 0) +
                          k_tiles * costs.tokens * costs.x_token / (k_warps * count);
    // Among equals, the most K-warps: x is then staged with fewer barriers.
    if (work >= best) continue;
    best = work;
    params->k_warps = k_warps;
    params->m_warp_count = count;
  }
  params->m_warp_of = 0;
  for (uint64_t w = 0; w < params->k_warps * params->m_warp_count; ++w)
    params->m_warp_of |= w / params->k_warps << (4 * w);
  for (uint32_t i = 0; i < 2; ++i)
    params->k_warp_tiles[i] = partition_evenly(k_tiles + i, params->k_warps);
}

struct Stages {
  uint32_t count;
  uint32_t shared_bytes_min;  // the least that the CTA requests
};

// `other_bytes` is a CTA's shared memory without rings, `stage_bytes` that of a stage of all warps.
Stages choose_stages(const VectorParams& params, const VectorEngine& engine,
                     const VectorDevice& device, const VectorTuning& tuning, uint32_t k_tiles,
                     uint32_t other_bytes, uint32_t stage_bytes) {
  if (!device.has_clusters()) return {kVectorCopyStages, 0};
  const SharedLimits limits = shared_limits(engine, device);
  const uint32_t uses = divide_up(divide_up(k_tiles, params.cluster_size), params.k_warps) *
                        divide_up(params.m_tiles_max, params.m_warp_count);
  uint32_t most = std::min(uses, kVectorStagesMax);
  if (tuning.stages != 0) most = std::min(most, tuning.stages);
  const auto fitting = [&](uint32_t bytes) {
    return bytes < other_bytes ? 0 : (bytes - other_bytes) / stage_bytes;
  };
  const bool is_add = params.epilogue == Epilogue::kAdd;
  const uint32_t limit = is_add ? limits.of_add : limits.of_other;
  const uint32_t together = fitting(limit);
  const uint64_t bytes = uint64_t{params.m_tiles[0]} * params.problems[0].m_tile_bytes +
                         uint64_t{params.m_tiles[1]} * params.problems[1].m_tile_bytes;
  const bool is_large = engine.tokens == 1 && params.cols >= kLargeInputs && bytes >= kLargeBytes;
  const bool is_alone = tuning.residency == 1 || (tuning.residency == 0 && is_large);
  const uint32_t least = most < 2 ? most : tuning.residency == 2 ? 1u : 2u;
  // With 1 and 2 tokens, two kernels run on one SM. With 4 and 8, x needs too much memory for that.
  if (engine.tokens < 4 && !is_alone && together >= least)
    return {std::min(most, together), is_add ? 0 : limit};
  uint32_t stages = std::min(most, fitting(limits.most));
  if (tuning.stages == 0) stages = std::min(stages, kRingBytes / stage_bytes);
  return {std::max(stages, 1u), limits.alone};
}

// Lays out the shared memory of a CTA and returns its bytes: x, the rings, their barriers,
// accumulators, squares, scratch, totals.
uint32_t lay_out(VectorParams* params, const VectorEngine& engine, const VectorDevice& device,
                 const VectorTuning& tuning, uint32_t width) {
  const uint32_t tokens = engine.tokens, k_splits = params->cluster_size;
  const uint32_t k_tiles = k_tiles_of(*params, engine);
  const uint32_t warps = params->k_warps * params->m_warp_count;
  // An odd number of float4s, so that the lanes of a store access different banks.
  params->accumulator_stride = round_up(params->k_warps, 4);
  if (divide_up(params->k_warps, 4) % 2 == 0) params->accumulator_stride += 4;
  const uint32_t m_tile_bytes = params->accumulator_stride * quant::kMTileRows * tokens * 4;
  const uint32_t round = params->m_warp_count * width;
  params->batch = kAccumulatorBytes / m_tile_bytes;
  params->batch -= params->batch % (params->batch >= round ? round : width);
  params->batch = std::max(params->batch, width);
  const bool has_one_batch = params->m_tiles_max * m_tile_bytes <= 2 * kAccumulatorBytes;
  if (has_one_batch) params->batch = params->m_tiles_max;
  const uint32_t accumulators_bytes = params->batch * m_tile_bytes * (has_one_batch ? 1 : 2);

  params->owned_max = divide_up(params->m_tiles_max / width, k_splits) * width;
  const uint32_t totals_bytes =
      device.has_clusters() && k_splits > 1
          ? k_splits * (params->owned_max * quant::kMTileRows + 1) * tokens * 4
          : 0;
  const uint32_t squares_bytes = kVectorWarpsMax * tokens * 4;
  const uint32_t scratch_bytes = warps * engine.scratch_bytes;
  const uint32_t barriers_bytes = warps * kVectorStagesMax * 8;
  const uint32_t stage_bytes = warps * engine.stage_bytes;
  params->x_scales_offset = divide_up(k_tiles, k_splits) * engine.x_codes_bytes;
  params->ring_offset = x_bytes(*params, engine, k_splits);
  const Stages stages = choose_stages(*params, engine, device, tuning, k_tiles,
                                      params->ring_offset + barriers_bytes + accumulators_bytes +
                                          squares_bytes + scratch_bytes + totals_bytes,
                                      stage_bytes);
  params->stages = stages.count;
  params->early_stages =
      std::min(tuning.early_stages != 0 ? tuning.early_stages : kEarlyStages, stages.count);
  params->barriers_offset = params->ring_offset + stages.count * stage_bytes;
  params->accumulators_offset = params->barriers_offset + barriers_bytes;
  params->squares_offset = params->accumulators_offset + accumulators_bytes;
  params->scratch_offset = params->squares_offset + squares_bytes;
  params->totals_offset = params->scratch_offset + scratch_bytes;
  return std::max(params->totals_offset + totals_bytes, stages.shared_bytes_min);
}

}  // namespace

SharedLimits shared_limits(const VectorEngine& engine, const VectorDevice& device) {
  const uint32_t both = (device.sm_shared_bytes - 2 * device.reserved_shared_bytes) / 512 * 512;
  const uint32_t of_other = both / 2 + 256;
  return {device.block_shared_bytes - engine.static_bytes, device.sm_shared_bytes / 2,
          of_other - engine.static_bytes, both - of_other - engine.static_bytes};
}

uint32_t choose_k_splits(const VectorParams& params, const VectorEngine& engine,
                         const VectorDevice& device, const VectorTuning& tuning) {
  uint32_t k_splits = std::max(tuning.cluster_size, 1u);
  if (tuning.cluster_size == 0) {
    // Doubles the K-splits until x leaves room for a ring.
    const uint32_t room = shared_limits(engine, device).most / 3;
    while (k_splits < kKSplitsMax && x_bytes(params, engine, k_splits) > room) k_splits *= 2;
    const VectorCosts& costs = costs_of(device, engine.tokens);
    if (k_splits == costs.split_from && params.cols >= costs.split_inputs &&
        params.m_tiles[0] + params.m_tiles[1] <= costs.m_tiles_of_sm * device.sm_count)
      k_splits *= 2;
  }
  while (k_splits > 1 && k_splits > k_tiles_of(params, engine)) k_splits /= 2;
  return k_splits;
}

VectorPlan plan_vector(VectorParams* params, const VectorEngine& engine, const VectorDevice& device,
                       const VectorTuning& tuning, uint32_t k_splits, uint32_t clusters_max) {
  const SharedLimits limits = shared_limits(engine, device);
  params->mean_factor = 1.0f / static_cast<float>(params->cols);
  params->matrix_begins[0] = 0;
  for (uint32_t i = 1; i < kLinearMatricesMax; ++i)
    params->matrix_begins[i] = params->matrices[i].m_tiles == 0
                                   ? ~0u
                                   : params->matrix_begins[i - 1] + params->matrices[i - 1].m_tiles;
  params->cluster_size = k_splits;
  params->k_splits = partition_evenly(k_tiles_of(*params, engine), k_splits);
  const uint32_t width = params->epilogue >= Epilogue::kSiluGate ? 2 : 1;
  const uint32_t items[2] = {params->m_tiles[0] / width, params->m_tiles[1] / width};
  // Limits the warps to as many as have room for their rings.
  uint32_t warps_max = kVectorWarpsMax;
  const uint32_t stages_min = device.has_clusters() ? 1 : kVectorCopyStages;
  while (warps_max * engine.stage_bytes * stages_min > limits.most * 2 / 3) warps_max /= 2;
  uint32_t clusters = device.sm_count < k_splits ? 1 : device.sm_count / k_splits;
  // Clusters of this size may not be able to use every SM.
  if (clusters_max != 0) clusters = std::min(clusters, clusters_max);

  VectorPlan plan;
  for (;; clusters *= 2) {
    divide_items(params, items, width, clusters);
    arrange_warps(params, warps_max, costs_of(device, engine.tokens), tuning.m_warps);
    plan.shared_bytes = lay_out(params, engine, device, tuning, width);
    // If the totals of so many M-tiles do not fit, the plan has more clusters than run at once.
    if (plan.shared_bytes <= limits.most || params->m_tiles_max <= width) break;
  }
  plan.clusters = params->problems[0].clusters + params->problems[1].clusters;
  plan.threads = params->k_warps * params->m_warp_count * 32;
  if (!device.has_clusters() && k_splits > 1)
    plan.partials_bytes =
        uint64_t{plan.clusters} * 4 *
        (1 + uint64_t{k_splits} * engine.tokens * (params->m_tiles_max * quant::kMTileRows + 1));
  return plan;
}

}  // namespace wcuda::kernels
