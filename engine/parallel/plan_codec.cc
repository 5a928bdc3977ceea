#include "engine/parallel/plan_codec.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/parallel/check_plan.h"
#include "engine/parallel/plan_members.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kMagic = "HPLN";
constexpr uint8_t kVersion = 1;
constexpr size_t kHeaderBytes = kMagic.size() + 1;
constexpr size_t kChecksumBytes = 8;

// The first byte of a slice.
enum SliceFlag : uint8_t {
  kKindBits = 3,
  kOneRow = 4,
  kAsExpected = 8,  // adapter, positions, slots and segment, and there are no pieces
  kGrown = 16,      // the spans of all groups are those of the mirror and the rows of this slice
  kHasMasks = 32,
  kHasNextToken = 64,
  kHasSecond = 128,
};

// The lists that a slice without kAsExpected has.
enum SliceList : uint8_t { kAdapter = 1, kPositions = 2, kSlots = 4, kSegment = 8, kPieces = 16 };

// A sample's number: its row behind that of the sample before, and in the lowest bits:
enum SampleFlag : uint8_t {
  kOneSampledRow = 1,
  kNextPosition = 2,  // draws for the row's sequence, for the position behind the row's
  kSampleFlagBits = 2,
};

// Sequences that the mirrors remember: those that run, and as many again that are preempted.
size_t MirroredSequences(const ExecutorLimits& limits) {
  return static_cast<size_t>(std::max(limits.max_batch_seqs, 1)) * 4 + 64;
}

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
         slice.list_version},
        RowsOf(slice, plan.kv_slots)};
  }
  const GroupSpans& spans = plan.more_groups[group - 1];
  const GroupSpans::Range& range = spans.ranges[index];
  return {
      {std::span(spans.spans)
           .subspan(static_cast<size_t>(range.span_begin), static_cast<size_t>(range.num_spans)),
       range.list_version},
      RowsOf(slice, spans.kv_slots)};
}

// Calls visit(slot) for the last `count` positions of the list, in order; false if it has fewer, or
// once `visit` is false.
template <typename Visit>
bool VisitLastSlots(std::span<const KvSpan> spans, int32_t count, Visit&& visit) {
  size_t span = spans.size();
  int32_t missing = count;
  while (missing > 0 && span > 0) missing -= spans[--span].num_tokens;
  if (missing > 0) return false;
  int32_t offset = -missing;
  for (int32_t i = 0; i < count; ++i, ++offset) {
    while (offset >= spans[span].num_tokens) {
      ++span;
      offset = 0;
    }
    if (!visit(KvSlot{spans[span].page, offset})) return false;
  }
  return true;
}

bool SlotsAreLast(const GroupPart& part) {
  auto next = part.slots.begin();
  return VisitLastSlots(part.list.spans, static_cast<int32_t>(part.slots.size()), [&](KvSlot slot) {
    const bool same = slot.page == next->page && slot.offset == next->offset;
    ++next;
    return same;
  });
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

void ReadPieces(ByteReader* bytes, SequenceSlice* slice, StepPlan* plan) {
  const size_t count = bytes->Count();
  slice->piece_begin = static_cast<int32_t>(plan->pieces.size());
  slice->num_pieces = static_cast<int32_t>(count);
  for (size_t i = 0; i < count && bytes->ok(); ++i) {
    ReadMembers(bytes, &plan->pieces.emplace_back());
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

// Finds the slices of rows, fastest where each row is in the slice of the row before or the next.
class RowOwners {
 public:
  explicit RowOwners(const StepPlan& plan) : slices_(plan.sequences) {}

  // The slice with `row`; nullptr: none has it.
  const SequenceSlice* Of(int64_t row) {
    for (size_t at = at_; at < std::min(at_ + 2, slices_.size()); ++at) {
      if (!Has(slices_[at], row)) continue;
      at_ = at;
      return &slices_[at];
    }
    const auto behind = std::upper_bound(
        slices_.begin(), slices_.end(), row,
        [](int64_t value, const SequenceSlice& slice) { return value < slice.token_begin; });
    if (behind == slices_.begin() || !Has(*std::prev(behind), row)) return nullptr;
    at_ = static_cast<size_t>(behind - slices_.begin()) - 1;
    return &slices_[at_];
  }

 private:
  static bool Has(const SequenceSlice& slice, int64_t row) {
    return row >= slice.token_begin && row < int64_t{slice.token_begin} + slice.num_tokens;
  }

  std::span<const SequenceSlice> slices_;
  size_t at_ = 0;
};

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

void WriteUndrawn(const StepPlan& plan, ByteWriter* bytes) {
  bytes->Varint(plan.undrawn.size());
  UndrawnRow last = {-1, -1, plan.step};
  for (const UndrawnRow& undrawn : plan.undrawn) {
    bytes->Zigzag(int64_t{undrawn.row} - last.row);
    bytes->Zigzag(int64_t{undrawn.sample} - last.sample);
    bytes->Zigzag(static_cast<int64_t>(undrawn.step - last.step));
    last = undrawn;
  }
}

void ReadUndrawn(ByteReader* bytes, StepPlan* plan) {
  plan->undrawn.resize(bytes->Count());
  UndrawnRow last = {-1, -1, plan->step};
  for (UndrawnRow& undrawn : plan->undrawn) {
    undrawn.row = static_cast<int32_t>(bytes->Shifted(last.row));
    undrawn.sample = static_cast<int32_t>(bytes->Shifted(last.sample));
    undrawn.step = last.step + static_cast<uint64_t>(bytes->Zigzag());
    last = undrawn;
  }
}

// The arrays that most plans have empty, in both directions: `transfer` writes or reads one.
template <typename Plan, typename Transfer>
void TransferRareArrays(Plan& plan, Transfer&& transfer) {
  transfer(plan.begun);
  transfer(plan.swaps_out);
  transfer(plan.swaps_in);
  transfer(plan.adapter_loads);
  transfer(plan.adapter_binds);
  transfer(plan.adapter_pages);
  transfer(plan.page_copies);
  transfer(plan.scores);
  transfer(plan.pools);
  transfer(plan.drafts_ahead);
  transfer(plan.ahead_slots);
  transfer(plan.ended);
  for (auto& group : plan.more_groups) transfer(group.ahead_slots);
}

}  // namespace

uint64_t ChainChecksum(uint64_t before, std::string_view message) {
  // Multiplications by odd constants (those of SplitMix64) with the high half folded in.
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  };
  uint64_t sum = mix(before + 0x9e3779b97f4a7c15U + message.size());
  for (; !message.empty(); message.remove_prefix(std::min<size_t>(8, message.size()))) {
    uint64_t word = 0;
    std::memcpy(&word, message.data(), std::min<size_t>(8, message.size()));
    sum = mix(sum ^ word);
  }
  return sum;
}

PlanEncoder::PlanEncoder(const ExecutorLimits& limits)
    : page_tokens_(limits.page_tokens),
      mirror_(static_cast<int32_t>(limits.windows.size()), MirroredSequences(limits)) {}

void PlanEncoder::Encode(const StepPlan& plan, std::string* message) {
  const size_t begin = message->size();
  ByteWriter bytes(message);
  message->append(kMagic);
  bytes.Byte(kVersion);
  bytes.Zigzag(static_cast<int64_t>(plan.step - last_step_));
  last_step_ = plan.step;
  bytes.Byte(plan.feeds_drafter ? 1 : 0);
  bytes.Varint(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) WriteSlice(plan, i, &bytes);
  WriteSamples(plan, &bytes);
  WriteUndrawn(plan, &bytes);
  TransferRareArrays(plan, [&bytes](const auto& array) { WriteMembers(array, &bytes); });
  mirror_.EndPlan(plan);
  chain_ = ChainChecksum(chain_, std::string_view(*message).substr(begin));
  bytes.Word(chain_);
}

void PlanEncoder::WriteSlice(const StepPlan& plan, size_t index, ByteWriter* bytes) {
  const SequenceSlice& slice = plan.sequences[index];
  MirroredSequence& known = mirror_.Find(slice.id);
  const uint8_t lists = UnexpectedLists(plan, known, index);
  bool grown = true;
  for (size_t group = 0; group < known.groups.size(); ++group) {
    grown = grown && IsGrown(known.groups[group], PartOf(plan, index, group).list, slice.num_tokens,
                             page_tokens_);
  }
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
  for (size_t group = 0; group < known.groups.size(); ++group) {
    const ListedSpans list = PartOf(plan, index, group).list;
    if (grown) {
      WriteGrowth(list, &known.groups[group], bytes);
    } else {
      WriteDifference(list, &known.groups[group], bytes);
    }
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

PlanDecoder::PlanDecoder(const ExecutorLimits& limits)
    : limits_(limits),
      mirror_(static_cast<int32_t>(limits.windows.size()), MirroredSequences(limits)) {}

absl::Status PlanDecoder::Decode(std::string_view message, StepPlan* plan) {
  if (is_broken_) {
    return absl::InvalidArgumentError("this stream of step plans has failed before");
  }
  is_broken_ = true;
  if (message.size() < kHeaderBytes + kChecksumBytes || !message.starts_with(kMagic)) {
    return absl::InvalidArgumentError("a message is no step plan");
  }
  if (const int version = static_cast<uint8_t>(message[kMagic.size()]); version != kVersion) {
    return absl::InvalidArgumentError(base::StrCat("a step plan has version ", version,
                                                   "; this program reads version ", int{kVersion}));
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

absl::Status PlanDecoder::Read(std::string_view body, StepPlan* plan) {
  ByteReader bytes(body);
  plan->more_groups.resize(limits_.windows.size() - 1);
  plan->Clear();
  plan->step = last_step_ + static_cast<uint64_t>(bytes.Zigzag());
  last_step_ = plan->step;
  plan->feeds_drafter = bytes.Byte() != 0;
  const size_t num_slices = bytes.Count();
  if (num_slices > static_cast<size_t>(limits_.max_batch_seqs)) bytes.Fail();
  for (size_t i = 0; i < num_slices && bytes.ok(); ++i) ReadSlice(&bytes, plan);
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
  SequenceSlice slice;
  const SequenceId before = plan->sequences.empty() ? SequenceId{} : plan->sequences.back().id;
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
  ReadSpans(bytes, (flags & kGrown) != 0, &known, &slice, plan);
  const uint8_t lists = (flags & kAsExpected) != 0 ? 0 : bytes->Byte();
  slice.adapter_slot = known.adapter_slot;
  if ((lists & kAdapter) != 0) ReadMembers(bytes, &slice.adapter_slot);
  slice.segment = known.segment;
  if ((lists & kSegment) != 0) slice.segment = static_cast<int32_t>(bytes->Varint());
  if ((lists & kPieces) != 0) ReadPieces(bytes, &slice, plan);
  ReadPositionsAndSlots(bytes, lists, known, slice.num_tokens, plan);
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
  plan->sequences.push_back(slice);
}

void PlanDecoder::ReadSpans(ByteReader* bytes, bool grown, MirroredSequence* known,
                            SequenceSlice* slice, StepPlan* plan) {
  const PageBounds bounds = {limits_.num_pages, limits_.page_tokens};
  for (size_t group = 0; group < known->groups.size(); ++group) {
    if (grown) {
      ReadGrowth(bytes, slice->num_tokens, bounds, &known->groups[group]);
    } else {
      ReadDifference(bytes, bounds, &known->groups[group]);
    }
    const std::vector<KvSpan>& spans = known->groups[group].spans;
    const int64_t context = known->groups[group].context_tokens;
    if (context > limits_.max_context) return bytes->Fail();
    std::vector<KvSpan>& all = group == 0 ? plan->spans : plan->more_groups[group - 1].spans;
    const GroupSpans::Range range = {.span_begin = static_cast<int32_t>(all.size()),
                                     .num_spans = static_cast<int32_t>(spans.size()),
                                     .context_tokens = static_cast<int32_t>(context)};
    all.insert(all.end(), spans.begin(), spans.end());
    if (group > 0) {
      plan->more_groups[group - 1].ranges.push_back(range);
      continue;
    }
    slice->span_begin = range.span_begin;
    slice->num_spans = range.num_spans;
    slice->context_tokens = range.context_tokens;
  }
}

void PlanDecoder::ReadPositionsAndSlots(ByteReader* bytes, uint8_t lists,
                                        const MirroredSequence& known, int32_t num_tokens,
                                        StepPlan* plan) {
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
