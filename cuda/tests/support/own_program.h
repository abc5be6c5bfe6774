// This test program once more, in a process of its own: for what takes a device from a whole
// process, and for what the loader decides when a process starts.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>

namespace wcuda::testing {

struct OwnRun {
  int exit_code = -1;
  std::string output;
};

// Runs the tests of a filter, disabled ones too. `environment`: "NAME=value " of the shell, or "".
inline OwnRun run_again(const std::string& filter, const std::string& environment = "") {
  OwnRun run;
  char self[PATH_MAX] = "";
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) <= 0) return run;
  // The new process is not one of the shards of this one.
  const std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " + environment +
                              "'" + self + "' --gtest_also_run_disabled_tests --gtest_filter='" +
                              filter + "' 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) return run;
  char text[4096];
  for (size_t bytes; (bytes = fread(text, 1, sizeof(text), pipe)) > 0;)
    run.output.append(text, bytes);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  return run;
}

}  // namespace wcuda::testing
