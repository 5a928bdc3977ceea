// The file that `heddle tune` writes and `heddle serve --tune-profile` reads: JSON, one rule per
// line, such as
//   {"device": "NVIDIA H200", "model": "4096 wide, ...", "min_rows": 96, "max_rows": 191,
//    "min_context": 2048, "split": 1, "attention_multiprocessors": 44, "speedup": 1.12}
// The first rule that holds counts, as in kernels/nano_batch.h. "model" is what
// engine/model/tuned_model.h calls the model that was measured; earlier versions wrote none. A rule
// for one kind of steps has "steps": "decodes" or "prompts", and one that also cuts within
// sequences has "cut_rows": 128. "speedup" is for people; unknown fields are errors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/nano_batch.h"

namespace heddle::server {

// More than any file of this kind has.
inline constexpr size_t kMaxTuneRules = 4096;

// More than any model takes to be described.
inline constexpr size_t kMaxTunedModelBytes = size_t{16} << 10;

struct TuneProfile {
  kernels::NanoBatchProfile steps;
  std::string model;  // empty: the file does not say
};

// `name` is the file's. INVALID_ARGUMENT with name:line, what was found and what is expected; also
// for lines of different devices or models, and for a file without rules.
absl::StatusOr<TuneProfile> ReadTuneProfile(std::string_view text, std::string_view name);

// The device of a profile for `tp` ranks that share layers: "2 ranks, each NVIDIA H200"; that of
// each for one.
std::string TunedDevice(int32_t tp, const std::string& device);
// The profile for the device of each of `tp` ranks, out of that from file `name`. INVALID_ARGUMENT
// if it was measured with other ranks.
absl::StatusOr<kernels::NanoBatchProfile> ProfileOfRank(kernels::NanoBatchProfile profile,
                                                        int32_t tp, std::string_view name);

// `speedups`: one per rule.
std::string WriteTuneProfile(const TuneProfile& profile, std::span<const double> speedups);

}  // namespace heddle::server
