// Section 23 of the header: sessions of ZCTL/1 and ZCL1.
#include "zctl/session.h"

#include <algorithm>

#include "api/base/context.h"
#include "api/base/guard.h"
#include "api/base/handles.h"
#include "api/compute/registry.h"
#include "api/zctl/kernels.h"
#include "core/base/callback.h"
#include "core/base/text.h"
#include "worker_cuda/zctl.h"

namespace wcuda::api {
namespace {

constexpr uint32_t kPayloadBytesMax = 1u << 30;

// Passes on to a caller's function what a session records.
class CallerRecorder final : public zctl::Recorder {
 public:
  CallerRecorder(wcuda_zctl_recorder recorder, void* user) : recorder_(recorder), user_(user) {}
  ~CallerRecorder() override {
    if (is_open_) send(WCUDA_ZCTL_CLOSED, 0, {}, 0);
  }
  // From now on the caller expects the last call.
  void open() { is_open_ = true; }

  void record(Kind kind, uint64_t offset, zctl::Bytes bytes, int32_t ret) override {
    static_assert(static_cast<int32_t>(Kind::kResponse) + 1 == WCUDA_ZCTL_RESPONSE);
    send(static_cast<int32_t>(kind) + 1, offset, bytes, ret);
  }

 private:
  void send(int32_t kind, uint64_t offset, zctl::Bytes bytes, int32_t ret) {
    wcuda_zctl_record record = WCUDA_ZCTL_RECORD_INIT;
    record.kind = kind;
    record.offset = offset;
    record.data = bytes.data;
    record.bytes = bytes.bytes;
    record.ret = ret;
    const InCallback inside;
    recorder_(user_, &record);
  }

  const wcuda_zctl_recorder recorder_;
  void* const user_;
  bool is_open_ = false;
};

}  // namespace

struct ZctlSession {
  std::unique_ptr<zctl::Session> session;
  Exclusive exclusive;
};

template <>
struct HandleOf<wcuda_zctl_session> : HandleTo<Kind::kZctlSession, ZctlSession> {};

namespace {

Status read_limit(uint32_t given, uint32_t most, const char* name, uint32_t* limit) {
  if (given > most) return invalid_argument("%s: %u, at most %u", name, given, most);
  if (given != 0) *limit = given;
  return {};
}

Result<zctl::SessionLimits> read_limits(const wcuda_zctl_options& from) {
  zctl::SessionLimits limits;
  WCUDA_TRY(read_limit(from.payload_bytes_max, kPayloadBytesMax, "payload_bytes_max",
                       &limits.payload_bytes));
  WCUDA_TRY(read_limit(from.argument_count_max, zctl::kArgumentCountMax, "argument_count_max",
                       &limits.arguments));
  WCUDA_TRY(read_limit(from.rank_max, zctl::kRankMax, "rank_max", &limits.rank));
  WCUDA_TRY(
      read_limit(from.message_bytes_max, UINT32_MAX, "message_bytes_max", &limits.message_bytes));
  WCUDA_TRY(read_limit(from.budget_ms, UINT32_MAX, "budget_ms", &limits.budget_ms));
  if (from.device_bytes_max != 0) limits.device_bytes = from.device_bytes_max;
  return limits;
}

Result<zctl::Policy> read_policy(const wcuda_zctl_options& from) {
  WCUDA_TRY(check_flags(
      from.flags, WCUDA_ZCTL_NON_DETERMINISTIC | WCUDA_ZCTL_ALLOW_LIST | WCUDA_ZCTL_FOREIGN_MODULES,
      "flags"));
  zctl::Policy policy;
  policy.permits_non_deterministic = (from.flags & WCUDA_ZCTL_NON_DETERMINISTIC) != 0;
  policy.has_allow_list = (from.flags & WCUDA_ZCTL_ALLOW_LIST) != 0;
  policy.permits_modules = (from.flags & WCUDA_ZCTL_FOREIGN_MODULES) != 0;
  if (from.allowed_count == 0) return policy;
  WCUDA_TRY(check_not_null(from.allowed, "allowed"));
  if (!policy.has_allow_list)
    return invalid_argument("allowed: given, but not WCUDA_ZCTL_ALLOW_LIST");
  policy.allowed.assign(from.allowed, from.allowed + from.allowed_count);
  std::sort(policy.allowed.begin(), policy.allowed.end());
  return policy;
}

Result<std::unique_ptr<zctl::Kernels>> read_kernels(const wcuda_zctl_options& from) {
  WCUDA_ASSIGN(const std::string_view reason, read_string(from.reason, "reason"));
  if (from.registry.id == 0) return absent_kernels(std::string(reason));
  WCUDA_ASSIGN(auto registry, resolve(from.registry, "registry"));
  return registry_kernels(std::move(registry));
}

Status create(const wcuda_zctl_options& from, wcuda_zctl_session* session) {
  WCUDA_ASSIGN(const zctl::SessionLimits limits, read_limits(from));
  WCUDA_ASSIGN(zctl::Policy policy, read_policy(from));
  WCUDA_ASSIGN(auto kernels, read_kernels(from));
  std::unique_ptr<CallerRecorder> recorder;
  if (from.recorder) recorder = std::make_unique<CallerRecorder>(from.recorder, from.recorder_user);
  CallerRecorder* const opened = recorder.get();
  auto object = std::make_shared<ZctlSession>();
  object->session = std::make_unique<zctl::Session>(std::move(kernels), limits, std::move(policy),
                                                    std::move(recorder));
  WCUDA_TRY(insert(std::move(object), session));
  if (opened) opened->open();
  return {};
}

// Runs `body` with the session; -1 when it cannot.
template <class Body>
int32_t with_session(wcuda_zctl_session session, Body&& body) {
  int32_t ret = -1;
  (void)guarded(nullptr, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(session, "session"));
    ret = body(*object->session);
    return {};
  });
  return ret;
}

}  // namespace
}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_zctl_session_create(const wcuda_zctl_options* options,
                                       wcuda_zctl_session* session, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_zctl_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(session, "session"));
    return create(checked, session);
  });
}

void wcuda_zctl_session_destroy(wcuda_zctl_session session) { destroy(__func__, session); }

int32_t wcuda_zctl_call(wcuda_zctl_session session, void* memory, uint64_t memory_bytes,
                        int32_t req_ptr, int32_t req_len, int32_t resp_ptr, int32_t resp_cap,
                        int32_t timeout_ms) {
  const auto call = [&](zctl::Session& answers) {
    return answers.call({static_cast<uint8_t*>(memory), memory_bytes},
                        {req_ptr, req_len, resp_ptr, resp_cap, timeout_ms});
  };
  if (session.id != 0) return with_session(session, call);
  int32_t ret = -1;
  (void)guarded(nullptr, [&]() -> Status {
    zctl::Session nobody(nullptr, {}, {}, nullptr);
    ret = call(nobody);
    return {};
  });
  return ret;
}

int32_t wcuda_zctl_serve(wcuda_zctl_session session, void* memory, uint64_t memory_bytes,
                         const void* request, uint64_t request_bytes, void* response,
                         uint64_t response_capacity) {
  return with_session(session, [&](zctl::Session& answers) {
    if (!request || !response) return -1;
    return answers.serve({static_cast<uint8_t*>(memory), memory ? memory_bytes : 0},
                         {static_cast<const uint8_t*>(request), request_bytes},
                         static_cast<uint8_t*>(response), response_capacity);
  });
}

int32_t wcuda_zctl_handle_read(wcuda_zctl_session session, int32_t handle, void* memory,
                               uint64_t memory_bytes, int32_t ptr, int32_t cap) {
  return with_session(session, [&](zctl::Session& answers) {
    return answers.read(handle, {static_cast<uint8_t*>(memory), memory_bytes}, ptr, cap);
  });
}

int32_t wcuda_zctl_handle_write(wcuda_zctl_session session, int32_t handle, const void* memory,
                                uint64_t memory_bytes, int32_t ptr, int32_t len) {
  return with_session(session, [&](zctl::Session& answers) {
    // Only read here.
    auto* const bytes = const_cast<uint8_t*>(static_cast<const uint8_t*>(memory));
    return answers.write(handle, {bytes, memory_bytes}, ptr, len);
  });
}

void wcuda_zctl_handle_end(wcuda_zctl_session session, int32_t handle) {
  (void)with_session(session, [&](zctl::Session& answers) {
    answers.end(handle);
    return 0;
  });
}
