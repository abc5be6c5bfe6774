// Writes the hand-made GGUF files into a folder: gguf_seeds FOLDER
#include <cstdio>
#include <fstream>

#include "llm/gguf/gguf_cases.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: gguf_seeds FOLDER\n");
    return 2;
  }
  for (const wcuda::testing::GgufCase& c : wcuda::testing::gguf_cases()) {
    if (c.bytes.size() > 16384) continue;  // longer than the fuzzer's inputs
    std::ofstream file(std::string(arguments[1]) + "/" + c.name, std::ios::binary);
    file << c.bytes;
    if (!file.flush()) {
      std::fprintf(stderr, "gguf_seeds: cannot write %s/%s\n", arguments[1], c.name.c_str());
      return 1;
    }
  }
  return 0;
}
