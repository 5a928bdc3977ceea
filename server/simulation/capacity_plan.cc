#include "server/simulation/capacity_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using scheduler::AttentionUs;
using scheduler::MatricesUs;
using scheduler::StepTimeModel;

// Requests per simulated user: enough for a steady state, few enough to be instant.
constexpr int32_t kRequestsPerUser = 6;

int32_t Context(const CapacityQuestion& question) {
  return question.prompt_tokens + question.output_tokens;
}

int64_t PagesPerUser(const CapacityQuestion& question) {
  const scheduler::SchedulerOptions& options = question.scheduler;
  return options.page_rule().MostPages(Context(question), options.windows);
}

int32_t MostRunning(const scheduler::SchedulerOptions& options) {
  return std::min(options.max_step_seqs, options.max_step_tokens);
}

int64_t AdapterPages(const CapacityQuestion& question) {
  return int64_t{question.adapters} * question.adapter.pages;
}

void CountUsers(const CapacityQuestion& question, CapacityAnswer* answer) {
  const int64_t pages = PagesPerUser(question);
  const int64_t left = std::max<int64_t>(0, question.scheduler.num_pages - AdapterPages(question));
  const int64_t by_memory = left / pages;
  answer->tokens_left =
      left / question.capacity.kv_layout.n_kv_groups() * question.scheduler.page_tokens;
  const int64_t by_batch = MostRunning(question.scheduler);
  answer->limit = by_memory < by_batch ? UserLimit::kKvMemory : UserLimit::kBatchSeqs;
  answer->users_that_fit = static_cast<int32_t>(std::min(by_memory, by_batch));
  if (Context(question) > scheduler::Scheduler::MaxContext(question.scheduler)) {
    answer->limit = UserLimit::kContext;
    answer->users_that_fit = 0;
  }
  if (left == 0) answer->limit = UserLimit::kAdapters;
  answer->users = question.users > 0 ? question.users : answer->users_that_fit;
  answer->fits = answer->users > 0 && answer->users <= answer->users_that_fit;
  if (question.users > 0 && answer->fits) answer->limit = UserLimit::kNone;
  answer->kv_bytes_needed =
      (answer->users * pages + AdapterPages(question)) * question.capacity.page_bytes;
}

// Time that the slowest stage takes for `sequences` sequences, each with `rows` rows at the end of
// a context.
double SlowestStageUs(const CapacityQuestion& question, int32_t sequences, int32_t rows,
                      int32_t context) {
  const auto us = [&](const StepTimeModel& stage) {
    return MatricesUs(stage, int64_t{sequences} * rows, sequences) +
           sequences * AttentionUs(stage, rows, context);
  };
  double slowest = us(question.peak);
  for (const StepTimeModel& stage : question.later_peaks) slowest = std::max(slowest, us(stage));
  return slowest;
}

// Computes what the data sheet allows for `users` decodes at their full context, of which each step
// of a pipeline has a part, and for one prompt by itself.
void FindPeaks(const CapacityQuestion& question, int32_t users, CapacityAnswer* answer) {
  const StepTimeModel& peak = question.peak;
  const int32_t stages = question.scheduler.pipeline_stages;
  const int32_t in_step = (users + stages - 1) / stages;
  const double decode_us = SlowestStageUs(question, in_step, 1, Context(question));
  answer->peak_decode_tok_s = static_cast<double>(users) / stages / decode_us * 1e6;
  answer->decode_is_bandwidth = in_step * (peak.row_us + peak.logit_row_us) < peak.weights_us;
  const int32_t prompt = question.prompt_tokens;
  answer->peak_prefill_tok_s = prompt / SlowestStageUs(question, 1, prompt, prompt) * 1e6;
}

absl::Status Simulate(const CapacityQuestion& question, int32_t users, CapacityAnswer* answer) {
  std::vector<scheduler::SimulatedRequest> load(
      static_cast<size_t>(users) * kRequestsPerUser,
      {.prompt_tokens = question.prompt_tokens, .output_tokens = question.output_tokens});
  for (size_t i = 0; i < load.size() && question.adapters > 0; ++i) {
    load[i].adapter = 1 + i % static_cast<size_t>(question.adapters);
    load[i].adapter_pages = question.adapter.pages;
  }
  HEDDLE_ASSIGN_OR_RETURN(const scheduler::SimulationResult result,
                          scheduler::Simulate(load, {.scheduler = question.scheduler,
                                                     .machine = question.machine,
                                                     .later_stages = question.later_stages,
                                                     .link = question.link,
                                                     .clients = users}));
  answer->expected = Summarize(result, question.scheduler, /*wall_s=*/0);
  return absl::OkStatus();
}

const char* LimitName(UserLimit limit) {
  switch (limit) {
    case UserLimit::kNone:
      return "none";
    case UserLimit::kContext:
      return "context";
    case UserLimit::kAdapters:
      return "adapters";
    case UserLimit::kKvMemory:
      return "kv_memory";
    case UserLimit::kBatchSeqs:
      return "max_batch_seqs";
  }
  return "";
}

// The advice for serving more users.
std::string LimitText(const CapacityQuestion& question, const CapacityAnswer& answer) {
  const engine::Capacity& capacity = question.capacity;
  switch (answer.limit) {
    case UserLimit::kNone:
      return "";
    case UserLimit::kContext:
      return base::StrCat(
          "; a sequence has at most ", scheduler::Scheduler::MaxContext(question.scheduler),
          " tokens here: ",
          capacity.context_reduced ? "--kv-memory" : "--max-context, or the model's own limit");
    case UserLimit::kBatchSeqs:
      return "; the limit is --max-batch-seqs";
    case UserLimit::kAdapters:
      return "; the adapters leave no page of the KV memory: --kv-memory, or fewer of them";
    case UserLimit::kKvMemory:
      break;
  }
  std::string text = "; the limit is the KV memory";
  if (answer.fits) return text + ": --kv-memory";
  const int64_t fixed = capacity.weight_bytes + capacity.workspace_bytes;
  return text + base::StrCat(": --kv-memory ", base::ShowBytes(answer.kv_bytes_needed),
                             " would do, on a machine with ",
                             base::ShowBytes(fixed + answer.kv_bytes_needed), " and some to spare");
}

// How many adapters of the rank leave how many tokens: for the number that is asked for, and for
// some that say how memory is shared.
std::string AdapterText(const CapacityQuestion& question, const CapacityAnswer& answer) {
  if (question.adapter.pages == 0) return "";
  std::string text = base::StrCat("adapters  rank ", question.adapter_rank,
                                  " on all linears: ", base::ShowBytes(question.adapter.bytes),
                                  ", ", question.adapter.pages,
                                  question.adapter.pages == 1 ? " page" : " pages", " each; ");
  if (question.adapters > 0) {
    return text +
           base::StrCat(question.adapters, " leave room for ", answer.tokens_left, " tokens\n");
  }
  const scheduler::SchedulerOptions& options = question.scheduler;
  const int64_t groups = question.capacity.kv_layout.n_kv_groups();
  for (const int64_t count : {1, 10, 100, 1000}) {
    const int64_t left = options.num_pages - count * question.adapter.pages;
    if (left <= 0) break;
    text += base::StrCat(count, count == 1 ? " leaves " : " leave ",
                         left / groups * options.page_tokens, ", ");
  }
  return text + base::StrCat("and at most ", options.num_pages / question.adapter.pages,
                             " fit at a time, of ", answer.tokens_left, " tokens\n");
}

// `who` names the users, if they are fewer than asked for.
std::string ExpectedText(const SimulationReport& expected, const std::string& who) {
  return absl::StrFormat(
      "expected  %s%.1f output tok/s; first token after %.0f ms (p99 %.0f), then one every %.1f ms "
      "(p99 %.1f)\n",
      who, expected.output_tok_s, expected.ttft.p50, expected.ttft.p99, expected.inter_token.p50,
      expected.inter_token.p99);
}

}  // namespace

absl::StatusOr<CapacityAnswer> AnswerCapacity(const CapacityQuestion& question) {
  CapacityAnswer answer;
  CountUsers(question, &answer);
  const int32_t users = std::min(answer.users, answer.users_that_fit);
  if (users == 0) return answer;
  FindPeaks(question, users, &answer);
  HEDDLE_RETURN_IF_ERROR(Simulate(question, users, &answer));
  return answer;
}

std::string CapacityText(const CapacityQuestion& question, const CapacityAnswer& answer) {
  const engine::Capacity& capacity = question.capacity;
  std::string text = absl::StrFormat(
      "needs     weights %s, workspace %s, KV %s per token; %s of memory\n",
      base::ShowBytes(capacity.weight_bytes), base::ShowBytes(capacity.workspace_bytes),
      base::ShowBytes(capacity.kv_bytes_per_token), base::ShowBytes(capacity.available_bytes));
  const std::string each =
      absl::StrFormat(" of %d + %d tokens", question.prompt_tokens, question.output_tokens);
  text += answer.fits ? base::StrCat("fits      ", answer.users, " users", each)
                      : base::StrCat("does not fit: ", answer.users, " users", each, "; ",
                                     answer.users_that_fit, " do");
  text += LimitText(question, answer) + "\n" + AdapterText(question, answer);
  if (answer.expected.requests == 0) return text;
  text += absl::StrFormat(
      "peak      %.0f tok/s decoding (%s), %.0f tok/s reading prompts: the machine's limits\n",
      answer.peak_decode_tok_s, answer.decode_is_bandwidth ? "memory bandwidth" : "arithmetic",
      answer.peak_prefill_tok_s);
  const std::string who =
      answer.fits ? "" : base::StrCat("of the ", answer.users_that_fit, " that fit: ");
  return text + ExpectedText(answer.expected, who);
}

std::string CapacityJson(const CapacityQuestion& question, const CapacityAnswer& answer,
                         const std::vector<std::pair<std::string, std::string>>& heading) {
  const engine::Capacity& capacity = question.capacity;
  nlohmann::ordered_json json;
  for (const auto& [name, text] : heading) json[name] = text;
  json["users"] = answer.users;
  json["prompt_tokens"] = question.prompt_tokens;
  json["output_tokens"] = question.output_tokens;
  json["fits"] = answer.fits;
  json["users_that_fit"] = answer.users_that_fit;
  json["limited_by"] = LimitName(answer.limit);
  json["limits"] = {{"num_pages", question.scheduler.num_pages},
                    {"page_tokens", question.scheduler.page_tokens},
                    {"max_context", question.scheduler.max_context},
                    {"max_step_tokens", question.scheduler.max_step_tokens},
                    {"max_step_seqs", question.scheduler.max_step_seqs}};
  json["available_bytes"] = capacity.available_bytes;
  json["weight_bytes"] = capacity.weight_bytes;
  json["workspace_bytes"] = capacity.workspace_bytes;
  json["kv_bytes"] = capacity.kv_bytes;
  json["kv_bytes_per_token"] = capacity.kv_bytes_per_token;
  json["kv_bytes_needed"] = answer.kv_bytes_needed;
  for (const engine::RankMemory& rank : question.ranks) {
    json["ranks"].push_back({{"weight_bytes", rank.weight_bytes},
                             {"kv_bytes", rank.kv_bytes},
                             {"kv_bytes_per_token", rank.kv_bytes_per_token}});
  }
  if (!question.ranks.empty()) json["one_rank_is_faster"] = question.one_rank_is_faster;
  if (question.adapter.pages > 0) {
    json["adapters"] = {{"count", question.adapters},
                        {"rank", question.adapter_rank},
                        {"bytes_each", question.adapter.bytes},
                        {"pages_each", question.adapter.pages},
                        {"tokens_left", answer.tokens_left}};
  }
  if (answer.expected.requests > 0) {
    json["peak"] = {{"decode_tok_s", answer.peak_decode_tok_s},
                    {"decode_limited_by", answer.decode_is_bandwidth ? "bandwidth" : "arithmetic"},
                    {"prefill_tok_s", answer.peak_prefill_tok_s}};
    auto spread = [](const Spread& ms) {
      return nlohmann::ordered_json{{"mean", ms.mean}, {"p50", ms.p50}, {"p99", ms.p99}};
    };
    json["expected"] = {{"output_tok_s", answer.expected.output_tok_s},
                        {"ttft_ms", spread(answer.expected.ttft)},
                        {"inter_token_ms", spread(answer.expected.inter_token)},
                        {"preemptions", answer.expected.preemptions}};
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace heddle::server
