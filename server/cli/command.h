// The commands of the program. A new one needs a function here, a row in kCommands (main.cc), and
// its options in config/options.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "config/config.h"
#include "config/option.h"

namespace heddle::server {

// Runs with a validated configuration, and returns when the command is done. Results go to standard
// output; after an error the caller prints "heddle: " and the message to standard error and ends
// with exit code 1.
struct CliCommand {
  config::Command command;  // gives name, summary, usage and options
  absl::Status (*run)(const config::Config& config);
};

// render_command.cc: reads {messages, tools, ...} from standard input, writes the rendered text to
// standard output.
absl::Status RunRender(const config::Config& config);

// tokenize_command.cc: converts lines of standard input to arrays of token ids, or back.
absl::Status RunTokenize(const config::Config& config);

// serve_command.cc: answers clients until SIGINT or SIGTERM.
absl::Status RunServe(const config::Config& config);

// generate_command.cc: answers one prompt, offline.
absl::Status RunGenerate(const config::Config& config);

// inspect_command.cc: describes the model and what this machine can hold of it.
absl::Status RunInspect(const config::Config& config);

// bench_command.cc: measures tokens per second of a model, or of random weights, and shares of the
// limits.
absl::Status RunBench(const config::Config& config);
// text_bench_command.cc: the same with --text, for each batch size.
absl::Status RunTextBench(const config::Config& config, const std::vector<int32_t>& batches);

// simulate_command.cc: runs the scheduler with a load, on a machine that is only a formula.
absl::Status RunSimulate(const config::Config& config);

// plan_command.cc: computes how many users fit, and how fast they are served.
absl::Status RunPlan(const config::Config& config);

// trace_command.cc: shows what happened to a request of a running server.
absl::Status RunTrace(const config::Config& config);

// tune_command.cc: finds the decoding steps that a GPU runs faster in two halves.
absl::Status RunTune(const config::Config& config);

// health_command.cc: tells whether a running server makes progress.
absl::Status RunHealth(const config::Config& config);

}  // namespace heddle::server
