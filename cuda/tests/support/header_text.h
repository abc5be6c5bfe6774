// The public headers as text, for tests that read them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace wcuda::testing {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_GT(text.str().size(), 100u) << path;
  return text.str();
}

// The five headers that declare the interface, one after the other.
inline std::string header_text() {
  std::string text;
  for (const char* name : {"base", "llm", "compute", "backend", "zctl"})
    text += read_text(WCUDA_TEST_INCLUDE "/worker_cuda/" + std::string(name) + ".h");
  return text;
}

}  // namespace wcuda::testing
