#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/parallel/check_plan.h"
#include "engine/parallel/plan_codec.h"
#include "engine/parallel/plan_format.h"
#include "engine/parallel/plan_members.h"

namespace heddle::engine {
namespace {

void ReadPieces(ByteReader* bytes, SequenceSlice* slice, StepPlan* plan) {
  const size_t count = bytes->Count();
  slice->piece_begin = static_cast<int32_t>(plan->pieces.size());
  slice->num_pieces = static_cast<int32_t>(count);
  for (size_t i = 0; i < count && bytes->ok(); ++i) {
    ReadMembers(bytes, &plan->pieces.emplace_back());
  }
}

void ReadSamples(ByteReader* bytes, StepPlan* plan) {
  plan->samples.resize(bytes->Count());
  RowOwners owners(*plan);
  int64_t row = -1;
  for (SampleRow& sample : plan->samples) {
    const int64_t number = bytes->Zigzag();
    row += number >> kSampleFlagBits;
    const SequenceSlice* owner = owners.Of(row);
    if (owner == nullptr) return bytes->Fail();
    sample = {owner->id, static_cast<int32_t>(row), 0};
    if ((number & kOneSampledRow) == 0) ReadMembers(bytes, &sample.num_rows);
    if ((number & kNextPosition) != 0) {
      sample.position = plan->positions[static_cast<size_t>(row)] + 1;
    } else {
      ReadMembers(bytes, &sample.id);
      ReadMembers(bytes, &sample.position);
    }
  }
}

void ReadUndrawn(ByteReader* bytes, StepPlan* plan) {
  plan->undrawn.resize(bytes->Count());
  UndrawnRow last = {-1, -1, plan->step};
  for (UndrawnRow& undrawn : plan->undrawn) {
    const int64_t number = bytes->Zigzag();
    const bool is_next = (number & kNextSample) != 0;
    undrawn.row = static_cast<int32_t>(last.row + (number >> 1));
    undrawn.sample =
        static_cast<int32_t>(is_next ? int64_t{last.sample} + 1 : bytes->Shifted(last.sample));
    undrawn.step = is_next ? last.step : last.step + static_cast<uint64_t>(bytes->Zigzag());
    last = undrawn;
  }
}

}  // namespace

PlanDecoder::PlanDecoder(const ExecutorLimits& limits)
    : limits_(limits),
      mirror_(static_cast<int32_t>(limits.windows.size()), MirroredSequences(limits)) {}

absl::Status PlanDecoder::Decode(std::string_view message, StepPlan* plan) {
  if (is_broken_) {
    return absl::InvalidArgumentError("this stream of step plans has failed before");
  }
  is_broken_ = true;
  if (message.size() < kHeaderBytes + kChecksumBytes || !message.starts_with(kPlanMagic)) {
    return absl::InvalidArgumentError("a message is no step plan");
  }
  if (const int version = static_cast<uint8_t>(message[kPlanMagic.size()]);
      version != kPlanVersion) {
    return absl::InvalidArgumentError(base::StrCat(
        "a step plan has version ", version, "; this program reads version ", int{kPlanVersion}));
  }
  const std::string_view checked = message.substr(0, message.size() - kChecksumBytes);
  chain_ = ChainChecksum(chain_, checked);
  if (ByteReader(message.substr(checked.size())).Word<uint64_t>() != chain_) {
    return absl::InvalidArgumentError(
        base::StrCat("a step plan does not follow step ", last_step_,
                     ": a plan is missing, came twice or was changed"));
  }
  HEDDLE_RETURN_IF_ERROR(Read(checked.substr(kHeaderBytes), plan));
  HEDDLE_RETURN_IF_ERROR(CheckPlanBesideSpans(*plan, limits_));
  is_broken_ = false;
  return absl::OkStatus();
}

// Empties the plan but for its spans, which are overwritten.
void PlanDecoder::BeginPlan(StepPlan* plan) {
  plan->more_groups.resize(limits_.windows.size() - 1);
  spans_.resize(limits_.windows.size());
  spans_[0].Begin(&plan->spans);
  for (size_t i = 1; i < spans_.size(); ++i) spans_[i].Begin(&plan->more_groups[i - 1].spans);
  plan->Clear();
}

// Gives the plan its spans.
void PlanDecoder::EndSpans(StepPlan* plan) {
  plan->spans = spans_[0].End();
  for (size_t i = 1; i < spans_.size(); ++i) plan->more_groups[i - 1].spans = spans_[i].End();
}

absl::Status PlanDecoder::Read(std::string_view body, StepPlan* plan) {
  ByteReader bytes(body);
  BeginPlan(plan);
  plan->step = last_step_ + static_cast<uint64_t>(bytes.Zigzag());
  last_step_ = plan->step;
  plan->feeds_drafter = bytes.Byte() != 0;
  const size_t num_slices = bytes.Count();
  if (num_slices > static_cast<size_t>(limits_.max_batch_seqs)) bytes.Fail();
  for (size_t i = 0; i < num_slices && bytes.ok(); ++i) ReadSlice(&bytes, plan);
  EndSpans(plan);
  ReadSamples(&bytes, plan);
  ReadUndrawn(&bytes, plan);
  TransferRareArrays(*plan, [&bytes](auto& array) { ReadMembers(&bytes, &array); });
  if (!bytes.ok() || bytes.num_left() > 0) {
    return absl::InvalidArgumentError(
        base::StrCat("the step plan ", plan->step, " of ", body.size(), " bytes is damaged"));
  }
  mirror_.EndPlan(*plan);
  return absl::OkStatus();
}

void PlanDecoder::ReadSlice(ByteReader* bytes, StepPlan* plan) {
  const SequenceId before = plan->sequences.empty() ? SequenceId{} : plan->sequences.back().id;
  SequenceSlice& slice = plan->sequences.emplace_back();
  slice.id = SequenceId{static_cast<uint64_t>(before) + static_cast<uint64_t>(bytes->Zigzag())};
  const uint8_t flags = bytes->Byte();
  slice.kind = static_cast<SliceKind>(flags & kKindBits);
  slice.token_begin = static_cast<int32_t>(plan->token_ids.size());
  const uint64_t num_tokens = (flags & kOneRow) != 0 ? 1 : bytes->Varint();
  if (num_tokens == 0 || num_tokens > static_cast<uint64_t>(limits_.max_batch_tokens)) {
    return bytes->Fail();
  }
  slice.num_tokens = static_cast<int32_t>(num_tokens);
  for (int32_t i = 0; i < slice.num_tokens; ++i) {
    plan->token_ids.push_back(static_cast<TokenId>(bytes->Varint() - 1));
  }
  MirroredSequence& known = mirror_.Find(slice.id);
  slice.adapter_slot = known.adapter_slot;
  slice.segment = known.segment;
  if ((flags & kUsualBits) == kUsualBits && HasRoom(known)) {
    AddRow(bytes, &known, plan);
  } else {
    ReadSpans(bytes, (flags & kGrown) != 0, num_tokens, &known);
    ReadLists(bytes, (flags & kAsExpected) != 0, known, &slice, plan);
  }
  AppendSpans(bytes, known, &slice, plan);
  if ((flags & kHasMasks) != 0) {
    slice.mask_begin = static_cast<int32_t>(plan->ancestor_masks.size());
    slice.num_masks = slice.num_tokens;
  }
  for (int32_t i = 0; i < slice.num_masks; ++i) plan->ancestor_masks.push_back(bytes->Varint());
  if ((flags & kHasNextToken) != 0) slice.next_token = static_cast<TokenId>(bytes->Varint());
  if ((flags & kHasSecond) != 0) slice.second_begin = static_cast<int32_t>(bytes->Varint());
  if (!bytes->ok()) return;
  known.adapter_slot = slice.adapter_slot;
  known.segment = slice.segment;
  known.next_position = plan->positions.back() + 1;
  known.step = plan->step;
}

// Whether the last page of each group takes another position.
bool PlanDecoder::HasRoom(const MirroredSequence& known) const {
  return std::all_of(known.groups.begin(), known.groups.end(), [this](const MirroredSpans& group) {
    return !group.spans.empty() && group.spans.back().num_tokens < limits_.page_tokens;
  });
}

// The row of a slice that is the usual one: nothing has to be read. REQUIRES: HasRoom(*known).
void PlanDecoder::AddRow(ByteReader* bytes, MirroredSequence* known, StepPlan* plan) const {
  const Position position = known->next_position;
  if (position < 0 || position >= limits_.max_context) return bytes->Fail();
  plan->positions.push_back(position);
  std::vector<KvSlot>* slots = &plan->kv_slots;
  GroupSpans* next_group = plan->more_groups.data();
  for (MirroredSpans& group : known->groups) {
    const KvSpan& last = group.spans.back();
    slots->push_back({last.page, last.num_tokens});
    AddOne(&group);
    slots = &next_group++->kv_slots;
  }
}

void PlanDecoder::ReadSpans(ByteReader* bytes, bool grown, uint64_t num_tokens,
                            MirroredSequence* known) const {
  const PageBounds bounds = {limits_.num_pages, limits_.page_tokens};
  for (MirroredSpans& group : known->groups) {
    if (grown) {
      ReadGrowth(bytes, static_cast<int32_t>(num_tokens), bounds, &group);
    } else {
      ReadDifference(bytes, bounds, &group);
    }
  }
}

void PlanDecoder::ReadLists(ByteReader* bytes, bool as_expected, const MirroredSequence& known,
                            SequenceSlice* slice, StepPlan* plan) const {
  const uint8_t lists = as_expected ? 0 : bytes->Byte();
  if ((lists & kAdapter) != 0) ReadMembers(bytes, &slice->adapter_slot);
  if ((lists & kSegment) != 0) slice->segment = static_cast<int32_t>(bytes->Varint());
  if ((lists & kPieces) != 0) ReadPieces(bytes, slice, plan);
  ReadPositionsAndSlots(bytes, lists, known, slice->num_tokens, plan);
}

// The lists of all groups, from the mirror into the plan.
void PlanDecoder::AppendSpans(ByteReader* bytes, const MirroredSequence& known,
                              SequenceSlice* slice, StepPlan* plan) {
  const std::span<const MirroredSpans> groups(known.groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const MirroredSpans& group = groups[i];
    if (group.context_tokens > limits_.max_context) return bytes->Fail();
    const auto begin = static_cast<int32_t>(spans_[i].size());
    const auto count = static_cast<int32_t>(group.spans.size());
    const auto context = static_cast<int32_t>(group.context_tokens);
    if (i == 0) {
      slice->span_begin = begin;
      slice->num_spans = count;
      slice->context_tokens = context;
    } else {
      // Member by member, in place: one that is put together elsewhere and copied as a whole waits
      // for the stores of all spans before it.
      GroupSpans::Range& range = plan->more_groups[i - 1].ranges.emplace_back();
      range.span_begin = begin;
      range.num_spans = count;
      range.context_tokens = context;
    }
    spans_[i].Append(group.spans);
  }
}

void PlanDecoder::ReadPositionsAndSlots(ByteReader* bytes, uint8_t lists,
                                        const MirroredSequence& known, int32_t num_tokens,
                                        StepPlan* plan) const {
  for (int32_t i = 0; i < num_tokens && bytes->ok(); ++i) {
    const int64_t expected = int64_t{known.next_position} + i;
    const int64_t position = (lists & kPositions) != 0 ? bytes->Shifted(expected) : expected;
    if (position < 0 || position >= limits_.max_context) return bytes->Fail();
    plan->positions.push_back(static_cast<Position>(position));
    if ((lists & kSlots) == 0) continue;
    ReadMembers(bytes, &plan->kv_slots.emplace_back());
    for (GroupSpans& group : plan->more_groups) ReadMembers(bytes, &group.kv_slots.emplace_back());
  }
  if ((lists & kSlots) != 0) return;
  for (size_t group = 0; group < known.groups.size(); ++group) {
    std::vector<KvSlot>& slots =
        group == 0 ? plan->kv_slots : plan->more_groups[group - 1].kv_slots;
    const bool fits = VisitLastSlots(known.groups[group].spans, num_tokens, [&slots](KvSlot slot) {
      slots.push_back(slot);
      return true;
    });
    if (!fits) return bytes->Fail();
  }
}

}  // namespace heddle::engine
