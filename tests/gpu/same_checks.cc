#include "tests/gpu/same_checks.h"

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/stepped_answers.h"

namespace heddle::gpu {
namespace {

using kernels::CudaDeviceOptions;
using MakeDevice =
    std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>(const CudaDeviceOptions&)>;

constexpr int kRehearsedVariants = 1;
constexpr double kNear = 0.1;  // between log-probabilities; BF16 keeps 8 bits

struct Variant {
  const char* name;
  CudaDeviceOptions device = {};
  SteppedWay way = {.ahead = true};
  bool is_exact = true;
  bool drafts = false;
};

std::vector<Variant> Variants() {
  return {{"once more"},
          {"without graphs", {.graphs = false}},
          {"launches in turn", {.early_launches = false}},
          {"one division of memory", {.one_memory_split = true}},
          {"settled before they are planned on", {}, {.ahead = false}, false},
          {"few pages", {}, {.ahead = true, .few_pages = true}, false},
          {"with drafts", {}, {.ahead = false}, false, true},
          {"without kernels of warpgroups", {.warpgroups = false}, {.ahead = true}, false}};
}

class Checker {
 public:
  Checker(const std::string& model, std::string_view weights, int32_t most_tokens,
          const MakeDevice& make_device)
      : model_(model), weights_(weights), most_tokens_(most_tokens), make_device_(make_device) {}

  absl::StatusOr<SteppedRun> Run(const CudaDeviceOptions& device, const SteppedWay& way) {
    HEDDLE_ASSIGN_OR_RETURN(const engine::LocalModel loaded, Load(device));
    engine::LocalExecutor& executor = *loaded.executor;
    const auto requests =
        SteppedRequests(executor.limits(), SteppedAdapter(executor), most_tokens_);
    return RunSteps(executor, requests, way);
  }

 private:
  absl::StatusOr<engine::LocalModel> Load(const CudaDeviceOptions& device) {
    engine::LoadOptions options;
    options.make_device = [&] { return make_device_(device); };
    options.capacity.kv_bytes = 64 << 20;
    options.capacity.host_kv_bytes = 4 << 20;
    options.capacity.page_tokens = 8;
    options.capacity.max_context = 512;
    options.capacity.max_batch_tokens = 128;
    options.capacity.max_batch_seqs = 16;
    options.capacity.adapter_max_rank = 4;
    if (std::filesystem::exists(model_)) return engine::LoadLocalModel(model_, options);
    HEDDLE_ASSIGN_OR_RETURN(engine::ModelSpec spec, engine::KnownShape(model_));
    spec.layers.resize(2);
    spec.vocab = 8192;
    spec = Sized(std::move(spec));
    HEDDLE_ASSIGN_OR_RETURN(const kernels::DType format,
                            engine::RandomFormat(std::string(weights_)));
    return engine::LoadRandomModel(spec, format, options);
  }

  const std::string& model_;
  const std::string_view weights_;
  const int32_t most_tokens_;
  const MakeDevice& make_device_;
};

// Whether the run had what its variant is for.
const char* Missing(const Variant& variant, const SteppedRun& run) {
  if (variant.way.few_pages && run.preemptions == 0) return "nothing was preempted";
  if (variant.drafts && run.accepted == 0) return "no draft was accepted";
  if (variant.way.ahead && run.steps_ahead == 0) return "no step was planned ahead";
  if (run.cached == 0) return "no prefix was found in the cache";
  return nullptr;
}

std::string Describe(const Comparison& all, const SteppedRun& run) {
  std::string text = absl::StrFormat(
      "%d of %d answers equal, log-probabilities within %.4f; %d steps, %d ahead, "
      "%d preemptions, %d pages swapped in, %d drafted tokens accepted",
      all.equal, all.answers, all.distance, run.steps, run.steps_ahead, run.preemptions,
      run.swapped, run.accepted);
  if (!all.first.empty()) absl::StrAppend(&text, "; first apart: ", all.first);
  return text;
}

}  // namespace

absl::Status CheckSame(const std::string& model, std::string_view weights, int32_t most_tokens,
                       const MakeDevice& make_device, const SameReport& report) {
  Checker checker(model, weights, most_tokens, make_device);
  std::optional<SteppedRun> plain;
  std::vector<Variant> variants = Variants();
  // A rehearsal has all of them with models of files, and of the others one.
  if (IsRehearsal() && !std::filesystem::exists(model)) {
    variants.erase(variants.begin() + kRehearsedVariants, variants.end());
  }
  for (const Variant& variant : variants) {
    const std::string name = absl::StrCat(model, ", ", variant.name);
    if (!report.begins(name)) continue;
    if (!plain.has_value()) {
      HEDDLE_ASSIGN_OR_RETURN(plain, checker.Run({}, {.ahead = true}));
    }
    SteppedWay way = variant.way;
    if (variant.drafts) way.drafts = &plain->answers;
    HEDDLE_ASSIGN_OR_RETURN(const SteppedRun run, checker.Run(variant.device, way));
    const Comparison all = variant.is_exact ? CompareExactly(run.answers, plain->answers)
                                            : CompareNearly(run.answers, plain->answers);
    const char* missing = Missing(variant, run);
    const bool agrees = variant.is_exact ? all.equal == all.answers : all.distance <= kNear;
    report.ends(name, agrees && missing == nullptr,
                missing != nullptr ? std::string(missing) : Describe(all, run));
  }
  return absl::OkStatus();
}

}  // namespace heddle::gpu
