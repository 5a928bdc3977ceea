// The rates that the kernels of each weight format reach with a panel and a tile of rows that lie
// in L1: the share of the peak of the level's instruction for every size of tile, one thread. A
// step of few rows waits for memory as well (kernels_bench), so this is its upper limit.
//
//   tiles_bench [LEVEL [FORMAT...]]      tiles_bench avx2 q4_0 q8_0
//
// The least of some hundred runs counts, so that other programs disturb little; the peak is
// measured before and after each format, and the greater counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/block_codes.h"
#include "kernels/cpu/level_tables.h"
#include "kernels/cpu/limits.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int64_t kColumns = 512;
constexpr int kRuns = 200;
constexpr double kRunSeconds = 50e-6;

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return std::move(value).value();
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

// Memory for kernels, at a line of a cache.
class Bytes {
 public:
  explicit Bytes(int64_t size) : storage_(static_cast<size_t>(size) + 64) {}
  uint8_t* data() {
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - at % 64) % 64;
  }

 private:
  std::vector<uint8_t> storage_;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename F>
double LeastSeconds(const F& body) {
  const double before = Now();
  body();
  const int count = 1 + static_cast<int>(kRunSeconds / std::max(Now() - before, 1e-8));
  double least = 1;
  for (int i = 0; i < kRuns; ++i) {
    const double start = Now();
    for (int k = 0; k < count; ++k) body();
    least = std::min(least, (Now() - start) / count);
  }
  return least;
}

const FormatKernels& KernelsOf(DType dtype, const LinearKernels& kernels) {
  const auto format = BlockFormatOf(dtype);
  return format ? kernels.blocks->formats[static_cast<size_t>(*format)]
                : kernels.formats[static_cast<size_t>(dtype)];
}

const TileKernels& TileOf(TileKind kind, const LinearKernels& kernels) {
  if (kind == TileKind::kFloat) return kernels.tiles[0];
  if (kind == TileKind::kBf16) return kernels.bf16_tile;
  const bool shared = kind == TileKind::kInt8Shared || kind == TileKind::kInt8Sums16;
  return shared ? kernels.blocks->shared_tile : kernels.tiles[1];
}

double Peak(TileKind kind, LimitMeter& meter) {
  if (kind == TileKind::kFloat) return meter.FmaGflopPerSecond();
  return kind == TileKind::kBf16 ? meter.Bf16GflopPerSecond() : meter.Int8GopPerSecond();
}

class FormatBench {
 public:
  FormatBench(DType dtype, const LinearKernels& kernels)
      : name_(Info(dtype).name),
        kernels_(kernels),
        format_(KernelsOf(dtype, kernels)),
        tile_(TileOf(format_.tile, kernels)),
        panel_(format_.panel_bytes(kColumns)),
        expanded_(format_.expand_tiles > 0 ? format_.expanded_bytes(kColumns) : 0) {
    const int64_t row_bytes = RowBytes(dtype, kColumns);
    std::vector<uint8_t> source(static_cast<size_t>(row_bytes * kernels.panel_rows));
    std::mt19937 random(1);
    // Denormal products take a hundred times as long, so scales and weights are not tiny.
    const auto format = BlockFormatOf(dtype);
    const bool has_floats =
        format ? kBlockTraits[static_cast<size_t>(*format)].scale != ScaleType::kF16
               : dtype <= DType::kBF16;
    const uint8_t least = has_floats ? 0x30 : 0;
    for (uint8_t& byte : source) byte = static_cast<uint8_t>((random() & 0x3b) | least);
    format_.pack(source.data(), row_bytes, kernels.panel_rows, kColumns, panel_.data());
    if (format_.expand_tiles > 0) format_.expand(panel_.data(), kColumns, expanded_.data());
  }

  void Run(LimitMeter& meter) {
    const double before = Peak(format_.tile, meter);
    std::vector<double> packed, expanded;
    for (int32_t i = 0; i < tile_.num_sizes; ++i) {
      packed.push_back(Rate(format_.multiply[i], panel_.data(), i));
      if (format_.expand_tiles == 0) continue;
      expanded.push_back(Rate(format_.multiply_expanded[i], expanded_.data(), i));
    }
    const double peak = std::max(before, Peak(format_.tile, meter));
    Print("packed", packed, peak);
    if (expanded.empty()) return;
    const double seconds =
        LeastSeconds([&] { format_.expand(panel_.data(), kColumns, expanded_.data()); });
    Print("expanded", expanded, peak);
    const double of_row = 2e-9 * static_cast<double>(kColumns * kernels_.panel_rows) / peak;
    std::printf("%-10s expanding takes as long as %.1f rows at the peak\n", "", seconds / of_row);
  }

 private:
  using Multiply = std::remove_reference_t<decltype(FormatKernels::multiply[0])>;

  // 1e9 operations a second.
  double Rate(Multiply multiply, const uint8_t* weights, int32_t size) {
    const int32_t rows = tile_.sizes[size];
    std::vector<float> x(static_cast<size_t>(rows * kColumns));
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    Bytes tile(rows * kColumns * 4);  // no kind is larger
    Bytes sums(rows * kernels_.panel_rows * 4);
    tile_.prepare(x.data(), kColumns, rows, rows, kColumns, tile.data());
    auto* out = reinterpret_cast<float*>(sums.data());
    const double seconds = LeastSeconds([&] {
      multiply(weights, tile.data(), kColumns, out, {weights, kColumns / 32});
    });
    return 2e-9 * static_cast<double>(rows * kColumns * kernels_.panel_rows) / seconds;
  }

  void Print(const char* what, const std::vector<double>& rates, double peak) const {
    std::printf("%-10s %-9s", what[0] == 'p' ? name_.c_str() : "", what);
    for (size_t i = 0; i < rates.size(); ++i) {
      std::printf("  %2d rows %3.0f %%", tile_.sizes[i], 100 * rates[i] / peak);
    }
    std::printf("\n");
  }

  std::string name_;
  const LinearKernels& kernels_;
  const FormatKernels& format_;
  const TileKernels& tile_;
  Bytes panel_;
  Bytes expanded_;
};

int Run(int argc, char** argv) {
  CpuDeviceOptions options;
  options.num_threads = 1;
  if (argc > 1) options.isa = argv[1];
  const Isa isa = OrDie(ResolveIsa(options.isa, DetectCpuFeatures()));
  LimitMeter meter = OrDie(LimitMeter::Create(options));
  const LinearKernels& kernels = *TableFor(isa).linear;
  const MachineLimits limits = meter.All();
  std::printf("%s: F32 %.0f GFLOP/s, BF16 %.0f GFLOP/s, int8 %.0f GOP/s\n", Name(isa),
              limits.fma_gflop_s, limits.bf16_gflop_s, limits.int8_gop_s);
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string_view name = Info(dtype).name;
    const bool named = std::find(argv + std::min(argc, 2), argv + argc, name) != argv + argc;
    if (argc > 2 && !named) continue;
    if (KernelsOf(dtype, kernels).multiply_panels != nullptr) continue;  // by tiles of registers
    FormatBench(dtype, kernels).Run(meter);
  }
  return 0;
}

}  // namespace
}  // namespace heddle::kernels::cpu

int main(int argc, char** argv) { return heddle::kernels::cpu::Run(argc, argv); }
