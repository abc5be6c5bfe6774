// The header as C11 and C++17 programs use it; see header_use.c.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <string>

#include "support/header_text.h"

extern "C" int header_use_c(void);
extern "C" int header_use_cpp(void);

namespace {

TEST(Header, every_init_macro_sets_its_size_in_c_and_cpp) {
  EXPECT_EQ(header_use_c(), 0);
  EXPECT_EQ(header_use_cpp(), 0);
}

TEST(Header, no_init_macro_is_left_out_of_that_check) {
  const std::string header = wcuda::testing::header_text();
  const std::string use = wcuda::testing::read_text(WCUDA_TEST_DATA "/../api/base/header_use.c");
  const std::regex define("#define (WCUDA_[A-Z_]+_INIT)");
  int count = 0;
  for (std::sregex_iterator it(header.begin(), header.end(), define), end; it != end; ++it, ++count)
    EXPECT_NE(use.find(", " + (*it)[1].str() + ")"), std::string::npos) << (*it)[1];
  EXPECT_GE(count, 15);
}

}  // namespace
