// Every call of the device that a load makes fails in turn: the load says why and leaves nothing.
#include <gtest/gtest.h>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "llm/gguf/gguf_open.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "support/allocation_failure.h"

namespace wcuda::model {
namespace {

using testing::TinyModel;

struct Fixture {
  Fixture() : bytes(tiny().build()) {
    file = testing::open_bytes(bytes).take();
    // One thread: a load's calls come in the same order every time.
    fault = std::make_shared<FaultBackend>(open_host_backend(0, 1).take());
    memory = vram::Memory::create(fault, 0);
  }
  static TinyModel tiny() {
    TinyModel tiny;
    tiny.has_rope_factors = true;
    tiny.weight_type = testing::kF32;  // odd ones stay in rows and are copied
    return tiny;
  }
  Result<std::shared_ptr<Model>> load() { return Model::load(memory, file, {}); }
  uint64_t held() const {
    return memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes +
           memory->ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes;
  }

  std::string bytes;
  std::shared_ptr<gguf::Gguf> file;
  std::shared_ptr<FaultBackend> fault;
  std::shared_ptr<vram::Memory> memory;
};

// Fails the k-th call of a kind for k = 1, 2, … until a load gets through; returns the failures
// seen.
int fail_each(Fixture& fixture, CallKind kind, Code expected) {
  int failures = 0;
  for (uint64_t k = 1; k < 1000; ++k) {
    fixture.fault->fail(kind, k);
    const auto model = fixture.load();
    if (model.ok()) break;
    ++failures;
    EXPECT_EQ(model.status().code(), expected) << k << ": " << model.status().message();
    EXPECT_EQ(fixture.held(), 0u) << k;
    EXPECT_TRUE(fixture.memory->ledger().rows().empty()) << k;
  }
  fixture.fault->fail(kind, 0);
  EXPECT_TRUE(fixture.load().ok());  // the context stays usable
  EXPECT_EQ(fixture.held(), 0u);
  return failures;
}

TEST(ModelLoadFault, every_allocation_that_fails) {
  Fixture fixture;
  // Vectors, the embedding and seven matrices a layer; pinned memory is counted apart.
  EXPECT_GE(fail_each(fixture, CallKind::kAllocate, WCUDA_OUT_OF_MEMORY), 1 + 1 + 2 * 7);
}

TEST(ModelLoadFault, every_copy_that_fails) {
  Fixture fixture;
  EXPECT_GE(fail_each(fixture, CallKind::kCopy, WCUDA_DEVICE_ERROR), 1 + 5);
}

// A wait may also be that of staging memory being freed, whose failure is only counted.
TEST(ModelLoadFault, every_wait_that_fails) {
  Fixture fixture;
  int failures = 0;
  for (uint64_t k = 1; k <= 8; ++k) {
    fixture.fault->fail(CallKind::kWait, k);
    const auto model = fixture.load();
    if (model.ok()) continue;
    ++failures;
    EXPECT_EQ(model.status().code(), WCUDA_DEVICE_ERROR);
    EXPECT_EQ(fixture.held(), 0u);
  }
  EXPECT_GE(failures, 1);
}

TEST(ModelLoadFault, a_device_lost_at_any_call) {
  uint64_t calls = 1;
  for (uint64_t k = 1; k <= calls; ++k) {
    Fixture fixture;
    fixture.fault->lose_device(0);
    if (k == 1) {
      const auto model = fixture.load();
      ASSERT_TRUE(model.ok());
      calls = fixture.fault->call_count();  // before the model goes, which waits for its memory
      ASSERT_GT(calls, 20u);
    }
    fixture.fault->lose_device(k);
    const auto model = fixture.load();
    EXPECT_EQ(model.status().code(), WCUDA_DEVICE_LOST) << k << " of " << calls;
    EXPECT_EQ(fixture.held(), 0u) << k;
  }
}

// Throws std::bad_alloc out of the k-th use of operator new on this thread, for every k. A load may
// throw it (the C interface catches it); what it holds must go all the same.
TEST(ModelLoadFault, host_memory_that_runs_out_at_any_point) {
  Fixture fixture;
  int failures = 0;
  for (int64_t k = 1; k < 100000; ++k) {
    bool happened = false, loaded = false;
    {
      const testing::FailAllocation fail(k);
      try {
        const auto model = fixture.load();
        loaded = model.ok();
      } catch (const std::bad_alloc&) {
      }
      happened = fail.happened();
    }
    ASSERT_EQ(fixture.held(), 0u) << k;
    if (!happened) {
      EXPECT_TRUE(loaded);
      break;
    }
    ++failures;
  }
  EXPECT_GT(failures, 50);
}

}  // namespace
}  // namespace wcuda::model
