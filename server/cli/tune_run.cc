#include "server/cli/tune_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status.h"
#include "server/cli/bench_run.h"

namespace heddle::server {
namespace {

constexpr int32_t kSequences[] = {16, 32, 64, 128, 256, 512, 1024};
constexpr int32_t kContexts[] = {512, 2048, 8192, 32768};
constexpr int32_t kChunks[] = {256, 512, 1024, 2048, 4096, 8192};
// Where chunks end: 0 stands for a prompt that is one chunk.
constexpr int32_t kChunkContexts[] = {0, 8192, 32768};
constexpr int32_t kSteps = 8;  // per run
// Shares of the multiprocessors reserved for attention; 0: no division.
constexpr double kShares[] = {0, 0.25, 0.35, 0.5};

absl::StatusOr<double> StepMicroseconds(engine::LocalExecutor& executor, const TunePoint& point,
                                        int32_t repeat) {
  HEDDLE_ASSIGN_OR_RETURN(BenchRun run, BenchRun::Create(executor, {.batch = point.sequences,
                                                                    .prompt_tokens = point.context,
                                                                    .output_tokens = kSteps}));
  std::vector<double> times;
  for (int32_t i = 0; i < repeat; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(const double seconds, point.chunk > 0 ? run.MeasureChunks(point.chunk)
                                                                  : run.MeasureDecodes());
    times.push_back(seconds / kSteps * 1e6);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Rules of timings of one kind.
void AddRules(std::span<const TuneTiming> timings, kernels::StepKind kind, TunedProfile* tuned) {
  const bool are_prompts = kind == kernels::StepKind::kPrompts;
  const auto rows = [&](size_t i) { return timings[i].point.rows(); };
  for (size_t begin = 0; begin < timings.size();) {
    size_t end = begin;
    while (end < timings.size() && rows(end) == rows(begin)) ++end;
    const bool is_first = begin == 0, is_last = end == timings.size();
    const int32_t min_rows = is_first ? rows(begin) : (rows(begin - 1) + rows(begin)) / 2;
    const int32_t max_rows =
        is_last ? std::numeric_limits<int32_t>::max() : (rows(begin) + rows(end)) / 2 - 1;
    for (size_t i = end; i-- > begin;) {  // the longest context first
      const TunePoint& point = timings[i].point;
      const bool pays = timings[i].speedup() >= kLeastSpeedup;
      tuned->profile.rules.push_back(
          {.min_rows = min_rows,
           .max_rows = max_rows,
           .min_context = point.chunk == point.context ? 0 : point.context,
           .split = pays,
           .attention_multiprocessors = pays ? timings[i].attention_multiprocessors : 0,
           .steps = kind,
           .cut_rows = pays && are_prompts ? kernels::kCutRows : 0});
      tuned->speedups.push_back(timings[i].speedup());
    }
    begin = end;
  }
}

}  // namespace

std::vector<TunePoint> TunePoints(const engine::ExecutorLimits& limits) {
  std::vector<TunePoint> points;
  const auto add = [&](const TunePoint& point) {
    const int32_t positions = point.context + kSteps + 1;
    const int64_t pages = static_cast<int64_t>(limits.windows.size()) * point.sequences *
                          ((positions + limits.page_tokens - 1) / limits.page_tokens);
    const bool fits = positions <= limits.max_context && pages <= limits.num_pages &&
                      point.sequences <= limits.max_batch_seqs &&
                      point.rows() <= limits.max_batch_tokens;
    if (fits) points.push_back(point);
  };
  for (const int32_t sequences : kSequences) {
    for (const int32_t context : kContexts) add({sequences, context});
  }
  for (const int32_t chunk : kChunks) {
    for (const int32_t context : kChunkContexts) {
      if (context == 0 || context > chunk) add({1, std::max(context, chunk), chunk});
    }
  }
  return points;
}

void LoadedDevices::Watch(engine::LoadOptions* options) {
  options->make_device = [this, make = std::move(options->make_device)] { return Noted(make()); };
  if (!options->make_rank_device) return;
  options->make_rank_device = [this, make = std::move(options->make_rank_device)](int32_t rank) {
    return Noted(make(rank));
  };
}

absl::StatusOr<std::unique_ptr<kernels::Device>> LoadedDevices::Noted(
    absl::StatusOr<std::unique_ptr<kernels::Device>> device) {
  const std::lock_guard lock(mutex_);
  if (device.ok()) devices_.push_back(device->get());
  return device;
}

absl::Status LoadedDevices::SetNanoBatches(const kernels::NanoBatchProfile& profile) {
  const std::lock_guard lock(mutex_);
  for (kernels::Device* device : devices_) HEDDLE_RETURN_IF_ERROR(device->SetNanoBatches(profile));
  return absl::OkStatus();
}

absl::StatusOr<TuneTiming> TimePoint(engine::LocalExecutor& executor, const TunePoint& point,
                                     int32_t repeat, const SetNanoBatchesFn& set) {
  const auto divide = [&](const kernels::NanoBatchProfile& profile) {
    return set ? set(profile) : executor.device().SetNanoBatches(profile);
  };
  HEDDLE_ASSIGN_OR_RETURN(const kernels::NanoBatchDevice device,
                          executor.device().nano_batch_device());
  TuneTiming timing{.point = point};
  HEDDLE_RETURN_IF_ERROR(divide({}));
  HEDDLE_ASSIGN_OR_RETURN(timing.whole_us, StepMicroseconds(executor, point, repeat));
  timing.split_us = std::numeric_limits<double>::infinity();
  for (const double share : kShares) {
    const auto count = static_cast<int32_t>(share * device.num_multiprocessors);
    if (share > 0 && count == 0) continue;
    const kernels::NanoBatchRule rule = {.attention_multiprocessors = count,
                                         .cut_rows = point.chunk > 0 ? kernels::kCutRows : 0};
    const kernels::NanoBatchProfile profile = {.device_name = {}, .rules = {rule}};
    HEDDLE_RETURN_IF_ERROR(divide(profile));
    HEDDLE_ASSIGN_OR_RETURN(const double us, StepMicroseconds(executor, point, repeat));
    if (us >= timing.split_us) continue;
    timing.split_us = us;
    timing.attention_multiprocessors = count;
  }
  HEDDLE_RETURN_IF_ERROR(divide({}));
  return timing;
}

TunedProfile RulesOf(std::span<const TuneTiming> timings, const std::string& device_name) {
  TunedProfile tuned;
  tuned.profile.device_name = device_name;
  const auto chunks = std::find_if(timings.begin(), timings.end(),
                                   [](const TuneTiming& timing) { return timing.point.chunk > 0; });
  const auto decodes = static_cast<size_t>(chunks - timings.begin());
  AddRules(timings.first(decodes), kernels::StepKind::kDecodes, &tuned);
  AddRules(timings.subspan(decodes), kernels::StepKind::kPrompts, &tuned);
  return tuned;
}

}  // namespace heddle::server
