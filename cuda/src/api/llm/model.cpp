// Section 10 of the header: cancel switches and models.
#include "llm/model/model.h"

#include <atomic>
#include <cstring>
#include <functional>

#include "api/base/context.h"
#include "api/base/guard.h"
#include "api/llm/handles.h"
#include "core/base/text.h"
#include "worker_cuda/llm.h"

using namespace wcuda;
using namespace wcuda::api;

namespace wcuda::api {

struct Cancel {
  std::atomic<bool> triggered{false};
};

}  // namespace wcuda::api

template <>
struct wcuda::api::HandleOf<wcuda_cancel> : HandleTo<Kind::kCancel, Cancel> {};

namespace {

constexpr wcuda_model_options kModelDefaults = WCUDA_MODEL_OPTIONS_INIT;

// Forwards the progress of one load to the caller's callback.
class Progress {
 public:
  Progress(wcuda_progress_callback callback, void* user) : callback_(callback), user_(user) {}

  bool operator()(int32_t phase, uint64_t done_bytes, uint64_t total_bytes) {
    total_bytes_ = total_bytes;
    if (callback_ == nullptr) return true;
    const InCallback mark;
    return callback_(user_, phase, done_bytes, total_bytes) == 0;
  }
  void done() { (*this)(WCUDA_LOAD_DONE, total_bytes_, total_bytes_); }

 private:
  wcuda_progress_callback callback_;
  void* user_;
  uint64_t total_bytes_ = 0;
};

Status load(wcuda_context context, wcuda_gguf gguf, const wcuda_model_options& options,
            wcuda_model* model) {
  WCUDA_TRY(check_flags(options.flags, 0, "options->flags"));
  WCUDA_ASSIGN(const auto owner, resolve(context, "context"));
  WCUDA_ASSIGN(auto file, resolve(gguf, "gguf"));
  std::shared_ptr<Cancel> cancel;
  if (options.cancel.id != 0) {
    WCUDA_ASSIGN(cancel, resolve(options.cancel, "options->cancel"));
  }
  Progress progress(options.progress, options.progress_user);
  model::LoadOptions load_options;
  load_options.progress = std::ref(progress);
  if (options.target.id != 0) {
    WCUDA_ASSIGN(load_options.target, resolve(options.target, "options->target"));
  }
  if (cancel) load_options.is_cancelled = [cancel] { return cancel->triggered.load(); };
  WCUDA_ASSIGN(auto loaded, model::Model::load(owner->memory, std::move(file), load_options));
  WCUDA_TRY(insert(std::move(loaded), model));
  progress.done();
  return {};
}

}  // namespace

wcuda_status wcuda_cancel_create(wcuda_cancel* cancel, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(cancel, "cancel"));
    return insert(std::make_shared<Cancel>(), cancel);
  });
}

void wcuda_cancel_destroy(wcuda_cancel cancel) { destroy(__func__, cancel); }

wcuda_status wcuda_cancel_trigger(wcuda_cancel cancel, wcuda_error* error) {
  return guarded_anywhere(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(cancel, "cancel"));
    object->triggered = true;
    return {};
  });
}

wcuda_status wcuda_model_load(wcuda_context context, wcuda_gguf gguf,
                              const wcuda_model_options* options, wcuda_model* model,
                              wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(model, "model"));
    WCUDA_ASSIGN(const auto given, read_struct_or(kModelDefaults, options, "options"));
    return load(context, gguf, given, model);
  });
}

void wcuda_model_unload(wcuda_model model) { destroy(__func__, model); }

wcuda_status wcuda_model_info_get(wcuda_model model, wcuda_model_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(info, "info"));
    WCUDA_ASSIGN(const auto object, resolve(model, "model"));
    const model::Config& config = object->config();
    wcuda_model_info out = WCUDA_MODEL_INFO_INIT;
    out.layer_count = config.layer_count;
    copy_text(config.architecture, out.architecture, sizeof(out.architecture));
    out.parameter_count = object->plan().parameter_count;
    out.weights_bytes = object->plan().weights_bytes;
    out.vocabulary_size = config.vocabulary_size;
    out.embedding_length = config.embedding_length;
    out.feed_forward_length = config.feed_forward_length;
    out.head_count = config.head_count;
    out.kv_head_count = config.kv_head_count;
    out.head_length = config.head_length;
    out.context_length = config.context_length;
    out.sliding_window = config.sliding_window;
    out.rope_frequency_base = config.rope_frequency_base;
    return write_struct(out, info, "info");
  });
}

wcuda_status wcuda_model_tensor_digests_get(wcuda_model model, uint64_t index,
                                            wcuda_tensor_digests* digests, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(digests, "digests"));
    WCUDA_ASSIGN(const auto object, resolve(model, "model"));
    WCUDA_ASSIGN(const model::TensorDigests taken, object->digests(index));
    wcuda_tensor_digests out = WCUDA_TENSOR_DIGESTS_INIT;
    std::memcpy(out.file, taken.file.data(), sizeof(out.file));
    std::memcpy(out.resident, taken.resident.data(), sizeof(out.resident));
    return write_struct(out, digests, "digests");
  });
}

wcuda_status wcuda_model_verify(wcuda_model model, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(model, "model"));
    return object->verify();
  });
}
