#include "core/base/dynlib.h"

#include <gtest/gtest.h>

#include <string>

namespace wcuda {
namespace {

TEST(DynamicLibrary, absent_library_is_a_status_with_the_name) {
  const auto library = DynamicLibrary::open("libwcuda-is-not-there.so.7");

  EXPECT_EQ(library.status().code(), WCUDA_NOT_AVAILABLE);
  EXPECT_NE(std::string(library.status().message()).find("libwcuda-is-not-there.so.7"),
            std::string::npos);
}

TEST(DynamicLibrary, finds_symbols_and_names_those_it_lacks) {
  const auto library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library.ok()) << library.status().message();
  double (*cosine)(double) = nullptr;

  ASSERT_TRUE(library->find("cos", &cosine).ok());
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_STREQ(library->find("cosmos", &cosine).message(), "libm.so.6 has no cosmos");
}

TEST(DynamicLibrary, reports_the_file_it_came_from) {
  const auto library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library.ok()) << library.status().message();

  EXPECT_EQ(library->path().front(), '/');
  EXPECT_NE(library->path().find("libm"), std::string::npos);
}

}  // namespace
}  // namespace wcuda
