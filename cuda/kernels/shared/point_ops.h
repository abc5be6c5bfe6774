// Operations of the catalogue that compute each output element by a formula, for host and devices.
// Images are (batch, channels, height, width), row-major; their dims are
// batch, channels, h, w, then kh, kw, stride, pad (convolution: filters before kh).
#pragma once

#include <cmath>

#include "kernels/shared/catalogue.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

struct Half {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

WCUDA_HD inline float to_float(float value) { return value; }
WCUDA_HD inline float to_float(Half value) { return half_to_float(value.bits); }
WCUDA_HD inline float to_float(Bf16 value) { return bf16_to_float(value.bits); }
template <class T>
WCUDA_HD inline T from_float(float value);
template <>
WCUDA_HD inline float from_float<float>(float value) {
  return value;
}
template <>
WCUDA_HD inline Half from_float<Half>(float value) {
  return Half{float_to_half(value)};
}
template <>
WCUDA_HD inline Bf16 from_float<Bf16>(float value) {
  return Bf16{float_to_bf16(value)};
}

template <class T>
WCUDA_HD inline float load(const void* data, int64_t index) {
  return to_float(static_cast<const T*>(data)[index]);
}
template <class T>
WCUDA_HD inline void store(void* data, int64_t index, float value) {
  static_cast<T*>(data)[index] = from_float<T>(value);
}

WCUDA_HD inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
WCUDA_HD inline float gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

namespace point {

#define WCUDA_POINT(name, formula)                                   \
  struct name {                                                      \
    template <class T>                                               \
    WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) { \
      const float x = load<T>(args.in[0], i);                        \
      return formula;                                                \
    }                                                                \
  };
// Formulas of an input x; a second input is load<T>(args.in[1], i).
#define WCUDA_SECOND load<T>(args.in[1], i)
WCUDA_POINT(VectorAdd, x + WCUDA_SECOND)
WCUDA_POINT(VectorSub, x - WCUDA_SECOND)
WCUDA_POINT(VectorMul, x* WCUDA_SECOND)
WCUDA_POINT(VectorDiv, x / WCUDA_SECOND)
WCUDA_POINT(VectorScale, x* args.factor[0])
WCUDA_POINT(Saxpy, args.factor[0] * x + load<T>(args.out[0], i))
WCUDA_POINT(Copy, x)
WCUDA_POINT(Relu, x > 0.0f ? x : (x == x ? 0.0f : x))
WCUDA_POINT(Sigmoid, sigmoid(x))
WCUDA_POINT(Tanh, tanhf(x))
WCUDA_POINT(Gelu, gelu(x))
WCUDA_POINT(GeluFast, x* sigmoid(1.702f * x))
WCUDA_POINT(Silu, x* sigmoid(x))
WCUDA_POINT(Swiglu, x* sigmoid(x) * WCUDA_SECOND)
WCUDA_POINT(Exp, expf(x))
// x (batch, features) + bias (features); dims batch, features.
WCUDA_POINT(BroadcastAdd, x + load<T>(args.in[1], i % args.dim[1]))
#undef WCUDA_SECOND
#undef WCUDA_POINT

struct Fill {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t) {
    return args.factor[0];
  }
};

template <class T>
WCUDA_HD inline float batch_norm(const CatalogueArgs& args, int64_t i, int64_t feature) {
  const float scale =
      load<T>(args.in[1], feature) / sqrtf(load<T>(args.in[4], feature) + args.factor[0]);
  return (load<T>(args.in[0], i) - load<T>(args.in[3], feature)) * scale +
         load<T>(args.in[2], feature);
}

// in: x, gamma, beta, mean, variance; dims batch, features; factor eps.
struct BatchNorm {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    return batch_norm<T>(args, i, i % args.dim[1]);
  }
};

// The same for images; dims batch, channels, area.
struct BatchNorm2d {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    return batch_norm<T>(args, i, i / args.dim[2] % args.dim[1]);
  }
};

// (rows, cols) to (cols, rows).
struct Transpose {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const int64_t rows = args.dim[0], cols = args.dim[1];
    return load<T>(args.in[0], i % rows * cols + i / rows);
  }
};

// A window that slides over an image.
struct Window {
  int64_t h, w, kh, kw, stride, pad, oh, ow;
  WCUDA_HD Window(const CatalogueArgs& args, int first)
      : h(args.dim[2]),
        w(args.dim[3]),
        kh(args.dim[first]),
        kw(args.dim[first + 1]),
        stride(args.dim[first + 2]),
        pad(args.dim[first + 3]),
        oh((h + 2 * pad - kh) / stride + 1),
        ow((w + 2 * pad - kw) / stride + 1) {}
  // Input row and column under element (y, x) of the window at output (row, col); -1: outside.
  WCUDA_HD int64_t place(int64_t row, int64_t col, int64_t y, int64_t x) const {
    const int64_t r = row * stride + y - pad, c = col * stride + x - pad;
    return r < 0 || r >= h || c < 0 || c >= w ? -1 : r * w + c;
  }
};

// in: x, weight (filters, channels, kh, kw), bias (filters); cross-correlation.
struct Conv2d {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const Window window(args, 5);
    const int64_t channels = args.dim[1], filters = args.dim[4];
    const int64_t col = i % window.ow, row = i / window.ow % window.oh;
    const int64_t plane = i / (window.ow * window.oh), filter = plane % filters,
                  image = plane / filters;
    float sum = 0.0f;
    for (int64_t channel = 0; channel < channels; ++channel) {
      const int64_t from = (image * channels + channel) * window.h * window.w;
      const int64_t weight = (filter * channels + channel) * window.kh * window.kw;
      for (int64_t y = 0; y < window.kh; ++y)
        for (int64_t x = 0; x < window.kw; ++x) {
          const int64_t place = window.place(row, col, y, x);
          if (place >= 0)
            sum +=
                load<T>(args.in[0], from + place) * load<T>(args.in[1], weight + y * window.kw + x);
        }
    }
    return sum + load<T>(args.in[2], filter);
  }
};

struct MaxPool2d {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const Window window(args, 4);
    const int64_t col = i % window.ow, row = i / window.ow % window.oh;
    const int64_t from = i / (window.ow * window.oh) * window.h * window.w;
    float most = -INFINITY;
    for (int64_t y = 0; y < window.kh; ++y)
      for (int64_t x = 0; x < window.kw; ++x) {
        const int64_t place = window.place(row, col, y, x);
        if (place < 0) continue;
        const float value = load<T>(args.in[0], from + place);
        if (!(value <= most)) most = value;  // a NaN stays
      }
    return most;
  }
};

// Padding counts as zeros.
struct AvgPool2d {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const Window window(args, 4);
    const int64_t col = i % window.ow, row = i / window.ow % window.oh;
    const int64_t from = i / (window.ow * window.oh) * window.h * window.w;
    float sum = 0.0f;
    for (int64_t y = 0; y < window.kh; ++y)
      for (int64_t x = 0; x < window.kw; ++x) {
        const int64_t place = window.place(row, col, y, x);
        if (place >= 0) sum += load<T>(args.in[0], from + place);
      }
    return sum / static_cast<float>(window.kh * window.kw);
  }
};

// (batch, channels, h, w) to (batch, channels * kh * kw, oh * ow).
struct Im2col {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const Window window(args, 4);
    const int64_t area = window.oh * window.ow, at = i % area, element = i / area;
    const int64_t x = element % window.kw, y = element / window.kw % window.kh;
    const int64_t plane = element / (window.kw * window.kh);
    const int64_t place = window.place(at / window.ow, at % window.ow, y, x);
    return place < 0 ? 0.0f : load<T>(args.in[0], plane * window.h * window.w + place);
  }
};

// The inverse of im2col: sums the elements that it took from each position. dims are those of the
// image.
struct Col2im {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const Window window(args, 4);
    const int64_t col = i % window.w, row = i / window.w % window.h;
    const int64_t plane = i / (window.w * window.h), area = window.oh * window.ow;
    float sum = 0.0f;
    for (int64_t y = 0; y < window.kh; ++y)
      for (int64_t x = 0; x < window.kw; ++x) {
        const int64_t r = row + window.pad - y, c = col + window.pad - x;
        if (r < 0 || c < 0 || r % window.stride != 0 || c % window.stride != 0) continue;
        const int64_t out_row = r / window.stride, out_col = c / window.stride;
        if (out_row >= window.oh || out_col >= window.ow) continue;
        const int64_t element = (plane * window.kh + y) * window.kw + x;
        sum += load<T>(args.in[0], element * area + out_row * window.ow + out_col);
      }
    return sum;
  }
};

// Rotates adjacent pairs of (seq, d) by (position + offset) / 10000^(pair / d); dims seq, d,
// offset.
struct Rope {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const int64_t d = args.dim[1], position = i / d + args.dim[2], even = i % d & ~int64_t{1};
    const float x = load<T>(args.in[0], i - i % d + even),
                y = load<T>(args.in[0], i - i % d + even + 1);
    const double angle = static_cast<double>(position) *
                         pow(10000.0, -static_cast<double>(even) / static_cast<double>(d));
    const float c = static_cast<float>(cos(angle)), s = static_cast<float>(sin(angle));
    return i % d == even ? x * c - y * s : x * s + y * c;
  }
};

// Rows of in[1] (vocab, d) selected by the i32 ids of in[0] (batch, seq), which the caller has
// checked; dims batch, seq, vocab, d.
struct Embedding {
  template <class T>
  WCUDA_HD static float at(const CatalogueArgs& args, int64_t i) {
    const int64_t d = args.dim[3], id = static_cast<const int32_t*>(args.in[0])[i / d];
    return load<T>(args.in[1], id * d + i % d);
  }
};

}  // namespace point
}  // namespace wcuda::kernels
