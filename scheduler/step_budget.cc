#include "scheduler/step_budget.h"

#include <algorithm>

#include "scheduler/pipeline.h"
#include "scheduler/token_budget.h"

namespace heddle::scheduler {

namespace {

// The floor of kAutomaticTarget.
constexpr double kAutomaticFloorUs = 20'000;
constexpr double kAutomaticFactor = 2;
// Prompt rows beside streams while nothing is known of the machine: eight steps at most. A machine
// that is bound by arithmetic computes about as many rows in its later steps, for 16 streams; 64
// made the first tokens of a server come up to twice as late as later ones.
constexpr int32_t kFirstChunkTokens = 2 * kMinChunkTokens;
// Weight of the newest answer in the running mean of answer lengths: the last few dozen count.
constexpr double kAnswerWeight = 1.0 / 32;
// Weight of the newest step's swaps in the running mean of the time per page.
constexpr double kSwapWeight = 1.0 / 8;

}  // namespace

// Time of a step in which all `streams` decode, with the same mean context as those of `decodes`.
double StepBudget::StreamsAloneUs(const StepCost& decodes, int64_t streams) const {
  StepCost all;
  all.rows = all.sequences = std::clamp<int64_t>(streams, decodes.rows, options_.max_step_seqs);
  all.attended = decodes.attended * all.rows / decodes.rows;
  return cost_model_.PredictUs(all);
}

int32_t StepBudget::PromptRows(const PlannedStep& step, const RunningSet& running,
                               int64_t expected_streams) const {
  const int32_t room = std::max(0, options_.max_step_tokens - step.decodes);
  if (options_.target_step_us == 0 || step.decodes == 0) return room;
  if (!cost_model_.is_ready()) return std::min(room, kFirstChunkTokens);
  StepCost base{.rows = step.decodes, .sequences = step.decodes};
  for (const Sequence* sequence : running) {
    if (sequence->num_planned == 1) base.attended += sequence->num_tokens();
  }
  // The context of the first prompt, which gets the largest share; each further row of a chunk
  // attends to one position more.
  const int64_t context = step.prompts.empty() ? 0 : step.prompts.front()->num_computed();
  double target_us = static_cast<double>(options_.target_step_us);
  if (options_.target_step_us == kAutomaticTarget) {
    target_us =
        std::max(kAutomaticFloorUs, kAutomaticFactor * StreamsAloneUs(base, expected_streams));
  }
  const int32_t fitting = cost_model_.RowsWithin(target_us, base, context);
  return std::min(room, std::max(fitting, kMinChunkTokens));
}

// Steps are timed from one to the next, so that the model's times are those of the slowest stage,
// or of the link if that is slower.
int32_t StepBudget::ChunkRows(const StepCost& prompts, int64_t context) const {
  // Small ones: the first prompt waits for its longest chunk in every stage.
  if (!cost_model_.is_ready()) return kLeastPipelineRows;
  const int32_t stages = options_.pipeline_stages;
  const double rows_us = cost_model_.AddedUs(prompts);
  if (rows_us <= 0) return PipelineRows(prompts.rows, stages);
  // A chunk's step has a sequence at least, and the model cannot tell the cost of one from the
  // cost of a step while all steps are like that.
  const StepCost no_rows{.sequences = 1};
  const double step_us = cost_model_.PredictUs(no_rows);
  const double chunk_us = rows_us / PipelineChunks(rows_us, step_us, stages);
  return std::max(kLeastPipelineRows, cost_model_.RowsWithin(chunk_us + step_us, no_rows, context));
}

double StepBudget::PageUs(int32_t depth) const {
  if (!cost_model_.is_ready()) return 1.0;
  const int64_t context = int64_t{depth} * options_.page_tokens;
  return std::max(1.0, options_.page_tokens * cost_model_.RowUs(context));
}

double StepBudget::AdapterPageUs() const {
  return cost_model_.is_ready() ? std::max(1.0, options_.adapter_page_us) : 1.0;
}

bool StepBudget::SwapPays(int32_t depth) const {
  if (!cost_model_.is_ready() || swap_us_per_page_ == 0) return true;
  return PageUs(depth) > swap_us_per_page_;
}

int64_t StepBudget::EstimateWorkUs(const GenerationRequest& request) const {
  if (!cost_model_.is_ready()) return 0;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  double answer = request.max_tokens;
  if (mean_answer_tokens_ > 0) answer = std::min(answer, mean_answer_tokens_);
  const StepCost whole_prompt{
      .rows = prompt, .attended = prompt * (prompt + 1) / 2, .sequences = 1};
  return static_cast<int64_t>(cost_model_.PredictUs(whole_prompt) +
                              answer * cost_model_.PredictUs(last_cost_));
}

// A step's time begins when it was planned, or when the step before it ended if that was later.
void StepBudget::CountStep(const Flight& flight, bool fills, double swap_us, int64_t now_us) {
  const int64_t begin_us = std::max(flight.planned_us, committed_us_);
  const double us = static_cast<double>(now_us - begin_us) - swap_us;
  committed_us_ = now_us;
  // Loads that no limit held back take most of their step's time.
  const bool is_load = flight.num_adapter_loads > options_.adapter_load_pages;
  const bool is_prompt = flight.cost.rows > flight.cost.sequences;
  const bool is_typical = !is_load && !(fills && is_prompt);
  if (flight.cost.rows > 0 && us > 0 && is_typical) cost_model_.Observe(flight.cost, us);
  if (flight.num_swaps == 0 || swap_us <= 0) return;
  const double weight = swap_us_per_page_ == 0 ? 1.0 : kSwapWeight;
  swap_us_per_page_ += weight * (swap_us / flight.num_swaps - swap_us_per_page_);
}

void StepBudget::CountAnswer(size_t tokens) {
  const double weight = mean_answer_tokens_ == 0 ? 1.0 : kAnswerWeight;
  mean_answer_tokens_ += weight * (static_cast<double>(tokens) - mean_answer_tokens_);
}

}  // namespace heddle::scheduler
