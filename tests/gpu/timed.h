// Parts that the timings of gpu_check share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/sizes.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {

// Microseconds of one call of `op`, by the device's clock.
inline double Time(kernels::Device& device, int32_t repeats,
                   const std::function<void(kernels::Ops&, int32_t)>& op) {
  auto run = [&] {
    Must(device.Launch([&](kernels::Ops& ops) {
      for (int32_t i = 0; i < repeats; ++i) op(ops, i);
    }));
    return static_cast<double>(Must(device.Finish()).run_ns) * 1e-3 / repeats;
  };
  if (IsRehearsal()) return run();
  run();  // chooses algorithms; the second makes the graph
  run();
  std::vector<double> times = {run(), run(), run(), run(), run()};
  std::sort(times.begin(), times.end());
  return times[2];
}

// Rows of random numbers, some of which repeat: millions more random numbers would change nothing
// but the time to make them.
inline kernels::test::Matrix RepeatedRows(int64_t rows, int64_t cols) {
  constexpr int64_t kDistinct = 32;
  kernels::test::Random random(2);
  auto distinct = kernels::test::Matrix::RandomOf(random, std::min(rows, kDistinct), cols);
  kernels::test::Matrix all(rows, cols);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(distinct.at(r % kDistinct, 0), cols, all.at(r, 0));
  return all;
}

}  // namespace heddle::gpu
