#include "engine/draft/token_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace heddle::engine {
namespace {

constexpr int64_t kSmallestIndex = 1024;
// Tokens that move to the larger index for each new one: it has caught up before a quarter of the
// ring is overwritten.
constexpr int kMovedPerToken = 8;

// Fibonacci hashing; buckets are the upper bits.
constexpr uint64_t kHashFactor = 0x9E3779B97F4A7C15u;

uint64_t AddToHash(uint64_t hash, TokenId token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * kHashFactor;
  return hash ^ (hash >> 29);
}

}  // namespace

TokenIndex::TokenIndex(const Options& options, int64_t expected_tokens) : options_(options) {
  const auto expected = static_cast<uint64_t>(std::max(expected_tokens, kSmallestIndex));
  Reserve(std::min(options_.max_tokens,
                   static_cast<int64_t>(std::bit_ceil(std::min(expected, uint64_t{1} << 40)))));
}

TokenIndex::~TokenIndex() = default;
TokenIndex::TokenIndex(TokenIndex&&) noexcept = default;
TokenIndex& TokenIndex::operator=(TokenIndex&&) noexcept = default;

int64_t TokenIndex::BytesPerToken(const Options& options) {
  const auto orders = static_cast<int64_t>(options.orders.size());
  return 4 + 8 * orders;
}

int64_t TokenIndex::bytes() const {
  return capacity_ * BytesPerToken(options_) + (larger_ == nullptr ? 0 : larger_->bytes());
}

template <typename T>
TokenIndex::ZeroedArray<T> TokenIndex::Zeroed(size_t count) {
  void* const array = std::calloc(count, sizeof(T));
  HEDDLE_CHECK(array != nullptr, "no memory for a token index");
  return ZeroedArray<T>(static_cast<T*>(array));
}

void TokenIndex::Reserve(int64_t capacity) {
  capacity_ = capacity;
  const auto slots = static_cast<size_t>(capacity);
  head_shift_ = 63 - std::countr_zero(slots);
  tokens_ = Zeroed<TokenId>(slots);
  heads_ = Zeroed<uint32_t>(slots * options_.orders.size());
  previous_ = Zeroed<uint32_t>(slots * options_.orders.size());
}

// Enters the n-grams that end before position end_ into their chains.
void TokenIndex::LinkGrams() {
  const size_t orders = options_.orders.size();
  uint32_t* const previous = &previous_[Slot(end_) * orders];
  const auto link = static_cast<uint32_t>(end_ + 1);
  uint64_t hash = 0;
  size_t order = 0;
  for (int32_t length = 1; order < orders; ++length) {
    const TokenId token = Token(end_ - length);
    if (token == kNoToken) break;
    hash = AddToHash(hash, token);
    if (length != options_.orders[order]) continue;
    uint32_t& head = heads_[Bucket(hash, order)];
    previous[order] = head;
    head = link;
    ++order;
  }
  for (; order < orders; ++order) previous[order] = 0;
}

void TokenIndex::Append(TokenId token) {
  if (end_ >= capacity_ && capacity_ < options_.max_tokens && larger_ == nullptr) {
    larger_ = std::make_unique<TokenIndex>(options_, capacity_ * 2);
  }
  if (larger_ != nullptr && CatchUp()) {
    TokenIndex grown = std::move(*larger_);
    *this = std::move(grown);
  }
  if (token != kNoToken) LinkGrams();
  tokens_[Slot(end_)] = token;
  ++end_;
}

// Moves some tokens to the larger index; true: it has all of them. Growing begins when the ring is
// full for the first time, so positions are the same in both.
bool TokenIndex::CatchUp() {
  for (int i = 0; i < kMovedPerToken && larger_->end_ < end_; ++i) {
    larger_->Append(Token(larger_->end_));
  }
  return larger_->end_ == end_;
}

int32_t TokenIndex::MatchLength(int64_t end, std::span<const TokenId> suffix) const {
  const auto limit =
      static_cast<int32_t>(std::min({static_cast<int64_t>(suffix.size()),
                                     static_cast<int64_t>(options_.max_match), end - begin()}));
  int32_t length = 0;
  while (length < limit && tokens_[Slot(end - 1 - length)] ==
                               suffix[suffix.size() - 1 - static_cast<size_t>(length)]) {
    ++length;
  }
  return length;
}

void TokenIndex::FollowChain(size_t order, size_t bucket, std::span<const TokenId> suffix,
                             Occurrences* found) const {
  uint32_t link = heads_[bucket];
  int64_t age_before = 0;
  for (int32_t i = 0; i < options_.max_candidates && link != 0; ++i) {
    // Links are modulo 2^32: what is no longer in the ring may look like something younger, and the
    // comparison of tokens finds that out.
    const auto age = static_cast<int64_t>(static_cast<uint32_t>(end_ + 1) - link);
    if (age <= age_before || age > size()) return;
    age_before = age;
    const int64_t end = end_ - age;
    const int32_t length = MatchLength(end, suffix);
    if (length >= options_.orders[order] && length >= found->length) {
      if (length > found->length) found->ends.clear();
      found->length = length;
      found->ends.push_back(end);
    }
    link = previous_[Slot(end) * options_.orders.size() + order];
  }
}

void TokenIndex::Find(std::span<const TokenId> suffix, Occurrences* found) const {
  found->length = 0;
  found->ends.clear();
  size_t buckets[kMaxOrders];
  size_t num_orders = 0;
  uint64_t hash = 0;
  for (size_t length = 1; length <= suffix.size() && num_orders < options_.orders.size();
       ++length) {
    hash = AddToHash(hash, suffix[suffix.size() - length]);
    if (static_cast<int32_t>(length) != options_.orders[num_orders]) continue;
    buckets[num_orders] = Bucket(hash, num_orders);
    ++num_orders;
  }
  // A chain holds every occurrence of at least its order: the first that has one has the longest.
  for (size_t order = num_orders; order-- > 0 && found->length == 0;) {
    FollowChain(order, buckets[order], suffix, found);
  }
}

}  // namespace heddle::engine
