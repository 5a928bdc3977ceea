// Plans as messages: what arrives is what was sent, in few bytes, and messages that are lost,
// damaged or forged are refused. scheduler_property_test runs its random loads over messages, too.
#include "engine/parallel/plan_codec.h"

#include <random>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/parallel/plans.h"

namespace heddle::engine {

template <Is<KvSpan> T>
auto MembersOf(T& x) {
  auto& [page, num_tokens] = x;
  return std::tie(page, num_tokens);
}
template <Is<GroupSpans::Range> T>
auto MembersOf(T& x) {
  auto& [span_begin, num_spans, context_tokens, list_version] = x;  // the version does not travel
  return std::tie(span_begin, num_spans, context_tokens);
}
template <Is<UndrawnRow> T>
auto MembersOf(T& x) {
  auto& [row, sample, step] = x;
  return std::tie(row, sample, step);
}
template <Is<SampleRow> T>
auto MembersOf(T& x) {
  auto& [id, row, position, num_rows] = x;
  return std::tie(id, row, position, num_rows);
}
template <Is<SequenceSlice> T>
auto MembersOf(T& x) {
  auto& [id, kind, token_begin, num_tokens, span_begin, num_spans, context_tokens, adapter_slot,
         mask_begin, num_masks, next_token, second_begin, segment, piece_begin, num_pieces,
         list_version] = x;
  return std::tie(id, kind, token_begin, num_tokens, span_begin, num_spans, context_tokens,
                  adapter_slot, mask_begin, num_masks, next_token, second_begin, segment,
                  piece_begin, num_pieces);
}
template <Is<GroupSpans> T>
auto MembersOf(T& x) {
  auto& [kv_slots, spans, ranges, ahead_slots] = x;
  return std::tie(kv_slots, spans, ranges, ahead_slots);
}

namespace {

// The arrays of a plan, member by member: two plans are the same if these are.
std::vector<std::string> Everything(const StepPlan& plan) {
  std::vector<std::string> arrays;
  const auto append = [&arrays](const auto& array) {
    ByteWriter bytes(&arrays.emplace_back());
    WriteMembers(array, &bytes);
  };
  StepPlan::ForEachArray(plan, append);
  append(plan.more_groups);
  append(plan.feeds_drafter);
  append(plan.step);
  return arrays;
}

class Link {
 public:
  // The bytes that the plan took.
  size_t Send(const StepPlan& plan) {
    message_.clear();
    encoder_.Encode(plan, &message_);
    const absl::Status status = decoder_.Decode(message_, &got_);
    if (!status.ok()) FAIL(status.ToString());
    CheckEqual(plan);
    return message_.size();
  }
  const std::string& message() const { return message_; }

 private:
  void CheckEqual(const StepPlan& plan) {
    const std::vector<std::string> want = Everything(plan);
    const std::vector<std::string> got = Everything(got_);
    for (size_t i = 0; i < want.size(); ++i) {
      INFO("array " << i << " of StepPlan::ForEachArray, in step " << plan.step);
      CHECK((want[i] == got.at(i)));
    }
  }

  PlanEncoder encoder_{TestLimits()};
  PlanDecoder decoder_{TestLimits()};
  std::string message_;
  StepPlan got_;
};

// A plan with everything that a plan can have, of sequences in unusual states.
StepPlan FullPlan(uint64_t step) {
  StepPlan plan = EmptyPlan(step);
  plan.feeds_drafter = true;
  SequenceBegin& begun = plan.begun.emplace_back();
  begun.id = SequenceId{7};
  begun.prompt = {1, 2, 128'255};
  begun.sampling.temperature = 0.7f;
  begun.sampling.xtc_threshold = 0.25f;
  begun.sampling.seed = ~uint64_t{0};
  begun.sampling.num_logprobs = 5;
  begun.sampling.logit_bias = {{3, -1.5f}, {4, 100.0f}};
  begun.sampling.min_tokens = 3;
  begun.sampling.min_tokens_banned = {2, 9};
  begun.sampling.rejects_guesses = true;
  begun.sampling.bad_words = {{1}, {2, 3}};
  begun.sampling.dry_breakers = {{.heads = {5, 6}, .tail = {7}}};
  plan.begun.push_back({.id = SequenceId{8}, .sampling = {}, .prompt = {}});
  plan.swaps_out = {{PageId{1}, 2}};
  plan.swaps_in = {{PageId{3}, 4}, {PageId{5}, 49}};
  plan.adapter_loads = {{AdapterId{~uint64_t{0} >> 1}, 3, PageId{99'999}}};
  plan.adapter_binds = {{AdapterId{11}, 31, 0.5f, 1, 2}};
  plan.adapter_pages = {PageId{10}, PageId{20}, PageId{30}};
  plan.page_copies = {{PageId{6}, PageId{7}, 9}};
  AddSlice(7, 100, 0, 40, &plan);
  plan.sequences.back().adapter_slot = 31;
  plan.sequences.back().next_token = 0;
  plan.sequences.back().second_begin = 0;
  AddSlice(5, 300, 100, 4, &plan, 50'000, 3);  // ids need not ascend; a window has dropped pages
  SequenceSlice& tree = plan.sequences.back();
  tree.kind = SliceKind::kDraft;
  tree.num_masks = 4;
  tree.segment = 4;
  plan.ancestor_masks = {1, 3, 5, 13};
  plan.positions[40 + 2] = 101;               // a sibling
  plan.kv_slots[40 + 1] = {PageId{4000}, 3};  // not at the end of its spans
  plan.token_ids[40] = kNoToken;
  plan.undrawn = {{40, 2, step - 1}};
  plan.samples.back().num_rows = 4;
  plan.samples.back().row = 40;
  plan.samples.back().position = 101;
  AddSlice(~uint64_t{0}, 700, 15, 1, &plan);
  plan.sequences.back().num_pieces = 2;  // its row, at position 15, sees branches side by side
  plan.pieces = {{.num_tokens = 9}, {.num_tokens = 7, .position = 9, .turn = 3}};
  plan.samples.push_back({SequenceId{12}, 44, 16});  // a second branch draws from the same row
  plan.samples.push_back({SequenceId{7}, 39, 99});   // rows need not ascend
  plan.scores = {{SequenceId{7}, 3, 128'255, 20}};
  plan.pools = {{SequenceId{7}, 0, 40, true}};
  plan.drafts_ahead = {{2, 3, 0, 3, 0.25f, 100}};
  plan.ahead_slots = {{PageId{9}, 1}, {PageId{9}, 2}, {PageId{9}, 3}};
  plan.more_groups[0].ahead_slots = {{PageId{8}, 1}, {PageId{8}, 2}, {PageId{8}, 3}};
  plan.ended = {SequenceId{5}, SequenceId{1234}};
  return plan;
}

TEST_CASE("A plan arrives as it was sent", "[parallel][unit]") {
  Link link;
  link.Send(EmptyPlan(1));
  link.Send(FullPlan(2));
  StepPlan next = EmptyPlan(5);  // steps need not follow each other
  AddSlice(7, 100, 40, 1, &next);
  next.sequences.back().adapter_slot = 31;
  link.Send(next);
  link.Send(FullPlan(6));  // sequences that began anew, or whose context shrank
  link.Send(EmptyPlan(7));
}

TEST_CASE("Random lives of sequences arrive as they were sent", "[parallel][unit]") {
  std::mt19937_64 random(5);
  const auto between = [&random](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  struct Life {
    int32_t page = 0;
    int32_t context = 0;
  };
  Link link;
  std::vector<Life> lives(600);  // more than a mirror remembers between plans
  for (uint64_t step = 1; step <= 2000; ++step) {
    StepPlan plan = EmptyPlan(step);
    for (int32_t i = between(0, 12); i > 0; --i) {
      const int32_t id = between(0, 599);
      Life& life = lives[static_cast<size_t>(id)];
      const bool twice = std::any_of(
          plan.sequences.begin(), plan.sequences.end(),
          [&](const SequenceSlice& s) { return s.id == SequenceId{static_cast<uint64_t>(id)}; });
      if (twice) continue;
      if (between(0, 19) == 0) life = {between(0, 40'000), between(0, 50)};  // preempted
      if (between(0, 19) == 0) life.context = between(0, life.context);      // drafts were wrong
      const int32_t rows = between(0, 2) == 0 ? between(1, 60) : 1;
      const int32_t dropped = std::max(0, (life.context - 512) / 16);
      AddSlice(static_cast<uint64_t>(id), life.page, life.context, rows, &plan, 50'000, dropped);
      if (between(0, 3) > 0) {  // else the lists have to be compared
        const auto version =
            static_cast<uint64_t>(life.page) + 1;  // where all its pages follow from
        plan.sequences.back().list_version = version;
        plan.more_groups[0].ranges.back().list_version =
            version << 32 | static_cast<uint64_t>(dropped);
      }
      life.context += rows;
      if (between(0, 29) == 0) {
        plan.ended.push_back(SequenceId{static_cast<uint64_t>(id)});
        life.context = 0;
      }
    }
    link.Send(plan);
  }
}

TEST_CASE("256 decodes take less than 4 KB, however long their contexts are", "[parallel][unit]") {
  Link link;
  for (uint64_t step = 1; step <= 40; ++step) {
    StepPlan plan = EmptyPlan(step);
    for (uint64_t i = 0; i < 256; ++i) {
      const auto context = static_cast<int32_t>(1000 + i + step);
      AddSlice(1000 + i, static_cast<int32_t>(i) * 150, context, 1, &plan);
      plan.token_ids.back() = kNoToken;
      plan.undrawn.push_back({static_cast<int32_t>(i), static_cast<int32_t>(i), step - 1});
    }
    const size_t bytes = link.Send(plan);
    if (step > 1) CHECK(bytes < 4096);
  }
}

TEST_CASE("A lost, repeated, swapped or changed message is refused, and all behind it",
          "[parallel][unit]") {
  PlanEncoder encoder(TestLimits());
  std::vector<std::string> messages(3);
  for (uint64_t i = 0; i < 3; ++i) encoder.Encode(FullPlan(i + 2), &messages[i]);
  StepPlan plan;
  const auto decode = [&](std::vector<std::string> sent) {
    PlanDecoder decoder(TestLimits());
    absl::Status status;
    for (const std::string& message : sent) status = decoder.Decode(message, &plan);
    return status;
  };
  CHECK(decode({messages[0], messages[1], messages[2]}).ok());
  CHECK_FALSE(decode({messages[0], messages[2]}).ok());
  CHECK_FALSE(decode({messages[0], messages[0]}).ok());
  CHECK_FALSE(decode({messages[1], messages[0]}).ok());
  CHECK_FALSE(decode({messages[0], messages[2], messages[1]}).ok());
  for (size_t i = 0; i < messages[0].size(); ++i) {
    std::string changed = messages[0];
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    CHECK_FALSE(decode({changed}).ok());
    CHECK_FALSE(decode({messages[0].substr(0, i)}).ok());
  }
  PlanDecoder decoder(TestLimits());
  const absl::Status lost = decoder.Decode(messages[1], &plan);
  CHECK(lost.message().find("a plan is missing, came twice or was changed") != std::string::npos);
}

TEST_CASE("Forged messages with right checksums give plans that pass the checks, or errors",
          "[parallel][unit]") {
  std::string message;
  PlanEncoder(TestLimits()).Encode(FullPlan(2), &message);
  std::mt19937_64 random(9);
  int decoded = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string forged = message.substr(0, message.size() - 8);
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      forged[5 + random() % (forged.size() - 5)] = static_cast<char>(random());
    }
    ByteWriter(&forged).Word(ChainChecksum(0, forged));
    PlanDecoder decoder(TestLimits());
    StepPlan plan;
    if (decoder.Decode(forged, &plan).ok()) ++decoded;
  }
  CHECK(decoded > 500);  // so that the checks behind the reading were reached
}

}  // namespace
}  // namespace heddle::engine
