#include "engine/parallel/span_mirror.h"

#include <algorithm>
#include <cstring>

namespace heddle::engine {
namespace {

bool AreEqual(std::span<const KvSpan> a, std::span<const KvSpan> b) {
  static_assert(std::has_unique_object_representations_v<KvSpan>);
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Pages are written as the difference to the one before: neighbours are often handed out in turn.
void WritePage(PageId page, PageId before, ByteWriter* bytes) {
  bytes->Zigzag(int64_t{Index(page)} - Index(before));
}

PageId ReadPage(ByteReader* bytes, const PageBounds& bounds, PageId before) {
  const int64_t page = bytes->Shifted(Index(before));
  if (page >= 0 && page < bounds.num_pages) return static_cast<PageId>(page);
  bytes->Fail();
  return PageId{0};
}

int64_t SumOf(std::span<const KvSpan> spans) {
  int64_t sum = 0;
  for (const KvSpan& span : spans) sum += span.num_tokens;
  return sum;
}

// Positions that the last page of the list still takes.
int32_t RoomAtEnd(std::span<const KvSpan> spans, int32_t page_tokens) {
  return spans.empty() ? 0 : std::max(page_tokens - spans.back().num_tokens, 0);
}

}  // namespace

MirroredSequence& SpanMirror::Find(SequenceId id) {
  const size_t guess = last_ < sequences_.size() ? sequences_[last_].behind : 0;
  const bool is_right =
      guess < sequences_.size() && sequences_[guess].is_used && sequences_[guess].id == id;
  const size_t place = is_right ? guess : PlaceOf(id);
  if (last_ < sequences_.size()) sequences_[last_].behind = place;
  last_ = place;
  return sequences_[place];
}

size_t SpanMirror::PlaceOf(SequenceId id) {
  const auto [found, is_new] = places_.try_emplace(id);
  if (!is_new) return found->second;
  if (free_.empty()) {
    free_.push_back(sequences_.size());
    sequences_.emplace_back();
  }
  found->second = free_.back();
  free_.pop_back();
  MirroredSequence& sequence = sequences_[found->second];
  sequence.id = id;
  sequence.is_used = true;
  sequence.groups.resize(num_groups_);
  return found->second;
}

void SpanMirror::Free(size_t place) {
  sequences_[place] = {};
  free_.push_back(place);
}

void SpanMirror::EndPlan(const StepPlan& plan) {
  for (const SequenceId id : plan.ended) {
    const auto found = places_.find(id);
    if (found == places_.end()) continue;
    Free(found->second);
    places_.erase(found);
  }
  if (places_.size() <= max_sequences_) return;
  absl::erase_if(places_, [&](const auto& entry) {
    if (sequences_[entry.second].step == plan.step) return false;
    Free(entry.second);
    return true;
  });
}

void SpanArray::Append(std::span<const KvSpan> list) {
  // A few more than needed: what is added is cleared first.
  constexpr size_t kMargin = 256;
  constexpr size_t kSpansPerTurn = 8;
  if (all_.size() - size_ < list.size()) all_.resize(size_ + list.size() + kMargin);
  KvSpan* to = all_.data() + size_;
  const KvSpan* from = list.data();
  // In registers of 16 bytes, of which few cross a cache line; memmove's wider ones cross one each,
  // and take longer for lists of some hundred bytes (docs/benchmarks/parallel.md).
  size_t i = 0;
  for (; i + kSpansPerTurn <= list.size(); i += kSpansPerTurn) {
    std::memcpy(to + i, from + i, kSpansPerTurn * sizeof(KvSpan));
  }
  for (; i < list.size(); ++i) to[i] = from[i];
  size_ += list.size();
}

bool IsGrown(const MirroredSpans& mirrored, const ListedSpans& listed, int32_t num_tokens,
             int32_t page_tokens) {
  const std::span<const KvSpan> known = mirrored.spans;
  const std::span<const KvSpan> spans = listed.spans;
  if (spans.size() < known.size() || spans.empty()) return false;
  if (!known.empty()) {
    const size_t last = known.size() - 1;
    const int32_t filled = std::min(num_tokens, RoomAtEnd(known, page_tokens));
    const bool is_same_list =
        listed.list_version != 0 && listed.list_version == mirrored.list_version;
    if (!is_same_list && !AreEqual(known.first(last), spans.first(last))) return false;
    if (spans[last].page != known[last].page) return false;
    if (spans[last].num_tokens != known[last].num_tokens + filled) return false;
    num_tokens -= filled;
  }
  for (const KvSpan& span : spans.subspan(known.size())) {
    if (num_tokens == 0 || span.num_tokens != std::min(num_tokens, page_tokens)) return false;
    num_tokens -= span.num_tokens;
  }
  return num_tokens == 0;
}

void WriteGrowth(const ListedSpans& listed, MirroredSpans* mirrored, ByteWriter* bytes) {
  std::vector<KvSpan>& known = mirrored->spans;
  const size_t num_known = known.size();
  PageId before = known.empty() ? PageId{0} : known.back().page;
  if (num_known > 0) known.back() = listed.spans[num_known - 1];
  for (const KvSpan& span : listed.spans.subspan(num_known)) {
    WritePage(span.page, before, bytes);
    before = span.page;
    known.push_back(span);
  }
  mirrored->list_version = listed.list_version;
  mirrored->context_tokens = listed.context_tokens;
}

void ReadGrowth(ByteReader* bytes, int32_t num_tokens, const PageBounds& bounds,
                MirroredSpans* known) {
  std::vector<KvSpan>& spans = known->spans;
  known->context_tokens += num_tokens;
  if (!spans.empty()) {
    const int32_t filled = std::min(num_tokens, RoomAtEnd(spans, bounds.page_tokens));
    spans.back().num_tokens += filled;
    num_tokens -= filled;
  }
  PageId before = spans.empty() ? PageId{0} : spans.back().page;
  for (; num_tokens > 0 && bytes->ok(); num_tokens -= bounds.page_tokens) {
    before = ReadPage(bytes, bounds, before);
    spans.push_back({before, std::min(num_tokens, bounds.page_tokens)});
  }
}

void WriteDifference(const ListedSpans& listed, MirroredSpans* known, ByteWriter* bytes) {
  const std::span<const KvSpan> spans = listed.spans;
  const std::span<const KvSpan> mirrored = known->spans;
  size_t gone = 0;
  if (!spans.empty()) {
    while (gone < mirrored.size() && mirrored[gone].page != spans[0].page) ++gone;
  }
  size_t kept = 0;
  while (gone + kept < mirrored.size() && kept < spans.size() &&
         AreEqual(mirrored.subspan(gone + kept, 1), spans.subspan(kept, 1))) {
    ++kept;
  }
  if (kept == 0) gone = mirrored.size();
  bytes->Varint(gone);
  bytes->Varint(kept);
  bytes->Varint(spans.size() - kept);
  PageId before = kept == 0 ? PageId{0} : spans[kept - 1].page;
  for (const KvSpan& span : spans.subspan(kept)) {
    WritePage(span.page, before, bytes);
    bytes->Zigzag(span.num_tokens);
    before = span.page;
  }
  known->spans.assign(spans.begin(), spans.end());
  known->list_version = listed.list_version;
  known->context_tokens = listed.context_tokens;
}

void ReadDifference(ByteReader* bytes, const PageBounds& bounds, MirroredSpans* known) {
  std::vector<KvSpan>& spans = known->spans;
  const uint64_t gone = bytes->Varint();
  const uint64_t kept = bytes->Varint();
  const size_t added = bytes->Count();
  if (gone > spans.size() || kept > spans.size() - gone) return bytes->Fail();
  spans.erase(spans.begin(), spans.begin() + static_cast<ptrdiff_t>(gone));
  spans.resize(kept);
  PageId before = spans.empty() ? PageId{0} : spans.back().page;
  for (size_t i = 0; i < added && bytes->ok(); ++i) {
    before = ReadPage(bytes, bounds, before);
    const int64_t num_tokens = bytes->Zigzag();
    if (num_tokens < 1 || num_tokens > bounds.page_tokens) return bytes->Fail();
    spans.push_back({before, static_cast<int32_t>(num_tokens)});
  }
  known->context_tokens = SumOf(spans);
}

}  // namespace heddle::engine
