#include "kernels/cuda/linear/library_matmul.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/runtime/trial_timer.h"

namespace heddle::kernels::cuda {
namespace {

// The version of the headers: another version's structures may differ.
#define HEDDLE_TEXT(macro) HEDDLE_TEXT_OF(macro)
#define HEDDLE_TEXT_OF(words) #words
constexpr const char* kFile = "libcublasLt.so." HEDDLE_TEXT(CUBLAS_VER_MAJOR);
#undef HEDDLE_TEXT
#undef HEDDLE_TEXT_OF

constexpr int kMaxCandidates = 8;
constexpr size_t kTiledVersion = 120900;  // first version of the library with tile scales

// The functions that we use, looked up by name.
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

// Operands of one product in our row-major terms: out [n, m] = x [n, k] times W [m, k] transposed.
struct Operands {
  int64_t m = 0, n = 0, k = 0;
  cudaDataType_t type = CUDA_R_16BF;  // of W and x
  const void* w = nullptr;
  const void* x = nullptr;
  int64_t w_stride = 0, x_stride = 0;  // elements
  cudaDataType_t out_type = CUDA_R_16BF;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool adds = false;
  // The scales that are applied: of rows, w [m] and x [n], or of tiles, see CodeProduct.
  enum class Scales : uint8_t { kNone, kRows, kTiles };
  Scales scales = Scales::kNone;
  const float* w_scales = nullptr;
  const float* x_scales = nullptr;

  bool is_integer() const { return type == CUDA_R_8I; }
  // With tile scales sums go to F32 regularly anyway.
  bool is_fast() const { return type == CUDA_R_8F_E4M3 && scales != Scales::kTiles; }
  int64_t out_bytes() const { return out_type == CUDA_R_16BF ? 2 : 4; }
  // Alignment of the rows of out, up to what matters.
  uint32_t OutAlignment() const {
    const auto all =
        reinterpret_cast<uintptr_t>(out) | static_cast<uintptr_t>(out_stride * out_bytes());
    return static_cast<uint32_t>(std::min<uintptr_t>(all & (~all + 1), 16));
  }
};

Operands OperandsOf(const LinearParams& p) {
  return {.m = p.weight.rows,
          .n = p.x.rows,
          .k = p.weight.cols,
          .w = p.weight.data,
          .x = p.x.data,
          .w_stride = p.weight.row_bytes / 2,
          .x_stride = p.x.stride,
          .out_type = p.out_f32 ? CUDA_R_32F : CUDA_R_16BF,
          .out = p.out.data,
          .out_stride = p.out.stride,
          .adds = p.epilogue == Epilogue::kAdd};
}

// The operands of a product of codes. The padding of rows is zeros on both sides.
Operands OperandsOf(const CodeProduct& p) {
  const bool is_f8 = IsF8(p.weight.layout);
  return {.m = p.weight.rows,
          .n = p.n,
          .k = p.weight.row_bytes,
          .type = is_f8 ? CUDA_R_8F_E4M3 : CUDA_R_8I,
          .w = p.weight.data,
          .x = p.x.codes,
          .w_stride = p.weight.row_bytes,
          .x_stride = p.x.row_bytes,
          .out_type = is_f8 ? CUDA_R_32F : CUDA_R_32I,
          .out = p.out.data,
          .out_stride = p.out.stride};
}

// The library's description of products of one shape, whatever their addresses. It is column-major:
// our row-major out [n, m] is its [m, n], the product of W (transposed) and x; for codes it knows
// no other form.
class Product {
 public:
  // `multiprocessors`: number to use; 0: all.
  Product(const Api& api, const Operands& p, int32_t multiprocessors) : api_(api) {
    const auto compute = p.is_integer() ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F;
    const auto m = static_cast<uint64_t>(p.m);
    const auto n = static_cast<uint64_t>(p.n);
    const auto k = static_cast<uint64_t>(p.k);
    good_ = api.desc_create(&desc, compute, p.is_integer() ? CUDA_R_32I : CUDA_R_32F) ==
                CUBLAS_STATUS_SUCCESS &&
            Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) &&
            (multiprocessors == 0 || Set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors)) &&
            (!p.is_fast() || Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1})) &&
            (p.scales == Operands::Scales::kNone || SetScaleModes(p)) &&
            api.layout_create(&w, p.type, k, m, p.w_stride) == CUBLAS_STATUS_SUCCESS &&
            api.layout_create(&x, p.type, k, n, p.x_stride) == CUBLAS_STATUS_SUCCESS &&
            api.layout_create(&out, p.out_type, m, n, p.out_stride) == CUBLAS_STATUS_SUCCESS;
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

  // Makes the operands' scales those of the next product. False: the library has no such scales.
  bool Use(const Operands& p) {
    if (p.scales == Operands::Scales::kNone) return true;
#if CUBLAS_VERSION >= 120900
    const bool same = p.w_scales == w_scales_ && p.x_scales == x_scales_;
    if (same) return true;
    w_scales_ = p.w_scales;
    x_scales_ = p.x_scales;
    return Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.w_scales)) &&
           Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.x_scales));
#else
    return false;
#endif
  }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;

 private:
  template <typename T>
  bool Set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    return api_.desc_set(desc, attribute, &value, sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  }

  bool SetScaleModes([[maybe_unused]] const Operands& p) const {
#if CUBLAS_VERSION >= 120900
    const bool tiled = p.scales == Operands::Scales::kTiles;
    const int32_t rows = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int32_t w_mode = tiled ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : rows;
    const int32_t x_mode = tiled ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : rows;
    return Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w_mode) &&
           Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode);
#else
    return false;
#endif
  }

  const Api& api_;
  bool good_ = false;
  [[maybe_unused]] const float* w_scales_ = nullptr;  // that the description has
  [[maybe_unused]] const float* x_scales_ = nullptr;
};

// The descriptions of the products met so far: making one is a dozen calls of the library, which a
// step of an FP8 model would pay for each of its products.
class Products {
 public:
  explicit Products(const Api& api) : api_(api) {}

  // nullptr: the library does not take such a product. Valid until the next call.
  const Product* Find(const Operands& p, int32_t multiprocessors) {
    const Shape shape = {p.type,     p.out_type, p.m,          p.n,      p.k,
                         p.w_stride, p.x_stride, p.out_stride, p.scales, multiprocessors};
    auto found = known_.find(shape);
    if (found == known_.end()) {
      if (known_.size() == kMost) known_.clear();
      found = known_.emplace(shape, std::make_unique<Product>(api_, p, multiprocessors)).first;
    }
    Product& product = *found->second;
    return product.good() && product.Use(p) ? &product : nullptr;
  }

 private:
  // Prompts come in any number of rows.
  static constexpr size_t kMost = 4096;
  using Shape = std::tuple<int, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                           Operands::Scales, int32_t>;

  const Api& api_;
  std::map<Shape, std::unique_ptr<Product>> known_;
};

class CublasLt final : public LibraryMatmul {
 public:
  CublasLt(Runtime& runtime, const Api& api, cublasLtHandle_t handle, void* workspace)
      : runtime_(runtime), api_(api), handle_(handle), workspace_(workspace), products_(api_) {
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
    return Enqueue(OperandsOf(params), stream);
  }

  bool TakesCodes(const DeviceWeight& weight) const override {
    const DeviceInfo& info = runtime_.info();
    if (weight.rows % 16 != 0) return false;
    switch (weight.layout) {
      case WeightLayout::kInt8Row:
        return true;
      case WeightLayout::kF8Row:
        return info.major * 10 + info.minor >= 89;
      case WeightLayout::kF8Block:
        return info.major == 9 && CUBLAS_VERSION >= kTiledVersion &&
               api_.version() >= kTiledVersion;
      default:
        return false;
    }
  }

  bool MultiplyCodes(const CodeProduct& product, Stream stream) override {
    Operands operands = OperandsOf(product);
    if (operands.is_integer()) return false;
    operands.out_type = product.out_f32 ? CUDA_R_32F : CUDA_R_16BF;
    operands.adds = product.adds;
    const bool tiled = product.weight.layout == WeightLayout::kF8Block;
    operands.scales = tiled ? Operands::Scales::kTiles : Operands::Scales::kRows;
    operands.w_scales = tiled ? product.weight.tile_scales : product.weight.row_factors;
    operands.x_scales = product.x.scales;
    return Enqueue(operands, stream);
  }

  bool SumCodes(const CodeProduct& product, Stream stream) override {
    return product.weight.layout != WeightLayout::kF8Block && Enqueue(OperandsOf(product), stream);
  }

 private:
  // Types of W and out, m, k, rows of x up to one of RowSteps, scales, alignment of out,
  // multiprocessors.
  using Key = std::tuple<int, int, int64_t, int64_t, int64_t, Operands::Scales, uint32_t, int32_t>;

  bool Enqueue(const Operands& p, Stream stream) {
    const Product* known = products_.Find(p, multiprocessors_);
    if (known == nullptr) return false;
    const Product& product = *known;
    stream_ = static_cast<cudaStream_t>(stream->stream);
    const Key key = {p.type,           p.out_type,      p.m, p.k, RowStepFrom(p.n), p.scales,
                     p.OutAlignment(), multiprocessors_};
    const auto found = chosen_.find(key);
    if (found != chosen_.end()) {
      return found->second && (Run(product, p, *found->second, p.out) || RunAny(product, p));
    }
    const Choice choice = Choose(product, p);
    if (choice.is_final) chosen_.emplace(key, choice.algorithm);
    return choice.algorithm && Run(product, p, *choice.algorithm, p.out);
  }

  bool Run(const Product& product, const Operands& p, const cublasLtMatmulAlgo_t& algorithm,
           void* out) {
    const float one = 1.0f, beta = p.adds ? 1.0f : 0.0f;
    const int32_t integer_one = 1, integer_zero = 0;
    const void* alpha = p.is_integer() ? static_cast<const void*>(&integer_one) : &one;
    const void* rest = p.is_integer() ? static_cast<const void*>(&integer_zero) : &beta;
    return api_.matmul(handle_, product.desc, alpha, p.w, product.w, p.x, product.x, rest, out,
                       product.out, out, product.out, &algorithm, workspace_,
                       static_cast<size_t>(kWorkspaceBytes), stream_) == CUBLAS_STATUS_SUCCESS;
  }

  // Takes the library's first proposal, because choices for other numbers of rows do not fit.
  bool RunAny(const Product& product, const Operands& p) {
    Proposals results;
    return Propose(product, p, &results) > 0 && Run(product, p, results[0].algo, p.out);
  }

  using Proposals = std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates>;

  int Propose(const Product& product, const Operands& p, Proposals* results) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (api_.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      api_.preference_set(preference, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kWorkspaceBytes));
    // Rows of x and of out may begin anywhere; the library would assume an alignment of 256 bytes.
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{16});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.OutAlignment());
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.OutAlignment());
    int count = 0;
    const cublasStatus_t status =
        api_.heuristic(handle_, product.desc, product.w, product.x, product.out, product.out,
                       preference, kMaxCandidates, results->data(), &count);
    api_.preference_destroy(preference);
    return status == CUBLAS_STATUS_SUCCESS ? count : 0;
  }

  struct Choice {
    std::optional<cublasLtMatmulAlgo_t> algorithm;  // nullopt: none runs
    bool is_final = true;  // false: others were not tried for want of memory
  };

  // The fastest of the proposals, timed into separate memory: a product that adds would add again
  // with every run. Without room for that, the first proposal.
  Choice Choose(const Product& product, const Operands& p) {
    Proposals results;
    const int count = Propose(product, p, &results);
    if (count == 0) return {};
    const int64_t out_bytes = p.n * p.out_stride * p.out_bytes();
    const int64_t bytes = out_bytes + TrialTimer::kColdBytes;
    absl::StatusOr<void*> scratch = runtime_.AllocateDevice(bytes);
    if (!scratch.ok()) return {results[0].algo, false};
    void* cold = static_cast<uint8_t*>(*scratch) + out_bytes;
    std::optional<cublasLtMatmulAlgo_t> best;
    float best_ms = std::numeric_limits<float>::infinity();
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulAlgo_t& algorithm = results[static_cast<size_t>(i)].algo;
      const float ms = Time(product, p, algorithm, *scratch, cold);
      if (ms >= best_ms) continue;
      best = algorithm;
      best_ms = ms;
    }
    runtime_.FreeDevice(*scratch, bytes);
    return {best};
  }

  // The shortest time in milliseconds of some runs after a first one, as TrialTimer measures, on
  // any stream; infinity if it does not run.
  float Time(const Product& product, const Operands& p, const cublasLtMatmulAlgo_t& algorithm,
             void* out, void* cold) {
    constexpr float kNever = std::numeric_limits<float>::infinity();
    if (!Run(product, p, algorithm, out)) return kNever;
    float best = kNever;
    for (int i = 0; i < TrialTimer::kRuns; ++i) {
      float ms = kNever;
      cudaMemsetAsync(cold, 0, static_cast<size_t>(TrialTimer::kColdBytes), stream_);
      cudaEventRecord(events_[0], stream_);
      if (!Run(product, p, algorithm, out)) return kNever;
      cudaEventRecord(events_[1], stream_);
      if (cudaEventSynchronize(events_[1]) != cudaSuccess ||
          cudaEventElapsedTime(&ms, events_[0], events_[1]) != cudaSuccess) {
        return kNever;
      }
      best = std::min(best, ms);
    }
    return best;
  }

  Runtime& runtime_;
  Api api_;
  cublasLtHandle_t handle_;
  void* workspace_;  // [kWorkspaceBytes] on the device
  Products products_;
  cudaStream_t stream_ = nullptr;  // of the current product
  int32_t multiprocessors_ = 0;    // number to use; 0: all
  cudaEvent_t events_[2] = {};
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> chosen_;  // nullopt: none exists
};

}  // namespace

absl::StatusOr<std::unique_ptr<LibraryMatmul>> LibraryMatmul::Open(Runtime& runtime) {
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(kFile, " cannot be loaded: ", dlerror()));
  }
  Api api;
  if (!api.Find(library)) {
    return absl::FailedPreconditionError(absl::StrCat(kFile, " lacks functions of this version"));
  }
  cublasLtHandle_t handle = nullptr;
  if (cublasStatus_t status = api.create(&handle); status != CUBLAS_STATUS_SUCCESS) {
    return absl::InternalError(
        absl::StrCat(kFile, " does not work on this device: cublasLtCreate returned ", status));
  }
  absl::StatusOr<void*> workspace = runtime.AllocateDevice(kWorkspaceBytes);
  if (!workspace.ok()) {
    api.destroy(handle);
    return workspace.status();
  }
  return std::make_unique<CublasLt>(runtime, api, handle, *workspace);
}

}  // namespace heddle::kernels::cuda
