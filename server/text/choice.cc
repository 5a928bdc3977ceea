#include "server/text/choice.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace heddle::server {

bool Choice::Push(std::vector<engine::SampledToken> tokens, ChoiceDelta* delta) {
  if (stopped_) return false;
  for (engine::SampledToken& token : tokens) {
    PushToken(std::move(token), delta);
    if (stopped_) break;
  }
  ReleaseTokens(stopped_, delta);
  return stopped_;
}

void Choice::Finish(ChoiceDelta* delta) {
  if (stopped_) return;
  piece_.clear();
  stream_->Finish(&piece_);
  Feed(piece_, delta);
  if (!stopped_) {
    size_t before = delta->text.size();
    scanner_.Flush(&delta->text);
    released_bytes_ += delta->text.size() - before;
  }
  ReleaseTokens(/*at_end=*/true, delta);
}

void Choice::PushToken(engine::SampledToken token, ChoiceDelta* delta) {
  ++generated_tokens_;
  const auto& ends = options_.stop_tokens;
  const bool is_end = std::find(ends.begin(), ends.end(), token.token) != ends.end();
  const bool has_text = options_.keep_stop || !is_end;
  if (!has_text && !options_.keep_end_token) return;
  piece_.clear();
  if (has_text) stream_->Push(token.token, &piece_);
  if (options_.keep_tokens) {
    ChoiceToken kept{token.token, true, token.logprob, std::move(token.top), produced_points_};
    pending_.push_back({std::move(kept), produced_bytes_, produced_bytes_ + piece_.size()});
    produced_points_ += base::CountCodePoints(piece_);
  }
  Feed(piece_, delta);
}

void Choice::Feed(std::string_view piece, ChoiceDelta* delta) {
  produced_bytes_ += piece.size();
  size_t before = delta->text.size();
  if (generated_tokens_ < options_.min_tokens) {
    delta->text.append(piece);
  } else {
    stopped_ = scanner_.Push(piece, &delta->text);
  }
  released_bytes_ += delta->text.size() - before;
}

// A token is released with its text; one without (half a code point) with the next text. At a stop
// string the tokens that lie wholly in it are dropped.
void Choice::ReleaseTokens(bool at_end, ChoiceDelta* delta) {
  if (delta->text.empty() && !at_end) return;
  while (!pending_.empty()) {
    const PendingToken& first = pending_.front();
    bool dropped = stopped_ && first.begin >= released_bytes_;
    if (!at_end && first.end > released_bytes_) return;
    if (!dropped) delta->tokens.push_back(std::move(pending_.front().token));
    pending_.pop_front();
  }
}

}  // namespace heddle::server
