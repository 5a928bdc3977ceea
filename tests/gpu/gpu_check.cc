// gpu_check: what tests/gpu/run.sh runs on a machine with a GPU. May be built elsewhere and
// carried, with the libraries that run.sh puts beside it.
//
//   gpu_check ops                       ops against the reference
//   gpu_check model PATH                greedy ids of the CPU and of the GPU (F32), and how far
//                                       BF16 logits are from the CPU's
//   gpu_check bench                     the device's limits (a large copy, a large product), then
//                                       timings as shares of them; JSON lines
//   gpu_check serve SHAPE WEIGHTS PROMPT OUTPUT REQUESTS
//                                       engine loop and scheduler against a synthetic load, random
//                                       weights; one JSON line
// Exit code 1 if anything differs, 2 for a wrong command line, 77 without a usable GPU.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/bench/serving_run.h"
#include "tests/gpu/op_checks.h"
#include "tests/support/greedy_runner.h"

namespace heddle::gpu {
namespace {

using kernels::DType;

std::unique_ptr<kernels::Device> OpenDevice(DType activations) {
  auto device = kernels::CreateCudaDevice({.activations = activations});
  if (device.ok()) return std::move(device).value();
  std::fprintf(stderr, "gpu_check: %s\n", std::string(device.status().message()).c_str());
  std::exit(77);
}

int Ops() {
  int failed = 0;
  for (DType activations : {DType::kBF16, DType::kF32}) {
    auto device = OpenDevice(activations);
    std::printf("%s\n", device->description().c_str());
    for (const CheckResult& result : CheckOps(*device)) {
      const bool good = result.worst <= 1;
      failed += !good;
      std::printf("%s  %-60s %.3f of what is allowed\n", good ? "ok  " : "FAIL",
                  result.name.c_str(), result.worst);
    }
  }
  std::printf("%d failed\n", failed);
  return failed == 0 ? 0 : 1;
}

engine::LoadedModel LoadOn(const char* path, const DType* activations) {
  engine::LoadOptions options;
  if (activations != nullptr) {
    options.make_device = [activations] {
      return kernels::CreateCudaDevice({.activations = *activations});
    };
  }
  options.capacity.kv_bytes = 64 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadModel(path, options);
  if (model.ok()) return std::move(model).value();
  std::fprintf(stderr, "gpu_check: %s\n", std::string(model.status().message()).c_str());
  std::exit(1);
}

int Model(const char* path) {
  const std::vector<engine::TokenId> prompt = {1, 5, 9, 2, 7, 30, 11};
  const DType kinds[] = {DType::kF32, DType::kBF16};
  engine::LoadedModel cpu = LoadOn(path, nullptr);
  engine::LoadedModel exact = LoadOn(path, &kinds[0]);
  const auto wanted = test::RunGreedy(*cpu.executor, prompt, {.max_tokens = 100});
  const auto found = test::RunGreedy(*exact.executor, prompt, {.max_tokens = 100});
  const bool same = wanted.ids == found.ids;
  std::printf("%s  %s: 100 greedy tokens, CPU and GPU (F32)\n", same ? "ok  " : "FAIL", path);

  engine::LoadedModel fast = LoadOn(path, &kinds[1]);
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

int Bench() {
  auto device = OpenDevice(DType::kBF16);
  const auto limits = device->MeasureLimits();
  if (!limits.ok()) {
    std::fprintf(stderr, "gpu_check: %s\n", std::string(limits.status().message()).c_str());
    return 1;
  }
  const double terabytes = limits->read_gb_s / 1e3, teraflops = limits->gops / 1e3;
  std::printf("{\"device\": \"%s\", \"copy_TB_per_s\": %.3f, \"matmul_TFLOP_per_s\": %.1f}\n",
              device->description().c_str(), terabytes, teraflops);
  for (const Timing& timing : TimeOps(*device, 100)) {
    const double rate = timing.amount / timing.microseconds / 1e6;  // T per second
    const double share = rate / (timing.is_bandwidth ? terabytes : teraflops);
    std::printf("{\"name\": \"%s\", \"us\": %.2f, \"%s\": %.3f, \"share\": %.3f}\n",
                timing.name.c_str(), timing.microseconds,
                timing.is_bandwidth ? "TB_per_s" : "TFLOP_per_s", rate, share);
  }
  return 0;
}

int Serve(char** args) {
  scheduler::SyntheticLoad load;
  load.mean_prompt_tokens = std::fmax(1, std::atof(args[2]));
  load.mean_output_tokens = std::fmax(1, std::atof(args[3]));
  load.num_requests = std::atoi(args[4]);
  engine::LoadOptions options;
  options.make_device = [] { return kernels::CreateCudaDevice({}); };
  options.capacity.max_context =
      static_cast<int32_t>(load.mean_prompt_tokens + load.mean_output_tokens) + 1;
  const auto format = engine::RandomFormat(args[1]);
  if (!format.ok()) return 2;
  auto model = engine::LoadRandomModel(args[0], *format, options);
  if (!model.ok()) {
    std::fprintf(stderr, "gpu_check: %s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  const std::string name = std::string(args[0]) + " " + args[1] + " " + args[2] + "/" + args[3];
  const auto report = test::RunServing(std::move(model->executor), load);
  std::printf("%s\n", report.ToJson(name).c_str());
  return report.failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "ops" && argc == 2) return Ops();
  if (command == "model" && argc == 3) return Model(argv[2]);
  if (command == "bench" && argc == 2) return Bench();
  if (command == "serve" && argc == 7) return Serve(argv + 2);
  std::fprintf(stderr,
               "usage: gpu_check ops | model PATH | bench | "
               "serve SHAPE WEIGHTS PROMPT OUTPUT REQUESTS\n");
  return 2;
}

}  // namespace
}  // namespace heddle::gpu

int main(int argc, char** argv) { return heddle::gpu::Main(argc, argv); }
