// HalfGemm: cuBLASLt with one cached algorithm per shape, or our kernel without the library.
#include "core/gemm/gemm.h"

#include <map>
#include <tuple>

#include "core/base/log.h"
#include "core/gemm/cublas_lt.h"

namespace wcuda::compute {
namespace {

namespace lt = cublas_lt;

using lt::checked;

const Result<lt::Functions>& functions() {
  static const bool said = [] {
    if (!lt::functions().ok())
      log(WCUDA_LOG_INFO, "compute", "long prompts run slower without cuBLASLt: %s",
          lt::functions().status().message());
    return true;
  }();
  (void)said;
  return lt::functions();
}

}  // namespace

// A descriptor, layouts and an algorithm for each shape, alive as long as the handle.
class HalfGemm::Lt {
 public:
  Lt(const lt::Functions& functions, void* workspace)
      : functions_(functions), workspace_(workspace) {}
  ~Lt() {
    for (auto& [key, plan] : plans_) release(plan);
    if (handle_) functions_.destroy(handle_);
  }
  Lt(const Lt&) = delete;
  Lt& operator=(const Lt&) = delete;

  Status open() { return checked(functions_.create(&handle_), "create"); }

  struct Plan {
    void* descriptor = nullptr;
    void* w = nullptr;
    void* h = nullptr;
    void* y = nullptr;
    lt::Algorithm algorithm{};
  };

  Result<const Plan*> plan(const kernels::GemmArgs& shape) {
    const Key key{shape.rows,    shape.tokens, shape.depth, shape.y_stride, shape.y_half != nullptr,
                  shape.is_added};
    if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
    Plan made;
    if (Status status = make(shape, &made); !status.ok()) {
      release(made);
      return status;
    }
    return &plans_.emplace(key, made).first->second;
  }

  Status run(const kernels::GemmArgs& args, cudaStream_t stream) {
    WCUDA_ASSIGN(const Plan* const plan, this->plan(args));
    const float one = 1.0f, kept = args.is_added ? 1.0f : 0.0f;
    void* const y = args.y_half != nullptr ? static_cast<void*>(args.y_half) : args.y;
    return checked(functions_.matmul(handle_, plan->descriptor, &one, args.w, plan->w, args.h,
                                     plan->h, &kept, y, plan->y, y, plan->y, &plan->algorithm,
                                     workspace_, kWorkspaceBytes, stream),
                   "matmul");
  }

 private:
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, bool, bool>;

  // In cuBLASLt's column-major terms: D (rows, columns) = transposed W (depth, rows) * H (depth,
  // columns).
  Status make(const kernels::GemmArgs& shape, Plan* plan) {
    WCUDA_TRY(checked(functions_.descriptor_create(&plan->descriptor, lt::kCompute32, lt::kReal32),
                      "descriptor create"));
    const int32_t transposed = lt::kTransposed;
    WCUDA_TRY(checked(functions_.descriptor_set(plan->descriptor, lt::kDescriptorTransposeA,
                                                &transposed, sizeof transposed),
                      "descriptor set"));
    WCUDA_TRY(checked(
        functions_.layout_create(&plan->w, lt::kReal16, shape.depth, shape.rows, shape.depth),
        "layout create"));
    WCUDA_TRY(checked(
        functions_.layout_create(&plan->h, lt::kReal16, shape.depth, shape.tokens, shape.h_stride),
        "layout create"));
    WCUDA_TRY(checked(
        functions_.layout_create(&plan->y, shape.y_half != nullptr ? lt::kReal16 : lt::kReal32,
                                 shape.rows, shape.tokens, shape.y_stride),
        "layout create"));

    void* preference = nullptr;
    WCUDA_TRY(checked(functions_.preference_create(&preference), "preference create"));
    const uint64_t workspace_bytes = kWorkspaceBytes;
    Status status = checked(functions_.preference_set(preference, lt::kPreferenceWorkspaceBytes,
                                                      &workspace_bytes, sizeof workspace_bytes),
                            "preference set");
    lt::HeuristicResult result{};
    int found = 0;
    if (status.ok())
      status = checked(functions_.heuristic(handle_, plan->descriptor, plan->w, plan->h, plan->y,
                                            plan->y, preference, 1, &result, &found),
                       "heuristic");
    functions_.preference_destroy(preference);
    WCUDA_TRY(std::move(status));
    if (found == 0)
      return Status::error(WCUDA_INTERNAL, "cuBLASLt: no algorithm for %u x %u x %u", shape.rows,
                           shape.tokens, shape.depth);
    plan->algorithm = result.algorithm;
    return {};
  }

  void release(const Plan& plan) {
    if (plan.descriptor) functions_.descriptor_destroy(plan.descriptor);
    for (void* layout : {plan.w, plan.h, plan.y})
      if (layout) functions_.layout_destroy(layout);
  }

  const lt::Functions& functions_;
  void* workspace_;
  void* handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

HalfGemm::HalfGemm(Library library, void* workspace) {
  if (library == Library::kNone || !functions().ok()) return;
  lt_ = std::make_unique<Lt>(*functions(), workspace);
  if (const Status status = lt_->open(); !status.ok()) {
    log(WCUDA_LOG_WARN, "compute", "%s", status.message());
    lt_.reset();
  }
}

HalfGemm::~HalfGemm() = default;

Status HalfGemm::prepare(const kernels::GemmArgs& shape) {
  if (lt_ && shape.depth % 8 == 0) WCUDA_TRY(lt_->plan(shape).status());
  return {};
}

Status HalfGemm::run(const kernels::GemmArgs& args, const kernels::Launch& launch) {
  WCUDA_CHECK(args.h_stride % 8 == 0 && args.y_stride >= args.rows &&
              !(args.y_half != nullptr && args.is_added));
  // cuBLASLt needs rows that are multiples of 16 bytes.
  if (lt_ && args.depth % 8 == 0) return lt_->run(args, launch.stream);
  if (const cudaError_t status = kernels::gemm(args, launch); status != cudaSuccess)
    return Status::native_error(WCUDA_INTERNAL, status, "gemm: %s", cudaGetErrorString(status));
  return {};
}

}  // namespace wcuda::compute
