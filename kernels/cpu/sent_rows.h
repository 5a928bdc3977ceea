// The ops across ranks that share no memory (sending_communicator.h), in the format that goes over
// the wire.
//
// A sum of few bytes, or of two ranks, goes in one round: every rank sends its part to all others
// and adds all parts. Otherwise it goes in two: every rank adds its share of the rows of all parts,
// and sends the sums to all others, which is 2 (world - 1) / world parts in place of world - 1. As
// F32 both give the bits of ranks that share memory. As BF16 parts are rounded before they are
// added, and sums of two rounds once more; every rank uses its own as it sends it, so that all have
// the same.
// Source: Thakur et al. 2005 (all-reduce as reduce-scatter and all-gather).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cpu/row_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/sending_communicator.h"

namespace heddle::kernels::cpu {

class SentRows {
 public:
  using Finish = std::function<void(int64_t row, int32_t thread)>;

  SentRows(SendingCommunicator& communicator, const RowKernels& rows, ThreadPool& pool)
      : communicator_(communicator), rows_(rows), pool_(pool) {}

  // As RankOps::AllReduce.
  void AllReduce(const AllReduceArgs& args, bool is_begun, const Finish& finish);
  // Sums of two rounds are left to AllReduce: what the second one sends, the first one has given.
  void BeginAllReduce(const AllReduceArgs& args);

 private:
  void SumRows(std::span<const void* const> parts, const float* bias, bool adds, Tensor target,
               const Finish& finish);
  bool GoesInTwoRounds(Tensor target) const;
  void AddInTwoRounds(const char* own, const AllReduceArgs& args, Tensor target,
                      const Finish& finish);

  SendingCommunicator& communicator_;
  const RowKernels& rows_;
  ThreadPool& pool_;
  Scratch wire_, sums_, sent_sums_;
  Scratch begun_wire_[2];  // parts of sums that have begun, in turn
  size_t n_begun_ = 0;
  Scratch read_;  // rows that SumRows has in F32
};

// Dense rows of F32 to another stage of a pipeline, and from it, in the format of the wire if
// `stages` is a SendingCommunicator. `wire` is free again on return.
void PostRows(Communicator& stages, Tensor rows, int32_t to, ThreadPool& pool, Scratch* wire);
void TakeRows(Communicator& stages, Tensor rows, int32_t from, ThreadPool& pool, Scratch* wire);

}  // namespace heddle::kernels::cpu
