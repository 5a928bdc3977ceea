#include "scheduler/pipeline.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace heddle::scheduler {

namespace {

// Chunks for each stage: n stages stand still for less than 1 / (1 + 8) of the time while they fill
// and run dry.
constexpr int64_t kChunksPerStage = 8;
// With so many it is less than 1 / (1 + 32), and more of them gain nothing.
constexpr int64_t kMostChunksPerStage = 32;

}  // namespace

int32_t PipelineRows(int64_t prompt_rows, int32_t stages) {
  const int64_t chunks = kChunksPerStage * stages;
  const int64_t rows = std::min<int64_t>((prompt_rows + chunks - 1) / chunks, int64_t{1} << 30);
  return std::max(kLeastPipelineRows, static_cast<int32_t>(rows));
}

double PipelineChunks(double rows_us, double step_us, int32_t stages) {
  const auto least = static_cast<double>(kChunksPerStage * stages);
  const auto most = static_cast<double>(kMostChunksPerStage * stages);
  // m chunks take m * step_us more, and the stages fill in (stages - 1) * rows_us / m: the sum is
  // least where both are equal.
  const double filling_us = (stages - 1) * rows_us;
  if (step_us * most * most <= filling_us) return most;
  return std::max(least, std::sqrt(filling_us / step_us));
}

void KeepGroup(int32_t in_flight, int32_t stages, std::vector<Sequence*>* decodes) {
  const auto ready = static_cast<int32_t>(decodes->size());
  const int32_t most = (ready + in_flight + stages - 1) / stages;
  if (ready <= most) return;
  // The others' places go to those whose last draw is at most `last`; of equal ones to the more
  // urgent.
  const int32_t places = most - 1;
  std::vector<uint64_t> steps;
  steps.reserve(decodes->size());
  for (const Sequence* sequence : std::span(*decodes).subspan(1)) {
    steps.push_back(sequence->drawn_step);
  }
  std::nth_element(steps.begin(), steps.begin() + places, steps.end());
  const uint64_t last = steps[static_cast<size_t>(places)];
  int64_t left = places - std::count_if(steps.begin(), steps.end(),
                                        [last](uint64_t step) { return step < last; });
  const Sequence* first = decodes->front();
  std::erase_if(*decodes, [&](Sequence* sequence) {
    const uint64_t step = sequence->drawn_step;
    if (sequence == first || step < last || (step == last && left-- > 0)) return false;
    sequence->num_planned = 0;
    return true;
  });
}

}  // namespace heddle::scheduler
