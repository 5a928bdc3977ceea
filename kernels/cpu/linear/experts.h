// Mixtures of experts on the CPU: rows are sorted by expert, and each expert with any rows
// multiplies all of them at once with the linear op's kernels, whose rows do not depend on each
// other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cpu/linear/cpu_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

class CpuStack final : public PackedStack {
 public:
  static absl::StatusOr<std::unique_ptr<CpuStack>> Pack(std::span<const WeightSource> sources,
                                                        int32_t count, const LinearKernels& kernels,
                                                        ThreadPool& pool);

  const CpuWeight& matrix(int32_t index) const { return matrices_[static_cast<size_t>(index)]; }

 private:
  std::unique_ptr<CpuWeight> all_;   // owns the memory
  std::vector<CpuWeight> matrices_;  // [count] views of it
};

// Working memory that is kept between calls.
struct ExpertScratch {
  std::vector<int32_t> begin;  // [count + 1] where each expert's pairs begin among the sorted ones
  std::vector<int32_t> next;   // [count]
  std::vector<int32_t> place;  // [n * top_k] sorted position of a (row, choice) pair; -1: its
                               // expert is not here
  std::vector<int32_t> slots;  // [n * top_k] of the sorted pairs; empty: no row has an adapter
};

void Route(const RouteArgs& args, ThreadPool& pool);

// The device's linear op on rows whose adapters are `slots` (empty: none).
using SlotLinear = std::function<void(const LinearArgs&, std::span<const int32_t> slots)>;

// `slots`: the adapters of the rows of x; empty: none.
void HeadLinear(const HeadLinearArgs& args, std::span<const int32_t> slots,
                const SlotLinear& linear, ThreadPool& pool);
void ExpertMix(const ExpertMixArgs& args, std::span<const int32_t> slots, const SlotLinear& linear,
               ThreadPool& pool, ExpertScratch& scratch);

}  // namespace heddle::kernels::cpu
