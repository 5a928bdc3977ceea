// Step plans as messages to the other ranks of an engine.
//
// A message is one plan, whole: Decode(Encode(plan)) is the plan. What a plan says that follows
// from the plans before it takes no bytes: both ends keep a mirror of the running sequences
// (span_mirror.h), so that a step of 256 decodes takes about two kilobytes, however long the
// contexts are. Messages are therefore to be decoded all, once, and in order; each ends in a
// checksum of itself and all before it, and one that does not follow is refused. Data that exists
// in one process only (StepLocals) does not travel: the rank that draws has it.
//
// Format, version 2: "HPLN", a byte with the version, the plan in the order of plan_codec.cc, and
// the checksum (8 bytes, little-endian). It is read by programs of the same build
// only (engine/parallel's ranks compare their builds first), so it promises nothing to others.
//
// Thread-safety: none. Allocates where arrays grow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/executor.h"
#include "engine/parallel/span_mirror.h"
#include "engine/step.h"

namespace heddle::engine {

// Checksum of a stream of messages up to `message`, which follows those with checksum `before`. It
// is not cryptographic: it notices lost, repeated and swapped messages, not a forger.
uint64_t ChainChecksum(uint64_t before, std::string_view message);

class PlanEncoder {
 public:
  // Both ends get the same limits.
  explicit PlanEncoder(const ExecutorLimits& limits);

  // Appends the message to `*message`. O(what the plan holds); spans are compared, not sent.
  // REQUIRES: slices are in row order, and their spans and masks lie one after the other, as
  // scheduler/plan_writer.h makes them.
  void Encode(const StepPlan& plan, std::string* message);

 private:
  void WritePlan(const StepPlan& plan, std::string* message);
  void WriteSlice(const StepPlan& plan, size_t slice, ByteWriter* bytes);
  // Writes the spans of a slice that is not the usual one, and makes *known's lists them.
  void WriteSpans(const StepPlan& plan, size_t slice, bool grown, MirroredSequence* known,
                  ByteWriter* bytes) const;
  bool AreGrown(const StepPlan& plan, size_t slice, const MirroredSequence& known) const;

  int32_t page_tokens_;
  SpanMirror mirror_;
  uint64_t chain_ = 0;
  uint64_t last_step_ = 0;
};

class PlanDecoder {
 public:
  explicit PlanDecoder(const ExecutorLimits& limits);

  // Overwrites *plan, reusing its capacity. The result is checked as any executor needs it
  // (check_plan.h), so that no message, whoever made it, leads to memory that is not the pool's.
  // INVALID_ARGUMENT: the message is no plan, or does not follow the last one; *plan is
  // unspecified, and all later messages are refused as well.
  absl::Status Decode(std::string_view message, StepPlan* plan);

 private:
  absl::Status Read(std::string_view body, StepPlan* plan);
  void ReadSlice(ByteReader* bytes, StepPlan* plan);
  bool HasRoom(const MirroredSequence& known) const;
  void AddRow(ByteReader* bytes, MirroredSequence* known, StepPlan* plan) const;
  void ReadSpans(ByteReader* bytes, bool grown, uint64_t num_tokens, MirroredSequence* known) const;
  void ReadLists(ByteReader* bytes, bool as_expected, const MirroredSequence& known,
                 SequenceSlice* slice, StepPlan* plan) const;
  void ReadPositionsAndSlots(ByteReader* bytes, uint8_t lists, const MirroredSequence& known,
                             int32_t num_tokens, StepPlan* plan) const;
  void AppendSpans(ByteReader* bytes, const MirroredSequence& known, SequenceSlice* slice,
                   StepPlan* plan);
  void BeginPlan(StepPlan* plan);
  void EndSpans(StepPlan* plan);

  ExecutorLimits limits_;
  SpanMirror mirror_;
  uint64_t chain_ = 0;
  uint64_t last_step_ = 0;
  std::vector<SpanArray> spans_;  // [groups] of the plan that is being read
  bool is_broken_ = false;
};

}  // namespace heddle::engine
