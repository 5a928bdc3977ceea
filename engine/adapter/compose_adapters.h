// Makes one adapter of several: a request's weighted set, `lora: [{id, scale}, ...]`. The result is
// an image like any other, of summed ranks with the members' scales folded in, so that scheduler,
// pages, prefix cache and kernels know nothing of sets. It is used at scale 1.
//
// Meaning of a set: each member i changes the base W to W_i, and the set is
//   W + the sum over i of scale_i * (W_i - W),
// for factors, biases, norms, DoRA's magnitudes and whole matrices alike, as PEFT does with several
// active adapters.
//
// Identity: the same members (by content) with the same scales in the same order give the same
// bytes, so a set may be known by a digest of its members' digests and scales, in order, without
// being made. Another order gives the same sums in another order, which may differ in the last bit:
// sort the members first if {a, b} and {b, a} are to be one set.
// Images that hold those of other ranks are composed rank by rank.
// Blocking: copies the members' factors on the caller's thread.
// Thread-safety: any thread; images are immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"

namespace heddle::engine {

struct AdapterShare {
  std::string_view name;  // for messages
  const AdapterImage* image = nullptr;
  float scale = 1.0f;  // 0: as if it were not there
};

// REQUIRES: the images were made for the same target (AdapterTarget).
// INVALID_ARGUMENT, naming the members, if
//   - there is no member with a scale other than 0, or a scale is not finite;
//   - the ranks of a matrix add up to more than max_rank (those of whole matrices do not count);
//   - one member replaces a whole matrix (modules_to_save of an embedding or a head) for which
//     another has factors;
//   - a folded value is not finite in the image's type.
// RESOURCE_EXHAUSTED above max_bytes (0: no limit). The image's id is 0.
absl::StatusOr<std::shared_ptr<AdapterImage>> ComposeAdapters(std::span<const AdapterShare> members,
                                                              int32_t max_rank, int64_t max_bytes);

}  // namespace heddle::engine
