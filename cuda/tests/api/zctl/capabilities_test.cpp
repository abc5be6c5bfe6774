// ZCL1: the capabilities of a session and their handles, on the host, on the host posing as a
// device, and (Gpu…) on a device.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "support/allocation_failure.h"
#include "support/context.h"
#include "support/fault_context.h"
#include "support/module_device.h"
#include "support/zctl_guest.h"

namespace wcuda::testing {
namespace {

using Payload = std::vector<uint8_t>;

constexpr uint32_t kGuestData = ZctlGuest::kData;
constexpr char kAddOneCode[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry add_one(.param .u64 x, .param .u32 n) {\n"
    "  .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<4>; .reg .f32 %f;\n"
    "  ld.param.u64 %d0, [x];\n  ld.param.u32 %r0, [n];\n  mov.u32 %r4, %tid.x;\n"
    "  setp.ge.u32 %p, %r4, %r0;\n  @%p bra done;\n"
    "  cvta.to.global.u64 %d1, %d0;\n  mul.wide.u32 %d2, %r4, 4;\n  add.s64 %d3, %d1, %d2;\n"
    "  ld.global.f32 %f, [%d3];\n  add.f32 %f, %f, 0f3F800000;\n  st.global.f32 [%d3], %f;\n"
    "done:\n  ret;\n}\n";

// A payload, field by field.
class Words {
 public:
  Words& number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) all.push_back(static_cast<uint8_t>(value >> (8 * i)));
    return *this;
  }
  Words& h1(uint8_t value) { return number(value, 1); }
  Words& h4(uint32_t value) { return number(value, 4); }
  Words& h8(uint64_t value) { return number(value, 8); }
  Words& text(const std::string& value) {
    h4(static_cast<uint32_t>(value.size()));
    all.insert(all.end(), value.begin(), value.end());
    return *this;
  }
  Words& text(const Payload& value) { return text(std::string(value.begin(), value.end())); }
  Payload all;
};

Payload zcl1(uint16_t op, const Payload& payload, uint32_t rid = 1, uint32_t timeout_ms = 0) {
  Words frame;
  frame.all = bytes_of("'ZCL1' 0100");
  frame.number(op, 2).h4(rid).h4(timeout_ms).h4(0).h4(static_cast<uint32_t>(payload.size()));
  frame.all.insert(frame.all.end(), payload.begin(), payload.end());
  return frame.all;
}
Payload open_frame(const char* kind, uint32_t mode, const Payload& params, uint32_t rid = 1,
                   uint32_t timeout_ms = 0) {
  return zcl1(3, Words().text(kind).text("default").h4(mode).text(params).all, rid, timeout_ms);
}

// What a CAPS_OPEN was answered with.
struct Opened {
  int32_t handle = -1;
  uint32_t flags = 0;
  std::string trace;  // empty: it was opened
  std::string cause;
};

struct Argument {
  uint8_t kind;
  Payload bytes;
};

class Accelerator {
 public:
  Accelerator(wcuda_registry registry, const char* backend, uint32_t flags = 0)
      : backend_(backend), guest(options_for(registry, flags)) {}

  static wcuda_zctl_options options_for(wcuda_registry registry, uint32_t flags) {
    wcuda_zctl_options options = ZctlGuest::options_for(registry);
    options.flags = flags;
    return options;
  }
  Words target() const { return Words().text(backend_).text("0"); }

  Opened open(const char* kind, uint32_t mode, const Payload& params, uint32_t timeout_ms = 0) {
    const Payload answer = guest.answer(open_frame(kind, mode, params, 1, timeout_ms));
    Opened opened;
    if (answer.size() < 36) {
      ADD_FAILURE() << "an answer of " << answer.size() << " bytes";
    } else if (answer[20] == 1) {
      opened.handle = static_cast<int32_t>(u32_at(answer, 24));
      opened.flags = u32_at(answer, 28);
    } else {
      const auto text = [&](size_t at) {
        const auto* const first = reinterpret_cast<const char*>(answer.data()) + at + 4;
        return std::string(first, u32_at(answer, at));
      };
      opened.trace = text(24);
      opened.cause = text(28 + opened.trace.size() + 4 + u32_at(answer, 28 + opened.trace.size()));
    }
    return opened;
  }
  // The record of a mode, or its trace.
  Payload record(const char* kind, uint32_t mode, const Payload& params, uint32_t timeout_ms = 0) {
    const Opened opened = open(kind, mode, params, timeout_ms);
    if (!opened.trace.empty()) return {opened.trace.begin(), opened.trace.end()};
    EXPECT_EQ(opened.flags, 5u);
    Payload all = read_all(opened.handle);
    end(opened.handle);
    return all;
  }
  std::string trace(const char* kind, uint32_t mode, const Payload& params,
                    uint32_t timeout_ms = 0) {
    return open(kind, mode, params, timeout_ms).trace;
  }

  int32_t read(int32_t handle, int32_t ptr, int32_t cap) {
    return wcuda_zctl_handle_read(guest.session(), handle, guest.memory.data(), guest.memory.size(),
                                  ptr, cap);
  }
  int32_t write(int32_t handle, int32_t ptr, int32_t len) {
    return wcuda_zctl_handle_write(guest.session(), handle, guest.memory.data(),
                                   guest.memory.size(), ptr, len);
  }
  void end(int32_t handle) { wcuda_zctl_handle_end(guest.session(), handle); }
  Payload read_all(int32_t handle) {
    const int32_t bytes = read(handle, kGuestData + 20000, 4096);
    EXPECT_GE(bytes, 0);
    return guest.read<uint8_t>(kGuestData + 20000, static_cast<size_t>(std::max(bytes, 0)));
  }

  int32_t buffer(uint64_t bytes, uint32_t flags = 0) {
    const Opened opened = open("accel", 2, target().h8(bytes).h4(flags).all);
    EXPECT_EQ(opened.trace, "");
    EXPECT_EQ(opened.flags, flags & 2 ? 5u : 7u);
    return opened.handle;
  }
  int32_t buffer_of(const std::vector<float>& values, uint32_t flags = 0) {
    const auto bytes = static_cast<int32_t>(values.size() * sizeof(float));
    const int32_t handle = buffer(static_cast<uint64_t>(bytes), flags);
    guest.write(kGuestData, values);
    EXPECT_EQ(write(handle, kGuestData, bytes), bytes);
    return handle;
  }
  std::vector<float> floats(int32_t handle, size_t count) {
    const auto bytes = static_cast<int32_t>(count * sizeof(float));
    EXPECT_EQ(read(handle, kGuestData, bytes), bytes);
    return guest.read<float>(kGuestData, count);
  }

  Payload submit(const std::string& kernel, const std::vector<Argument>& arguments,
                 uint32_t budget_ms = 0, const std::string& module = "wcuda", uint32_t block = 0) {
    Words words = target().text(module).text(kernel);
    for (int i = 0; i < 3; ++i) words.h4(block != 0);
    words.h4(block).h4(block != 0).h4(block != 0).h4(0);
    words.h4(static_cast<uint32_t>(arguments.size()));
    for (const Argument& each : arguments) words.h1(each.kind).h1(0).number(0, 2).text(each.bytes);
    return words.h4(budget_ms).all;
  }
  static Argument value(uint64_t number, size_t bytes) {
    return {1, Words().number(number, bytes).all};
  }
  static Argument at(int32_t handle) { return {2, Words().h4(static_cast<uint32_t>(handle)).all}; }

 private:
  const std::string backend_;

 public:
  ZctlGuest guest;
};

// A registry with noop, vector_add and copy, and a kernel of the host that counts its runs.
class Kernels {
 public:
  explicit Kernels(wcuda_context context) {
    if (::testing::Test::IsSkipped()) return;
    EXPECT_EQ(wcuda_registry_create(context, &registry_, &error_), WCUDA_OK) << error_.message;
    for (const char* const name : {"noop", "vector_add", "copy"})
      EXPECT_EQ(wcuda_registry_add_builtin(registry_, {name, std::strlen(name)}, WCUDA_ARG_F32, 0,
                                           nullptr, &error_),
                WCUDA_OK)
          << error_.message;
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = {"count", 5};
    options.host = [](void* user, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
      auto* const self = static_cast<Kernels*>(user);
      std::this_thread::sleep_for(self->runs_for);
      return ++self->runs > self->runs_allowed ? 3 : 0;
    };
    options.host_user = this;
    wcuda_kernel kernel{0};
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    descriptor.name = options.name;
    if (wcuda_kernel_create(context, &options, &kernel, &error_) == WCUDA_OK)
      descriptor.kernel = kernel;
    EXPECT_EQ(wcuda_registry_add(registry_, &descriptor, nullptr, &error_), WCUDA_OK)
        << error_.message;
    wcuda_kernel_destroy(kernel);
  }
  ~Kernels() { wcuda_registry_destroy(registry_); }
  wcuda_registry handle() const { return registry_; }
  int runs = 0, runs_allowed = 1000000;
  std::chrono::milliseconds runs_for{0};

 private:
  wcuda_registry registry_{0};
  wcuda_error error_{};
};

struct Host {
  Host() : kernels(context.handle()) {}
  FaultContext context;
  Kernels kernels;
};

const char kGoldenList[] =
    "5a434c31 0100 0100 01000000 00000000 44000000 01000000 02000000"
    "05000000 'accel' 07000000 'default' 0d000000 00000000"
    "09000000 'accel.ext' 07000000 'default' 0d000000 00000000";

TEST(Zctl1, answers_golden_frames) {
  Host host;
  Accelerator accel(host.kernels.handle(), "host");
  const auto expect = [&](const Payload& request, const char* response) {
    EXPECT_EQ(accel.guest.answer(request), bytes_of(response)) << response;
  };
  expect(bytes_of("5a434c31 0100 ff00 01000000 00000000 00000000 00000000"),
         "5a434c31 0100 ff00 01000000 00000000 31000000"
         "00000000 10000000 't_ctl_unknown_op' 11000000 'unknown operation' 00000000");
  expect(bytes_of("5a434c31 0100 0100 03000000 00000000 01000000 00000000"),
         "5a434c31 0100 0100 03000000 00000000 2d000000"
         "00000000 0f000000 't_ctl_bad_frame' 0e000000 'bad frame form' 00000000");
  expect(zcl1(2, Words().text("accel").text("other").all, 4),
         "5a434c31 0100 0200 04000000 00000000 35000000"
         "00000000 0d000000 't_cap_missing' 18000000 'capability not available' 00000000");
  expect(bytes_of("5a434c31 0100 0100 01000000 00000000 00000000 00000000"), kGoldenList);
  // A submission is at work: a call that may not wait answers a timeout.
  const Opened queued = accel.open("accel", 3, accel.submit("noop", {}));
  EXPECT_EQ(queued.handle, 4);
  expect(open_frame("accel", 4, accel.target().text("default").all, 2),
         "5a434c31 0100 0300 02000000 00000000 30000000"
         "00000000 0d000000 't_ctl_timeout' 13000000 'operation timed out' 00000000");
  expect(open_frame("accel", 4, accel.target().text("default").all, 2, 1000),
         "5a434c31 0100 0300 02000000 00000000 10000000 01000000 05000000 05000000 00000000");
}

TEST(Zctl1, describes_both_capabilities) {
  Host host;
  const auto described = [&](const char* kind, uint32_t flags) {
    Accelerator accel(host.kernels.handle(), "host", flags);
    const Payload answer = accel.guest.answer(zcl1(2, Words().text(kind).text("default").all));
    EXPECT_EQ(u32_at(answer, 24), 13u);
    EXPECT_EQ(u32_at(answer, 28), answer.size() - 32);
    return std::string(answer.begin() + 32, answer.end());
  };
  const std::string limits =
      "{\"backends\":[\"host\"],\"id\":\"cap.accel.v1\",\"max_arg_count\":64,"
      "\"max_buffer_bytes\":1073741824,\"max_inline_arg_bytes\":256,"
      "\"max_module_bytes\":10485760,\"module_registry\":[";
  EXPECT_EQ(described("accel", 0), limits + "\"preload\"]}");
  EXPECT_EQ(described("accel", WCUDA_ZCTL_FOREIGN_MODULES), limits + "\"extension\",\"preload\"]}");
  EXPECT_EQ(described("accel.ext", 0),
            "{\"id\":\"cap.accel.ext.v1\",\"max_events\":256,\"max_streams\":64,\"modes\":["
            "\"stream.create\",\"stream.destroy\",\"event.create\",\"event.record\",\"event.wait\","
            "\"buffer.copy\",\"module.load\",\"module.unload\"]}");
}

// Prefixes and changed bytes in exactly sized memory, responses of every capacity.
TEST(Zctl1, every_prefix_and_every_changed_byte_is_answered_or_refused) {
  Host host;
  Accelerator accel(host.kernels.handle(), "host");
  std::vector<Payload> goldens = {zcl1(1, {}),
                                  zcl1(2, Words().text("accel").text("default").all),
                                  open_frame("accel", 1, Words().text("host").all),
                                  open_frame("accel", 2, accel.target().h8(16).h4(0).all),
                                  open_frame("accel", 3, accel.submit("noop", {})),
                                  open_frame("accel.ext", 1, accel.target().h4(1).all)};
  for (const Payload& golden : goldens) {
    ZctlGuest guest(host.kernels.handle());
    const auto answer = [&](const Payload& request) {
      Payload memory = request;
      Payload response(4096);
      memory.insert(memory.end(), response.begin(), response.end());
      const int32_t ret = wcuda_zctl_call(guest.session(), memory.data(), memory.size(), 0,
                                          static_cast<int32_t>(request.size()),
                                          static_cast<int32_t>(request.size()), 4096, 0);
      EXPECT_TRUE(std::equal(request.begin(), request.end(), memory.begin()));
      return ret < 0 ? Payload{}
                     : Payload(memory.begin() + static_cast<ptrdiff_t>(request.size()),
                               memory.begin() + static_cast<ptrdiff_t>(request.size()) + ret);
    };
    for (size_t bytes = 0; bytes < golden.size(); ++bytes) {
      const Payload prefix(golden.begin(), golden.begin() + static_cast<ptrdiff_t>(bytes));
      const Payload got = answer(prefix);
      if (bytes < 12) {
        EXPECT_TRUE(got.empty());
      } else {
        ASSERT_GE(got.size(), 43u);
        EXPECT_EQ(std::string(got.begin() + 28, got.begin() + 43), "t_ctl_bad_frame") << bytes;
      }
    }
    for (size_t i = 0; i < golden.size(); ++i) {
      Payload changed = golden;
      for (const uint8_t bits : {0x01, 0x80, 0xff}) {
        changed[i] = static_cast<uint8_t>(golden[i] ^ bits);
        const Payload got = answer(changed);
        EXPECT_EQ(got.empty(), i < 4) << i;
        if (i >= 12 || got.empty()) continue;
        EXPECT_EQ(std::vector<uint8_t>(got.begin() + 6, got.begin() + 12),
                  std::vector<uint8_t>(changed.begin() + 6, changed.begin() + 12));
      }
    }
  }
}

TEST(Zctl1, a_response_that_does_not_fit_is_not_written_and_opens_nothing) {
  Host host;
  for (const Payload& golden :
       {zcl1(1, {}), zcl1(9, {}), open_frame("accel", 1, Words().text("host").all)}) {
    Accelerator accel(host.kernels.handle(), "host");
    const auto full = static_cast<int32_t>(accel.guest.answer(golden).size());
    Accelerator other(host.kernels.handle(), "host");
    for (int32_t capacity = 0; capacity <= full; ++capacity) {
      const auto before = other.guest.read<uint8_t>(ZctlGuest::kResponse, 200);
      EXPECT_EQ(other.guest.call(golden, capacity), capacity < full ? -1 : full);
      if (capacity == full) continue;
      EXPECT_EQ(other.guest.read<uint8_t>(ZctlGuest::kResponse, 200), before);
    }
    // The handle is the first: what did not fit took none.
    if (golden[6] != 3) continue;
    EXPECT_EQ(u32_at(other.guest.read<uint8_t>(4096, 36), 24), 4u);
  }
}

TEST(Zctl1, rows_of_a_frame_answer_in_order) {
  Host host;
  Accelerator accel(host.kernels.handle(), "host");
  const auto trace = [&](const std::string& request) {
    const Payload answer = accel.guest.answer(bytes_of(request));
    if (answer.size() < 28) return std::string();
    return std::string(answer.begin() + 28,
                       answer.begin() + 28 + static_cast<ptrdiff_t>(u32_at(answer, 24)));
  };
  EXPECT_EQ(trace("'ZCL1' 0100 0100 010000"), "");
  EXPECT_EQ(trace("'ZCL2' 0100 0100 01000000"), "");
  EXPECT_EQ(trace("'ZCL1' 0200 0100 01000000"), "t_ctl_bad_version");
  EXPECT_EQ(trace("'ZCL1' 0100 0100 01000000"), "t_ctl_bad_frame");
  EXPECT_EQ(trace("'ZCL1' 0100 0100 01000000 00000000 01000000 01001000"), "t_ctl_overflow");
  EXPECT_EQ(trace("'ZCL1' 0100 ff00 01000000 00000000 00000000 01000000"), "t_ctl_bad_frame");
  EXPECT_EQ(trace("'ZCL1' 0100 ff00 01000000 00000000 01000000 00000000"), "t_ctl_bad_frame");
  EXPECT_EQ(trace("'ZCL1' 0100 0100 01000000 00000000 00000000 01000000 00"), "t_ctl_bad_params");
  EXPECT_EQ(trace("'ZCL1' 0100 0000 01000000 00000000 00000000 00000000"), "t_ctl_unknown_op");
  const auto params = accel.target().text("default").all;
  EXPECT_EQ(accel.trace("accel", 0, params), "t_ctl_bad_params");
  EXPECT_EQ(accel.trace("accel", 5, params), "t_ctl_bad_params");
  EXPECT_EQ(accel.trace("accel.ext", 9, params), "t_ctl_bad_params");
  EXPECT_EQ(accel.trace("accelerator", 1, params), "t_cap_missing");
  EXPECT_EQ(accel.trace("accel", 4, Words().text("metal").text("0").text("default").all),
            "t_ctl_bad_params");
  EXPECT_EQ(accel.trace("accel", 4, Words().text("cuda").text("0").text("default").all),
            "t_accel_no_device");
  EXPECT_EQ(accel.trace("accel", 4, Words().text("host").text("1").text("default").all),
            "t_accel_no_device");
  EXPECT_EQ(accel.trace("accel", 4, Words().text("host").text("00").text("default").all),
            "t_accel_no_device");
  EXPECT_EQ(accel.trace("accel", 4, accel.target().text("other").all), "t_ctl_bad_params");
}

// Modes of both capabilities: one byte less and one byte more is wrong.
TEST(Zctl1, missing_and_left_over_parameters_are_bad_params) {
  Host host;
  Accelerator accel(host.kernels.handle(), "host", WCUDA_ZCTL_FOREIGN_MODULES);
  const struct {
    const char* kind;
    uint32_t mode;
    Payload params;
  } kCases[] = {
      {"accel", 1, Words().text("host").all},
      {"accel", 2, accel.target().h8(16).h4(0).all},
      {"accel", 3, accel.submit("noop", {})},
      {"accel", 4, accel.target().text("default").all},
      {"accel.ext", 1, accel.target().h4(0).all},
      {"accel.ext", 2, accel.target().h4(1).all},
      {"accel.ext", 3, accel.target().h4(0).all},
      {"accel.ext", 4, accel.target().h4(0).h4(1).all},
      {"accel.ext", 5, accel.target().h4(0).h4(1).h4(0).all},
      {"accel.ext", 6, accel.target().h4(4).h4(5).h8(1).h4(0).all},
      {"accel.ext", 7, accel.target().text("code").text("").all},
      {"accel.ext", 8, accel.target().text("id").all},
  };
  for (const auto& each : kCases) {
    EXPECT_NE(accel.trace(each.kind, each.mode, each.params, 1000), "t_ctl_bad_params")
        << each.kind << each.mode;
    for (size_t bytes = 0; bytes < each.params.size(); ++bytes) {
      const Payload prefix(each.params.begin(),
                           each.params.begin() + static_cast<ptrdiff_t>(bytes));
      EXPECT_EQ(accel.trace(each.kind, each.mode, prefix), "t_ctl_bad_params")
          << each.kind << each.mode << " " << bytes;
    }
    Payload more = each.params;
    more.push_back(0);
    EXPECT_EQ(accel.trace(each.kind, each.mode, more), "t_ctl_bad_params");
  }
}

void answers_queries(wcuda_registry registry, const char* backend, const char* other) {
  Accelerator accel(registry, backend);
  EXPECT_EQ(accel.record("accel", 1, Words().text(other).all), bytes_of("00000000"));
  const Payload record = accel.record("accel", 1, Words().text(backend).all);
  ASSERT_GT(record.size(), 29u);
  EXPECT_EQ(u32_at(record, 0), 1u);
  EXPECT_EQ(std::string(record.begin() + 8, record.begin() + 9), "0");
  const uint32_t name_bytes = u32_at(record, 9);
  EXPECT_EQ(record.size(), 13 + name_bytes + 16);
  EXPECT_LT(u32_at(record, record.size() - 4), 8u);
}

void moves_bytes_through_buffers(wcuda_registry registry, const char* backend) {
  Accelerator accel(registry, backend);
  ZctlGuest& guest = accel.guest;
  const int32_t buffer = accel.buffer(10);
  guest.write<uint8_t>(kGuestData, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  EXPECT_EQ(accel.write(buffer, kGuestData, 11), -1);
  EXPECT_EQ(accel.write(buffer, kGuestData, 4), 4);
  EXPECT_EQ(accel.write(buffer, kGuestData + 4, 7), -1);
  EXPECT_EQ(accel.write(buffer, kGuestData + 4, 3), 3);
  EXPECT_EQ(accel.write(buffer, kGuestData, 0), 0);
  // Reads have a position of their own.
  EXPECT_EQ(accel.read(buffer, kGuestData + 100, 6), 6);
  EXPECT_EQ(accel.read(buffer, kGuestData + 106, 100), 4);
  EXPECT_EQ(accel.read(buffer, kGuestData + 110, 100), 0);
  EXPECT_EQ(guest.read<uint8_t>(kGuestData + 100, 10), bytes_of("01020304050607 000000"));
  accel.end(buffer);
  accel.end(buffer);
  EXPECT_EQ(accel.read(buffer, kGuestData, 1), -1);
  EXPECT_EQ(accel.write(buffer, kGuestData, 1), -1);
  const int32_t next = accel.buffer(1, 2);
  EXPECT_EQ(next, buffer + 1);
  EXPECT_EQ(accel.write(next, kGuestData, 1), -1);
  EXPECT_EQ(accel.read(next, kGuestData, 0), 0);
  for (const int32_t handle : {-1, 0, 1, 2, 3, 1000})
    EXPECT_EQ(accel.read(handle, kGuestData, 1), -1);
  // Windows at both ends of the memory and outside it.
  const auto end = static_cast<int32_t>(guest.memory.size());
  EXPECT_EQ(accel.read(next, end - 1, 1), 1);
  for (const auto& [ptr, cap] : {std::pair<int32_t, int32_t>{-1, 1},
                                 {0, -1},
                                 {end, 1},
                                 {end - 1, 2},
                                 {1, INT32_MAX},
                                 {INT32_MIN, INT32_MIN}}) {
    EXPECT_EQ(accel.read(next, ptr, cap), -1);
    EXPECT_EQ(accel.write(next, ptr, cap), -1);
  }
  const auto refused = [&](uint64_t bytes, uint32_t flags) {
    return accel.trace("accel", 2, accel.target().h8(bytes).h4(flags).all);
  };
  EXPECT_EQ(refused(1, 3), "t_ctl_bad_params");
  EXPECT_EQ(refused(1, 8), "t_ctl_bad_params");
  EXPECT_EQ(refused(0, 0), "t_ctl_bad_params");
  EXPECT_EQ(refused((1ull << 30) + 1, 0), "t_ctl_overflow");
  EXPECT_EQ(refused(UINT64_MAX, 0), "t_ctl_overflow");
  EXPECT_EQ(refused(1, 4), "");
}

void runs_submissions(wcuda_registry registry, const char* backend) {
  Accelerator accel(registry, backend);
  const int32_t a = accel.buffer_of({1, 2, 3}), b = accel.buffer_of({10, 20, 30}, 1);
  const int32_t c = accel.buffer(12, 2);
  using A = Accelerator;
  const auto add = accel.submit("vector_add", {A::at(a), A::at(b), A::at(c), A::value(3, 8)});
  const Opened queued = accel.open("accel", 3, add);
  EXPECT_EQ(queued.flags, 5u);
  EXPECT_EQ(accel.read(queued.handle, kGuestData, 10), 1);
  EXPECT_EQ(accel.guest.memory[kGuestData], 0);
  EXPECT_EQ(accel.read(queued.handle, kGuestData, 10), 0);
  EXPECT_EQ(accel.write(queued.handle, kGuestData, 1), -1);
  accel.end(queued.handle);
  EXPECT_EQ(accel.read(queued.handle, kGuestData, 10), -1);
  EXPECT_EQ(accel.floats(c, 3), (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(accel.record("accel", 3, add, 60000), bytes_of("00"));
  EXPECT_EQ(accel.record("accel", 4, accel.target().text("default").all, 60000), bytes_of("01"));

  const auto trace = [&](const Payload& params) { return accel.trace("accel", 3, params); };
  EXPECT_EQ(trace(accel.submit("vector_add", {})), "t_ctl_bad_params");
  EXPECT_EQ(trace(accel.submit("nothing", {})), "t_accel_kernel_not_found");
  EXPECT_EQ(trace(accel.submit("noop", {}, 0, "other")), "t_accel_kernel_not_found");
  EXPECT_EQ(trace(accel.submit("noop", {}, 0, "wcuda", 1)), "t_ctl_bad_params");
  const auto with = [&](const Argument& x, const Argument& y, const Argument& z,
                        const Argument& n) {
    return trace(accel.submit("vector_add", {x, y, z, n}));
  };
  const auto n = A::value(3, 8);
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(c), n), "");
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(c), A::value(4, 8)), "t_ctl_bad_params");  // too long
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(c), A::value(3, 4)), "t_ctl_bad_params");
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(b), n), "t_ctl_bad_params");  // only read
  EXPECT_EQ(with(A::at(c), A::at(b), A::at(a), n), "t_ctl_bad_params");  // only written
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(99), n), "t_ctl_bad_params");
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(queued.handle), n), "t_ctl_bad_params");
  EXPECT_EQ(with(A::at(a), A::at(b), A::value(0, 8), n), "t_ctl_bad_params");
  EXPECT_EQ(with(A::at(a), A::at(b), {2, Payload(8)}, n), "t_ctl_bad_params");
  EXPECT_EQ(with(A::at(a), A::at(b), {3, Payload(4)}, n), "t_ctl_bad_params");
  EXPECT_EQ(with(A::at(a), A::at(b), A::at(c), {1, Payload(257)}), "t_ctl_overflow");
  EXPECT_EQ(trace(accel.submit("noop", std::vector<Argument>(65, n))), "t_ctl_overflow");
  EXPECT_EQ(trace(accel.submit("noop", std::vector<Argument>(64, n))), "t_ctl_bad_params");
}

void runs_extensions(wcuda_registry registry, const char* backend) {
  Accelerator accel(registry, backend);
  const auto record = [&](uint32_t mode, const Words& params, uint32_t timeout_ms = 0) {
    return accel.record("accel.ext", mode, params.all, timeout_ms);
  };
  const auto text = [](const char* value) { return bytes_of('\'' + std::string(value) + '\''); };
  const Payload ok = bytes_of("01"), invalid = text("t_accel_invalid_handle");
  const Payload bad = text("t_ctl_bad_params");
  EXPECT_EQ(record(1, accel.target().h4(0)), bytes_of("01000000"));
  EXPECT_EQ(record(1, accel.target().h4(2)), bytes_of("02000000"));
  EXPECT_EQ(record(1, accel.target().h4(3)), bad);
  EXPECT_EQ(record(2, accel.target().h4(1)), ok);
  EXPECT_EQ(record(2, accel.target().h4(1)), invalid);
  EXPECT_EQ(record(2, accel.target().h4(0)), invalid);
  EXPECT_EQ(record(3, accel.target().h4(1)), bytes_of("01000000"));
  EXPECT_EQ(record(3, accel.target().h4(2)), bad);
  EXPECT_EQ(record(5, accel.target().h4(0).h4(1).h4(0)), ok);  // not recorded: nothing to wait for
  EXPECT_EQ(record(4, accel.target().h4(2).h4(1)), ok);
  EXPECT_EQ(record(4, accel.target().h4(1).h4(1)), invalid);
  EXPECT_EQ(record(4, accel.target().h4(0).h4(2)), invalid);
  EXPECT_EQ(record(5, accel.target().h4(2).h4(1).h4(0)), ok);
  EXPECT_EQ(record(5, accel.target().h4(3).h4(1).h4(0)), invalid);
  EXPECT_EQ(record(4, accel.target().h4(0).h4(1)), ok);
  EXPECT_EQ(record(5, accel.target().h4(0).h4(1).h4(60000), 60000), ok);

  const auto a = static_cast<uint32_t>(accel.buffer_of({1, 2, 3}));
  const auto b = static_cast<uint32_t>(accel.buffer_of({4, 5}, 1));
  const auto only_written = static_cast<uint32_t>(accel.buffer(12, 2));
  EXPECT_EQ(record(6, accel.target().h4(a).h4(b).h8(4).h4(1)), ok);
  EXPECT_EQ(accel.floats(static_cast<int32_t>(b), 2), (std::vector<float>{1, 5}));
  EXPECT_EQ(record(6, accel.target().h4(a).h4(b).h8(0).h4(0)), ok);
  EXPECT_EQ(record(6, accel.target().h4(a).h4(b).h8(9).h4(0)), bad);
  EXPECT_EQ(record(6, accel.target().h4(a).h4(b).h8(4).h4(2)), bad);
  EXPECT_EQ(record(6, accel.target().h4(a).h4(a).h8(4).h4(0)), bad);
  EXPECT_EQ(record(6, accel.target().h4(a).h4(only_written).h8(4).h4(0)), bad);
  EXPECT_EQ(record(6, accel.target().h4(a).h4(77).h8(4).h4(0)), invalid);
  EXPECT_EQ(record(7, accel.target().text("code").text("")), text("t_cap_denied"));
  EXPECT_EQ(record(8, accel.target().text("code")), invalid);
}

void runs_foreign_modules(wcuda_registry registry) {
  using A = Accelerator;
  Accelerator accel(registry, "cuda", WCUDA_ZCTL_FOREIGN_MODULES);
  const auto load = [&](const std::string& code, const std::string& hint) {
    return accel.record("accel.ext", 7, accel.target().text(code).text(hint).all);
  };
  const Payload id = load(kAddOneCode, "mine");
  EXPECT_EQ(id, Words().text("mine").all);
  EXPECT_EQ(load(kAddOneCode, "other"), id);  // equal bytes are loaded once
  EXPECT_EQ(load(std::string(kAddOneCode) + "\n", "mine"), bytes_of("'t_ctl_bad_params'"));
  EXPECT_EQ(load(std::string(kAddOneCode) + "\n", "wcuda"), bytes_of("'t_ctl_bad_params'"));
  EXPECT_EQ(load("no code", ""), bytes_of("'t_accel_module_invalid'"));
  EXPECT_EQ(load(std::string(kAddOneCode) + "\n", "").size(), 68u);  // 64 digits
  const int32_t x = accel.buffer_of({1, 2, 3});
  const auto submit = [&](const char* entry, const Argument& n, uint32_t block) {
    return accel.submit(entry, {A::at(x), n}, 0, "mine", block);
  };
  EXPECT_EQ(accel.record("accel", 3, submit("add_one", A::value(3, 4), 32), 60000), bytes_of("00"));
  EXPECT_EQ(accel.floats(x, 3), (std::vector<float>{2, 3, 4}));
  EXPECT_EQ(accel.trace("accel", 3, submit("add_one", A::value(3, 8), 32)), "t_ctl_bad_params");
  EXPECT_EQ(accel.trace("accel", 3, submit("add_one", A::value(3, 4), 0)), "t_ctl_bad_params");
  EXPECT_EQ(accel.trace("accel", 3, submit("add_two", A::value(3, 4), 1)),
            "t_accel_kernel_not_found");
  const auto unload = accel.target().text("mine").all;
  EXPECT_EQ(accel.record("accel.ext", 8, unload), bytes_of("01"));
  EXPECT_EQ(accel.trace("accel.ext", 8, unload), "t_accel_invalid_handle");
  EXPECT_EQ(accel.trace("accel", 3, submit("add_one", A::value(3, 4), 32)),
            "t_accel_kernel_not_found");
}

// A registry with "add" alone, whose code is add_one of the module "adders".
class NamedModule {
 public:
  explicit NamedModule(wcuda_context context) {
    if (::testing::Test::IsSkipped()) return;
    wcuda_module module{0};
    wcuda_kernel kernel{0};
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    EXPECT_EQ(wcuda_registry_create(context, &registry_, &error_), WCUDA_OK) << error_.message;
    EXPECT_EQ(wcuda_module_load(context, kAddOneCode, sizeof(kAddOneCode) - 1, &module, &error_),
              WCUDA_OK)
        << error_.message;
    options.name = {"add_one", 7};
    options.module = module;
    EXPECT_EQ(wcuda_kernel_create(context, &options, &kernel, &error_), WCUDA_OK) << error_.message;
    wcuda_parameter parameters[2] = {WCUDA_PARAMETER_INIT, WCUDA_PARAMETER_INIT};
    parameters[0].name = {"x", 1};
    parameters[0].kind = WCUDA_ARG_BUFFER;
    parameters[0].dtype = WCUDA_ARG_F32;
    parameters[0].shape = {"n", 1};
    parameters[1].name = {"n", 1};
    parameters[1].kind = WCUDA_ARG_U32;
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    descriptor.kernel_id = 7;
    descriptor.name = {"add", 3};
    descriptor.module = {"adders", 6};
    descriptor.kernel = kernel;
    descriptor.parameters = parameters;
    descriptor.parameter_count = 2;
    EXPECT_EQ(wcuda_registry_add(registry_, &descriptor, nullptr, &error_), WCUDA_OK)
        << error_.message;
    wcuda_kernel_destroy(kernel);
    wcuda_module_unload(module);
  }
  ~NamedModule() { wcuda_registry_destroy(registry_); }
  wcuda_registry handle() const { return registry_; }

 private:
  wcuda_registry registry_{0};
  wcuda_error error_{};
};

void runs_named_modules(wcuda_registry registry) {
  using A = Accelerator;
  Accelerator accel(registry, "cuda");
  const int32_t x = accel.buffer_of({1, 2, 3});
  const auto submit = [&](const char* module, const char* entry, uint32_t n, uint32_t block = 0) {
    return accel.submit(entry, {A::at(x), A::value(n, 4)}, 0, module, block);
  };
  EXPECT_EQ(accel.record("accel", 3, submit("adders", "add_one", 3), 60000), bytes_of("00"));
  EXPECT_EQ(accel.record("accel", 3, submit("wcuda", "add", 3), 60000), bytes_of("00"));
  EXPECT_EQ(accel.floats(x, 3), (std::vector<float>{3, 4, 5}));
  const auto trace = [&](const Payload& params) { return accel.trace("accel", 3, params); };
  EXPECT_EQ(trace(submit("adders", "add_one", 4)), "t_ctl_bad_params");  // more than x has
  EXPECT_EQ(trace(submit("adders", "add_one", 3, 32)), "t_ctl_bad_params");
  EXPECT_EQ(trace(submit("adders", "add", 3)), "t_accel_kernel_not_found");
  EXPECT_EQ(trace(submit("wcuda", "add_one", 3)), "t_accel_kernel_not_found");
  EXPECT_EQ(trace(submit("", "add_one", 3)), "t_accel_kernel_not_found");
}

class PosingDevice {
 public:
  std::shared_ptr<ModuleDevice> device = std::make_shared<ModuleDevice>();
  FaultContext context{device};
};

TEST(Zctl1, query_names_the_device_of_the_session) {
  Host host;
  answers_queries(host.kernels.handle(), "host", "cuda");
}
TEST(Zctl1, buffers_have_two_positions_and_end_once) {
  Host host;
  moves_bytes_through_buffers(host.kernels.handle(), "host");
  EXPECT_EQ(host.context.device_bytes(), 0u);
}
TEST(Zctl1, submissions_run_kernels_of_the_registry) {
  Host host;
  runs_submissions(host.kernels.handle(), "host");
  EXPECT_EQ(host.context.device_bytes(), 0u);
}
TEST(Zctl1, extensions_have_streams_events_and_copies) {
  Host host;
  runs_extensions(host.kernels.handle(), "host");
  EXPECT_EQ(host.context.device_bytes(), 0u);
}
TEST(Zctl1, foreign_modules_run_where_they_are_permitted) {
  PosingDevice posing;
  {
    Kernels kernels(posing.context.handle());
    runs_foreign_modules(kernels.handle());
    runs_extensions(kernels.handle(), "cuda");
    moves_bytes_through_buffers(kernels.handle(), "cuda");
  }
  EXPECT_EQ(posing.device->live_modules(), 0);
  EXPECT_EQ(posing.context.device_bytes(), 0u);
}
TEST(Zctl1, modules_of_descriptors_run_by_their_names) {
  PosingDevice posing;
  const NamedModule kernels(posing.context.handle());
  runs_named_modules(kernels.handle());
  Accelerator accel(kernels.handle(), "cuda", WCUDA_ZCTL_ALLOW_LIST);
  EXPECT_EQ(accel.trace("accel", 3, accel.submit("add_one", {}, 0, "adders")), "t_cap_denied");
}
TEST(Zctl1, the_host_loads_no_module) {
  Host host;
  Accelerator accel(host.kernels.handle(), "host", WCUDA_ZCTL_FOREIGN_MODULES);
  EXPECT_EQ(accel.trace("accel.ext", 7, accel.target().text(kAddOneCode).text("").all),
            "t_accel_module_invalid");
}

class GpuZctl1 : public ::testing::Test {
 protected:
  GpuZctl1() : context_(0, WCUDA_BACKEND_CUDA), kernels_(context_.handle()) {}
  TestContext context_;
  Kernels kernels_;
};
TEST_F(GpuZctl1, query_names_the_device_of_the_session) {
  answers_queries(kernels_.handle(), "cuda", "host");
}
TEST_F(GpuZctl1, buffers_have_two_positions_and_end_once) {
  moves_bytes_through_buffers(kernels_.handle(), "cuda");
}
TEST_F(GpuZctl1, submissions_run_kernels_of_the_registry) {
  runs_submissions(kernels_.handle(), "cuda");
}
TEST_F(GpuZctl1, extensions_have_streams_events_and_copies) {
  runs_extensions(kernels_.handle(), "cuda");
}
TEST_F(GpuZctl1, foreign_modules_run_where_they_are_permitted) {
  runs_foreign_modules(kernels_.handle());
}
TEST_F(GpuZctl1, modules_of_descriptors_run_by_their_names) {
  const NamedModule kernels(context_.handle());
  runs_named_modules(kernels.handle());
}

// add_one, after two seconds.
std::string slow_code() {
  std::string slow = kAddOneCode;
  slow.replace(slow.find("  ld.param.u64"), 0,
               "  .reg .b64 %t<3>; .reg .pred %q;\n  mov.u64 %t0, %globaltimer;\n"
               "wait:\n  mov.u64 %t1, %globaltimer;\n  sub.u64 %t2, %t1, %t0;\n"
               "  setp.lt.u64 %q, %t2, 2000000000;\n  @%q bra wait;\n");
  return slow;
}

// What a kernel that is at work uses is freed when it has ended: nobody waits for it meanwhile.
TEST_F(GpuZctl1, an_ended_buffer_of_a_late_submission_delays_nobody) {
  using A = Accelerator;
  if (IsSkipped()) return;
  const std::string slow = slow_code();
  Accelerator accel(kernels_.handle(), "cuda", WCUDA_ZCTL_FOREIGN_MODULES);
  Accelerator other(kernels_.handle(), "cuda");
  const auto add = [&](const char* entry, int32_t x, uint32_t budget_ms) {
    return accel.submit(entry, {A::at(x), A::value(3, 4)}, budget_ms, "slow", 32);
  };
  EXPECT_EQ(accel.record("accel.ext", 7, accel.target().text(slow).text("slow").all),
            Words().text("slow").all);
  const int32_t x = accel.buffer_of({1, 2, 3});
  EXPECT_EQ(accel.record("accel", 3, add("add_one", x, 0), 60000), bytes_of("00"));  // loads it
  const Opened late = accel.open("accel", 3, add("add_one", x, 1));
  EXPECT_EQ(late.trace, "");
  accel.end(x);
  EXPECT_EQ(accel.record("accel.ext", 8, accel.target().text("slow").all), bytes_of("01"));
  const int32_t again = other.buffer_of({5, 6});
  EXPECT_EQ(other.floats(again, 2), (std::vector<float>{5, 6}));
  // Still at work, so none of these has waited for it.
  EXPECT_EQ(accel.trace("accel", 4, accel.target().text("default").all), "t_ctl_timeout");
  EXPECT_EQ(accel.record("accel", 4, accel.target().text("default").all, 60000), bytes_of("01"));
}

// A module's end waits for the work of its own session alone.
TEST_F(GpuZctl1, modules_end_while_another_session_s_kernel_is_at_work) {
  using A = Accelerator;
  if (IsSkipped()) return;
  Accelerator accel(kernels_.handle(), "cuda", WCUDA_ZCTL_FOREIGN_MODULES);
  const auto load = [](Accelerator* each, const std::string& code, const char* id) {
    EXPECT_EQ(each->record("accel.ext", 7, each->target().text(code).text(id).all),
              Words().text(id).all);
  };
  const auto add = [](Accelerator* each, int32_t x, const char* id, uint32_t budget_ms) {
    return each->submit("add_one", {A::at(x), A::value(3, 4)}, budget_ms, id, 32);
  };
  load(&accel, slow_code(), "slow");
  const int32_t x = accel.buffer_of({1, 2, 3});
  EXPECT_EQ(accel.record("accel", 3, add(&accel, x, "slow", 0), 60000), bytes_of("00"));
  {
    Accelerator other(kernels_.handle(), "cuda", WCUDA_ZCTL_FOREIGN_MODULES);
    const int32_t y = other.buffer_of({1, 2, 3});
    load(&other, kAddOneCode, "m");
    load(&other, std::string(kAddOneCode) + "// another\n", "n");
    for (const char* const id : {"m", "n"})
      EXPECT_EQ(other.record("accel", 3, add(&other, y, id, 0), 60000), bytes_of("00"));
    EXPECT_EQ(accel.open("accel", 3, add(&accel, x, "slow", 1)).trace, "");
    EXPECT_EQ(other.record("accel.ext", 8, other.target().text("m").all), bytes_of("01"));
  }
  // Still at work, so none of these has waited for it.
  EXPECT_EQ(accel.trace("accel", 4, accel.target().text("default").all), "t_ctl_timeout");
  EXPECT_EQ(accel.record("accel", 4, accel.target().text("default").all, 60000), bytes_of("01"));
}

TEST(Zctl1, a_queued_run_that_finds_no_memory_has_ended) {
  using A = Accelerator;
  Host host;
  bool has_failed = true;
  for (int64_t k = 1; has_failed; ++k) {
    ASSERT_LT(k, 200);
    Accelerator accel(host.kernels.handle(), "host");
    const int32_t x = accel.buffer_of({1, 2, 3}), y = accel.buffer(12);
    const Opened queued =
        accel.open("accel", 3, accel.submit("copy", {A::at(x), A::at(y), A::value(3, 8)}));
    {
      const FailAllocation fail(k);
      (void)accel.read(queued.handle, kGuestData, 1);
      has_failed = fail.happened();
    }
    // The next call finds a queue without it.
    EXPECT_GE(accel.read(queued.handle, kGuestData, 4096), 0);
    if (has_failed) continue;
    EXPECT_EQ(accel.floats(y, 3), (std::vector<float>{1, 2, 3}));
  }
}

// On HOST a submission does not run before a call that may wait for it: one that never ends holds
// nobody up.
TEST(Zctl1, timeout_0_never_blocks) {
  Host host;
  {
    Accelerator accel(host.kernels.handle(), "host");
    EXPECT_EQ(accel.record("accel.ext", 3, accel.target().h4(0).all), bytes_of("01000000"));
    const Opened one = accel.open("accel", 3, accel.submit("count", {}));
    EXPECT_EQ(accel.record("accel.ext", 4, accel.target().h4(0).h4(1).all), bytes_of("01"));
    const auto wait = accel.target().h4(0).h4(1).h4(60000).all;
    EXPECT_EQ(accel.record("accel.ext", 5, wait), bytes_of("00"));  // pending
    EXPECT_EQ(accel.trace("accel", 4, accel.target().text("default").all), "t_ctl_timeout");
    EXPECT_EQ(host.kernels.runs, 0);
    EXPECT_EQ(accel.read_all(one.handle), bytes_of("00"));
    EXPECT_EQ(host.kernels.runs, 1);
    EXPECT_EQ(accel.record("accel.ext", 5, wait, 60000), bytes_of("01"));
    EXPECT_EQ(accel.open("accel", 3, accel.submit("count", {})).trace, "");
  }
  EXPECT_EQ(host.kernels.runs, 1);  // the last was dropped with its session
}

TEST(Zctl1, a_device_at_work_answers_timeouts) {
  PosingDevice posing;
  Kernels kernels(posing.context.handle());
  posing.device->hold_events(true);
  Accelerator foreign(kernels.handle(), "cuda", WCUDA_ZCTL_FOREIGN_MODULES);
  const int32_t x = foreign.buffer_of({1, 2});
  EXPECT_EQ(foreign.record("accel.ext", 7, foreign.target().text(kAddOneCode).text("m").all),
            Words().text("m").all);
  const auto submit = [&](uint32_t budget_ms) {
    return foreign.submit("add_one", {Accelerator::at(x), Accelerator::value(2, 4)}, budget_ms, "m",
                          32);
  };
  const Payload late = Words().h1(1).text("t_ctl_timeout").text("operation timed out").text("").all;
  EXPECT_EQ(foreign.trace("accel", 3, submit(0), 2), "t_ctl_timeout");
  EXPECT_EQ(foreign.record("accel", 3, submit(2), 60000), late);
  EXPECT_EQ(foreign.record("accel", 3, submit(2)), late);
  EXPECT_EQ(foreign.trace("accel", 4, foreign.target().text("default").all, 2), "t_ctl_timeout");
  EXPECT_EQ(foreign.record("accel.ext", 3, foreign.target().h4(0).all), bytes_of("01000000"));
  EXPECT_EQ(foreign.record("accel.ext", 4, foreign.target().h4(0).h4(1).all), bytes_of("01"));
  EXPECT_EQ(foreign.record("accel.ext", 5, foreign.target().h4(0).h4(1).h4(2).all, 60000),
            bytes_of("02"));
  posing.device->hold_events(false);
  EXPECT_EQ(foreign.floats(x, 2), (std::vector<float>{4, 5}));
}

// What a submission uses is kept until it has ended, also when the guest has ended it before.
TEST(Zctl1, a_submission_at_work_keeps_its_module_and_its_buffers) {
  using A = Accelerator;
  PosingDevice posing;
  Kernels kernels(posing.context.handle());
  Accelerator accel(kernels.handle(), "cuda", WCUDA_ZCTL_FOREIGN_MODULES);
  EXPECT_EQ(accel.record("accel.ext", 7, accel.target().text(kAddOneCode).text("m").all),
            Words().text("m").all);
  const int32_t x = accel.buffer_of({1, 2, 3});
  const uint64_t bytes = posing.context.device_bytes();
  const auto submit = [&] {
    return accel.submit("add_one", {A::at(x), A::value(3, 4)}, 0, "m", 32);
  };
  EXPECT_EQ(accel.record("accel", 3, submit(), 60000), bytes_of("00"));
  posing.device->hold_events(true);
  EXPECT_EQ(accel.open("accel", 3, submit()).trace, "");
  EXPECT_EQ(posing.device->found_kernels(), 1);  // once for all submissions
  accel.end(x);
  EXPECT_EQ(accel.record("accel.ext", 8, accel.target().text("m").all), bytes_of("01"));
  EXPECT_EQ(posing.device->live_modules(), 1);
  EXPECT_EQ(posing.context.device_bytes(), bytes);
  posing.device->hold_events(false);
  EXPECT_EQ(accel.record("accel", 4, accel.target().text("default").all, 60000), bytes_of("01"));
  EXPECT_EQ(posing.device->live_modules(), 0);
  EXPECT_LT(posing.context.device_bytes(), bytes);
}

TEST(Zctl1, a_kernel_that_fails_says_so_in_its_record) {
  Host host;
  host.kernels.runs_allowed = 0;
  Accelerator accel(host.kernels.handle(), "host");
  const Payload record = accel.record("accel", 3, accel.submit("count", {}));
  EXPECT_EQ(record, Words()
                        .h1(1)
                        .text("t_accel_launch_failed")
                        .text("launch failed")
                        .text("kernel 'count': its host function returned 3")
                        .all);
}

TEST(Zctl1, a_kernel_of_the_host_past_its_budget_is_late_when_it_returns) {
  Host host;
  host.kernels.runs_for = std::chrono::milliseconds(3);
  Accelerator accel(host.kernels.handle(), "host");
  EXPECT_EQ(accel.record("accel", 3, accel.submit("count", {}, 2)),
            Words().h1(1).text("t_ctl_timeout").text("operation timed out").text("").all);
  EXPECT_EQ(host.kernels.runs, 1);
}

TEST(Zctl1, kernels_that_the_session_does_not_permit_are_denied) {
  Host host;
  wcuda_zctl_options options =
      Accelerator::options_for(host.kernels.handle(), WCUDA_ZCTL_ALLOW_LIST);
  const uint32_t allowed = 1;
  options.allowed = &allowed;
  options.allowed_count = 1;
  ZctlGuest guest(options);
  Accelerator any(host.kernels.handle(), "host");
  const auto answer = [&](const char* kernel) {
    const Payload got = guest.answer(open_frame("accel", 3, any.submit(kernel, {})));
    return got[20] == 1 ? "" : std::string(got.begin() + 28, got.begin() + 40);
  };
  EXPECT_EQ(answer("noop"), "");
  EXPECT_EQ(answer("count"), "t_cap_denied");
}

TEST(Zctl1, without_a_device_lists_answer_and_the_rest_has_none) {
  Accelerator accel(wcuda_registry{0}, "host");
  EXPECT_EQ(accel.guest.answer(zcl1(1, {})), bytes_of(kGoldenList));
  EXPECT_EQ(accel.record("accel", 1, Words().text("host").all), bytes_of("00000000"));
  EXPECT_EQ(accel.record("accel", 1, Words().text("cuda").all), bytes_of("00000000"));
  EXPECT_EQ(accel.trace("accel", 2, accel.target().h8(1).h4(0).all), "t_accel_no_device");
  EXPECT_EQ(accel.trace("accel", 3, accel.submit("noop", {})), "t_accel_no_device");
  EXPECT_EQ(accel.trace("accel.ext", 1, accel.target().h4(0).all), "t_accel_no_device");
}

// Handles, buffers, streams, events and submissions of a session are bounded.
TEST(Zctl1, what_a_session_holds_is_bounded) {
  Host host;
  Accelerator accel(host.kernels.handle(), "host");
  int opened = 0;
  while (accel.trace("accel", 3, accel.submit("noop", {})).empty()) ++opened;
  EXPECT_EQ(opened, 256);
  EXPECT_EQ(accel.trace("accel", 3, accel.submit("noop", {})), "t_accel_launch_failed");
  Accelerator streams(host.kernels.handle(), "host");
  const auto count = [&](uint32_t mode) {
    int made = 0;
    while (streams.trace("accel.ext", mode, streams.target().h4(0).all).empty()) ++made;
    return made;
  };
  EXPECT_EQ(count(1), 64);
  EXPECT_EQ(count(3), 256);
  while (streams.trace("accel", 1, Words().text("cuda").all).empty()) ++opened;
  EXPECT_EQ(opened, 256 + 1024 - 64 - 256);
  EXPECT_EQ(streams.trace("accel", 1, Words().text("cuda").all), "t_ctl_overflow");
}

TEST(Zctl1, a_connection_reads_writes_and_ends_handles) {
  Host host;
  ZctlGuest guest(host.kernels.handle(), 64);
  Payload memory(64), response(32 + (1 << 20));
  const auto serve = [&](const Payload& frame) {
    const int32_t ret =
        wcuda_zctl_serve(guest.session(), memory.data(), memory.size(), frame.data(), frame.size(),
                         response.data(), response.size());
    return Payload(response.begin(), response.begin() + std::max(ret, 0));
  };
  const Words target = Words().text("host").text("0");
  EXPECT_EQ(serve(open_frame("accel", 2, Words(target).h8(8).h4(0).all)),
            bytes_of("5a434c31 0100 0300 01000000 00000000 10000000"
                     "01000000 04000000 07000000 00000000"));
  const auto body = [&](uint16_t op, const char* payload) {
    const Payload answer = serve(zctl_frame(op, bytes_of(payload)));
    return Payload(answer.begin() + 32, answer.end());
  };
  EXPECT_EQ(body(0x8012, "04000000 'abcdef'"), bytes_of("06000000"));
  EXPECT_EQ(body(0x8012, "04000000 'abcdef'"), bytes_of("ffffffff"));
  EXPECT_EQ(body(0x8011, "04000000 04000000"), bytes_of("04000000 'abcd'"));
  EXPECT_EQ(body(0x8011, "04000000 ffffffff"), bytes_of("04000000 'ef' 0000"));
  EXPECT_EQ(body(0x8011, "04000000 01000000"), bytes_of("00000000"));
  EXPECT_EQ(body(0x8013, "04000000"), bytes_of(""));
  EXPECT_EQ(body(0x8011, "04000000 01000000"), bytes_of("ffffffff"));
}

TEST(Zctl1, a_read_makes_no_room_for_bytes_that_its_handle_lacks) {
  Host host;
  ZctlGuest guest(host.kernels.handle(), 64);
  Payload memory(64), response(32 + (1 << 20));
  const auto serve = [&](const Payload& frame) {
    return wcuda_zctl_serve(guest.session(), memory.data(), memory.size(), frame.data(),
                            frame.size(), response.data(), response.size());
  };
  const Payload read = zctl_frame(0x8011, bytes_of("04000000 ffffffff"));
  // Makes the room of a small response.
  EXPECT_EQ(serve(zctl_frame(1, {})), 32 + 4 + 3 * 8 + 16 + 15 + 12);

  const int64_t before = allocation_count();
  EXPECT_EQ(serve(read), 36);
  EXPECT_EQ(allocation_count(), before);
}

TEST(Zctl1, failure_of_each_call_is_answered_and_frees_everything) {
  for (const bool posing : {false, true}) {
    for (const CallKind kind : {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch,
                                CallKind::kWait, CallKind::kOther, CallKind::kEnd}) {
      const bool loses = kind == CallKind::kEnd;  // of which none can fail
      bool is_over = false;
      for (uint64_t k = 1; !is_over; ++k) {
        ASSERT_LT(k, 100u);
        std::shared_ptr<Backend> device = open_host_backend(uint64_t{64} << 20, 1).take();
        if (posing) device = std::make_shared<ModuleDevice>();
        FaultContext context(device);
        {
          Kernels kernels(context.handle());
          Accelerator accel(kernels.handle(), posing ? "cuda" : "host", WCUDA_ZCTL_FOREIGN_MODULES);
          if (loses)
            context.faults().lose_device(k);
          else
            context.faults().fail(kind, k);
          const auto sums = [&]() -> std::vector<float> {
            using A = Accelerator;
            accel.guest.write<float>(kGuestData, {1, 2, 3});
            const Opened x = accel.open("accel", 2, accel.target().h8(12).h4(0).all);
            if (x.handle < 0 || accel.write(x.handle, kGuestData, 12) != 12) return {};
            Opened ran;
            if (posing) {
              const auto code = accel.target().text(kAddOneCode).text("m").all;
              const Opened loaded = accel.open("accel.ext", 7, code);
              if (loaded.handle < 0) return {};
              ran = accel.open(
                  "accel", 3,
                  accel.submit("add_one", {A::at(x.handle), A::value(3, 4)}, 0, "m", 32));
            } else {
              const Opened y = accel.open("accel", 2, accel.target().h8(12).h4(0).all);
              if (y.handle < 0) return {};
              ran = accel.open(
                  "accel", 3,
                  accel.submit("copy", {A::at(x.handle), A::at(y.handle), A::value(3, 8)}));
            }
            if (ran.handle < 0 || accel.read(ran.handle, kGuestData + 100, 100) != 1) return {};
            if (accel.read(x.handle, kGuestData, 12) != 12) return {};
            return accel.guest.read<float>(kGuestData, 3);
          };
          const std::vector<float> expected =
              posing ? std::vector<float>{2, 3, 4} : std::vector<float>{1, 2, 3};
          is_over = sums() == expected;
          if (!is_over && !loses) {
            context.faults().fail(kind, 0);
            EXPECT_EQ(sums(), expected);
          } else if (!is_over) {
            EXPECT_TRUE(sums().empty());
            EXPECT_EQ(accel.guest.answer(zcl1(1, {})), bytes_of(kGoldenList));
          }
        }
        EXPECT_TRUE(loses || context.device_bytes() == 0);
      }
    }
  }
}

}  // namespace
}  // namespace wcuda::testing
