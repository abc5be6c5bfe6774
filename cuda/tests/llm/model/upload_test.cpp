// The streamed load: on the host posing as a device, and (prefix Gpu) on CUDA.
#include "llm/model/upload.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "core/backend/fault_backend.h"
#include "core/backend/open.h"
#include "core/base/blake3.h"
#include "kernels/shared/scale_factor.h"
#include "llm/gguf/gguf_open.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "llm/quant/layout_gpu.h"
#include "llm/quant/repack.h"
#include "support/allocation_failure.h"
#include "support/pretend_device.h"
#include "support/temp_folder.h"

namespace wcuda::model {
namespace {

using testing::TinyModel;

struct Subject {
  const char* name;
  std::function<std::shared_ptr<Backend>()> open;
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

std::shared_ptr<Backend> cuda_device() {
  OpenOptions options;
  options.backend = WCUDA_BACKEND_CUDA;
  auto opened = open_backend(options);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? (*opened).backend : nullptr;
}

std::shared_ptr<gguf::Gguf> open(const std::string& bytes) {
  return testing::open_bytes(bytes).take();
}

Digest blake3_of(const void* data, uint64_t bytes) {
  Digest digest;
  blake3::hash(data, bytes, digest.data());
  return digest;
}

std::string file_bytes_of(const gguf::Gguf& file, uint64_t index) {
  std::string bytes(file.tensors()[index].bytes, '\0');
  EXPECT_TRUE(file.read_tensor(index, 0, bytes.data(), bytes.size()).ok());
  return bytes;
}

std::vector<uint8_t> device_bytes_of(Backend& backend, const ResidentTensor& tensor) {
  std::vector<uint8_t> bytes(tensor.matrix.bytes);
  EXPECT_TRUE(backend.copy_to_host(bytes.data(), tensor.matrix.data, bytes.size()).ok());
  return bytes;
}

// What the device should hold of a tensor, by the host's functions.
std::vector<uint8_t> expected_bytes_of(const gguf::Gguf& file, const ResidentTensor& tensor) {
  const std::string bytes = file_bytes_of(file, tensor.index);
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const Weight& matrix = tensor.matrix;
  std::vector<uint8_t> expected(matrix.bytes);
  if (tensor.is_vector)
    EXPECT_TRUE(quant::unpack_row(*quant::find_format(matrix.type), data, matrix.rows,
                                  reinterpret_cast<float*>(expected.data()))
                    .ok());
  else
    EXPECT_TRUE(quant::pack_gpu(matrix.type, matrix.rows, matrix.cols, 0, matrix.rows, data,
                                expected.data())
                    .ok());
  return expected;
}

void expect_model_is_the_files(const Model& model, const gguf::Gguf& file) {
  ASSERT_EQ(model.tensors().size(), file.tensors().size());
  for (const ResidentTensor& tensor : model.tensors()) {
    SCOPED_TRACE(tensor.name);
    const std::vector<uint8_t> resident = device_bytes_of(model.memory()->backend(), tensor);
    EXPECT_TRUE(resident == expected_bytes_of(file, tensor));
    const std::string bytes = file_bytes_of(file, tensor.index);
    const auto digests = model.digests(tensor.index);
    ASSERT_TRUE(digests.ok()) << digests.status().message();
    EXPECT_EQ(digests->file, blake3_of(bytes.data(), bytes.size()));
    EXPECT_EQ(digests->resident, blake3_of(resident.data(), resident.size()));
  }
}

class ModelUpload : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (!IsSkipped()) memory_ = vram::Memory::create(GetParam().open(), 0);
  }
  uint64_t held(int32_t purpose = WCUDA_PURPOSE_ANY) const {
    return memory_->ledger().sum(purpose).current_bytes;
  }
  std::shared_ptr<vram::Memory> memory_;
};

TEST_P(ModelUpload, holds_every_tensor_of_every_loadable_type_and_its_digests) {
  for (uint32_t type = 0; type < 64; ++type) {
    const quant::Format* format = quant::find_format(type);
    if (format == nullptr || !format->is_loadable) continue;
    SCOPED_TRACE(format->name);
    const std::string bytes = TinyModel::of_type(type).build();
    const auto file = open(bytes);

    const auto model = Model::load(memory_, file, {});

    ASSERT_TRUE(model.ok()) << model.status().message();
    expect_model_is_the_files(**model, *file);
    EXPECT_EQ((*model)->weights().token_embedding.layout, Layout::kGpu16);
    EXPECT_TRUE((*model)->verify().ok());
  }
}

TEST_P(ModelUpload, expands_vectors_of_each_type) {
  TinyModel tiny;
  tiny.has_all_biases = tiny.has_output = true;
  for (const uint32_t type : {testing::kF32, testing::kF16, testing::kBF16}) {
    tiny.vector_type = type;
    const std::string bytes = tiny.build();
    const auto file = open(bytes);

    const auto model = Model::load(memory_, file, {});

    ASSERT_TRUE(model.ok()) << model.status().message();
    expect_model_is_the_files(**model, *file);
  }
}

TEST_P(ModelUpload, plan_equals_the_ledger_to_the_byte) {
  const std::string bytes = TinyModel::of_type(testing::kQ6_K).build();
  const auto file = open(bytes);

  const auto model = Model::load(memory_, file, {});
  const auto plan = plan_load(memory_->backend(), *file);

  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(held(WCUDA_PURPOSE_WEIGHTS), plan->weights_bytes);
  EXPECT_EQ(held(), plan->weights_bytes);
  EXPECT_EQ(held(WCUDA_PURPOSE_STAGING), 0u);
  EXPECT_EQ(memory_->ledger().sum(WCUDA_PURPOSE_STAGING).peak_bytes, plan->staging_bytes);
  EXPECT_EQ(memory_->ledger().sum(WCUDA_PURPOSE_ANY).peak_bytes,
            plan->weights_bytes + plan->loading_bytes);
  EXPECT_LE(plan->staging_bytes, uint64_t{256} << 20);
}

TEST_P(ModelUpload, tensors_take_turns_in_a_small_staging_buffer) {
  TinyModel tiny = TinyModel::of_type(testing::kQ4_K);
  tiny.vocabulary_size = 997;
  tiny.layer_count = 9;
  const std::string bytes = tiny.build();
  const auto file = open(bytes);
  auto plan = plan_load_in_detail(memory_->backend(), *file);
  ASSERT_TRUE(plan.ok());
  for (const uint64_t extra : {0u, 256u, 5000u}) {
    plan->device_staging_bytes = extra;
    for (PlannedTensor& tensor : plan->tensors) {
      plan->device_staging_bytes =
          std::max(plan->device_staging_bytes, (tensor.file_bytes + 255) / 256 * 256 + extra);
      tensor.waits_for = 0;
    }
    assign_staged_offsets(&*plan);
    plan->slice_bytes = 4096;
    uint64_t target_bytes = 0;
    for (const PlannedTensor& tensor : plan->tensors)
      target_bytes += (tensor.bytes + 255) / 256 * 256;
    const auto slices = memory_->allocate_pinned(plan->slice_count * plan->slice_bytes, "slices");
    const auto staged =
        memory_->allocate(plan->plan.loading_bytes, WCUDA_PURPOSE_SCRATCH, "staged");
    const auto weights = memory_->allocate(target_bytes, WCUDA_PURPOSE_WEIGHTS, "weights");
    ASSERT_TRUE(slices.ok() && staged.ok() && weights.ok());
    std::vector<uint8_t*> targets;
    uint8_t* next = weights->data();
    for (const PlannedTensor& tensor : plan->tensors) {
      targets.push_back(next);
      next += (tensor.bytes + 255) / 256 * 256;
    }
    UploadArgs args;
    args.backend = &memory_->backend();
    args.file = file.get();
    args.plan = &*plan;
    args.slices = slices->data();
    args.staged = staged->data();
    args.targets = &targets;
    args.check_cancelled = args.report = [](uint64_t) { return Status(); };

    const Result<Uploaded> uploaded = upload(args);

    ASSERT_TRUE(uploaded.ok()) << uploaded.status().message();
    for (size_t i = 0; i < plan->tensors.size(); ++i) {
      const PlannedTensor& tensor = plan->tensors[i];
      const std::string in_file = file_bytes_of(*file, tensor.index);
      std::vector<uint8_t> placed(tensor.bytes);
      ASSERT_TRUE(memory_->backend().copy_to_host(placed.data(), targets[i], placed.size()).ok());
      const TensorDigests& digests = uploaded->digests[i];
      EXPECT_EQ(digests.file, blake3_of(in_file.data(), in_file.size())) << tensor.slot.name;
      EXPECT_EQ(digests.resident, blake3_of(placed.data(), placed.size())) << tensor.slot.name;
      if (!tensor.slot.is_vector && kernels::has_scale_factor(tensor.type)) {
        const auto* const blocks = reinterpret_cast<const uint8_t*>(in_file.data());
        EXPECT_GT(uploaded->scale_bounds[i], 0.0f);
        EXPECT_EQ(uploaded->scale_bounds[i],
                  quant::scale_bound(tensor.type, blocks, in_file.size()));
      }
    }
  }
}

TEST_P(ModelUpload, every_kind_of_source_gives_the_same_model) {
  const testing::TempFolder folder;
  const std::string bytes = TinyModel::of_type(testing::kQ4_K).build();
  const std::string path = folder.write("model.gguf", bytes);
  std::vector<Result<std::shared_ptr<gguf::Source>>> sources;
  sources.push_back(gguf::open_path(path));
  FILE* const stream = std::fopen(path.c_str(), "rb");
  sources.push_back(gguf::open_descriptor(fileno(stream)));
  sources.push_back(gguf::open_memory(bytes.data(), bytes.size()));
  sources.push_back(gguf::open_callback(
      [](void* user, uint64_t offset, void* target, uint64_t count) -> int32_t {
        std::memcpy(target, static_cast<const std::string*>(user)->data() + offset, count);
        return 0;
      },
      const_cast<std::string*>(&bytes), bytes.size()));
  for (auto& source : sources) {
    const auto file = gguf::Gguf::open(source.take());
    ASSERT_TRUE(file.ok());
    const auto model = Model::load(memory_, *file, {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    expect_model_is_the_files(**model, **file);
  }
  std::fclose(stream);
}

TEST_P(ModelUpload, a_file_that_shrank_since_the_plan_is_refused) {
  const testing::TempFolder folder;
  const std::string bytes = TinyModel::of_type(testing::kF16).build();
  const std::string path = folder.write("model.gguf", bytes);
  const auto file = gguf::Gguf::open_path(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(bytes.size() - 5000)), 0);

  const auto model = Model::load(memory_, *file, {});

  EXPECT_EQ(model.status().code(), WCUDA_IO);
  EXPECT_NE(std::string(model.status().message()).find("truncated since"), std::string::npos);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(held(WCUDA_PURPOSE_STAGING), 0u);
}

TEST_P(ModelUpload, verify_names_the_tensor_whose_bit_has_flipped) {
  const std::string bytes = TinyModel().build();
  const auto model = Model::load(memory_, open(bytes), {}).take();
  Backend& backend = memory_->backend();
  for (const ResidentTensor& tensor : model->tensors()) {
    auto* const last = const_cast<uint8_t*>(static_cast<const uint8_t*>(tensor.matrix.data)) +
                       tensor.matrix.bytes - 1;
    uint8_t byte = 0;
    ASSERT_TRUE(backend.copy_to_host(&byte, last, 1).ok());
    byte ^= 0x10;
    ASSERT_TRUE(backend.copy_to_device(last, &byte, 1).ok());

    const Status flipped = model->verify();

    EXPECT_EQ(flipped.code(), WCUDA_INTEGRITY);
    EXPECT_NE(std::string(flipped.message()).find("'" + tensor.name + "'"), std::string::npos)
        << flipped.message();
    byte ^= 0x10;
    ASSERT_TRUE(backend.copy_to_device(last, &byte, 1).ok());
    EXPECT_TRUE(model->verify().ok());
  }
}

TEST_P(ModelUpload, asks_for_memory_before_it_takes_any) {
  const std::string bytes = TinyModel().build();
  const auto file = open(bytes);
  const auto plan = plan_load(memory_->backend(), *file);
  const uint64_t needed = plan->weights_bytes + plan->loading_bytes;
  const auto narrow = vram::Memory::create(memory_->shared_backend(), needed - 1);

  const auto refused = Model::load(narrow, file, {});
  const auto fits = Model::load(vram::Memory::create(memory_->shared_backend(), needed), file, {});

  EXPECT_EQ(refused.status().code(), WCUDA_OVER_BUDGET);
  EXPECT_EQ(std::string(refused.status().message()),
            "the weights need " + std::to_string(plan->weights_bytes) + " bytes, and " +
                std::to_string(plan->loading_bytes) + " while they are loaded, " +
                std::to_string(needed - 1) + " are left in the budget");
  EXPECT_EQ(narrow->ledger().sum(WCUDA_PURPOSE_ANY).total_allocation_count, 0u);
  EXPECT_TRUE(fits.ok());
}

// A model of 77 MB behind a callback that counts what was read.
struct CountedFile {
  CountedFile() {
    TinyModel tiny;
    tiny.weight_type = tiny.embedding_type = testing::kF32;
    tiny.vocabulary_size = 300000;
    tiny.has_tokens = false;
    bytes = tiny.build();
    auto source = gguf::open_callback(
        [](void* user, uint64_t offset, void* target, uint64_t count) -> int32_t {
          CountedFile& counted = *static_cast<CountedFile*>(user);
          std::memcpy(target, counted.bytes.data() + offset, count);
          counted.read += count;
          return 0;
        },
        this, bytes.size());
    file = gguf::Gguf::open(source.take()).take();
  }
  std::string bytes;
  std::shared_ptr<gguf::Gguf> file;
  std::atomic<uint64_t> read{0};
};

TEST_P(ModelUpload, stops_within_16_mib_of_reading_when_cancelled) {
  CountedFile counted;
  std::atomic<uint64_t> at_cancel{0};
  LoadOptions options;
  options.is_cancelled = [&] {
    uint64_t none = 0;
    if (counted.read > (30u << 20)) at_cancel.compare_exchange_strong(none, counted.read);
    return at_cancel != 0;
  };

  const auto model = Model::load(memory_, counted.file, options);

  EXPECT_EQ(model.status().code(), WCUDA_CANCELLED);
  EXPECT_LE(counted.read - at_cancel, 16u << 20);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(held(WCUDA_PURPOSE_STAGING), 0u);
}

TEST_P(ModelUpload, reports_on_its_own_thread_bytes_that_rise_by_16_mib_at_most) {
  CountedFile counted;
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<int32_t> phases;
  uint64_t last = 0, largest_step = 0, total = 0;
  LoadOptions options;
  options.progress = [&](int32_t phase, uint64_t done, uint64_t all) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    if (phases.empty() || phases.back() != phase) phases.push_back(phase);
    EXPECT_GE(done, last);
    largest_step = std::max(largest_step, done - last);
    last = done;
    total = all;
    return true;
  };

  const auto model = Model::load(memory_, counted.file, options);

  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(phases, (std::vector<int32_t>{WCUDA_LOAD_PLAN, WCUDA_LOAD_RESERVE, WCUDA_LOAD_UPLOAD,
                                          WCUDA_LOAD_SEAL}));
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, counted.file->tensor_bytes());
  EXPECT_LE(largest_step, 16u << 20);
}

TEST_P(ModelUpload, stops_at_any_call_of_progress) {
  const std::string bytes = TinyModel().build();
  const auto file = open(bytes);
  for (int stop = 1;; ++stop) {
    int call = 0;
    LoadOptions options;
    options.progress = [&](int32_t, uint64_t, uint64_t) { return ++call < stop; };
    const auto model = Model::load(memory_, file, options);
    if (model.ok()) {
      EXPECT_GT(stop, 3);
      break;
    }
    EXPECT_EQ(model.status().code(), WCUDA_CANCELLED);
    EXPECT_EQ(call, stop);  // never called again
    EXPECT_EQ(held(), 0u);
  }
}

TEST_P(ModelUpload, passes_a_failing_read_up_at_every_read) {
  const std::string bytes = TinyModel().build();
  struct Failing {
    const std::string* bytes;
    std::atomic<int> left;
  } failing{&bytes, {1 << 20}};
  auto source = gguf::open_callback(
      [](void* user, uint64_t offset, void* target, uint64_t count) -> int32_t {
        Failing& f = *static_cast<Failing*>(user);
        if (f.left.fetch_sub(1) <= 0) return 5;
        std::memcpy(target, f.bytes->data() + offset, count);
        return 0;
      },
      &failing, bytes.size());
  const auto file = gguf::Gguf::open(source.take()).take();
  failing.left = 1 << 20;
  ASSERT_TRUE(Model::load(memory_, file, {}).ok());
  const int reads = (1 << 20) - failing.left;
  ASSERT_GT(reads, 15);

  for (int k = 0; k < reads; ++k) {
    failing.left = k;
    const auto model = Model::load(memory_, file, {});
    EXPECT_EQ(model.status().code(), WCUDA_IO) << k;
    EXPECT_EQ(held(), 0u);
    EXPECT_EQ(held(WCUDA_PURPOSE_STAGING), 0u);
  }
}

// Fails the k-th call of a kind for k = 1, 2, … until a load gets through. With several readers the
// calls come in another order every time: none of them may leave anything.
TEST_P(ModelUpload, every_call_that_fails_leaves_nothing) {
  const auto fault = std::make_shared<FaultBackend>(memory_->shared_backend());
  const auto memory = vram::Memory::create(fault, 0);
  const std::string bytes = TinyModel().build();
  const auto file = open(bytes);
  struct Kind {
    CallKind kind;
    Code code;
    int failures_min;
  };
  // Vectors, staging, embedding, seven matrices a layer; a copy a tensor; two digests and a repack
  // a tensor; a wait for what is placed.
  for (const Kind& kind : {Kind{CallKind::kAllocate, WCUDA_OUT_OF_MEMORY, 2 + 1 + 2 * 7},
                           Kind{CallKind::kCopy, WCUDA_DEVICE_ERROR, 20},
                           Kind{CallKind::kLaunch, WCUDA_DEVICE_ERROR, 3 * 20},
                           Kind{CallKind::kOther, WCUDA_DEVICE_ERROR, 100}}) {
    int failures = 0;
    for (uint64_t k = 1; k < 2000; ++k) {
      fault->fail(kind.kind, k);
      const auto model = Model::load(memory, file, {});
      if (model.ok()) break;
      ++failures;
      EXPECT_EQ(model.status().code(), kind.code) << k << ": " << model.status().message();
      EXPECT_TRUE(memory->ledger().rows().empty()) << k;
    }
    fault->fail(kind.kind, 0);
    EXPECT_GE(failures, kind.failures_min);
    const auto model = Model::load(memory, file, {});  // the context stays usable
    ASSERT_TRUE(model.ok()) << model.status().message();
    expect_model_is_the_files(**model, *file);
  }
}

std::string name_of(const ::testing::TestParamInfo<Subject>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Pretended, ModelUpload,
    ::testing::Values(
        Subject{"one_reader", [] { return std::make_shared<testing::PretendDevice>(1); }},
        Subject{"five_readers", [] { return std::make_shared<testing::PretendDevice>(5); }}),
    name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, ModelUpload, ::testing::Values(Subject{"cuda", cuda_device}),
                         name_of);

TEST(GpuModelLoad, a_full_device_is_an_error_with_numbers_and_the_process_continues) {
  const auto memory = vram::Memory::create(cuda_device(), 0);
  const CountedFile counted;
  vram::Buffer filling;
  {
    const auto available = memory->available_bytes();
    ASSERT_TRUE(available.ok());
    auto filled =
        memory->allocate(*available - (uint64_t{96} << 20), WCUDA_PURPOSE_USER, "filling");
    ASSERT_TRUE(filled.ok()) << filled.status().message();
    filling = filled.take();
  }

  const auto refused = Model::load(memory, counted.file, {});

  EXPECT_EQ(refused.status().code(), WCUDA_OUT_OF_MEMORY);
  EXPECT_NE(std::string(refused.status().message()).find("bytes"), std::string::npos);
  EXPECT_EQ(memory->ledger().rows().size(), 1u);
  filling.reset();
  const auto model = Model::load(memory, counted.file, {});
  EXPECT_TRUE(model.ok()) << model.status().message();
}

struct OneReader {
  OneReader() : bytes(TinyModel().build()), file(open(bytes)) {
    fault = std::make_shared<FaultBackend>(std::make_shared<testing::PretendDevice>(1));
    memory = vram::Memory::create(fault, 0);
  }
  std::string bytes;
  std::shared_ptr<gguf::Gguf> file;
  std::shared_ptr<FaultBackend> fault;
  std::shared_ptr<vram::Memory> memory;
};

TEST(ModelUploadFault, a_device_lost_at_any_call) {
  uint64_t calls = 1;
  for (uint64_t k = 1; k <= calls; ++k) {
    OneReader fixture;
    fixture.fault->lose_device(0);
    if (k == 1) {
      const auto model = Model::load(fixture.memory, fixture.file, {});
      ASSERT_TRUE(model.ok());
      calls = fixture.fault->call_count();  // before the model goes, which waits for its memory
      ASSERT_GT(calls, 100u);
    }
    fixture.fault->lose_device(k);
    const auto model = Model::load(fixture.memory, fixture.file, {});
    EXPECT_EQ(model.status().code(), WCUDA_DEVICE_LOST) << k << " of " << calls;
    EXPECT_TRUE(fixture.memory->ledger().rows().empty()) << k;
  }
}

TEST(ModelUploadFault, host_memory_that_runs_out_at_any_point) {
  OneReader fixture;
  int failures = 0;
  for (int64_t k = 1; k < 100000; ++k) {
    bool happened = false, loaded = false;
    {
      const testing::FailAllocation fail(k);
      try {
        loaded = Model::load(fixture.memory, fixture.file, {}).ok();
      } catch (const std::bad_alloc&) {
      }
      happened = fail.happened();
    }
    ASSERT_TRUE(fixture.memory->ledger().rows().empty()) << k;
    if (!happened) {
      EXPECT_TRUE(loaded);
      break;
    }
    ++failures;
  }
  EXPECT_GT(failures, 50);
}

TEST(ModelDigests, of_a_model_on_the_host_are_those_of_its_file) {
  for (const uint32_t type : {testing::kQ8_0, testing::kQ6_K, testing::kF16, testing::kQ2_K}) {
    TinyModel tiny = TinyModel::of_type(type);
    tiny.vector_type = testing::kF16;
    const std::string bytes = tiny.build();
    const auto file = open(bytes);
    const auto memory = vram::Memory::create(open_host_backend(0, 2).take(), 0);
    const auto model = Model::load(memory, file, {}).take();
    for (const ResidentTensor& tensor : model->tensors()) {
      const std::string in_file = file_bytes_of(*file, tensor.index);
      const auto digests = model->digests(tensor.index);
      ASSERT_TRUE(digests.ok()) << digests.status().message();
      EXPECT_EQ(digests->file, blake3_of(in_file.data(), in_file.size())) << tensor.name;
    }
    EXPECT_TRUE(model->verify().ok());
    auto* const byte =
        const_cast<uint8_t*>(static_cast<const uint8_t*>(model->weights().layers[1].down.data));
    *byte ^= 1;
    EXPECT_NE(std::string(model->verify().message()).find("'blk.1.ffn_down.weight'"),
              std::string::npos);
    *byte ^= 1;
    const Status none = model->digests(file->tensors().size()).status();
    EXPECT_EQ(none.code(), WCUDA_NOT_FOUND);
    EXPECT_EQ(none.message(), "tensor " + std::to_string(file->tensors().size()) +
                                  " of the file is not among the weights");
  }
}

TEST(ModelPlan, tensors_fill_the_staging_buffer_to_its_end_and_begin_again) {
  DetailedPlan plan;
  plan.device_staging_bytes = 768;
  for (const uint64_t bytes : {256, 256, 256, 300, 200}) {
    PlannedTensor tensor{};
    tensor.file_bytes = bytes;
    plan.tensors.push_back(tensor);
  }

  assign_staged_offsets(&plan);

  const uint64_t offsets[] = {0, 256, 512, 0, 512}, waits[] = {0, 0, 0, 2, 3};
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    EXPECT_EQ(plan.tensors[i].staged_offset, offsets[i]) << i;
    EXPECT_EQ(plan.tensors[i].waits_for, waits[i]) << i;
  }
}

TEST(ModelPlan, tensors_in_the_staging_buffer_never_overlap) {
  const std::string bytes = TinyModel::of_type(testing::kQ4_K).build();
  const auto file = open(bytes);
  const testing::PretendDevice device(2);
  auto plan = plan_load_in_detail(device, *file);
  ASSERT_TRUE(plan.ok());
  uint64_t largest = 0;
  for (const PlannedTensor& tensor : plan->tensors)
    largest = std::max(largest, (tensor.file_bytes + 255) / 256 * 256);
  for (PlannedTensor& tensor : plan->tensors) tensor.waits_for = 0;
  plan->device_staging_bytes = largest + 4096;

  assign_staged_offsets(&*plan);

  size_t waits = 0;
  for (size_t i = 0; i < plan->tensors.size(); ++i) {
    const PlannedTensor& tensor = plan->tensors[i];
    EXPECT_EQ(tensor.staged_offset % 256, 0u);
    EXPECT_LE(tensor.staged_offset + tensor.file_bytes, plan->device_staging_bytes);
    EXPECT_LE(tensor.waits_for, i);
    waits += tensor.waits_for > 0;
    for (size_t j = tensor.waits_for; j < i; ++j) {
      const PlannedTensor& other = plan->tensors[j];
      EXPECT_TRUE(other.staged_offset + other.file_bytes <= tensor.staged_offset ||
                  tensor.staged_offset + tensor.file_bytes <= other.staged_offset)
          << tensor.slot.name << " and " << other.slot.name;
    }
  }
  EXPECT_GT(waits, 3u);
}

}  // namespace
}  // namespace wcuda::model
