// serving_bench: RunServing (serving_run.h) on a model of random weights, on the CPU or on a GPU.
//
//   serving_bench SHAPE WEIGHTS DEVICE PROMPT OUTPUT REQUESTS [REQUESTS_PER_S]
//   serving_bench tinyllama-1.1b q4_0 cpu 128 32 16
//
// DEVICE is cpu or cuda. Without a rate all requests come at once. One line of JSON.
// Exit code 1 if a request failed, 2 for a wrong command line.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/bench/serving_run.h"

namespace heddle {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "serving_bench: %s\n", std::string(status.message()).c_str());
  return code;
}

int Main(int argc, char** argv) {
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr,
                 "usage: serving_bench SHAPE WEIGHTS cpu|cuda PROMPT OUTPUT REQUESTS [PER_S]\n");
    return 2;
  }
  scheduler::SyntheticLoad load;
  load.mean_prompt_tokens = std::max(1, std::atoi(argv[4]));
  load.mean_output_tokens = std::max(1, std::atoi(argv[5]));
  load.num_requests = std::max(1, std::atoi(argv[6]));
  load.requests_per_s = argc == 8 ? std::atof(argv[7]) : 0;
  engine::LoadOptions options;
  if (std::string(argv[3]) == "cuda") {
    options.make_device = [] { return kernels::CreateCudaDevice({.tunes = true}); };
  }
  options.capacity.max_context =
      static_cast<int32_t>(load.mean_prompt_tokens + load.mean_output_tokens) + 1;
  const auto format = engine::RandomFormat(argv[2]);
  if (!format.ok()) return Fail(format.status(), 2);
  auto model = engine::LoadRandomModel(argv[1], *format, options);
  if (!model.ok()) return Fail(model.status(), 1);
  const std::string name = std::string(argv[1]) + " " + argv[2] + " " + argv[4] + "/" + argv[5];
  const test::ServingReport report = test::RunServing(std::move(model->executor), load);
  std::printf("%s\n", report.ToJson(name).c_str());
  return report.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::Main(argc, argv); }
