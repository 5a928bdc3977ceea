// A rank's part of an adapter's image as bytes, for a rank in another process: of the pages those
// that a step loads, and the places of the factors if the step binds the adapter. So a rank keeps
// nothing of an adapter but what is in its pool, and needs none of its files.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/step.h"

namespace heddle::engine {

// Appends what `plan` loads and binds of the image for that rank.
void EncodeImage(const AdapterImage& image, int32_t rank, const StepPlan& plan, std::string* out);

struct DecodedImage {
  std::shared_ptr<const AdapterImage> image;  // OfRank(rank) is the part
  std::vector<int32_t> pages;                 // of the part, those whose content is there
  bool has_factors = false;
};

// The pages and the type of factors that a rank has.
struct ImageLimits {
  int64_t page_bytes = 0;
  kernels::DType dtype = kernels::DType::kBF16;
  int32_t max_pages = 0;
};
// INVALID_ARGUMENT for anything that does not fit the limits, or places outside of the image's
// pages.
absl::StatusOr<DecodedImage> DecodeImage(std::string_view bytes, int32_t rank,
                                         const ImageLimits& limits);

}  // namespace heddle::engine
