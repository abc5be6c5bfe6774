// Section 10 and the weights part of section 9, through the C interface.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/base/blake3.h"
#include "llm/model/tiny_model.h"
#include "support/allocation_failure.h"
#include "support/context.h"
#include "support/temp_folder.h"
#include "worker_cuda.h"

namespace wcuda {
namespace {

using testing::TempFolder;
using testing::TestContext;
using testing::TinyModel;

class TestGguf {
 public:
  explicit TestGguf(std::string bytes) : bytes_(std::move(bytes)) {
    wcuda_source source = WCUDA_SOURCE_INIT;
    source.kind = WCUDA_SOURCE_MEMORY;
    source.data = bytes_.data();
    source.size = bytes_.size();
    open(source);
  }
  explicit TestGguf(const wcuda_source& source) { open(source); }
  ~TestGguf() { wcuda_gguf_close(gguf_); }
  TestGguf(const TestGguf&) = delete;
  TestGguf& operator=(const TestGguf&) = delete;
  wcuda_gguf handle() const { return gguf_; }

 private:
  void open(const wcuda_source& source) {
    wcuda_error error{};
    EXPECT_EQ(wcuda_gguf_open(&source, &gguf_, &error), WCUDA_OK) << error.message;
  }
  std::string bytes_;
  wcuda_gguf gguf_{0};
};

// Records the calls of a progress callback, and does something at one of them.
struct Recorder {
  std::vector<int32_t> phases;
  std::vector<uint64_t> done, total;
  int32_t answer_at_phase = 0;  // answers 1 at this phase
  void (*act)(Recorder&, int32_t phase) = nullptr;
  wcuda_cancel cancel{0};
  wcuda_context context{0};
  std::vector<wcuda_status> statuses;  // of what `act` called

  static int32_t call(void* user, int32_t phase, uint64_t done, uint64_t total) {
    Recorder& self = *static_cast<Recorder*>(user);
    self.phases.push_back(phase);
    self.done.push_back(done);
    self.total.push_back(total);
    if (self.act) self.act(self, phase);
    return phase == self.answer_at_phase;
  }
  wcuda_model_options options() {
    wcuda_model_options options = WCUDA_MODEL_OPTIONS_INIT;
    options.progress = call;
    options.progress_user = this;
    return options;
  }
};

wcuda_status load(const TestContext& context, const TestGguf& gguf,
                  const wcuda_model_options* options, wcuda_model* model,
                  std::string* message = nullptr) {
  wcuda_error error{};
  const wcuda_status status =
      wcuda_model_load(context.handle(), gguf.handle(), options, model, &error);
  if (message) *message = error.message;
  return status;
}

void expect_nothing_held(const TestContext& context) {
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_STAGING).current_bytes, 0u);
}

TEST(ApiModel, loads_reports_and_unloads) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  wcuda_model model{0};
  std::string message;
  ASSERT_EQ(load(context, gguf, nullptr, &model, &message), WCUDA_OK) << message;

  wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
  ASSERT_EQ(wcuda_model_info_get(model, &info, nullptr), WCUDA_OK);

  EXPECT_STREQ(info.architecture, "llama");
  EXPECT_EQ(info.layer_count, 2u);
  EXPECT_EQ(info.vocabulary_size, 97u);
  EXPECT_EQ(info.embedding_length, 64u);
  EXPECT_EQ(info.feed_forward_length, 96u);
  EXPECT_EQ(info.head_count, 4u);
  EXPECT_EQ(info.kv_head_count, 2u);
  EXPECT_EQ(info.head_length, 16u);
  EXPECT_EQ(info.context_length, 512u);
  EXPECT_EQ(info.sliding_window, 0u);
  EXPECT_EQ(info.rope_frequency_base, 10000.0f);
  EXPECT_GT(info.parameter_count, 60000u);
  EXPECT_EQ(info.weights_bytes, context.memory(WCUDA_PURPOSE_WEIGHTS).current_bytes);

  wcuda_model_unload(model);
  expect_nothing_held(context);
  EXPECT_EQ(wcuda_model_info_get(model, &info, nullptr), WCUDA_INVALID_HANDLE);
}

TEST(ApiModel, lives_on_when_its_context_and_file_are_destroyed) {
  wcuda_model model{0};
  {
    const TestContext context;
    const TestGguf gguf(TinyModel().build());
    ASSERT_EQ(load(context, gguf, nullptr, &model), WCUDA_OK);
  }
  wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
  EXPECT_EQ(wcuda_model_info_get(model, &info, nullptr), WCUDA_OK);
  wcuda_model_unload(model);
}

TEST(ApiModel, plan_states_what_the_ledger_shows_after_the_load) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  wcuda_plan plan = WCUDA_PLAN_INIT;
  wcuda_error error{};
  ASSERT_EQ(wcuda_plan_get(context.handle(), gguf.handle(), nullptr, &plan, &error), WCUDA_OK)
      << error.message;
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).total_allocation_count, 0u);  // nothing allocated

  wcuda_model model{0};
  ASSERT_EQ(load(context, gguf, nullptr, &model), WCUDA_OK);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_WEIGHTS).current_bytes, plan.weights_bytes);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_STAGING).peak_bytes, plan.staging_bytes);

  wcuda_engine engine{0};
  ASSERT_EQ(wcuda_engine_create(model, nullptr, &engine, nullptr), WCUDA_OK);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_KV).current_bytes, plan.kv_bytes);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_SCRATCH).current_bytes, plan.scratch_bytes);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).current_bytes, plan.total_bytes);
  wcuda_model_unload(model);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_WEIGHTS).current_bytes, plan.weights_bytes);
  wcuda_engine_destroy(engine);
  expect_nothing_held(context);
}

TEST(ApiModel, plan_refuses_what_load_refuses) {
  const TestContext context;
  TinyModel tiny;
  tiny.omit = {"blk.1.ffn_up.weight"};
  const TestGguf gguf(tiny.build());
  wcuda_plan plan = WCUDA_PLAN_INIT;
  wcuda_error planned{}, loaded{};
  wcuda_model model{0};

  EXPECT_EQ(wcuda_plan_get(context.handle(), gguf.handle(), nullptr, &plan, &planned),
            WCUDA_MALFORMED);
  EXPECT_EQ(wcuda_model_load(context.handle(), gguf.handle(), nullptr, &model, &loaded),
            WCUDA_MALFORMED);
  EXPECT_STREQ(planned.message, loaded.message);
  EXPECT_STREQ(planned.message,
               "tensor 'blk.1.ffn_up.weight' is missing, architecture 'llama' needs it");
  EXPECT_EQ(model.id, 0u);
  EXPECT_EQ(plan.weights_bytes, 0u);
}

TEST(ApiModel, plan_refuses_what_engine_creation_refuses) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.flags = WCUDA_ENGINE_PERSISTENT_LAYERS_ON;  // never on the host
  wcuda_plan plan = WCUDA_PLAN_INIT;
  wcuda_step_shape shape = WCUDA_STEP_SHAPE_INIT;
  uint64_t count = 7;
  wcuda_error planned{}, listed{}, created{};
  wcuda_model model{0};
  wcuda_engine engine{0};
  ASSERT_EQ(load(context, gguf, nullptr, &model), WCUDA_OK);

  EXPECT_EQ(wcuda_plan_get(context.handle(), gguf.handle(), &options, &plan, &planned),
            WCUDA_UNSUPPORTED);
  EXPECT_EQ(wcuda_plan_steps_list(context.handle(), gguf.handle(), &options, &shape, {}, nullptr, 0,
                                  nullptr, 0, &count, &listed),
            WCUDA_UNSUPPORTED);
  EXPECT_EQ(wcuda_engine_create(model, &options, &engine, &created), WCUDA_UNSUPPORTED);

  EXPECT_STREQ(planned.message, created.message);
  EXPECT_STREQ(listed.message, created.message);
  EXPECT_EQ(plan.weights_bytes, 0u);
  EXPECT_EQ(count, 7u);
  options.flags = WCUDA_ENGINE_PERSISTENT_LAYERS_OFF;
  EXPECT_EQ(wcuda_plan_get(context.handle(), gguf.handle(), &options, &plan, nullptr), WCUDA_OK);
  wcuda_model_unload(model);
}

TEST(ApiModel, over_budget_reports_the_numbers_and_leaves_the_context_usable) {
  const TestContext roomy;
  const TestGguf gguf(TinyModel().build());
  wcuda_plan plan = WCUDA_PLAN_INIT;
  ASSERT_EQ(wcuda_plan_get(roomy.handle(), gguf.handle(), nullptr, &plan, nullptr), WCUDA_OK);
  const TestContext tight(plan.weights_bytes - 1);
  wcuda_model model{0};
  std::string message;

  EXPECT_EQ(load(tight, gguf, nullptr, &model, &message), WCUDA_OVER_BUDGET);
  EXPECT_NE(message.find(std::to_string(plan.weights_bytes)), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(plan.weights_bytes - 1)), std::string::npos) << message;
  expect_nothing_held(tight);
  wcuda_plan tight_plan = WCUDA_PLAN_INIT;
  ASSERT_EQ(wcuda_plan_get(tight.handle(), gguf.handle(), nullptr, &tight_plan, nullptr), WCUDA_OK);
  EXPECT_EQ(tight_plan.fits, 0);
  EXPECT_EQ(plan.fits, 1);
}

TEST(ApiModel, progress_ends_with_done_exactly_once) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  Recorder recorder;
  recorder.answer_at_phase = WCUDA_LOAD_DONE;  // ignored: the model is there
  const wcuda_model_options options = recorder.options();
  wcuda_model model{0};

  ASSERT_EQ(load(context, gguf, &options, &model), WCUDA_OK);

  EXPECT_EQ(recorder.phases.front(), WCUDA_LOAD_PLAN);
  EXPECT_EQ(recorder.phases.back(), WCUDA_LOAD_DONE);
  EXPECT_EQ(std::count(recorder.phases.begin(), recorder.phases.end(), WCUDA_LOAD_DONE), 1);
  EXPECT_TRUE(std::is_sorted(recorder.phases.begin(), recorder.phases.end()));
  EXPECT_TRUE(std::is_sorted(recorder.done.begin(), recorder.done.end()));
  EXPECT_EQ(recorder.done.back(), recorder.total.back());
  EXPECT_GT(recorder.total.back(), 60000u);
  wcuda_model_unload(model);
}

TEST(ApiModel, a_non_zero_answer_cancels_in_every_phase) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  for (const int32_t phase :
       {WCUDA_LOAD_PLAN, WCUDA_LOAD_RESERVE, WCUDA_LOAD_UPLOAD, WCUDA_LOAD_SEAL}) {
    Recorder recorder;
    recorder.answer_at_phase = phase;
    const wcuda_model_options options = recorder.options();
    wcuda_model model{7};

    EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_CANCELLED);
    EXPECT_EQ(recorder.phases.back(), phase);
    EXPECT_EQ(model.id, 7u);  // untouched
    expect_nothing_held(context);
  }
}

TEST(ApiModel, the_callback_may_trigger_its_cancel_and_nothing_else) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  Recorder recorder;
  ASSERT_EQ(wcuda_cancel_create(&recorder.cancel, nullptr), WCUDA_OK);
  recorder.context = context.handle();
  recorder.act = [](Recorder& self, int32_t phase) {
    if (phase != WCUDA_LOAD_RESERVE) return;
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    self.statuses.push_back(
        wcuda_context_memory_get(self.context, WCUDA_PURPOSE_ANY, &info, nullptr));
    wcuda_cancel other{0};
    self.statuses.push_back(wcuda_cancel_create(&other, nullptr));
    self.statuses.push_back(wcuda_cancel_trigger({12345}, nullptr));
    self.statuses.push_back(wcuda_cancel_trigger(self.cancel, nullptr));
  };
  wcuda_model_options options = recorder.options();
  options.cancel = recorder.cancel;
  wcuda_model model{0};

  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_CANCELLED);

  EXPECT_EQ(recorder.statuses, (std::vector<wcuda_status>{WCUDA_REENTRANT, WCUDA_REENTRANT,
                                                          WCUDA_INVALID_HANDLE, WCUDA_OK}));
  EXPECT_EQ(recorder.phases.back(), WCUDA_LOAD_RESERVE);
  expect_nothing_held(context);
  wcuda_cancel_destroy(recorder.cancel);
}

TEST(ApiModel, cancel_from_another_thread_stops_a_load_that_waits_for_its_file) {
  const TestContext context;
  const std::string bytes = TinyModel().build();
  struct Slow {
    const std::string* bytes;
    std::atomic<bool> reading{false}, cancelled{false}, armed{false};
  } slow;
  slow.bytes = &bytes;
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_CALLBACK;
  source.size = bytes.size();
  source.user = &slow;
  source.read = [](void* user, uint64_t offset, void* target, uint64_t count) -> int32_t {
    Slow& self = *static_cast<Slow*>(user);
    std::memcpy(target, self.bytes->data() + offset, count);
    if (self.armed) {
      self.reading = true;
      while (!self.cancelled) std::this_thread::yield();
    }
    return 0;
  };
  const TestGguf gguf(source);
  slow.armed = true;
  wcuda_model_options options = WCUDA_MODEL_OPTIONS_INIT;
  ASSERT_EQ(wcuda_cancel_create(&options.cancel, nullptr), WCUDA_OK);
  std::thread other([&] {
    while (!slow.reading) std::this_thread::yield();
    EXPECT_EQ(wcuda_cancel_trigger(options.cancel, nullptr), WCUDA_OK);
    slow.cancelled = true;
  });
  wcuda_model model{0};

  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_CANCELLED);

  other.join();
  expect_nothing_held(context);
  wcuda_cancel_destroy(options.cancel);
}

TEST(ApiModel, a_triggered_cancel_stays_so) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  wcuda_model_options options = WCUDA_MODEL_OPTIONS_INIT;
  ASSERT_EQ(wcuda_cancel_create(&options.cancel, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_cancel_trigger(options.cancel, nullptr), WCUDA_OK);
  wcuda_model model{0};

  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_CANCELLED);
  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_CANCELLED);
  wcuda_cancel_destroy(options.cancel);
  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_cancel_trigger(options.cancel, nullptr), WCUDA_INVALID_HANDLE);
}

TEST(ApiModel, a_file_truncated_between_open_and_load_is_an_io_error) {
  const TestContext context;
  const TempFolder folder;
  const std::string bytes = TinyModel().build();
  const std::string path = folder.write("tiny.gguf", bytes);
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_PATH;
  source.path = {path.data(), path.size()};
  const TestGguf gguf(source);
  wcuda_plan plan = WCUDA_PLAN_INIT;
  ASSERT_EQ(wcuda_plan_get(context.handle(), gguf.handle(), nullptr, &plan, nullptr), WCUDA_OK);

  std::filesystem::resize_file(path, bytes.size() - 1000);
  wcuda_model model{0};
  std::string message;

  EXPECT_EQ(load(context, gguf, nullptr, &model, &message), WCUDA_IO);
  EXPECT_FALSE(message.empty());
  expect_nothing_held(context);
}

TEST(ApiModel, refuses_bad_arguments_and_changes_nothing) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  wcuda_model model{0};
  wcuda_model_options options = WCUDA_MODEL_OPTIONS_INIT;

  EXPECT_EQ(load(context, gguf, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_model_load({0}, gguf.handle(), nullptr, &model, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_model_load(context.handle(), {0}, nullptr, &model, nullptr),
            WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_model_load({gguf.handle().id}, gguf.handle(), nullptr, &model, nullptr),
            WCUDA_INVALID_HANDLE);
  options.flags = 1;
  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_INVALID_ARGUMENT);
  options.flags = 0;
  options.reserved = 1;
  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_UNSUPPORTED);
  options.reserved = 0;
  options.struct_size = 8;
  EXPECT_EQ(load(context, gguf, &options, &model), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_model_info_get({0}, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(model.id, 0u);
  wcuda_model_unload({0});
  wcuda_cancel_destroy({0});
  EXPECT_EQ(wcuda_cancel_create(nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  expect_nothing_held(context);
}

TEST(ApiModel, digests_are_those_of_the_file_and_verify_finds_them_again) {
  const TestContext context;
  const std::string bytes = TinyModel().build();
  const TestGguf gguf(bytes);
  wcuda_model model{0};
  ASSERT_EQ(load(context, gguf, nullptr, &model), WCUDA_OK);
  wcuda_gguf_info info = WCUDA_GGUF_INFO_INIT;
  ASSERT_EQ(wcuda_gguf_info_get(gguf.handle(), &info, nullptr), WCUDA_OK);

  for (uint64_t i = 0; i < info.tensor_count; ++i) {
    wcuda_gguf_tensor tensor = WCUDA_GGUF_TENSOR_INIT;
    uint64_t count = 0;
    ASSERT_EQ(wcuda_gguf_tensor_list(gguf.handle(), i, &tensor, 1, &count, nullptr), WCUDA_OK);
    uint8_t expected[32];
    blake3::hash(bytes.data() + tensor.file_offset, tensor.bytes, expected);
    wcuda_tensor_digests digests = WCUDA_TENSOR_DIGESTS_INIT;
    ASSERT_EQ(wcuda_model_tensor_digests_get(model, i, &digests, nullptr), WCUDA_OK);
    EXPECT_EQ(std::memcmp(digests.file, expected, 32), 0) << i;
  }
  EXPECT_EQ(wcuda_model_verify(model, nullptr), WCUDA_OK);
  wcuda_tensor_digests digests = WCUDA_TENSOR_DIGESTS_INIT;
  EXPECT_EQ(wcuda_model_tensor_digests_get(model, info.tensor_count, &digests, nullptr),
            WCUDA_NOT_FOUND);
  EXPECT_EQ(wcuda_model_tensor_digests_get(model, 0, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  wcuda_model_unload(model);
  EXPECT_EQ(wcuda_model_verify(model, nullptr), WCUDA_INVALID_HANDLE);
}

TEST(ApiModel, host_memory_that_runs_out_is_a_status) {
  const TestContext context;
  const TestGguf gguf(TinyModel().build());
  for (int64_t k = 1; k < 100000; ++k) {
    wcuda_model model{0};
    wcuda_status status;
    bool happened;
    {
      const testing::FailAllocation fail(k);
      status = load(context, gguf, nullptr, &model);
      happened = fail.happened();
    }
    if (status == WCUDA_OK) wcuda_model_unload(model);
    expect_nothing_held(context);
    if (!happened) {
      EXPECT_EQ(status, WCUDA_OK);
      break;
    }
    ASSERT_TRUE(status == WCUDA_OUT_OF_HOST_MEMORY || status == WCUDA_OK) << k << " " << status;
  }
}

}  // namespace
}  // namespace wcuda
