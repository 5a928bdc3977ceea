#include "engine/text/unigram.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

// Score of an unknown code point below the worst token's.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

Unigram::Unigram(const std::vector<UnigramPiece>& pieces, UnigramOptions options)
    : options_(std::move(options)) {
  double min_score = options_.min_score;
  std::vector<ByteTrie::Entry> entries;
  entries.reserve(pieces.size());
  for (const UnigramPiece& piece : pieces) {
    min_score = std::min(min_score, piece.score);
    const auto id = static_cast<size_t>(piece.id);
    if (id >= scores_.size()) scores_.resize(id + 1);
    scores_[id] = piece.score;
    entries.push_back({piece.text, piece.id});
  }
  unknown_score_ = min_score - kUnknownPenalty;
  // Among pieces with the same text the last counts, as in a map that is filled in order.
  pieces_ = ByteTrie::Build(std::move(entries));
}

// Tries every token that begins at `at`.
void Unigram::Extend(std::string_view word, size_t at,
                     std::vector<ModelScratch::Arrival>* arrivals) const {
  const double here = (*arrivals)[at].score;
  const size_t one = base::Utf8Size(word[at]);
  bool has_single = false;
  const auto offer = [&](size_t to, double score, TokenId token) {
    ModelScratch::Arrival& arrival = (*arrivals)[to];
    if (arrival.token != kUnreached && score <= arrival.score) return;
    arrival = {score, static_cast<uint32_t>(at), token};
  };
  uint32_t node = ByteTrie::kRoot;
  for (size_t end = at; end < word.size();) {
    node = pieces_.Child(node, static_cast<unsigned char>(word[end++]));
    if (node == ByteTrie::kNoNode) break;
    const TokenId token = pieces_.Value(node);
    if (token == ByteTrie::kNoValue) continue;
    if (end - at == one) has_single = true;
    offer(end, here + scores_[static_cast<size_t>(token)], token);
  }
  if (!has_single) offer(at + one, here + unknown_score_, kUnknown);
}

void Unigram::EncodeWord(std::string_view word, ModelScratch* scratch,
                         std::vector<TokenId>* out) const {
  auto& arrivals = scratch->arrivals;
  arrivals.assign(word.size() + 1, {0, 0, kUnreached});
  for (size_t at = 0; at < word.size(); at += base::Utf8Size(word[at])) Extend(word, at, &arrivals);
  // Walks the best path backwards, reversing it.
  size_t at = word.size();
  uint32_t next = static_cast<uint32_t>(at);
  while (at > 0) {
    const uint32_t from = arrivals[at].from;
    arrivals[at].from = next;
    next = static_cast<uint32_t>(at);
    at = from;
  }
  bool after_unknown = false;
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = next;
    const TokenId token = arrivals[end].token;
    if (token == kUnknown) {
      options_.unknown.Append(word.substr(begin, end - begin), &after_unknown, out);
    } else {
      after_unknown = false;
      out->push_back(token);
    }
    next = arrivals[end].from;
    begin = end;
  }
}

}  // namespace heddle::engine::text
