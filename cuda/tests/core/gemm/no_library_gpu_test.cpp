// A machine without cuBLASLt, played to a process of its own: the loader finds a file of that name
// first which is no library.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/base/dynlib.h"
#include "support/own_program.h"
#include "support/temp_folder.h"

namespace wcuda::testing {
namespace {

TEST(GpuNoLibrary, products_say_so_and_the_catalogues_own_are_right) {
  const TempFolder folder;
  folder.write(kCublasLtLibrary, "no library");
  const char* const folders = std::getenv("LD_LIBRARY_PATH");
  const std::string environment =
      "LD_LIBRARY_PATH='" + folder.path() + (folders ? ":" + std::string(folders) : "") + "' ";

  // The first of them is skipped where there is a library.
  const OwnRun run = run_again(
      "GpuGemmApi.without_the_library_an_error_names_it:"
      "GpuGemmApi.large_products_of_the_catalogue_are_right",
      environment);

  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(run.output.find("SKIPPED"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("[  PASSED  ] 2 tests."), std::string::npos) << run.output;
}

}  // namespace
}  // namespace wcuda::testing
