// The fastest of several ways of making products of many rows, by shape, as found on this device.
// Rates differ between devices by more than linear_choice.h can know, so a device that tunes
// (CudaDeviceOptions::tunes) times the ways when it first meets a shape.
//
// A shape is a weight's layout and dimensions, and rows of x up to the next of RowSteps.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/linear/linear_params.h"

namespace heddle::kernels::cuda {

class LinearWays {
 public:
  struct Shape {
    WeightLayout layout = WeightLayout::kBF16;
    int64_t rows = 0, cols = 0;  // of the weight
    int64_t n = 0;               // rows of x
    bool gated = false;
    bool out_f32 = false;
  };
  static Shape ShapeOf(const LinearParams& params);

  struct Timed {
    LinearWay way = LinearWay::kPlain;
    int64_t ns = 0;  // below 0: the device refused it
  };

  // nullopt: the shape has not been met yet.
  std::optional<LinearWay> Fastest(const Shape& shape) const;
  // The first way is the predicted one: it stays unless another one is faster by more than timings
  // scatter. REQUIRES: not met yet; `timed` has a way that ran.
  void Learn(const Shape& shape, std::vector<Timed> timed);

  // Lines such as "4-bit 28672 x 4096 gated, 65 to 128 rows: mixed 34.1 us, dequantised in memory
  // 75.0 us"; the chosen way comes first.
  std::vector<std::string> Describe() const;

 private:
  // Layout, rows, cols, gated, out_f32, most rows of x.
  using Key = std::tuple<WeightLayout, int64_t, int64_t, bool, bool, int64_t>;
  static Key KeyOf(const Shape& shape);

  std::map<Key, std::vector<Timed>> met_;  // the chosen way first
};

}  // namespace heddle::kernels::cuda
