// A guest of ZCTL/1: one flat memory, frames built field by field, and what a session answered.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "worker_cuda.h"

namespace wcuda::testing {

// Bytes from hex; blanks and what stands in quotes as it is: "01000000 'noop'".
inline std::vector<uint8_t> bytes_of(const std::string& text) {
  std::vector<uint8_t> result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    if (text[i] == '\'') {
      for (++i; text[i] != '\''; ++i) result.push_back(static_cast<uint8_t>(text[i]));
      continue;
    }
    result.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
    ++i;
  }
  return result;
}

inline void put_u32(std::vector<uint8_t>* bytes, uint32_t value) {
  for (int i = 0; i < 4; ++i) bytes->push_back(static_cast<uint8_t>(value >> (8 * i)));
}
inline uint32_t u32_at(const std::vector<uint8_t>& bytes, size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 4);
  return value;
}

inline std::vector<uint8_t> zctl_frame(uint16_t op, const std::vector<uint8_t>& payload,
                                       uint32_t req_id = 0, uint32_t timeout_ms = 0) {
  std::vector<uint8_t> frame = bytes_of("5a43544c 0100");
  frame.push_back(static_cast<uint8_t>(op));
  frame.push_back(static_cast<uint8_t>(op >> 8));
  for (const uint32_t field : {uint32_t{0}, req_id, static_cast<uint32_t>(payload.size()),
                               timeout_ms, uint32_t{0}, uint32_t{0}})
    put_u32(&frame, field);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

struct ZctlArgument {
  uint32_t kind, a, b, c;
};

inline std::vector<uint8_t> zctl_run(uint32_t kernel, const std::vector<ZctlArgument>& arguments,
                                     uint32_t base = 0, uint32_t timeout_ms = 0) {
  std::vector<uint8_t> payload;
  for (const uint32_t field : {kernel, static_cast<uint32_t>(arguments.size()), base, 0u})
    put_u32(&payload, field);
  for (const ZctlArgument& each : arguments)
    for (const uint32_t word : {each.kind, each.a, each.b, each.c}) put_u32(&payload, word);
  return zctl_frame(0x0102, payload, 7, timeout_ms);
}

// What a run was answered with.
struct ZctlAnswer {
  int32_t ret = -1;
  uint32_t status = 99;
  uint32_t ok = 99;
  uint32_t code = 99;
  std::string message;
};

inline ZctlAnswer read_answer(int32_t ret, const std::vector<uint8_t>& response) {
  ZctlAnswer answer;
  answer.ret = ret;
  if (ret < 32) return answer;
  answer.status = u32_at(response, 16);
  if (ret < 44) return answer;
  answer.ok = u32_at(response, 32);
  answer.code = u32_at(response, 36);
  answer.message.assign(response.begin() + 44, response.begin() + ret);
  EXPECT_EQ(u32_at(response, 40), answer.message.size());
  return answer;
}

// A session and a memory. Frames lie at 0, responses at 4,096; data of the tests from 8,192 on.
class ZctlGuest {
 public:
  static constexpr uint32_t kResponse = 4096, kData = 8192;

  explicit ZctlGuest(wcuda_registry registry, uint64_t bytes = 65536)
      : ZctlGuest(options_for(registry), bytes) {}
  explicit ZctlGuest(const wcuda_zctl_options& options, uint64_t bytes = 65536) : memory(bytes) {
    wcuda_error error{};
    EXPECT_EQ(wcuda_zctl_session_create(&options, &session_, &error), WCUDA_OK) << error.message;
  }
  ~ZctlGuest() { wcuda_zctl_session_destroy(session_); }
  ZctlGuest(const ZctlGuest&) = delete;
  ZctlGuest& operator=(const ZctlGuest&) = delete;

  static wcuda_zctl_options options_for(wcuda_registry registry) {
    wcuda_zctl_options options = WCUDA_ZCTL_OPTIONS_INIT;
    options.registry = registry;
    return options;
  }

  wcuda_zctl_session session() const { return session_; }

  int32_t call(const std::vector<uint8_t>& frame, int32_t capacity = 4096, int32_t timeout_ms = 0) {
    std::memcpy(memory.data(), frame.data(), frame.size());
    return wcuda_zctl_call(session_, memory.data(), memory.size(), 0,
                           static_cast<int32_t>(frame.size()), kResponse, capacity, timeout_ms);
  }
  std::vector<uint8_t> answer(const std::vector<uint8_t>& frame) {
    const int32_t ret = call(frame);
    const auto* const response = memory.data() + kResponse;
    return {response, response + std::max(ret, 0)};
  }
  ZctlAnswer run(const std::vector<uint8_t>& frame, int32_t timeout_ms = 0) {
    const int32_t ret = call(frame, 4096, timeout_ms);
    const auto* const response = memory.data() + kResponse;
    return read_answer(ret, {response, response + std::max(ret, 0)});
  }
  ZctlAnswer run(uint32_t kernel, const std::vector<ZctlArgument>& arguments, uint32_t base = 0) {
    return run(zctl_run(kernel, arguments, base));
  }

  template <class T>
  void write(uint32_t offset, const std::vector<T>& values) {
    // memcpy takes no null pointer, as an empty vector may have.
    if (!values.empty())
      std::memcpy(memory.data() + offset, values.data(), values.size() * sizeof(T));
  }
  template <class T>
  std::vector<T> read(uint32_t offset, size_t count) const {
    std::vector<T> values(count);
    if (!values.empty()) std::memcpy(values.data(), memory.data() + offset, count * sizeof(T));
    return values;
  }
  // A descriptor at `offset`, with its shape behind it, and its strides, if it has any.
  ZctlArgument tensor(uint32_t offset, uint32_t data, uint32_t bytes,
                      const std::vector<uint32_t>& shape, const std::vector<int32_t>& strides = {},
                      uint32_t dtype = 1, uint32_t flags = 0) {
    const uint32_t shape_off = offset + 32;
    const auto rank = static_cast<uint32_t>(shape.size());
    const uint32_t stride_off = strides.empty() ? 0 : shape_off + 4 * rank;
    write<uint32_t>(offset, {dtype, rank, flags, data, bytes, shape_off, stride_off, 0});
    write(shape_off, shape);
    if (!strides.empty()) write(stride_off, strides);
    return {11, offset, 32, 0};
  }

  std::vector<uint8_t> memory;

 private:
  wcuda_zctl_session session_{0};
};

}  // namespace wcuda::testing
