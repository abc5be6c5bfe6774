// Row operations of transformers in the catalogue, for host and devices; see row_ops.h. A row is a
// query of a head, or the logits of a position.
#pragma once

#include "kernels/shared/row_ops.h"

namespace wcuda::kernels {

// Rows of an operation.
template <class Op>
struct RowCount {
  WCUDA_HD static int64_t of(const CatalogueArgs& args) {
    return args.dim[1] == 0 ? 0 : args.dim[0];
  }
};

namespace row {

// y = softmax(q k^T / sqrt(d / heads)) v by head, over the keys up to the query's place if causal.
// in: q, k, v (batch, seq, d); out: y (batch, seq, d), the softmax's (batch, heads, seq, seq) as
// f32, 0 past the last key; dims batch, seq, d, heads, causal. Any d that heads divide.
struct Attention {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t seq = args.dim[1], d = args.dim[2], heads = args.dim[3], width = d / heads;
    const int64_t query = row % seq, head = row / seq % heads, batch = row / (seq * heads);
    const int64_t keys = args.dim[4] != 0 ? query + 1 : seq;
    const int64_t first = batch * seq * d + head * width;  // of the head in position 0
    float* const weights = static_cast<float*>(args.out[1]) + row * seq;
    const float scale = width == 0 ? 0.0f : 1.0f / sqrtf(static_cast<float>(width));
    float most = -INFINITY;
    for (int64_t key = team.first; key < keys; key += team.step) {
      float score = 0.0f;
      for (int64_t i = 0; i < width; ++i)
        score +=
            load<T>(args.in[0], first + query * d + i) * load<T>(args.in[1], first + key * d + i);
      weights[key] = score * scale;
      most = reduce::Greatest::join(most, weights[key]);
    }
    most = team.template join<reduce::Greatest>(most);
    float sum = 0.0f;
    for (int64_t key = team.first; key < keys; key += team.step) {
      weights[key] = expf(weights[key] - most);
      sum += weights[key];
    }
    sum = team.template join<reduce::Add>(sum);
    for (int64_t key = team.first; key < seq; key += team.step)
      weights[key] = key < keys ? weights[key] / sum : 0.0f;
    team.template join<reduce::Add>(0.0f);  // a barrier: all weights of the row are written
    for (int64_t i = team.first; i < width; i += team.step) {
      float value = 0.0f;
      for (int64_t key = 0; key < keys; ++key)
        value += weights[key] * load<T>(args.in[2], first + key * d + i);
      store<T>(args.out[0], first + query * d + i, value);
    }
  }
};

// A key that orders (value, place) pairs: NaN first, then greater values, then lower places. Keys
// are distinct and below UINT64_MAX.
struct GreatestKey {
  WCUDA_HD static uint64_t join(uint64_t a, uint64_t b) { return a > b ? a : b; }
  WCUDA_HD static uint64_t key(float value, int64_t place) {
    const float plain = value + 0.0f;  // -0 is 0
    uint32_t bits = float_bits(plain);
    bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    if (value != value) bits = 0xff800001u;
    return uint64_t{bits} << 32 | (0xffffffffu - static_cast<uint32_t>(place));
  }
  WCUDA_HD static int64_t place(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }
};

// The k greatest logits of each row in order, equal ones by place: out[0] their i32 places, out[1]
// their softmax over the whole row; dims rows, width, k.
struct TopK {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], k = args.dim[2], from = row * width;
    uint64_t below = UINT64_MAX;
    float most = 0.0f, sum = 0.0f;
    for (int64_t rank = 0; rank < k; ++rank) {
      uint64_t best = 0;
      for (int64_t i = team.first; i < width; i += team.step) {
        const uint64_t key = GreatestKey::key(load<T>(args.in[0], from + i), i);
        if (key < below && key > best) best = key;
      }
      below = team.template join<GreatestKey>(best);
      const int64_t place = GreatestKey::place(below);
      const float value = load<T>(args.in[0], from + place);
      if (rank == 0) {
        most = value;
        for (int64_t i = team.first; i < width; i += team.step)
          sum += expf(load<T>(args.in[0], from + i) - most);
        sum = team.template join<reduce::Add>(sum);
      }
      if (team.first != 0) continue;
      static_cast<int32_t*>(args.out[0])[row * k + rank] = static_cast<int32_t>(place);
      store<T>(args.out[1], row * k + rank, expf(value - most) / sum);
    }
  }
};

}  // namespace row

template <>
struct RowCount<row::Attention> {
  WCUDA_HD static int64_t of(const CatalogueArgs& args) {
    return args.dim[0] * args.dim[1] * args.dim[3];
  }
};

}  // namespace wcuda::kernels
