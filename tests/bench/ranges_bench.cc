// The cost of summing a product's columns in eight ranges (WeightSource::sum_borders): the layers
// of TinyLlama whose inputs ranks divide, whole and in ranges by turns, so that other programs on
// the machine disturb both alike. Prints medians, and the median of the ratios of neighbours.
//
//   ranges_bench [threads] [seconds for each line]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "kernels/device.h"

namespace {

using heddle::kernels::Device;
using heddle::kernels::DType;
using heddle::kernels::PackedWeight;
using heddle::kernels::WeightSource;

// Copies of a matrix are used in turn, and together far exceed every cache.
constexpr int64_t kRotationBytes = int64_t{128} << 20;
constexpr int64_t kRanges = 8;
constexpr int64_t kRows = 2048;

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return std::move(value).value();
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

using Copies = std::vector<std::unique_ptr<PackedWeight>>;

Copies CopiesOf(Device& device, const WeightSource& source) {
  Copies copies;
  const int64_t bytes = source.rows * heddle::kernels::RowBytes(source.dtype, source.cols);
  for (int64_t i = 0; i < kRotationBytes / bytes + 1; ++i) {
    copies.push_back(OrDie(device.Pack({&source, 1})));
  }
  return copies;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(Device& device, double seconds) : device_(device), seconds_(seconds) {}

  void Run(DType dtype, int64_t cols) {
    std::vector<uint8_t> bytes(static_cast<size_t>(kRows * heddle::kernels::RowBytes(dtype, cols)));
    std::mt19937 random(1);
    // No huge exponents, and for floats no tiny ones.
    const uint8_t least = dtype <= DType::kBF16 ? 0x30 : 0;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((random() & 0x3b) | least);
    WeightSource source = {bytes.data(), dtype, kRows, cols, "bench"};
    const Copies whole = CopiesOf(device_, source);
    std::vector<int64_t> borders;
    const int64_t block = std::max(32, heddle::kernels::Info(dtype).block_elements);
    for (int64_t i = 0; i <= kRanges; ++i) {
      borders.push_back((cols / block * i + kRanges - 1) / kRanges * block);
    }
    source.sum_borders = borders;
    const Copies in_ranges = CopiesOf(device_, source);
    for (const int64_t n : {1, 2, 8, 32, 512}) Compare(whole, in_ranges, n);
  }

 private:
  double Time(const Copies& copies, std::vector<float>& x, std::vector<float>& out, int64_t n) {
    const PackedWeight& weight = *copies[next_++ % copies.size()];
    const auto begin = std::chrono::steady_clock::now();
    (void)device_.Run([&](heddle::kernels::Ops& ops) {
      ops.Linear({.x = {x.data(), n, weight.cols, weight.cols},
                  .weight = &weight,
                  .epilogue = heddle::kernels::Epilogue::kAdd,
                  .out = {out.data(), n, kRows, kRows}});
    });
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    return time.count();
  }

  void Compare(const Copies& whole, const Copies& in_ranges, int64_t n) {
    std::vector<float> x(static_cast<size_t>(n * whole[0]->cols), 0.01f);
    std::vector<float> out(static_cast<size_t>(n * kRows), 0.0f);
    std::vector<double> times[2], ratios;
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds_)) {
      const bool whole_first = times[0].size() % 2 == 0;
      const double first = Time(whole_first ? whole : in_ranges, x, out, n);
      const double second = Time(whole_first ? in_ranges : whole, x, out, n);
      times[0].push_back(whole_first ? first : second);
      times[1].push_back(whole_first ? second : first);
      ratios.push_back(times[1].back() / times[0].back());
    }
    std::printf("%8lld %6lld %12.1f %12.1f %8.3f\n", static_cast<long long>(whole[0]->cols),
                static_cast<long long>(n), Median(times[0]), Median(times[1]), Median(ratios));
  }

  Device& device_;
  const double seconds_;
  size_t next_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto threads = static_cast<int32_t>(argc > 1 ? std::strtol(argv[1], nullptr, 10) : 0);
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 1.0;
  auto device = OrDie(heddle::kernels::CreateCpuDevice({.num_threads = threads}));
  std::printf("%s\n", device->description().c_str());
  Bench bench(*device, seconds);
  for (const DType dtype : {DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kBF16, DType::kF32}) {
    std::printf("%s\n%8s %6s %12s %12s %8s\n",
                std::string(heddle::kernels::Info(dtype).name).c_str(), "columns", "rows",
                "whole us", "ranges us", "ratio");
    for (const int64_t cols : {2048, 5632}) bench.Run(dtype, cols);
  }
  return 0;
}
