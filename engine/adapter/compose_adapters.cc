#include "engine/adapter/compose_adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/image_writer.h"
#include "kernels/adapters.h"

namespace heddle::engine {
namespace {

// A member's factors for one part of a matrix.
struct Source {
  const AdapterShare* share = nullptr;
  const ImageFactors* factors = nullptr;
  float weight = 1.0f;  // of the rows of B, relative to the scale of the result

  const AdapterImage& image() const { return *share->image; }
  bool has_product() const { return factors->rank > 0; }
  // Replaces the matrix: its change is given as it is, and not as a product.
  bool is_whole() const { return has_product() && (factors->a.empty() || factors->b.empty()); }
  const std::byte* Row(std::span<const ImagePlace> places, int32_t block_rows, int64_t j,
                       int64_t cols) const {
    const ImagePlace& place = places[static_cast<size_t>(j / block_rows)];
    return image().page(place.page).data() + place.offset +
           j % block_rows * kernels::RowBytes(image().dtype, cols);
  }
  const std::byte* RowOfA(int64_t j) const {
    const ImageFactors& f = *factors;
    return f.gathers() ? Row(f.a, f.a_block_rows, j, f.rank) : Row(f.a, f.block_rows, j, f.inputs);
  }
  const std::byte* RowOfB(int64_t j) const {
    return Row(factors->b, factors->block_rows, j, factors->outputs);
  }
};

// Layer, site, member, part.
using PartKey = std::tuple<int32_t, AdapterSite, int32_t, int32_t>;
// The origin of blocks: parts that share them in every member share them in the set.
using BlocksKey = std::vector<std::tuple<const AdapterImage*, int32_t, int32_t, float>>;

class Composer {
 public:
  Composer(std::span<const AdapterShare> members, int32_t max_rank)
      : members_(members),
        max_rank_(max_rank),
        writer_(members.front().image->dtype, members.front().image->page_bytes) {}

  absl::StatusOr<std::shared_ptr<AdapterImage>> Compose(int64_t max_bytes) {
    for (const AdapterShare& share : members_) {
      if (share.scale == 0.0f) continue;
      for (const ImageFactors& factors : share.image->factors) {
        const PartKey key(factors.layer, factors.site, factors.member, factors.part);
        sources_[key].push_back({.share = &share, .factors = &factors});
        int64_t& longest = longest_[{factors.layer, factors.site}];
        longest = std::max<int64_t>({longest, factors.inputs, factors.outputs});
      }
    }
    for (auto& [key, sources] : sources_) HEDDLE_RETURN_IF_ERROR(PlacePart(&sources));
    HEDDLE_RETURN_IF_ERROR(writer_.Allocate(max_bytes));
    size_t next = 0;
    for (const auto& [key, sources] : sources_) {
      HEDDLE_RETURN_IF_ERROR(WritePart(sources, writer_.factors()[next++]));
    }
    return writer_.Take();
  }

 private:
  // Gives the rows of B their weights; returns the scale of the result, which is the largest one of
  // the members, so that a single member's factors stay as they are.
  static float FoldScales(std::vector<Source>* sources) {
    const auto scale_of = [](const Source& source) {
      return source.has_product() ? source.share->scale * source.factors->scale : 0.0f;
    };
    float largest = 0.0f;
    for (const Source& source : *sources) {
      if (std::fabs(scale_of(source)) > std::fabs(largest)) largest = scale_of(source);
    }
    if (largest == 0.0f) largest = 1.0f;
    for (Source& source : *sources) source.weight = scale_of(source) / largest;
    return largest;
  }

  absl::Status CheckPart(std::span<const Source> sources, int64_t rank) const {
    const Source* whole = nullptr;
    const Source* product = nullptr;
    for (const Source& source : sources) {
      if (source.is_whole()) whole = &source;
      if (source.has_product() && !source.is_whole()) product = &source;
    }
    if (whole != nullptr && product != nullptr) {
      return absl::InvalidArgumentError(base::StrCat(
          "adapter ", base::Quote(whole->share->name),
          " replaces a whole matrix (modules_to_save) ", "for which adapter ",
          base::Quote(product->share->name), " has factors; these two cannot be combined"));
    }
    if (whole == nullptr && rank > max_rank_) {
      return absl::InvalidArgumentError(base::StrCat("the ranks of ", Names(sources), " add up to ",
                                                     rank, " in one matrix; --max-lora-rank is ",
                                                     max_rank_));
    }
    return absl::OkStatus();
  }

  static std::string Names(std::span<const Source> sources) {
    std::string names;
    for (const Source& source : sources) {
      names += (names.empty() ? "" : ", ") + base::Quote(source.share->name);
    }
    return names;
  }

  absl::Status PlacePart(std::vector<Source>* sources) {
    const ImageFactors& like = *sources->front().factors;
    ImageFactors made{.layer = like.layer,
                      .site = like.site,
                      .member = like.member,
                      .part = like.part,
                      .inputs = like.inputs,
                      .outputs = like.outputs};
    made.scale = FoldScales(sources);
    bool whole = false, has_gain = false, has_bias = false;
    int64_t rank = 0;
    for (const Source& source : *sources) {
      HEDDLE_CHECK(source.factors->inputs == like.inputs && source.factors->outputs == like.outputs,
                   "adapters of a set were made for different models");
      rank += source.factors->rank;
      whole = whole || source.is_whole();
      has_gain = has_gain || source.factors->gain != kNoPlace;
      has_bias = has_bias || source.factors->bias != kNoPlace;
    }
    HEDDLE_RETURN_IF_ERROR(CheckPart(*sources, rank));
    if (whole) rank = like.gathers() ? like.outputs : like.inputs;
    made.rank = static_cast<int32_t>(rank);
    const std::string names = Names(*sources);
    if (rank > 0) HEDDLE_RETURN_IF_ERROR(PlaceProduct(*sources, names, whole, &made));
    if (has_gain) {
      HEDDLE_ASSIGN_OR_RETURN(made.gain, writer_.PlaceVector(names, made.outputs));
    }
    if (has_bias) {
      HEDDLE_ASSIGN_OR_RETURN(made.bias, writer_.PlaceVector(names, made.outputs));
    }
    writer_.Add(std::move(made));
    return absl::OkStatus();
  }

  absl::Status PlaceProduct(std::span<const Source> sources, std::string_view names, bool whole,
                            ImageFactors* made) {
    const bool has_a = !whole || made->gathers();
    const bool has_b = !whole || !made->gathers();
    const int64_t longest = made->gathers() ? made->outputs : longest_[{made->layer, made->site}];
    HEDDLE_ASSIGN_OR_RETURN(
        made->block_rows, writer_.BlockRows(names, made->rank, longest, kernels::kMaxAdapterRank));
    made->a_block_rows = made->block_rows;
    const int64_t rows_of_a = made->gathers() ? made->inputs : made->rank;
    const int64_t cols_of_a = made->gathers() ? made->rank : made->inputs;
    if (made->gathers()) {
      HEDDLE_ASSIGN_OR_RETURN(made->a_block_rows,
                              writer_.BlockRows(names, made->inputs, made->rank, made->inputs));
    }
    if (has_a) made->a = Blocks(KeyOfA(sources), rows_of_a, made->a_block_rows, cols_of_a);
    if (has_b) made->b = Blocks(KeyOfB(sources), made->rank, made->block_rows, made->outputs);
    return absl::OkStatus();
  }

  static BlocksKey KeyOfA(std::span<const Source> sources) {
    BlocksKey key;
    for (const Source& source : sources) {
      if (!source.has_product() || source.factors->a.empty()) continue;
      const ImagePlace& first = source.factors->a.front();
      // Whole rows of an embedding are weighted in A, since there is no B.
      const float weight = source.factors->b.empty() ? source.weight : 1.0f;
      key.emplace_back(&source.image(), first.page, first.offset, weight);
    }
    return key;
  }
  static BlocksKey KeyOfB(std::span<const Source> sources) {
    BlocksKey key;
    for (const Source& source : sources) {
      if (!source.has_product() || source.factors->b.empty()) continue;
      const ImagePlace& first = source.factors->b.front();
      key.emplace_back(&source.image(), first.page, first.offset, source.weight);
    }
    return key;
  }

  std::vector<ImagePlace> Blocks(BlocksKey key, int64_t rows, int32_t block_rows, int64_t cols) {
    std::vector<ImagePlace>& places = blocks_[std::move(key)];
    if (places.empty()) places = writer_.PlaceBlocks(rows, block_rows, cols);
    return places;
  }

  absl::Status WritePart(std::span<const Source> sources, const ImageFactors& made) {
    if (made.rank > 0) {
      HEDDLE_RETURN_IF_ERROR(made.a.empty() || made.b.empty() ? WriteWhole(sources, made)
                                                              : WriteProduct(sources, made));
    }
    for (const auto place : {&ImageFactors::gain, &ImageFactors::bias}) {
      if (made.*place != kNoPlace) HEDDLE_RETURN_IF_ERROR(WriteVector(sources, made, place));
    }
    return absl::OkStatus();
  }

  // The members' rank rows, one after the other.
  absl::Status WriteProduct(std::span<const Source> sources, const ImageFactors& made) {
    int64_t first = 0;
    for (const Source& source : sources) {
      const int64_t rank = source.factors->rank;
      if (made.gathers()) {
        for (int64_t token = 0; token < made.inputs; ++token) {
          std::byte* to = writer_.Row(made.a, made.a_block_rows, token, made.rank);
          std::memcpy(to + writer_.RowBytes(first), source.RowOfA(token),
                      static_cast<size_t>(writer_.RowBytes(rank)));
        }
      }
      for (int64_t j = 0; j < rank; ++j) {
        if (!made.gathers()) {
          std::memcpy(writer_.Row(made.a, made.block_rows, first + j, made.inputs),
                      source.RowOfA(j), static_cast<size_t>(writer_.RowBytes(made.inputs)));
        }
        std::byte* to = writer_.Row(made.b, made.block_rows, first + j, made.outputs);
        values_.assign(static_cast<size_t>(made.outputs), 0.0f);
        Accumulate(source, source.RowOfB(j));
        if (!writer_.Store(values_, to)) return NotFinite(sources);
      }
      first += rank;
    }
    return absl::OkStatus();
  }

  // The sums of whole matrices, row by row.
  absl::Status WriteWhole(std::span<const Source> sources, const ImageFactors& made) {
    const bool in_a = made.b.empty();
    const int64_t rows = in_a ? made.inputs : made.rank;
    for (int64_t j = 0; j < rows; ++j) {
      values_.assign(static_cast<size_t>(made.outputs), 0.0f);
      for (const Source& source : sources) {
        if (source.has_product()) Accumulate(source, in_a ? source.RowOfA(j) : source.RowOfB(j));
      }
      std::byte* to = in_a ? writer_.Row(made.a, made.a_block_rows, j, made.outputs)
                           : writer_.Row(made.b, made.block_rows, j, made.outputs);
      if (!writer_.Store(values_, to)) return NotFinite(sources);
    }
    return absl::OkStatus();
  }

  // values_ += weight * row.
  void Accumulate(const Source& source, const std::byte* row) {
    decoded_.resize(values_.size());
    kernels::DequantizeRow(source.image().dtype, row, static_cast<int64_t>(values_.size()),
                           decoded_.data());
    for (size_t i = 0; i < values_.size(); ++i) values_[i] += source.weight * decoded_[i];
  }

  absl::Status WriteVector(std::span<const Source> sources, const ImageFactors& made,
                           ImagePlace ImageFactors::*place) {
    values_.assign(static_cast<size_t>(made.outputs), 0.0f);
    decoded_.resize(values_.size());
    for (const Source& source : sources) {
      const ImagePlace& from = source.factors->*place;
      if (from == kNoPlace) continue;
      std::memcpy(decoded_.data(), source.image().page(from.page).data() + from.offset,
                  decoded_.size() * sizeof(float));
      for (size_t i = 0; i < values_.size(); ++i) values_[i] += source.share->scale * decoded_[i];
    }
    for (const float value : values_) {
      if (!std::isfinite(value)) return NotFinite(sources);
    }
    std::memcpy(writer_.At(made.*place), values_.data(), values_.size() * sizeof(float));
    return absl::OkStatus();
  }

  static absl::Status NotFinite(std::span<const Source> sources) {
    return absl::InvalidArgumentError(base::StrCat("the set of ", Names(sources),
                                                   " has values that are not finite; its scales ",
                                                   "are too large"));
  }

  const std::span<const AdapterShare> members_;
  const int32_t max_rank_;
  ImageWriter writer_;
  std::map<PartKey, std::vector<Source>> sources_;
  std::map<std::pair<int32_t, AdapterSite>, int64_t> longest_;
  std::map<BlocksKey, std::vector<ImagePlace>> blocks_;
  std::vector<float> values_, decoded_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<AdapterImage>> ComposeAdapters(std::span<const AdapterShare> members,
                                                              int32_t max_rank, int64_t max_bytes) {
  constexpr const char* kNone = "a set of adapters has none with a scale";
  if (members.empty()) return absl::InvalidArgumentError(kNone);
  bool any = false;
  const AdapterImage& like = *members.front().image;
  for (const AdapterShare& share : members) {
    HEDDLE_CHECK(share.image->dtype == like.dtype && share.image->page_bytes == like.page_bytes &&
                     share.image->num_ranks() == like.num_ranks(),
                 "adapters of a set were made for different targets");
    if (!std::isfinite(share.scale)) {
      return absl::InvalidArgumentError(
          base::StrCat("the scale of adapter ", base::Quote(share.name), " is not finite"));
    }
    any = any || share.scale != 0.0f;
  }
  if (!any) return absl::InvalidArgumentError(kNone);
  HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<AdapterImage> head,
                          Composer(members, max_rank).Compose(max_bytes));
  int64_t bytes = head->own_bytes();
  for (int32_t rank = 1; rank < like.num_ranks(); ++rank) {
    std::vector<AdapterShare> own(members.begin(), members.end());
    for (AdapterShare& share : own) share.image = &share.image->OfRank(rank);
    const int64_t left = max_bytes > 0 ? std::max<int64_t>(1, max_bytes - bytes) : 0;
    HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<AdapterImage> image,
                            Composer(own, max_rank).Compose(left));
    bytes += image->own_bytes();
    head->others.push_back(std::move(image));
  }
  return head;
}

}  // namespace heddle::engine
