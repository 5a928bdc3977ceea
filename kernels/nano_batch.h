// Says which steps a device splits into two halves of their rows that run concurrently, so that one
// half's attention, which is bound by memory, and its sums over ranks, which are bound by the link,
// overlap the other's matrix products, which are bound by arithmetic. It pays if both are long, and
// costs if weights are read twice, so it is measured (`heddle tune`) and kept as data. Sources: Zhu
// et al., "NanoFlow", 2024; Gond et al., "TokenWeave", 2025.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace heddle::kernels {

// The steps that a rule is for: those of prompts have most of their rows in sequences with more
// than kMaxTreeRows rows, which are chunks of prompts.
enum class StepKind : uint8_t { kAny, kDecodes, kPrompts };

// Holds for steps of [min_rows, max_rows] rows whose sequences have at least min_context positions
// each on average.
struct NanoBatchRule {
  int32_t min_rows = 2;
  int32_t max_rows = std::numeric_limits<int32_t>::max();
  int32_t min_context = 0;
  bool split = true;  // false: such steps run whole, whatever later rules say
  // Multiprocessors that attention may fill while the other half multiplies; products leave as many
  // free. 0: no limit on either.
  int32_t attention_multiprocessors = 0;
  StepKind steps = StepKind::kAny;
  // Not 0: a step may also be cut within a sequence, in front of any of its rows whose number is a
  // multiple of this. Where tiles of attention begin there (kCutRows), a row meets the same keys in
  // the same order as in a whole step.
  int32_t cut_rows = 0;
  friend bool operator==(const NanoBatchRule&, const NanoBatchRule&) = default;
};

// The longest tile of attention.
inline constexpr int32_t kCutRows = 128;

struct NanoBatchProfile {
  std::string device_name;           // where it was measured; empty: anywhere
  std::vector<NanoBatchRule> rules;  // the first that holds applies; none: the step runs whole
};

// The device that a profile is measured on.
struct NanoBatchDevice {
  std::string name;  // "NVIDIA H200"
  int32_t num_multiprocessors = 0;
};

}  // namespace heddle::kernels
