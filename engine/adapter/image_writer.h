// Lays an image of pages out and writes it: first everything gets its place, then memory is taken,
// then rows are written. Private to engine/adapter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "kernels/dtype.h"

namespace heddle::engine {

class ImageWriter {
 public:
  // REQUIRES: page_bytes > 0, in multiples of 16.
  ImageWriter(kernels::DType dtype, int64_t page_bytes);

  int64_t RowBytes(int64_t cols) const { return kernels::RowBytes(image_->dtype, cols); }

  // Rows of a block, at most `most`, for `rows` rows of up to `longest` elements. INVALID_ARGUMENT
  // names `module` if a row, or the pointers to all blocks, do not fit a page.
  absl::StatusOr<int32_t> BlockRows(std::string_view module, int64_t rows, int64_t longest,
                                    int64_t most) const;
  std::vector<ImagePlace> PlaceBlocks(int64_t rows, int32_t block_rows, int64_t cols);
  // Room for F32 values; INVALID_ARGUMENT names `module` if they do not fit a page.
  absl::StatusOr<ImagePlace> PlaceVector(std::string_view module, int64_t count);
  void Add(ImageFactors factors) { image_->factors.push_back(std::move(factors)); }

  // Places the tables of pointers and takes zeroed memory: RESOURCE_EXHAUSTED above max_bytes (0:
  // no limit), or if the machine lacks it. The rest of this class is for afterwards.
  absl::Status Allocate(int64_t max_bytes);

  const std::vector<ImageFactors>& factors() const { return image_->factors; }
  std::byte* At(const ImagePlace& place) {
    return image_->content.get() + place.page * image_->page_bytes + place.offset;
  }
  // Row j of blocks whose rows have `cols` elements.
  std::byte* Row(std::span<const ImagePlace> places, int32_t block_rows, int64_t j, int64_t cols) {
    return At(places[static_cast<size_t>(j / block_rows)]) + j % block_rows * RowBytes(cols);
  }
  // Stores values in the image's type. False: one of them is not finite in it, and nothing is
  // stored.
  bool Store(std::span<const float> values, std::byte* to) const;

  std::shared_ptr<AdapterImage> Take() { return std::move(image_); }

 private:
  // Finds room in one of the last pages, else in a new one.
  ImagePlace Place(int64_t bytes, int64_t alignment);
  void PlaceTables();

  std::shared_ptr<AdapterImage> image_;
  std::vector<int64_t> used_;  // bytes of each page
};

// Whether any of these BF16 values is a NaN or an infinity.
bool HoldsNonFinite(const uint16_t* values, int64_t count);

}  // namespace heddle::engine
