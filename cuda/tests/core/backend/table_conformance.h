// What a table of functions must do, whatever is behind it: the cases are in table_…_test.cpp, the
// backends that they run on in table_subjects.cpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "support/nvrtc_library.h"
#include "worker_cuda.h"

namespace wcuda::testing {

struct TableSubject {
  const char* name;
  std::function<wcuda_status(wcuda_backend*, wcuda_error*)> open;
};

inline void PrintTo(const TableSubject& subject, std::ostream* out) { *out << subject.name; }

inline constexpr char kVectorAdd[] =
    "extern \"C\" __global__ void vector_add(const float* a, const float* b, float* c, int n) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) c[i] = a[i] + b[i];\n"
    "}\n";

inline wcuda_string text_of(const std::string& text) { return {text.data(), text.size()}; }

// An open backend with its table; calls that are expected to succeed say why when they do not.
class TableConformance : public ::testing::TestWithParam<TableSubject> {
 protected:
  void SetUp() override {
    if (IsSkipped()) return;
    ASSERT_EQ(GetParam().open(&backend_, &error_), WCUDA_OK) << error_.message;
    ASSERT_EQ(wcuda_backend_table_get(backend_, &table_, &self_, &error_), WCUDA_OK);
  }
  void TearDown() override { wcuda_backend_close(backend_); }

  wcuda_device_memory allocate(uint64_t bytes, uint8_t flags = WCUDA_MEMORY_DEVICE) {
    wcuda_device_memory memory{0, 0};
    EXPECT_EQ(table_->allocate(self_, bytes, flags, &memory, &error_), WCUDA_OK) << error_.message;
    return memory;
  }
  wcuda_device_memory upload(const std::vector<uint8_t>& data) {
    const wcuda_device_memory memory = allocate(data.size());
    EXPECT_EQ(table_->copy_to_device(self_, memory, 0, data.data(), data.size(), &error_), WCUDA_OK)
        << error_.message;
    return memory;
  }
  wcuda_device_memory upload(const std::vector<float>& values) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    return upload(std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(float)));
  }
  std::vector<uint8_t> download(wcuda_device_memory memory, uint64_t offset, uint64_t bytes) {
    std::vector<uint8_t> data(bytes);
    EXPECT_EQ(table_->copy_from_device(self_, data.data(), memory, offset, bytes, &error_),
              WCUDA_OK)
        << error_.message;
    return data;
  }
  std::vector<uint8_t> download(wcuda_device_memory memory) {
    return download(memory, 0, memory.bytes);
  }
  std::vector<float> floats(wcuda_device_memory memory) {
    const std::vector<uint8_t> data = download(memory);
    std::vector<float> values(data.size() / sizeof(float));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  wcuda_stream make_stream() {
    wcuda_stream stream{0};
    EXPECT_EQ(table_->stream_create(self_, 0, &stream, &error_), WCUDA_OK) << error_.message;
    return stream;
  }
  wcuda_event make_event() {
    wcuda_event event{0};
    EXPECT_EQ(table_->event_create(self_, &event, &error_), WCUDA_OK) << error_.message;
    return event;
  }
  uint64_t live_count() {
    wcuda_backend_info info = WCUDA_BACKEND_INFO_INIT;
    EXPECT_EQ(wcuda_backend_info_get(backend_, &info, &error_), WCUDA_OK);
    return info.live_count;
  }
  bool is_cuda() {
    wcuda_backend_info info = WCUDA_BACKEND_INFO_INIT;
    EXPECT_EQ(wcuda_backend_info_get(backend_, &info, &error_), WCUDA_OK);
    return info.type == WCUDA_BACKEND_CUDA;
  }
  // Code that is none of a live handle of this backend.
  void expect_refused(wcuda_status status) {
    EXPECT_EQ(status, WCUDA_INVALID_HANDLE) << error_.message;
  }
  static std::vector<uint8_t> counting(uint64_t bytes, uint8_t first = 0) {
    std::vector<uint8_t> data(bytes);
    std::iota(data.begin(), data.end(), first);
    return data;
  }

  wcuda_backend backend_{0};
  const wcuda_backend_vtable* table_ = nullptr;
  void* self_ = nullptr;
  wcuda_error error_{};
};

// The arguments of a launch, one after the other.
class TableArguments {
 public:
  TableArguments& buffer(wcuda_device_memory memory, uint64_t offset = 0, uint64_t bytes = 0) {
    wcuda_argument argument = WCUDA_ARGUMENT_INIT;
    argument.kind = WCUDA_ARG_BUFFER;
    argument.buffer.id = memory.id;
    argument.offset = offset;
    argument.bytes = bytes;
    list_.push_back(argument);
    return *this;
  }
  TableArguments& number(const int32_t* value) {
    wcuda_argument argument = WCUDA_ARGUMENT_INIT;
    argument.kind = WCUDA_ARG_I32;
    argument.data = value;
    list_.push_back(argument);
    return *this;
  }
  const wcuda_argument* data() const { return list_.data(); }
  uint64_t size() const { return list_.size(); }

 private:
  std::vector<wcuda_argument> list_;
};

// With vector_add compiled.
class TableKernels : public TableConformance {
 protected:
  void SetUp() override {
    TableConformance::SetUp();
    if (IsSkipped() || !table_) return;
    const wcuda_status status = compile(kVectorAdd, "vector_add", &add_);
    if (is_cuda()) WCUDA_NEEDS_NVRTC(status != WCUDA_NOT_AVAILABLE, error_.message);
    ASSERT_EQ(status, WCUDA_OK) << error_.message;
  }
  wcuda_status compile(const std::string& source, const std::string& entry,
                       wcuda_backend_kernel* kernel) {
    return table_->compile_kernel(self_, text_of(source), text_of(entry), kernel, &error_);
  }
  wcuda_launch dims(uint32_t grid, uint32_t block, wcuda_stream stream = {0}) {
    wcuda_launch launch = WCUDA_LAUNCH_INIT;
    launch.grid[0] = grid;
    launch.block[0] = block;
    launch.stream = stream;
    return launch;
  }
  wcuda_status launch(const wcuda_launch& config, const TableArguments& arguments) {
    return table_->launch_kernel(self_, add_, &config, arguments.data(), arguments.size(), &error_);
  }

  wcuda_backend_kernel add_{0};
};

}  // namespace wcuda::testing
