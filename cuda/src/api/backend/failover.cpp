// Section 21 of the header: failover.
#include "api/backend/failover.h"

#include <cstring>

#include "api/base/elements.h"
#include "compute/catalogue/catalogue.h"
#include "core/backend/backend_types.h"
#include "core/base/callback.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

constexpr uint64_t kTargetCountMax = 16;
constexpr uint64_t kMillisecondsMax = uint64_t{1} << 40;  // 35 years
constexpr int64_t kProbeCount = 1000;

uint64_t now_ms() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(clock_now().time_since_epoch())
          .count());
}

// Checks a backend with a sum of the catalogue or, without a catalogue, with a copy there and back.
Status probe(vram::Memory& memory) {
  std::vector<float> a(kProbeCount), sums(kProbeCount);
  for (int64_t i = 0; i < kProbeCount; ++i) a[static_cast<size_t>(i)] = static_cast<float>(i);
  const uint64_t bytes = a.size() * sizeof(float);
  WCUDA_ASSIGN(const vram::Buffer from, memory.allocate(bytes, WCUDA_PURPOSE_SCRATCH, "probe"));
  WCUDA_ASSIGN(const vram::Buffer to, memory.allocate(bytes, WCUDA_PURPOSE_SCRATCH, "probe"));
  WCUDA_TRY(memory.copy_to_device(from.data(), a.data(), bytes));
  const bool computes = !memory.backend().is_registered();
  if (computes) {
    const compute::CatalogueEntry* const entry = compute::find_entry("vector_add");
    WCUDA_CHECK(entry != nullptr);
    const compute::CatalogueArgument x{WCUDA_ARG_BUFFER, from.data(), bytes, 0, 0};
    const compute::CatalogueArgument y{WCUDA_ARG_BUFFER, to.data(), bytes, 0, 0};
    const compute::CatalogueArgument n{WCUDA_ARG_I64, nullptr, 0, kProbeCount, 0};
    const compute::CatalogueArgument arguments[] = {x, x, y, n};
    WCUDA_ASSIGN(const auto call,
                 compute::prepare_call(*entry, kernels::Dtype::kF32, arguments, 4));
    WCUDA_TRY(compute::run_call(*entry, call, memory, Stream{}));
  }
  WCUDA_TRY(memory.backend().synchronize());
  WCUDA_TRY(memory.backend().copy_to_host(sums.data(), computes ? to.data() : from.data(), bytes));
  for (size_t i = 0; i < sums.size(); ++i) {
    const float expected = computes ? 2 * a[i] : a[i];
    if (sums[i] != expected)
      return Status::error(WCUDA_INTEGRITY, "probe: element %zu is %g, not %g", i,
                           static_cast<double>(sums[i]), static_cast<double>(expected));
  }
  return {};
}

const char* event_name(int32_t event) {
  static constexpr const char* kNames[] = {"",
                                           "switch started",
                                           "switch completed",
                                           "the target is not usable",
                                           "the first backend is active again",
                                           "no other backend is usable"};
  return kNames[event];
}

const char* reason_name(int32_t reason) {
  static constexpr const char* kNames[] = {"test of the first backend", "device lost",
                                           "repeated failures", "out of memory", "requested"};
  return kNames[reason];
}

}  // namespace

Result<std::shared_ptr<Context>> Failover::open(size_t target, const OpenOptions& options,
                                                vram::Scrub scrub) const {
  OpenOptions request = options;
  request.backend = targets_[target].type;
  request.ordinal = targets_[target].ordinal;
  WCUDA_ASSIGN(Opened opened, open_backend(request));
  return make_context(std::move(opened.backend), options.host_capacity, scrub);
}

Result<std::shared_ptr<Context>> Failover::context_of(size_t target) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (contexts_[target]) return std::shared_ptr<Context>(contexts_[target]);
  }
  WCUDA_ASSIGN(auto made, open(target, OpenOptions(), vram::Scrub::kNone));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!contexts_[target])
    contexts_[target] = std::move(made);  // another thread may have been first
  return std::shared_ptr<Context>(contexts_[target]);
}

void Failover::report_event(int32_t event, int32_t reason, size_t from, size_t to,
                            const Status& why) const {
  wcuda_failover_event report = WCUDA_FAILOVER_EVENT_INIT;
  report.event = event;
  report.reason = reason;
  report.from = targets_[from].type;
  report.to = targets_[to].type;
  report.status = why.code();
  const std::string text = std::string(event_name(event)) + " (" + reason_name(reason) +
                           "): " + backend_name(report.from) + " to " + backend_name(report.to) +
                           (why.ok() ? "" : std::string("; ") + why.message());
  copy_text(text, report.message, sizeof(report.message));
  log(WCUDA_LOG_WARN, "failover", "%s", text.c_str());
  if (!callback_) return;
  const InCallback inside;
  callback_(user_, &report);
}

// Leaves a target that failed; returns true if another one is active afterwards.
bool Failover::leave(size_t from, int32_t reason, const Status& why) {
  const std::lock_guard<std::mutex> only(moving_);
  std::vector<size_t> candidates;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (policy_.active() != from) return true;  // another thread has moved
    candidates = policy_.candidates(now_ms());
  }
  report_event(WCUDA_FAILOVER_STARTED, reason, from, from, why);
  for (const size_t target : candidates) {
    const auto context = context_of(target);
    const Status answers = context.ok() ? probe(*(*context)->memory) : context.status();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (answers.ok()) {
        policy_.moved(target, now_ms());
        moved_because_ = "failover from " + backend_name(targets_[from].type) + ": " +
                         reason_name(reason) + (why.ok() ? "" : "; ") + why.message();
        contexts_[from].reset();
        ++move_count_;
      } else {
        policy_.cool(target, now_ms());
        contexts_[target].reset();
      }
    }
    report_event(answers.ok() ? WCUDA_FAILOVER_COMPLETED : WCUDA_FAILOVER_FAILED, reason, from,
                 target, answers);
    if (answers.ok()) return true;
  }
  report_event(WCUDA_FAILOVER_EXHAUSTED, reason, from, from, why);
  return false;
}

void Failover::restore_if_right() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!policy_.wants_probe(now_ms())) return;
  }
  const std::unique_lock<std::mutex> only(moving_, std::try_to_lock);
  if (!only) return;
  size_t from;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!policy_.wants_probe(now_ms())) return;
    from = policy_.active();
    contexts_[0].reset();
  }
  const auto context = context_of(0);
  const Status right = context.ok() ? probe(*(*context)->memory) : context.status();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    restore_count_ += policy_.probed(right.ok(), now_ms());
    if (!right.ok()) contexts_[0].reset();
  }
  report_event(right.ok() ? WCUDA_FAILOVER_RESTORED : WCUDA_FAILOVER_FAILED, 0, from, 0, right);
}

Status Failover::run(const Body& body, bool repeats, size_t* answered) {
  Status status;
  for (size_t attempt = 0; attempt <= targets_.size(); ++attempt) {
    restore_if_right();
    size_t active;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      active = policy_.active();
    }
    *answered = active;
    status = body(active);
    if (status.ok()) return status;
    int32_t reason;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      reason = policy_.failure(active, status.code(), now_ms());
    }
    if (reason == 0 || !leave(active, reason, status) || !repeats) return status;
  }
  return status;
}

void Failover::report(int32_t type, Code code) {
  size_t active;
  int32_t reason = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    active = policy_.active();
    if (resolve_backend_type(targets_[active].type) == resolve_backend_type(type))
      reason = policy_.failure(active, code, now_ms());
  }
  if (reason != 0)
    (void)leave(active, reason, Status::error(code, "reported: %s", wcuda_status_name(code)));
}

Status Failover::trigger() {
  if (policy_.settings().mode == WCUDA_FAILOVER_NONE)
    return Status::error(WCUDA_INVALID_STATE, "failover: its mode is WCUDA_FAILOVER_NONE");
  size_t active;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    active = policy_.active();
  }
  if (leave(active, WCUDA_FAILOVER_REASON_MANUAL, Status())) return {};
  return Status::error(WCUDA_NOT_AVAILABLE, "failover: no other backend of %zu answers",
                       targets_.size());
}

std::string Failover::moved_because() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return moved_because_;
}

wcuda_failover_state Failover::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  wcuda_failover_state state = WCUDA_FAILOVER_STATE_INIT;
  state.type = resolve_backend_type(targets_[policy_.active()].type);
  state.ordinal = targets_[policy_.active()].ordinal;
  state.is_degraded = policy_.active() != 0;
  state.failure_count = policy_.failure_count();
  state.move_count = move_count_;
  state.restore_count = restore_count_;
  return state;
}

namespace {

Result<std::shared_ptr<Failover>> create(const wcuda_failover_options& options) {
  WCUDA_TRY(check_flags(options.flags, WCUDA_FAILOVER_ON_OUT_OF_MEMORY, "flags"));
  if (options.mode < WCUDA_FAILOVER_NONE || options.mode > WCUDA_FAILOVER_AUTOMATIC)
    return invalid_argument("mode: %d is not one of WCUDA_FAILOVER_…; none is silent",
                            options.mode);
  WCUDA_TRY(check_not_null(options.targets, "targets"));
  if (options.target_count < 1 || options.target_count > kTargetCountMax)
    return invalid_argument("target_count: %llu is not in 1 … %llu",
                            static_cast<unsigned long long>(options.target_count),
                            static_cast<unsigned long long>(kTargetCountMax));
  WCUDA_ASSIGN(const auto targets, read_elements(options.targets, options.target_count, "targets"));
  for (const wcuda_failover_target& target : targets)
    if (target.type == WCUDA_BACKEND_AUTO || target.ordinal < 0 ||
        backend_name(target.type).empty())
      return invalid_argument("targets: backend %d, ordinal %d is not a device", target.type,
                              target.ordinal);
  FailoverSettings settings;
  settings.mode = options.mode;
  settings.moves_when_full = options.flags & WCUDA_FAILOVER_ON_OUT_OF_MEMORY;
  settings.target_count = targets.size();
  const auto set = [](uint64_t given, auto* setting) {
    using T = std::remove_pointer_t<decltype(setting)>;
    if (given != 0) *setting = static_cast<T>(std::min(given, kMillisecondsMax));
  };
  set(options.failure_threshold, &settings.failure_threshold);
  set(options.window_ms, &settings.window_ms);
  set(options.cooldown_ms, &settings.cooldown_ms);
  set(options.recheck_ms, &settings.recheck_ms);
  return std::make_shared<Failover>(settings, targets, options.callback, options.user);
}

// Runs the body with a context handle that is valid during the call.
Status run_body(Failover& failover, size_t target, wcuda_failover_body body, void* user) {
  WCUDA_ASSIGN(const auto context, failover.context_of(target));
  wcuda_context handle{0};
  WCUDA_TRY(insert(context, &handle));
  wcuda_error error{};
  const wcuda_status status = body(user, handle, &error);
  (void)remove(Kind::kContext, handle.id);
  if (status == WCUDA_OK) return context->memory->backend().fault();
  error.message[sizeof(error.message) - 1] = 0;
  return Status::native_error(status, error.native_code, "%s",
                              error.message[0] ? error.message : wcuda_status_name(status));
}

}  // namespace
}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_failover_create(const wcuda_failover_options* options, wcuda_failover* failover,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_failover_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(failover, "failover"));
    WCUDA_ASSIGN(auto object, create(checked));
    return insert(std::move(object), failover);
  });
}

void wcuda_failover_destroy(wcuda_failover failover) { destroy(__func__, failover); }

wcuda_status wcuda_failover_context_create(wcuda_failover failover,
                                           const wcuda_context_options* options,
                                           wcuda_context* context, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(failover, "failover"));
    WCUDA_ASSIGN(const wcuda_context_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(context, "context"));
    if (checked.backend != 0 || checked.ordinal != 0)
      return invalid_argument("options: backend %d, ordinal %d; both must be 0", checked.backend,
                              checked.ordinal);
    WCUDA_ASSIGN(const OpenOptions request, read_context_options(checked));
    std::shared_ptr<Context> made;
    size_t target = 0;
    WCUDA_TRY(object->run(
        [&](size_t index) -> Status {
          WCUDA_ASSIGN(made, object->open(index, request, static_cast<vram::Scrub>(checked.scrub)));
          return {};
        },
        true, &target));
    if (target != 0)
      copy_text(object->moved_because(), made->info.fallback_reason,
                sizeof(made->info.fallback_reason));
    return insert(std::move(made), context);
  });
}

wcuda_status wcuda_failover_call(wcuda_failover failover, wcuda_failover_body body, void* user,
                                 int32_t* type, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(failover, "failover"));
    if (!body) return invalid_argument("body is NULL");
    size_t target = 0;
    const Status status =
        object->run([&](size_t index) { return run_body(*object, index, body, user); },
                    object->is_automatic(), &target);
    if (status.ok() && type) *type = resolve_backend_type(object->target(target).type);
    return status;
  });
}

wcuda_status wcuda_failover_report(wcuda_failover failover, int32_t type, wcuda_status status,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(failover, "failover"));
    object->report(type, status);
    return {};
  });
}

wcuda_status wcuda_failover_trigger(wcuda_failover failover, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(failover, "failover"));
    return object->trigger();
  });
}

wcuda_status wcuda_failover_state_get(wcuda_failover failover, wcuda_failover_state* state,
                                      wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(failover, "failover"));
    return write_struct(object->state(), state, "state");
  });
}
