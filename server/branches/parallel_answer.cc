#include "server/branches/parallel_answer.h"

#include <algorithm>
#include <utility>

#include "server/parallel/parallel_format.h"
#include "server/text/choice.h"

namespace heddle::server {

// A piece of a branch's text, or the branches of a fork.
struct ParallelAnswer::Item {
  OutputPiece piece;
  std::vector<TokenId> ids;
  size_t first_child = 0, num_children = 0;
};

struct ParallelAnswer::Branch {
  std::string path;
  std::unique_ptr<Choice> choice;  // of the text since the last fork
  std::unique_ptr<OutputParser> parser;
  bool in_reasoning = false;
  int32_t min_tokens = 0;
  std::vector<TokenId> ids;  // that no piece has brought yet
  std::vector<Item> items;
  size_t sent = 0;
  bool ended = false;
};

ParallelAnswer::ParallelAnswer(const ApiRequest* request, const TextCodec* codec,
                               std::unique_ptr<AnswerFormat> format)
    : request_(request),
      codec_(codec),
      format_(std::move(format)),
      tags_(request->stream && !request->parallel.limits.is_sequential),
      marks_(request->syntax.AllMarks()),
      stops_(request->stop) {
  const std::vector<std::string_view> own = request->parallel.syntax->Marks();
  marks_.insert(marks_.end(), own.begin(), own.end());
  const std::string_view restart = request->parallel.syntax->restart_at();
  if (!restart.empty()) stops_.emplace_back(restart);
  usage_.prompt_tokens = static_cast<int64_t>(request->generations.front().prompt.size());
  usage_.has_branches = true;
}

ParallelAnswer::~ParallelAnswer() = default;

void ParallelAnswer::Add(size_t parent, std::string path) {
  Branch branch;
  branch.path = std::move(path);
  branch.in_reasoning =
      branches_.empty() ? request_->begins_in_reasoning : branches_[parent].in_reasoning;
  branch.min_tokens = branches_.empty() ? request_->min_tokens : 0;
  branches_.push_back(std::move(branch));
}

// Begins the text behind a fork, or that of the branch.
void ParallelAnswer::Open(Branch* branch) const {
  Choice::Options options;
  options.stop = stops_;
  options.stop_tokens = request_->generations.front().stop_tokens;
  options.min_tokens = branch->min_tokens;
  options.keep_stop = request_->keep_stop;
  branch->choice = std::make_unique<Choice>(
      codec_->NewStream(/*after_text=*/true, {.marks = marks_, .all = request_->keep_special}),
      options);
  if (request_->syntax.empty()) return;
  branch->parser =
      std::make_unique<OutputParser>(request_->syntax, &request_->tools, branch->in_reasoning);
}

// Gives the text that was held back.
void ParallelAnswer::Close(Branch* branch) {
  if (branch->choice == nullptr) return;
  ChoiceDelta rest;
  branch->choice->Finish(&rest);
  std::vector<OutputPiece> pieces;
  if (branch->parser != nullptr) {
    branch->parser->Push(rest.text, &pieces);
    branch->in_reasoning = branch->parser->in_reasoning();
    branch->parser->Finish(/*natural=*/false, &pieces);
  } else if (!rest.text.empty()) {
    pieces.push_back({OutputPiece::Kind::kContent, std::move(rest.text), {}});
  }
  if (pieces.empty() && !branch->ids.empty()) pieces.emplace_back();
  Take(branch, std::move(pieces));
  branch->min_tokens = std::max(0, branch->min_tokens - branch->choice->generated_tokens());
  branch->choice.reset();
  branch->parser.reset();
}

void ParallelAnswer::CountToken(TokenId token, bool in_reasoning, Branch* branch) {
  if (in_reasoning) ++usage_.reasoning_tokens;
  ++usage_.completion_tokens;
  if (request_->return_token_ids) branch->ids.push_back(token);
}

bool ParallelAnswer::Push(size_t index, engine::SampledToken token) {
  Branch& branch = branches_[index];
  if (branch.choice == nullptr) Open(&branch);
  CountToken(token.token, branch.parser != nullptr && branch.parser->in_reasoning(), &branch);
  ChoiceDelta delta;
  std::vector<engine::SampledToken> one;
  one.push_back(std::move(token));
  const TokenId id = one.front().token;
  const bool stopped = branch.choice->Push(std::move(one), &delta);
  if (index == 0) NoteEnd(id, stopped ? branch.choice->stop_string() : std::string_view());
  std::vector<OutputPiece> pieces;
  if (branch.parser != nullptr) {
    branch.parser->Push(delta.text, &pieces);
  } else if (!delta.text.empty()) {
    pieces.push_back({OutputPiece::Kind::kContent, std::move(delta.text), {}});
  }
  Take(&branch, std::move(pieces));
  return stopped;
}

// Notes the token or text that may have ended the answer.
void ParallelAnswer::NoteEnd(TokenId token, std::string_view stop_string) {
  result_.stop_string = stop_string;
  const auto among = [token](const std::vector<TokenId>& ends) {
    return std::find(ends.begin(), ends.end(), token) != ends.end() ? std::optional(token)
                                                                    : std::nullopt;
  };
  result_.stop_token = among(request_->stop_token_ids);
  result_.end_token = among(request_->generations.front().stop_tokens);
}

// No stop string is looked for in the format's own text.
void ParallelAnswer::Force(size_t index, std::span<const TokenId> tokens) {
  if (tokens.empty()) return;
  Branch& branch = branches_[index];
  Close(&branch);
  const std::unique_ptr<TokenStream> stream =
      codec_->NewStream(/*after_text=*/true, {.marks = marks_, .all = request_->keep_special});
  OutputPiece piece;
  if (branch.in_reasoning) piece.kind = OutputPiece::Kind::kReasoning;
  for (const TokenId token : tokens) {
    CountToken(token, branch.in_reasoning, &branch);
    stream->Push(token, &piece.text);
  }
  stream->Finish(&piece.text);
  std::vector<OutputPiece> pieces;
  pieces.push_back(std::move(piece));
  Take(&branch, std::move(pieces));
}

void ParallelAnswer::Fork(size_t index, size_t count, bool shown) {
  Branch& branch = branches_[index];
  Close(&branch);
  if (tags_ || !shown) return;
  Item& fork = branch.items.emplace_back();
  fork.first_child = branches_.size();
  fork.num_children = count;
}

void ParallelAnswer::End(size_t index) {
  Close(&branches_[index]);
  branches_[index].ended = true;
}

void ParallelAnswer::Take(Branch* branch, std::vector<OutputPiece> pieces) {
  for (OutputPiece& piece : pieces) {
    Item item{std::move(piece), std::exchange(branch->ids, {})};
    if (tags_) {
      format_->SetBranch(branch->path);
      Give(&item);
    } else {
      branch->items.push_back(std::move(item));
    }
  }
}

// Gives all that stands before the first gap below a branch. Returns whether it has no gap.
bool ParallelAnswer::Flush(size_t index) {
  Branch& branch = branches_[index];
  for (; branch.sent < branch.items.size(); ++branch.sent) {
    Item& item = branch.items[branch.sent];
    for (size_t c = 0; c < item.num_children; ++c) {
      const size_t child = item.first_child + c;
      if (child >= branches_.size() || !Flush(child)) return false;
    }
    if (item.num_children == 0) Give(&item);
    item = Item();
  }
  return branch.ended;
}

// To the stream, or to what Body writes.
void ParallelAnswer::Give(Item* item) {
  if (request_->stream) return Write(item->piece, item->ids);
  result_.token_ids.insert(result_.token_ids.end(), item->ids.begin(), item->ids.end());
  if (item->piece.text.empty()) return;
  if (!result_.pieces.empty() && result_.pieces.back().kind == item->piece.kind) {
    result_.pieces.back().text.append(item->piece.text);
  } else {
    result_.pieces.push_back(std::move(item->piece));
  }
}

void ParallelAnswer::Begin() {
  if (std::exchange(begun_, true)) return;
  format_->Begin(usage_, &frames_);
  format_->BeginChoice(0, &frames_);
}

void ParallelAnswer::Write(const OutputPiece& piece, std::span<const TokenId> ids) {
  Begin();
  if (request_->return_token_ids) format_->TakeTokenIds(0, ids);
  format_->WritePiece(0, piece, {}, &frames_);
}

std::string ParallelAnswer::TakeFrames() {
  if (request_->stream && !tags_) Flush(0);
  return std::exchange(frames_, {});
}

void ParallelAnswer::Finish(bool length) {
  for (size_t i = 0; i < branches_.size(); ++i) {
    if (!branches_[i].ended) End(i);
  }
  if (!tags_) Flush(0);
  result_.reason = length ? EndReason::kLength : EndReason::kStop;
  if (!request_->stream) return;
  Begin();
  format_->SetBranch("");
  format_->EndChoice(0, result_, &frames_);
  format_->End({&result_, 1}, usage_, &frames_);
}

std::string ParallelAnswer::Body() const { return format_->Body({&result_, 1}, usage_); }

}  // namespace heddle::server
