// Reductions and row operations of the catalogue, for host and devices. All sums are f32, in a
// fixed order.
#pragma once

#include "kernels/shared/point_ops.h"

namespace wcuda::kernels {
namespace reduce {

struct Add {
  WCUDA_HD static float start() { return 0.0f; }
  WCUDA_HD static float join(float a, float b) { return a + b; }
};
struct Multiply {
  WCUDA_HD static float start() { return 1.0f; }
  WCUDA_HD static float join(float a, float b) { return a * b; }
};
// Propagates NaN.
struct Greatest {
  WCUDA_HD static float start() { return -INFINITY; }
  WCUDA_HD static float join(float a, float b) { return a >= b || a != a ? a : b; }
};
struct Least {
  WCUDA_HD static float start() { return INFINITY; }
  WCUDA_HD static float join(float a, float b) { return a <= b || a != a ? a : b; }
};

// The term of element i: the element, a product of two, or -p ln p (0 for p <= 0).
struct Element {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    return load<T>(args.in[0], i);
  }
};
struct ProductOfTwo {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    return load<T>(args.in[0], i) * load<T>(args.in[1], i);
  }
};
struct EntropyOfElement {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const float p = load<T>(args.in[0], i);
    return p > 0.0f ? -p * logf(p) : 0.0f;
  }
};

#define WCUDA_REDUCE(name, element, joiner) \
  struct name {                             \
    using Each = element;                   \
    using Join = joiner;                    \
  };
WCUDA_REDUCE(Sum, Element, Add)
WCUDA_REDUCE(Max, Element, Greatest)
WCUDA_REDUCE(Min, Element, Least)
WCUDA_REDUCE(Product, Element, Multiply)
WCUDA_REDUCE(Dot, ProductOfTwo, Add)
WCUDA_REDUCE(Entropy, EntropyOfElement, Add)
#undef WCUDA_REDUCE

}  // namespace reduce

// A row operation on args (dims rows, width; factor eps). `team` is the set of threads that work on
// a row. Its `first` and `step` select the elements of one member. All members call its template
// join(value), which has a barrier and returns the joined value to all.
namespace row {

// y = exp(x - max) / sum
struct Softmax {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], from = row * width;
    float most = -INFINITY;
    for (int64_t i = team.first; i < width; i += team.step)
      most = reduce::Greatest::join(most, load<T>(args.in[0], from + i));
    most = team.template join<reduce::Greatest>(most);
    float sum = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step)
      sum += expf(load<T>(args.in[0], from + i) - most);
    sum = team.template join<reduce::Add>(sum);
    for (int64_t i = team.first; i < width; i += team.step)
      store<T>(args.out[0], from + i, expf(load<T>(args.in[0], from + i) - most) / sum);
  }
};

// y = x / sum(x)
struct Normalize {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], from = row * width;
    float sum = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step) sum += load<T>(args.in[0], from + i);
    sum = team.template join<reduce::Add>(sum);
    for (int64_t i = team.first; i < width; i += team.step)
      store<T>(args.out[0], from + i, load<T>(args.in[0], from + i) / sum);
  }
};

// y = (x - mean) / sqrt(variance + eps) * gamma + beta
struct LayerNorm {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], from = row * width;
    float sum = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step) sum += load<T>(args.in[0], from + i);
    const float mean = team.template join<reduce::Add>(sum) / static_cast<float>(width);
    float squares = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step) {
      const float away = load<T>(args.in[0], from + i) - mean;
      squares += away * away;
    }
    const float variance = team.template join<reduce::Add>(squares) / static_cast<float>(width);
    const float scale = 1.0f / sqrtf(variance + args.factor[0]);
    for (int64_t i = team.first; i < width; i += team.step)
      store<T>(args.out[0], from + i,
               (load<T>(args.in[0], from + i) - mean) * scale * load<T>(args.in[1], i) +
                   load<T>(args.in[2], i));
  }
};

// y = x / sqrt(mean(x^2) + eps) * gamma
struct RmsNorm {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], from = row * width;
    float squares = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step) {
      const float x = load<T>(args.in[0], from + i);
      squares += x * x;
    }
    const float mean = team.template join<reduce::Add>(squares) / static_cast<float>(width);
    const float scale = 1.0f / sqrtf(mean + args.factor[0]);
    for (int64_t i = team.first; i < width; i += team.step)
      store<T>(args.out[0], from + i,
               load<T>(args.in[0], from + i) * scale * load<T>(args.in[1], i));
  }
};

// out[0] = x + residual, out[1] = rms_norm(out[0]) with in[2] as gamma; the norm sees the sum as
// f32.
struct AddNorm {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], from = row * width;
    const auto sum_at = [&](int64_t i) {
      return load<T>(args.in[0], from + i) + load<T>(args.in[1], from + i);
    };
    float squares = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step) squares += sum_at(i) * sum_at(i);
    const float mean = team.template join<reduce::Add>(squares) / static_cast<float>(width);
    const float scale = 1.0f / sqrtf(mean + args.factor[0]);
    for (int64_t i = team.first; i < width; i += team.step) {
      const float sum = sum_at(i);
      store<T>(args.out[0], from + i, sum);
      store<T>(args.out[1], from + i, sum * scale * load<T>(args.in[2], i));
    }
  }
};

// out[row] = a . b / (|a| |b|); 0 where either is zero.
struct Cosine {
  template <class T, class Team>
  WCUDA_HD static void run(const CatalogueArgs& args, int64_t row, const Team& team) {
    const int64_t width = args.dim[1], from = row * width;
    float dot = 0.0f, aa = 0.0f, bb = 0.0f;
    for (int64_t i = team.first; i < width; i += team.step) {
      const float a = load<T>(args.in[0], from + i), b = load<T>(args.in[1], from + i);
      dot += a * b;
      aa += a * a;
      bb += b * b;
    }
    dot = team.template join<reduce::Add>(dot);
    aa = team.template join<reduce::Add>(aa);
    bb = team.template join<reduce::Add>(bb);
    const float norms = sqrtf(aa) * sqrtf(bb);
    if (team.first == 0) store<T>(args.out[0], row, norms > 0.0f ? dot / norms : 0.0f);
  }
};

}  // namespace row
}  // namespace wcuda::kernels
