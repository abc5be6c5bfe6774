// The backends that the conformance suite of tables runs on: HOST, HOST traced, HOST with faults
// that nobody asks for, the C table of examples/c/backend.c, and CUDA in the same three ways.
#include "core/backend/table_conformance.h"

extern "C" wcuda_status example_backend_register(const char* name, int32_t* type,
                                                 wcuda_error* error);

namespace wcuda::testing {
namespace {

void ignore_line(void*, wcuda_string) {}

std::function<wcuda_status(wcuda_backend*, wcuda_error*)> opener(int32_t type, uint32_t flags,
                                                                 wcuda_trace_callback trace) {
  return [=](wcuda_backend* backend, wcuda_error* error) {
    const std::string folder = nvrtc_folder();
    wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
    options.type = type;
    options.flags = flags;
    options.trace = trace;
    options.library_folder = text_of(folder);
    if (type == WCUDA_BACKEND_HOST) options.memory_budget = uint64_t{256} << 20;
    return wcuda_backend_open(&options, backend, error);
  };
}

wcuda_status open_example(wcuda_backend* backend, wcuda_error* error) {
  static int32_t type = 0;  // registered once a process
  if (type == 0)
    if (const wcuda_status status = example_backend_register("example", &type, error))
      return status;
  return opener(type, 0, nullptr)(backend, error);
}

std::string name_of(const ::testing::TestParamInfo<TableSubject>& info) { return info.param.name; }

const auto host_subjects = ::testing::Values(
    TableSubject{"host", opener(WCUDA_BACKEND_HOST, 0, nullptr)},
    TableSubject{"trace", opener(WCUDA_BACKEND_HOST, 0, ignore_line)},
    TableSubject{"fault", opener(WCUDA_BACKEND_HOST, WCUDA_BACKEND_WITH_FAULTS, nullptr)},
    TableSubject{"table", open_example});
const auto cuda_subjects = ::testing::Values(
    TableSubject{"cuda", opener(WCUDA_BACKEND_CUDA, 0, nullptr)},
    TableSubject{"trace", opener(WCUDA_BACKEND_CUDA, 0, ignore_line)},
    TableSubject{"fault", opener(WCUDA_BACKEND_CUDA, WCUDA_BACKEND_WITH_FAULTS, nullptr)});

INSTANTIATE_TEST_SUITE_P(Host, TableConformance, host_subjects, name_of);
INSTANTIATE_TEST_SUITE_P(Host, TableKernels, host_subjects, name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, TableConformance, cuda_subjects, name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, TableKernels, cuda_subjects, name_of);

}  // namespace
}  // namespace wcuda::testing
