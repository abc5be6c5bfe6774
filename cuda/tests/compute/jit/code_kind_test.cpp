// Recognises kinds of device code, and refuses code that a driver would read past the end of.
#include "compute/jit/code_kind.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compute/nvrtc/compiler.h"
#include "support/nvrtc_library.h"

namespace wcuda::jit {
namespace {

using Bytes = std::vector<uint8_t>;

template <class T>
void put(Bytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

// A cubin of the least there is: the file header, one section header, its 16 bytes.
Bytes small_cubin() {
  Bytes bytes(64 + 64 + 16);
  std::memcpy(bytes.data(), "\177ELF\2\1\1", 7);
  put<uint16_t>(bytes, 18, 190);  // machine
  put<uint64_t>(bytes, 40, 64);   // section headers
  put<uint16_t>(bytes, 54, 56);   // bytes of a program header
  put<uint16_t>(bytes, 58, 64);   // bytes of a section header
  put<uint16_t>(bytes, 60, 1);    // sections
  put<uint32_t>(bytes, 64 + 4, 1);
  put<uint64_t>(bytes, 64 + 24, 128);  // offset
  put<uint64_t>(bytes, 64 + 32, 16);   // size
  return bytes;
}

Bytes small_fatbin() {
  Bytes bytes(16 + 24);
  put<uint32_t>(bytes, 0, 0xba55ed50);
  put<uint16_t>(bytes, 4, 1);
  put<uint16_t>(bytes, 6, 16);
  put<uint64_t>(bytes, 8, 24);
  return bytes;
}

// In memory of exactly this size, so that a sanitizer sees a read past it.
Result<CodeKind> kind_of(const Bytes& bytes) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), exact.get());
  return code_kind(exact.get(), bytes.size());
}

Result<CodeKind> kind_of(const std::string& text) {
  return kind_of(Bytes(text.begin(), text.end()));
}

void expect_malformed(const Result<CodeKind>& found, const std::string& part) {
  ASSERT_FALSE(found.ok()) << part;
  EXPECT_EQ(found.status().code(), WCUDA_MALFORMED);
  EXPECT_NE(std::string(found.status().message()).find(part), std::string::npos)
      << found.status().message();
}

TEST(CodeKind, ptx_begins_with_its_version_after_comments) {
  for (const char* text : {".version 9.0\n", "\n\t .version\t8.7\n.target sm_90",
                           "// by hand\n//\n/* .entry */ .version 7.0\n"}) {
    const auto kind = kind_of(std::string(text));
    ASSERT_TRUE(kind.ok()) << kind.status().message();
    EXPECT_EQ(*kind, CodeKind::kPtx);
  }
  EXPECT_TRUE(kind_of(std::string(".version 9.0\n\0", 14)).ok()) << "the NUL of a C string";
  expect_malformed(kind_of(std::string(".version 9.0\n\0.entry", 20)), "a NUL at byte 13");
}

TEST(CodeKind, source_is_distinguished_from_ptx_even_when_it_mentions_versions) {
  expect_malformed(
      kind_of(std::string("// needs .version 9.0\nextern \"C\" __global__ void k() {}")),
      "this is source");
  expect_malformed(kind_of(std::string("#include <cuda_fp16.h>\n")), "this is source");
  for (const char* text : {"", " ", "/* .version 9.0", "// .version 9.0", ".versions 1", ".version",
                           ".target sm_90", "hello", "\177EL", "PK\3\4"})
    expect_malformed(kind_of(std::string(text)), "neither PTX nor");
}

TEST(CodeKind, a_cubin_is_elf_for_the_machine_cuda_and_whole) {
  const auto kind = kind_of(small_cubin());
  ASSERT_TRUE(kind.ok()) << kind.status().message();
  EXPECT_EQ(*kind, CodeKind::kCubin);

  for (size_t bytes = 4; bytes < small_cubin().size(); ++bytes) {
    Bytes prefix = small_cubin();
    prefix.resize(bytes);
    EXPECT_EQ(kind_of(prefix).status().code(), WCUDA_MALFORMED) << bytes;
  }
  const auto with = [](size_t offset, auto value) {
    Bytes bytes = small_cubin();
    put(bytes, offset, value);
    return kind_of(bytes);
  };
  expect_malformed(with(18, uint16_t{62}), "machine 62, a cubin has 190");
  expect_malformed(with(4, uint8_t{1}), "not little-endian of 64 bits");
  expect_malformed(with(60, uint16_t{0}), "without sections");
  expect_malformed(with(60, uint16_t{2}), "there are 144");
  expect_malformed(with(58, uint16_t{40}), "section headers of 40 bytes, not 64");
  expect_malformed(with(40, UINT64_MAX), "there are 144");
  expect_malformed(with(64 + 24, UINT64_MAX), "a section of 16 bytes");
  expect_malformed(with(64 + 32, uint64_t{17}), "a section of 17 bytes at 128, there are 144");
  expect_malformed(with(56, uint16_t{3}), "program of 168 bytes at 0");
  Bytes empty = small_cubin();
  put<uint32_t>(empty, 64 + 4, 8);
  put<uint64_t>(empty, 64 + 32, 1000);
  EXPECT_TRUE(kind_of(empty).ok()) << "a section that has no bytes in the file";
  Bytes loaded = small_cubin();
  put<uint64_t>(loaded, 32, loaded.size());  // program headers: one, of a segment
  put<uint16_t>(loaded, 56, 1);
  loaded.resize(loaded.size() + 56);
  put<uint64_t>(loaded, 144 + 32, loaded.size());
  EXPECT_TRUE(kind_of(loaded).ok());
  put<uint64_t>(loaded, 144 + 32, loaded.size() + 1);
  expect_malformed(kind_of(loaded), "a segment of 201 bytes at 0, there are 200");
}

TEST(CodeKind, a_fatbin_has_its_magic_and_all_its_content) {
  const auto kind = kind_of(small_fatbin());
  ASSERT_TRUE(kind.ok()) << kind.status().message();
  EXPECT_EQ(*kind, CodeKind::kFatbin);

  for (size_t bytes = 4; bytes < small_fatbin().size(); ++bytes) {
    Bytes prefix = small_fatbin();
    prefix.resize(bytes);
    expect_malformed(kind_of(prefix), bytes < 16 ? "a fatbin header of 16 bytes at 0, there are " +
                                                       std::to_string(bytes)
                                                 : "the fatbin's content");
  }
  Bytes bytes = small_fatbin();
  put<uint64_t>(bytes, 8, UINT64_MAX);
  expect_malformed(kind_of(bytes), "the fatbin's content");
  put<uint64_t>(bytes, 8, 0);
  expect_malformed(kind_of(bytes), "without content");
  put<uint16_t>(bytes, 6, 8);
  expect_malformed(kind_of(bytes), "a fatbin header of 8 bytes");
}

TEST(CodeKind, what_nvrtc_makes_is_known_and_no_prefix_of_it_is_a_cubin) {
  auto opened = nvrtc::Compiler::open(testing::nvrtc_folder());
  WCUDA_NEEDS_NVRTC(opened.ok(), opened.status().message());
  nvrtc::Request request;
  request.source = "__device__ int g[3]; extern \"C\" __global__ void k(int* p) { *p = g[1]; }";

  request.architecture = "compute_90";
  const auto ptx = kind_of((*opened)->compile(request).code);
  ASSERT_TRUE(ptx.ok()) << ptx.status().message();
  EXPECT_EQ(*ptx, CodeKind::kPtx);

  request.architecture = "sm_90a";
  Bytes cubin = (*opened)->compile(request).code;
  const auto kind = kind_of(cubin);
  ASSERT_TRUE(kind.ok()) << kind.status().message();
  EXPECT_EQ(*kind, CodeKind::kCubin);
  while (cubin.size() > 4) {
    cubin.resize(cubin.size() > 2000 ? cubin.size() - 97 : cubin.size() - 1);
    EXPECT_FALSE(kind_of(cubin).ok()) << cubin.size();
  }
}

}  // namespace
}  // namespace wcuda::jit
