#include "engine/adapter/pack_ranks.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/adapter_sites.h"
#include "engine/model/row_order.h"

namespace heddle::engine {
namespace {

// Makes one rank's sources.
class RankCut {
 public:
  RankCut(const ModelSpec& model, std::span<const Share> shares, int32_t rank)
      : model_(model),
        share_(shares[static_cast<size_t>(rank)]),
        own_(SpecOfShare(model, shares, rank)) {}

  std::vector<FactorSource> Cut(std::span<const FactorSource> sources) {
    std::vector<FactorSource> own;
    for (const FactorSource& source : sources) {
      const ImageFactors& factors = source.factors;
      if (ShapeOf(own_, factors.layer, factors.site).members == 0) continue;
      std::optional<FactorSource> cut = CutOne(source);
      const bool is_empty =
          !cut.has_value() || (cut->factors.rank == 0 && cut->gain.empty() && cut->bias.empty());
      if (!is_empty) own.push_back(*std::move(cut));
    }
    return own;
  }

 private:
  std::optional<FactorSource> CutOne(const FactorSource& source) {
    switch (source.factors.site) {
      case AdapterSite::kEmbedding:
        return WithTokens(source);
      case AdapterSite::kHead:
        return WithHeadPart(source);
      default:
        return CutInLayer(source);
    }
  }

  std::optional<FactorSource> CutInLayer(const FactorSource& source) {
    const auto index = static_cast<size_t>(source.factors.layer);
    if (source.factors.layer == kModelLayer) return source;  // the final norm
    const LayerSpec& layer = model_.layers[index];
    const LayerShare& share = share_.layers[index];
    const Range heads = share.attention.heads;
    const MlaSpec& mla = layer.attention.mla;
    switch (source.factors.site) {
      case AdapterSite::kQkv:
        if (layer.attention.conv.taps > 0) return WithRows(source, {share.attention.channels});
        if (layer.attention.recurrence.is_here()) {
          return WithRows(source,
                          RecurrencePartRows(layer.attention.recurrence, share.attention.channels,
                                             source.factors.part));
        }
        return WithRows(source, QkvRows(layer.attention, share.attention, source.factors.part));
      case AdapterSite::kQueryB:
        return WithRows(source, {Times(heads, mla.q_dim())});
      case AdapterSite::kKeyHeads:
      case AdapterSite::kValueHeads:
        return WithMember(source, heads);
      case AdapterSite::kOut:
        if (layer.attention.linear) return source;
        if (layer.attention.conv.taps > 0) return WithColumns(source, share.attention.channels);
        if (layer.attention.recurrence.is_here()) {
          const RecurrenceSpec& recurrence = layer.attention.recurrence;
          return WithColumns(source, Times(RecurrenceHeads(recurrence, share.attention.channels),
                                           recurrence.shape.value_dim));
        }
        return WithColumns(source,
                           Times(heads, mla.kv_rank > 0 ? mla.v_dim : layer.attention.head_dim));
      case AdapterSite::kUp:
        return WithRows(source, InnerRows(share));
      case AdapterSite::kDown:
        return WithInner(source, share);
      case AdapterSite::kExpertUp:
        return WithExpert(source, share, [&](const FactorSource& own) {
          return WithRows(own, {share.expert_inner});
        });
      case AdapterSite::kExpertDown:
        return WithExpert(source, share, [&](const FactorSource& own) {
          return WithColumns(own, share.expert_inner);
        });
      default:
        return source;
    }
  }

  // The rows of a rank's heads within q, k or v.
  static std::vector<Range> QkvRows(const AttentionSpec& attention, const HeadShare& share,
                                    int32_t part) {
    if (part == 0 || part == kGatePart) return {Times(share.heads, attention.head_dim)};
    std::vector<Range> rows;
    for (const int32_t kv : share.kv_heads) rows.push_back(Times({kv, 1}, attention.head_dim));
    return rows;
  }

  // The rows of a rank's features within the first matrix of an MLP.
  static std::vector<Range> InnerRows(const LayerShare& share) {
    if (share.inner_order == nullptr) return {share.inner};
    std::vector<Range> rows;
    rows.reserve(static_cast<size_t>(share.inner.count));
    for (const int32_t feature : InnerFeatures(share)) rows.push_back({feature, 1});
    return rows;
  }
  // REQUIRES: they have an order of their own.
  static std::span<const int32_t> InnerFeatures(const LayerShare& share) {
    return std::span(*share.inner_order)
        .subspan(static_cast<size_t>(share.inner.first), static_cast<size_t>(share.inner.count));
  }

  // The rows of a rank's heads within a part of a recurrence's product: of q, k and v, or of what
  // else heads have.
  static std::vector<Range> RecurrencePartRows(const RecurrenceSpec& recurrence, Range key_heads,
                                               int32_t part) {
    const kernels::RecurrenceShape& shape = recurrence.shape;
    const Range heads = RecurrenceHeads(recurrence, key_heads);
    const Range values = Times(heads, shape.value_dim);
    if (part == 1) return {values};
    if (part > 1) return {heads};
    const Range queries = Times(key_heads, shape.key_dim);
    return {queries,
            {shape.keys() + queries.first, queries.count},
            {2 * shape.keys() + values.first, values.count}};
  }

  template <typename T>
  static std::vector<T> Kept(std::span<const T> values, std::span<const Range> rows) {
    std::vector<T> kept;
    for (const Range& range : rows) {
      const auto part =
          values.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.count));
      kept.insert(kept.end(), part.begin(), part.end());
    }
    return kept;
  }

  // Keeps these outputs. B has them as turned rows, unless it is missing or the identity.
  FactorSource WithRows(const FactorSource& whole, const std::vector<Range>& rows) {
    FactorSource own = whole;
    own.factors.outputs = 0;
    for (const Range& range : rows) own.factors.outputs += static_cast<int32_t>(range.count);
    if (own.factors.rank > 0) {
      HEDDLE_CHECK(whole.b.turned, "a matrix whose outputs are cut has another B");
      own.b.rows = rows_.emplace_back(Kept(whole.b.rows, std::span(rows)));
      if (!whole.b.factors.empty()) {
        own.b.factors = factors_.emplace_back(Kept(whole.b.factors, std::span(rows)));
      }
    }
    const auto keep = [&](const std::vector<float>& values) {
      return values.empty() ? values : Kept(std::span<const float>(values), std::span(rows));
    };
    own.gain = keep(whole.gain);
    own.bias = keep(whole.bias);
    return own;
  }

  // Keeps these inputs; the product is then a part of a sum.
  static FactorSource WithColumns(const FactorSource& whole, Range columns) {
    FactorSource own = whole;
    own.factors.inputs = static_cast<int32_t>(columns.count);
    if (own.factors.rank > 0) {
      HEDDLE_CHECK(!whole.a.turned, "a matrix whose inputs are cut has another A");
      own.a.first_column += columns.first;
    }
    if (columns.first > 0) own.bias.clear();
    return own;
  }

  // The inputs of an MLP's second matrix.
  static FactorSource WithInner(const FactorSource& whole, const LayerShare& share) {
    FactorSource own = WithColumns(whole, share.inner);
    if (share.inner_order == nullptr || own.factors.rank == 0) return own;
    own.a.first_column = whole.a.first_column;
    own.a.columns = InnerFeatures(share);
    return own;
  }

  static std::optional<FactorSource> WithMember(const FactorSource& whole, Range members) {
    const int64_t member = whole.factors.member - members.first;
    if (member < 0 || member >= members.count) return std::nullopt;
    FactorSource own = whole;
    own.factors.member = static_cast<int32_t>(member);
    return own;
  }

  // Cuts an expert that the rank has.
  template <typename CutExpert>
  static std::optional<FactorSource> WithExpert(const FactorSource& whole, const LayerShare& share,
                                                const CutExpert& cut) {
    const std::optional<FactorSource> own = WithMember(whole, share.experts);
    if (!own.has_value()) return std::nullopt;
    return cut(*own);
  }

  // Rows of A are the tokens'.
  FactorSource WithTokens(const FactorSource& whole) const {
    FactorSource own = whole;
    own.factors.inputs = static_cast<int32_t>(share_.vocab.count);
    own.a.first += share_.vocab.first * whole.a.step;
    return own;
  }

  std::optional<FactorSource> WithHeadPart(const FactorSource& whole) {
    const std::vector<HeadPart> parts = HeadPartsOf(own_);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].of_model != whole.factors.part) continue;
      FactorSource own = WithRows(whole, {{parts[i].first, parts[i].count}});
      own.factors.part = static_cast<int32_t>(i);
      return own;
    }
    return std::nullopt;
  }

  const ModelSpec& model_;
  const Share& share_;
  const ModelSpec own_;
  std::deque<std::vector<int32_t>> rows_;
  std::deque<std::vector<float>> factors_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<AdapterImage>> PackForRanks(std::span<const FactorSource> sources,
                                                           const AdapterTarget& target) {
  const std::span<const Share> shares = target.shares;
  if (shares.size() < 2) return PackAdapter(sources, target);
  HEDDLE_CHECK(target.rank_page_bytes.size() == shares.size(), "a page size for each rank");
  std::shared_ptr<AdapterImage> head;
  int64_t bytes = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    AdapterTarget own = target;
    own.page_bytes = target.rank_page_bytes[rank];
    if (target.max_bytes > 0) own.max_bytes = std::max<int64_t>(1, target.max_bytes - bytes);
    RankCut cut(target.model->spec, shares, static_cast<int32_t>(rank));
    const std::vector<FactorSource> parts = cut.Cut(sources);
    absl::StatusOr<std::shared_ptr<AdapterImage>> image = PackAdapter(parts, own);
    if (!image.ok()) {
      return absl::Status(image.status().code(),
                          base::StrCat("for rank ", static_cast<int64_t>(rank), " of ",
                                       static_cast<int64_t>(shares.size()), ": ",
                                       std::string(image.status().message())));
    }
    bytes += (*image)->bytes();
    if (rank == 0) {
      head = *std::move(image);
    } else {
      head->others.push_back(*std::move(image));
    }
  }
  return head;
}

}  // namespace heddle::engine
