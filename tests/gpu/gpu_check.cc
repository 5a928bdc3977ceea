// gpu_check: what tests/gpu/run.sh runs on a machine with a GPU. May be built elsewhere and
// carried, with the libraries that run.sh puts beside it.
//
//   gpu_check ops [NAME]                ops against the reference; those with NAME in their names
//   gpu_check shapes [NAME]             a layer of well-known models at their real sizes, against
//                                       the CPU backend; those with NAME in their names
//   gpu_check model PATH                greedy ids of the reference and of the GPU (F32), and how
//                                       far BF16 logits are from the reference's
//   gpu_check same MODEL [WEIGHTS [TOKENS [NAME]]]
//                                       a fixed load with graphs, early launches, plans ahead,
//                                       kernels of warpgroups and more left out, one at a time:
//                                       the same tokens. MODEL is a path or a built-in shape;
//                                       TOKENS: most of an answer (12); NAME as above
//   gpu_check bench [NAME]              the device's limits (a large copy, a large product), then
//                                       timings as shares of them; JSON lines, as they come
//   gpu_check serve SHAPE WEIGHTS LOAD...
//                                       engine loop and scheduler against synthetic loads, one
//                                       after the other, random weights; a JSON line of the load
//                                       time and one for each. LOAD is PROMPT/OUTPUT/REQUESTS, all
//                                       at once, or PROMPT/OUTPUT/REQUESTS@PER_SECOND; with
//                                       :settled behind it no step is planned before the tokens of
//                                       the last one are known.
//                                       $HEDDLE_TUNE_PROFILE is followed, if it is set
//   gpu_check tune SHAPE WEIGHTS FILE   which steps are faster split in halves; writes FILE
// With $HEDDLE_GPU_IN_TURN launches wait for those before them, with $HEDDLE_GPU_NO_GRAPHS they are
// made one by one, with $HEDDLE_GPU_NO_WARPGROUPS without the kernels for sm_90a alone: to find out
// what is to blame. With $HEDDLE_GPU_ONE_SPLIT all kernels divide the multiprocessors' memory
// alike; with $HEDDLE_GPU_WIDE_SCORES attention over caches of F8 has no products of 8 bits. With
// $HEDDLE_GPU_AS_PREDICTED bench, serve and tune take the predicted way to make a product; else the
// one that was fastest when it was first made, and say what they found: lines
// {"choice": ...}. `ops` leaves out the first $HEDDLE_GPU_SKIP of the checks that are asked for,
// and ends, by SIGALRM, if one takes longer than $HEDDLE_GPU_SECONDS; each runs $HEDDLE_GPU_REPEATS
// times (20) and must leave the same bits. With $HEDDLE_GPU_REHEARSAL every size is small
// (sizes.h): for the emulated device, which shows that each command starts, and ends. Exit code 1
// if anything differs, 2 for a wrong command line, 77 without a usable GPU.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "engine/model/tuned_model.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "server/cli/tune_profile.h"
#include "server/cli/tune_run.h"
#include "tests/bench/serving_run.h"
#include "tests/gpu/clocks.h"
#include "tests/gpu/op_checks.h"
#include "tests/gpu/rank_checks.h"
#include "tests/gpu/repeating_device.h"
#include "tests/gpu/same_checks.h"
#include "tests/gpu/shape_checks.h"
#include "tests/gpu/sizes.h"
#include "tests/support/greedy_runner.h"

namespace heddle::gpu {
namespace {

using kernels::DType;

absl::StatusOr<std::unique_ptr<kernels::Device>> CreateDevice(kernels::CudaDeviceOptions options) {
  if (std::getenv("HEDDLE_GPU_IN_TURN") != nullptr) options.early_launches = false;
  if (std::getenv("HEDDLE_GPU_NO_WARPGROUPS") != nullptr) options.warpgroups = false;
  if (std::getenv("HEDDLE_GPU_NO_GRAPHS") != nullptr) options.graphs = false;
  if (std::getenv("HEDDLE_GPU_ONE_SPLIT") != nullptr) options.one_memory_split = true;
  if (std::getenv("HEDDLE_GPU_WIDE_SCORES") != nullptr) options.scores_codes = false;
  if (std::getenv("HEDDLE_GPU_AS_PREDICTED") != nullptr || IsRehearsal()) options.tunes = false;
  options.workspace_bytes = Sized(options.workspace_bytes, int64_t{4} << 20);
  return kernels::CreateCudaDevice(options);
}

std::unique_ptr<kernels::Device> OpenDevice(const kernels::CudaDeviceOptions& options) {
  auto device = CreateDevice(options);
  if (device.ok()) return std::move(device).value();
  std::fprintf(stderr, "gpu_check: %s\n", std::string(device.status().message()).c_str());
  std::exit(77);
}

bool IsAskedFor(const std::string& name, std::string_view filter) {
  return name.find(filter) != std::string::npos;
}

int NumberFrom(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

// Runs of each op from the same memory, which must leave the same bits.
constexpr int kRepeats = 20;
// A rehearsal runs one check of so many.
constexpr int kRehearsedOps = 40;

int Ops(std::string_view filter) {
  int failed = 0, met = 0;
  int to_skip = NumberFrom("HEDDLE_GPU_SKIP");
  const int seconds = std::max(0, NumberFrom("HEDDLE_GPU_SECONDS"));
  const char* repeats = std::getenv("HEDDLE_GPU_REPEATS");
  for (DType activations : {DType::kBF16, DType::kF32}) {
    auto device = OpenDevice({.activations = activations});
    std::printf("%s\n", device->description().c_str());
    RepeatingDevice repeating(
        *device, repeats == nullptr ? kRepeats : std::max(1, NumberFrom("HEDDLE_GPU_REPEATS")));
    const auto begins = [&](const std::string& name) {
      if (!IsAskedFor(name, filter) || to_skip-- > 0) return false;
      if (IsRehearsal() && ++met % kRehearsedOps != 0) return false;
      std::printf("run   %s\n", name.c_str());
      alarm(static_cast<unsigned>(seconds));  // 0: none
      return true;
    };
    const auto ends = [&](const std::string& name, double worst) {
      alarm(0);
      const int64_t differing = repeating.TakeDiffering();
      const bool good = worst <= 1 && differing == 0;
      failed += !good;
      std::printf("%s  %-60s %.3f of what is allowed", good ? "ok  " : "FAIL", name.c_str(), worst);
      if (differing > 0)
        std::printf(", %d runs DIFFER from the first", static_cast<int>(differing));
      std::printf("\n");
    };
    CheckOps(repeating, {.begins = begins, .ends = ends});
  }
  std::printf("%d failed\n", failed);
  return failed == 0 ? 0 : 1;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "gpu_check: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Shapes(std::string_view filter) {
  int failed = 0;
  const absl::Status status = CheckShapes(
      [] { return CreateDevice({.tunes = true}); },
      {.begins = [&](const std::string& name) { return IsAskedFor(name, filter); },
       .ends =
           [&failed](const std::string& name, double distance, bool good) {
             failed += !good;
             std::printf("%s  %-60s %.4f\n", good ? "ok  " : "FAIL", name.c_str(), distance);
           }});
  std::printf("%d failed\n", failed);
  if (!status.ok()) return Fail(status);
  return failed == 0 ? 0 : 1;
}

// Loads a model; without a type of activations it is the reference on the CPU, whose products of
// quantised weights are exact, as a GPU's are.
engine::LocalModel LoadOn(const char* path, const DType* activations) {
  engine::LoadOptions options;
  options.reference_ops = activations == nullptr;
  if (activations != nullptr) {
    options.make_device = [activations] { return CreateDevice({.activations = *activations}); };
  }
  options.capacity.kv_bytes = 64 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(path, options);
  if (model.ok()) return std::move(model).value();
  std::fprintf(stderr, "gpu_check: %s\n", std::string(model.status().message()).c_str());
  std::exit(1);
}

int Model(const char* path) {
  const std::vector<engine::TokenId> prompt = {1, 5, 9, 2, 7, 30, 11};
  const DType kinds[] = {DType::kF32, DType::kBF16};
  engine::LocalModel cpu = LoadOn(path, nullptr);
  engine::LocalModel exact = LoadOn(path, &kinds[0]);
  const int32_t tokens = Sized(100, 5);
  const auto wanted = test::RunGreedy(*cpu.executor, prompt, {.max_tokens = tokens});
  const auto found = test::RunGreedy(*exact.executor, prompt, {.max_tokens = tokens});
  const bool same = wanted.ids == found.ids;
  std::printf("%s  %s: 100 greedy tokens, reference and GPU (F32)\n", same ? "ok  " : "FAIL", path);

  engine::LocalModel fast = LoadOn(path, &kinds[1]);
  const auto cpu_logits = test::AllLogits(*cpu.executor, wanted.ids, 64);
  const auto gpu_logits = test::AllLogits(*fast.executor, wanted.ids, 64);
  double error = 0, largest = 0;
  for (size_t i = 0; i < cpu_logits.size(); ++i) {
    error = std::fmax(error, std::fabs(cpu_logits[i] - gpu_logits[i]));
    largest = std::fmax(largest, std::fabs(cpu_logits[i]));
  }
  // BF16 keeps 8 bits: some dozens of roundings per token stay within 5 % of the largest logit.
  const bool near = error <= 0.05 * largest;
  std::printf("%s  %s: BF16 logits differ by %.4f at most, the largest is %.2f\n",
              near ? "ok  " : "FAIL", path, error, largest);
  return same && near ? 0 : 1;
}

int Same(std::span<char* const> arguments) {
  const auto get = [&](size_t i, const char* otherwise) {
    return std::string(i < arguments.size() ? arguments[i] : otherwise);
  };
  const std::string filter = get(3, "");
  int failed = 0;
  const absl::Status status = CheckSame(
      get(0, ""), get(1, "bf16"), Sized(std::atoi(get(2, "12").c_str()), 6), CreateDevice,
      {.begins = [&](const std::string& name) { return IsAskedFor(name, filter); },
       .ends =
           [&failed](const std::string& name, bool good, const std::string& text) {
             failed += !good;
             std::printf("%s  %s: %s\n", good ? "ok  " : "FAIL", name.c_str(), text.c_str());
           }});
  std::printf("%d failed\n", failed);
  if (!status.ok()) return Fail(status);
  return failed == 0 ? 0 : 1;
}

void PrintChoices(const kernels::Device& device) {
  for (const std::string& choice : device.TimedChoices()) {
    std::printf("{\"choice\": \"%s\"}\n", choice.c_str());
  }
}

// Prompts over caches of F8 without products of 8 bits.
void TimeWideScores(const TimingReport& report) {
  const std::string how = ", scores of 16 bits";
  const TimingReport some = {.begins =
                                 [&](const std::string& name) {
                                   return name.starts_with("prefill attention fp8,") &&
                                          report.begins(name + how);
                                 },
                             .ends =
                                 [&](Timing timing) {
                                   timing.name += how;
                                   report.ends(timing);
                                 }};
  TimeOps(*OpenDevice({.scores_codes = false}), Sized(100, 1), some);
}

int Bench(std::string_view filter) {
  Clocks clocks(ClockSource::Open());
  auto device = OpenDevice({.tunes = true});
  const auto limits = device->MeasureLimits();
  if (!limits.ok()) {
    std::fprintf(stderr, "gpu_check: %s\n", std::string(limits.status().message()).c_str());
    return 1;
  }
  const double terabytes = limits->read_gb_s / 1e3, teraflops = limits->gops / 1e3;
  std::printf("{\"device\": \"%s\", \"copy_TB_per_s\": %.3f, \"matmul_TFLOP_per_s\": %.1f%s}\n",
              device->description().c_str(), terabytes, teraflops, clocks.Take().ToJson().c_str());
  const auto print = [&](const Timing& timing) {
    const double rate = timing.amount / timing.microseconds / 1e6;  // T per second
    const double share = rate / (timing.is_bandwidth ? terabytes : teraflops);
    std::printf("{\"name\": \"%s\", \"us\": %.2f, \"%s\": %.3f, \"share\": %.3f%s}\n",
                timing.name.c_str(), timing.microseconds,
                timing.is_bandwidth ? "TB_per_s" : "TFLOP_per_s", rate, share,
                clocks.Take().ToJson().c_str());
  };
  const TimingReport report = {.begins =
                                   [&](const std::string& name) {
                                     if (!IsAskedFor(name, filter)) return false;
                                     clocks.Take();  // what came before is not its
                                     return true;
                                   },
                               .ends = print};
  // First, what decides how all else is read: whether launches really begin early, and whether they
  // do only where kernels divide the multiprocessors' memory alike.
  TimeGaps(*device, "early", report);
  TimeGaps(*OpenDevice({.one_memory_split = true}), "early, one division of memory", report);
  TimeGaps(*OpenDevice({.early_launches = false}), "in turn", report);
  TimeOps(*device, Sized(100, 1), report);
  PrintChoices(*device);
  TimeDequantized(*OpenDevice({.always_dequantizes = true}), Sized(100, 1), report);
  TimeWideScores(report);
  return 0;
}

bool IsSettled(std::string_view text) { return text.ends_with(":settled"); }

bool ParseLoad(const char* text, scheduler::SyntheticLoad* load) {
  int prompt = 0, output = 0, requests = 0;
  double per_second = 0;
  if (std::sscanf(text, "%d/%d/%d@%lf", &prompt, &output, &requests, &per_second) < 3) return false;
  load->mean_prompt_tokens = Sized(prompt, 12);
  load->mean_output_tokens = Sized(output, 4);
  load->num_requests = Sized(requests, 3);
  load->requests_per_s = per_second;
  return prompt > 0 && output > 0 && requests > 0 && per_second >= 0;
}

absl::StatusOr<engine::LocalModel> LoadRandom(const char* shape, const char* weights,
                                              int32_t max_context) {
  const auto format = engine::RandomFormat(weights);
  if (!format.ok()) return format.status();
  engine::LoadOptions options;
  options.make_device = [] { return CreateDevice({.tunes = true}); };
  options.capacity.max_context = max_context;
  // Steps that are long enough for products to be bound by arithmetic, as offline throughput wants.
  options.capacity.max_batch_tokens = Sized(4096, 64);
  options.capacity.max_batch_seqs = Sized(1024, 8);
  if (IsRehearsal()) options.capacity.kv_bytes = 4 << 20;
  // The same cache type as in the servers whose figures are the goals: the cache's bytes bound long
  // answers.
  if (std::string_view(weights) == "fp8") options.kv_type = "fp8";
  const auto begin = std::chrono::steady_clock::now();
  const auto spec = engine::KnownShape(shape);
  if (!spec.ok()) return spec.status();
  auto model = engine::LoadRandomModel(Sized(*spec), *format, options);
  if (!model.ok()) return model.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf(
      "{\"model\": \"%s %s\", \"device\": \"%s\", \"kv_type\": \"%s\", \"load_s\": %.2f, "
      "\"warm_up_s\": %.2f, \"kv_GiB\": %.1f}\n",
      shape, weights, model->device.c_str(),
      std::string(kernels::Info(model->kv_dtype).name).c_str(),
      seconds.count() - model->random_seconds, model->warm_up_seconds,
      static_cast<double>(model->capacity.kv_bytes) / (int64_t{1} << 30));
  PrintChoices(model->executor->device());
  const char* path = std::getenv("HEDDLE_TUNE_PROFILE");
  if (path == nullptr) return model;
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto profile = server::ReadTuneProfile(text, path);
  if (!profile.ok()) return profile.status();
  const absl::Status fits = engine::CheckTunedModel(profile->model, engine::TunedModelOf(*model));
  if (!fits.ok()) return fits;
  const absl::Status status = model->executor->device().SetNanoBatches(profile->steps);
  if (!status.ok()) return status;
  return model;
}

int Serve(const char* shape, const char* weights, std::span<char* const> texts) {
  std::vector<scheduler::SyntheticLoad> loads(texts.size());
  int32_t max_context = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!ParseLoad(texts[i], &loads[i])) return 2;
    const double tokens = loads[i].mean_prompt_tokens + loads[i].mean_output_tokens;
    max_context = std::max(max_context, static_cast<int32_t>(tokens) + 1);
  }
  auto model = LoadRandom(shape, weights, max_context);
  if (!model.ok()) return Fail(model.status());
  Clocks clocks(ClockSource::Open());
  for (size_t i = 0; i < loads.size(); ++i) {
    scheduler::SyntheticLoad warm_up = loads[i];  // algorithms are chosen, graphs are made
    warm_up.num_requests = std::min(3, loads[i].num_requests);
    warm_up.mean_output_tokens = std::min(8.0, loads[i].mean_output_tokens);
    warm_up.requests_per_s = 0;
    const auto warmed = test::RunServing(*model->executor, warm_up);
    if (warmed.failed > 0) return Fail(warmed.error);
    clocks.Take();
    const auto report = test::RunServing(*model->executor, loads[i],
                                         /*plan_ahead=*/!IsSettled(texts[i]));
    const std::string name = std::string(shape) + " " + weights + " " + texts[i];
    std::string line = report.ToJson(name);
    line.insert(line.size() - 1, clocks.Take().ToJson());
    std::printf("%s\n", line.c_str());
    if (report.failed > 0) return Fail(report.error);
  }
  return 0;
}

int Tune(const char* shape, const char* weights, const char* path) {
  auto model = LoadRandom(shape, weights, /*max_context=*/8192 + 64);
  if (!model.ok()) return Fail(model.status());
  engine::LocalExecutor& executor = *model->executor;
  std::vector<server::TuneTiming> timings;
  const std::vector<server::TunePoint> points =
      IsRehearsal() ? std::vector<server::TunePoint>{{.sequences = 2, .context = 16},
                                                     {.sequences = 1, .context = 16, .chunk = 16}}
                    : server::TunePoints(executor.limits());
  for (const server::TunePoint& point : points) {
    const auto timing = server::TimePoint(executor, point, /*repeat=*/1);
    if (!timing.ok()) return Fail(timing.status());
    std::printf(
        "{\"name\": \"nano-batches, %d %s of %d\", \"whole_us\": %.0f, "
        "\"split_us\": %.0f, \"attention_multiprocessors\": %d}\n",
        point.rows(), point.chunk > 0 ? "rows at the end" : "sequences", point.context,
        timing->whole_us, timing->split_us, timing->attention_multiprocessors);
    timings.push_back(*timing);
  }
  const auto device = executor.device().nano_batch_device();
  if (!device.ok()) return Fail(device.status());
  const server::TunedProfile tuned = server::RulesOf(timings, device->name);
  std::ofstream out(path);
  out << server::WriteTuneProfile({.steps = tuned.profile, .model = engine::TunedModelOf(*model)},
                                  tuned.speedups);
  return out.good() ? 0 : 1;
}

int Main(int argc, char** argv) {
  // After a fault or a time limit the file has all output up to there.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "ops" && argc <= 3) return Ops(argc == 3 ? argv[2] : "");
  if (command == "shapes" && argc <= 3) return Shapes(argc == 3 ? argv[2] : "");
  if (command == "model" && argc == 3) return Model(argv[2]);
  if (command == "same" && argc >= 3 && argc <= 6) {
    return Same(std::span(argv + 2, static_cast<size_t>(argc - 2)));
  }
  if (command == "ranks" && argc == 4) return CheckRanks(std::atoi(argv[2]), std::atoi(argv[3]));
  if (command == "bench" && argc <= 3) return Bench(argc == 3 ? argv[2] : "");
  if (command == "serve" && argc >= 5) {
    return Serve(argv[2], argv[3], std::span(argv + 4, static_cast<size_t>(argc - 4)));
  }
  if (command == "tune" && argc == 5) return Tune(argv[2], argv[3], argv[4]);
  std::fprintf(
      stderr,
      "usage: gpu_check ops [NAME] | shapes [NAME] | model PATH | same MODEL ... | ranks GPU GPU | "
      "bench [NAME] | "
      "serve SHAPE WEIGHTS LOAD... | tune SHAPE WEIGHTS FILE\n");
  return 2;
}

}  // namespace
}  // namespace heddle::gpu

int main(int argc, char** argv) { return heddle::gpu::Main(argc, argv); }
