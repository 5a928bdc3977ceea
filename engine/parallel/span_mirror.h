// Memory of each sequence at both ends of a stream of plans, so that a plan need not repeat its
// spans and the position behind its last row. Both ends apply the same plans in the same
// order and so remember the same; PlanDecoder notices if they do not.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "engine/parallel/wire.h"
#include "engine/step.h"

namespace heddle::engine {

struct MirroredSpans {
  std::vector<KvSpan> spans;
  int64_t context_tokens = 0;  // sum over the spans
  uint64_t list_version = 0;   // of the spans (step.h); where plans are written
};

struct MirroredSequence {
  SequenceId id{};
  bool is_used = false;  // else a free place
  absl::InlinedVector<MirroredSpans, 2> groups;
  Position next_position = 0;
  int32_t adapter_slot = -1;
  int32_t segment = 0;
  uint64_t step = 0;  // of the last plan that had it
  size_t behind = 0;  // the place of the one that came behind it in that plan, most likely
};

class SpanMirror {
 public:
  // `max_sequences`: what is not in the newest plan is forgotten when there are more than so many;
  // it is then sent whole again. At both ends the same.
  SpanMirror(int32_t num_groups, size_t max_sequences)
      : num_groups_(static_cast<size_t>(num_groups)), max_sequences_(max_sequences) {}

  // An entry that is as after no plan, if there was none. The reference is valid until the next
  // call. Fastest in the order of the last plan.
  MirroredSequence& Find(SequenceId id);
  // To be called when all of `plan` is applied.
  void EndPlan(const StepPlan& plan);
  size_t size() const { return places_.size(); }

 private:
  size_t PlaceOf(SequenceId id);
  void Free(size_t place);

  size_t num_groups_;
  size_t max_sequences_;
  std::vector<MirroredSequence> sequences_;
  std::vector<size_t> free_;  // places in it
  absl::flat_hash_map<SequenceId, size_t> places_;
  size_t last_ = 0;  // the place that was found last
};

// An array of the lists of a plan, which takes over the memory of another plan's. Spans are most of
// a plan, and most plans have about as many as the one before: what is there is overwritten, and
// not cleared first.
class SpanArray {
 public:
  void Begin(std::vector<KvSpan>* memory) {
    all_ = std::move(*memory);
    size_ = 0;
  }
  size_t size() const { return size_; }
  void Append(std::span<const KvSpan> list);
  std::vector<KvSpan> End() {
    all_.resize(size_);
    return std::move(all_);
  }

 private:
  std::vector<KvSpan> all_;
  size_t size_ = 0;  // of what was appended
};

// Spans have a page in [0, num_pages) and 1 to page_tokens positions.
struct PageBounds {
  int32_t num_pages = 0;
  int32_t page_tokens = 0;
};

// A list as a plan has it.
struct ListedSpans {
  std::span<const KvSpan> spans;
  int64_t context_tokens = 0;
  uint64_t list_version = 0;
};

// Whether `listed` is `known` with `num_tokens` positions more, its last page filled up first and
// all others of the new pages full but the last. O(new pages) if both have the same version.
bool IsGrown(const MirroredSpans& known, const ListedSpans& listed, int32_t num_tokens,
             int32_t page_tokens);
// Whether a list with `num_spans` spans and `context_tokens` positions is `known` with `slot`
// behind it, in its last page. O(1), and false for lists without a version.
inline bool HasOneMore(const MirroredSpans& known, const GroupSpans::Range& listed,
                       const KvSlot& slot, int32_t page_tokens) {
  if (listed.list_version == 0 || listed.list_version != known.list_version) return false;
  if (known.spans.empty() || static_cast<size_t>(listed.num_spans) != known.spans.size()) {
    return false;
  }
  const KvSpan& last = known.spans.back();
  return listed.context_tokens == known.context_tokens + 1 && slot.page == last.page &&
         slot.offset == last.num_tokens && slot.offset < page_tokens;
}
inline void AddOne(MirroredSpans* known) {
  ++known->spans.back().num_tokens;
  ++known->context_tokens;
}
// Writes the new pages of a list that IsGrown, or reads them, and makes *known the list. Pages that
// are not among `num_pages` fail the reader.
void WriteGrowth(const ListedSpans& listed, MirroredSpans* known, ByteWriter* bytes);
void ReadGrowth(ByteReader* bytes, int32_t num_tokens, const PageBounds& bounds,
                MirroredSpans* known);

// Writes any list as what it has in common with `known`: how many of known's first spans are gone,
// how many of the next are there, and all others; or reads it; and makes *known the list. Spans
// that no page can have fail the reader.
void WriteDifference(const ListedSpans& listed, MirroredSpans* known, ByteWriter* bytes);
void ReadDifference(ByteReader* bytes, const PageBounds& bounds, MirroredSpans* known);

}  // namespace heddle::engine
