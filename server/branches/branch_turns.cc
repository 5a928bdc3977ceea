#include "server/branches/branch_turns.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// Cuts the answer to `granted` tokens, and asks for what a search compares branches by.
void Limit(int64_t granted, ApiRequest* request) {
  GenerationRequest& generation = request->generations.front();
  std::vector<engine::SamplingParams*> all = {&generation.sampling};
  for (engine::SamplingParams& one : generation.sampling_of) all.push_back(&one);
  for (engine::SamplingParams* one : all) one->num_logprobs = std::max(0, one->num_logprobs);
  if (granted >= generation.max_tokens) return;
  request->Warn(base::StrCat("max_tokens cut from ", generation.max_tokens, " to ", granted,
                             ", the rest of the tree's budget"));
  generation.max_tokens = static_cast<int32_t>(granted);
  for (engine::SamplingParams* one : all) {
    one->min_tokens = std::min(one->min_tokens, generation.max_tokens);
  }
}

}  // namespace

// A branch goes on behind what ended it, unless that is the model's own end of text.
BranchTurns::BranchTurns(BranchTable* table, const ApiRequest& request) : table_(*table) {
  const std::vector<TokenId>& told = request.stop_token_ids;
  for (const TokenId token : request.generations.front().stop_tokens) {
    if (std::find(told.begin(), told.end(), token) == told.end()) ends_.push_back(token);
  }
}

absl::StatusOr<std::unique_ptr<BranchTurns>> BranchTurns::Continue(BranchTable* table,
                                                                   uint64_t owner,
                                                                   const std::string& id,
                                                                   int64_t num_tokens, int64_t now,
                                                                   ApiRequest* request) {
  GenerationRequest& generation = request->generations.front();
  const std::span<const TokenId> append =
      std::span(generation.prompt).subspan(static_cast<size_t>(num_tokens));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t granted,
                          table->Begin(owner, id, num_tokens, append, generation.max_tokens, now));
  Limit(granted, request);
  generation.from = generation.keep = table->ContextOf(id);
  BranchTable::Names names = table->NamesOf(id);
  generation.tree = std::move(names.tree);
  generation.branch = std::move(names.branch);
  auto turns = std::unique_ptr<BranchTurns>(new BranchTurns(table, *request));
  turns->context_ = generation.keep;
  turns->Add(id);
  return turns;
}

absl::StatusOr<std::unique_ptr<BranchTurns>> BranchTurns::Work(BranchTable* table, uint64_t owner,
                                                               const std::string& id, int64_t now,
                                                               ApiRequest* request) {
  GenerationRequest& generation = request->generations.front();
  const auto prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  auto turns = std::unique_ptr<BranchTurns>(new BranchTurns(table, *request));
  turns->owner_ = owner;
  turns->made_at_ = now;
  int64_t granted = generation.max_tokens;
  absl::Status status;
  for (const std::vector<TokenId>& begin : generation.workers) {
    const absl::StatusOr<std::vector<BranchInfo>> forked =
        table->Fork(owner, {.from = id, .at = prompt_tokens, .append = begin, .works = true}, now);
    status = forked.status();
    if (!status.ok()) break;
    const std::string& branch = turns->made_.emplace_back(forked->front().id);
    const auto num_tokens = prompt_tokens + static_cast<int64_t>(begin.size());
    status = turns->Begin(owner, branch, num_tokens, generation.max_tokens, now, &granted);
    if (!status.ok()) break;
  }
  if (!status.ok()) {
    turns->Abort();
    return status;
  }
  Limit(granted, request);
  generation.from = table->ContextOf(id);
  BranchTable::Names names = table->NamesOf(id);
  generation.tree = std::move(names.tree);
  generation.branch = std::move(names.branch);
  return turns;
}

absl::StatusOr<std::unique_ptr<BranchTurns>> BranchTurns::Keep(BranchTable* table, uint64_t owner,
                                                               const std::string& id,
                                                               const std::string& common,
                                                               int64_t now, ApiRequest* request) {
  GenerationRequest& generation = request->generations.front();
  const auto prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  HEDDLE_RETURN_IF_ERROR(
      table->AddRoot(owner, {.id = id, .tokens = generation.prompt, .common = common}, now)
          .status());
  auto turns = std::unique_ptr<BranchTurns>(new BranchTurns(table, *request));
  turns->owner_ = owner;
  turns->made_at_ = now;
  turns->made_.push_back(id);
  BranchTable::ForkOrder order{.from = id, .n = request->n};
  for (int32_t i = 0; i < request->n; ++i) {
    order.ids.push_back(request->n == 1 ? id : base::StrCat(id, ".", i));
  }
  absl::Status status =
      request->n == 1 ? absl::OkStatus() : table->Fork(owner, order, now).status();
  int64_t granted = generation.max_tokens;
  for (const std::string& branch : order.ids) {
    if (!status.ok()) break;
    status = turns->Begin(owner, branch, prompt_tokens, generation.max_tokens, now, &granted);
  }
  if (!status.ok()) {
    turns->Abort();
    return status;
  }
  Limit(granted, request);
  generation.tree = id;
  generation.branch.push_back('0');
  generation.keep = turns->context_ = table->ContextOf(order.ids.front());
  return turns;
}

BranchTurns::~BranchTurns() {
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!ended_[i]) table_.End(ids_[i], "cancelled", /*drops_last=*/false);
  }
}

absl::Status BranchTurns::Begin(uint64_t owner, const std::string& id, int64_t num_tokens,
                                int64_t max_tokens, int64_t now, int64_t* granted) {
  HEDDLE_ASSIGN_OR_RETURN(const int64_t most,
                          table_.Begin(owner, id, num_tokens, {}, max_tokens, now));
  *granted = std::min(*granted, most);
  Add(id);
  return absl::OkStatus();
}

void BranchTurns::Add(const std::string& id) {
  ids_.push_back(id);
  ended_.push_back(false);
  last_tokens_.push_back(engine::kNoToken);
}

void BranchTurns::Submitted(RequestId request) {
  for (size_t i = 0; i < ids_.size(); ++i) {
    const bool leaves = context_ != ContextId{};
    table_.SetRequest(ids_[i], request,
                      leaves ? ContextId{static_cast<uint64_t>(context_) + i} : ContextId{});
  }
}

void BranchTurns::Abort() {
  for (const std::string& id : ids_) table_.Abort(id);
  ended_.assign(ids_.size(), true);
  for (const std::string& id : made_) table_.Drop(owner_, id, made_at_).IgnoreError();
}

void BranchTurns::Take(size_t index, std::span<const engine::SampledToken> tokens) {
  if (ended_[index] || tokens.empty()) return;
  table_.Grow(ids_[index], tokens);
  last_tokens_[index] = tokens.back().token;
}

void BranchTurns::End(size_t index, bool length) {
  if (ended_[index]) return;
  ended_[index] = true;
  const bool drops_last =
      !length && std::find(ends_.begin(), ends_.end(), last_tokens_[index]) != ends_.end();
  table_.End(ids_[index], length ? "length" : "stop", drops_last);
}

absl::Status BranchTurns::CheckLive(int64_t now) const {
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (ended_[i] || table_.IsLive(ids_[i], now)) continue;
    return WithHttpStatus(
        WithCode(absl::NotFoundError(base::StrCat("the branch ", base::Quote(ids_[i]),
                                                  " was deleted, or its time ended, while it ran")),
                 "branch_expired"),
        410);
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
