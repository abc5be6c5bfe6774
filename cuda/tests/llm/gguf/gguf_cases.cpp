// Making the hand-made GGUF files.
#include "llm/gguf/gguf_cases.h"

#include <utility>

#include "llm/gguf/gguf_builder.h"

namespace wcuda::testing {
namespace {

constexpr uint64_t kMax64 = UINT64_MAX;

class Cases {
 public:
  std::vector<GgufCase> take() { return std::move(cases_); }

  void good(const std::string& name, GgufBuilder builder) {
    cases_.push_back({name, builder.build(), WCUDA_OK, ""});
  }
  void bad(const std::string& name, const std::string& message, std::string bytes,
           wcuda_status status = WCUDA_MALFORMED) {
    cases_.push_back({name, std::move(bytes), status, message});
  }
  // The base file with one field overwritten.
  void field(const std::string& name, const std::string& message, const std::string& field,
             uint64_t value, wcuda_status status = WCUDA_MALFORMED) {
    GgufBuilder builder = base();
    std::string bytes = builder.build();
    builder.set(&bytes, field, value);
    bad(name, message, std::move(bytes), status);
  }

  // Keys: 0 text, 1 number, 2 list, 3 names. Tensors: 0 is F32 (8, 2), 1 is Q4_0 (32).
  static GgufBuilder base() {
    GgufBuilder b;
    b.string("text", "llama").u32("number", 7).array<uint32_t>("list", 4, {1, 2, 3});
    b.strings("names", {"a", "bc"});
    b.tensor_f32("w", {8, 2}, std::vector<float>(16, 1.0f));
    b.tensor("q", {32}, 2, std::string(18, '\1'));
    return b;
  }

 private:
  std::vector<GgufCase> cases_;
};

void add_good(Cases* c) {
  GgufBuilder empty, v2 = Cases::base();
  v2.version = 2;
  c->good("good-empty", empty);
  c->good("good-base", Cases::base());
  c->good("good-version-2", v2);
  c->good("good-every-value-type", sample_gguf());
  GgufBuilder one;
  one.alignment = 1;
  one.u32("general.alignment", 1).tensor("a", {3}, 24, "abc").tensor("b", {5}, 24, "defgh");
  c->good("good-alignment-1", one);
  GgufBuilder unaligned_end = Cases::base();
  unaligned_end.tensor("tail", {1}, 24, "x");
  c->good("good-last-tensor-not-padded", unaligned_end);
  GgufBuilder merged = Cases::base();
  merged.u16("split.no", 0).u16("split.count", 0).i32("split.tensors.count", 2);
  c->good("good-merged-split", merged);
  GgufBuilder name;
  name.tensor_f32(std::string(63, 'n'), {1}, {1.0f});
  c->good("good-longest-name", name);
  GgufBuilder types;
  const std::pair<uint32_t, std::pair<uint64_t, uint64_t>> formats[] = {
      {0, {1, 4}},      {1, {1, 2}},      {2, {32, 18}},    {3, {32, 20}},    {6, {32, 22}},
      {7, {32, 24}},    {8, {32, 34}},    {9, {32, 36}},    {10, {256, 84}},  {11, {256, 110}},
      {12, {256, 144}}, {13, {256, 176}}, {14, {256, 210}}, {15, {256, 292}}, {16, {256, 66}},
      {17, {256, 74}},  {18, {256, 98}},  {19, {256, 50}},  {20, {32, 18}},   {21, {256, 110}},
      {22, {256, 82}},  {23, {256, 136}}, {24, {1, 1}},     {25, {1, 2}},     {26, {1, 4}},
      {27, {1, 8}},     {28, {1, 8}},     {29, {256, 56}},  {30, {1, 2}},     {34, {256, 54}},
      {35, {256, 66}},  {39, {32, 17}},   {40, {64, 36}},   {41, {128, 18}},  {42, {64, 18}}};
  for (const auto& [id, block] : formats)
    types.tensor("type" + std::to_string(id), {block.first}, id, std::string(block.second, '\x2A'));
  c->good("good-every-tensor-type", types);
}

void add_header(Cases* c) {
  const std::string good = Cases::base().build();
  c->bad("header-nothing", "the magic number", "");
  c->bad("header-bad-magic", "not a GGUF file", "GGML" + good.substr(4));
  c->bad("header-magic-reversed", "not a GGUF file", "FUGG" + good.substr(4));
  c->field("header-version-0", "version is 0", "version", 0);
  c->field("header-version-1", "version is 1, 2 and 3", "version", 1, WCUDA_UNSUPPORTED);
  c->field("header-version-4", "version is 4, 2 and 3", "version", 4, WCUDA_UNSUPPORTED);
  c->field("header-version-future", "version is 4294967295", "version", UINT32_MAX,
           WCUDA_UNSUPPORTED);
  c->field("header-big-endian", "big-endian file (version 3", "version", 0x03000000,
           WCUDA_UNSUPPORTED);
  c->field("header-tensor-count-minus-1", "18446744073709551615 tensors need", "tensor_count",
           kMax64);
  c->field("header-metadata-count-minus-1", "18446744073709551615 metadata entries need",
           "metadata_count", kMax64);
  c->field("header-one-tensor-more", "the name of tensor 2 is empty", "tensor_count", 3);
  c->field("header-one-key-more", "a tensor name at byte 186 has", "metadata_count", 5);
}

void add_metadata(Cases* c) {
  c->field("key-length-max", "has 18446744073709551615 bytes", "key 0 length", kMax64);
  c->field("key-length-of-file", "a metadata key at byte 32 has", "key 0 length", 100000);
  c->field("key-type-13", "key 'text': value type is 13", "key 0 type", 13);
  c->field("key-type-max", "value type is 4294967295", "key 0 type", UINT32_MAX);
  c->field("key-string-length-max", "a metadata string", "key 0 string length", kMax64);
  c->field("array-count-max", "key 'list': 18446744073709551615 elements", "key 2 element count",
           kMax64);
  c->field("array-type-13", "key 'list': element type is 13", "key 2 element type", 13);
  c->field("array-of-arrays", "key 'list': an array of arrays", "key 2 element type", 9,
           WCUDA_UNSUPPORTED);
  c->field("array-string-length-max", "key 'names', element 0", "key 3 element length", kMax64);
  c->bad("key-empty", "the key of metadata entry 4 is empty", Cases::base().u32("", 1).build());
  c->bad("key-twice", "key 'number' occurs twice", Cases::base().u32("number", 7).build());
  c->bad("key-not-utf8", "a metadata key at byte", Cases::base().u32("k\xFF", 1).build());
  c->bad("key-with-nul", "holds a control character",
         Cases::base().u32(std::string("k\0x", 3), 1).build());
  c->bad("key-with-newline", "key 'a\\x0Ab' holds a control character",
         Cases::base().u32("a\nb", 1).build());
  c->bad("key-too-long", "has 65536 bytes, at most 65535",
         GgufBuilder().u32(std::string(65536, 'k'), 1).build(), WCUDA_UNSUPPORTED);
  c->bad("string-overlong", "is not UTF-8", Cases::base().string("s", "\xC0\x80").build());
  c->bad("string-surrogate", "is not UTF-8", Cases::base().string("s", "\xED\xA0\x80").build());
  c->bad("string-past-unicode", "is not UTF-8",
         Cases::base().string("s", "\xF4\x90\x80\x80").build());
  c->bad("string-cut-character", "is not UTF-8",
         Cases::base().string("s", "12345678\xF0\x9F\x98").build());
  c->bad("array-string-not-utf8", "key 's', element 1: a string of an array",
         Cases::base().strings("s", {"a", "\x80"}).build());
  c->bad("bool-2", "key 'b': a bool is 2", Cases::base().boolean("b", 2).build());
  c->bad("array-bool-255", "key 'b': bool 1 is 255",
         Cases::base().array<uint8_t>("b", 7, {1, 255}).build());
}

void add_alignment(Cases* c) {
  const auto with = [](uint32_t alignment) {
    return Cases::base().u32("general.alignment", alignment).build();
  };
  c->bad("alignment-0", "general.alignment is 0", with(0));
  c->bad("alignment-13", "general.alignment is 13", with(13));
  c->bad("alignment-2-to-31", "general.alignment is 2147483648, at most", with(1u << 31),
         WCUDA_UNSUPPORTED);
  c->bad("alignment-max", "must be a power of two", with(UINT32_MAX));
  c->bad("alignment-i32", "general.alignment is of type i32",
         Cases::base().i32("general.alignment", 32).build());
  c->bad("alignment-string", "general.alignment is of type string",
         Cases::base().string("general.alignment", "32").build());
  c->bad("alignment-array", "general.alignment is of type array",
         Cases::base().array<uint32_t>("general.alignment", 4, {32}).build());
}

void add_tensor_fields(Cases* c) {
  c->field("tensor-name-length-max", "a tensor name", "tensor 0 name length", kMax64);
  c->field("tensor-dimensions-0", "tensor 'w': 0 dimensions", "tensor 0 dimension count", 0);
  c->field("tensor-dimensions-5", "tensor 'w': 5 dimensions", "tensor 0 dimension count", 5);
  c->field("tensor-dimensions-max", "4294967295 dimensions", "tensor 0 dimension count",
           UINT32_MAX);
  c->field("tensor-dimension-0", "tensor 'w': dimension 0 is 0", "tensor 0 dimension 0", 0);
  c->field("tensor-last-dimension-0", "tensor 'w': dimension 1 is 0", "tensor 0 dimension 1", 0);
  c->field("tensor-dimension-minus-1", "2^63 or more elements", "tensor 0 dimension 0", kMax64);
  c->field("tensor-elements-2-to-63", "2^63 or more elements", "tensor 0 dimension 1", 1ull << 60);
  c->field("tensor-bytes-over", "2^63 bytes or more", "tensor 0 dimension 1", 1ull << 58);
  c->field("tensor-not-whole-blocks", "first dimension 33 is not a multiple of Q4_0's block of 32",
           "tensor 1 dimension 0", 33);
  c->field("tensor-past-end", "the file has 82 bytes of data", "tensor 0 dimension 1", 4);
  c->field("tensor-offset-odd", "offset 33 is not a multiple of the alignment 32",
           "tensor 0 offset", 33);
  c->field("tensor-offset-max", "tensor 'w' needs 64 bytes at offset 18446744073709551584",
           "tensor 0 offset", kMax64 - 31);
  c->field("tensor-overlap", "tensors 'w' and 'q' overlap", "tensor 1 offset", 32);
  c->field("tensor-same-offset", "overlap", "tensor 1 offset", 0);
  for (const uint32_t id : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 142u, UINT32_MAX}) {
    c->field("tensor-type-" + std::to_string(id),
             "tensor 'w': type id " + std::to_string(id) + " is unknown or was removed",
             "tensor 0 type", id, WCUDA_UNSUPPORTED);
  }
}

void add_tensors(Cases* c) {
  const auto one = [](const std::string& name) {
    return GgufBuilder().tensor_f32(name, {1}, {1.0f}).build();
  };
  c->bad("tensor-name-64", "has 64 bytes, at most 63", one(std::string(64, 'n')),
         WCUDA_UNSUPPORTED);
  c->bad("tensor-name-empty", "the name of tensor 0 is empty", one(""));
  c->bad("tensor-name-not-utf8", "a tensor name at byte", one("\xFE"));
  c->bad("tensor-name-with-nul", "holds a control character", one(std::string("a\0b", 3)));
  c->bad("tensor-name-twice", "tensor 'w' occurs twice",
         Cases::base().tensor_f32("w", {1}, {1.0f}).build());
  GgufBuilder overlap;  // 33 bytes from 0; the second tensor begins at the last of them
  overlap.tensor("a", {33}, 24, std::string(33, 'a')).tensor("b", {1}, 24, "b");
  std::string overlapping = overlap.build();
  overlap.set(&overlapping, "tensor 1 offset", 32);
  c->bad("tensor-overlap-by-one-byte", "tensors 'a' and 'b' overlap", overlapping);
  const std::string good = Cases::base().build();
  c->bad("tensor-data-short", "tensor 'q' needs 18 bytes at offset 64",
         good.substr(0, good.size() - 1));
  GgufBuilder no_data = Cases::base();
  const std::string bytes = no_data.build();
  c->bad("tensor-data-none", "tensor data would start at byte",
         bytes.substr(0, no_data.header_bytes()));
}

void add_split(Cases* c) {
  c->bad("split-in-memory", "part 1 of 3: a split file can only be opened by the path",
         Cases::base().u16("split.no", 0).u16("split.count", 3).build(), WCUDA_UNSUPPORTED);
  c->bad("split-number-past-count", "split.no is 3, split.count is 3",
         Cases::base().u16("split.no", 3).u16("split.count", 3).build());
  c->bad("split-count-negative", "split.count is not a count",
         Cases::base().i32("split.count", -1).build());
  c->bad("split-count-string", "split.count is not a count (type string)",
         Cases::base().string("split.count", "1").build());
  c->bad("split-count-65535", "split into 65535 parts, at most 512",
         Cases::base().u16("split.count", 65535).build(), WCUDA_UNSUPPORTED);
  c->bad("split-tensor-count-wrong", "split.tensors.count is 3, the parts hold 2",
         Cases::base().u16("split.count", 1).i32("split.tensors.count", 3).build());
}

// Number wrap-around and missing bounds, each with the numbers that hurt the loader it is named
// for.
void add_vulnerabilities(Cases* c) {
  c->field("cve-2024-21802-dimension-count", "1000 dimensions", "tensor 0 dimension count", 1000);
  c->field("cve-2024-21825-string-array-wrap", "1152921504606846977 elements of type string",
           "key 3 element count", (1ull << 60) + 1);
  c->field("cve-2024-21836-tensor-count-wrap", "tensors need at least", "tensor_count",
           kMax64 / 88 + 2);
  c->field("cve-2024-23496-string-length-wrap", "has 18446744073709551615 bytes",
           "key 0 string length", kMax64);
  c->field("cve-2024-23605-metadata-count-wrap", "metadata entries need at least", "metadata_count",
           kMax64 / 48 + 2);
  c->field("cve-2024-25664-metadata-count", "metadata entries need at least", "metadata_count",
           1ull << 32);
  c->field("cve-2024-25665-key-length", "a metadata key at byte 32 has", "key 0 length",
           kMax64 - 1);
  c->field("cve-2024-25666-tensor-count", "tensors need at least", "tensor_count", 1ull << 40);
  c->field("cve-2024-25667-array-bytes-wrap", "4611686018427387905 elements of type u32",
           "key 2 element count", (1ull << 62) + 1);
  c->field("cve-2024-25668-string-array-count", "4294967296 elements of type string",
           "key 3 element count", 1ull << 32);
  const std::string good = Cases::base().build();
  c->bad("cve-2024-32878-cut-in-metadata", "a metadata key at byte 115 needs 8 bytes",
         good.substr(0, 120));
  c->bad("cve-2024-39720-four-bytes", "the version at byte 4 needs 4 bytes, 0 remain", "GGUF");
  GgufBuilder no_metadata;
  std::string bytes = no_metadata.build();
  no_metadata.set(&bytes, "metadata_count", 1);
  c->bad("cve-2024-41130-nothing-after-counts", "1 metadata entries need", bytes);
  c->field("cve-2025-0315-array-allocation", "268435456 elements of type u32",
           "key 2 element count", 1ull << 28);
  c->field("cve-2025-49847-token-length", "key 'names', element 0", "key 3 element length",
           0x80000001ull);
  c->field("cve-2025-52566-token-length-signed", "key 'names', element 0", "key 3 element length",
           0xFFFFFFFFull);
  GgufBuilder sum;  // each fits in 2^63, their sum is 0 modulo 2^64
  sum.tensor("a", {1ull << 62}, 24, "").tensor("b", {1ull << 62}, 24, "");
  sum.tensor("c", {1ull << 62}, 24, "").tensor("d", {1ull << 62}, 24, "");
  bytes = sum.build() + std::string(64, '\0');
  sum.set(&bytes, "tensor 1 offset", 1ull << 62);
  sum.set(&bytes, "tensor 2 offset", 1ull << 63);
  sum.set(&bytes, "tensor 3 offset", 3ull << 62);
  c->bad("cve-2025-53630-size-sum-wrap", "tensor 'a' needs 4611686018427387904 bytes", bytes);
  GgufBuilder pad;  // rounding its size up to the alignment passes 2^63
  pad.tensor("a", {(1ull << 63) - 1}, 24, "");
  c->bad("cve-2026-27940-padded-size-wrap", "tensor 'a' needs 9223372036854775807 bytes",
         pad.build() + std::string(64, '\0'));
  GgufBuilder wrap;  // 2^62 elements of 4 bytes are 0 bytes modulo 2^64
  wrap.tensor("a", {1ull << 31, 1ull << 31}, 0, "");
  c->bad("cve-2026-33298-byte-count-wrap", "4611686018427387904 elements of F32",
         wrap.build() + std::string(64, '\0'));
  c->field("cve-2026-7482-data-past-file", "the file has 82 bytes of data", "tensor 1 dimension 0",
           1ull << 20);
  GgufBuilder zero;
  zero.tensor("a", {32, 0, 1}, 2, "");
  c->bad("ghsa-3p75-pq92-q28f-zero-dimension", "tensor 'a': dimension 1 is 0", zero.build());
  c->field("llama-26690-array-element-type", "element type is 4294967295", "key 2 element type",
           UINT32_MAX);
  c->field("sparkinfer-25-offset-past-end", "at offset 1048576", "tensor 1 offset", 1ull << 20);
  GgufBuilder product;  // wraps to 2^1 when the product is not checked at each factor
  product.tensor("a", {1ull << 32, 1ull << 32, 2}, 24, "");
  c->bad("candle-3533-element-product-wrap", "2^63 or more elements (dimension 1", product.build());
}

}  // namespace

std::vector<GgufCase> gguf_cases() {
  Cases cases;
  add_good(&cases);
  add_header(&cases);
  add_metadata(&cases);
  add_alignment(&cases);
  add_tensor_fields(&cases);
  add_tensors(&cases);
  add_split(&cases);
  add_vulnerabilities(&cases);
  return cases.take();
}

}  // namespace wcuda::testing
