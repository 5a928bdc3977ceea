// Architectures that other programs run and this one does not, with what is missing for each.
// Private to engine/family.
// Thread-safety: a constant table; any thread.
#pragma once

#include <span>
#include <string_view>

namespace heddle::engine {

struct OtherArchitecture {
  // Names in general.architecture, "architectures" and "model_type", between blanks.
  std::string_view names;
  std::string_view nearest;  // the row whose arithmetic is closest; empty: none is close
  std::string_view missing;  // completes "it needs ..."
};

// The one with the name, or of which the name is another class ("BloomForSequenceClassification")
// or the decoder inside a larger model ("qwen4_exp_text"). nullptr: the name is of none of them.
const OtherArchitecture* FindOtherArchitecture(std::string_view name);
std::span<const OtherArchitecture> OtherArchitectures();

}  // namespace heddle::engine
