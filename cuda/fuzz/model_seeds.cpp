// Writes tiny models into a folder, one of each kind: model_seeds FOLDER
#include <cstdio>
#include <fstream>

#include "llm/model/tiny_cases.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: model_seeds FOLDER\n");
    return 2;
  }
  for (const wcuda::testing::ModelCase& c : wcuda::testing::model_cases()) {
    std::ofstream file(std::string(arguments[1]) + "/" + c.name, std::ios::binary);
    file << c.bytes;
    if (!file.flush()) {
      std::fprintf(stderr, "model_seeds: cannot write %s/%s\n", arguments[1], c.name.c_str());
      return 1;
    }
  }
  return 0;
}
