// Results of sums and gathers on emulated GPUs of one group, to be compared between ways to meet.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/gpu_group.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

// Each rank's results of a few steps of sums and gathers of several sizes.
inline std::vector<Matrix> ResultsOf(Gpus& gpus, int32_t world) {
  std::vector<Matrix> results;
  Random random(11);
  for (const auto& [rows, dim] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 64}, {40, 1030}, {1, 2048}, {300, 512}}) {
    const std::vector<float> weight = random.Normals(dim);
    const Matrix stream = Matrix::RandomOf(random, rows, dim);
    std::vector<Matrix> parts, targets, normed, wholes;
    for (int32_t r = 0; r < world; ++r) {
      parts.push_back(Matrix::RandomOf(random, rows, dim));
      targets.push_back(stream);
      normed.emplace_back(rows, dim);
      wholes.emplace_back(rows, world * dim);
    }
    std::vector<int32_t> borders = {0};
    for (int32_t r = 0; r < world; ++r)
      borders.push_back(borders.back() + static_cast<int32_t>(dim));
    const int32_t without = rows == 40 ? world - 1 : -1;  // a rank that has no part
    const int32_t root = rows == 1 ? 0 : -1;
    gpus.RunWell([&](int32_t r, Ops& ops) {
      const auto rank = static_cast<size_t>(r);
      for (int i = 0; i < 3; ++i) {  // more than there are places in turn
        AllReduceArgs sum{.residual = targets[rank].tensor()};
        if (r != without) sum.partial = parts[rank].tensor();
        sum.norm =
            NormArgs{.x = sum.residual, .weight = weight.data(), .out = normed[rank].tensor()};
        ops.AllReduce(sum);
        ops.GatherColumns({.part = parts[rank].tensor(),
                           .borders = borders,
                           .whole = root >= 0 && r != root ? Tensor{} : wholes[rank].tensor(),
                           .root = root});
      }
    });
    for (const auto* matrices : {&targets, &normed, &wholes}) {
      results.insert(results.end(), matrices->begin(), matrices->end());
    }
  }
  return results;
}

}  // namespace heddle::kernels::test
