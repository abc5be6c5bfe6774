// Memory that an engine holds: planned to the byte, and an error with numbers where there is none.
#include <string>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::TinyModel;

class EngineMemory : public testing::EngineFixture {
 protected:
  testing::TinyModel tiny_model() const override {
    testing::TinyModel tiny;
    tiny.head_length = 64;  // which every KV type can hold
    return tiny;
  }
  wcuda_memory_info memory(int32_t purpose) {
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(context_, purpose, &info, &error_), WCUDA_OK)
        << error_.message;
    return info;
  }
  uint64_t held(int32_t purpose) { return memory(purpose).current_bytes; }
  const std::vector<int32_t> prompt_ = {1, 5, 9, 2, 7};
};
INSTANTIATE_TEST_SUITE_P(Host, EngineMemory, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, EngineMemory, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(EngineMemory, is_what_the_plan_says_to_the_byte_also_after_steps) {
  for (const int32_t kv_type : {WCUDA_KV_F16, WCUDA_KV_Q8_0, WCUDA_KV_FP8_E4M3, WCUDA_KV_INT10})
    for (const uint64_t flags : {uint64_t{0}, WCUDA_ENGINE_BATCH_INVARIANT}) {
      wcuda_engine_options options = small_options();
      options.kv_type = kv_type;
      options.flags = flags;
      wcuda_plan plan = WCUDA_PLAN_INIT;
      ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &plan, &error_));
      EXPECT_EQ(held(WCUDA_PURPOSE_ANY), plan.weights_bytes);

      create_engine(options);
      ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));
      generate(prompt_, 70);

      EXPECT_EQ(held(WCUDA_PURPOSE_WEIGHTS), plan.weights_bytes);
      EXPECT_EQ(held(WCUDA_PURPOSE_KV), plan.kv_bytes);
      EXPECT_EQ(held(WCUDA_PURPOSE_SCRATCH), plan.scratch_bytes);
      EXPECT_EQ(held(WCUDA_PURPOSE_ANY), plan.total_bytes);
      EXPECT_EQ(plan.fits, 1);
      wcuda_engine_destroy(std::exchange(engine_, {0}));
    }
}

// On a real device only.
class EngineOnDevice : public EngineMemory {
 protected:
  TinyModel tiny_model() const override {
    TinyModel tiny = EngineMemory::tiny_model();
    tiny.layer_count = 32;  // a graph has a few nodes for each
    return tiny;
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, EngineOnDevice, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(EngineOnDevice,
       is_refused_with_the_numbers_if_the_device_is_full_and_made_once_there_is_room) {
  constexpr uint64_t kLeft = uint64_t{256} << 20;
  wcuda_buffer_options filling = WCUDA_BUFFER_OPTIONS_INIT;
  filling.bytes = memory(WCUDA_PURPOSE_ANY).device_free_bytes - kLeft;
  wcuda_buffer buffer{0};
  ASSERT_OK(wcuda_buffer_create(context_, &filling, &buffer, &error_));
  const uint64_t held_before = held(WCUDA_PURPOSE_ANY);
  wcuda_engine_options options = small_options();
  options.kv_tokens = 64 * 4096;
  wcuda_plan plan = WCUDA_PLAN_INIT;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &plan, &error_));
  while (plan.kv_bytes < 2 * kLeft) {
    options.kv_tokens *= 2;
    ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &plan, &error_));
  }
  EXPECT_EQ(plan.fits, 0);

  wcuda_engine refused{0};
  const wcuda_status status = wcuda_engine_create(model_, &options, &refused, &error_);

  EXPECT_EQ(status, WCUDA_OUT_OF_MEMORY) << error_.message;
  const std::string message = error_.message;
  EXPECT_NE(message.find(std::to_string(plan.kv_bytes)), std::string::npos) << message;
  EXPECT_NE(message.find("bytes free"), std::string::npos) << message;
  EXPECT_EQ(refused.id, 0u);
  EXPECT_EQ(held(WCUDA_PURPOSE_ANY), held_before);
  wcuda_buffer_destroy(buffer);
  create_engine(options);
  EXPECT_EQ(generate(prompt_, 3).size(), 3u);
}

// The driver holds them, so the ledger has no row for them.
TEST_P(EngineOnDevice, graphs_take_less_than_a_page_of_the_driver_for_each_kernel) {
  wcuda_engine_options options = small_options();
  options.max_sequences = 256;
  options.max_batch_tokens = 512;
  create_engine(options);
  generate(prompt_, 2);
  const uint64_t held_before = held(WCUDA_PURPOSE_ANY);
  const uint64_t before = memory(WCUDA_PURPOSE_ANY).device_free_bytes;

  ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));

  const uint64_t after = memory(WCUDA_PURPOSE_ANY).device_free_bytes;
  const uint64_t graphs = before > after ? before - after : 0;
  std::printf("graphs of all shape classes up to 256 rows, 32 layers: %llu bytes\n",
              static_cast<unsigned long long>(graphs));
  constexpr uint64_t kClasses = 14 * 2 * 2, kKernels = 32 * 8 + 8;
  EXPECT_LE(graphs, kClasses * kKernels * 4096 + (uint64_t{32} << 20));
  EXPECT_EQ(held(WCUDA_PURPOSE_ANY), held_before);
}

}  // namespace
}  // namespace wcuda
