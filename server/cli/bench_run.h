// Drives an executor step by step for a benchmark, without scheduler or server: prompts of equal
// length, computed in chunks, then decodes of all sequences at once. A pipeline has several steps
// in flight, as scheduler/pipeline.h spreads the work. Thread-safety: none; only this thread uses
// the executor meanwhile.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/in_flight.h"
#include "engine/executor.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"

namespace heddle::server {

struct BenchShape {
  int32_t batch = 1;          // sequences
  int32_t prompt_tokens = 0;  // per sequence, >= 1
  int32_t output_tokens = 0;  // per sequence, >= 1
};

// Seconds of wall-clock time.
struct BenchTiming {
  double prefill_s = 0;  // until every prompt has its first token
  double decode_s = 0;   // time of output_tokens further steps with one token per sequence
};

// The work of a run.
struct BenchWork {
  double prefill_ops = 0;   // a multiply-add counts as two
  double decode_bytes = 0;  // weights, keys and values that all decode steps read
};
BenchWork WorkOf(const BenchShape& shape, const engine::ModelSpec& spec,
                 const engine::WeightTraffic& weights, int64_t kv_bytes_per_token);

// The positions of a sequence: the prompt, its first token, and the decoded ones.
inline int32_t ContextOf(const BenchShape& shape) {
  return shape.prompt_tokens + shape.output_tokens + 1;
}

class BenchRun {
 public:
  // INVALID_ARGUMENT, naming the option to change, if the executor's pool, batch or context is too
  // small for `shape`.
  static absl::StatusOr<BenchRun> Create(engine::Executor& executor, const BenchShape& shape);

  // Seconds of output_tokens decode steps behind prompts that were never computed: keys and values
  // are whatever the pool holds. It is for times only. An untimed step comes first.
  absl::StatusOr<double> MeasureDecodes();

  // Seconds of output_tokens steps, each with the last `rows` rows of one sequence's prompt, which
  // draw nothing, behind keys and values as above. An untimed step comes first. REQUIRES: a batch
  // of 1; rows is from 1 to prompt_tokens, and no more than a step has.
  absl::StatusOr<double> MeasureChunks(int32_t rows);

  // One run from empty sequences. Prompts are the same pseudo-random tokens every time.
  absl::StatusOr<BenchTiming> Measure();

 private:
  BenchRun(engine::Executor& executor, const BenchShape& shape)
      : executor_(executor),
        shape_(shape),
        stages_(executor.limits().pipeline_stages),
        flights_(stages_ > 1 ? executor.max_in_flight() : 1) {}

  // Adds rows [begin, end) of sequence `index` to the plan; the last one draws a token if `draw`.
  void AddRows(int32_t index, int32_t begin, int32_t end, bool draw);
  engine::StepPlan& plan() { return flights_.next(); }
  absl::Status Submit();
  absl::Status WaitOldest();
  absl::Status WaitAll();
  void Begin();
  absl::Status End();
  absl::Status Prefill();
  absl::Status Decode();

  engine::Executor& executor_;
  const BenchShape shape_;
  const int32_t stages_;
  base::InFlight<engine::StepPlan> flights_;
  uint64_t step_ = 0;
  engine::StepResult result_;
};

}  // namespace heddle::server
