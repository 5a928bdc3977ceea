#include "server/cli/engine_session.h"

#include <future>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/tokenizer.h"
#include "engine/threaded_executor.h"
#include "server/cli/inspect.h"
#include "server/cli/model_options.h"
#include "server/cli/remote_ranks.h"
#include "server/cli/speculation_options.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

using LoadedTokenizer = absl::StatusOr<std::unique_ptr<engine::text::Tokenizer>>;

absl::StatusOr<std::unique_ptr<ModelTextCodec>> MakeCodec(const config::Config& config,
                                                          const engine::ModelDescription& model,
                                                          LoadedTokenizer loaded) {
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<engine::text::Tokenizer> tokenizer, std::move(loaded));
  ModelTextCodec::Options options;
  options.end_tokens = model.eos_ids;
  options.vocab = model.spec.vocab;
  options.tool_parser = config.tool_parser;
  options.reasoning_parser = config.reasoning_parser;
  options.grammar_cache_bytes = static_cast<size_t>(config.grammar_cache_bytes.value);
  if (!config.chat_template.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(options.chat_template,
                            ReadFile(config.chat_template, kMaxTemplateBytes));
  }
  options.template_name = config.chat_template.empty()
                              ? base::StrCat(config.model, ": the chat template")
                              : config.chat_template;
  return ModelTextCodec::Create(std::move(tokenizer), options);
}

}  // namespace

void LogSpeculation(const SpeculationReport& report, const Logger& log) {
  if (report.drafters.empty() && report.without.empty()) return;
  if (report.drafters.empty()) {
    log.Info("no tokens are guessed ahead", {{"why", report.without}});
  } else if (report.without.empty()) {
    log.Info("tokens are guessed ahead where it pays", {{"drafters", report.drafters}});
  } else {
    log.Info("tokens are guessed ahead where it pays",
             {{"drafters", report.drafters}, {"without", report.without}});
  }
}

engine::SamplingParams SamplingDefaults(const engine::GenerationDefaults& defaults) {
  engine::SamplingParams params;
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.typical_p = defaults.typical_p.value_or(params.typical_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  if (defaults.do_sample == false) params.temperature = 0.0f;
  return params;
}

absl::StatusOr<EngineSession> StartEngine(const config::Config& config, const Logger& log) {
  EngineSession session;
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  std::string left_out;  // a drafter
  HEDDLE_ASSIGN_OR_RETURN(options.open_draft, ToOpenDraft(config, &left_out));
  EngineLoopOptions loop_options = ToLoopOptions(config);
  HEDDLE_ASSIGN_OR_RETURN(loop_options.speculation, ToSpeculationOptions(config));
  options.drafter_yields = loop_options.speculation.network.kind == NetworkOptions::Kind::kAny;
  loop_options.on_draft_failure = [&log](const std::string& why) {
    log.Warning("the drafter has turned itself off", {{"why", why}});
  };
  HEDDLE_ASSIGN_OR_RETURN(session.ranks, StartRankHead(config, &options, &log));
  // Runs while the weights load: a vocabulary of 150,000 tokens takes some tenths of a second.
  std::future<LoadedTokenizer> tokenizer = std::async(
      std::launch::async, [&config] { return engine::text::LoadTokenizer(config.model); });
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadedModel loaded, engine::LoadModel(config.model, options));
  std::unique_ptr<engine::Executor> executor = std::move(loaded.executor);
  session.model = std::move(loaded);
  if (!session.model.unused_tensors.empty()) {
    log.Warning("the model's files hold tensors that its description does not use",
                {{"tensors", UnusedText(session.model.unused_tensors)}});
  }
  if (const int32_t top_k = session.model.idle_indexers; top_k > 0) {
    log.Info("no text here is longer than what the indexers choose: attention reads all of it",
             {{"chosen_positions", std::to_string(top_k)}});
  }
  for (const std::string& advice : session.model.advice) log.Warning(advice);
  if (!session.model.drafter_left_out.empty()) left_out = session.model.drafter_left_out;
  session.speculation = DescribeSpeculation(loop_options.speculation, executor->limits(),
                                            session.model.drafter, left_out);
  for (const std::string& choice : session.model.timed_choices) {
    log.Debug("ways to make a product were timed", {{"chosen_first", choice}});
  }
  HEDDLE_ASSIGN_OR_RETURN(session.codec, MakeCodec(config, session.model.model, tokenizer.get()));
  for (const std::string& warning : session.codec->Warnings()) log.Warning(warning);
  session.defaults = SamplingDefaults(session.model.model.generation);
  // A device that runs steps by itself needs no thread for that.
  if (executor->max_in_flight() == 1) {
    executor = std::make_unique<engine::ThreadedExecutor>(std::move(executor));
  }
  session.loop = std::make_unique<EngineLoop>(std::move(executor), loop_options);
  return session;
}

}  // namespace heddle::server
