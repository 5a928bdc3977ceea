#include "server/answer/answer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/utf8.h"
#include "engine/draft/prediction_follower.h"
#include "server/answer/event_failure.h"

namespace heddle::server {
namespace {

using Kind = OutputPiece::Kind;

// Whether the prompt has text, and not only the tokens that begin one.
bool EndsInText(const std::vector<TokenId>& prompt, const TextCodec& codec) {
  std::unique_ptr<TokenStream> stream = codec.NewStream(/*after_text=*/true, {});
  std::string text;
  for (const TokenId token : prompt) {
    stream->Push(token, &text);
    if (!text.empty()) return true;
  }
  return false;
}

}  // namespace

struct Answer::Branch {
  std::unique_ptr<Choice> choice;
  std::unique_ptr<OutputParser> parser;                  // null: all text is content
  std::unique_ptr<engine::PredictionFollower> follower;  // null: nothing was predicted
  bool begun = false;
  bool ended = false;
  bool called = false;
  TokenId last_token = -1;
  double sum_logprob = 0;            // over the drawn tokens, for best_of
  ChoiceResult result;               // pieces are kept only if they are needed later
  std::vector<ChoiceToken> waiting;  // tokens whose text the parser holds
};

namespace {

std::string_view NameOf(EndReason reason) {
  switch (reason) {
    case EndReason::kLength:
      return "length";
    case EndReason::kToolCalls:
      return "tool_calls";
    case EndReason::kStop:
      break;
  }
  return "stop";
}

}  // namespace

Answer::Answer(const ApiRequest* request, const TextCodec* codec,
               std::unique_ptr<AnswerFormat> format)
    : request_(request),
      streams_(request->stream && request->search.samples == 0 && request->beam_width == 0),
      codec_(codec),
      format_(std::move(format)),
      marks_(request->syntax.AllMarks()),
      branches_(request->num_branches()),
      prompt_scores_(request->generations.size()),
      prompt_seen_(request->generations.size(), false),
      open_branches_(request->num_branches()) {
  bool after_text = true;
  for (size_t i = 0; i < branches_.size(); ++i) {
    const bool is_first = i % static_cast<size_t>(request->best_of) == 0;
    size_t prompt = i / static_cast<size_t>(request->best_of);
    if (is_first) after_text = EndsInText(request->generations[prompt].prompt, *codec);
    Choice::Options options;
    options.stop = request->stop;
    options.stop_tokens = request->generations[prompt].stop_tokens;
    options.min_tokens = request->min_tokens;
    options.keep_stop = request->keep_stop;
    options.keep_tokens = request->logprobs;
    // Harnesses that score a prompt ask for one token behind it and drop the last entry.
    options.keep_end_token = request->echo;
    if (request->echo) options.text_offset = base::CountCodePoints(request->prompt_texts[prompt]);
    if (!request->syntax.empty()) {
      branches_[i].parser = std::make_unique<OutputParser>(request->syntax, &request->tools,
                                                           request->begins_in_reasoning);
    }
    branches_[i].choice = std::make_unique<Choice>(
        codec->NewStream(after_text, {.marks = marks_, .all = request->keep_special}), options);
    FollowPrediction(request->generations[prompt].prediction, &branches_[i]);
  }
  for (const GenerationRequest& generation : request->generations) {
    usage_.prompt_tokens += static_cast<int64_t>(generation.prompt.size());
  }
}

Answer::~Answer() = default;

void Answer::FollowPrediction(std::span<const TokenId> prediction, Branch* branch) {
  if (prediction.empty()) return;
  branch->follower = std::make_unique<engine::PredictionFollower>(prediction);
  usage_.has_prediction = true;
  usage_.rejected_prediction_tokens += branch->follower->num_rejected();
}

void Answer::CountPredicted(TokenId token, Branch* branch) {
  if (branch->follower == nullptr) return;
  const int64_t before = branch->follower->num_accepted();
  branch->follower->Append({&token, 1});
  const int64_t accepted = branch->follower->num_accepted() - before;
  usage_.accepted_prediction_tokens += accepted;
  usage_.rejected_prediction_tokens -= accepted;
}

void Answer::Take(size_t prompt, GenerationEvent event, Output* output) {
  if (done()) return;
  if (!prompt_seen_[prompt] && event.cached_tokens > 0) usage_.cached_tokens += event.cached_tokens;
  prompt_seen_[prompt] = true;
  TakeScores(prompt, std::move(event.prompt_scores));
  size_t index =
      prompt * static_cast<size_t>(request_->best_of) + static_cast<size_t>(event.branch);
  Branch& branch = branches_[index];
  if (branch.ended) return;
  if (absl::Status failure = FailureOf(event); !failure.ok()) {
    error_ = std::move(failure);
    return;
  }
  if (event.tokens.empty() && !event.finished) return;
  std::string* frames = &output->frames;
  BeginBranch(index, frames);
  std::vector<OutputPiece> pieces;
  bool stopped = PushTokens(index, std::move(event.tokens), &pieces);
  if (!stopped && event.finished) {
    ChoiceDelta rest;
    branch.choice->Finish(&rest);
    Parse(index, std::move(rest), &pieces);
    if (branch.parser != nullptr) {
      branch.parser->Finish(event.reason == FinishReason::kStop, &pieces);
    }
    stopped = branch.choice->stopped() || HasAllCalls(&pieces);
  }
  Deliver(index, std::move(pieces), stopped || event.finished, frames);
  if (stopped && !event.finished) output->stopped_branches.push_back(event.branch);
  if (!stopped && !event.finished) return;
  EndBranch(index, !stopped && event.reason == FinishReason::kLength, frames);
}

// Writes the start of a choice, with the echoed prompt if asked for.
void Answer::BeginBranch(size_t index, std::string* frames) {
  Branch& branch = branches_[index];
  if (branch.begun) return;
  branch.begun = true;
  if (streams_) {
    if (!begun_) format_->Begin(usage_, frames);
    format_->BeginChoice(index, frames);
  }
  begun_ = true;
  if (!request_->echo) return;
  ChoiceDelta echo = EchoDelta(index / static_cast<size_t>(request_->best_of));
  DeliverPiece(index, {Kind::kContent, std::move(echo.text), {}}, std::move(echo.tokens), frames);
}

void Answer::TakeScores(size_t prompt, std::vector<engine::SampledToken> scores) {
  auto& all = prompt_scores_[prompt];
  all.insert(all.end(), std::make_move_iterator(scores.begin()),
             std::make_move_iterator(scores.end()));
}

ChoiceDelta Answer::EchoDelta(size_t prompt) const {
  ChoiceDelta delta;
  delta.text = request_->prompt_texts[prompt];
  if (!request_->logprobs) return delta;
  const auto& scores = prompt_scores_[prompt];  // [prompt tokens - 1], without the first token
  std::unique_ptr<TokenStream> stream = codec_->NewStream(/*after_text=*/false, {});
  std::string piece;
  size_t offset = 0;
  const std::vector<TokenId>& tokens = request_->generations[prompt].prompt;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ChoiceToken token{tokens[i], false, 0, {}, offset};
    if (i > 0 && i <= scores.size()) {
      token.has_logprob = true;
      token.logprob = scores[i - 1].logprob;
      token.top = scores[i - 1].top;
    }
    delta.tokens.push_back(std::move(token));
    piece.clear();
    stream->Push(tokens[i], &piece);
    offset += base::CountCodePoints(piece);
  }
  return delta;
}

// Takes tokens one by one, so that counts do not depend on how the engine bundles them. Returns
// true if the choice ends here (by a stop string, or behind the only allowed call).
bool Answer::PushTokens(size_t index, std::vector<engine::SampledToken> tokens,
                        std::vector<OutputPiece>* pieces) {
  Branch& branch = branches_[index];
  for (engine::SampledToken& token : tokens) {
    branch.sum_logprob += token.logprob;
    if (branch.parser != nullptr && branch.parser->in_reasoning()) ++usage_.reasoning_tokens;
    ++usage_.completion_tokens;
    CountPredicted(token.token, &branch);
    branch.last_token = token.token;
    if (request_->return_token_ids) TakeTokenId(index, token.token);
    ChoiceDelta delta;
    std::vector<engine::SampledToken> one;
    one.push_back(std::move(token));
    bool stopped = branch.choice->Push(std::move(one), &delta);
    Parse(index, std::move(delta), pieces);
    if (stopped && branch.parser != nullptr) branch.parser->Finish(/*natural=*/true, pieces);
    if (stopped || HasAllCalls(pieces)) return true;
  }
  return false;
}

void Answer::TakeTokenId(size_t index, TokenId token) {
  streams_ ? format_->TakeTokenIds(index, {&token, 1})
           : branches_[index].result.token_ids.push_back(token);
}

void Answer::Parse(size_t index, ChoiceDelta delta, std::vector<OutputPiece>* pieces) {
  Branch& branch = branches_[index];
  branch.waiting.insert(branch.waiting.end(), std::make_move_iterator(delta.tokens.begin()),
                        std::make_move_iterator(delta.tokens.end()));
  if (branch.parser != nullptr) {
    branch.parser->Push(delta.text, pieces);
  } else if (!pieces->empty()) {
    pieces->back().text.append(delta.text);
  } else if (!delta.text.empty()) {
    pieces->push_back({Kind::kContent, std::move(delta.text), {}});
  }
}

// Whether `pieces` complete the only allowed call; the text behind it is cut off.
bool Answer::HasAllCalls(std::vector<OutputPiece>* pieces) const {
  if (request_->parallel_tool_calls) return false;
  auto call = std::find_if(pieces->begin(), pieces->end(),
                           [](const OutputPiece& piece) { return piece.ends_call; });
  if (call == pieces->end()) return false;
  pieces->erase(call + 1, pieces->end());
  return true;
}

// Tokens are sent with the first text behind them.
void Answer::Deliver(size_t index, std::vector<OutputPiece> pieces, bool at_end,
                     std::string* frames) {
  std::vector<ChoiceToken>& waiting = branches_[index].waiting;
  for (OutputPiece& piece : pieces) {
    std::vector<ChoiceToken> tokens;
    const bool is_text = piece.kind == Kind::kContent || piece.kind == Kind::kReasoning;
    if (is_text) std::swap(tokens, waiting);
    DeliverPiece(index, std::move(piece), std::move(tokens), frames);
  }
  if (at_end && !waiting.empty()) {
    DeliverPiece(index, {Kind::kContent, "", {}}, std::exchange(waiting, {}), frames);
  }
}

void Answer::DeliverPiece(size_t index, OutputPiece piece, std::vector<ChoiceToken> tokens,
                          std::string* frames) {
  if (piece.kind == Kind::kContent && piece.text.empty() && tokens.empty()) return;
  Branch& branch = branches_[index];
  bool is_call = piece.kind == Kind::kCall;
  branch.called |= is_call;
  if (streams_) format_->WritePiece(index, piece, tokens, frames);
  if (!streams_ || format_->repeats_at_end()) {
    std::vector<OutputPiece>& kept = branch.result.pieces;
    if (piece.kind == Kind::kArguments) {
      kept.back().call.arguments.append(piece.text);
      kept.back().ends_call = piece.ends_call;
    } else if (!is_call && !kept.empty() && kept.back().kind == piece.kind) {
      kept.back().text.append(piece.text);
    } else if (is_call || !piece.text.empty()) {
      kept.push_back(std::move(piece));
    }
    branch.result.tokens.insert(branch.result.tokens.end(), std::make_move_iterator(tokens.begin()),
                                std::make_move_iterator(tokens.end()));
    branch.result.token_ends.resize(kept.size());
    if (!kept.empty()) branch.result.token_ends.back() = branch.result.tokens.size();
  }
}

void Answer::EndBranch(size_t index, bool length, std::string* frames) {
  Branch& branch = branches_[index];
  branch.ended = true;
  ChoiceResult& result = branch.result;
  result.reason = length          ? EndReason::kLength
                  : branch.called ? EndReason::kToolCalls
                                  : EndReason::kStop;
  result.stop_string = branch.choice->stop_string();
  const std::vector<TokenId>& stops = request_->stop_token_ids;
  if (!length && result.stop_string.empty() &&
      std::find(stops.begin(), stops.end(), branch.last_token) != stops.end()) {
    result.stop_token = branch.last_token;
  }
  const size_t prompt = index / static_cast<size_t>(request_->best_of);
  const std::vector<TokenId>& ends = request_->generations[prompt].stop_tokens;
  if (!length && result.stop_string.empty() &&
      std::find(ends.begin(), ends.end(), branch.last_token) != ends.end()) {
    result.end_token = branch.last_token;
  }
  --open_branches_;
  if (!streams_) return;
  format_->EndChoice(index, result, frames);
  if (open_branches_ > 0) return;
  format_->End(Results(), usage_, frames);
}

// With best_of, these are the best n of each prompt, best first.
std::vector<ChoiceResult> Answer::Results() const {
  auto best_of = static_cast<size_t>(request_->best_of);
  auto n = static_cast<size_t>(request_->n);
  std::vector<ChoiceResult> results;
  if (chosen_.has_value()) {
    results.push_back(branches_[*chosen_].result);
    results.back().prompt_scores = prompt_scores_[*chosen_ / best_of];
    return results;
  }
  for (size_t first = 0; first < branches_.size(); first += best_of) {
    std::vector<size_t> order(best_of);
    std::iota(order.begin(), order.end(), first);
    if (best_of > n) {
      auto mean = [this](size_t i) {
        return branches_[i].sum_logprob / std::max(1, branches_[i].choice->generated_tokens());
      };
      std::stable_sort(order.begin(), order.end(),
                       [&mean](size_t a, size_t b) { return mean(a) > mean(b); });
    }
    for (size_t i = 0; i < n; ++i) {
      results.push_back(branches_[order[i]].result);
      results.back().prompt_scores = prompt_scores_[first / best_of];
    }
  }
  return results;
}

std::string Answer::Content(size_t index) const {
  return branches_[index].result.Text(Kind::kContent);
}

std::vector<std::string> Answer::finish_reasons() const {
  std::vector<std::string> reasons;
  for (const Branch& branch : branches_) {
    if (branch.ended) reasons.emplace_back(NameOf(branch.result.reason));
  }
  return reasons;
}

std::string Answer::Body() const { return format_->Body(Results(), usage_); }

std::string Answer::Frames() const {
  std::string frames;
  const std::vector<ChoiceResult> results = Results();
  format_->Begin(usage_, &frames);
  for (size_t i = 0; i < results.size(); ++i) {
    const ChoiceResult& result = results[i];
    format_->BeginChoice(i, &frames);
    if (request_->return_token_ids) format_->TakeTokenIds(i, result.token_ids);
    for (size_t p = 0; p < result.pieces.size(); ++p) {
      format_->WritePiece(i, result.pieces[p], result.TokensOf(p), &frames);
    }
    if (result.pieces.empty() && !result.tokens.empty()) {
      format_->WritePiece(i, {Kind::kContent, "", {}}, result.tokens, &frames);
    }
    format_->EndChoice(i, result, &frames);
  }
  format_->End(results, usage_, &frames);
  return frames;
}

}  // namespace heddle::server
