#include "server/branches/branch_requests.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/branches/branch_fields.h"
#include "server/json_writer.h"
#include "server/openai/request_parts.h"
#include "server/openai/scheduling.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

using NewFields = RequestFields<fields::kNewBranches>;

constexpr const char* kLengths[] = {"max_tokens", "max_completion_tokens"};

// A budget of so much is no limit.
constexpr int64_t kNoLimit = int64_t{1} << 60;

// A branch with more tokens is not read in a hurry.
constexpr size_t kQuickTokens = 4096;

constexpr RefusedField kRefusedOfContinuations[] = {
    {"n", "1", "a branch has one continuation; fork it for more"},
    {"truncate_prompt_tokens", "", "a branch is read as a whole; fork it at a token"},
    {"lora", "", "the adapters are those of the tree"},
    {"cache_salt", "", "it is that of the tree"},
    {"prompt", "", "the branch is the prompt; give 'append'"},
    {"use_beam_search", "false", "fork a branch, and score what may follow"},
    {"search", "", "fork the branch, and compare what its branches draw"},
    {"parallel", "", "fork the branch, and continue its branches side by side"},
    {"keep", "true", "branches are always kept"},
};

// The tokens of a text or of an array of token ids; none if the field is missing.
absl::StatusOr<std::vector<TokenId>> TokensOf(const Json* value, std::string_view name,
                                              const TextCodec& codec) {
  if (value == nullptr) return std::vector<TokenId>();
  const std::string* text = TextOf(value);
  if (text == nullptr) return ReadTokenIds(*value, name, codec.vocab());
  if (text->empty()) return std::vector<TokenId>();
  return EncodeField(*text, name, /*add_special=*/false, codec);
}

void WriteBranch(const BranchInfo& info, JsonWriter* json) {
  json->BeginObject().Member("id", info.id).Member("object", "branch").Member("root", info.root);
  json->Key("parent");
  info.parent.empty() ? json->Null() : json->String(info.parent);
  json->Key("children").BeginArray();
  for (const std::string& child : info.children) json->String(child);
  json->EndArray();
  json->Member("created_at", info.created).Member("expires_at", info.expires);
  json->Member("status", info.is_running ? "running" : "kept");
  json->Key("finish_reason");
  info.finish_reason.empty() ? json->Null() : json->String(info.finish_reason);
  json->Member("num_tokens", info.num_tokens).Member("forked_at", info.forked_at);
  json->Member("parts", std::max<int64_t>(1, info.num_parts));
  json->Member("drawn_tokens", info.num_drawn);
  json->Key("sum_logprob").Number(info.sum_logprob);
  json->Key("mean_logprob");
  info.num_drawn == 0 ? json->Null()
                      : json->Number(info.sum_logprob / static_cast<double>(info.num_drawn));
  json->Key("tree").BeginObject();
  const auto account = [json](std::string_view name, int64_t used, int64_t limit) {
    json->Key(name).BeginObject().Member("used", used).Key("limit");
    limit >= kNoLimit ? json->Null() : json->Int(limit);
    json->EndObject();
  };
  account("tokens", info.tree_tokens, info.budget.tokens);
  account("branches", info.tree_branches, info.budget.branches);
  account("bytes", info.tree_bytes, info.budget.bytes);
  json->EndObject();
}

std::string ListOf(std::span<const BranchInfo> infos) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "list").Member("root", infos.front().root);
  json.Key("data").BeginArray();
  for (const BranchInfo& info : infos) {
    WriteBranch(info, &json);
    json.EndObject();
  }
  json.EndArray().EndObject();
  return out;
}

// The objects of "sampling", one for all branches or one for each; seeds of one for all are apart.
absl::StatusOr<std::vector<std::string>> ReadSamplings(const Json* value, int64_t n) {
  std::vector<std::string> samplings;
  if (value == nullptr) return samplings;
  if (value->is_array() && static_cast<int64_t>(value->size()) != n) {
    return FieldError("sampling", base::StrCat("'sampling' must have an object for each of the ", n,
                                               " branches, found ", value->size()));
  }
  for (int64_t i = 0; i < n; ++i) {
    Json one = value->is_array() ? (*value)[static_cast<size_t>(i)] : *value;
    const std::string path =
        value->is_array() ? base::StrCat("sampling[", i, "]") : std::string("sampling");
    if (!one.is_object()) {
      return FieldError(path, base::StrCat("'", path, "' must be an object, found ", JsonKind(one)),
                        "invalid_type");
    }
    HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kSampling> checked,
                            RequestFields<fields::kSampling>::Check(one, path));
    if (checked.Has<"seed">() && !value->is_array()) {
      one["seed"] = checked.Uint<"seed">() + static_cast<uint64_t>(i);
    }
    samplings.push_back(one.dump());
  }
  return samplings;
}

// A limit of a new tree; 0: the usual one. INVALID_ARGUMENT: more than this server allows.
absl::Status CheckLimit(std::string_view name, int64_t value, int64_t largest) {
  if (value <= largest) return absl::OkStatus();
  const std::string path = base::StrCat("budget.", name);
  return FieldError(path,
                    base::StrCat("'", path, "' must be at most ", largest, ", found ", value));
}

absl::StatusOr<BranchBudget> ReadBudget(const NewFields& body, const BranchBudget& largest) {
  BranchBudget budget;
  const auto given = body.Object<"budget", fields::kBranchBudget>();
  if (!given.has_value()) return budget;
  budget = {given->Int<"tokens">(0), given->Int<"branches">(0), given->Int<"bytes">(0),
            given->Int<"seconds">(0)};
  HEDDLE_RETURN_IF_ERROR(CheckLimit("tokens", budget.tokens, largest.tokens));
  HEDDLE_RETURN_IF_ERROR(CheckLimit("branches", budget.branches, largest.branches));
  HEDDLE_RETURN_IF_ERROR(CheckLimit("bytes", budget.bytes, largest.bytes));
  HEDDLE_RETURN_IF_ERROR(CheckLimit("seconds", budget.seconds, largest.seconds));
  return budget;
}

// Begins a tree with the prompt of `body` and what is appended to it.
absl::StatusOr<BranchInfo> AddRoot(const NewFields& body, const RequestContext& context,
                                   const BranchAccess& access) {
  if (!body.Has<"prompt">()) {
    return FieldError("from", "give 'from', the branch to fork, or the 'prompt' of a new tree");
  }
  const std::string* model = body.Text<"model">();
  HEDDLE_RETURN_IF_ERROR(ChooseModel(model, body.Value<"lora">(), context).status());
  const PromptOptions options{.add_special = body.Bool<"add_special_tokens">(true)};
  HEDDLE_ASSIGN_OR_RETURN(std::vector<ApiPrompt> prompts,
                          ReadPrompts(*body.Value<"prompt">(), "prompt", options, *context.codec));
  BranchTable::NewRoot root;
  root.tokens = std::move(prompts.front().tokens);
  if (static_cast<int64_t>(root.tokens.size()) >= context.model->max_context) {
    return FieldError(
        "prompt",
        base::StrCat("the prompt has ", root.tokens.size(),
                     " tokens, and the context of this server holds ", context.model->max_context),
        "context_length_exceeded");
  }
  root.common = CommonMembers(model, body.Value<"lora">(), body.Text<"cache_salt">());
  HEDDLE_ASSIGN_OR_RETURN(root.budget, ReadBudget(body, access.table->limits().largest));
  root.ttl = body.Int<"ttl">(0);
  return access.table->AddRoot(access.tenant, std::move(root), access.now);
}

// The tokens with which each of the workers begins; none if the field is missing.
absl::StatusOr<std::vector<std::vector<TokenId>>> ReadWorkers(
    const RequestFields<fields::kContinueBranch>& body, const BranchTable::Source& source,
    const RequestContext& context, const BranchAccess& access) {
  std::vector<std::vector<TokenId>> workers;
  const Json* list = body.Value<"workers">();
  if (list == nullptr) return workers;
  if (const std::string& why = access.table->limits().no_workers; !why.empty()) {
    return WithParam(WithCode(absl::InvalidArgumentError(why), "workers_unsupported"), "workers");
  }
  if (body.Has<"append">()) {
    return FieldError("append", "each of the 'workers' has a text of its own: not with 'append'");
  }
  if (!source.parts.empty()) {
    return FieldError("workers",
                      "workers go on behind a branch in plain order, and this one has "
                      "parts side by side");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = base::StrCat("workers[", i, "]");
    const Json& one = (*list)[i];
    if (!one.is_string() && !one.is_array()) {
      return FieldError(
          path, base::StrCat("'", path, "' must be a string or an array, found ", JsonKind(one)),
          "invalid_type");
    }
    HEDDLE_ASSIGN_OR_RETURN(workers.emplace_back(), TokensOf(&one, path, *context.codec));
    if (workers.back().empty()) {
      return FieldError(path, base::StrCat("'", path, "' has no tokens"));
    }
  }
  return workers;
}

// Whether the client names the length of its answer, and not just the rest of the context.
bool NamesLength(const Json& body) {
  return std::any_of(std::begin(kLengths), std::end(kLengths), [&body](const char* name) {
    const auto found = body.find(name);
    return found != body.end() && IntegerOf(*found).value_or(0) > 0;
  });
}

// Cuts what each worker draws to what the context holds of all of them.
absl::Status LimitWorkers(bool names_length, const RequestContext& context, ApiRequest* api) {
  GenerationRequest& generation = api->generations.front();
  const auto count = static_cast<int64_t>(generation.workers.size());
  auto given = static_cast<int64_t>(generation.prompt.size());
  for (const std::vector<TokenId>& begin : generation.workers) {
    given += static_cast<int64_t>(begin.size());
  }
  const int64_t most = context.model->max_context;
  const int64_t room = (most - given) / count;
  const std::string held =
      base::StrCat("the branch and what ", count, " workers begin with have ", given,
                   " tokens, and the context of this server holds ", most);
  if (given + count > most) {
    return FieldError("workers", base::StrCat(held, " with at least one for each answer"),
                      "context_length_exceeded");
  }
  const int64_t asked = generation.max_tokens;
  if (asked <= room) return absl::OkStatus();
  if (names_length && !context.policy.clamp_max_tokens) {
    return FieldError("max_tokens",
                      base::StrCat(held, ": at most ", room, " can follow for each, found ", asked),
                      "context_length_exceeded");
  }
  if (names_length) {
    api->Warn(base::StrCat("max_tokens cut from ", asked, " to ", room,
                           ", the rest of the context for each worker"));
  }
  generation.max_tokens = static_cast<int32_t>(room);
  const auto limit = [room](engine::SamplingParams& one) {
    one.min_tokens = std::min(one.min_tokens, static_cast<int32_t>(room));
  };
  limit(generation.sampling);
  std::for_each(generation.sampling_of.begin(), generation.sampling_of.end(), limit);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> CreateBranches(std::string_view text, const RequestContext& context,
                                           const BranchAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const NewFields body, CheckBody<fields::kNewBranches>(json, {}, context));
  BranchTable::ForkOrder order;
  order.n = body.Int<"n">(1);
  order.ttl = body.Int<"ttl">(0);
  order.apart = body.Bool<"concurrent">(false);
  if (body.Has<"at">()) order.at = body.Int<"at">(0);
  HEDDLE_ASSIGN_OR_RETURN(order.append, TokensOf(body.Value<"append">(), "append", *context.codec));
  HEDDLE_ASSIGN_OR_RETURN(order.sampling, ReadSamplings(body.Value<"sampling">(), order.n));
  const std::string* from = body.Text<"from">();
  if (from != nullptr) {
    for (const char* name : {"prompt", "budget", "model", "lora", "cache_salt"}) {
      if (Find(json, name) == nullptr) continue;
      return FieldError(name, base::StrCat("'", name, "' belongs to a new tree: not with 'from'"));
    }
    order.from = *from;
    HEDDLE_ASSIGN_OR_RETURN(std::vector<BranchInfo> infos,
                            access.table->Fork(access.tenant, order, access.now));
    return ListOf(infos);
  }
  HEDDLE_ASSIGN_OR_RETURN(BranchInfo root, AddRoot(body, context, access));
  if (order.n == 1 && order.append.empty() && order.sampling.empty() && !order.at.has_value() &&
      !order.apart) {
    return ListOf({&root, 1});
  }
  order.from = root.id;
  const absl::StatusOr<std::vector<BranchInfo>> infos =
      access.table->Fork(access.tenant, order, access.now);
  if (infos.ok()) return ListOf(*infos);
  access.table->Drop(access.tenant, root.id, access.now).IgnoreError();
  return infos.status();
}

absl::StatusOr<std::string> JoinBranches(std::string_view id, std::string_view text,
                                         const RequestContext& context,
                                         const BranchAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kJoinBranches> body,
                          CheckBody<fields::kJoinBranches>(json, {}, context));
  BranchTable::JoinOrder order{.parent = std::string(id)};
  for (const Json& child : *body.Value<"children">()) {
    const std::string* name = TextOf(&child);
    if (name == nullptr) return FieldError("children", "'children' must hold ids", "invalid_type");
    order.children.push_back(*name);
  }
  const std::string* kind = body.Text<"kind">();
  order.pick = kind != nullptr && *kind == "pick";
  order.concurrent = kind != nullptr && *kind == "concurrent";
  if (kind != nullptr && !order.pick && !order.concurrent && *kind != "text") {
    return FieldError("kind", base::StrCat("'kind' must be text, concurrent or pick, found ",
                                           base::Quote(*kind)));
  }
  if (order.pick && order.children.size() != 1) {
    return FieldError("children", "'children' must be the one child that is picked");
  }
  HEDDLE_ASSIGN_OR_RETURN(order.separator,
                          TokensOf(body.Value<"separator">(), "separator", *context.codec));
  HEDDLE_ASSIGN_OR_RETURN(order.tail, TokensOf(body.Value<"tail">(), "tail", *context.codec));
  order.ttl = body.Int<"ttl">(0);
  HEDDLE_ASSIGN_OR_RETURN(const BranchInfo joined,
                          access.table->Join(access.tenant, order, access.now));
  return ListOf({&joined, 1});
}

absl::StatusOr<std::string> DescribeBranch(std::string_view id, const RequestContext& context,
                                           const BranchAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const BranchInfo info, access.table->Get(access.tenant, id, access.now));
  std::string out;
  JsonWriter json(&out);
  WriteBranch(info, &json);
  json.Key("token_ids").BeginArray();
  for (const TokenId token : info.tokens) json.Int(token);
  json.EndArray();
  json.Member("text", context.codec->Decode(info.tokens, /*skip_special=*/false));
  json.EndObject();
  return out;
}

absl::StatusOr<std::string> DeleteBranch(std::string_view id, const BranchAccess& access) {
  HEDDLE_RETURN_IF_ERROR(access.table->Drop(access.tenant, id, access.now));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", id).Member("object", "branch").Key("deleted").Bool(true);
  json.EndObject();
  return out;
}

absl::StatusOr<BranchContinuation> ParseContinuation(std::string_view id, std::string_view text,
                                                     const RequestContext& context,
                                                     const BranchAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(
      const RequestFields<fields::kContinueBranch> body,
      CheckBody<fields::kContinueBranch>(json, kRefusedOfContinuations, context));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<TokenId> append,
                          TokensOf(body.Value<"append">(), "append", *context.codec));
  HEDDLE_ASSIGN_OR_RETURN(const BranchTable::Source source,
                          access.table->Read(access.tenant, id, access.now));
  if (context.patience.short_only && source.tokens.size() > kQuickTokens) return TakesLong();
  HEDDLE_ASSIGN_OR_RETURN(std::vector<std::vector<TokenId>> workers,
                          ReadWorkers(body, source, context, access));
  // Our own texts: both are objects.
  Json whole = Json::parse(source.common);
  if (!source.sampling.empty()) whole.update(Json::parse(source.sampling));
  whole.update(json);
  whole.erase("append");
  if (whole.erase("workers") > 0) whole["n"] = workers.size();
  std::vector<TokenId> prompt = source.tokens;
  prompt.insert(prompt.end(), append.begin(), append.end());
  whole["prompt"] = prompt;
  absl::StatusOr<ApiRequest> api = ReadRequest(Endpoint::kCompletion, whole, context);
  constexpr Renamed kNames[] = {{"prompt", "append"}};
  if (!api.ok()) return RenameFields(api.status(), kNames);
  for (GenerationRequest& generation : api->generations) generation.parts = source.parts;
  if (!workers.empty()) {
    api->generations.front().workers = std::move(workers);
    HEDDLE_RETURN_IF_ERROR(LimitWorkers(NamesLength(whole), context, &*api));
  }
  return BranchContinuation{*std::move(api), static_cast<int64_t>(source.tokens.size())};
}

absl::StatusOr<BranchScoring> ParseScoring(std::string_view id, std::string_view text,
                                           const RequestContext& context,
                                           const BranchAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kScoreBranch> body,
                          CheckBody<fields::kScoreBranch>(json, {}, context));
  HEDDLE_ASSIGN_OR_RETURN(const BranchTable::Source source,
                          access.table->Read(access.tenant, id, access.now));
  if (context.patience.short_only && source.tokens.size() > kQuickTokens) return TakesLong();
  const Json common = Json::parse(source.common);
  BranchScoring scoring;
  HEDDLE_ASSIGN_OR_RETURN(
      scoring.model, ChooseModel(TextOf(Find(common, "model")), Find(common, "lora"), context));
  scoring.num_tokens = static_cast<int64_t>(source.tokens.size());
  const Json& continuations = *body.Value<"continuations">();
  for (size_t i = 0; i < continuations.size(); ++i) {
    const std::string path = base::StrCat("continuations[", i, "]");
    const Json& one = continuations[i];
    if (!one.is_string() && !one.is_array()) {
      return FieldError(
          path, base::StrCat("'", path, "' must be a string or an array, found ", JsonKind(one)),
          "invalid_type");
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                            TokensOf(&one, path, *context.codec));
    if (tokens.empty()) return FieldError(path, base::StrCat("'", path, "' has no tokens"));
    scoring.scored_tokens += static_cast<int64_t>(tokens.size());
    GenerationRequest& generation = scoring.generations.emplace_back();
    generation.prompt = source.tokens;
    generation.parts = source.parts;
    generation.prompt.insert(generation.prompt.end(), tokens.begin(), tokens.end());
    if (static_cast<int64_t>(generation.prompt.size()) > context.model->max_context) {
      return FieldError(path,
                        base::StrCat("the branch and '", path, "' have ", generation.prompt.size(),
                                     " tokens, and the context of this server holds ",
                                     context.model->max_context),
                        "context_length_exceeded");
    }
    generation.max_tokens = 0;
    generation.prompt_logprobs = 0;
    generation.first_score = static_cast<int32_t>(source.tokens.size()) - 1;
    generation.from = source.context;
    generation.tenant = context.tenant;
    generation.cache_space = CacheSpace(TextOf(Find(common, "cache_salt")));
  }
  return scoring;
}

std::string ScoringBody(const BranchScoring& scoring,
                        std::span<const std::vector<engine::SampledToken>> scores) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "list").Key("data").BeginArray();
  size_t best = 0;
  double best_sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    double sum = 0;
    for (const engine::SampledToken& score : scores[i]) sum += score.logprob;
    if (i == 0 || sum > best_sum) {
      best = i;
      best_sum = sum;
    }
    json.BeginObject().Member("index", i).Key("sum_logprob").Number(sum);
    const auto count = static_cast<double>(std::max<size_t>(1, scores[i].size()));
    json.Key("mean_logprob").Number(sum / count);
    json.Key("token_ids").BeginArray();
    for (const engine::SampledToken& score : scores[i]) json.Int(score.token);
    json.EndArray().Key("token_logprobs").BeginArray();
    for (const engine::SampledToken& score : scores[i]) json.Number(score.logprob);
    json.EndArray().EndObject();
  }
  json.EndArray().Member("best", best);
  json.Key("usage").BeginObject().Member("prompt_tokens", scoring.num_tokens);
  json.Member("scored_tokens", scoring.scored_tokens).EndObject().EndObject();
  return out;
}

}  // namespace heddle::server
