// worker_cuda_cloak.h: what its callbacks answer, whatever a guest gives them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/context.h"
#include "support/zctl_guest.h"
#include "worker_cuda_cloak.h"

namespace wcuda::testing {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;

File file_with(const std::string& text) {
  File file(std::tmpfile());
  std::fwrite(text.data(), 1, text.size(), file.get());
  std::rewind(file.get());
  return file;
}

std::string text_of(FILE* file) {
  std::rewind(file);
  std::string text(1 << 16, 0);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

// A cloak on temporary files, and a guest's memory in an exactly sized allocation.
class CloakTest : public ::testing::Test {
 protected:
  static constexpr int32_t kMax = INT32_MAX, kMin = INT32_MIN;

  CloakTest() { open(""); }
  void open(const std::string& input, int32_t handles = WCUDA_CLOAK_ABI) {
    input_ = file_with(input);
    cloak = WCUDA_CLOAK_INIT;
    cloak.in = input_.get();
    cloak.out = output_.get();
    cloak.log = log_.get();
    cloak.handles = handles;
  }
  int32_t read(int32_t ptr, int32_t cap, int32_t handle = 0) {
    return wcuda_cloak_in(&cloak, handle, memory.data(), memory.size(), ptr, cap);
  }
  int32_t write(int32_t ptr, int32_t len, int32_t handle = 1) {
    return wcuda_cloak_out(&cloak, handle, memory.data(), memory.size(), ptr, len);
  }
  int32_t alloc(int32_t size) {
    return wcuda_cloak_alloc(&cloak, memory.data(), memory.size(), size);
  }
  std::string memory_text(size_t offset, size_t bytes) const {
    return {memory.begin() + static_cast<long>(offset),
            memory.begin() + static_cast<long>(offset + bytes)};
  }
  // Sizes of the reads of all of the input.
  std::vector<int32_t> chunks(const char* schedule, const std::string& input, int32_t cap = 64) {
    open(input);
    EXPECT_TRUE(wcuda_cloak_read_chunks(&cloak, schedule)) << schedule;
    std::vector<int32_t> sizes;
    std::string all;
    for (int32_t got; (got = read(0, cap)) > 0;) {
      sizes.push_back(got);
      all += memory_text(0, static_cast<size_t>(got));
    }
    EXPECT_EQ(all, input);
    return sizes;
  }

  wcuda_cloak cloak;
  std::vector<uint8_t> memory = std::vector<uint8_t>(64);
  File input_, output_{std::tmpfile()}, log_{std::tmpfile()};
};

TEST_F(CloakTest, windows_outside_the_memory_are_refused_and_move_nothing) {
  open("0123456789");
  const std::pair<int32_t, int32_t> outside[] = {
      {-1, 1}, {0, -1},   {-1, -1},  {kMin, kMin}, {0, 65},      {64, 1},    {65, 0},
      {1, 64}, {kMax, 1}, {1, kMax}, {kMax, kMax}, {kMin, kMax}, {-64, 128}, {kMax, 0}};
  for (const auto& [ptr, bytes] : outside) {
    EXPECT_EQ(read(ptr, bytes), -1) << ptr << ", " << bytes;
    EXPECT_EQ(write(ptr, bytes), -1) << ptr << ", " << bytes;
    wcuda_cloak_log(&cloak, memory.data(), memory.size(), ptr, bytes, 0, 1);
    wcuda_cloak_log(&cloak, memory.data(), memory.size(), 0, 1, ptr, bytes);
    EXPECT_EQ(wcuda_cloak_ctl3(&cloak, memory.data(), memory.size(), ptr, bytes, 0, 64), -1);
    EXPECT_EQ(wcuda_cloak_ctl3(&cloak, memory.data(), memory.size(), 0, 32, ptr, bytes), -1);
  }
  EXPECT_EQ(wcuda_cloak_in(&cloak, 0, nullptr, 64, 0, 1), -1);
  EXPECT_EQ(wcuda_cloak_out(&cloak, 1, nullptr, 64, 0, 0), -1);
  EXPECT_EQ(wcuda_cloak_alloc(&cloak, nullptr, 64, 0), -1);

  EXPECT_EQ(memory, std::vector<uint8_t>(64));
  EXPECT_EQ(text_of(output_.get()), "");
  EXPECT_EQ(text_of(log_.get()), "");
  EXPECT_EQ(read(54, 10), 10);
  EXPECT_EQ(memory_text(54, 10), "0123456789");
}

TEST_F(CloakTest, reads_end_with_0_and_empty_windows_are_inside) {
  open("abc");
  EXPECT_EQ(read(64, 0), 0);
  EXPECT_EQ(write(64, 0), 0);
  EXPECT_EQ(read(0, 64), 3);
  EXPECT_EQ(read(0, 64), 0);
  EXPECT_EQ(read(0, 64), 0);
}

TEST_F(CloakTest, writes_and_reads_after_end_fail) {
  open("abc");
  memory[0] = 'x';
  EXPECT_EQ(write(0, 1), 1);
  for (int i = 0; i < 2; ++i) {
    wcuda_cloak_end(&cloak, 1);
    EXPECT_EQ(write(0, 1), -1);
    EXPECT_EQ(write(0, 0), -1);
  }
  EXPECT_EQ(read(1, 1), 1);
  wcuda_cloak_end(&cloak, 0);
  EXPECT_EQ(read(1, 1), -1);
  EXPECT_EQ(write(0, 1, 2), 1);
  wcuda_cloak_end(&cloak, 2);
  EXPECT_EQ(write(0, 1, 2), -1);
  for (const int32_t handle : {-1, 3, 4, 31, 32, 33, 64, kMin, kMax})
    wcuda_cloak_end(&cloak, handle);

  EXPECT_EQ(text_of(output_.get()), "x");
  EXPECT_EQ(text_of(log_.get()), "x");
}

TEST_F(CloakTest, handles_have_the_numbers_of_their_document) {
  struct {
    int32_t numbering, in;
  } const cases[] = {{WCUDA_CLOAK_PACK, 1}, {WCUDA_CLOAK_ABI, 0}, {WCUDA_CLOAK_GUIDE, 0}};
  for (const auto& [numbering, in] : cases) {
    open("abcdef", numbering);
    for (int32_t handle = -1; handle < 6; ++handle) {
      EXPECT_EQ(read(0, 1, handle), handle == in ? 1 : -1) << numbering << ", " << handle;
      EXPECT_EQ(write(0, 1, handle), handle == in + 1 || handle == in + 2 ? 1 : -1)
          << numbering << ", " << handle;
      const auto list = zctl_frame(1, {});
      std::copy(list.begin(), list.end(), memory.begin());
      const bool is_ctl = numbering != WCUDA_CLOAK_GUIDE && handle == in + 3;
      uint8_t* const mem = memory.data();
      EXPECT_EQ(wcuda_cloak_ctl2(&cloak, handle, mem, 64, 0, 32, 0, 64, 0), is_ctl ? 36 : -1);
    }
  }
}

TEST_F(CloakTest, handles_of_a_session_are_read_written_and_ended) {
  TestContext context(0, WCUDA_BACKEND_HOST);
  wcuda_error error{};
  wcuda_zctl_options options = WCUDA_ZCTL_OPTIONS_INIT;
  ASSERT_EQ(wcuda_registry_create(context.handle(), &options.registry, &error), WCUDA_OK);
  ASSERT_EQ(wcuda_zctl_session_create(&options, &cloak.session, &error), WCUDA_OK);
  wcuda_registry_destroy(options.registry);
  memory.resize(256);
  // CAPS_OPEN of a buffer of 4 bytes.
  const auto open = bytes_of(
      "5a434c31 0100 0300 05000000 00000000 00000000 35000000 05000000 'accel' 07000000 'default'"
      "02000000 19000000 04000000 'host' 01000000 '0' 0400000000000000 00000000");
  std::copy(open.begin(), open.end(), memory.begin());
  const auto length = static_cast<int32_t>(open.size());
  ASSERT_EQ(wcuda_cloak_ctl3(&cloak, memory.data(), 256, 0, length, 128, 128), 36);
  const auto handle = static_cast<int32_t>(u32_at(memory, 128 + 24));
  ASSERT_GE(handle, 4);

  const std::string text = "abcd";
  std::copy(text.begin(), text.end(), memory.begin());
  EXPECT_EQ(write(0, 4, handle), 4);
  EXPECT_EQ(write(0, 1, handle), -1);
  EXPECT_EQ(write(256, 1, handle), -1);
  EXPECT_EQ(read(-1, 1, handle), -1);
  EXPECT_EQ(read(8, 64, handle), 4);
  EXPECT_EQ(memory_text(8, 4), text);
  wcuda_cloak_end(&cloak, handle);
  wcuda_cloak_end(&cloak, handle);
  EXPECT_EQ(read(8, 1, handle), -1);
  EXPECT_EQ(write(0, 1), 1);
  wcuda_zctl_session_destroy(cloak.session);
}

TEST_F(CloakTest, ctl_answers_alike_in_three_shapes) {
  const auto list = zctl_frame(1, {});
  const auto fill = [&] { std::copy(list.begin(), list.end(), memory.begin()); };
  fill();
  EXPECT_EQ(wcuda_cloak_ctl2(&cloak, 3, memory.data(), 64, 0, 32, 0, 64, -1), 36);
  const auto answer = memory;
  fill();
  EXPECT_EQ(wcuda_cloak_ctl3(&cloak, memory.data(), 64, 0, 32, 0, 64), 36);
  EXPECT_EQ(memory, answer);
  fill();
  EXPECT_EQ(wcuda_cloak_ctl1(3, memory.data(), 64, 0, 32, 0, 64, 0), -1) << "no guest runs";
  *wcuda_cloak_running() = &cloak;
  EXPECT_EQ(wcuda_cloak_ctl1(3, memory.data(), 64, 0, 32, 0, 64, 0), 36);
  *wcuda_cloak_running() = nullptr;
  EXPECT_EQ(memory, answer);
}

TEST_F(CloakTest, alloc_is_a_deterministic_arena_and_free_ignores_junk) {
  cloak.heap_base = 5;
  EXPECT_EQ(alloc(1), 16);
  EXPECT_EQ(alloc(0), 32);
  EXPECT_EQ(alloc(16), 32);
  for (const int32_t junk : {-1, 0, 7, 32, kMin, kMax})
    wcuda_cloak_free(&cloak, memory.data(), memory.size(), junk);
  EXPECT_EQ(alloc(17), -1);
  EXPECT_EQ(alloc(-1), -1);
  EXPECT_EQ(alloc(kMin), -1);
  EXPECT_EQ(alloc(kMax), -1);
  EXPECT_EQ(alloc(16), 48);
  EXPECT_EQ(alloc(1), -1);
  EXPECT_EQ(alloc(0), 64);

  for (const uint32_t base : {65u, 0x7ffffff1u, 0xffffffffu}) {
    open("");
    cloak.heap_base = base;
    EXPECT_EQ(alloc(0), -1) << base;
    EXPECT_EQ(alloc(kMax), -1) << base;
  }
}

TEST_F(CloakTest, log_lines_have_no_control_characters) {
  const std::string text = "a\tbtopic\x7f\n";
  std::copy(text.begin(), text.end(), memory.begin());
  wcuda_cloak_log(&cloak, memory.data(), memory.size(), 3, 5, 0, 3);
  wcuda_cloak_log(&cloak, memory.data(), memory.size(), 8, 2, 64, 0);
  cloak.log = nullptr;
  wcuda_cloak_log(&cloak, memory.data(), memory.size(), 3, 5, 0, 3);
  EXPECT_EQ(text_of(log_.get()), "topic: a b\n  : \n");
}

TEST_F(CloakTest, chunk_schedules_give_the_sizes_of_the_table) {
  using Sizes = std::vector<int32_t>;
  EXPECT_EQ(chunks("all-at-once", "0123456789"), Sizes{10});
  EXPECT_EQ(chunks("all-at-once", "0123456789", 4), (Sizes{4, 4, 2}));
  EXPECT_EQ(chunks("one-byte", "0123"), (Sizes{1, 1, 1, 1}));
  EXPECT_EQ(chunks("powers-of-two", std::string(20, 'x')), (Sizes{1, 2, 4, 8, 5}));
  EXPECT_EQ(chunks("powers-of-two", std::string(20, 'x'), 3), (Sizes{1, 2, 3, 3, 3, 3, 3, 2}));
  EXPECT_EQ(chunks("crlf-adversary", "ab\r\n\n0123456789\r"), (Sizes{3, 1, 1, 7, 4}));
  // splitmix64(0) begins with e220a8397b1dcdaf, 6e789e6aa1b965f4, 06c45d188009454f.
  EXPECT_EQ(chunks("seeded-random", std::string(120, 'x')), (Sizes{48, 53, 16, 3}));
  EXPECT_EQ(chunks("seeded-random:0", std::string(120, 'x'), 50), (Sizes{48, 50, 16, 6}));
  for (const char* wrong : {"", "all", "one-bytes", "one-byte:", "one-byte:x", "one-byte:1x", ":1"})
    EXPECT_FALSE(wcuda_cloak_read_chunks(&cloak, wrong)) << wrong;
}

TEST_F(CloakTest, powers_of_two_begin_again_after_4096) {
  memory.resize(1 << 14);
  const auto sizes = chunks("powers-of-two", std::string(8191 + 3, 'x'), 1 << 14);
  ASSERT_EQ(sizes.size(), 15u);
  EXPECT_EQ(sizes[12], 4096);
  EXPECT_EQ(sizes[13], 1);
  EXPECT_EQ(sizes[14], 2);
}

TEST_F(CloakTest, trap_codes_have_words) {
  EXPECT_STREQ(wcuda_cloak_trap_words(1), "out of bounds");
  EXPECT_STREQ(wcuda_cloak_trap_words(6), "arithmetic");
  for (const int code : {-1, 7, 1000}) EXPECT_STREQ(wcuda_cloak_trap_words(code), "unknown");
}

}  // namespace
}  // namespace wcuda::testing
