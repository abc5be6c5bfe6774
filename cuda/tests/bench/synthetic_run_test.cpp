// Synthetic models from a read callback, run at the start and deep into a sequence. Those of 8 and
// 70 billion parameters need WCUDA_LARGE_SHAPES=1: up to 80 GB are generated.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "bench/e2e_session.h"
#include "bench/synthetic_model.h"

namespace wcuda {
namespace {

struct Case {
  int32_t backend;
  const char* shape;
  const char* mix;
  uint32_t depth;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.shape << ' ' << c.mix; }
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return std::string(info.param.shape) + "_" + info.param.mix;
}

class SyntheticRun : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Host, SyntheticRun,
                         ::testing::Values(Case{WCUDA_BACKEND_HOST, "tiny", "q4_k_m", 200},
                                           Case{WCUDA_BACKEND_HOST, "tiny", "q8_0", 200}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, SyntheticRun,
                         ::testing::Values(Case{WCUDA_BACKEND_CUDA, "tiny", "q4_k_m", 200},
                                           Case{WCUDA_BACKEND_CUDA, "8b", "q4_k_m", 16384},
                                           Case{WCUDA_BACKEND_CUDA, "8b", "q8_0", 16384},
                                           Case{WCUDA_BACKEND_CUDA, "8b", "f16", 16384},
                                           Case{WCUDA_BACKEND_CUDA, "70b", "q4_k_m", 16384},
                                           Case{WCUDA_BACKEND_CUDA, "70b", "q8_0", 16384}),
                         name_of);

// Weights that the ledger holds, and logits checked: from the first token, then at `depth`.
Status run(const bench::Device& device, const bench::SyntheticModel& synthetic, uint32_t depth) {
  constexpr uint32_t kSteps = 8;
  double seconds = 0.0;
  WCUDA_ASSIGN(const bench::Model model, bench::load(device, synthetic.source(), &seconds));
  std::printf("%.1f GB in %.2f s\n", static_cast<double>(synthetic.bytes()) * 1e-9, seconds);
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequences = 1;
  options.max_sequence_tokens = depth + kSteps;
  options.max_batch_tokens = 1024;
  WCUDA_ASSIGN(const auto session, bench::Session::open(device, model.get(), options));
  std::vector<int32_t> tokens;
  for (const uint32_t length : {1u, depth}) {
    WCUDA_TRY(session->begin(1));
    WCUDA_TRY(session->prefill(length));
    WCUDA_TRY(session->decode_checked(kSteps, &tokens));
  }
  EXPECT_EQ(tokens.size(), 2 * kSteps);
  return {};
}

TEST_P(SyntheticRun, is_finite_at_both_depths_and_leaves_nothing) {
  const Case& c = GetParam();
  const char* const large = std::getenv("WCUDA_LARGE_SHAPES");
  if (std::string(c.shape) != "tiny" && (large == nullptr || std::string(large) != "1"))
    GTEST_SKIP() << "WCUDA_LARGE_SHAPES is not 1";
  const auto synthetic = bench::SyntheticModel::make(c.shape, c.mix);
  ASSERT_TRUE(synthetic.ok()) << synthetic.status().message();
  const auto device = bench::Device::open(c.backend, 2);
  ASSERT_TRUE(device.ok()) << device.status().message();
  if (device->caps.total_memory < synthetic->bytes() / 10 * 11 + (uint64_t{4} << 30) &&
      c.backend == WCUDA_BACKEND_CUDA)
    GTEST_SKIP() << "the device is too small";

  const Status status = run(*device, *synthetic, c.depth);

  EXPECT_TRUE(status.ok()) << status.message();
  wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
  ASSERT_EQ(wcuda_context_memory_get(device->context.get(), WCUDA_PURPOSE_ANY, &memory, nullptr),
            WCUDA_OK);
  EXPECT_EQ(memory.current_bytes, 0u);
}

}  // namespace
}  // namespace wcuda
