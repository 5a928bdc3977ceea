// `heddle tune`: finds the steps that a GPU runs faster in two halves side by side.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "server/cli/command.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"
#include "server/cli/tune_profile.h"
#include "server/cli/tune_run.h"

namespace heddle::server {
namespace {

constexpr int32_t kMostSequences = 1024;  // in TunePoints

absl::StatusOr<engine::LocalModel> Load(const config::Config& config, LoadedDevices* devices) {
  config::Config whole = config;
  whole.tune_profile.clear();  // the result replaces it
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(whole));
  if (!options.make_device) {
    return absl::UnimplementedError("heddle tune is for GPUs: --device cuda");
  }
  {
    // Checks that the device can be tuned before gigabytes are read.
    HEDDLE_ASSIGN_OR_RETURN(const auto device, options.make_device());
    HEDDLE_RETURN_IF_ERROR(device->nano_batch_device().status());
  }
  devices->Watch(&options);
  const int32_t tokens = options.capacity.max_batch_tokens;  // 0: the device's
  options.capacity.max_batch_seqs = tokens == 0 ? kMostSequences : std::min(tokens, kMostSequences);
  if (config.random_weights.empty()) return engine::LoadLocalModel(config.model, options);
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DType dtype, engine::RandomFormat(config.weights));
  return engine::LoadRandomModel(config.random_weights, dtype, options);
}

std::string ToText(const TuneTiming& timing) {
  const std::string division =
      timing.attention_multiprocessors == 0
          ? "undivided"
          : base::StrCat(timing.attention_multiprocessors, " for attention");
  return absl::StrFormat("%9d %6d %8d %12.0f %12.0f  %-18s %6.2f  %s\n", timing.point.sequences,
                         timing.point.rows(), timing.point.context, timing.whole_us,
                         timing.split_us, division, timing.speedup(),
                         timing.speedup() >= kLeastSpeedup ? "split" : "whole");
}

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.close();
  if (out.good()) return absl::OkStatus();
  return absl::UnavailableError(
      base::StrCat("cannot write the tune profile to ", base::Quote(path)));
}

}  // namespace

absl::Status RunTune(const config::Config& config) {
  LoadedDevices devices;
  HEDDLE_ASSIGN_OR_RETURN(const engine::LocalModel model, Load(config, &devices));
  const auto set = [&devices](const kernels::NanoBatchProfile& profile) {
    return devices.SetNanoBatches(profile);
  };
  engine::LocalExecutor& executor = *model.executor;
  HEDDLE_ASSIGN_OR_RETURN(const kernels::NanoBatchDevice device,
                          executor.device().nano_batch_device());
  if (executor.limits().state_groups > 0) {
    return absl::UnimplementedError(
        "steps of models with recurrent layers or convolutions run whole; there is nothing to "
        "tune");
  }
  const std::vector<engine::LayerSpec>& layers = executor.spec().layers;
  if (std::any_of(layers.begin(), layers.end(), [](const engine::LayerSpec& layer) {
        return !layer.attention.head_borders.empty();
      })) {
    return absl::UnimplementedError(
        "steps of models that norm queries over the heads of all ranks run whole with --tp; there "
        "is nothing to tune");
  }
  const std::vector<TunePoint> points = TunePoints(executor.limits());
  if (points.empty()) {
    return absl::FailedPreconditionError(
        "the KV memory holds no step that is worth splitting; raise --kv-memory");
  }
  HEDDLE_RETURN_IF_ERROR(
      WriteOut(base::StrCat("device  ", model.device,
                            "\n\nsequences   rows  context     whole us     split us  "
                            "multiprocessors    faster\n")));
  std::vector<TuneTiming> timings;
  for (const TunePoint& point : points) {
    HEDDLE_ASSIGN_OR_RETURN(const TuneTiming timing,
                            TimePoint(executor, point, static_cast<int32_t>(config.repeat), set));
    timings.push_back(timing);
    HEDDLE_RETURN_IF_ERROR(WriteOut(ToText(timing)));
    HEDDLE_RETURN_IF_ERROR(FlushOut());
  }
  const TunedProfile tuned =
      RulesOf(timings, TunedDevice(static_cast<int32_t>(config.tp), device.name));
  const std::string text = WriteTuneProfile(
      {.steps = tuned.profile, .model = engine::TunedModelOf(model)}, tuned.speedups);
  if (config.tune_profile.empty()) return WriteOut("\n" + text);
  HEDDLE_RETURN_IF_ERROR(Write(config.tune_profile, text));
  return WriteOut(base::StrCat("\nwritten to ", config.tune_profile, "\n"));
}

}  // namespace heddle::server
