// Sessions of ZCL1 on hostile bytes: many frames, and the handles that they open.
#include <set>

#include "fuzz/zctl_entry.h"
#include "fuzz/zctl_kernels.h"

namespace wcuda::fuzz {
namespace {

constexpr uint64_t kDeviceBytesMax = 1 << 16;
constexpr size_t kStepsMax = 200;

struct PlainBuffer final : zctl::DeviceBuffer {
  std::vector<uint8_t> memory;
  explicit PlainBuffer(uint64_t bytes) : memory(bytes) {}
};
struct PlainModule final : zctl::DeviceModule {};
struct PlainPoint final : zctl::DevicePoint {
  bool is_late = false;
};

// What is queued has run, but for the kernel "late", which never ends. Modules have one entry.
class PlainDevice final : public zctl::Device {
 public:
  uint64_t* held_bytes = nullptr;

  zctl::DeviceInfo info() const override { return {"host", "0", "plain", kDeviceBytesMax, 1, 0}; }
  Result<std::shared_ptr<zctl::DeviceBuffer>> allocate(uint64_t bytes) override {
    *held_bytes += bytes;
    if (*held_bytes > kDeviceBytesMax) return Status::error(WCUDA_INTERNAL, "over the limit");
    return std::shared_ptr<zctl::DeviceBuffer>(
        new PlainBuffer(bytes), [held = held_bytes](zctl::DeviceBuffer* buffer) {
          *held -= static_cast<PlainBuffer*>(buffer)->memory.size();
          delete buffer;
        });
  }
  Status write(zctl::DeviceBuffer& target, uint64_t offset, zctl::Bytes source,
               zctl::Clock::time_point) override {
    auto& memory = static_cast<PlainBuffer&>(target).memory;
    std::copy_n(source.data, source.bytes, memory.begin() + static_cast<ptrdiff_t>(offset));
    return {};
  }
  Status read(zctl::DeviceBuffer& source, uint64_t offset, uint8_t* target, uint64_t bytes,
              zctl::Clock::time_point) override {
    const auto& memory = static_cast<PlainBuffer&>(source).memory;
    std::copy_n(memory.begin() + static_cast<ptrdiff_t>(offset), bytes, target);
    return {};
  }
  Status copy(std::shared_ptr<zctl::DeviceBuffer> target,
              std::shared_ptr<zctl::DeviceBuffer> source, uint64_t bytes) override {
    return write(*target, 0, {static_cast<PlainBuffer&>(*source).memory.data(), bytes}, {});
  }
  Result<std::shared_ptr<zctl::DevicePoint>> submit(const zctl::Submit& what) override {
    if (!what.kernel && what.entry != "entry") return Status::error(WCUDA_NOT_FOUND, "no entry");
    auto point = std::make_shared<PlainPoint>();
    point->is_late = what.kernel && what.kernel->info.name == "late";
    for (const zctl::SubmitArgument& argument : what.arguments) {
      if (!argument.buffer) continue;
      auto& memory = static_cast<PlainBuffer&>(*argument.buffer).memory;
      if (memory.size() != argument.buffer_bytes) return Status::error(WCUDA_INTERNAL, "its size");
      if (argument.access != WCUDA_ACCESS_READ) std::fill(memory.begin(), memory.end(), 0x5a);
    }
    is_late_ = is_late_ || point->is_late;
    return std::shared_ptr<zctl::DevicePoint>(std::move(point));
  }
  Result<std::shared_ptr<zctl::DevicePoint>> mark() override {
    auto point = std::make_shared<PlainPoint>();
    point->is_late = is_late_;
    return std::shared_ptr<zctl::DevicePoint>(std::move(point));
  }
  Status wait(zctl::DevicePoint& point, zctl::Clock::time_point) override {
    if (static_cast<PlainPoint&>(point).is_late) return Status::error(WCUDA_TIMEOUT, "late");
    return {};
  }
  Result<std::shared_ptr<zctl::DeviceModule>> load(zctl::Bytes code) override {
    if (code.bytes == 0 || code.data[0] != 'M') return Status::error(WCUDA_MALFORMED, "no module");
    return std::shared_ptr<zctl::DeviceModule>(std::make_shared<PlainModule>());
  }

 private:
  bool is_late_ = false;
};

class KernelsOnDevice final : public PlainKernels {
 public:
  explicit KernelsOnDevice(uint64_t* held_bytes) { device_.held_bytes = held_bytes; }
  zctl::Device* device() override { return &device_; }

 private:
  PlainDevice device_;
};

// A session, and what its latest step was answered, for a comparison with an equal one.
class Exercise {
 public:
  Exercise() {
    zctl::SessionLimits limits;
    limits.payload_bytes = kPayloadBytesMax;
    limits.device_bytes = kDeviceBytesMax;
    zctl::Policy policy;
    policy.permits_modules = true;
    session_ = std::make_unique<zctl::Session>(std::make_unique<KernelsOnDevice>(&held_bytes_),
                                               limits, policy, nullptr);
  }

  // "" or what is wrong.
  std::string step(uint8_t kind, const std::vector<uint8_t>& given) {
    return kind == 0 ? send(given) : use(kind, given);
  }
  std::string finish() {
    session_.reset();
    return held_bytes_ == 0 ? "" : "the device has buffers left";
  }
  const std::vector<uint8_t>& answer() const { return answer_; }

 private:
  std::string send(const std::vector<uint8_t>& frame) {
    std::vector<uint8_t> response(32 + kPayloadBytesMax);
    const int32_t ret =
        session_->serve({memory_.data(), memory_.size()}, {frame.data(), frame.size()},
                        response.data(), response.size());
    response.resize(static_cast<size_t>(std::max(ret, 0)));
    answer_ = std::move(response);
    if (ret < 0 || frame.size() < 12 || std::memcmp(frame.data(), "ZCL1", 4) != 0) return "";
    return check(frame, answer_);
  }

  std::string check(const std::vector<uint8_t>& frame, const std::vector<uint8_t>& response) {
    if (!has_stated_size(response.data(), response.size()))
      return "payload_len is not that of the response";
    if (std::memcmp(response.data(), "ZCL1\1\0", 6) != 0 ||
        std::memcmp(response.data() + 6, frame.data() + 6, 6) != 0 ||
        load_le<uint32_t>(response.data() + 12) != 0)
      return "the header does not echo its request";
    const auto ok = load_le<uint32_t>(response.data() + 20);
    if (ok > 1) return "ok is no truth value";
    const uint8_t* const rest = response.data() + 24;
    if (ok == 0) return check_trace(rest, response.size() - 24);
    if (load_le<uint16_t>(frame.data() + 6) != 3) return "";
    const auto handle = load_le<int32_t>(rest);
    if (response.size() != 36 || handle <= last_handle_) return "a handle is not a new one";
    last_handle_ = handle;
    open_.insert(handle);
    return "";
  }

  static std::string check_trace(const uint8_t* rest, size_t bytes) {
    const size_t length = bytes < 4 ? bytes : load_le<uint32_t>(rest);
    const std::string trace(rest + std::min<size_t>(4, bytes), rest + std::min(bytes, 4 + length));
    for (const char* const known :
         {"t_ctl_bad_frame", "t_ctl_bad_version", "t_ctl_unknown_op", "t_ctl_timeout",
          "t_ctl_overflow", "t_ctl_bad_params", "t_cap_missing", "t_cap_denied",
          "t_accel_no_device", "t_accel_kernel_not_found", "t_accel_launch_failed",
          "t_accel_invalid_handle", "t_accel_module_invalid", "t_accel_copy_failed"})
      if (trace == known) return "";
    return "an unknown trace: " + trace;
  }

  std::string use(uint8_t kind, const std::vector<uint8_t>& given) {
    if (given.empty()) return "";
    const int32_t handle = given[0];
    if (kind == 3) {
      session_->end(handle);
      open_.erase(handle);
      return "";
    }
    std::vector<uint8_t> window(given.begin() + 1, given.end());
    if (kind == 1) window.assign(given.size() < 3 ? 7 : load_le<uint16_t>(given.data() + 1), 0);
    const zctl::Memory memory{window.data(), window.size()};
    const auto bytes = static_cast<int32_t>(window.size());
    const int32_t ret = kind == 1 ? session_->read(handle, memory, 0, bytes)
                                  : session_->write(handle, memory, 0, bytes);
    if (ret < -1 || ret > bytes) return "more bytes than there is room";
    if (ret >= 0 && open_.count(handle) == 0) return "a handle that is not open is used";
    answer_ = std::move(window);
    answer_.push_back(static_cast<uint8_t>(ret));
    return "";
  }

  uint64_t held_bytes_ = 0;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(256);
  std::unique_ptr<zctl::Session> session_;
  std::vector<uint8_t> answer_;
  std::set<int32_t> open_;
  int32_t last_handle_ = 3;
};

}  // namespace

std::string exercise_zctl_capabilities(const uint8_t* data, size_t bytes) {
  Exercise first, second;
  for (size_t at = 0, steps = 0; bytes - at >= 3 && steps < kStepsMax; ++steps) {
    const uint8_t kind = data[at] % 4;
    const size_t length = std::min<size_t>(load_le<uint16_t>(data + at + 1), bytes - at - 3);
    // Exactly sized.
    const std::vector<uint8_t> given(data + at + 3, data + at + 3 + length);
    at += 3 + length;
    for (Exercise* const each : {&first, &second}) {
      std::string wrong = each->step(kind, given);
      if (!wrong.empty()) return wrong;
    }
    if (first.answer() != second.answer()) return "equal sessions give other answers";
  }
  const std::string wrong = first.finish();
  return wrong.empty() ? second.finish() : wrong;
}

}  // namespace wcuda::fuzz
