#include "engine/adapter/image_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/adapter/adapter_tensors.h"

namespace heddle::engine {
namespace {

using kernels::DType;

constexpr int64_t kBlockAlignment = 16;
constexpr int64_t kPointerBytes = 8;
// Blocks are at most this share of a page, so that pages are filled well.
constexpr int64_t kBlocksPerPage = 8;
// The last pages that are searched for room.
constexpr size_t kOpenPages = 16;

int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Rounds to nearest even, as kernels::F32ToBF16; inline, because a large adapter has 10^8 values.
// REQUIRES: not NaN.
uint16_t RoundToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Whether all values are finite also in `dtype`.
bool AllFinite(DType dtype, std::span<const float> values) {
  const float largest = dtype == DType::kF16 ? 65504.0f : 3.38e38f;
  bool finite = true;
  for (const float value : values) finite = finite && std::fabs(value) <= largest;
  return finite;
}

}  // namespace

bool HoldsNonFinite(const uint16_t* values, int64_t count) {
  constexpr uint16_t kExponent = 0x7f80;
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= static_cast<uint32_t>((values[i] & kExponent) == kExponent);
  }
  return found != 0;
}

ImageWriter::ImageWriter(DType dtype, int64_t page_bytes)
    : image_(std::make_shared<AdapterImage>()) {
  HEDDLE_CHECK(page_bytes > 0 && page_bytes % kBlockAlignment == 0,
               "adapters need pages in multiples of 16 bytes");
  image_->dtype = dtype;
  image_->page_bytes = page_bytes;
}

ImagePlace ImageWriter::Place(int64_t bytes, int64_t alignment) {
  size_t page = used_.size() > kOpenPages ? used_.size() - kOpenPages : 0;
  while (page < used_.size() && AlignUp(used_[page], alignment) + bytes > image_->page_bytes) {
    ++page;
  }
  if (page == used_.size()) used_.push_back(0);
  const int64_t at = AlignUp(used_[page], alignment);
  used_[page] = at + bytes;
  return {static_cast<int32_t>(page), static_cast<int32_t>(at)};
}

absl::StatusOr<int32_t> ImageWriter::BlockRows(std::string_view module, int64_t rows,
                                               int64_t longest, int64_t most) const {
  if (AlignUp(RowBytes(longest), kBlockAlignment) > image_->page_bytes) {
    return absl::InvalidArgumentError(
        base::StrCat("module ", base::Quote(module), " has rank rows of ",
                     base::ShowBytes(RowBytes(longest)), ", which do not fit a page of ",
                     base::ShowBytes(image_->page_bytes), "; --page-tokens makes pages larger"));
  }
  const int64_t fits = image_->page_bytes / kBlocksPerPage / RowBytes(longest);
  const int64_t block_rows = std::clamp<int64_t>(fits, 1, most);
  const int64_t n_blocks = (rows + block_rows - 1) / block_rows;
  if (n_blocks * kPointerBytes > image_->page_bytes) {
    return absl::InvalidArgumentError(
        base::StrCat("module ", base::Quote(module), " has ", n_blocks,
                     " blocks of rank rows, too many for a page of ",
                     base::ShowBytes(image_->page_bytes), "; --page-tokens makes pages larger"));
  }
  return static_cast<int32_t>(block_rows);
}

std::vector<ImagePlace> ImageWriter::PlaceBlocks(int64_t rows, int32_t block_rows, int64_t cols) {
  std::vector<ImagePlace> places;
  for (int64_t first = 0; first < rows; first += block_rows) {
    const int64_t count = std::min<int64_t>(block_rows, rows - first);
    places.push_back(Place(RowBytes(count * cols), kBlockAlignment));
  }
  return places;
}

absl::StatusOr<ImagePlace> ImageWriter::PlaceVector(std::string_view module, int64_t count) {
  const int64_t bytes = count * int64_t{sizeof(float)};
  if (bytes > image_->page_bytes) {
    return absl::InvalidArgumentError(
        base::StrCat("module ", base::Quote(module), " has a vector of ", base::ShowBytes(bytes),
                     ", which does not fit a page of ", base::ShowBytes(image_->page_bytes),
                     "; --page-tokens makes pages larger"));
  }
  return Place(bytes, kBlockAlignment);
}

// Tables come last and follow each other, so that few copies write them.
void ImageWriter::PlaceTables() {
  for (ImageFactors& factors : image_->factors) {
    factors.a_table = Place(static_cast<int64_t>(factors.a.size()) * kPointerBytes, kPointerBytes);
    factors.b_table = Place(static_cast<int64_t>(factors.b.size()) * kPointerBytes, kPointerBytes);
  }
}

absl::Status ImageWriter::Allocate(int64_t max_bytes) {
  PlaceTables();
  for (const ImageFactors& factors : image_->factors) {
    image_->max_rank = std::max(image_->max_rank, factors.rank);
  }
  image_->num_pages = static_cast<int32_t>(used_.size());
  if (max_bytes > 0 && image_->bytes() > max_bytes) {
    return absl::ResourceExhaustedError(base::StrCat("takes ", base::ShowBytes(image_->bytes()),
                                                     " in memory; adapters may take ",
                                                     base::ShowBytes(max_bytes)));
  }
  HEDDLE_ASSIGN_OR_RETURN(OwnedBytes content, AllocateBytes(image_->bytes()));
  image_->content = std::move(content.data);
  return absl::OkStatus();
}

bool ImageWriter::Store(std::span<const float> values, std::byte* to) const {
  const DType dtype = image_->dtype;
  if (!AllFinite(dtype, values)) return false;
  if (dtype == DType::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return true;
  }
  auto* halves = reinterpret_cast<uint16_t*>(to);
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = dtype == DType::kF16 ? kernels::F32ToF16(values[i]) : RoundToBF16(values[i]);
  }
  return true;
}

}  // namespace heddle::engine
