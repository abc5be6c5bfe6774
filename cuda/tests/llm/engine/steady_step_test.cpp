// Steps once everything has been set up: what submitting one asks of the backend, and that it waits
// for nothing.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/base/context.h"
#include "core/backend/open.h"
#include "core/backend/trace_backend.h"
#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"
#include "support/device_gate.h"

namespace wcuda::testing {
namespace {

const std::vector<int32_t> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6};

class SteadyStep : public EngineFixture {
 protected:
  void open_context() override {
    OpenOptions open;
    open.backend = GetParam();
    if (GetParam() == WCUDA_BACKEND_HOST) open.host_thread_count = 2;
    auto opened = open_backend(open);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    backend_ = opened->backend;
    const auto traced =
        std::make_shared<TraceBackend>(backend_, [this](const Call& call, const Status&) {
          const std::lock_guard<std::mutex> lock(mutex_);
          if (is_tracing_) calls_.push_back(call);
        });
    auto object = std::make_shared<api::Context>();
    object->info = WCUDA_CONTEXT_INFO_INIT;
    object->info.backend = GetParam();
    object->info.host_thread_count = backend_->host_thread_count();
    object->memory = vram::Memory::create(traced, 0);
    context_.id = *api::insert(api::Kind::kContext, std::move(object));
  }

  // The backend calls of a body, in any thread.
  template <class Body>
  std::vector<Call> calls_of(Body body) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      calls_.clear();
      is_tracing_ = true;
    }
    body();
    const std::lock_guard<std::mutex> lock(mutex_);
    is_tracing_ = false;
    return calls_;
  }
  static std::string names(const std::vector<Call>& calls) {
    std::string text;
    for (const Call& call : calls) text += std::string(call.name) + " ";
    return text;
  }

  // Sequences that have taken the prompt and sampled.
  std::vector<wcuda_sequence> begin_sequences(uint32_t count) {
    std::vector<wcuda_sequence> sequences;
    for (uint32_t i = 0; i < count; ++i) {
      sequences.push_back(create_sequence());
      wait(submit({token_row(sequences.back(), kPrompt, WCUDA_ROW_SAMPLE)}));
    }
    return sequences;
  }

  std::shared_ptr<Backend> backend_;

 private:
  std::mutex mutex_;
  bool is_tracing_ = false;
  std::vector<Call> calls_;
};

INSTANTIATE_TEST_SUITE_P(Host, SteadyStep, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, SteadyStep, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(SteadyStep, submit_allocates_nothing_and_waits_for_nothing) {
  create_engine(small_options());
  ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));
  const std::vector<wcuda_sequence> sequences = begin_sequences(3);
  wcuda_sampling filtered = WCUDA_SAMPLING_INIT;
  filtered.temperature = 0.8f;
  filtered.top_k = 5;
  filtered.top_logprobs = 3;

  // Past two borders of pages, greedy and filtered in turn, two steps in flight.
  uint64_t before = 0;
  for (uint32_t step = 0; step < 130; ++step) {
    std::vector<wcuda_row> rows;
    for (const wcuda_sequence sequence : sequences) {
      rows.push_back(feed_row(sequence));
      if (step % 2) rows.back().sampling = &filtered;
    }
    uint64_t ticket = 0;
    const std::vector<Call> submitted = calls_of([&] { ticket = submit(rows); });
    for (const Call& call : submitted) {
      const bool is_input = std::string(call.name) == "copy_to_device_async";
      ASSERT_TRUE(call.kind == CallKind::kLaunch || call.kind == CallKind::kOther || is_input)
          << "step " << step << ": " << call.name << " of " << names(submitted);
    }
    if (GetParam() == WCUDA_BACKEND_CUDA) {
      ASSERT_EQ(names(submitted),
                "copy_to_device_async event_record stream_wait event_record graph_launch "
                "event_record ")
          << "step " << step;
    }
    if (before == 0) {
      before = ticket;
      continue;
    }
    StepResult result;
    const std::vector<Call> waited =
        calls_of([&] { EXPECT_EQ(try_wait(before, &result), WCUDA_OK) << error_.message; });
    for (const Call& call : waited)
      ASSERT_NE(call.kind, CallKind::kAllocate) << "step " << step << ": " << names(waited);
    before = ticket;
  }
  wait(before);
}

// On CUDA the first step of a shape captures a graph, of either ticket, and says so; after a
// warm-up none has to. The host captures nothing.
TEST_P(SteadyStep, reports_when_it_had_to_capture) {
  const bool is_cuda = GetParam() == WCUDA_BACKEND_CUDA;
  wcuda_sampling filtered = WCUDA_SAMPLING_INIT;
  filtered.temperature = 0.8f;
  filtered.top_k = 5;
  for (const bool is_warm : {false, true}) {
    SCOPED_TRACE(is_warm);
    create_engine(small_options());
    if (is_warm) {
      ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));
    }
    const wcuda_sequence sequence = create_sequence();
    EXPECT_FALSE(wait(submit({token_row(sequence, kPrompt, WCUDA_ROW_SAMPLE)})).captured);
    for (const wcuda_sampling* const sampling : {static_cast<const wcuda_sampling*>(nullptr),
                                                 static_cast<const wcuda_sampling*>(&filtered)}) {
      std::vector<bool> captured;
      for (int step = 0; step < 6; ++step) {
        wcuda_row row = feed_row(sequence);
        row.sampling = sampling;
        captured.push_back(wait(submit({row})).captured);
      }
      EXPECT_EQ(captured[0], is_cuda && !is_warm);
      if (is_warm) {
        EXPECT_FALSE(captured[1]);
      }
      for (int step = 2; step < 6; ++step) EXPECT_FALSE(captured[step]) << step;
    }
    wcuda_sequence_destroy(sequence);
    sequences_.clear();
    wcuda_engine_destroy(engine_);
    engine_.id = 0;
  }
}

// Prompts and mixed steps of a class become a graph when it occurs again, with the same results.
TEST_P(SteadyStep, longer_rows_become_a_graph_when_their_class_occurs_again) {
  const bool is_cuda = GetParam() == WCUDA_BACKEND_CUDA;
  create_engine(small_options());
  for (const bool is_mixed : {false, true}) {
    SCOPED_TRACE(is_mixed);
    for (const int32_t length : {2, 8, 21}) {
      SCOPED_TRACE(length);
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < length; ++i) prompt.push_back(i * 7 % 37);
      std::vector<StepResult> results;
      std::vector<std::string> calls;
      for (int time = 0; time < 6; ++time) {
        const wcuda_sequence sequence = create_sequence(), other = create_sequence();
        std::vector<wcuda_row> rows = {token_row(sequence, prompt, WCUDA_ROW_SAMPLE)};
        if (is_mixed) {
          wait(submit({token_row(other, kPrompt, WCUDA_ROW_SAMPLE)}));
          rows.insert(rows.begin(), feed_row(other));
        }
        uint64_t ticket = 0;
        calls.push_back(names(calls_of([&] { ticket = submit(rows); })));
        results.push_back(wait(ticket));
        wcuda_sequence_destroy(sequence);
        wcuda_sequence_destroy(other);
        sequences_.clear();
      }
      for (size_t i = 1; i < results.size(); ++i) {
        ASSERT_EQ(results[i].rows.size(), results[0].rows.size());
        for (size_t row = 0; row < results[0].rows.size(); ++row) {
          EXPECT_EQ(results[i].rows[row].token, results[0].rows[row].token);
          EXPECT_EQ(results[i].rows[row].logprob, results[0].rows[row].logprob);
        }
      }
      EXPECT_FALSE(results[0].captured);
      EXPECT_FALSE(results.back().captured);
      EXPECT_EQ(calls.back().find("graph_launch") != std::string::npos, is_cuda) << calls.back();
    }
  }
}

// A device whose steps cannot begin while the gate is closed.
class BusyDevice : public SteadyStep {
 protected:
  void TearDown() override {
    gate_.reset();
    if (event_.id != 0) {
      EXPECT_TRUE(backend_->event_destroy(event_).ok());
    }
    backend_.reset();
    SteadyStep::TearDown();
  }

  void make_busy(Stream steps) {
    auto event = backend_->event_create();
    ASSERT_TRUE(event.ok()) << event.status().message();
    event_ = *event;
    gate_ = std::make_unique<DeviceGate>(context_);
    gate_->close({0});
    ASSERT_TRUE(backend_->event_record(event_, Stream{}).ok());
    ASSERT_TRUE(backend_->stream_wait(steps, event_).ok());
  }
  bool is_busy() {
    const Result<bool> is_done = backend_->event_done(event_);
    EXPECT_TRUE(is_done.ok()) << is_done.status().message();
    return is_done.ok() && !*is_done;
  }

  std::unique_ptr<DeviceGate> gate_;
  Event event_{};
};

INSTANTIATE_TEST_SUITE_P(Gpu, BusyDevice, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(BusyDevice, submit_and_health_return_while_the_step_cannot_begin) {
  create_engine(small_options());
  ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));
  const wcuda_sequence sequence = begin_sequences(1).at(0);
  uint64_t ticket = 0;
  const std::vector<Call> calls = calls_of([&] { ticket = submit({feed_row(sequence)}); });
  wait(ticket);
  wcuda_health health = WCUDA_HEALTH_INIT;
  ASSERT_OK(wcuda_health_get(context_, &health, &error_));  // opens NVML
  ASSERT_FALSE(calls.empty());
  make_busy(calls.back().stream);

  const uint64_t first = submit({feed_row(sequence)});
  const uint64_t second = submit({feed_row(sequence)});
  ASSERT_OK(wcuda_health_get(context_, &health, &error_));
  EXPECT_TRUE(is_busy()) << "nothing above waits for the device: else it would never return";
  gate_->open();

  EXPECT_EQ(health.state, WCUDA_HEALTH_OK) << health.message;
  EXPECT_EQ(health.nonresident_count, 0u);
  EXPECT_GT(health.allocation_count, 0u);
  EXPECT_GT(health.temperature_celsius, 0);
  EXPECT_GE(health.ecc_error_count, 0);
  wait(first);
  wait(second);
}

}  // namespace
}  // namespace wcuda::testing
