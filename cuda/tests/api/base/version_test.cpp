// Versions, status names and the layout table, against the text of the header itself.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/header_text.h"
#include "worker_cuda.h"

namespace {

// The headers without comments.
std::string header_text() {
  std::string result = wcuda::testing::header_text();
  for (size_t begin; (begin = result.find("/*")) != std::string::npos;)
    result.erase(begin, result.find("*/", begin) + 2 - begin);
  return result;
}

TEST(Version, number_and_string_agree_with_the_header) {
  EXPECT_EQ(wcuda_version_number(), uint32_t{WCUDA_VERSION_MAJOR * 10000 +
                                             WCUDA_VERSION_MINOR * 100 + WCUDA_VERSION_PATCH});
  const std::string text = std::to_string(WCUDA_VERSION_MAJOR) + "." +
                           std::to_string(WCUDA_VERSION_MINOR) + "." +
                           std::to_string(WCUDA_VERSION_PATCH);
  EXPECT_EQ(wcuda_version_string(), text);
  EXPECT_EQ(wcuda_abi_version(), uint32_t{WCUDA_ABI_VERSION});
}

TEST(Version, build_info_is_whole) {
  wcuda_build_info info = WCUDA_BUILD_INFO_INIT;

  ASSERT_EQ(wcuda_build_info_get(&info, nullptr), WCUDA_OK);

  EXPECT_EQ(info.has_cuda, info.cuda_version != 0);
  EXPECT_EQ(info.has_cuda, std::strlen(info.cuda_architectures) != 0);
  EXPECT_GT(std::strlen(info.compiler), 3u);
  EXPECT_GT(std::strlen(info.build_type), 3u);
  EXPECT_NE(info.host_features, nullptr);
}

TEST(Version, every_status_code_of_the_header_has_its_name) {
  const std::string text = header_text();
  const std::regex define("#define (WCUDA_[A-Z_]+) ([0-9]{4})\\b");
  int count = 0;

  for (std::sregex_iterator it(text.begin(), text.end(), define), end; it != end; ++it, ++count)
    EXPECT_EQ(wcuda_status_name(std::stoi((*it)[2])), (*it)[1].str());

  EXPECT_GE(count, 26);
  EXPECT_STREQ(wcuda_status_name(WCUDA_OK), "WCUDA_OK");
  EXPECT_STREQ(wcuda_status_name(-1), "WCUDA_UNKNOWN");
}

// Each kind of failure and what it is in the older lists.
TEST(Version, every_status_has_its_number_in_the_older_lists) {
  struct Row {
    wcuda_status status;
    int32_t worker, vram, zctl;
    const char* table_name;
  };
  const Row rows[] = {{WCUDA_OK, 0, 0, 0, ""},
                      {WCUDA_NO_DEVICE, 1, 4, 6, "DeviceNotFound"},
                      {WCUDA_OUT_OF_MEMORY, 2, 1, 5, "OutOfMemory"},
                      {WCUDA_INVALID_ARGUMENT, 8, 2, 7, "InvalidArgs"},
                      {WCUDA_OUT_OF_RANGE, 8, 2, 7, "InvalidSize"},
                      {WCUDA_MALFORMED, 4, 2, 1, "InvalidArgs"},
                      {WCUDA_UNSUPPORTED, 99, 4, 2, "UnsupportedOperation"},
                      {WCUDA_UNSUPPORTED_KERNEL, 99, 4, 2, "UnsupportedKernel"},
                      {WCUDA_COMPILE_FAILED, 7, 4, 6, "CompileFailed"},
                      {WCUDA_LAUNCH_FAILED, 7, 4, 6, "LaunchFailed"},
                      {WCUDA_DEVICE_LOST, 5, 4, 6, "SynchronizationFailed"},
                      {WCUDA_TIMEOUT, 5, 4, 4, "Timeout"},
                      {WCUDA_NOT_RESIDENT, 6, 4, 6, "InvalidPointer"},
                      {WCUDA_DEVICE_ERROR, 5, 3, 6, "TransferFailed"},
                      {WCUDA_INTEGRITY, 6, 4, 6, "InvalidPointer"},
                      {-1, 99, 4, 6, "InvalidOperation"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(wcuda_status_name(row.status));
    EXPECT_EQ(wcuda_status_number(row.status, WCUDA_NUMBERS_WORKER), row.worker);
    EXPECT_EQ(wcuda_status_number(row.status, WCUDA_NUMBERS_VRAM), row.vram);
    EXPECT_EQ(wcuda_status_number(row.status, WCUDA_NUMBERS_ZCTL), row.zctl);
    EXPECT_STREQ(wcuda_backend_error_name(row.status), row.table_name);
  }
  EXPECT_EQ(wcuda_status_number(WCUDA_OK, 0), -1);
  EXPECT_EQ(wcuda_status_number(WCUDA_OK, 4), -1);

  // All there are: a failure is a failure in each list, and one that the list has.
  for (wcuda_status status = -10; status < 10000; ++status) {
    if (status == WCUDA_OK) continue;
    const int32_t worker = wcuda_status_number(status, WCUDA_NUMBERS_WORKER);
    const int32_t vram = wcuda_status_number(status, WCUDA_NUMBERS_VRAM);
    const int32_t zctl = wcuda_status_number(status, WCUDA_NUMBERS_ZCTL);
    EXPECT_TRUE((worker >= 1 && worker <= 8) || worker == 99) << status;
    EXPECT_TRUE(vram >= 1 && vram <= 4) << status;
    EXPECT_TRUE(zctl >= 1 && zctl <= 7) << status;
  }
}

TEST(Version, layout_table_holds_every_struct_and_field_of_the_header) {
  const std::string text = header_text();
  const std::regex declaration("typedef struct (\\w+) \\{([^}]*)\\} (\\w+);");
  std::set<std::string> expected;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    expected.insert((*it)[1].str() + ".");
    // A pointer to a function is a member by its name.
    const std::string body =
        std::regex_replace((*it)[2].str(), std::regex("\\(\\*(\\w+)\\)\\([^)]*\\)"), "$1");
    const std::regex member("(\\w+)\\s*(\\[\\w+\\])?\\s*[;,]");
    for (std::sregex_iterator m(body.begin(), body.end(), member); m != end; ++m)
      expected.insert((*it)[1].str() + "." + (*m)[1].str());
  }
  EXPECT_GT(expected.size(), 200u);

  std::set<std::string> found;
  std::map<std::string, wcuda_abi_field> structs;
  uint64_t count = 0;
  ASSERT_EQ(wcuda_abi_field_list(0, nullptr, 0, &count, nullptr), WCUDA_OK);
  std::vector<wcuda_abi_field> fields(count, WCUDA_ABI_FIELD_INIT);
  ASSERT_EQ(wcuda_abi_field_list(0, fields.data(), count, &count, nullptr), WCUDA_OK);
  for (const wcuda_abi_field& field : fields) {
    found.insert(std::string(field.struct_name) + "." + field.field_name);
    if (!*field.field_name) structs[field.struct_name] = field;
    const wcuda_abi_field& whole = structs[field.struct_name];
    EXPECT_LE(field.offset + field.bytes, whole.bytes) << field.struct_name << field.field_name;
  }
  EXPECT_EQ(found, expected);
}

TEST(Version, layout_table_has_an_end) {
  wcuda_abi_field field = WCUDA_ABI_FIELD_INIT;
  wcuda_error error;
  uint64_t count = 0;

  EXPECT_EQ(wcuda_abi_field_list(100000, &field, 1, &count, &error), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_abi_field_list(0, nullptr, 1, &count, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "fields is NULL");
  EXPECT_EQ(wcuda_abi_field_list(0, nullptr, 0, nullptr, &error), WCUDA_INVALID_ARGUMENT);
}

}  // namespace
