// Ranks on emulated GPUs, whatever way they meet, are alike in these: results of sums and gathers,
// and how steps end that go wrong.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
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

// Runs the same in two groups' lives, and compares the bits with those of ranks that share memory.
inline void CheckSameResults(int32_t world, const GpusOptions& options) {
  std::vector<Matrix> expected;
  {
    Gpus gpus(world);
    expected = ResultsOf(gpus, world);
  }
  Gpus gpus(world, options);
  for (int epoch = 0; epoch < 2; ++epoch) {  // of a new group, too
    const std::vector<Matrix> found = ResultsOf(gpus, world);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      INFO(world << " ranks, epoch " << epoch << ", result " << i);
      CHECK(SameBits(found[i], expected[i]));
    }
    gpus.Join();
  }
}

// A gather of random columns, `times` times in a step, to rank `root` or, with -1, to all.
struct ColumnsCase {
  std::vector<int32_t> borders;  // of the ranks' columns; a rank may have none
  int64_t rows = 1;
  int32_t root = -1;
  int times = 1;
  bool has_empty_part = false;  // a rank without columns gives an address all the same
};
inline void CheckColumns(Gpus& gpus, Random& random, const ColumnsCase& columns) {
  const std::vector<int32_t>& borders = columns.borders;
  const size_t world = borders.size() - 1;
  const auto is_without = [&](size_t rank) {
    return columns.root >= 0 && rank != static_cast<size_t>(columns.root);
  };
  std::vector<Matrix> parts, wholes;
  for (size_t r = 0; r < world; ++r) {
    parts.push_back(Matrix::RandomOf(random, columns.rows, borders[r + 1] - borders[r]));
    wholes.emplace_back(columns.rows, borders.back(), /*pad=*/2);
  }
  gpus.RunWell([&](int32_t r, Ops& ops) {
    const auto rank = static_cast<size_t>(r);
    Tensor part = parts[rank].tensor();
    if (part.cols == 0) part.data = columns.has_empty_part ? parts[0].tensor().data : nullptr;
    for (int i = 0; i < columns.times; ++i) {
      ops.GatherColumns({.part = part,
                         .borders = borders,
                         .whole = is_without(rank) ? Tensor{} : wholes[rank].tensor(),
                         .root = columns.root});
    }
  });
  for (size_t r = 0; r < world; ++r) {
    if (is_without(r)) continue;
    int64_t wrong = 0;
    for (int64_t t = 0; t < columns.rows; ++t) {
      for (size_t from = 0; from < world; ++from) {
        for (int32_t c = borders[from]; c < borders[from + 1]; ++c) {
          wrong += wholes[r](t, c) != parts[from](t, c - borders[from]) ? 1 : 0;
        }
      }
    }
    INFO(columns.rows << " rows, root " << columns.root << ", rank " << r);
    CHECK(wrong == 0);
    CHECK(wholes[r].GapsIntact());
  }
}

// The statuses of two ranks behind a step in which rank 1 has a sum of other rows or, with
// `other_op`, a gather.
inline std::vector<absl::Status> RunDifferentOps(const GpusOptions& options, bool other_op) {
  Gpus gpus(2, options);
  Matrix two(2, 64), three(3, 64), whole(2, 128);
  return gpus.Run([&](int32_t r, Ops& ops) {
    const Tensor x = r == 1 && !other_op ? three.tensor() : two.tensor();
    if (r == 1 && other_op) {
      ops.GatherColumns(
          {.part = x, .borders = std::vector<int32_t>{0, 64, 128}, .whole = whole.tensor()});
    } else {
      ops.AllReduce({.partial = x, .residual = x});
    }
  });
}

// Aborts a group of two ranks, or stages, of which one waits, and forms it anew.
inline void CheckThatLostGroupsMeetAgain(const GpusOptions& options) {
  Gpus gpus(2, options);
  std::vector<Matrix> rows(2, Matrix(2, 64));
  const auto meet = [&](int32_t r, Ops& ops) {
    const Tensor x = rows[static_cast<size_t>(r)].tensor();
    if (!options.are_stages) return ops.AllReduce({.partial = x, .residual = x});
    if (r == 0) return ops.RecvRows(x, 1);
    ops.SendRows(x, 0);
  };
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    if (r == 1) return gpus.communicator(1).Abort(absl::UnavailableError("rank 1 is lost"));
    meet(r, ops);
  });
  CHECK(statuses[0].message() == "rank 1 is lost");
  gpus.Join();
  gpus.RunWell(meet);
}

// Enqueues a sum on the second of two GPUs, on which nothing runs, and waits until it is named.
// REQUIRES: options.are_late; 0 < options.rank_wait_ms.
inline void CheckThatHungGpuIsNamed(const GpusOptions& options) {
  Gpus gpus(2, options);
  Matrix x(2, 64);
  const absl::Status launched = gpus.device(1).Launch(
      [&](Ops& ops) { ops.AllReduce({.partial = x.tensor(), .residual = x.tensor()}); });
  REQUIRE(launched.ok());
  while (gpus.communicator(1).status().ok()) std::this_thread::yield();
  const std::string message(gpus.communicator(1).status().message());
  INFO(message);
  CHECK(message.find("cuda:1") == 0);
  const std::string limit = std::to_string(options.rank_wait_ms) + " ms: it hangs";
  CHECK(message.find("rank 1, has not come to op 1 within " + limit) != std::string::npos);
}

}  // namespace heddle::kernels::test
