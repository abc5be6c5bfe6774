// The four kinds of source, and what happens when one fails or shrinks.
#include "llm/gguf/source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "fuzz/gguf_entry.h"
#include "llm/gguf/gguf.h"
#include "llm/gguf/gguf_builder.h"
#include "support/temp_folder.h"

namespace wcuda::gguf {
namespace {

using testing::sample_gguf;
using testing::TempFolder;

// Reads a string; fails with `failure` once `reads_left` is used up.
struct StringFile {
  std::string bytes;
  int reads_left = 1 << 30;
  int32_t failure = 0;

  static int32_t read(void* user, uint64_t offset, void* target, uint64_t bytes) {
    StringFile* file = static_cast<StringFile*>(user);
    if (file->reads_left-- <= 0) return file->failure;
    std::memcpy(target, file->bytes.data() + offset, bytes);
    return 0;
  }
};

TEST(Source, every_kind_gives_the_same_bytes_and_the_same_bounds) {
  const TempFolder folder;
  const std::string bytes = "0123456789";
  const std::string path = folder.write("ten", bytes);
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  ASSERT_EQ(::lseek(descriptor, 7, SEEK_SET), 7);
  StringFile file{bytes};
  std::vector<std::shared_ptr<Source>> sources = {
      open_path(path).take(), open_descriptor(descriptor).take(),
      open_memory(bytes.data(), bytes.size()).take(),
      open_callback(StringFile::read, &file, bytes.size()).take()};

  for (const std::shared_ptr<Source>& source : sources) {
    char target[11] = {};
    EXPECT_EQ(source->size(), 10u) << source->name();
    EXPECT_TRUE(source->read_at(3, target, 7).ok()) << source->name();
    EXPECT_STREQ(target, "3456789") << source->name();
    EXPECT_TRUE(source->read_at(10, target, 0).ok()) << source->name();
    EXPECT_EQ(source->read_at(3, target, 8).code(), WCUDA_OUT_OF_RANGE) << source->name();
    EXPECT_EQ(source->read_at(11, target, 0).code(), WCUDA_OUT_OF_RANGE) << source->name();
    EXPECT_EQ(source->read_at(1, target, UINT64_MAX).code(), WCUDA_OUT_OF_RANGE) << source->name();
  }
  EXPECT_EQ(::lseek(descriptor, 0, SEEK_CUR), 7) << "the caller's position has moved";
  EXPECT_EQ(sources[0]->name(), "ten");
  ::close(descriptor);
}

TEST(Source, descriptor_is_duplicated) {
  const TempFolder folder;
  const std::string path = folder.write("file", "abc");
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  const std::shared_ptr<Source> source = open_descriptor(descriptor).take();

  ::close(descriptor);

  char target[3];
  EXPECT_TRUE(source->read_at(0, target, 3).ok());
}

TEST(Source, truncation_after_opening_is_an_io_status) {
  const TempFolder folder;
  const std::string path = folder.write("model.gguf", std::string(100000, 'x'));
  const std::shared_ptr<Source> source = open_path(path).take();

  ASSERT_EQ(::truncate(path.c_str(), 50000), 0);

  std::vector<char> target(100000);
  const Status status = source->read_at(0, target.data(), target.size());
  EXPECT_EQ(status.code(), WCUDA_IO);
  EXPECT_STREQ(status.message(),
               "model.gguf: ends at or before byte 50000, had 100000 bytes when opened: truncated "
               "since");
  EXPECT_TRUE(source->read_at(0, target.data(), 50000).ok());
}

TEST(Source, only_regular_files_open) {
  const TempFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);

  EXPECT_EQ(open_path(folder.path()).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_path(pipe).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_path("/dev/zero").status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_path("").status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_path(std::string("a\0b", 3)).status().code(), WCUDA_INVALID_ARGUMENT);
  const Status absent = open_path(folder.path() + "/absent").status();
  EXPECT_EQ(absent.code(), WCUDA_IO);
  EXPECT_EQ(absent.native_code(), ENOENT);
  EXPECT_EQ(open_descriptor(-1).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_descriptor(1 << 20).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_memory(nullptr, 1).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_memory("", UINT64_MAX).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_callback(nullptr, nullptr, 1).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(open_callback(StringFile::read, nullptr, 1ull << 63).status().code(),
            WCUDA_INVALID_ARGUMENT);
}

TEST(Source, descriptor_without_read_permission_is_an_io_status) {
  const TempFolder folder;
  const std::string path = folder.write("file", "abc");
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  const std::shared_ptr<Source> source = open_descriptor(descriptor).take();
  ::close(descriptor);

  char target[3];
  const Status status = source->read_at(0, target, 3);

  EXPECT_EQ(status.code(), WCUDA_IO);
  EXPECT_EQ(status.native_code(), EBADF);
}

TEST(Source, callback_failure_carries_its_number) {
  StringFile file{"abc", 0, -17};
  const std::shared_ptr<Source> source = open_callback(StringFile::read, &file, 3).take();

  char target[3];
  const Status status = source->read_at(0, target, 3);

  EXPECT_EQ(status.code(), WCUDA_IO);
  EXPECT_EQ(status.native_code(), -17);
  EXPECT_STREQ(status.message(), "the read callback returned -17 for 3 bytes at 0");
}

TEST(GgufSource, file_truncated_between_open_and_read_is_an_io_status) {
  const TempFolder folder;
  testing::GgufBuilder builder;
  builder.tensor_f32("a", {100000}, std::vector<float>(100000, 1.0f));
  builder.tensor_f32("b", {100000}, std::vector<float>(100000, 2.0f));
  const std::string path = folder.write("model.gguf", builder.build());
  const std::shared_ptr<Gguf> file = Gguf::open_path(path).take();

  ASSERT_EQ(::truncate(path.c_str(), 500000), 0);

  std::vector<float> values(100000);
  EXPECT_TRUE(file->read_tensor(0, 0, values.data(), 400000).ok());
  EXPECT_EQ(file->read_tensor(1, 0, values.data(), 400000).code(), WCUDA_IO);
  EXPECT_EQ(file->tensors().size(), 2u);
}

TEST(GgufSource, failure_at_every_read_is_passed_on) {
  testing::GgufBuilder builder = sample_gguf();
  builder.string("long", std::string(1 << 20, 'x'));
  builder.tensor_f32("t", {4}, {1, 2, 3, 4});
  StringFile file{builder.build()};
  int reads = 0;

  for (bool opened = false; !opened; ++reads) {
    file.reads_left = reads;
    file.failure = 100 + reads;
    const std::shared_ptr<Source> source =
        open_callback(StringFile::read, &file, file.bytes.size()).take();
    const Result<std::shared_ptr<Gguf>> gguf = Gguf::open(source);
    opened = gguf.ok();
    if (opened) break;
    EXPECT_EQ(gguf.status().code(), WCUDA_IO);
    EXPECT_EQ(gguf.status().native_code(), 100 + reads);
    ASSERT_LT(reads, 100);
  }
  EXPECT_GT(reads, 1);
}

TEST(GgufSource, reads_little_past_the_header) {
  testing::GgufBuilder builder = sample_gguf();
  builder.tensor("big", {8u << 20}, 24, std::string(8 << 20, 'x'));
  struct Counted {
    StringFile file;
    uint64_t bytes = 0;
    static int32_t read(void* user, uint64_t offset, void* target, uint64_t bytes) {
      static_cast<Counted*>(user)->bytes += bytes;
      return StringFile::read(&static_cast<Counted*>(user)->file, offset, target, bytes);
    }
  } counted{{builder.build()}};

  const Result<std::shared_ptr<Gguf>> gguf =
      Gguf::open(open_callback(Counted::read, &counted, counted.file.bytes.size()).take());

  EXPECT_TRUE(gguf.ok());
  EXPECT_LE(counted.bytes, 128u << 10);
}

TEST(GgufSource, threads_read_one_file_at_once) {
  const TempFolder folder;
  testing::GgufBuilder builder;
  for (int t = 0; t < 4; ++t)
    builder.tensor_f32("t" + std::to_string(t), {1000}, std::vector<float>(1000, float(t)));
  const std::string path = folder.write("model.gguf", builder.build());
  const std::shared_ptr<Gguf> file = Gguf::open_path(path).take();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);

  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> values(1000);
      for (int i = 0; i < 200; ++i) {
        wrong[t] += !file->read_tensor(t, 0, values.data(), 4000).ok();
        for (const float v : values) wrong[t] += v != float(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace wcuda::gguf
