#include "tests/support/adapter_images.h"

#include <algorithm>
#include <functional>
#include <random>

#include "base/check.h"
#include "kernels/kv_element.h"

namespace heddle::test {
namespace {

using engine::AdapterImage;
using engine::ImageFactors;
using engine::ImagePlace;
using kernels::DType;

// Something that needs a place in the image: a block of rank rows, or a table of pointers.
struct Piece {
  int64_t bytes;
  std::function<void(ImagePlace)> placed;
};

// Fills pages one after the other.
class Placer {
 public:
  explicit Placer(int64_t page_bytes) : page_bytes_(page_bytes) {}

  ImagePlace Place(int64_t bytes) {
    HEDDLE_CHECK(bytes <= page_bytes_, "a block is larger than a page");
    if (at_ + bytes > page_bytes_) {
      ++page_;
      at_ = 0;
    }
    const ImagePlace place{page_, static_cast<int32_t>(at_)};
    at_ += (bytes + 15) / 16 * 16;
    return place;
  }
  int32_t num_pages() const { return page_ + 1; }

 private:
  int64_t page_bytes_;
  int64_t at_ = 0;
  int32_t page_ = 0;
};

}  // namespace

std::shared_ptr<AdapterImage> MakeAdapterImage(std::span<const PlainFactors> factors, DType dtype,
                                               int64_t page_bytes, int32_t block_rows,
                                               uint64_t seed) {
  auto image = std::make_shared<AdapterImage>();
  image->dtype = dtype;
  image->page_bytes = page_bytes;
  image->factors.resize(factors.size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < factors.size(); ++i) {
    const PlainFactors& from = factors[i];
    ImageFactors& to = image->factors[i];
    to = {.layer = from.layer,
          .site = from.site,
          .part = from.part,
          .inputs = static_cast<int32_t>(from.a.size()) / from.rank,
          .outputs = static_cast<int32_t>(from.b.size()) / from.rank,
          .rank = from.rank,
          .block_rows = block_rows,
          .a_block_rows = block_rows,
          .scale = from.scale};
    image->max_rank = std::max(image->max_rank, from.rank);
    const int32_t blocks = (from.rank + block_rows - 1) / block_rows;
    to.a.resize(static_cast<size_t>(blocks));
    to.b.resize(static_cast<size_t>(blocks));
    for (auto [values, places, table] :
         {std::tuple(&from.a, &to.a, &to.a_table), std::tuple(&from.b, &to.b, &to.b_table)}) {
      const auto cols = static_cast<int64_t>(values->size()) / from.rank;
      pieces.push_back({blocks * int64_t{8}, [table = table](ImagePlace at) { *table = at; }});
      for (int32_t block = 0; block < blocks; ++block) {
        const int32_t rows = std::min(block_rows, from.rank - block * block_rows);
        pieces.push_back(
            {kernels::RowBytes(dtype, rows * cols), [places = places, block](ImagePlace at) {
               (*places)[static_cast<size_t>(block)] = at;
             }});
      }
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(seed));
  Placer placer(page_bytes);
  for (const Piece& piece : pieces) piece.placed(placer.Place(piece.bytes));
  image->num_pages = placer.num_pages();
  image->content = std::make_unique<std::byte[]>(static_cast<size_t>(image->bytes()));
  for (size_t i = 0; i < factors.size(); ++i) {
    const ImageFactors& to = image->factors[i];
    for (auto [values, places] :
         {std::pair(&factors[i].a, &to.a), std::pair(&factors[i].b, &to.b)}) {
      const auto cols = static_cast<int64_t>(values->size()) / to.rank;
      for (int64_t at = 0; at < static_cast<int64_t>(values->size()); ++at) {
        const int64_t block = at / cols / block_rows;
        const ImagePlace& place = (*places)[static_cast<size_t>(block)];
        std::byte* page = image->content.get() + place.page * page_bytes + place.offset;
        kernels::StoreElement(dtype, page, at - block * block_rows * cols,
                              (*values)[static_cast<size_t>(at)]);
      }
    }
  }
  return image;
}

}  // namespace heddle::test
