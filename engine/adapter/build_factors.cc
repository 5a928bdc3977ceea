#include "engine/adapter/build_factors.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/adapter/peft_config.h"
#include "engine/family/module_names.h"
#include "kernels/kv_element.h"

namespace heddle::engine {
namespace {

std::string Shape(const AdapterTensor& tensor) {
  return base::StrCat("[", tensor.rows, ", ", tensor.cols, "]");
}

bool IsHeads(AdapterSite site) {
  return site == AdapterSite::kKeyHeads || site == AdapterSite::kValueHeads;
}

bool IsStack(const ModulePlace& place) { return place.n_members > 1 && place.head_stride == 0; }

// A sum of squares in an order that does not depend on the compiler, in lanes that it may
// vectorise.
double SumOfSquares(std::span<const float> values) {
  constexpr size_t kSums = 16;
  float sums[kSums] = {};
  double total = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sums[i % kSums] += values[i] * values[i];
    if (i % 4096 == 4095 || i + 1 == values.size()) {
      for (float& sum : sums) total += std::exchange(sum, 0.0f);
    }
  }
  return total;
}

}  // namespace

std::vector<float> ValuesOf(const AdapterTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  for (int64_t r = 0; r < tensor.rows; ++r) {
    kernels::DequantizeRow(tensor.dtype,
                           tensor.data.data() + r * kernels::RowBytes(tensor.dtype, tensor.cols),
                           tensor.cols, values.data() + r * tensor.cols);
  }
  return values;
}

float ElementOf(const RankRows& from, std::span<const float> values, int64_t j, int64_t i) {
  const int64_t cols = from.tensor->cols;
  if (!from.turned) {
    const int64_t column =
        from.columns.empty() ? from.first_column + i : from.columns[static_cast<size_t>(i)];
    return values[static_cast<size_t>((from.first + j) * cols + column)];
  }
  const int64_t row = from.rows[static_cast<size_t>(i)] + from.row_offset;
  return values[static_cast<size_t>(row * cols + from.first + j * from.step)];
}

absl::Status FactorBuilder::Error(const Placed& placed, std::string_view what) const {
  return absl::InvalidArgumentError(base::StrCat("module ", base::Quote(placed.name), " ", what));
}

std::span<const int32_t> FactorBuilder::Keep(std::vector<int32_t> rows) {
  return rows_.emplace_back(std::move(rows));
}

absl::Status FactorBuilder::CheckTied(const Placed& placed) const {
  const bool is_table =
      placed.place.site == AdapterSite::kEmbedding || placed.place.site == AdapterSite::kHead;
  const bool ties = file_.config != nullptr && file_.config->ties_weights();
  if (!is_table || !ties || !target_.model->spec.tied_embeddings) return absl::OkStatus();
  return Error(
      placed,
      "was trained with \"ensure_weight_tying\", which is not supported; merge the adapter "
      "into its base with PEFT (merge_and_unload) and serve the result");
}

absl::Status FactorBuilder::CheckVectors(const Placed& placed) const {
  const AdapterModule& module = placed.module;
  const ModulePlace& place = placed.place;
  // DoRA scales the columns of an embedding.
  for (const AdapterTensor* vector : {&module.magnitude, &module.b_bias, &module.bias}) {
    if (vector->empty()) continue;
    if (vector->rows * vector->cols != place.outputs) {
      return Error(placed,
                   base::StrCat("has a vector ", base::Quote(vector->name), " of ",
                                vector->rows * vector->cols, " values, and the base's matrix has ",
                                place.outputs, " outputs"));
    }
    if (IsStack(place) || IsHeads(place.site)) {
      return Error(placed,
                   base::StrCat("has a vector ", base::Quote(vector->name),
                                ", which is not supported there; merge the adapter into its "
                                "base with PEFT (merge_and_unload) and serve the result"));
    }
  }
  if (!module.magnitude.empty() && !module.b_bias.empty()) {
    return Error(placed, "has a magnitude and a bias of B, which PEFT does not combine either");
  }
  if (!module.base_weight.empty()) {
    const ModelSpec& spec = target_.model->spec;
    if (module.base_weight.rows != spec.vocab || module.base_weight.cols != spec.hidden) {
      return Error(placed, base::StrCat("comes with a base of its own of ",
                                        Shape(module.base_weight), "; the base's is [", spec.vocab,
                                        ", ", spec.hidden, "]: the vocabulary was resized"));
    }
  }
  return CheckTied(placed);
}

absl::Status FactorBuilder::CheckFits(const Placed& placed) const {
  HEDDLE_RETURN_IF_ERROR(CheckVectors(placed));
  const AdapterTensor& a = placed.module.a;
  const AdapterTensor& b = placed.module.b;
  if (!placed.module.has_factors()) return absl::OkStatus();
  const ModulePlace& place = placed.place;
  if (IsNorm(place.site)) return Error(placed, "has factors, and is a norm in the base");
  const bool is_embedding = place.site == AdapterSite::kEmbedding;
  const bool stacked_in_file = a.stack > 1;
  bool fits = is_embedding == placed.module.is_embedding;
  if (is_embedding && file_.is_gguf) {
    fits = fits && a.rows == place.inputs && b.rows == place.outputs;
  } else {
    const int64_t stack = stacked_in_file && IsStack(place) ? place.n_members : 1;
    fits = fits && a.stack == stack && a.cols == place.inputs && b.rows == stack * place.outputs;
  }
  // Stacks of PEFT have the ranks of all experts side by side, those of GGUF are stacks themselves.
  if (IsStack(place) && file_.is_gguf) fits = fits && stacked_in_file;
  if (IsStack(place) && !stacked_in_file) fits = fits && a.rows % place.n_members == 0;
  if (!fits) {
    return Error(
        placed, base::StrCat(
                    "has factors A ", Shape(a), " and B ", Shape(b), ", and the base's matrix is [",
                    place.outputs, ", ", place.inputs, "]",
                    IsStack(place) ? base::StrCat(" of each of ", place.n_members, " experts") : "",
                    "; the adapter was trained on another model"));
  }
  if (placed.rank < 1 || placed.rank > target_.max_rank) {
    return Error(placed,
                 base::StrCat("has rank ", placed.rank, "; --max-lora-rank is ", target_.max_rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<float> FactorBuilder::ScaleOf(const Placed& placed) const {
  if (file_.config == nullptr) return placed.module.scale;
  std::string name(placed.name);
  if (IsStack(placed.place)) {  // PEFT's patterns name the parameter
    constexpr std::string_view kInner = ".base_layer";
    if (name.ends_with(kInner)) name.resize(name.size() - kInner.size());
    name += placed.place.site == AdapterSite::kExpertUp ? ".gate_up_proj" : ".down_proj";
  }
  return file_.config->Scale(name, static_cast<int32_t>(placed.rank));
}

absl::Status FactorBuilder::Add(std::string_view name, const AdapterModule& module,
                                const ModulePlace& place) {
  Placed placed{.name = name, .module = module, .place = place};
  if (module.has_factors()) {
    placed.rank = RankOf(module, file_.is_gguf, IsStack(place) ? place.n_members : 1);
  }
  HEDDLE_RETURN_IF_ERROR(CheckFits(placed));
  if (module.has_factors()) {
    HEDDLE_ASSIGN_OR_RETURN(placed.scale, ScaleOf(placed));
  }
  for (const AdapterTensor* tensor :
       {&module.a, &module.b, &module.magnitude, &module.b_bias, &module.weight, &module.bias}) {
    num_parameters_ += tensor->rows * tensor->cols;
  }
  if (IsNorm(place.site)) return AddNorm(placed);
  if (!module.weight.empty()) return AddWhole(placed);
  const int32_t members = module.has_factors() ? place.n_members : 1;
  for (int32_t member = 0; member < members; ++member) {
    for (const ModulePart& part : place.parts) {
      HEDDLE_RETURN_IF_ERROR(AddProduct(placed, member, part));
    }
  }
  return absl::OkStatus();
}

// The norm's vectors become differences to the base's.
absl::Status FactorBuilder::AddNorm(const Placed& placed) {
  const ModulePlace& place = placed.place;
  const AdapterModule& module = placed.module;
  const BaseWeights::Part at{place.layer, place.site, 0, 0};
  FactorSource source{.name = placed.name};
  source.factors.layer = place.layer;
  source.factors.site = place.site;
  source.factors.inputs = 1;
  source.factors.outputs = static_cast<int32_t>(place.outputs);
  if (!module.weight.empty()) {
    if (module.weight.rows * module.weight.cols != place.outputs) {
      return Error(placed, base::StrCat("is ", Shape(module.weight), ", and the base's norm has ",
                                        place.outputs, " values"));
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> before, base_.ReadNorm(at));
    source.gain = ValuesOf(module.weight);
    const float offset =
        NormOffsetOf(*target_.model, file_.is_gguf) - target_.model->spec.norm_weight_offset;
    for (size_t i = 0; i < source.gain.size(); ++i) source.gain[i] += offset - before[i];
  }
  if (!module.bias.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> before, base_.ReadBias(at, place.outputs));
    source.bias = ValuesOf(module.bias);
    for (size_t i = 0; i < source.bias.size(); ++i) source.bias[i] -= before[i];
  }
  sources_.push_back(std::move(source));
  return absl::OkStatus();
}

// A whole embedding or head becomes its difference to the base's, in the image's type.
absl::Status FactorBuilder::AddWhole(const Placed& placed) {
  const ModulePlace& place = placed.place;
  const AdapterTensor& weight = placed.module.weight;
  const ModelSpec& spec = target_.model->spec;
  const bool is_embedding = place.site == AdapterSite::kEmbedding;
  if (!is_embedding && place.site != AdapterSite::kHead) {
    return Error(placed,
                 "replaces a matrix of the base (modules_to_save), which is supported for norms, "
                 "embeddings and the head; merge the adapter into its base with PEFT "
                 "(merge_and_unload) and serve the result");
  }
  if (weight.rows != spec.vocab || weight.cols != spec.hidden) {
    return Error(placed, base::StrCat("is ", Shape(weight), ", and the base's matrix is [",
                                      spec.vocab, ", ", spec.hidden, "]"));
  }
  const int64_t row_bytes = kernels::RowBytes(target_.dtype, spec.hidden);
  const int64_t bytes = spec.vocab * row_bytes;
  if (target_.max_bytes > 0 && bytes > target_.max_bytes) {
    return absl::ResourceExhaustedError(base::StrCat("takes ", base::ShowBytes(bytes),
                                                     " in memory; adapters may take ",
                                                     base::ShowBytes(target_.max_bytes)));
  }
  HEDDLE_ASSIGN_OR_RETURN(OwnedBytes owned, AllocateBytes(bytes));
  std::byte* differences = owned.data.get();
  std::vector<float> values(static_cast<size_t>(spec.hidden));
  int64_t first = 0;  // row of the part in the matrix
  for (const ModulePart& part : place.parts) {
    const auto subtract = [&](int64_t i, std::span<const float> before) {
      const int64_t row = first + i;
      kernels::DequantizeRow(
          weight.dtype, weight.data.data() + row * kernels::RowBytes(weight.dtype, weight.cols),
          weight.cols, values.data());
      for (int64_t c = 0; c < spec.hidden; ++c) {
        const auto at = static_cast<size_t>(c);
        kernels::StoreElement(target_.dtype, differences + row * row_bytes, c,
                              values[at] - before[at]);
      }
    };
    const BaseWeights::Part at{place.layer, place.site, 0, part.part};
    HEDDLE_RETURN_IF_ERROR(base_.ReadRows(at, subtract));
    first += static_cast<int64_t>(part.rows.size());
  }
  made_.push_back({weight.name, target_.dtype, spec.vocab, spec.hidden, 1, owned.span()});
  bytes_.push_back(std::move(owned));
  for (const ModulePart& part : place.parts) {
    FactorSource source{.name = placed.name};
    source.factors = {.layer = place.layer,
                      .site = place.site,
                      .part = part.part,
                      .inputs = static_cast<int32_t>(place.inputs),
                      .outputs = static_cast<int32_t>(part.rows.size()),
                      .rank = spec.hidden,
                      .scale = is_embedding ? spec.embedding_scale : 1.0f};
    if (is_embedding) {
      source.a.tensor = &made_.back();
    } else {
      source.b = {.tensor = &made_.back(), .turned = true, .rows = Keep(part.rows)};
    }
    HEDDLE_RETURN_IF_ERROR(AddVectors(placed, part, &source));
    sources_.push_back(std::move(source));
  }
  return absl::OkStatus();
}

void FactorBuilder::FindRows(const Placed& placed, int32_t member, const ModulePart& part,
                             FactorSource* source) {
  const AdapterModule& module = placed.module;
  const ModulePlace& place = placed.place;
  RankRows& a = source->a;
  RankRows& b = source->b;
  a.tensor = &module.a;
  b = {.tensor = &module.b, .turned = true, .rows = Keep(part.rows)};
  if (IsHeads(place.site)) {
    b.row_offset = member * place.head_stride;
    // A key's projection is applied to the query, turned: B first, then A.
    if (place.site == AdapterSite::kKeyHeads) std::swap(a, b);
  } else if (IsStack(place)) {
    a.first = member * placed.rank;
    if (module.b.stack > 1) {
      b.row_offset = member * place.outputs;
    } else {
      b.first = member;
      b.step = place.n_members;
    }
  } else if (place.site == AdapterSite::kEmbedding && !file_.is_gguf) {
    std::vector<int32_t> ranks(static_cast<size_t>(placed.rank));
    std::iota(ranks.begin(), ranks.end(), 0);
    a.turned = true;
    a.rows = Keep(std::move(ranks));
  }
}

absl::Status FactorBuilder::AddProduct(const Placed& placed, int32_t member,
                                       const ModulePart& part) {
  const ModulePlace& place = placed.place;
  const ModelSpec& spec = target_.model->spec;
  const SiteShape shape = ShapeOf(spec, place.layer, place.site);
  FactorSource source{.name = placed.name};
  source.factors = {.layer = place.layer,
                    .site = place.site,
                    .member = place.member + member,
                    .part = part.part,
                    .inputs = static_cast<int32_t>(shape.inputs),
                    .outputs = static_cast<int32_t>(shape.parts[static_cast<size_t>(part.part)]),
                    .rank = static_cast<int32_t>(placed.rank),
                    .scale = placed.scale};
  if (placed.module.has_factors()) FindRows(placed, member, part, &source);
  if (!placed.module.magnitude.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> factors, DoraFactors(placed, member, part, source));
    source.gain = factors;
    for (float& gain : source.gain) gain -= 1.0f;
    source.b.factors = factors_.emplace_back(std::move(factors));
  }
  if (place.site == AdapterSite::kEmbedding) source.factors.scale *= spec.embedding_scale;
  HEDDLE_RETURN_IF_ERROR(AddVectors(placed, part, &source));
  const bool is_empty = placed.rank == 0 && source.bias.empty();  // the base's own weights alone
  if (!is_empty) sources_.push_back(std::move(source));
  return absl::OkStatus();
}

absl::Status FactorBuilder::AddVectors(const Placed& placed, const ModulePart& part,
                                       FactorSource* source) {
  const AdapterModule& module = placed.module;
  if (module.bias.empty() && module.b_bias.empty()) return absl::OkStatus();
  if (placed.place.site == AdapterSite::kEmbedding) return Error(placed, "has a bias");
  source->bias.assign(part.rows.size(), 0.0f);
  const auto add = [&](const AdapterTensor& tensor, float scale) {
    const std::vector<float> values = ValuesOf(tensor);
    for (size_t i = 0; i < part.rows.size(); ++i) {
      source->bias[i] += scale * values[static_cast<size_t>(part.rows[i])];
    }
  };
  if (!module.b_bias.empty()) add(module.b_bias, placed.scale);
  if (module.bias.empty()) return absl::OkStatus();
  add(module.bias, 1.0f);
  const BaseWeights::Part at{placed.place.layer, placed.place.site, placed.place.member, part.part};
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> before,
                          base_.ReadBias(at, static_cast<int64_t>(part.rows.size())));
  for (size_t i = 0; i < before.size(); ++i) source->bias[i] -= before[i];
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> FactorBuilder::DoraFactors(const Placed& placed, int32_t member,
                                                              const ModulePart& part,
                                                              const FactorSource& source) {
  const bool is_embedding = placed.place.site == AdapterSite::kEmbedding;
  const int64_t rank = placed.rank;
  const std::vector<float> a = ValuesOf(placed.module.a);
  const std::vector<float> b = ValuesOf(placed.module.b);
  const int64_t outputs = source.factors.outputs;
  std::vector<double> squares(static_cast<size_t>(outputs), 0.0);
  std::vector<float> row;
  const auto add_row = [&](int64_t i, std::span<const float> before) {
    row.assign(before.begin(), before.end());
    for (int64_t j = 0; j < rank; ++j) {
      if (is_embedding) {  // a token's row
        const float s = placed.scale * ElementOf(source.a, a, i, j);
        for (int64_t c = 0; c < outputs; ++c) {
          row[static_cast<size_t>(c)] += s * ElementOf(source.b, b, j, c);
        }
        continue;
      }
      const float s = placed.scale * ElementOf(source.b, b, j, i);
      const float* factor = a.data() + (source.a.first + j) * source.a.tensor->cols;
      for (size_t c = 0; c < row.size(); ++c) row[c] += s * factor[c];
    }
    if (!is_embedding) {
      squares[static_cast<size_t>(i)] = SumOfSquares(row);
      return;
    }
    for (size_t c = 0; c < row.size(); ++c) squares[c] += double{row[c]} * row[c];
  };
  const BaseWeights::Part at{placed.place.layer, placed.place.site, placed.place.member + member,
                             part.part};
  HEDDLE_RETURN_IF_ERROR(base_.ReadRows(at, add_row));
  const std::vector<float> magnitude = ValuesOf(placed.module.magnitude);
  std::vector<float> factors(static_cast<size_t>(outputs));
  for (size_t i = 0; i < factors.size(); ++i) {
    factors[i] = static_cast<float>(double{magnitude[static_cast<size_t>(part.rows[i])]} /
                                    std::sqrt(squares[i]));
    if (!std::isfinite(factors[i])) {
      return Error(placed, "has a magnitude that is not finite, or a row of zeros to divide by");
    }
  }
  return factors;
}

}  // namespace heddle::engine
