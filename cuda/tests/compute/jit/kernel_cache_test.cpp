// The cache of compiled programs: keys, entries, the folder, several processes. Needs neither NVRTC
// nor a device, the last test apart.
#include "compute/jit/kernel_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>

#include "core/base/log.h"
#include "support/temp_folder.h"

namespace wcuda::jit {
namespace {

using testing::TempFolder;

nvrtc::Request request() {
  nvrtc::Request r;
  r.source = "source";
  r.architecture = "sm_90a";
  return r;
}

CacheKey key_of(const nvrtc::Request& r, const std::string& compiler = "13000; build 1") {
  std::string why;
  const auto key = cache_key(r, compiler, &why);
  EXPECT_TRUE(key) << why;
  return key.value_or(CacheKey{});
}

nvrtc::Outcome outcome(size_t code_bytes = 100) {
  nvrtc::Outcome result;
  result.code.assign(code_bytes, 0x5a);
  result.log = "a warning";
  result.names = {{"scale<float>", "_Z5scaleIfE"}, {"scale<int>", "_Z5scaleIiE"}};
  return result;
}

void expect_same(const nvrtc::Outcome& a, const nvrtc::Outcome& b) {
  EXPECT_EQ(a.code, b.code);
  EXPECT_EQ(a.log, b.log);
  EXPECT_EQ(a.names, b.names);
}

TEST(FileIdentity, is_of_the_file_that_is_there_now) {
  const TempFolder folder;
  const std::string path = folder.path() + "/library.so";
  EXPECT_EQ(nvrtc::file_identity(path), "");
  const auto identity_of = [&](const std::string& text, int64_t seconds) {
    std::ofstream(path, std::ios::trunc) << text;
    const timespec times[2] = {{seconds, 5}, {seconds, 5}};
    EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return nvrtc::file_identity(path);
  };

  const std::string first = identity_of("one", 1000);
  EXPECT_EQ(first, "3 bytes of 1000.5");
  EXPECT_EQ(identity_of("two", 1000), first);
  EXPECT_NE(identity_of("three", 1000), first);
  EXPECT_NE(identity_of("one", 1001), first);
}

TEST(CacheKey, differs_with_every_part_of_the_request) {
  std::set<CacheKey> keys;
  int count = 0;
  const auto add = [&](auto&& change) {
    nvrtc::Request r = request();
    change(r);
    keys.insert(key_of(r));
    ++count;
  };
  add([](auto&) {});
  add([](auto& r) { r.source += " "; });
  add([](auto& r) { r.name = "other.cu"; });
  add([](auto& r) { r.architecture = "sm_90"; });
  add([](auto& r) { r.standard = "c++20"; });
  add([](auto& r) { r.defines = {"A=1"}; });
  add([](auto& r) { r.defines = {"A", "1"}; });
  add([](auto& r) { r.headers = {{"a", "bc"}}; });
  add([](auto& r) { r.headers = {{"ab", "c"}}; });
  add([](auto& r) { r.headers = {{"a", ""}, {"bc", ""}}; });
  add([](auto& r) { r.expressions = {"A"}; });
  add([](auto& r) { r.extras = {"--minimal"}; });
  add([](auto& r) { r.fast_math = true; });
  add([](auto& r) { r.line_info = true; });
  add([](auto& r) { r.debug = true; });
  add([](auto& r) { r.relocatable = true; });
  add([](auto& r) { r.default_device = true; });
  add([](auto& r) { r.flush_denormals = nvrtc::Choice::kOn; });
  add([](auto& r) { r.flush_denormals = nvrtc::Choice::kOff; });
  add([](auto& r) { r.precise_sqrt = nvrtc::Choice::kOff; });
  add([](auto& r) { r.precise_division = nvrtc::Choice::kOff; });
  add([](auto& r) { r.fuse_multiply_add = nvrtc::Choice::kOff; });
  add([](auto& r) { r.max_registers = 32; });
  keys.insert(key_of(request(), "13000; build 2"));
  ++count;

  EXPECT_EQ(keys.size(), static_cast<size_t>(count));
  EXPECT_EQ(key_of(request()), key_of(request()));
}

TEST(CacheKey, what_may_read_files_has_none_and_says_why) {
  nvrtc::Request r = request();
  std::string why;
  r.include_folders = {"somewhere"};
  EXPECT_FALSE(cache_key(r, "13000", &why));
  EXPECT_EQ(why, "include folders: what they hold may change");
  for (const char* extra : {"-Isomewhere", "-I", "somewhere", "--include-path=x",
                            "--pre-include=x.h", "-include=x.h", "--use-pch=x"}) {
    r = request();
    r.extras = {extra};
    EXPECT_FALSE(cache_key(r, "13000", &why)) << extra;
  }
  EXPECT_EQ(why, "extra option '--use-pch=x': may read files");
}

TEST(CacheEntry, returns_what_went_in_and_no_prefix_or_flipped_bit_of_it) {
  const CacheKey key = key_of(request());
  const std::vector<uint8_t> bytes = encode_entry(key, outcome());
  const auto decode = [&](const std::vector<uint8_t>& from, const CacheKey& under) {
    const std::unique_ptr<char[]> exact(new char[from.size()]);
    std::copy(from.begin(), from.end(), exact.get());
    return decode_entry(under, {exact.get(), from.size()});
  };
  const auto found = decode(bytes, key);
  ASSERT_TRUE(found);
  expect_same(*found, outcome());
  ASSERT_TRUE(decode(encode_entry(key, {}), key));

  for (size_t count = 0; count < bytes.size(); ++count)
    EXPECT_FALSE(decode({bytes.begin(), bytes.begin() + static_cast<long>(count)}, key)) << count;
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::vector<uint8_t> wrong = bytes;
    wrong[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_FALSE(decode(wrong, key)) << bit;
  }
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(decode(longer, key));
  EXPECT_FALSE(decode(bytes, key_of(request(), "1"))) << "of another key";
}

class Cache : public ::testing::Test {
 protected:
  std::shared_ptr<KernelCache> open(uint64_t bytes_max = 1 << 20) {
    auto cache = KernelCache::open(path_, bytes_max);
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    return cache.ok() ? cache.take() : nullptr;
  }
  static CacheKey key(int number) {
    CacheKey key{};
    key[0] = static_cast<uint8_t>(number);
    key[1] = static_cast<uint8_t>(number >> 8);
    return key;
  }
  std::string file(const CacheKey& key) const { return path_ + "/" + key_text(key) + ".kernel"; }

  TempFolder folder_;
  std::string path_ = folder_.path() + "/cache";
};

TEST_F(Cache, keeps_a_program_for_the_next_one_who_opens_it) {
  EXPECT_FALSE(open()->find(key(1)));
  open()->store(key(1), outcome());
  const auto cache = open();

  const auto found = cache->find(key(1));

  ASSERT_TRUE(found);
  expect_same(*found, outcome());
  EXPECT_EQ(cache->stats().hit_count, 1u);
  struct stat about;
  ASSERT_EQ(::stat(file(key(1)).c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0700u);
  EXPECT_TRUE(cache->clear().ok());
  EXPECT_EQ(cache->size()->entry_count, 0u);
}

TEST_F(Cache, a_damaged_entry_is_a_miss_and_removed) {
  const auto cache = open();
  cache->store(key(1), outcome());
  std::filesystem::resize_file(file(key(1)), 150);

  EXPECT_FALSE(cache->find(key(1)));

  EXPECT_FALSE(std::filesystem::exists(file(key(1))));
  EXPECT_EQ(cache->stats().damaged_count, 1u);
  EXPECT_EQ(cache->stats().miss_count, 1u);
  cache->store(key(1), outcome());
  EXPECT_TRUE(cache->find(key(1)));
}

TEST_F(Cache, what_is_no_plain_file_is_never_followed) {
  const auto cache = open();
  const std::string outside = folder_.write("outside", "text");
  std::filesystem::create_symlink(outside, file(key(1)));
  ASSERT_EQ(::mkfifo(file(key(2)).c_str(), 0600), 0);
  std::filesystem::create_directory(file(key(3)));

  for (int number = 1; number <= 3; ++number) EXPECT_FALSE(cache->find(key(number)));

  EXPECT_TRUE(std::filesystem::exists(outside));
}

TEST_F(Cache, the_least_recently_used_go_when_it_is_full) {
  const uint64_t entry_bytes = encode_entry(key(0), outcome(1000)).size();
  const auto cache = open(3 * entry_bytes);
  for (int number = 0; number < 3; ++number) cache->store(key(number), outcome(1000));
  const auto now = std::filesystem::file_time_type::clock::now();
  for (int number = 0; number < 3; ++number)
    std::filesystem::last_write_time(file(key(number)), now - std::chrono::hours(3 - number));
  ASSERT_TRUE(cache->find(key(0))) << "used now";

  cache->store(key(3), outcome(1000));

  EXPECT_TRUE(std::filesystem::exists(file(key(0))));
  EXPECT_FALSE(std::filesystem::exists(file(key(1))));
  EXPECT_TRUE(std::filesystem::exists(file(key(2))));
  EXPECT_TRUE(std::filesystem::exists(file(key(3))));
  EXPECT_EQ(cache->stats().evicted_count, 1u);
  EXPECT_EQ(cache->size()->bytes, 3 * entry_bytes);

  cache->store(key(4), outcome(100000));
  EXPECT_EQ(cache->stats().store_failure_count, 1u) << "larger than all of it";
  EXPECT_EQ(cache->size()->entry_count, 3u);
}

TEST_F(Cache, strangers_files_stay_and_unfinished_ones_go_when_old) {
  const auto cache = open(2000);
  folder_.write("cache/notes.txt", std::string(5000, 'x'));
  folder_.write("cache/.new-young", "x");
  folder_.write("cache/.new-old", "x");
  std::filesystem::last_write_time(
      path_ + "/.new-old", std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));

  cache->store(key(1), outcome());

  EXPECT_TRUE(std::filesystem::exists(path_ + "/notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/.new-young"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/.new-old"));
  EXPECT_TRUE(cache->find(key(1)));
}

TEST_F(Cache, a_folder_that_others_can_write_is_refused) {
  ASSERT_TRUE(open());
  for (const mode_t mode : {0777, 0770, 0720, 0702}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    const auto cache = KernelCache::open(path_, 1000);
    EXPECT_EQ(cache.status().code(), WCUDA_INVALID_ARGUMENT) << mode;
    EXPECT_NE(std::string(cache.status().message()).find("can be written by other users"),
              std::string::npos);
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
  EXPECT_TRUE(KernelCache::open(path_, 1000).ok()) << "others may read";
}

TEST_F(Cache, folders_that_are_none_are_refused) {
  const std::string plain = folder_.write("plain", "text");
  EXPECT_EQ(KernelCache::open(plain, 1000).status().code(), WCUDA_IO);
  EXPECT_EQ(KernelCache::open(folder_.path() + "/a/b", 1000).status().code(), WCUDA_IO);
  EXPECT_EQ(KernelCache::open("", 1000).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(KernelCache::open(path_, 0).status().code(), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Cache, a_folder_that_goes_away_fails_nothing) {
  const auto cache = open();
  std::filesystem::remove_all(path_);
  std::vector<std::string> records;
  const auto take = [](void* user, int32_t, wcuda_string target, wcuda_string message) {
    static_cast<std::vector<std::string>*>(user)->push_back(
        std::string(target.data, target.bytes) + ": " + std::string(message.data, message.bytes));
  };
  ASSERT_TRUE(set_log_sink(take, &records, WCUDA_LOG_WARN).ok());

  cache->store(key(1), outcome());

  ASSERT_TRUE(set_log_sink(nullptr, nullptr, 0).ok());
  EXPECT_EQ(records,
            std::vector<std::string>{"jit: kernel cache: create: No such file or directory"});
  EXPECT_FALSE(cache->find(key(1)));
  EXPECT_EQ(cache->stats().store_failure_count, 1u);
}

// Each process stores and finds the same few entries in a cache too small for all of them: what is
// found is always whole.
TEST_F(Cache, eight_processes_share_it) {
  constexpr int kProcesses = 8, kRounds = 200, kKeys = 12;
  const uint64_t entry_bytes = encode_entry(key(0), outcome(5000)).size();
  ASSERT_TRUE(open(8 * entry_bytes));
  pid_t children[kProcesses];
  for (int process = 0; process < kProcesses; ++process) {
    children[process] = ::fork();
    ASSERT_GE(children[process], 0);
    if (children[process] != 0) continue;
    auto cache = KernelCache::open(path_, 8 * entry_bytes);
    int wrong = cache.ok() ? 0 : 1;
    for (int round = 0; round < kRounds && wrong == 0; ++round) {
      const int number = (process * 5 + round * 7) % kKeys;
      nvrtc::Outcome mine = outcome(5000);
      mine.code[17] = static_cast<uint8_t>(number);
      const auto found = (*cache)->find(key(number));
      if (found ? found->code != mine.code : false) wrong = 2;
      if (!found) (*cache)->store(key(number), mine);
    }
    if ((*cache)->stats().damaged_count != 0) wrong = 3;
    if ((*cache)->stats().store_failure_count != 0) wrong = 4;
    ::_exit(wrong);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_LE(open(8 * entry_bytes)->size()->bytes, 8 * entry_bytes);
}

}  // namespace
}  // namespace wcuda::jit
