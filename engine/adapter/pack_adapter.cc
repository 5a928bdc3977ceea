#include "engine/adapter/pack_adapter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/adapter/image_writer.h"

namespace heddle::engine {
namespace {

using kernels::DType;

constexpr int64_t kFactorAlignment = 16;
constexpr int64_t kTableEntryBytes = 8;
// Blocks are at most this share of a page, so that pages are filled well.
constexpr int64_t kFactorBlocksPerPage = 8;
// Rows of B that are transposed at a time.
constexpr int64_t kTransposedRows = 64;

int64_t RoundUpTo(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Gives out places in pages: in the first of the last pages with room, else in a new page.
class PagePlacer {
 public:
  explicit PagePlacer(int64_t page_bytes) : page_bytes_(page_bytes) {}

  ImagePlace Place(int64_t bytes, int64_t alignment) {
    const size_t first = used_.size() > kPagesWithRoom ? used_.size() - kPagesWithRoom : 0;
    size_t page = first;
    while (page < used_.size() && RoundUpTo(used_[page], alignment) + bytes > page_bytes_) ++page;
    if (page == used_.size()) used_.push_back(0);
    const int64_t at = RoundUpTo(used_[page], alignment);
    used_[page] = at + bytes;
    return {static_cast<int32_t>(page), static_cast<int32_t>(at)};
  }
  int32_t num_pages() const { return static_cast<int32_t>(used_.size()); }

 private:
  static constexpr size_t kPagesWithRoom = 16;
  const int64_t page_bytes_;
  std::vector<int64_t> used_;
};

// Rounds to nearest even, as kernels::F32ToBF16; inline, because a large adapter has 10^8 values.
// REQUIRES: not NaN.
uint16_t ToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void StoreRow(DType dtype, std::span<const float> values, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  auto* halves = reinterpret_cast<uint16_t*>(to);
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = dtype == DType::kF16 ? kernels::F32ToF16(values[i]) : ToBF16(values[i]);
  }
}

// Whether all values are finite also in `dtype`.
bool AllValuesFinite(DType dtype, std::span<const float> values) {
  const float largest = dtype == DType::kF16 ? 65504.0f : 3.38e38f;
  bool finite = true;
  for (const float value : values) finite = finite && std::fabs(value) <= largest;
  return finite;
}

class Packer {
 public:
  explicit Packer(const AdapterTarget& target) : target_(target), placer_(target.page_bytes) {}

  absl::StatusOr<std::shared_ptr<AdapterImage>> Pack(std::span<const PlacedModule> modules) {
    auto image = std::make_shared<AdapterImage>();
    image->dtype = target_.dtype;
    image->page_bytes = target_.page_bytes;
    for (const PlacedModule& module : modules) {
      HEDDLE_RETURN_IF_ERROR(PlaceModule(module, image.get()));
    }
    PlaceTables(image.get());
    image->num_pages = placer_.num_pages();
    if (target_.max_bytes > 0 && image->bytes() > target_.max_bytes) {
      return absl::ResourceExhaustedError(base::StrCat("takes ", base::ShowBytes(image->bytes()),
                                                       " in memory; adapters may take ",
                                                       base::ShowBytes(target_.max_bytes)));
    }
    HEDDLE_ASSIGN_OR_RETURN(OwnedBytes content, AllocateBytes(image->bytes()));
    image->content = std::move(content.data);
    size_t next = 0;
    for (const PlacedModule& module : modules) {
      HEDDLE_RETURN_IF_ERROR(WriteModule(module, image.get(), &next));
    }
    return image;
  }

 private:
  int64_t RowBytes(int64_t cols) const { return kernels::RowBytes(target_.dtype, cols); }

  // A's blocks are shared by all parts of a module.
  absl::Status PlaceModule(const PlacedModule& module, AdapterImage* image) {
    const AdapterModule& own = *module.module;
    const auto rank = static_cast<int32_t>(own.a.rows);
    int64_t longest = own.a.cols;
    for (const ModulePart& part : module.place.parts) {
      longest = std::max(longest, static_cast<int64_t>(part.rows.size()));
    }
    if (RoundUpTo(RowBytes(longest), kFactorAlignment) > target_.page_bytes) {
      return absl::InvalidArgumentError(
          base::StrCat("module ", base::Quote(module.name), " has rank rows of ",
                       base::ShowBytes(RowBytes(longest)), ", which do not fit a page of ",
                       base::ShowBytes(target_.page_bytes), "; --page-tokens makes pages larger"));
    }
    const int64_t fits = target_.page_bytes / kFactorBlocksPerPage / RowBytes(longest);
    const auto block_rows = static_cast<int32_t>(std::clamp<int64_t>(fits, 1, rank));
    const int64_t n_blocks = (rank + block_rows - 1) / block_rows;
    if (n_blocks * kTableEntryBytes > target_.page_bytes) {
      return absl::InvalidArgumentError(
          base::StrCat("module ", base::Quote(module.name), " has ", n_blocks,
                       " blocks of rank rows, too many ", "for a page of ",
                       base::ShowBytes(target_.page_bytes), "; --page-tokens makes pages larger"));
    }
    const std::vector<ImagePlace> a = PlaceBlocks(rank, block_rows, own.a.cols);
    for (const ModulePart& part : module.place.parts) {
      image->factors.push_back(
          {.layer = module.place.layer,
           .site = module.place.site,
           .part = part.part,
           .inputs = static_cast<int32_t>(own.a.cols),
           .outputs = static_cast<int32_t>(part.rows.size()),
           .rank = rank,
           .block_rows = block_rows,
           .a_block_rows = block_rows,
           .scale = own.scale,
           .a = a,
           .b = PlaceBlocks(rank, block_rows, static_cast<int64_t>(part.rows.size()))});
    }
    image->max_rank = std::max(image->max_rank, rank);
    return absl::OkStatus();
  }

  std::vector<ImagePlace> PlaceBlocks(int32_t rank, int32_t block_rows, int64_t cols) {
    std::vector<ImagePlace> places;
    for (int32_t first = 0; first < rank; first += block_rows) {
      const int32_t rows = std::min(block_rows, rank - first);
      places.push_back(placer_.Place(RowBytes(rows * cols), kFactorAlignment));
    }
    return places;
  }

  // Tables come last and follow each other, so that few copies write them.
  void PlaceTables(AdapterImage* image) {
    for (ImageFactors& factors : image->factors) {
      const auto bytes = static_cast<int64_t>(factors.a.size()) * kTableEntryBytes;
      factors.a_table = placer_.Place(bytes, kTableEntryBytes);
      factors.b_table = placer_.Place(bytes, kTableEntryBytes);
    }
  }

  static const std::byte* RowOf(const AdapterTensor& tensor, int64_t row) {
    return tensor.data.data() + row * kernels::RowBytes(tensor.dtype, tensor.cols);
  }

  std::byte* At(AdapterImage* image, const ImagePlace& place) const {
    return image->content.get() + place.page * target_.page_bytes + place.offset;
  }
  // Rank row j of a factor whose rows have `cols` elements.
  std::byte* RankRow(AdapterImage* image, std::span<const ImagePlace> places, int32_t block_rows,
                     int64_t j, int64_t cols) const {
    return At(image, places[static_cast<size_t>(j / block_rows)]) + j % block_rows * RowBytes(cols);
  }

  static absl::Status NotFinite(const AdapterTensor& tensor) {
    return absl::InvalidArgumentError(
        base::StrCat("tensor ", base::Quote(tensor.name), " holds a NaN or an infinity"));
  }

  std::span<const float> Values(const AdapterTensor& tensor, int64_t row) {
    values_.resize(static_cast<size_t>(tensor.cols));
    kernels::DequantizeRow(tensor.dtype, RowOf(tensor, row), tensor.cols, values_.data());
    return values_;
  }

  absl::Status WriteModule(const PlacedModule& module, AdapterImage* image, size_t* next) {
    const AdapterModule& own = *module.module;
    const ImageFactors& first = image->factors[*next];
    const bool copies_a = own.a.dtype == DType::kBF16 && target_.dtype == DType::kBF16;
    for (int64_t j = 0; j < own.a.rows; ++j) {
      if (copies_a) {
        std::byte* to = RankRow(image, first.a, first.block_rows, j, own.a.cols);
        std::memcpy(to, RowOf(own.a, j), static_cast<size_t>(RowBytes(own.a.cols)));
        if (HoldsNonFinite(reinterpret_cast<const uint16_t*>(to), own.a.cols)) {
          return NotFinite(own.a);
        }
        continue;
      }
      const std::span<const float> row = Values(own.a, j);
      if (!AllValuesFinite(target_.dtype, row)) return NotFinite(own.a);
      StoreRow(target_.dtype, row, RankRow(image, first.a, first.block_rows, j, own.a.cols));
    }
    const bool copies_b = own.b.dtype == DType::kBF16 && target_.dtype == DType::kBF16;
    for (const ModulePart& part : module.place.parts) {
      const ImageFactors& factors = image->factors[(*next)++];
      HEDDLE_RETURN_IF_ERROR(copies_b ? TransposeB(own.b, part, factors, image)
                                      : WriteB(own.b, part, factors, image));
    }
    return absl::OkStatus();
  }

  // WriteB for values that stay as they are.
  absl::Status TransposeB(const AdapterTensor& b, const ModulePart& part,
                          const ImageFactors& factors, AdapterImage* image) {
    const auto rows = static_cast<int64_t>(part.rows.size());
    const int64_t rank = b.cols;
    std::vector<uint16_t*> to(static_cast<size_t>(rank));
    for (int64_t j = 0; j < rank; ++j) {
      to[static_cast<size_t>(j)] =
          reinterpret_cast<uint16_t*>(RankRow(image, factors.b, factors.block_rows, j, rows));
    }
    halves_.resize(static_cast<size_t>(rank));
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(halves_.data(), RowOf(b, part.rows[static_cast<size_t>(i)]),
                  static_cast<size_t>(2 * rank));
      if (HoldsNonFinite(halves_.data(), rank)) return NotFinite(b);
      for (int64_t j = 0; j < rank; ++j) {
        to[static_cast<size_t>(j)][i] = halves_[static_cast<size_t>(j)];
      }
    }
    return absl::OkStatus();
  }

  // Row i of the part is row part.rows[i] of B; it becomes column i of all rank rows.
  absl::Status WriteB(const AdapterTensor& b, const ModulePart& part, const ImageFactors& factors,
                      AdapterImage* image) {
    const auto rows = static_cast<int64_t>(part.rows.size());
    const int64_t rank = b.cols;
    columns_.resize(static_cast<size_t>(rank * kTransposedRows));
    for (int64_t begin = 0; begin < rows; begin += kTransposedRows) {
      const int64_t count = std::min(kTransposedRows, rows - begin);
      for (int64_t i = 0; i < count; ++i) {
        const std::span<const float> row = Values(b, part.rows[static_cast<size_t>(begin + i)]);
        if (!AllValuesFinite(target_.dtype, row)) return NotFinite(b);
        for (int64_t j = 0; j < rank; ++j) {
          columns_[static_cast<size_t>(j * kTransposedRows + i)] = row[static_cast<size_t>(j)];
        }
      }
      for (int64_t j = 0; j < rank; ++j) {
        StoreRow(target_.dtype,
                 std::span(columns_).subspan(static_cast<size_t>(j * kTransposedRows),
                                             static_cast<size_t>(count)),
                 RankRow(image, factors.b, factors.block_rows, j, rows) + RowBytes(begin));
      }
    }
    return absl::OkStatus();
  }

  const AdapterTarget& target_;
  PagePlacer placer_;
  std::vector<float> values_, columns_;
  std::vector<uint16_t> halves_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<AdapterImage>> PackAdapter(std::span<const PlacedModule> modules,
                                                          const AdapterTarget& target) {
  HEDDLE_CHECK(target.page_bytes > 0 && target.page_bytes % kFactorAlignment == 0,
               "adapters need pages in multiples of 16 bytes");
  return Packer(target).Pack(modules);
}

}  // namespace heddle::engine
