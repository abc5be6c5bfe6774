// Rotary frequencies and their scaling.
#include "llm/model/rope.h"

#include <algorithm>
#include <cmath>

#include "llm/model/config.h"

namespace wcuda::model {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Scaling {
  double factor = 1.0;  // context extension; 1: none
  // YaRN; extrapolation 0 is plain interpolation.
  double extrapolation = 0.0;
  double attention_factor = 1.0;
  double log_multiplier = 0.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double original_context = 0.0;
};

Result<Scaling> read_scaling(const Keys& keys, uint32_t context_length) {
  Scaling scaling;
  // A factor without a type means linear.
  std::string_view type;
  WCUDA_ASSIGN(type, keys.file().get_string(keys.full("rope.scaling.type"), "linear"));
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn")
    return unsupported("rope scaling type '%.*s' is not supported (none, linear and yarn are)",
                       static_cast<int>(std::min<size_t>(type.size(), 64)), type.data());
  WCUDA_ASSIGN(const float old_factor, keys.finite("rope.scale_linear", 0.0f));
  WCUDA_ASSIGN(const float factor, keys.finite("rope.scaling.factor", old_factor));
  if (factor < 0.0f)
    return malformed("key '%s' is %g, must not be negative",
                     keys.full("rope.scaling.factor").c_str(), static_cast<double>(factor));
  if (factor > 0.0f) scaling.factor = factor;
  WCUDA_ASSIGN(scaling.attention_factor, keys.positive("rope.scaling.attn_factor", 1.0f));

  const float extrapolation = type == "yarn" ? 1.0f : 0.0f;
  WCUDA_ASSIGN(scaling.extrapolation, keys.finite("rope.scaling.yarn_ext_factor", extrapolation));
  if (scaling.extrapolation < 0.0) scaling.extrapolation = extrapolation;  // "not set"
  WCUDA_ASSIGN(scaling.log_multiplier, keys.finite("rope.scaling.yarn_log_multiplier", 0.0f));
  WCUDA_ASSIGN(scaling.beta_fast, keys.positive("rope.scaling.yarn_beta_fast", 32.0f));
  WCUDA_ASSIGN(scaling.beta_slow, keys.positive("rope.scaling.yarn_beta_slow", 1.0f));
  WCUDA_ASSIGN(scaling.original_context, keys.count("rope.scaling.original_context_length",
                                                    kMaxContextLength, context_length));
  return scaling;
}

// Returns the index (a real number) of the pair that rotates `rotations` times in the context.
double pair_of_rotations(double rotations, double context, double dimensions, double base) {
  return dimensions * std::log(context / (rotations * 2.0 * kPi)) / (2.0 * std::log(base));
}

// Returns the weight of a pair's trained frequency: 1 below `low`, 0 above `high`.
double kept_share(double pair, double low, double high) {
  return 1.0 - std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
}

double magnitude_for(double factor, double multiplier) {
  return factor <= 1.0 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

}  // namespace

Status read_rope(const Keys& keys, Config* config) {
  WCUDA_ASSIGN(config->rope_dimension_count,
               keys.count("rope.dimension_count", config->head_length, config->head_length));
  if (config->rope_dimension_count % 2 != 0)
    return malformed("key '%s' is %u, must be even", keys.full("rope.dimension_count").c_str(),
                     config->rope_dimension_count);
  WCUDA_ASSIGN(config->rope_frequency_base, keys.positive("rope.freq_base", 10000.0f));
  if (config->rope_frequency_base <= 1.0f)
    return malformed("key '%s' is %g, must be above 1", keys.full("rope.freq_base").c_str(),
                     static_cast<double>(config->rope_frequency_base));
  WCUDA_ASSIGN(const Scaling scaling, read_scaling(keys, config->context_length));

  const double base = config->rope_frequency_base, dimensions = config->rope_dimension_count;
  double low = 0.0, high = 0.0;
  if (scaling.extrapolation != 0.0) {
    const auto pair = [&](double beta) {
      return pair_of_rotations(beta, scaling.original_context, dimensions, base);
    };
    low = std::max(0.0, std::floor(pair(scaling.beta_fast)));
    high = std::min(dimensions - 1.0, std::ceil(pair(scaling.beta_slow)));
  }
  config->rope_frequencies.resize(config->rope_dimension_count / 2);
  for (size_t i = 0; i < config->rope_frequencies.size(); ++i) {
    const double trained = std::pow(base, -2.0 * static_cast<double>(i) / dimensions);
    double kept = 0.0;
    if (scaling.extrapolation != 0.0)
      kept = kept_share(static_cast<double>(i), low, high) * scaling.extrapolation;
    config->rope_frequencies[i] =
        static_cast<float>(trained / scaling.factor * (1.0 - kept) + trained * kept);
  }

  double magnitude = scaling.attention_factor;
  if (scaling.extrapolation != 0.0) {
    magnitude *= magnitude_for(scaling.factor, 1.0);
    if (scaling.log_multiplier != 0.0)
      magnitude /= magnitude_for(scaling.factor, scaling.log_multiplier);
  }
  config->rope_magnitude = static_cast<float>(magnitude);
  if (!std::isfinite(config->rope_magnitude) || config->rope_magnitude <= 0.0f)
    return malformed("the rope scaling of '%s' gives the magnitude %g", keys.architecture().c_str(),
                     magnitude);
  for (const float frequency : config->rope_frequencies)
    if (!std::isfinite(frequency))
      return malformed("the rope scaling of '%s' gives a frequency of %g",
                       keys.architecture().c_str(), static_cast<double>(frequency));
  return {};
}

Status apply_rope_factors(const std::vector<float>& factors, std::vector<float>* frequencies) {
  WCUDA_CHECK(factors.size() == frequencies->size());
  for (size_t i = 0; i < factors.size(); ++i) {
    // A factor near 0 gives an infinite frequency.
    if (factors[i] > 0.0f && std::isfinite(factors[i]) &&
        std::isfinite((*frequencies)[i] / factors[i]))
      continue;
    return malformed("tensor '%s' element %zu is %g, must be finite and above 0",
                     kRopeFactorsTensor, i, static_cast<double>(factors[i]));
  }
  for (size_t i = 0; i < factors.size(); ++i) (*frequencies)[i] /= factors[i];
  return {};
}

}  // namespace wcuda::model
