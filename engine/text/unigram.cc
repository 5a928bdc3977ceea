#include "engine/text/unigram.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/text/utf8.h"

namespace heddle::engine::text {
namespace {

constexpr uint64_t kEmptyKey = ~uint64_t{0};
constexpr uint32_t kNoNode = 0;  // the root is nobody's child
// An unknown code point scores so much below the worst token.
constexpr double kUnknownPenalty = 10.0;

size_t StartSlot(uint64_t key, size_t mask) {
  key *= 0x9E3779B97F4A7C15u;
  return (key ^ key >> 32) & mask;
}

}  // namespace

Unigram::Unigram(const std::vector<UnigramPiece>& pieces, UnigramOptions options)
    : options_(std::move(options)) {
  size_t bytes = 0;
  double min_score = options_.min_score;
  for (const UnigramPiece& piece : pieces) {
    bytes += piece.text.size();
    min_score = std::min(min_score, piece.score);
  }
  unknown_score_ = Rounded(min_score - kUnknownPenalty);
  const size_t num_slots = std::bit_ceil(std::max<size_t>(bytes * 2, 16));
  edge_mask_ = num_slots - 1;
  edges_.assign(num_slots, {kEmptyKey, kNoNode});
  nodes_.push_back({kUnreached, 0});
  for (const UnigramPiece& piece : pieces) Insert(piece);
}

uint32_t Unigram::Child(uint32_t node, unsigned char byte) const {
  const uint64_t key = uint64_t{node} << 8 | byte;
  for (size_t at = StartSlot(key, edge_mask_);; at = (at + 1) & edge_mask_) {
    if (edges_[at].key == key) return edges_[at].child;
    if (edges_[at].key == kEmptyKey) return kNoNode;
  }
}

uint32_t Unigram::AddChild(uint32_t node, unsigned char byte) {
  if (const uint32_t child = Child(node, byte); child != kNoNode) return child;
  const uint64_t key = uint64_t{node} << 8 | byte;
  size_t at = StartSlot(key, edge_mask_);
  while (edges_[at].key != kEmptyKey) at = (at + 1) & edge_mask_;
  const auto child = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({kUnreached, 0});
  edges_[at] = {key, child};
  return child;
}

void Unigram::Insert(const UnigramPiece& piece) {
  if (piece.text.empty()) return;
  uint32_t node = 0;
  for (const char byte : piece.text) node = AddChild(node, static_cast<unsigned char>(byte));
  // Of two pieces with one text the last counts, as in a map that is filled in order.
  nodes_[node] = {piece.id, piece.score};
}

// Tries every token that begins at `at`.
void Unigram::Extend(std::string_view word, size_t at,
                     std::vector<ModelScratch::Arrival>* arrivals) const {
  const double here = (*arrivals)[at].score;
  const size_t one = Utf8Size(word[at]);
  bool has_single = false;
  const auto offer = [&](size_t to, double score, TokenId token) {
    ModelScratch::Arrival& arrival = (*arrivals)[to];
    if (arrival.token != kUnreached && score <= arrival.score) return;
    arrival = {score, static_cast<uint32_t>(at), token};
  };
  uint32_t node = 0;
  for (size_t end = at; end < word.size();) {
    node = Child(node, static_cast<unsigned char>(word[end++]));
    if (node == kNoNode) break;
    if (nodes_[node].token == kUnreached) continue;
    if (end - at == one) has_single = true;
    offer(end, Rounded(here + nodes_[node].score), nodes_[node].token);
  }
  if (!has_single) offer(at + one, Rounded(here + unknown_score_), kUnknown);
}

void Unigram::EncodeWord(std::string_view word, ModelScratch* scratch,
                         std::vector<TokenId>* out) const {
  auto& arrivals = scratch->arrivals;
  arrivals.assign(word.size() + 1, {0, 0, kUnreached});
  for (size_t at = 0; at < word.size(); at += Utf8Size(word[at])) Extend(word, at, &arrivals);
  // Backwards along the best path, turning it around on the way.
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
