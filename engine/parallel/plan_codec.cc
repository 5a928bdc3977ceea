#include "engine/parallel/plan_codec.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/parallel/plan_format.h"
#include "engine/parallel/plan_members.h"

namespace heddle::engine {
namespace {

// A slice's part of one group of layers.
struct GroupPart {
  ListedSpans list;
  std::span<const KvSlot> slots;
};

// A slice's part of an array with an entry for each row.
template <typename T>
std::span<const T> RowsOf(const SequenceSlice& slice, const std::vector<T>& array) {
  return std::span(array).subspan(static_cast<size_t>(slice.token_begin),
                                  static_cast<size_t>(slice.num_tokens));
}

GroupPart PartOf(const StepPlan& plan, size_t index, size_t group) {
  const SequenceSlice& slice = plan.sequences[index];
  if (group == 0) {
    return {
        {std::span(plan.spans)
             .subspan(static_cast<size_t>(slice.span_begin), static_cast<size_t>(slice.num_spans)),
         slice.context_tokens, slice.list_version},
        RowsOf(slice, plan.kv_slots)};
  }
  const GroupSpans& spans = plan.more_groups[group - 1];
  const GroupSpans::Range& range = spans.ranges[index];
  return {
      {std::span(spans.spans)
           .subspan(static_cast<size_t>(range.span_begin), static_cast<size_t>(range.num_spans)),
       range.context_tokens, range.list_version},
      RowsOf(slice, spans.kv_slots)};
}

bool SlotsAreLast(const GroupPart& part) {
  auto next = part.slots.begin();
  return VisitLastSlots(part.list.spans, static_cast<int32_t>(part.slots.size()), [&](KvSlot slot) {
    const bool same = slot.page == next->page && slot.offset == next->offset;
    ++next;
    return same;
  });
}

// Whether a slice is what most slices are: one more row of a context whose last pages have room for
// it, and otherwise what the mirror expects.
bool IsOneRowMore(const StepPlan& plan, size_t index, const MirroredSequence& known,
                  int32_t page_tokens) {
  const SequenceSlice& slice = plan.sequences[index];
  const auto row = static_cast<size_t>(slice.token_begin);
  if (slice.num_tokens != 1 || slice.num_pieces > 0 || slice.adapter_slot != known.adapter_slot ||
      slice.segment != known.segment || plan.positions[row] != known.next_position) {
    return false;
  }
  const std::span<const MirroredSpans> groups(known.groups);
  const GroupSpans::Range first{.span_begin = slice.span_begin,
                                .num_spans = slice.num_spans,
                                .context_tokens = slice.context_tokens,
                                .list_version = slice.list_version};
  if (!HasOneMore(groups[0], first, plan.kv_slots[row], page_tokens)) return false;
  for (size_t group = 1; group < groups.size(); ++group) {
    const GroupSpans& spans = plan.more_groups[group - 1];
    if (!HasOneMore(groups[group], spans.ranges[index], spans.kv_slots[row], page_tokens)) {
      return false;
    }
  }
  return true;
}

uint8_t UnexpectedLists(const StepPlan& plan, const MirroredSequence& known, size_t index) {
  const SequenceSlice& slice = plan.sequences[index];
  uint8_t lists = slice.adapter_slot == known.adapter_slot ? 0 : kAdapter;
  if (slice.segment != known.segment) lists |= kSegment;
  if (slice.num_pieces > 0) lists |= kPieces;
  Position expected = known.next_position;
  for (const Position position : RowsOf(slice, plan.positions)) {
    if (position != expected++) lists |= kPositions;
  }
  for (size_t group = 0; group < known.groups.size(); ++group) {
    if (!SlotsAreLast(PartOf(plan, index, group))) lists |= kSlots;
  }
  return lists;
}

void WritePieces(const StepPlan& plan, const SequenceSlice& slice, ByteWriter* bytes) {
  bytes->Varint(static_cast<uint64_t>(slice.num_pieces));
  for (int32_t i = slice.piece_begin; i < slice.piece_begin + slice.num_pieces; ++i) {
    WriteMembers(plan.pieces[static_cast<size_t>(i)], bytes);
  }
}

void WriteLists(const StepPlan& plan, const SequenceSlice& slice, uint8_t lists, Position expected,
                ByteWriter* bytes) {
  bytes->Byte(lists);
  if ((lists & kAdapter) != 0) bytes->Zigzag(slice.adapter_slot);
  if ((lists & kSegment) != 0) bytes->Varint(static_cast<uint64_t>(slice.segment));
  if ((lists & kPieces) != 0) WritePieces(plan, slice, bytes);
  auto row = static_cast<size_t>(slice.token_begin);
  for (const Position position : RowsOf(slice, plan.positions)) {
    if ((lists & kPositions) != 0) bytes->Zigzag(int64_t{position} - expected++);
    if ((lists & kSlots) != 0) {
      WriteMembers(plan.kv_slots[row], bytes);
      for (const GroupSpans& group : plan.more_groups) WriteMembers(group.kv_slots[row], bytes);
    }
    ++row;
  }
}

void WriteSamples(const StepPlan& plan, ByteWriter* bytes) {
  bytes->Varint(plan.samples.size());
  RowOwners owners(plan);
  int32_t row = -1;
  for (const SampleRow& sample : plan.samples) {
    const SequenceSlice* owner = owners.Of(sample.row);
    HEDDLE_CHECK(owner != nullptr, "a sample of a row that no slice has");
    const Position next = plan.positions[static_cast<size_t>(sample.row)] + 1;
    const bool is_next = sample.id == owner->id && sample.position == next;
    const int64_t flags =
        (sample.num_rows == 1 ? kOneSampledRow : 0) | (is_next ? kNextPosition : 0);
    bytes->Zigzag((int64_t{sample.row} - row) * (1 << kSampleFlagBits) + flags);
    row = sample.row;
    if (sample.num_rows != 1) bytes->Zigzag(sample.num_rows);
    if (!is_next) {
      WriteMembers(sample.id, bytes);
      WriteMembers(sample.position, bytes);
    }
  }
}

void WriteUndrawn(const StepPlan& plan, ByteWriter* bytes) {
  bytes->Varint(plan.undrawn.size());
  UndrawnRow last = {-1, -1, plan.step};
  for (const UndrawnRow& undrawn : plan.undrawn) {
    const bool is_next = undrawn.sample == last.sample + 1 && undrawn.step == last.step;
    bytes->Zigzag((int64_t{undrawn.row} - last.row) * 2 + (is_next ? kNextSample : 0));
    if (!is_next) {
      bytes->Zigzag(int64_t{undrawn.sample} - last.sample);
      bytes->Zigzag(static_cast<int64_t>(undrawn.step - last.step));
    }
    last = undrawn;
  }
}

}  // namespace

uint64_t ChainChecksum(uint64_t before, std::string_view message) {
  // Multiplications by odd constants (those of SplitMix64) with the high half folded in.
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  };
  // One is enough for a word: it maps the words one to one to sums, so that a changed word changes
  // the result.
  const auto add = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15U;
    return sum ^ (sum >> 32);
  };
  uint64_t sum = mix(before + 0x9e3779b97f4a7c15U + message.size());
  uint64_t word = 0;
  for (; message.size() >= sizeof(word); message.remove_prefix(sizeof(word))) {
    std::memcpy(&word, message.data(), sizeof(word));
    sum = add(sum, word);
  }
  word = 0;
  message.copy(reinterpret_cast<char*>(&word), message.size());
  return mix(add(sum, word));
}

PlanEncoder::PlanEncoder(const ExecutorLimits& limits)
    : page_tokens_(limits.page_tokens),
      mirror_(static_cast<int32_t>(limits.windows.size()), MirroredSequences(limits)) {}

void PlanEncoder::Encode(const StepPlan& plan, std::string* message) {
  const size_t begin = message->size();
  WritePlan(plan, message);
  mirror_.EndPlan(plan);
  last_step_ = plan.step;
  chain_ = ChainChecksum(chain_, std::string_view(*message).substr(begin));
  ByteWriter(message).Word(chain_);
}

void PlanEncoder::WritePlan(const StepPlan& plan, std::string* message) {
  ByteWriter bytes(message);
  bytes.Bytes(kPlanMagic);
  bytes.Byte(kPlanVersion);
  bytes.Zigzag(static_cast<int64_t>(plan.step - last_step_));
  bytes.Byte(plan.feeds_drafter ? 1 : 0);
  bytes.Varint(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) WriteSlice(plan, i, &bytes);
  WriteSamples(plan, &bytes);
  WriteUndrawn(plan, &bytes);
  TransferRareArrays(plan, [&bytes](const auto& array) { WriteMembers(array, &bytes); });
}

bool PlanEncoder::AreGrown(const StepPlan& plan, size_t index,
                           const MirroredSequence& known) const {
  const int32_t num_tokens = plan.sequences[index].num_tokens;
  for (size_t group = 0; group < known.groups.size(); ++group) {
    const ListedSpans list = PartOf(plan, index, group).list;
    if (!IsGrown(known.groups[group], list, num_tokens, page_tokens_)) return false;
  }
  return true;
}

void PlanEncoder::WriteSpans(const StepPlan& plan, size_t index, bool grown,
                             MirroredSequence* known, ByteWriter* bytes) const {
  for (size_t group = 0; group < known->groups.size(); ++group) {
    const ListedSpans list = PartOf(plan, index, group).list;
    if (grown) {
      WriteGrowth(list, &known->groups[group], bytes);
    } else {
      WriteDifference(list, &known->groups[group], bytes);
    }
  }
}

void PlanEncoder::WriteSlice(const StepPlan& plan, size_t index, ByteWriter* bytes) {
  const SequenceSlice& slice = plan.sequences[index];
  MirroredSequence& known = mirror_.Find(slice.id);
  const bool is_usual = IsOneRowMore(plan, index, known, page_tokens_);
  const uint8_t lists = is_usual ? 0 : UnexpectedLists(plan, known, index);
  const bool grown = is_usual || AreGrown(plan, index, known);
  const SequenceId before = index == 0 ? SequenceId{} : plan.sequences[index - 1].id;
  bytes->Zigzag(
      static_cast<int64_t>(static_cast<uint64_t>(slice.id) - static_cast<uint64_t>(before)));
  bytes->Byte(static_cast<uint8_t>(
      static_cast<uint8_t>(slice.kind) | (slice.num_tokens == 1 ? kOneRow : 0) |
      (lists == 0 ? kAsExpected : 0) | (grown ? kGrown : 0) |
      (slice.num_masks > 0 ? kHasMasks : 0) | (slice.next_token != kNoToken ? kHasNextToken : 0) |
      (slice.second_begin >= 0 ? kHasSecond : 0)));
  if (slice.num_tokens != 1) bytes->Varint(static_cast<uint64_t>(slice.num_tokens));
  for (const TokenId token : RowsOf(slice, plan.token_ids)) {
    bytes->Varint(static_cast<uint64_t>(int64_t{token} + 1));
  }
  if (is_usual) {
    for (MirroredSpans& spans : known.groups) AddOne(&spans);
  } else {
    WriteSpans(plan, index, grown, &known, bytes);
  }
  if (lists != 0) WriteLists(plan, slice, lists, known.next_position, bytes);
  const std::span masks =
      std::span(plan.ancestor_masks)
          .subspan(static_cast<size_t>(slice.mask_begin), static_cast<size_t>(slice.num_masks));
  for (const uint64_t mask : masks) bytes->Varint(mask);
  if (slice.next_token != kNoToken) bytes->Varint(static_cast<uint64_t>(slice.next_token));
  if (slice.second_begin >= 0) bytes->Varint(static_cast<uint64_t>(slice.second_begin));
  known.adapter_slot = slice.adapter_slot;
  known.segment = slice.segment;
  known.next_position = RowsOf(slice, plan.positions).back() + 1;
  known.step = plan.step;
}

}  // namespace heddle::engine
