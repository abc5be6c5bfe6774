#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/backend/host_backend.h"
#include "llm/gguf/gguf_open.h"
#include "llm/model/model.h"
#include "llm/model/plan.h"
#include "llm/model/tiny_model.h"
#include "llm/quant/layout_host.h"

namespace wcuda::model {
namespace {

using testing::GgufBuilder;
using testing::TinyModel;

std::shared_ptr<vram::Memory> host_memory(uint64_t budget = 0, uint32_t threads = 2) {
  auto backend = open_host_backend(budget, threads);
  EXPECT_TRUE(backend.ok());
  return vram::Memory::create(backend.take(), budget);
}

// A model made from bytes that live as long as it.
struct Loaded {
  explicit Loaded(std::string file_bytes, std::shared_ptr<vram::Memory> in = host_memory(),
                  const LoadOptions& options = {})
      : bytes(std::move(file_bytes)), memory(std::move(in)) {
    auto opened = testing::open_bytes(bytes);
    if (!opened.ok()) {
      status = opened.status();
      return;
    }
    file = opened.take();
    auto loaded = Model::load(memory, file, options);
    status = loaded.status();
    if (loaded.ok()) model = loaded.take();
  }
  uint64_t held(int32_t purpose) const { return memory->ledger().sum(purpose).current_bytes; }

  std::string bytes;
  std::shared_ptr<vram::Memory> memory;
  std::shared_ptr<gguf::Gguf> file;
  Status status;
  std::shared_ptr<Model> model;
};

// A matrix on the device, back in the file's order.
std::string file_bytes_of(const Weight& weight) {
  const uint64_t bytes =
      *quant::row_bytes(*quant::find_format(weight.type), uint64_t{weight.rows} * weight.cols);
  std::string out(bytes, '\0');
  uint8_t* target = reinterpret_cast<uint8_t*>(out.data());
  if (weight.layout == Layout::kRows)
    std::memcpy(target, weight.data, bytes);
  else
    EXPECT_TRUE(quant::unpack_host(weight.type, weight.layout, weight.rows, weight.cols, 0,
                                   weight.rows, static_cast<const uint8_t*>(weight.data), target)
                    .ok());
  return out;
}

std::string read_tensor(const gguf::Gguf& file, const std::string& name) {
  uint64_t index = 0;
  const gguf::Tensor* tensor = file.find_tensor(name, &index);
  if (tensor == nullptr) return "no such tensor";
  std::string data(tensor->bytes, '\0');
  EXPECT_TRUE(file.read_tensor(index, 0, data.data(), data.size()).ok());
  return data;
}

void expect_weights_are_the_files(const Loaded& loaded) {
  const Weights& w = loaded.model->weights();
  const auto expect = [&](const std::string& name, const Weight& weight) {
    EXPECT_EQ(file_bytes_of(weight), read_tensor(*loaded.file, name)) << name;
  };
  expect("token_embd.weight", w.token_embedding);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    expect(layer + "attn_q.weight", w.layers[i].query);
    expect(layer + "attn_k.weight", w.layers[i].key);
    expect(layer + "attn_v.weight", w.layers[i].value);
    expect(layer + "attn_output.weight", w.layers[i].attention_output);
    expect(layer + "ffn_gate.weight", w.layers[i].gate);
    expect(layer + "ffn_up.weight", w.layers[i].up);
    expect(layer + "ffn_down.weight", w.layers[i].down);
  }
}

TEST(ModelLoad, holds_every_matrix_of_every_loadable_type_bit_for_bit) {
  for (uint32_t type = 0; type < 64; ++type) {
    const quant::Format* format = quant::find_format(type);
    if (format == nullptr || !format->is_loadable) continue;
    SCOPED_TRACE(format->name);

    const Loaded loaded(TinyModel::of_type(type).build());

    ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
    expect_weights_are_the_files(loaded);
  }
}

TEST(ModelLoad, cuts_matrices_that_do_not_fit_one_slice) {
  TinyModel tiny;
  tiny.vocabulary_size = 40001;  // 40001 * 68 bytes: a slice and a part, odd rows at the end
  tiny.has_tokens = false;
  for (const uint32_t threads : {1u, 3u}) {
    const Loaded loaded(tiny.build(), host_memory(0, threads));
    ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
    expect_weights_are_the_files(loaded);
  }
}

TEST(ModelLoad, expands_vectors_of_each_type_to_f32) {
  TinyModel tiny;
  tiny.has_all_biases = true;
  std::vector<std::vector<float>> seen;
  for (const uint32_t type : {testing::kF32, testing::kF16, testing::kBF16}) {
    tiny.vector_type = type;
    const Loaded loaded(tiny.build());
    ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
    const Weights& w = loaded.model->weights();
    std::vector<float> values(w.output_norm, w.output_norm + 64);
    for (const LayerWeights& layer : w.layers) {
      values.insert(values.end(), layer.query_bias, layer.query_bias + 64);
      values.insert(values.end(), layer.up_bias, layer.up_bias + 96);
      values.insert(values.end(), layer.down_bias, layer.down_bias + 64);
    }
    seen.push_back(values);
  }
  EXPECT_EQ(seen[0], seen[1]);  // multiples of 1/64 near 0 and 1: exact in all three
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_GT(*std::max_element(seen[0].begin(), seen[0].end()), 1.0f);
}

TEST(ModelLoad, lists_tensors_in_the_order_of_the_file) {
  TinyModel tiny;
  tiny.omit = {"token_embd.weight"};
  GgufBuilder builder = tiny.builder();
  const uint64_t rows = tiny.vocabulary_size, cols = tiny.embedding_length;
  builder.tensor_f32("token_embd.weight", {cols, rows}, std::vector<float>(cols * rows, 0.5f));

  const Loaded loaded(builder.build());

  ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
  const auto& tensors = loaded.model->tensors();
  ASSERT_EQ(tensors.size(), loaded.file->tensors().size());
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(tensors[i].index, i);
  EXPECT_EQ(tensors.back().name, "token_embd.weight");
}

TEST(ModelLoad, leaves_absent_tensors_null) {
  const Loaded llama(TinyModel().build());
  const LayerWeights& layer = llama.model->weights().layers[1];
  EXPECT_EQ(layer.query_bias, nullptr);
  EXPECT_EQ(layer.query_norm, nullptr);
  EXPECT_EQ(layer.down_bias, nullptr);
  EXPECT_EQ(llama.model->weights().output_bias, nullptr);
  EXPECT_NE(layer.attention_norm, nullptr);

  TinyModel tiny;
  tiny.architecture = "qwen2";
  EXPECT_NE(Loaded(tiny.build()).model->weights().layers[0].key_bias, nullptr);
  tiny.architecture = "qwen3";
  EXPECT_NE(Loaded(tiny.build()).model->weights().layers[0].key_norm, nullptr);
}

TEST(ModelLoad, ties_the_output_to_the_embedding_when_there_is_none) {
  TinyModel tiny;
  const Loaded tied(tiny.build());
  EXPECT_EQ(tied.model->weights().output.data, tied.model->weights().token_embedding.data);
  EXPECT_EQ(tied.model->weights().output.rows, 97u);

  tiny.has_output = true;
  const Loaded untied(tiny.build());
  EXPECT_NE(untied.model->weights().output.data, untied.model->weights().token_embedding.data);
  EXPECT_EQ(file_bytes_of(untied.model->weights().output),
            read_tensor(*untied.file, "output.weight"));
  EXPECT_GT(untied.model->plan().parameter_count, tied.model->plan().parameter_count);
}

TEST(ModelLoad, divides_rope_frequencies_by_the_factors_of_the_file) {
  TinyModel tiny;
  const Loaded plain(tiny.build());
  tiny.has_rope_factors = true;
  const Loaded loaded(tiny.build());

  ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
  for (size_t i = 0; i < 8; ++i) {
    const float expected =
        plain.model->config().rope_frequencies[i] / (1.0f + 0.5f * static_cast<float>(i));
    EXPECT_EQ(loaded.model->config().rope_frequencies[i], expected);
    EXPECT_EQ(loaded.model->weights().rope_frequencies[i], expected);
  }
}

TEST(ModelLoad, the_first_verify_on_the_host_finds_a_flipped_bit) {
  const Loaded loaded(TinyModel().build());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
  const ResidentTensor& tensor = loaded.model->tensors().back();
  auto* const bytes = const_cast<uint8_t*>(static_cast<const uint8_t*>(tensor.matrix.data));
  bytes[tensor.matrix.bytes / 2] ^= 1;

  const Status verified = loaded.model->verify();

  EXPECT_EQ(verified.code(), WCUDA_INTEGRITY);
  EXPECT_NE(std::string(verified.message()).find("'" + tensor.name + "'"), std::string::npos)
      << verified.message();
}

TEST(ModelLoad, reads_the_models_of_the_oracle) {
  for (const char* name : {"llama", "llama-biases", "llama-tied-odd-sizes", "llama-rope-llama3",
                           "llama-rope-yarn", "llama-window", "qwen2", "qwen3"}) {
    auto file = gguf::Gguf::open_path(WCUDA_TEST_DATA "/models/" + std::string(name) + ".gguf");
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto model = Model::load(host_memory(), file.take(), {});
    ASSERT_TRUE(model.ok()) << name << ": " << model.status().message();
    EXPECT_EQ((*model)->config().sliding_window, std::string(name) == "llama-window" ? 9u : 0u);
  }
}

TEST(ModelPlan, equals_the_ledger_to_the_byte) {
  std::vector<TinyModel> models(4);
  models[1].architecture = "qwen3";
  models[1].has_output = true;
  models[2] = TinyModel::of_type(testing::kQ4_K);
  models[2].has_all_biases = true;
  models[3].vocabulary_size = 1;
  for (const TinyModel& tiny : models) {
    const Loaded loaded(tiny.build());
    ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
    const auto plan = plan_load(loaded.memory->backend(), *loaded.file);

    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(loaded.held(WCUDA_PURPOSE_WEIGHTS), plan->weights_bytes);
    EXPECT_EQ(loaded.held(WCUDA_PURPOSE_ANY), plan->weights_bytes);
    EXPECT_EQ(loaded.held(WCUDA_PURPOSE_STAGING), 0u);
    EXPECT_EQ(loaded.memory->ledger().sum(WCUDA_PURPOSE_STAGING).peak_bytes, plan->staging_bytes);
    EXPECT_EQ(loaded.memory->ledger().sum(WCUDA_PURPOSE_ANY).peak_bytes, plan->weights_bytes);
  }
}

TEST(ModelPlan, counts_parameters_once) {
  TinyModel tiny;
  const uint64_t layer = 64 + 64 * 64 + 2 * 32 * 64 + 64 * 64 + 64 + 3 * 96 * 64;
  const Loaded loaded(tiny.build());
  EXPECT_EQ(loaded.model->plan().parameter_count, 97 * 64 + 64 + 2 * layer);
}

TEST(ModelPlan, bounds_the_staging_memory) {
  TinyModel tiny;
  tiny.vocabulary_size = 200000;
  tiny.has_tokens = false;
  const Loaded loaded(tiny.build(), host_memory(0, 16));
  ASSERT_TRUE(loaded.status.ok());
  EXPECT_LE(loaded.model->plan().staging_bytes, 8u << 20);
}

TEST(ModelPlan, ledger_names_each_matrix) {
  const Loaded loaded(TinyModel().build());
  std::vector<std::string> tags;
  for (const auto& row : loaded.memory->ledger().rows()) tags.emplace_back(row.entry.tag);
  EXPECT_EQ(tags.size(), 1u + 1 + 2 * 7);
  for (const char* tag : {"vectors", "token_embd.weight", "blk.1.ffn_down.weight"})
    EXPECT_EQ(std::count(tags.begin(), tags.end(), tag), 1) << tag;
}

TEST(ModelLoad, memory_goes_with_the_model) {
  Loaded loaded(TinyModel().build());
  loaded.model.reset();
  EXPECT_EQ(loaded.held(WCUDA_PURPOSE_ANY), 0u);
  EXPECT_TRUE(loaded.memory->ledger().rows().empty());
}

// What every refusal must leave behind.
void expect_refused(const Loaded& loaded, Code code, const std::string& part_of_message) {
  EXPECT_EQ(loaded.status.code(), code);
  EXPECT_NE(std::string(loaded.status.message()).find(part_of_message), std::string::npos)
      << loaded.status.message();
  EXPECT_EQ(loaded.model, nullptr);
  EXPECT_EQ(loaded.held(WCUDA_PURPOSE_ANY), 0u);
  EXPECT_EQ(loaded.held(WCUDA_PURPOSE_STAGING), 0u);
}

TEST(ModelPlan, names_a_missing_tensor) {
  TinyModel tiny;
  for (const char* name :
       {"blk.1.ffn_down.weight", "output_norm.weight", "blk.0.attn_norm.weight"}) {
    tiny.omit = {name};
    expect_refused(Loaded(tiny.build()), WCUDA_MALFORMED,
                   "tensor '" + std::string(name) + "' is missing");
  }
  tiny.architecture = "qwen2";
  tiny.omit = {"blk.0.attn_k.bias"};
  expect_refused(Loaded(tiny.build()), WCUDA_MALFORMED, "'blk.0.attn_k.bias' is missing");
  tiny.architecture = "qwen3";
  tiny.omit = {"blk.1.attn_q_norm.weight"};
  expect_refused(Loaded(tiny.build()), WCUDA_MALFORMED, "'blk.1.attn_q_norm.weight' is missing");
}

TEST(ModelPlan, refuses_every_tensor_of_another_shape) {
  const TinyModel tiny;
  std::vector<std::string> names;
  {
    const Loaded loaded(tiny.build());
    for (const gguf::Tensor& tensor : loaded.file->tensors()) names.emplace_back(tensor.name);
  }
  for (const std::string& name : names) {
    TinyModel changed = tiny;
    changed.omit = {name};
    const Loaded loaded(
        changed.builder().tensor_f32(name, {3, 2}, std::vector<float>(6, 1.0f)).build());
    EXPECT_EQ(loaded.status.code(), WCUDA_MALFORMED) << name << loaded.status.message();
  }
}

TEST(ModelPlan, reports_the_shape_found_and_the_shape_needed) {
  TinyModel tiny;
  tiny.omit = {"blk.0.attn_k.weight"};
  const Loaded loaded(
      tiny.builder().tensor_f32("blk.0.attn_k.weight", {64, 16}, std::vector<float>(1024)).build());
  expect_refused(loaded, WCUDA_MALFORMED,
                 "tensor 'blk.0.attn_k.weight' is 64 x 16 x 1 x 1, the hyper-parameters of this "
                 "'llama' require 64 x 32");
}

TEST(ModelPlan, refuses_types_that_no_weight_may_have) {
  TinyModel tiny;
  tiny.omit = {"blk.0.attn_k.weight"};
  const Loaded q8_1(
      tiny.builder()
          .tensor("blk.0.attn_k.weight", {64, 32}, 9, std::string(64 * 32 / 32 * 36, '\1'))
          .build());
  expect_refused(q8_1, WCUDA_UNSUPPORTED, "'blk.0.attn_k.weight' is of type Q8_1");

  tiny.omit = {"blk.0.attn_norm.weight"};
  const Loaded q8_0(
      tiny.builder()
          .tensor("blk.0.attn_norm.weight", {64}, testing::kQ8_0, std::string(2 * 34, '\1'))
          .build());
  expect_refused(q8_0, WCUDA_UNSUPPORTED, "must be F32, F16 or BF16");
}

TEST(ModelPlan, refuses_network_tensors_it_does_not_know) {
  for (const char* name : {"blk.0.attn_sub_norm.weight", "blk.0.attn_sinks.weight",
                           "blk.2.attn_q.weight", "blk.0.attn_q.scale", "position_embd.weight",
                           "output.scale", "blk.x", "token_types.weight"}) {
    const Loaded loaded(TinyModel().builder().tensor_f32(name, {4}, {1, 2, 3, 4}).build());
    expect_refused(loaded, WCUDA_UNSUPPORTED, std::string("tensor '") + name + "' is not part of");
  }
}

TEST(ModelPlan, ignores_tensors_that_are_not_of_the_network) {
  for (const char* name : {"v.blk.0.attn_q.weight", "blk.0.attn_rot_embd.weight", "extra"}) {
    const Loaded loaded(TinyModel().builder().tensor_f32(name, {4}, {1, 2, 3, 4}).build());
    EXPECT_TRUE(loaded.status.ok()) << name << loaded.status.message();
  }
}

TEST(ModelPlan, refuses_rope_factors_of_another_shape_or_type) {
  for (const uint64_t count : {7u, 9u}) {
    const Loaded loaded(TinyModel()
                            .builder()
                            .tensor_f32("rope_freqs.weight", {count},
                                        std::vector<float>(static_cast<size_t>(count), 1.0f))
                            .build());
    expect_refused(loaded, WCUDA_UNSUPPORTED, "must be F32 and 8");
  }
}

TEST(ModelLoad, refuses_rope_factors_that_are_not_finite) {
  const Loaded loaded(
      TinyModel().builder().tensor_f32("rope_freqs.weight", {8}, {1, 1, 1, 0, 1, 1, 1, 1}).build());
  expect_refused(loaded, WCUDA_MALFORMED, "element 3 is 0");
}

TEST(ModelLoad, asks_for_memory_before_it_takes_any) {
  const Loaded fits(TinyModel().build());
  const uint64_t needed = fits.model->plan().weights_bytes;

  expect_refused(Loaded(TinyModel().build(), host_memory(needed - 1)), WCUDA_OVER_BUDGET,
                 "the weights need " + std::to_string(needed) + " bytes, " +
                     std::to_string(needed - 1) + " are left in the budget");
  EXPECT_TRUE(Loaded(TinyModel().build(), host_memory(needed)).status.ok());
}

TEST(ModelLoad, reports_phases_in_order_and_bytes_that_rise) {
  TinyModel tiny;
  tiny.weight_type = tiny.embedding_type = testing::kF32;
  tiny.vocabulary_size = 200001;  // 51 MB
  tiny.has_tokens = false;
  std::vector<int32_t> phases;
  uint64_t last = 0, largest_step = 0, total = 0;
  LoadOptions options;
  options.progress = [&](int32_t phase, uint64_t done, uint64_t all) {
    if (phases.empty() || phases.back() != phase) phases.push_back(phase);
    EXPECT_GE(done, last);
    largest_step = std::max(largest_step, done - last);
    last = done;
    total = all;
    return true;
  };

  const Loaded loaded(tiny.build(), host_memory(), options);

  ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
  EXPECT_EQ(phases, (std::vector<int32_t>{WCUDA_LOAD_PLAN, WCUDA_LOAD_RESERVE, WCUDA_LOAD_UPLOAD,
                                          WCUDA_LOAD_SEAL}));
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, loaded.file->tensor_bytes());
  EXPECT_LE(largest_step, 16u << 20);
}

TEST(ModelLoad, stops_at_any_call_of_progress) {
  const std::string bytes = TinyModel().build();
  int calls = 0;
  LoadOptions count;
  count.progress = [&](int32_t, uint64_t, uint64_t) { return ++calls > 0; };
  ASSERT_TRUE(Loaded(bytes, host_memory(), count).status.ok());

  for (int stop = 1; stop <= calls; ++stop) {
    int call = 0;
    LoadOptions options;
    options.progress = [&](int32_t, uint64_t, uint64_t) { return ++call < stop; };
    expect_refused(Loaded(bytes, host_memory(), options), WCUDA_CANCELLED, "cancelled at");
    EXPECT_EQ(call, stop);  // never called again
  }
}

TEST(ModelLoad, stops_within_16_mib_of_reading_when_cancelled) {
  TinyModel tiny;
  tiny.weight_type = tiny.embedding_type = testing::kF32;
  tiny.vocabulary_size = 300000;  // 77 MB
  tiny.has_tokens = false;
  const std::string bytes = tiny.build();
  struct Counted {
    const std::string* bytes;
    std::atomic<uint64_t> read{0};
    std::atomic<bool> cancel{false};
    uint64_t at_cancel = 0;
  } counted;
  counted.bytes = &bytes;
  auto source = gguf::open_callback(
      [](void* user, uint64_t offset, void* target, uint64_t count) -> int32_t {
        Counted& c = *static_cast<Counted*>(user);
        std::memcpy(target, c.bytes->data() + offset, count);
        c.read += count;
        return 0;
      },
      &counted, bytes.size());
  auto file = gguf::Gguf::open(source.take());
  ASSERT_TRUE(file.ok()) << file.status().message();
  LoadOptions options;
  options.is_cancelled = [&] {
    if (!counted.cancel && counted.read > (30u << 20)) {
      counted.cancel = true;
      counted.at_cancel = counted.read;
    }
    return counted.cancel.load();
  };
  const auto memory = host_memory();

  const auto model = Model::load(memory, file.take(), options);

  EXPECT_EQ(model.status().code(), WCUDA_CANCELLED);
  EXPECT_LE(counted.read - counted.at_cancel, 16u << 20);
  EXPECT_LE(counted.read, (30u << 20) + (16u << 20));
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes, 0u);
}

TEST(ModelLoad, passes_a_failing_read_up_at_every_read) {
  const std::string bytes = TinyModel().build();
  struct Failing {
    const std::string* bytes;
    std::atomic<int> left;
  } failing{&bytes, {1 << 20}};
  const auto read = [](void* user, uint64_t offset, void* target, uint64_t count) -> int32_t {
    Failing& f = *static_cast<Failing*>(user);
    if (f.left.fetch_sub(1) <= 0) return 5;
    std::memcpy(target, f.bytes->data() + offset, count);
    return 0;
  };
  auto source = gguf::open_callback(read, &failing, bytes.size());
  auto file = gguf::Gguf::open(source.take());
  ASSERT_TRUE(file.ok());
  const auto memory = host_memory();
  const int before = failing.left;
  ASSERT_TRUE(Model::load(memory, *file, {}).ok());
  const int reads = before - failing.left;
  ASSERT_GT(reads, 15);

  for (int k = 0; k < reads; ++k) {
    failing.left = k;
    const auto model = Model::load(memory, *file, {});
    EXPECT_EQ(model.status().code(), WCUDA_IO) << k;
    EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes, 0u);
    EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes, 0u);
  }
}

}  // namespace
}  // namespace wcuda::model
