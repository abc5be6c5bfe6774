// Stores results of attention as the f16 operand of the output projection. Included only by .cu
// files.
//
// Keys and values in f16 bound the results by 65504, up to rounding, so the scale is the same for
// all tokens. Halved results cannot overflow, and lose no more to underflow than the values did.
#pragma once

#include "kernels/attention/attention_tile.cuh"
#include "kernels/shared/input_order.h"

namespace wcuda::kernels {

constexpr float kOperandFactor = 0.5f;  // of the stored results

__device__ __forceinline__ void store_operand_scale(const HalfOperand& out, uint32_t token) {
  out.scales[token] = 1.0f / kOperandFactor;
}

// One store of 16 bytes. The compiler makes four of an assignment here.
__device__ __forceinline__ void store_piece(uint32_t* piece, const uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(piece), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// The inputs of one token of an operand.
struct OperandRow {
  uint32_t* words;       // of piece 0, if it were not exchanged
  uint32_t panel_words;  // from one panel to the next
  uint32_t exchange;     // of the pieces of a panel
  InputOrder order;

  __device__ OperandRow(const HalfOperand& out, uint32_t token)
      : panel_words(out.tile_tokens * 32), exchange(token % 8), order(out.order) {
    const uint64_t panel = uint64_t{out.tile_of(token)} * (out.depth / 64);
    words = reinterpret_cast<uint32_t*>(out.h) + panel * panel_words +
            (token & (out.tile_tokens - 1)) * 32;
  }
  __device__ __forceinline__ uint32_t* piece(uint32_t index) const {
    return words + uint64_t{index / 8} * panel_words + (index % 8 ^ exchange) * 4;
  }
  // Returns whether a quad's lanes have whole pieces of a group after at most one exchange.
  __device__ bool has_whole_pieces() const {
    return order == InputOrder::kContiguous8 || order == InputOrder::kCross;
  }

  // Clears the inputs past the heads, from `first` (a multiple of 8) to `depth`. Thread `thread` of
  // `threads` takes its share.
  __device__ __forceinline__ void clear_rest(uint32_t first, uint32_t depth, uint32_t thread,
                                             uint32_t threads) const {
    const uint32_t zeros[4] = {};
#pragma unroll 1
    for (uint32_t i = first / 8 + thread; i < depth / 8; i += threads) store_piece(piece(i), zeros);
  }

  // Stores four consecutive inputs; `input` is the first, a multiple of 4.
  __device__ __forceinline__ void store_quarter(uint32_t input, const float4& values) const {
    const bool is_cross = order == InputOrder::kCross;
    const QuarterPlace place = place_of_quarter(order, input / 4 % 8);
    const uint32_t first = input / 32 * 4 + place.piece;
    piece(first)[place.word] = pack_halves(values.x, is_cross ? values.z : values.y);
    piece(first + 1)[place.word] = pack_halves(is_cross ? values.y : values.z, values.w);
  }

  // Stores `count` of kGroups groups of 32 inputs. Of each group lane t of a quad has 8w + 2t and
  // 8w + 2t + 1 in word w, as the accumulators of an MMA do. `input` is the first of all. All lanes
  // of the warp call it; `is_stored` is the same for a quad.
  template <int kGroups>
  __device__ __forceinline__ void store_groups(uint32_t input, uint32_t count,
                                               uint32_t (&words)[kGroups][4], uint32_t lane,
                                               bool is_stored) const {
    const uint32_t t = lane % 4;
    if (order == InputOrder::kCross) {
      // Of each four inputs even lanes get 0 and 2, odd ones 1 and 3.
      const bool is_odd = t % 2 == 1;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (uint32_t w = 0; w < 4; w += 2) {
          uint32_t &low = words[group][w], &high = words[group][w + 1];
          const uint32_t sent = __byte_perm(low, high, is_odd ? 0x5410 : 0x7632);
          const uint32_t got = __shfl_xor_sync(~0u, sent, 1);
          low = __byte_perm(low, got, is_odd ? 0x3254 : 0x5410);
          high = __byte_perm(high, got, is_odd ? 0x3276 : 0x7610);
        }
    }
    if (!is_stored) return;
    if (has_whole_pieces()) {
#pragma unroll
      for (uint32_t group = 0; group < kGroups; ++group)
        if (group < count) store_piece(piece(input / 8 + group * 4 + t), words[group]);
      return;
    }
#pragma unroll
    for (uint32_t group = 0; group < kGroups; ++group)
#pragma unroll
      for (uint32_t w = 0; w < 4; ++w) {
        const QuarterPlace place = place_of_quarter(order, 2 * w + t / 2);
        if (group < count)
          piece(input / 8 + group * 4 + place.piece + t % 2)[place.word] = words[group][w];
      }
  }

  // Stores a group of 32 inputs of which lane 4g + t has 8w + g in half w % 2 of words[w / 2], for
  // the head that lanes of the same t share. Otherwise as store_groups; `is_stored` is the same for
  // these lanes.
  __device__ __forceinline__ void store_columns(uint32_t input, const uint32_t (&words)[2],
                                                uint32_t lane, bool is_stored) const {
    const bool is_cross = order == InputOrder::kCross;
    const uint32_t pair = is_cross ? 8 : 4;  // the other lane of a word
    const bool is_upper = (lane & pair) != 0;
    // The lower lane gets the words of w = 0 and 1, the upper one those of 2 and 3.
    const uint32_t got = __shfl_xor_sync(~0u, words[is_upper ? 0 : 1], pair);
    const uint32_t low = is_upper ? got : words[0], high = is_upper ? words[1] : got;
    if (!is_stored) return;
    const uint2 both = {__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632)};
    const uint32_t g = lane / 4, within = is_cross ? g % 2 : g % 4 / 2, w = is_upper ? 2 : 0;
    if (has_whole_pieces()) {
      *reinterpret_cast<uint2*>(piece(input / 8 + g / 4 * 2 + within) + w) = both;
      return;
    }
    const QuarterPlace first = place_of_quarter(order, 2 * w + g / 4);
    const QuarterPlace second = place_of_quarter(order, 2 * w + 2 + g / 4);
    piece(input / 8 + first.piece + within)[first.word] = both.x;
    piece(input / 8 + second.piece + within)[second.word] = both.y;
  }
};

}  // namespace wcuda::kernels
