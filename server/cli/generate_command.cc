// `heddle generate`: one prompt, offline, through the same engine loop as the server. Text is
// printed as it comes; with --json one object at the end.
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/lark/lark.h"
#include "nlohmann/json.hpp"
#include "server/cli/adapter_options.h"
#include "server/cli/command.h"
#include "server/cli/engine_session.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"
#include "server/openai/sampling_fields.h"
#include "server/text/stop_scanner.h"

namespace heddle::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxPromptBytes = size_t{64} << 20;

// Events from the loop's thread to this one.
class EventQueue {
 public:
  void Push(GenerationEvent&& event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    arrived_.notify_one();
  }

  GenerationEvent Pop() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !events_.empty(); });
    GenerationEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<GenerationEvent> events_;  // guarded by mutex_
};

struct Generated {
  std::vector<engine::SampledToken> tokens;
  std::string text;
  std::string finish_reason;
};

absl::StatusOr<std::string> PromptText(const config::Config& config) {
  if (config.prompt.has_value()) return *config.prompt;
  return ReadStandardInput(kMaxPromptBytes);
}

absl::Status CheckWritesText(const config::Config& config, const EngineSession& session) {
  if (session.model.head == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      base::StrCat(config.model,
                   " is a model that gives embeddings or scores of classes and writes "
                   "no text; `heddle serve` has routes for them"));
}

absl::StatusOr<std::vector<TokenId>> EncodePrompt(const config::Config& config,
                                                  const ModelTextCodec& codec) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, PromptText(config));
  if (!config.chat) return codec.Encode(text, /*add_special=*/true);
  const ordered_json messages = {{{"role", "user"}, {"content", text}}};
  absl::StatusOr<std::vector<TokenId>> tokens = codec.EncodeChat({.messages = &messages});
  if (!absl::IsUnimplemented(tokens.status())) return tokens;
  return absl::InvalidArgumentError(
      "--chat: the model has no chat template; leave --chat out, or give one with --chat-template");
}

absl::StatusOr<engine::SamplingParams> Sampling(const config::Config& config,
                                                const EngineSession& session) {
  engine::SamplingParams params = session.defaults;
  for (const engine::SamplingNumber& number : engine::kSamplingNumbers) {
    const auto given = config.sampling.find(number.name);
    if (given != config.sampling.end()) number.Set(given->second, &params);
  }
  if (params.has_dry()) {
    std::optional<std::vector<std::string>> breakers;
    if (!config.dry_sequence_breakers.empty()) breakers = config.dry_sequence_breakers;
    HEDDLE_ASSIGN_OR_RETURN(params.dry_breakers, FindDryBreakers(breakers, *session.codec));
  }
  params.seed = config.seed ? static_cast<uint64_t>(*config.seed) : std::random_device()();
  params.num_logprobs = static_cast<int32_t>(config.logprobs.value_or(config.json ? 0 : -1));
  return params;
}

// Feeds tokens through detokenizer and stop strings until the request ends.
class Collector {
 public:
  Collector(const config::Config& config, const EngineSession& session, bool after_text)
      : config_(config),
        session_(session),
        stream_(session.codec->NewStream(after_text, {})),
        scanner_(config.stop) {}

  // Blocks until the last event.
  absl::StatusOr<Generated> Run(EventQueue& queue, RequestId id) {
    while (true) {
      GenerationEvent event = queue.Pop();
      for (engine::SampledToken& token : event.tokens) {
        if (!stopped_) HEDDLE_RETURN_IF_ERROR(Take(std::move(token)));
        if (stopped_) session_.loop->Cancel(id);
      }
      if (!event.finished) continue;
      if (event.reason == FinishReason::kError) return event.error;
      if (!stopped_) HEDDLE_RETURN_IF_ERROR(End());
      generated_.finish_reason =
          stopped_ || event.reason == FinishReason::kStop ? "stop" : "length";
      return std::move(generated_);
    }
  }

 private:
  absl::Status Take(engine::SampledToken token) {
    std::string piece;
    stream_->Push(token.token, &piece);
    generated_.tokens.push_back(std::move(token));
    std::string out;
    stopped_ = scanner_.Push(piece, &out);
    return Print(out);
  }

  absl::Status End() {
    std::string piece;
    stream_->Finish(&piece);
    std::string out;
    stopped_ = scanner_.Push(piece, &out);
    if (!stopped_) scanner_.Flush(&out);
    return Print(out);
  }

  absl::Status Print(const std::string& text) {
    generated_.text += text;
    if (config_.json || text.empty()) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(WriteOut(text));
    return FlushOut();
  }

  const config::Config& config_;
  const EngineSession& session_;
  std::unique_ptr<TokenStream> stream_;
  StopScanner scanner_;
  Generated generated_;
  bool stopped_ = false;  // by a stop string
};

ordered_json LogprobJson(const engine::SampledToken& token, const ModelTextCodec& codec) {
  ordered_json entry = {
      {"id", token.token}, {"token", codec.TokenBytes(token.token)}, {"logprob", token.logprob}};
  if (token.top.empty()) return entry;
  for (const engine::TokenLogprob& top : token.top) {
    entry["top"].push_back(
        {{"id", top.token}, {"token", codec.TokenBytes(top.token)}, {"logprob", top.logprob}});
  }
  return entry;
}

std::string ToJson(const std::vector<TokenId>& prompt, const Generated& generated,
                   const ModelTextCodec& codec) {
  ordered_json json = {{"prompt_ids", prompt}, {"ids", ordered_json::array()}};
  ordered_json logprobs = ordered_json::array();
  for (const engine::SampledToken& token : generated.tokens) {
    json["ids"].push_back(token.token);
    logprobs.push_back(LogprobJson(token, codec));
  }
  json["text"] = generated.text;
  json["finish_reason"] = generated.finish_reason;
  json["logprobs"] = std::move(logprobs);
  // A token may be a part of a code point; what JSON cannot carry is replaced.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// Null where no option asks for a form.
absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> ReadGrammar(
    const config::Config& config, const ModelTextCodec& codec) {
  using engine::grammar::ConstraintKind;
  engine::grammar::Constraint constraint;
  std::string origin = "--regex";
  if (!config.regex.empty()) {
    constraint.kind = ConstraintKind::kRegex;
    constraint.text = config.regex;
  } else {
    const bool is_schema = !config.json_schema.empty();
    const std::string& path = is_schema ? config.json_schema : config.grammar;
    if (path.empty()) return nullptr;
    origin = base::StrCat(is_schema ? "--json-schema " : "--grammar ", path);
    constraint.kind = is_schema ? ConstraintKind::kJsonSchema : ConstraintKind::kGbnf;
    HEDDLE_ASSIGN_OR_RETURN(constraint.text, ReadFile(path, engine::grammar::kMaxSourceBytes));
    const bool is_lark = !is_schema && engine::grammar::IsLark(constraint.text);
    if (is_lark) constraint.kind = ConstraintKind::kLark;
  }
  auto grammar = codec.grammars().Compile(constraint);
  if (grammar.ok()) return grammar;
  return absl::Status(grammar.status().code(),
                      base::StrCat(origin, ": ", std::string(grammar.status().message())));
}

}  // namespace

absl::Status RunGenerate(const config::Config& config) {
  const Logger log(LogFormat::kText, ToLogLevel(config.log_level));
  EventQueue queue;  // outlives the loop, whose thread pushes to it
  HEDDLE_ASSIGN_OR_RETURN(EngineSession session, StartEngine(config, log));
  HEDDLE_RETURN_IF_ERROR(CheckWritesText(config, session));
  const bool asked = !config.speculate.empty() || !config.speculative_config.empty();
  if (asked) LogSpeculation(session.speculation, log);
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, EncodePrompt(config, *session.codec));
  GenerationRequest request;
  request.id = session.loop->NextId();
  request.prompt = prompt;
  request.max_tokens = static_cast<int32_t>(
      config.max_tokens < 0 ? std::numeric_limits<int32_t>::max() : config.max_tokens);
  HEDDLE_ASSIGN_OR_RETURN(request.adapter, LoadForOneRequest(config, session));
  HEDDLE_ASSIGN_OR_RETURN(request.sampling, Sampling(config, session));
  HEDDLE_ASSIGN_OR_RETURN(request.grammar, ReadGrammar(config, *session.codec));
  if (!config.ignore_eos) {
    const auto ends = session.codec->end_tokens();
    request.stop_tokens.assign(ends.begin(), ends.end());
  }
  const RequestId id = request.id;
  HEDDLE_RETURN_IF_ERROR(session.loop->Submit(
      std::move(request), [&queue](GenerationEvent&& event) { queue.Push(std::move(event)); }));
  // An answer in a chat begins a text, and so does one to no prompt at all.
  const bool after_text =
      !config.chat && !session.codec->Decode(prompt, /*skip_special=*/true).empty();
  HEDDLE_ASSIGN_OR_RETURN(const Generated generated,
                          Collector(config, session, after_text).Run(queue, id));
  HEDDLE_RETURN_IF_ERROR(WriteOut(config.json ? ToJson(prompt, generated, *session.codec) : "\n"));
  return FlushOut();
}

}  // namespace heddle::server
