#include "kernels/cuda/library_matmul.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kMaxCandidates = 8;
constexpr int kTimedRuns = 3;

// The functions that we use, found by name.
struct Api {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

  bool Find(void* library) {
    bool good = true;
    auto find = [&](auto* function, const char* symbol) {
      void* address = dlsym(library, symbol);
      good = good && address != nullptr;
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(address);
    };
    find(&create, "cublasLtCreate");
    find(&destroy, "cublasLtDestroy");
    find(&version, "cublasLtGetVersion");
    find(&matmul, "cublasLtMatmul");
    find(&heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(&desc_create, "cublasLtMatmulDescCreate");
    find(&desc_destroy, "cublasLtMatmulDescDestroy");
    find(&desc_set, "cublasLtMatmulDescSetAttribute");
    find(&layout_create, "cublasLtMatrixLayoutCreate");
    find(&layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(&preference_create, "cublasLtMatmulPreferenceCreate");
    find(&preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(&preference_set, "cublasLtMatmulPreferenceSetAttribute");
    return good;
  }
};

// The library's description of one product. It is column-major: our row-major out [n, rows] is its
// [rows, n], which W (transposed) times x makes.
class Product {
 public:
  // `multiprocessors`: to be used; 0: all.
  Product(const Api& api, const LinearParams& p, int32_t multiprocessors) : api_(api) {
    const auto type = p.out_f32 ? CUDA_R_32F : CUDA_R_16BF;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const auto m = static_cast<uint64_t>(p.weight.rows);
    const auto n = static_cast<uint64_t>(p.x.rows);
    const auto k = static_cast<uint64_t>(p.weight.cols);
    good_ =
        api.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        api.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) ==
            CUBLAS_STATUS_SUCCESS &&
        (multiprocessors == 0 ||
         api.desc_set(desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &multiprocessors,
                      sizeof(multiprocessors)) == CUBLAS_STATUS_SUCCESS) &&
        api.layout_create(&w, CUDA_R_16BF, k, m, p.weight.row_bytes / 2) == CUBLAS_STATUS_SUCCESS &&
        api.layout_create(&x, CUDA_R_16BF, k, n, p.x.stride) == CUBLAS_STATUS_SUCCESS &&
        api.layout_create(&out, type, m, n, p.out.stride) == CUBLAS_STATUS_SUCCESS;
  }
  ~Product() {
    if (desc != nullptr) api_.desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
      if (layout != nullptr) api_.layout_destroy(layout);
    }
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  bool good() const { return good_; }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;

 private:
  const Api& api_;
  bool good_ = false;
};

class CublasLt final : public LibraryMatmul {
 public:
  CublasLt(Runtime& runtime, const Api& api, cublasLtHandle_t handle, void* workspace)
      : runtime_(runtime), api_(api), handle_(handle), workspace_(workspace) {
    for (cudaEvent_t& event : events_) cudaEventCreate(&event);
  }
  ~CublasLt() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    api_.destroy(handle_);
    runtime_.FreeDevice(workspace_, kWorkspaceBytes);
  }

  std::string name() const override {
    const size_t version = api_.version();  // 130002 is 13.0.2
    return absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  void SpareMultiprocessors(int32_t count) override {
    multiprocessors_ = count == 0 ? 0 : runtime_.info().num_multiprocessors - count;
  }

  bool Multiply(const LinearParams& params, Stream stream) override {
    const Product product(api_, params, multiprocessors_);
    if (!product.good()) return false;
    stream_ = static_cast<cudaStream_t>(stream->stream);
    const Key key = {params.weight.rows, params.weight.cols,
                     static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(params.x.rows))),
                     params.out_f32, multiprocessors_};
    auto found = chosen_.find(key);
    if (found == chosen_.end()) {
      const std::optional<cublasLtMatmulAlgo_t> algorithm = Choose(product, params);
      if (!algorithm) return false;
      found = chosen_.emplace(key, *algorithm).first;
    }
    return Run(product, params, found->second, params.out.data) || RunAny(product, params);
  }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, bool, int32_t>;

  bool Run(const Product& product, const LinearParams& p, const cublasLtMatmulAlgo_t& algorithm,
           void* out) {
    const float alpha = 1.0f;
    const float beta = p.epilogue == Epilogue::kAdd ? 1.0f : 0.0f;
    return api_.matmul(handle_, product.desc, &alpha, p.weight.data, product.w, p.x.data, product.x,
                       &beta, out, product.out, out, product.out, &algorithm, workspace_,
                       static_cast<size_t>(kWorkspaceBytes), stream_) == CUBLAS_STATUS_SUCCESS;
  }

  // What was chosen for other numbers of rows does not fit: the library's first proposal.
  bool RunAny(const Product& product, const LinearParams& params) {
    std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results;
    return Propose(product, &results) > 0 && Run(product, params, results[0].algo, params.out.data);
  }

  int Propose(const Product& product,
              std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates>* results) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (api_.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    const auto bytes = static_cast<size_t>(kWorkspaceBytes);
    api_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                        sizeof(bytes));
    int count = 0;
    const cublasStatus_t status =
        api_.heuristic(handle_, product.desc, product.w, product.x, product.out, product.out,
                       preference, kMaxCandidates, results->data(), &count);
    api_.preference_destroy(preference);
    return status == CUBLAS_STATUS_SUCCESS ? count : 0;
  }

  // The fastest of the proposed, timed into memory of its own: with kAdd every run would add again.
  // Without room for that, the first.
  std::optional<cublasLtMatmulAlgo_t> Choose(const Product& product, const LinearParams& params) {
    std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results;
    const int count = Propose(product, &results);
    if (count == 0) return std::nullopt;
    const int64_t bytes = params.x.rows * params.out.stride * (params.out_f32 ? 4 : 2);
    absl::StatusOr<void*> scratch = runtime_.AllocateDevice(bytes);
    if (!scratch.ok()) return results[0].algo;
    int best = 0;
    float best_ms = std::numeric_limits<float>::infinity();
    for (int i = 0; i < count; ++i) {
      const float ms = Time(product, params, results[static_cast<size_t>(i)].algo, *scratch);
      if (ms < best_ms) {
        best = i;
        best_ms = ms;
      }
    }
    runtime_.FreeDevice(*scratch, bytes);
    return results[static_cast<size_t>(best)].algo;
  }

  // Milliseconds of some runs after a first one; infinity if it does not run.
  float Time(const Product& product, const LinearParams& params,
             const cublasLtMatmulAlgo_t& algorithm, void* out) {
    bool good = Run(product, params, algorithm, out);
    cudaEventRecord(events_[0], stream_);
    for (int i = 0; i < kTimedRuns && good; ++i) good = Run(product, params, algorithm, out);
    cudaEventRecord(events_[1], stream_);
    float ms = std::numeric_limits<float>::infinity();
    if (!good || cudaEventSynchronize(events_[1]) != cudaSuccess ||
        cudaEventElapsedTime(&ms, events_[0], events_[1]) != cudaSuccess) {
      return std::numeric_limits<float>::infinity();
    }
    return ms;
  }

  Runtime& runtime_;
  Api api_;
  cublasLtHandle_t handle_;
  void* workspace_;                // [kWorkspaceBytes] on the device
  cudaStream_t stream_ = nullptr;  // of the product that is being made
  int32_t multiprocessors_ = 0;    // to be used; 0: all
  cudaEvent_t events_[2] = {};
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace

std::unique_ptr<LibraryMatmul> LibraryMatmul::Open(Runtime& runtime) {
  // The version that the headers are of: another's structures may differ.
  const std::string file = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr) return nullptr;
  Api api;
  cublasLtHandle_t handle = nullptr;
  if (!api.Find(library) || api.create(&handle) != CUBLAS_STATUS_SUCCESS) return nullptr;
  absl::StatusOr<void*> workspace = runtime.AllocateDevice(kWorkspaceBytes);
  if (!workspace.ok()) {
    api.destroy(handle);
    return nullptr;
  }
  return std::make_unique<CublasLt>(runtime, api, handle, *workspace);
}

}  // namespace heddle::kernels::cuda
