// `heddle bench --text`: a text's answer with drafts and without, in turns, because shared machines
// change from minute to minute.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "config/values.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/cli/answer_bench.h"
#include "server/cli/command.h"
#include "server/cli/draft_bench.h"
#include "server/cli/model_options.h"
#include "server/cli/speculation_options.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

struct TextRates {
  double plain_tok_s = 0;
  double drafted_tok_s = 0;
  double tokens_per_step = 0;  // per sequence, with drafts
  scheduler::DraftBudgetStats drafts;
};

absl::StatusOr<std::vector<engine::TokenId>> ReadTokens(const config::Config& config,
                                                        const engine::LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config.bench_text, kMaxTextBytes));
  const bool is_random = !config.random_weights.empty();
  HEDDLE_ASSIGN_OR_RETURN(
      const engine::ModelInfo model,
      is_random ? engine::DescribeRandomModel(config.random_weights, kernels::DType::kBF16, options)
                : engine::DescribeModel(config.model, options));
  std::vector<engine::TokenId> tokens;
  if (is_random) {
    tokens = WordsAsTokens(text, model.model.spec.vocab);
  } else {
    HEDDLE_ASSIGN_OR_RETURN(const auto tokenizer, engine::text::LoadTokenizer(config.model));
    HEDDLE_RETURN_IF_ERROR(tokenizer->Encode(text, {.parse_special = false}, &tokens));
  }
  const auto count = static_cast<int64_t>(tokens.size());
  if (count <= config.output_tokens || count >= model.model.spec.max_context) {
    return absl::InvalidArgumentError(
        base::StrCat("--text ", config.bench_text, " has ", count,
                     " tokens: it must have more than ", "--output-tokens (", config.output_tokens,
                     "), and fewer than this model's context of ", model.model.spec.max_context));
  }
  return tokens;
}

absl::StatusOr<engine::LocalModel> LoadFor(const config::Config& config, size_t tokens,
                                           int32_t largest_batch) {
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  options.capacity.max_context = static_cast<int32_t>(tokens) + 1;
  options.capacity.max_batch_seqs = 2 * largest_batch;  // with drafts and without, by turns
  std::string left_out;
  HEDDLE_ASSIGN_OR_RETURN(options.open_draft, ToOpenDraft(config, &left_out));
  if (config.random_weights.empty()) {
    absl::StatusOr<engine::LocalModel> model = engine::LoadLocalModel(config.model, options);
    if (model.ok() && !left_out.empty()) return absl::InvalidArgumentError(left_out);
    return model;
  }
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DType dtype, engine::RandomFormat(config.weights));
  return engine::LoadRandomModel(config.random_weights, dtype, options);
}

// Answers without drafts, then with them.
absl::StatusOr<std::vector<DraftTiming>> MeasureBoth(engine::Executor& executor,
                                                     const DraftBenchShape& shape,
                                                     const SpeculationOptions& speculation) {
  const SpeculationOptions ways[] = {{}, speculation};
  // A drafter with weights follows what the model writes; others can follow a text.
  if (executor.limits().max_ahead_tokens == 0) return ReplayText(executor, shape, ways);
  std::vector<DraftTiming> timings;
  for (const SpeculationOptions& way : ways) {
    HEDDLE_ASSIGN_OR_RETURN(const DraftTiming timing, WriteAnswers(executor, shape, way));
    timings.push_back(timing);
  }
  return timings;
}

// The middle of several runs of each kind.
absl::StatusOr<TextRates> MeasureText(engine::Executor& executor, const DraftBenchShape& shape,
                                      const SpeculationOptions& speculation, int64_t repeat) {
  std::vector<double> plain_s;
  std::vector<DraftTiming> drafted;
  for (int64_t i = 0; i < repeat; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<DraftTiming> both,
                            MeasureBoth(executor, shape, speculation));
    plain_s.push_back(both[0].seconds);
    drafted.push_back(both[1]);
  }
  std::sort(plain_s.begin(), plain_s.end());
  std::sort(drafted.begin(), drafted.end(),
            [](const DraftTiming& a, const DraftTiming& b) { return a.seconds < b.seconds; });
  const DraftTiming& middle = drafted[drafted.size() / 2];
  const auto answer = static_cast<double>(shape.text.size()) - shape.prompt_tokens;
  return TextRates{.plain_tok_s = answer * shape.batch / plain_s[plain_s.size() / 2],
                   .drafted_tok_s = answer * shape.batch / middle.seconds,
                   .tokens_per_step = answer / static_cast<double>(middle.steps),
                   .drafts = middle.drafts};
}

std::string ToText(int32_t batch, const TextRates& rates) {
  return absl::StrFormat("%5d %13.1f %14.1f %6.2f %13.2f %9d %10d\n", batch, rates.plain_tok_s,
                         rates.drafted_tok_s, rates.drafted_tok_s / rates.plain_tok_s,
                         rates.tokens_per_step, rates.drafts.drafted_tokens,
                         rates.drafts.accepted_tokens);
}

std::string ToJson(const config::Config& config, const DraftBenchShape& shape,
                   const TextRates& rates) {
  const nlohmann::ordered_json json = {
      {"model", config.random_weights.empty() ? config.model : config.random_weights},
      {"text", config.bench_text},
      {"batch", shape.batch},
      {"prompt_tokens", shape.prompt_tokens},
      {"output_tokens", static_cast<int64_t>(shape.text.size()) - shape.prompt_tokens},
      {"plain_tok_s", rates.plain_tok_s},
      {"drafted_tok_s", rates.drafted_tok_s},
      {"tokens_per_step", rates.tokens_per_step},
      {"drafted_tokens", rates.drafts.drafted_tokens},
      {"accepted_tokens", rates.drafts.accepted_tokens},
      {"pauses", rates.drafts.times_off},
  };
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::Status RunTextBench(const config::Config& config, const std::vector<int32_t>& batches) {
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options, ToLoadOptions(config));
  HEDDLE_ASSIGN_OR_RETURN(const SpeculationOptions speculation, ToSpeculationOptions(config));
  const bool has_network = speculation.network.kind != NetworkOptions::Kind::kNone &&
                           speculation.network.kind != NetworkOptions::Kind::kAny;
  if (has_network && !config.random_weights.empty()) {
    return absl::InvalidArgumentError(
        "--speculate names a drafter with weights, and --random-weights a model without a "
        "vocabulary: give a MODEL");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<engine::TokenId> tokens, ReadTokens(config, options));
  const auto prompt_tokens = static_cast<int64_t>(tokens.size()) - config.output_tokens;
  HEDDLE_ASSIGN_OR_RETURN(
      const engine::LocalModel model,
      LoadFor(config, tokens.size(), *std::max_element(batches.begin(), batches.end())));
  if (!config.json) {
    HEDDLE_RETURN_IF_ERROR(WriteOut(base::StrCat(
        "text      ", config.bench_text, ", ", prompt_tokens, " tokens of prompt, then ",
        config.output_tokens, " of answer\n\n",
        "batch   plain tok/s   drafts tok/s   gain   tokens/step   drafted   accepted\n")));
  }
  for (const int32_t batch : batches) {
    const DraftBenchShape shape{
        .batch = batch, .text = tokens, .prompt_tokens = static_cast<int32_t>(prompt_tokens)};
    HEDDLE_ASSIGN_OR_RETURN(const TextRates rates,
                            MeasureText(*model.executor, shape, speculation, config.repeat));
    HEDDLE_RETURN_IF_ERROR(
        WriteOut(config.json ? ToJson(config, shape, rates) : ToText(batch, rates)));
    HEDDLE_RETURN_IF_ERROR(FlushOut());
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
