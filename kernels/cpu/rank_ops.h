// The ops across ranks of the CPU device: each rank reads the other ranks' parts and adds them
// itself; for ranks that share no memory, sent_rows.h.
//
// Every rank adds all rows (one round), or, with many rows and ranks, its share of them, and then
// copies the others' results (two rounds). Both give the same bits.
// Source: Thakur et al. 2005 (all-reduce as reduce-scatter and all-gather).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/sent_rows.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

class RankOps {
 public:
  RankOps(std::shared_ptr<Communicator> communicator, const RowKernels& rows, ThreadPool& pool)
      : communicator_(std::move(communicator)), rows_(rows), pool_(pool) {
    if (auto* sender = dynamic_cast<SendingCommunicator*>(communicator_.get())) {
      sent_.emplace(*sender, rows, pool);
    }
  }

  using Finish = std::function<void(int64_t row, int32_t thread)>;

  // Calls finish(row, thread) for each row whose result is complete here, behind the sum.
  // `is_begun`: the oldest of those that BeginAllReduce has begun (late_sums.h).
  void AllReduce(const AllReduceArgs& args, bool is_begun, const Finish& finish);
  void BeginAllReduce(const AllReduceArgs& args);
  void GatherColumns(const GatherColumnsArgs& args);

 private:
  // The parts that ranks have given, and the tensor that the sums go to. Ranks without a part keep
  // their place in the tree, with zeros.
  struct Sums {
    const float* parts[kMaxRanks];
    int32_t num_parts;  // 0: no rank has one
    const AllReduceArgs& args;
    Tensor target;
  };
  void SumRow(const Sums& sums, int64_t row) const;

  const std::shared_ptr<Communicator> communicator_;
  const RowKernels& rows_;
  ThreadPool& pool_;
  std::vector<float> zeros_;
  std::optional<SentRows> sent_;  // where ranks share no memory
};

}  // namespace heddle::kernels::cpu
