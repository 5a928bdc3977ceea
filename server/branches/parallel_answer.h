// The text of an answer whose model thinks in branches (parallel_tree.h): one choice, in which the
// branches of a fork stand behind each other and what follows them behind all. Streamed, each piece
// carries the name of its branch as it comes; or, where the client wants that, a piece waits until
// all that stands before it has been sent.
//
// Thread-safety: none; belongs to the connection's I/O thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/answer_format.h"
#include "server/answer/api_request.h"

namespace heddle::server {

class ParallelAnswer {
 public:
  // The arguments outlive the answer. REQUIRES: the request has parallel options.
  ParallelAnswer(const ApiRequest* request, const TextCodec* codec,
                 std::unique_ptr<AnswerFormat> format);
  ~ParallelAnswer();

  // Adds branch number 0, 1, ... and so on; `parent` has forked. The first one has no parent.
  void Add(size_t parent, std::string path);
  // A drawn token. Returns whether a stop string of the client ends the branch with it.
  bool Push(size_t branch, engine::SampledToken token);
  // Tokens that belong to the format and nobody has drawn.
  void Force(size_t branch, std::span<const TokenId> tokens);
  // `branch` has forked: the next `count` branches that are added stand here in its text.
  // Those that are not shown have no place in it: only a stream that names branches has them.
  void Fork(size_t branch, size_t count, bool shown);
  void End(size_t branch);

  void AddCached(int64_t tokens) { usage_.cached_tokens += tokens; }
  Usage& usage() { return usage_; }
  AnswerFormat& format() { return *format_; }

  // The frames that a stream sends now.
  std::string TakeFrames();
  // The answer is complete, whether or not all branches have ended. Call once, before Body.
  void Finish(bool length);
  std::string Body() const;

 private:
  struct Branch;
  struct Item;

  void Open(Branch* branch) const;
  void Close(Branch* branch);
  void Take(Branch* branch, std::vector<OutputPiece> pieces);
  void CountToken(TokenId token, bool in_reasoning, Branch* branch);
  bool Flush(size_t index);
  void NoteEnd(TokenId token, std::string_view stop_string);
  void Give(Item* item);
  void Begin();
  void Write(const OutputPiece& piece, std::span<const TokenId> ids);

  const ApiRequest* request_;
  const TextCodec* codec_;
  std::unique_ptr<AnswerFormat> format_;
  const bool tags_;  // pieces are sent as they come
  std::vector<std::string_view> marks_;
  std::vector<std::string> stops_;  // the client's, and the format's own
  std::deque<Branch> branches_;
  std::string frames_;
  bool begun_ = false;
  Usage usage_;
  ChoiceResult result_;
};

}  // namespace heddle::server
