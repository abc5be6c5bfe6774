// Shapes, mixes and random blocks of synthetic models, and the file made of them.
#include "bench/synthetic_model.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "bench/random_blocks.h"
#include "llm/quant/format.h"

namespace wcuda::bench {
namespace {

constexpr Shape kShapes[] = {
    {"tiny", 4, 256, 4, 2, 64, 512, 320, false},
    {"135m", 30, 576, 9, 3, 64, 1536, 49152, true},
    {"0.5b", 24, 896, 14, 2, 64, 4864, 151936, true},
    {"0.6b", 28, 1024, 16, 8, 128, 3072, 151936, true},
    {"1b", 16, 2048, 32, 8, 64, 8192, 128256, true},
    {"8b", 32, 4096, 32, 8, 128, 14336, 128256, false},
    {"70b", 80, 8192, 64, 8, 128, 28672, 128256, false},
};

using namespace tensor_type;
constexpr uint32_t kNormPool = UINT32_MAX, kTokenPool = UINT32_MAX - 1;
constexpr uint64_t kAlignment = 32;
constexpr uint64_t kPoolBlocks = 4093;    // a prime
constexpr uint64_t kPoolValues = 262139;  // of types without blocks; a prime
constexpr uint64_t kWritePiece = 16 << 20;
constexpr uint32_t kDraftTokensMax = 32000;  // as published heads of Llama 3 have
constexpr char kHeadSuffix[] = "-head";

uint64_t align(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

template <class Number>
void append(std::string* out, Number number) {
  out->append(reinterpret_cast<const char*>(&number), sizeof number);
}
void append_text(std::string* out, const std::string& text) {
  append(out, uint64_t{text.size()});
  *out += text;
}

// The header of a GGUF file, entry by entry.
struct Metadata {
  std::string bytes;
  uint64_t count = 0;

  void begin(const std::string& key, uint32_t type) {
    append_text(&bytes, key);
    append(&bytes, type);
    ++count;
  }
  void text(const std::string& key, const std::string& value) {
    begin(key, 8);
    append_text(&bytes, value);
  }
  void u32(const std::string& key, uint32_t value) {
    begin(key, 4);
    append(&bytes, value);
  }
  void u32s(const std::string& key, const std::vector<uint32_t>& values) {
    begin(key, 9);
    append(&bytes, uint32_t{4});
    append(&bytes, uint64_t{values.size()});
    for (const uint32_t value : values) append(&bytes, value);
  }
  void f32(const std::string& key, float value) {
    begin(key, 6);
    append(&bytes, value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9);
    append(&bytes, uint32_t{8});
    append(&bytes, uint64_t{values.size()});
    for (const std::string& value : values) append_text(&bytes, value);
  }
};

// Byte-level BPE: the bytes as GPT-2 writes them, then words, " x256" and so on, that no merge
// makes. The last token ends a text.
void add_vocabulary(uint32_t size, Metadata* data) {
  const auto character = [](uint32_t code) {  // below 0x800, as UTF-8
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return std::string{static_cast<char>(0xc0 | code >> 6),
                       static_cast<char>(0x80 | (code & 0x3f))};
  };
  const std::string space = character(0x120);
  std::vector<std::string> tokens;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_shown = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    tokens.push_back(character(is_shown ? byte : next++));
  }
  tokens.push_back(space + "x");
  while (tokens.size() < size) tokens.push_back(space + "x" + std::to_string(tokens.size()));
  data->text("tokenizer.ggml.model", "gpt2");
  data->text("tokenizer.ggml.pre", "gpt-2");
  data->texts("tokenizer.ggml.tokens", tokens);
  data->texts("tokenizer.ggml.merges", {space + " x"});
  data->u32("tokenizer.ggml.eos_token_id", size - 1);
}

Metadata metadata(const Shape& shape, const std::string& mix, bool is_draft_head,
                  bool has_vocabulary) {
  Metadata data;
  const std::string arch = is_draft_head ? "eagle3" : "llama";
  data.text("general.architecture", arch);
  data.text("general.name", std::string("synthetic ") + shape.name +
                                (is_draft_head ? kHeadSuffix : "") + " " + mix);
  data.u32(arch + ".block_count", is_draft_head ? 1 : shape.layer_count);
  data.u32(arch + ".context_length", 131072);
  data.u32(arch + ".embedding_length", shape.embedding_length);
  data.u32(arch + ".feed_forward_length", shape.feed_forward_length);
  data.u32(arch + ".attention.head_count", shape.head_count);
  data.u32(arch + ".attention.head_count_kv", shape.kv_head_count);
  data.u32(arch + ".attention.key_length", shape.head_length);
  data.u32(arch + ".attention.value_length", shape.head_length);
  data.u32(arch + ".rope.dimension_count", shape.head_length);
  data.u32(arch + ".vocab_size", shape.vocabulary_size);
  data.f32(arch + ".rope.freq_base", 500000.0f);
  data.f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  if (is_draft_head) {
    data.u32s("eagle3.target_layers", {2, shape.layer_count / 2, shape.layer_count - 3});
    data.u32("eagle3.target_hidden_size", shape.embedding_length);
  }
  if (has_vocabulary)
    add_vocabulary(shape.vocabulary_size, &data);
  else
    data.text("tokenizer.ggml.model", "no_vocab");
  return data;
}

const quant::Format* find_format_by_name(const std::string& name) {
  for (uint32_t id = 0; id < 64; ++id) {
    const quant::Format* format = quant::find_format(id);
    if (format == nullptr || !format->is_loadable || std::strlen(format->name) != name.size())
      continue;
    const auto same = [](char a, char b) { return std::toupper(a) == std::toupper(b); };
    if (std::equal(name.begin(), name.end(), format->name, same)) return format;
  }
  return nullptr;
}

// What stands in for a type whose blocks do not divide a row.
uint32_t substitute(uint32_t type) {
  if (type == kQ4_K) return kQ5_0;
  if (type == kQ5_K) return kQ5_1;
  if (type == kQ6_K) return kQ8_0;
  return quant::find_format(type)->block_elements == 256 ? kIQ4_NL : kQ4_0;
}

// Layers whose attn_v and ffn_down have more bits in q4_k_m.
bool has_more_bits(uint32_t layer, uint32_t layer_count) {
  const uint32_t eighth = layer_count / 8;
  return layer < eighth || layer >= 7 * layer_count / 8 || (layer - eighth) % 3 == 2;
}

}  // namespace

const Shape* find_shape(const std::string& name) {
  for (const Shape& shape : kShapes)
    if (name == shape.name) return &shape;
  return nullptr;
}

Result<SyntheticModel> SyntheticModel::make(const std::string& shape, const std::string& mix,
                                            bool has_vocabulary) {
  SyntheticModel model;
  const size_t suffix = shape.rfind(kHeadSuffix);
  model.is_draft_head_ =
      suffix != std::string::npos && suffix + std::strlen(kHeadSuffix) == shape.size();
  model.shape_ = find_shape(model.is_draft_head_ ? shape.substr(0, suffix) : shape);
  if (model.shape_ == nullptr)
    return Status::error(WCUDA_NOT_FOUND,
                         "no shape '%s': tiny, 135m, 0.5b, 0.6b, 1b, 8b or 70b, or one of these "
                         "and '%s'",
                         shape.c_str(), kHeadSuffix);
  const quant::Format* base = find_format_by_name(mix == "q4_k_m" ? "q4_k" : mix);
  if (base == nullptr)
    return Status::error(WCUDA_NOT_FOUND, "no mix '%s': q4_k_m or a tensor type", mix.c_str());
  model.mix_ = mix;
  model.base_type_ = base->id;

  const Shape& s = *model.shape_;
  if (model.is_draft_head_) {
    model.add_draft_head();
    model.place_tensors(false);
    return model;
  }
  model.add("token_embd.weight", s.tied_embeddings ? "output" : "token_embd", 0, s.vocabulary_size,
            s.embedding_length);
  for (uint32_t layer = 0; layer < s.layer_count; ++layer) model.add_layer(layer);
  model.add_norm("output_norm.weight");
  if (!s.tied_embeddings)
    model.add("output.weight", "output", 0, s.vocabulary_size, s.embedding_length);
  model.place_tensors(has_vocabulary);
  return model;
}

// One layer whose attention reads the token and the state, and whose output has some of the
// model's tokens. The model has the embedding table.
void SyntheticModel::add_draft_head() {
  const uint64_t dim = shape_->embedding_length;
  add("fc.weight", "fc", 0, dim, 3 * dim);
  add_layer(0);
  add_norm("blk.0.attn_norm_2.weight");
  add_norm("output_norm.weight");
  add("output.weight", "output", 0, std::min(kDraftTokensMax, shape_->vocabulary_size / 4), dim);
  add_draft_tokens();
}

void SyntheticModel::add_layer(uint32_t layer) {
  const Shape& s = *shape_;
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const uint64_t dim = s.embedding_length, hidden = s.feed_forward_length;
  const uint64_t width = is_draft_head_ ? 2 * dim : dim;  // of what attention reads
  const uint64_t q = uint64_t{s.head_count} * s.head_length;
  const uint64_t kv = uint64_t{s.kv_head_count} * s.head_length;
  add_norm(prefix + "attn_norm.weight");
  add(prefix + "attn_q.weight", "attn_q", layer, q, width);
  add(prefix + "attn_k.weight", "attn_k", layer, kv, width);
  add(prefix + "attn_v.weight", "attn_v", layer, kv, width);
  add(prefix + "attn_output.weight", "attn_output", layer, dim, q);
  add_norm(prefix + "ffn_norm.weight");
  add(prefix + "ffn_gate.weight", "ffn_gate", layer, hidden, dim);
  add(prefix + "ffn_up.weight", "ffn_up", layer, hidden, dim);
  add(prefix + "ffn_down.weight", "ffn_down", layer, dim, hidden);
}

uint32_t SyntheticModel::pick_type(const std::string& role, uint32_t layer, uint64_t cols) const {
  uint32_t type = base_type_;
  if (mix_ == "q4_k_m") {
    const bool alternates = role == "attn_v" || role == "ffn_down";
    if (role == "output" || (alternates && has_more_bits(layer, shape_->layer_count))) type = kQ6_K;
  }
  return cols % quant::find_format(type)->block_elements == 0 ? type : substitute(type);
}

void SyntheticModel::add(const std::string& name, const std::string& role, uint32_t layer,
                         uint64_t rows, uint64_t cols) {
  const uint32_t type = pick_type(role, layer, cols);
  const quant::Format& format = *quant::find_format(type);
  const uint64_t bytes = rows * cols / format.block_elements * format.block_bytes;
  std::vector<uint8_t>& pool = pools_[type];
  if (pool.empty())
    pool = random_blocks(type, format.block_elements == 1 ? kPoolValues : kPoolBlocks);
  const uint64_t first = random_word(tensors_.size()) % (pool.size() / format.block_bytes);
  tensors_.push_back({name, type, {cols, rows}, 0, bytes, type, first * format.block_bytes});
  if (role == "token_embd") return;  // one row a token, no product
  multiplied_bytes_ += bytes;
}

void SyntheticModel::add_norm(const std::string& name) {
  std::vector<uint8_t>& pool = pools_[kNormPool];
  if (pool.empty()) {
    for (uint64_t i = 0; i < kPoolBlocks; ++i) {
      const float value = 0.75f + static_cast<float>(random_word(i) % 128) / 256.0f;
      const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
      pool.insert(pool.end(), bytes, bytes + sizeof value);
    }
  }
  const uint64_t first = random_word(tensors_.size()) % kPoolBlocks;
  const uint64_t length = shape_->embedding_length;
  tensors_.push_back({name, kF32, {length}, 0, length * 4, kNormPool, first * 4});
}

// The tokens of the model that the output of its draft head has: every fourth, or fewer.
void SyntheticModel::add_draft_tokens() {
  const uint64_t count = tensors_.back().dimensions[1];
  const uint64_t step = shape_->vocabulary_size / count;
  std::vector<uint8_t>& pool = pools_[kTokenPool];
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t token = i * step;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&token);
    pool.insert(pool.end(), bytes, bytes + sizeof token);
  }
  tensors_.push_back({"d2t", kI64, {count}, 0, count * 8, kTokenPool, 0});
}

// Writes the header; tensors follow it in order, each aligned.
void SyntheticModel::place_tensors(bool has_vocabulary) {
  const Metadata data = metadata(*shape_, mix_, is_draft_head_, has_vocabulary);
  append(&header_, uint32_t{0x46554747});  // GGUF
  append(&header_, uint32_t{3});
  append(&header_, uint64_t{tensors_.size()});
  append(&header_, data.count);
  header_ += data.bytes;
  uint64_t offset = 0;
  for (Tensor& tensor : tensors_) {
    append_text(&header_, tensor.name);
    append(&header_, static_cast<uint32_t>(tensor.dimensions.size()));
    for (const uint64_t dimension : tensor.dimensions) append(&header_, dimension);
    append(&header_, tensor.type);
    append(&header_, offset);
    tensor.file_offset = offset;
    offset = align(offset + tensor.bytes);
  }
  header_.resize(align(header_.size()));
  for (Tensor& tensor : tensors_) tensor.file_offset += header_.size();
  bytes_ = header_.size() + offset;
}

void SyntheticModel::read(uint64_t offset, uint8_t* target, uint64_t bytes) const {
  const uint64_t end = offset + bytes;
  if (offset < header_.size())
    std::memcpy(target, &header_[offset], std::min(end, uint64_t{header_.size()}) - offset);
  const auto ends_after = [](uint64_t at, const Tensor& t) { return at < t.file_offset + t.bytes; };
  auto tensor = std::upper_bound(tensors_.begin(), tensors_.end(), offset, ends_after);
  uint64_t at = std::max(offset, uint64_t{header_.size()});
  for (; tensor != tensors_.end() && at < end; ++tensor) {
    const uint64_t begin = std::max(at, tensor->file_offset);
    if (begin >= end) break;
    std::memset(target + (at - offset), 0, begin - at);  // padding
    const uint64_t last = std::min(end, tensor->file_offset + tensor->bytes);
    const std::vector<uint8_t>& pool = pools_.at(tensor->pool);
    for (at = begin; at < last;) {
      const uint64_t from = (tensor->pool_offset + at - tensor->file_offset) % pool.size();
      const uint64_t count = std::min(last - at, pool.size() - from);
      std::memcpy(target + (at - offset), &pool[from], count);
      at += count;
    }
  }
  if (at < end) std::memset(target + (at - offset), 0, end - at);
}

wcuda_source SyntheticModel::source() const {
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_CALLBACK;
  source.size = bytes_;
  source.user = const_cast<SyntheticModel*>(this);
  source.read = [](void* user, uint64_t offset, void* target, uint64_t bytes) -> int32_t {
    static_cast<const SyntheticModel*>(user)->read(offset, static_cast<uint8_t*>(target), bytes);
    return 0;
  };
  return source;
}

Status SyntheticModel::write(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool good = file != nullptr;
  std::vector<uint8_t> piece(std::min(kWritePiece, bytes_));
  for (uint64_t done = 0; good && done < bytes_; done += piece.size()) {
    const uint64_t count = std::min(uint64_t{piece.size()}, bytes_ - done);
    read(done, piece.data(), count);
    good = std::fwrite(piece.data(), 1, count, file) == count;
  }
  const int reason = errno;
  if (file != nullptr && std::fclose(file) != 0) good = false;
  if (good) return {};
  return Status::native_error(WCUDA_IO, reason, "cannot write %llu bytes to '%s': %s",
                              static_cast<unsigned long long>(bytes_), path.c_str(),
                              std::strerror(reason));
}

}  // namespace wcuda::bench
