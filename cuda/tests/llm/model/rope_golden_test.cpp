// Rotary frequencies against the formulas of transformers (tools/golden/rope.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "llm/gguf/gguf_open.h"
#include "llm/model/config.h"
#include "llm/model/tiny_model.h"

namespace wcuda::model {
namespace {

using testing::GgufBuilder;
using testing::TinyModel;

using Words = std::map<std::string, std::string>;

std::string build_file(const Words& words) {
  const auto number = [&](const char* key) { return std::stof(words.at(key)); };
  TinyModel tiny;
  tiny.weight_type = testing::kF32;
  tiny.head_length = static_cast<uint32_t>(number("dim"));
  tiny.rope_frequency_base = number("base");
  GgufBuilder builder = tiny.builder();
  if (words.count("type")) builder.string("llama.rope.scaling.type", words.at("type"));
  if (words.count("factor")) builder.f32("llama.rope.scaling.factor", number("factor"));
  if (words.count("original"))
    builder.u32("llama.rope.scaling.original_context_length",
                static_cast<uint32_t>(number("original")));
  for (const char* key : {"beta_fast", "beta_slow"})
    if (words.count(key)) builder.f32("llama.rope.scaling.yarn_" + std::string(key), number(key));
  if (words.count("attn_factor"))
    builder.f32("llama.rope.scaling.attn_factor", number("attn_factor"));
  return builder.build();
}

TEST(RopeGolden, frequencies_and_magnitude_agree) {
  std::ifstream file(WCUDA_TEST_DATA "/rope.txt");
  size_t case_count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    SCOPED_TRACE(line.substr(0, line.find(':')));
    Words words;
    std::istringstream stream(line);
    for (std::string word; stream >> word && word != ":";)
      words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    std::vector<double> expected;
    for (double value; stream >> value;) expected.push_back(value);

    const std::string bytes = build_file(words);
    const auto gguf = testing::open_bytes(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    const auto read = read_config(**gguf);

    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_NEAR(read->config.rope_magnitude, std::stod(words.at("magnitude")), 2e-7);
    ASSERT_EQ(read->config.rope_frequencies.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(read->config.rope_frequencies[i] / expected[i], 1.0, 1e-7) << i;
    ++case_count;
  }
  EXPECT_EQ(case_count, 21u);
}

}  // namespace
}  // namespace wcuda::model
