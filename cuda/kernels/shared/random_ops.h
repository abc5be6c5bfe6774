// Random draws of the catalogue. Draw i depends on (seed, offset + i) alone, so that one call for
// many draws equals several calls for fewer. Philox4x32-10, four draws per block: counter ((offset
// + i) / 4, 0), key seed, word (offset + i) % 4. The last two dims are seed and offset.
#pragma once

#include "kernels/shared/point_ops.h"
#undef WCUDA_HD  // the header below has one of its own
#include "kernels/shared/sampling_math.h"

namespace wcuda::kernels::draw {

WCUDA_HD uint32_t random_word(int64_t seed, int64_t index) {
  const auto block = static_cast<uint64_t>(index) / 4;
  const sampling::Philox words = sampling::philox(
      {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}},
      static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32));
  return words.word[index % 4];
}

// Multiples of 2^-24 in [0, 1).
WCUDA_HD float unit(int64_t seed, int64_t index) {
  return static_cast<float>(random_word(seed, index) >> 8) * 0x1p-24f;
}

// low + (high - low) u; dims n, seed, offset; factors low, high.
struct Uniform {
  template <class T>
  WCUDA_HD static void put(const CatalogueArgs& args, int64_t i) {
    const float low = args.factor[0], high = args.factor[1];
    store<T>(args.out[0], i, low + (high - low) * unit(args.dim[1], args.dim[2] + i));
  }
};

// mean + deviation z; a pair of z by Box and Muller: sqrt(-2 ln(1 - u)) times cosine and sine of 2
// pi v; dims n, seed, offset; factors mean, deviation.
struct Normal {
  template <class T>
  WCUDA_HD static void put(const CatalogueArgs& args, int64_t i) {
    const int64_t index = args.dim[2] + i, even = index & ~int64_t{1};
    const double radius = sqrt(-2.0 * log(1.0 - static_cast<double>(unit(args.dim[1], even))));
    const double angle = 6.283185307179586 * static_cast<double>(unit(args.dim[1], even + 1));
    const double z = radius * (index == even ? cos(angle) : sin(angle));
    store<T>(args.out[0], i, static_cast<float>(args.factor[0] + args.factor[1] * z));
  }
};

// Draws an index of each row with probability proportional to its value: the first index whose
// running sum exceeds u times the sum of the row; dims rows, width, seed, offset. Output is i32.
// Values are >= 0; a row of zeros yields its last index.
struct Categorical {
  template <class T>
  WCUDA_HD static void put(const CatalogueArgs& args, int64_t row) {
    const int64_t width = args.dim[1], from = row * width;
    float sum = 0.0f;
    for (int64_t i = 0; i < width; ++i) sum += load<T>(args.in[0], from + i);
    const float wanted = unit(args.dim[2], args.dim[3] + row) * sum;
    int64_t chosen = width - 1;
    float running = 0.0f;
    for (int64_t i = 0; i < width && chosen == width - 1; ++i) {
      running += load<T>(args.in[0], from + i);
      if (running > wanted) chosen = i;
    }
    static_cast<int32_t*>(args.out[0])[row] = static_cast<int32_t>(chosen);
  }
};

}  // namespace wcuda::kernels::draw
