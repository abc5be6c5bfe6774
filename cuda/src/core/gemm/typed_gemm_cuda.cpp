// Matrix products by cuBLASLt. Its matrices are column-major, so it computes the transposed
// product c' (n, m) = op(b)' (n, k) * op(a)' (k, m), which moves no data.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <map>
#include <mutex>

#include "core/gemm/cublas_lt.h"
#include "core/gemm/typed_gemm.h"

namespace wcuda::compute {
namespace {

namespace lt = cublas_lt;
using lt::checked;

constexpr uint64_t kWorkspaceBytesMax = 32ull << 20;
constexpr uintptr_t kAlignmentMax = 256;
constexpr size_t kPlansMax = 1024;

int native_type(GemmElement element) {
  switch (element) {
    case GemmElement::kF32:
      return lt::kReal32;
    case GemmElement::kF16:
      return lt::kReal16;
    case GemmElement::kBf16:
      return lt::kRealBf16;
    case GemmElement::kE4m3:
      return lt::kRealE4m3;
  }
  return lt::kReal32;
}

const char* type_name(const TypedGemm& gemm) {
  switch (gemm.a.element) {
    case GemmElement::kF32:
      return gemm.is_tf32 ? "tf32" : "f32";
    case GemmElement::kF16:
      return "f16";
    case GemmElement::kBf16:
      return "bf16";
    case GemmElement::kE4m3:
      return "fp8";
  }
  return "";
}

uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | kAlignmentMax;
  return static_cast<uint32_t>(address & -address);
}

// Everything that the choice of an algorithm depends on.
using Key = std::array<int64_t, 23>;
Key key_of(const TypedGemm& g) {
  return {static_cast<int64_t>(g.a.element),
          static_cast<int64_t>(g.c.element),
          static_cast<int64_t>(g.bias_element),
          static_cast<int64_t>(g.act),
          g.is_tf32,
          g.bias != nullptr,
          g.beta != 0.0f,
          g.a.is_transposed,
          g.b.is_transposed,
          g.batch,
          g.m,
          g.n,
          g.k,
          g.a.row_stride,
          g.b.row_stride,
          g.c.row_stride,
          g.a.batch_stride,
          g.b.batch_stride,
          g.c.batch_stride,
          alignment(g.a.data),
          alignment(g.b.data),
          alignment(g.c.data),
          alignment(g.bias)};
}

// Descriptors and the algorithm of one key.
class Plan {
 public:
  explicit Plan(const lt::Functions& functions) : functions_(functions) {}
  ~Plan() {
    if (descriptor_) functions_.descriptor_destroy(descriptor_);
    for (void* layout : {a_, b_, c_})
      if (layout) functions_.layout_destroy(layout);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  uint64_t workspace_bytes() const { return workspace_bytes_; }

  Status make(void* handle, const TypedGemm& g) {
    WCUDA_TRY(describe(g));
    WCUDA_TRY(make_layout(g.a, g.m, g.k, g.batch, &a_));
    WCUDA_TRY(make_layout(g.b, g.k, g.n, g.batch, &b_));
    WCUDA_TRY(make_layout(g.c, g.m, g.n, g.batch, &c_));
    void* preference = nullptr;
    WCUDA_TRY(checked(functions_.preference_create(&preference), "preference create"));
    const Status status = choose(handle, g, preference);
    functions_.preference_destroy(preference);
    return status;
  }

  // The descriptor holds the address of the bias: one call at a time.
  Status run(void* handle, const TypedGemm& g, void* workspace, cudaStream_t stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (g.bias) WCUDA_TRY(set(lt::kDescriptorBias, g.bias));
    const int status = functions_.matmul(handle, descriptor_, &g.alpha, g.b.data, b_, g.a.data, a_,
                                         &g.beta, g.c.data, c_, g.c.data, c_, &algorithm_,
                                         workspace, workspace_bytes_, stream);
    if (status == lt::kSuccess) return {};
    return Status::native_error(WCUDA_LAUNCH_FAILED, status, "cuBLASLt: matmul returned %d",
                                status);
  }

 private:
  template <class T>
  Status set(int attribute, const T& value) {
    return checked(functions_.descriptor_set(descriptor_, attribute, &value, sizeof(value)),
                   "descriptor set");
  }

  Status describe(const TypedGemm& g) {
    WCUDA_TRY(checked(functions_.descriptor_create(
                          &descriptor_, g.is_tf32 ? lt::kComputeTf32 : lt::kCompute32, lt::kReal32),
                      "descriptor create"));
    if (g.b.is_transposed) WCUDA_TRY(set(lt::kDescriptorTransposeA, lt::kTransposed));
    if (g.a.is_transposed) WCUDA_TRY(set(lt::kDescriptorTransposeB, lt::kTransposed));
    uint32_t epilogue = 0;
    if (g.act == GemmAct::kRelu) epilogue |= lt::kEpilogueRelu;
    if (g.act == GemmAct::kGelu) epilogue |= lt::kEpilogueGelu;
    if (g.bias) epilogue |= lt::kEpilogueBias;
    if (epilogue == 0) epilogue = lt::kEpilogueNone;
    WCUDA_TRY(set(lt::kDescriptorEpilogue, epilogue));
    if (!g.bias) return {};
    WCUDA_TRY(set(lt::kDescriptorBias, g.bias));
    return set(lt::kDescriptorBiasType, native_type(g.bias_element));
  }

  // A stored row is a column for cuBLASLt.
  Status make_layout(const GemmMatrix& matrix, int64_t rows, int64_t cols, int64_t batch,
                     void** layout) {
    const auto stored_rows = static_cast<uint64_t>(matrix.is_transposed ? cols : rows);
    const auto stored_cols = static_cast<uint64_t>(matrix.is_transposed ? rows : cols);
    WCUDA_TRY(checked(functions_.layout_create(layout, native_type(matrix.element), stored_cols,
                                               stored_rows, matrix.row_stride),
                      "layout create"));
    if (batch == 1) return {};
    const auto count = static_cast<int32_t>(batch);
    WCUDA_TRY(checked(functions_.layout_set(*layout, lt::kLayoutBatchCount, &count, sizeof(count)),
                      "layout set"));
    return checked(functions_.layout_set(*layout, lt::kLayoutBatchStride, &matrix.batch_stride,
                                         sizeof(matrix.batch_stride)),
                   "layout set");
  }

  Status choose(void* handle, const TypedGemm& g, void* preference) {
    const auto prefer = [&](int attribute, const auto& value) {
      return checked(functions_.preference_set(preference, attribute, &value, sizeof(value)),
                     "preference set");
    };
    WCUDA_TRY(prefer(lt::kPreferenceWorkspaceBytes, kWorkspaceBytesMax));
    int attribute = lt::kPreferenceAlignmentA;
    for (const void* data : {g.b.data, g.a.data, g.c.data, g.c.data})
      WCUDA_TRY(prefer(attribute++, alignment(data)));
    lt::HeuristicResult result{};
    int found = 0;
    const int status =
        functions_.heuristic(handle, descriptor_, b_, a_, c_, c_, preference, 1, &result, &found);
    if (status != lt::kNotSupported) WCUDA_TRY(checked(status, "heuristic"));
    if (status == lt::kNotSupported || found == 0)
      return Status::native_error(
          WCUDA_NOT_AVAILABLE, status,
          "gemm: cuBLASLt has no algorithm for %s of %" PRId64 " x %" PRId64 " x %" PRId64 "%s",
          type_name(g), g.m, g.n, g.k,
          g.a.element == GemmElement::kE4m3 ? "; fp8 needs a device of capability 8.9" : "");
    algorithm_ = result.algorithm;
    workspace_bytes_ = result.workspace_bytes;
    return {};
  }

  const lt::Functions& functions_;
  void* descriptor_ = nullptr;
  void* a_ = nullptr;  // the caller's names; b is the first operand for cuBLASLt
  void* b_ = nullptr;
  void* c_ = nullptr;
  lt::Algorithm algorithm_{};
  uint64_t workspace_bytes_ = 0;
  std::mutex mutex_;
};

// The library's handle for one context, and the cached algorithms.
class Products {
 public:
  explicit Products(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  ~Products() {
    if (!handle_) return;
    plans_.clear();
    (void)backend_->queue(Stream{},
                          [&] { return checked((*lt::functions()).destroy(handle_), "destroy"); });
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The device must be current.
  Result<std::shared_ptr<Plan>> plan(const TypedGemm& gemm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    WCUDA_TRY(lt::functions().status());
    const lt::Functions& functions = *lt::functions();
    if (!handle_) WCUDA_TRY(checked(functions.create(&handle_), "create"));
    const Key key = key_of(gemm);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    auto made = std::make_shared<Plan>(functions);
    WCUDA_TRY(made->make(handle_, gemm));
    if (plans_.size() >= kPlansMax) plans_.clear();  // algorithms are chosen again when needed
    plans_.emplace(key, made);
    return made;
  }
  void* handle() const { return handle_; }
  // kWorkspaceBytesMax for all products on stream 0, which run one after another; null if it could
  // not be allocated. Allocating for each call cost 14 us between two
  // products on an H200.
  uint8_t* main_workspace(vram::Memory& memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!main_workspace_) {
      auto made = memory.lasting_scratch(kWorkspaceBytesMax, "gemm");
      if (made.ok()) main_workspace_ = *made;
    }
    return main_workspace_;
  }

 private:
  const std::shared_ptr<Backend> backend_;
  std::mutex mutex_;
  void* handle_ = nullptr;
  uint8_t* main_workspace_ = nullptr;
  std::map<Key, std::shared_ptr<Plan>> plans_;
};

}  // namespace

Status gemm_library() { return lt::functions().status(); }

Status run_gemm_on_device(const TypedGemm& gemm, vram::Memory& memory, Stream stream) {
  WCUDA_TRY(gemm_library());
  if (needs_padding(gemm)) return run_gemm_padded(gemm, memory, stream);
  const auto products =
      memory.kept<Products>([&] { return std::make_shared<Products>(memory.shared_backend()); });
  Backend& backend = memory.backend();
  std::shared_ptr<Plan> plan;
  WCUDA_TRY(backend.queue(stream, [&]() -> Status {
    WCUDA_ASSIGN(plan, products->plan(gemm));
    return {};
  }));
  vram::Buffer workspace;
  uint8_t* scratch = nullptr;
  if (plan->workspace_bytes() != 0) {
    if (stream.id == 0) scratch = products->main_workspace(memory);
    if (!scratch) {
      WCUDA_ASSIGN(workspace, memory.scratch(plan->workspace_bytes(), "gemm", stream));
      scratch = workspace.data();
    }
  }
  return backend.queue(stream, [&] {
    return plan->run(products->handle(), gemm, scratch,
                     static_cast<cudaStream_t>(backend.native_stream(stream)));
  });
}

}  // namespace wcuda::compute
