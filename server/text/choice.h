// The text side of one choice of an answer: tokens in, text out. Detokenizes, ends at stop strings,
// and keeps log-probabilities together with the text they belong to.
//
// Thread-safety: none; belongs to the connection's I/O thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/text/stop_scanner.h"
#include "server/text/text_codec.h"

namespace heddle::server {

// A token whose text has been released, as logprobs show it.
struct ChoiceToken {
  TokenId token = 0;
  bool has_logprob = true;  // false: the first token of a prompt
  float logprob = 0;
  std::vector<engine::TokenLogprob> top;
  size_t text_offset = 0;  // code points of the choice's text before this token's
};

// The additions of one event. Concatenated over all events they are the same however events were
// cut.
struct ChoiceDelta {
  std::string text;
  std::vector<ChoiceToken> tokens;  // only if logprobs were asked for
  bool empty() const { return text.empty() && tokens.empty(); }
};

class Choice {
 public:
  struct Options {
    std::span<const std::string> stop;
    std::span<const TokenId> stop_tokens;  // have no text, unless keep_stop is set
    int32_t min_tokens = 0;                // stop strings count only after this many
    bool keep_tokens = false;              // fill ChoiceDelta::tokens
    size_t text_offset = 0;                // code points before the first token (echo)
    bool keep_stop = false;                // what ends the choice is part of its text
    bool keep_end_token = false;  // the stop token is among ChoiceDelta::tokens, without text
  };

  // The objects behind `options` outlive the choice.
  Choice(std::unique_ptr<TokenStream> stream, const Options& options)
      : options_(options),
        stream_(std::move(stream)),
        scanner_(options.stop, options.keep_stop),
        produced_points_(options.text_offset) {}

  // Appends to *delta what the tokens completed. Tokens after a stop string are ignored. Returns
  // true if the choice has just ended at a stop string.
  bool Push(std::vector<engine::SampledToken> tokens, ChoiceDelta* delta);

  // No token will follow: appends the text that was held back.
  void Finish(ChoiceDelta* delta);

  bool stopped() const { return stopped_; }
  std::string_view stop_string() const { return scanner_.found(); }  // empty: none ended it
  int32_t generated_tokens() const { return generated_tokens_; }     // includes the ending one

 private:
  struct PendingToken {
    ChoiceToken token;
    size_t begin;  // [begin, end) bytes of the choice's text
    size_t end;
  };

  void PushToken(engine::SampledToken token, ChoiceDelta* delta);
  void Feed(std::string_view piece, ChoiceDelta* delta);
  void ReleaseTokens(bool at_end, ChoiceDelta* delta);

  Options options_;
  std::unique_ptr<TokenStream> stream_;
  StopScanner scanner_;
  std::deque<PendingToken> pending_;
  std::string piece_;
  size_t produced_bytes_ = 0;
  size_t produced_points_;
  size_t released_bytes_ = 0;
  int32_t generated_tokens_ = 0;
  bool stopped_ = false;
};

}  // namespace heddle::server
