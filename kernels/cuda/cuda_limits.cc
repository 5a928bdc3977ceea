#include "kernels/cuda/cuda_limits.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int32_t kRepeats = 20;
constexpr int32_t kRuns = 3;  // the best counts: others were disturbed

// Seconds of one call of `enqueue`, averaged over many in a row.
absl::StatusOr<double> SecondsOf(Runtime& runtime, const std::function<absl::Status()>& enqueue) {
  using Clock = std::chrono::steady_clock;
  HEDDLE_RETURN_IF_ERROR(enqueue());
  HEDDLE_RETURN_IF_ERROR(runtime.Synchronize());
  double best = 0;
  for (int32_t run = 0; run < kRuns; ++run) {
    const auto start = Clock::now();
    for (int32_t i = 0; i < kRepeats; ++i) HEDDLE_RETURN_IF_ERROR(enqueue());
    HEDDLE_RETURN_IF_ERROR(runtime.Synchronize());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / kRepeats;
    best = run == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

// Memory to measure in.
class Arena {
 public:
  Arena(Runtime& runtime, const Workspace& workspace) : runtime_(runtime), space_(workspace) {
    constexpr int64_t kWanted = int64_t{2} << 30;
    const int64_t bytes = std::min(kWanted, runtime.info().total_bytes / 32);
    if (bytes <= workspace.bytes) return;
    absl::StatusOr<void*> own = runtime.AllocateDevice(bytes);
    if (!own.ok()) return;
    own_ = *own;
    space_ = {static_cast<uint8_t*>(own_), bytes};
  }
  ~Arena() {
    if (own_ != nullptr) runtime_.FreeDevice(own_, space_.bytes);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  const Workspace& space() const { return space_; }

 private:
  Runtime& runtime_;
  Workspace space_;
  void* own_ = nullptr;
};

// Fills the memory with numbers from -1 to 1: products of zeros run faster than those of data.
absl::Status FillWithNumbers(Runtime& runtime, const Workspace& workspace) {
  std::vector<uint16_t> numbers(size_t{1} << 18);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = F32ToBF16(2.0f * static_cast<float>((i * 2654435761u >> 8) & 0xFFFF) / 65536 - 1);
  }
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(uint16_t));
  for (int64_t at = 0; at < workspace.bytes; at += bytes) {
    HEDDLE_RETURN_IF_ERROR(runtime.CopyToDevice(workspace.data + at, numbers.data(),
                                                std::min(bytes, workspace.bytes - at)));
  }
  return runtime.Synchronize();
}

// A product of [n, n] x [n, n], three matrices that fit in the memory; small on a device of few
// multiprocessors, such as the emulated one.
LinearParams ProductOf(const Runtime& runtime, const Workspace& workspace) {
  const int64_t multiprocessors = runtime.info().num_multiprocessors;
  int64_t n = multiprocessors >= 16 ? 8192 : 64;
  while (n > 64 && 3 * n * n * 2 > workspace.bytes) n -= 64;
  uint8_t* data = workspace.data;
  LinearParams params;
  params.weight = PackedLayout(WeightLayout::kBF16, n, n);
  params.weight.data = data;
  params.x = {data + 2 * n * n, n, n, n};
  params.out = {data + 4 * n * n, n, n, n};
  return params;
}

}  // namespace

absl::StatusOr<DeviceLimits> MeasureLimits(Runtime& runtime, const Workspace& scratch,
                                           LibraryMatmul* library) {
  const Arena arena(runtime, scratch);
  const Workspace& workspace = arena.space();
  HEDDLE_RETURN_IF_ERROR(FillWithNumbers(runtime, workspace));
  const int64_t half = workspace.bytes / 512 * 256;
  HEDDLE_ASSIGN_OR_RETURN(const double copy_s, SecondsOf(runtime, [&] {
                            return runtime.CopyOnDevice(workspace.data + half, workspace.data,
                                                        half);
                          }));
  const LinearParams product = ProductOf(runtime, workspace);
  HEDDLE_ASSIGN_OR_RETURN(const double product_s, SecondsOf(runtime, [&]() -> absl::Status {
                            if (library != nullptr && library->Multiply(product, runtime.stream()))
                              return absl::OkStatus();
                            return runtime.ToStatus(LaunchLinearTiled(product, runtime.stream()),
                                                    "a large product");
                          }));
  const auto n = static_cast<double>(product.x.rows);
  return DeviceLimits{.read_gb_s = 2.0 * static_cast<double>(half) / copy_s / 1e9,
                      .gops = 2.0 * n * n * n / product_s / 1e9};
}

}  // namespace heddle::kernels::cuda
