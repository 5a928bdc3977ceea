// The commands of the program. Adding one: a function here, a row in kCommands (main.cc), and its
// options in config/options.cc.
#pragma once

#include "absl/status/status.h"
#include "config/config.h"
#include "config/option.h"

namespace heddle::server {

// Runs with a validated configuration, and returns when the command is done. Results go to
// standard output; on an error the caller prints "heddle: " and the message to standard error and
// ends with exit code 1.
struct CliCommand {
  config::Command command;  // gives name, summary, usage and options
  absl::Status (*run)(const config::Config& config);
};

// render_command.cc: {messages, tools, ...} on standard input, the rendered text on standard
// output.
absl::Status RunRender(const config::Config& config);

// tokenize_command.cc: lines of standard input to arrays of token ids, or back.
absl::Status RunTokenize(const config::Config& config);

// serve_command.cc: answers clients until SIGINT or SIGTERM.
absl::Status RunServe(const config::Config& config);

// generate_command.cc: one prompt, offline.
absl::Status RunGenerate(const config::Config& config);

// inspect_command.cc: what the model is and what this machine can hold of it.
absl::Status RunInspect(const config::Config& config);

// bench_command.cc: tokens per second of a model, or of random weights, and shares of the limits.
absl::Status RunBench(const config::Config& config);

// simulate_command.cc: the scheduler against a load, on a machine that is only a formula.
absl::Status RunSimulate(const config::Config& config);

// plan_command.cc: how many users fit, and how fast they are served.
absl::Status RunPlan(const config::Config& config);

// trace_command.cc: what happened to a request of a running server.
absl::Status RunTrace(const config::Config& config);

// tune_command.cc: which decoding steps a GPU runs faster in two halves.
absl::Status RunTune(const config::Config& config);

// health_command.cc: whether a running server makes progress.
absl::Status RunHealth(const config::Config& config);

}  // namespace heddle::server
