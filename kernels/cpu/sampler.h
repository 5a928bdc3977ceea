// The sample op of the CPU backend: no sort of the vocabulary; candidates of top_k and top_p are
// found by histograms, then only they are ranked; typical_p likewise.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/sample.h"

namespace heddle::kernels::cpu {

struct Candidate {
  float logit;
  float weight;  // exp((logit - max) / temperature)
  int32_t token;
};

// Working memory of one thread, kept from call to call.
struct SamplerScratch {
  std::vector<float> logits;   // [vocab] edited
  std::vector<float> weights;  // [vocab]
  std::vector<Candidate> candidates;
  std::vector<Candidate> border;  // those among which typical_p's last one is
};

void Sample(const SampleArgs& args, const RowKernels& kernels, ThreadPool& pool,
            std::vector<SamplerScratch>& scratch);

}  // namespace heddle::kernels::cpu
