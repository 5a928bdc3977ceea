#include "engine/adapter/merge_adapter.h"

#include <numeric>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/place_modules.h"
#include "engine/family/module_names.h"
#include "kernels/adapters.h"

namespace heddle::engine {
namespace {

// The image is not made: any page will do.
constexpr int64_t kAnyPage = int64_t{1} << 40;

// [rows, cols] to [cols, rows].
std::vector<float> Turned(std::span<const float> from, int64_t rows, int64_t cols) {
  std::vector<float> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      to[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * cols + c)];
    }
  }
  return to;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterMerge>> AdapterMerge::Load(
    const std::filesystem::path& path, const ModelDescription& model,
    const std::filesystem::path& base) {
  AdapterTarget target;
  target.model = &model;
  target.dtype = kernels::DType::kF32;
  target.page_bytes = kAnyPage;
  target.max_rank = kernels::kMaxAdapterRank;
  target.base = base;
  HEDDLE_ASSIGN_OR_RETURN(const AdapterFile file, ReadAdapterFile(path, 0));
  FactorBuilder factors(file, target);
  HEDDLE_RETURN_IF_ERROR(PlaceModules(file, target, &factors).status());
  std::string_view module;
  const AdapterPlaces places(model);
  std::unique_ptr<AdapterMerge> merge(new AdapterMerge);
  for (const FactorSource& source : factors.sources()) {
    if (source.name != module) merge->decoded_.clear();
    module = source.name;
    const absl::Status added = merge->Add(source, model, places);
    if (added.ok()) continue;
    return absl::InvalidArgumentError(base::StrCat(
        file.path, ": module ", base::Quote(source.name),
        " cannot be merged: ", std::string(added.message()), "; serve it with --lora"));
  }
  merge->decoded_.clear();
  return merge;
}

std::vector<float> AdapterMerge::RowsOf(const RankRows& from, int64_t rows, int64_t cols) {
  std::vector<float>& all = decoded_[from.tensor];
  if (all.empty()) all = ValuesOf(*from.tensor);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t c = 0; c < cols; ++c) {
      const float factor = from.factors.empty() ? 1.0f : from.factors[static_cast<size_t>(c)];
      values[static_cast<size_t>(j * cols + c)] = factor * ElementOf(from, all, j, c);
    }
  }
  return values;
}

absl::Status AdapterMerge::AddVector(const std::string& tensor, std::span<const float> values,
                                     std::span<const int32_t> rows) {
  if (values.empty()) return absl::OkStatus();
  if (tensor.empty()) return absl::InvalidArgumentError("the base has no bias there");
  std::vector<float>& added = tensors_[tensor].added;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<size_t>(rows[i]);
    if (added.size() <= row) added.resize(row + 1);
    added[row] = values[i];  // once, if attention and the MLP share the norm
  }
  return absl::OkStatus();
}

absl::Status AdapterMerge::Add(const FactorSource& source, const ModelDescription& model,
                               const AdapterPlaces& places) {
  const ImageFactors& factors = source.factors;
  HEDDLE_ASSIGN_OR_RETURN(
      BasePart part, places.FindBase(factors.layer, factors.site, factors.member, factors.part));
  const bool is_table =
      factors.site == AdapterSite::kEmbedding || factors.site == AdapterSite::kHead;
  if (is_table && model.names.lm_head.empty()) {
    return absl::InvalidArgumentError("the base's embedding and its head are one matrix");
  }
  if (IsNorm(factors.site)) {
    std::vector<int32_t> rows(static_cast<size_t>(factors.outputs));
    std::iota(rows.begin(), rows.end(), 0);
    HEDDLE_RETURN_IF_ERROR(AddVector(part.tensor, source.gain, rows));
    return AddVector(part.bias, source.bias, rows);
  }
  HEDDLE_RETURN_IF_ERROR(AddVector(part.bias, source.bias, part.rows));
  if (factors.rank == 0 && source.gain.empty()) return absl::OkStatus();
  return AddProduct(source, model, part);
}

absl::Status AdapterMerge::AddProduct(const FactorSource& source, const ModelDescription& model,
                                      const BasePart& part) {
  const ImageFactors& factors = source.factors;
  Change& change = *changes_.emplace_back(std::make_unique<Change>());
  change.scale = factors.scale;
  change.gain = source.gain;
  TensorChange& tensor = tensors_[part.tensor];
  if (factors.site == AdapterSite::kEmbedding) {
    change.is_token_row = true;
    change.scale /= model.spec.embedding_scale;
    change.rank = source.b.tensor == nullptr ? 0 : factors.rank;
    change.rows = RowsOf(source.a, factors.inputs, factors.rank);
    if (source.b.tensor != nullptr) {
      change.directions = RowsOf(source.b, factors.rank, factors.outputs);
    }
    tensor.all_rows = &change;
    return absl::OkStatus();
  }
  // The tensor's rows are outputs of the decoder's matrix, or inputs where that is turned.
  change.is_turned = factors.site == AdapterSite::kKeyHeads;
  const RankRows& of_rows = change.is_turned ? source.a : source.b;
  const RankRows& of_columns = change.is_turned ? source.b : source.a;
  const int64_t rows = change.is_turned ? factors.inputs : factors.outputs;
  const int64_t cols = change.is_turned ? factors.outputs : factors.inputs;
  change.rank = of_columns.tensor == nullptr ? 0 : factors.rank;
  change.rows = Turned(RowsOf(of_rows, factors.rank, rows), factors.rank, rows);
  if (of_columns.tensor != nullptr) change.directions = RowsOf(of_columns, factors.rank, cols);
  for (size_t i = 0; i < part.rows.size(); ++i) {
    tensor.rows[part.rows[i]] = {&change, static_cast<int64_t>(i)};
  }
  return absl::OkStatus();
}

std::vector<std::string> AdapterMerge::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, change] : tensors_) names.push_back(name);
  return names;
}

void AdapterMerge::Apply(const std::string& tensor, int64_t row, std::span<float> values) const {
  const TensorChange& changes = tensors_.at(tensor);
  if (!changes.added.empty()) {
    for (size_t i = 0; i < changes.added.size() && i < values.size(); ++i) {
      values[i] += changes.added[i];
    }
    return;
  }
  RowChange own{changes.all_rows, row};
  if (own.change == nullptr) {
    const auto found = changes.rows.find(row);
    if (found == changes.rows.end()) return;
    own = found->second;
  }
  const Change& change = *own.change;
  const auto cols = static_cast<int64_t>(values.size());
  for (int64_t c = 0; c < cols && !change.gain.empty(); ++c) {
    const int64_t at = change.is_token_row ? c : own.index;
    values[static_cast<size_t>(c)] *= 1.0f + change.gain[static_cast<size_t>(at)];
  }
  if (change.rank == 0) {
    if (change.rows.empty()) return;
    const float* difference = change.rows.data() + own.index * cols;
    for (int64_t c = 0; c < cols; ++c) {
      values[static_cast<size_t>(c)] += change.scale * difference[c];
    }
    return;
  }
  const float* shares = change.rows.data() + own.index * change.rank;
  for (int64_t j = 0; j < change.rank; ++j) {
    const float share = change.scale * shares[j];
    const float* direction = change.directions.data() + j * cols;
    for (int64_t c = 0; c < cols; ++c) values[static_cast<size_t>(c)] += share * direction[c];
  }
}

}  // namespace heddle::engine
