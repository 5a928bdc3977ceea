#include "scheduler/simulation/simulated_fork.h"

#include <utility>

namespace heddle::scheduler {
namespace {

// The names of a request's contexts are so far apart.
constexpr uint64_t kNamesOfRequest = 256;

// Appends what was drawn behind the last token of `tokens`, whose parts are `parts`.
void AppendDrawn(const ContextParts& parts, int32_t count, std::vector<TokenId>* tokens) {
  const engine::Position begin = PositionBehind(parts, static_cast<int32_t>(tokens->size()));
  for (int32_t i = 0; i < count; ++i) tokens->push_back(begin + i);
}

}  // namespace

SimulatedFork::SimulatedFork(const SimulatedRequest& request, uint64_t index)
    : request_(request), index_(index) {}

ContextId SimulatedFork::Name(uint64_t number) const {
  return ContextId{kNamesOfRequest * (index_ + 1) + number};
}

std::vector<ContextId> SimulatedFork::Contexts() const {
  std::vector<ContextId> names;
  names.reserve(static_cast<size_t>(request_.forks) + 2);
  for (int32_t i = 0; i < request_.forks + 2; ++i) names.push_back(Name(static_cast<uint64_t>(i)));
  return names;
}

GenerationRequest SimulatedFork::Behind(std::vector<TokenId> tokens, ContextParts parts,
                                        ContextId from, uint64_t keep, int32_t max_tokens) const {
  GenerationRequest request = ToGenerationRequest(request_, index_);
  request.prompt = std::move(tokens);
  request.parts = std::move(parts);
  request.from = from;
  request.keep = Name(keep);
  request.max_tokens = max_tokens;
  return request;
}

std::vector<GenerationRequest> SimulatedFork::NextStage(std::optional<ContextJoin>* join) {
  join->reset();
  switch (stage_++) {
    case 0: {
      tokens_ = ToGenerationRequest(request_, index_).prompt;
      std::vector<GenerationRequest> first;
      first.push_back(Behind(tokens_, {}, {}, 0, request_.fork_at));
      AppendDrawn({}, request_.fork_at, &tokens_);
      return first;
    }
    case 1:
      return Branches();
    case 2: {
      std::vector<GenerationRequest> rest;
      rest.push_back(Rest(join));
      return rest;
    }
    default:
      return {};
  }
}

// Each begins with a token of its own, its header. The last one is the longest.
std::vector<GenerationRequest> SimulatedFork::Branches() {
  std::vector<GenerationRequest> requests;
  const auto at = static_cast<int32_t>(tokens_.size());
  for (int32_t i = 0; i < request_.forks; ++i) {
    std::vector<TokenId> tokens = tokens_;
    tokens.push_back(i);
    ContextParts parts;
    if (request_.joins_side_by_side) parts = PartsApart({}, at);
    const auto drawn = static_cast<int32_t>(
        (int64_t{request_.branch_tokens} * (i + 1) + request_.forks - 1) / request_.forks);
    requests.push_back(Behind(tokens, parts, Name(0), 1 + static_cast<uint64_t>(i), drawn));
    AppendDrawn(parts, drawn, &tokens);
    branches_.push_back(std::move(tokens));
    parts_.push_back(std::move(parts));
  }
  return requests;
}

GenerationRequest SimulatedFork::Rest(std::optional<ContextJoin>* join) const {
  const size_t at = tokens_.size();
  std::vector<TokenId> tokens = tokens_;
  std::vector<int32_t> lengths;
  std::vector<const ContextParts*> parts_of;
  std::vector<ContextId> children;
  for (size_t i = 0; i < branches_.size(); ++i) {
    const std::vector<TokenId>& one = branches_[i];
    tokens.insert(tokens.end(), one.begin() + static_cast<ptrdiff_t>(at), one.end());
    lengths.push_back(static_cast<int32_t>(one.size()));
    parts_of.push_back(&parts_[i]);
    children.push_back(Name(1 + i));
  }
  const int32_t left = request_.output_tokens - request_.fork_at;
  ContextParts parts;
  ContextId from = children.front();
  if (request_.joins_side_by_side) {
    parts = JoinParts(parts_of, lengths, static_cast<int32_t>(at));
    from = Name(branches_.size() + 1);
    join->emplace(ContextJoin{std::move(children), std::move(lengths), static_cast<int32_t>(at),
                              parts, tokens, from});
  }
  tokens.push_back(static_cast<TokenId>(branches_.size()));  // the text behind all of them
  return Behind(std::move(tokens), std::move(parts), from, 0, left);
}

}  // namespace heddle::scheduler
