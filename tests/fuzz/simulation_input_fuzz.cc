// Any text as a trace and as a profile. A trace that is accepted and small is simulated.
#include <cstdint>
#include <string_view>

#include "scheduler/simulation/simulator.h"
#include "server/simulation/profile.h"
#include "server/simulation/workload_trace.h"

namespace {

volatile double sink;  // keeps results alive

bool IsSmall(const std::vector<heddle::scheduler::SimulatedRequest>& trace) {
  int64_t tokens = 0;
  for (const auto& request : trace) {
    tokens += int64_t{request.prompt_tokens} + int64_t{request.output_tokens} * request.branches;
  }
  return tokens < 20'000;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto profile = heddle::server::ReadProfile(text, "p"); profile.ok()) {
    sink = profile->points[0].decode_tok_s;
  }
  auto trace = heddle::server::ReadWorkloadTrace(text, "t");
  if (!trace.ok() || !IsSmall(*trace)) return 0;
  auto result = heddle::scheduler::Simulate(*trace, {.scheduler = {.num_pages = 64,
                                                                   .page_tokens = 16,
                                                                   .max_context = 512,
                                                                   .max_step_tokens = 64,
                                                                   .max_step_seqs = 8},
                                                     .machine = {.fixed_us = 100}});
  if (!result.ok()) __builtin_trap();
  sink = result->end_us;
  return 0;
}
