#include "engine/adapter/adapter_places.h"

#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "base/message.h"
#include "engine/family/module_names.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kWeight = ".weight";

// A tensor's name without ".weight".
std::string_view ModuleOf(std::string_view tensor) {
  if (tensor.ends_with(kWeight)) tensor.remove_suffix(kWeight.size());
  return tensor;
}

// What may stand before a decoder's layers: names of wrappers, and of the decoder itself.
constexpr std::string_view kWrappers[] = {"base_model.", "model.", "language_model.",
                                          "transformer.", "gpt_neox."};

// A module's name within the decoder. Checkpoints that were saved from the bare decoder have no
// prefix, and those with more around it have others.
std::string_view NameInDecoder(std::string_view module) {
  for (size_t i = 0; i < std::size(kWrappers);) {
    if (module.starts_with(kWrappers[i])) {
      module.remove_prefix(kWrappers[i].size());
      i = 0;
    } else {
      ++i;
    }
  }
  return module;
}

int64_t KvRows(const AttentionSpec& attention) {
  return int64_t{attention.n_kv_heads} * attention.head_dim;
}

// The rows of a linear's parts.
std::vector<int64_t> PartRows(const ModelSpec& spec, const LayerSpec& layer, AdapterSite site) {
  const AttentionSpec& attention = layer.attention;
  const MlaSpec& mla = attention.mla;
  switch (site) {
    case AdapterSite::kQkv:
      return {int64_t{attention.n_heads} * attention.head_dim, KvRows(attention),
              KvRows(attention)};
    case AdapterSite::kUp:
      if (layer.mlp.gated) return {layer.mlp.inter, layer.mlp.inter};
      return {layer.mlp.inter};
    case AdapterSite::kRouter:
      return {layer.moe.n_experts};
    case AdapterSite::kRowGate:
      return {1};
    case AdapterSite::kQueryA:
      return {mla.q_rank};
    case AdapterSite::kQueryB:
      return {int64_t{attention.n_heads} * mla.q_dim()};
    case AdapterSite::kKvA:
      return {mla.kv_rank + mla.rope_dim};
    default:
      break;
  }
  return {spec.hidden};
}

int64_t Inputs(const ModelSpec& spec, const LayerSpec& layer, AdapterSite site) {
  const AttentionSpec& attention = layer.attention;
  const MlaSpec& mla = attention.mla;
  if (site == AdapterSite::kDown) return layer.mlp.inter;
  if (site == AdapterSite::kQueryB && mla.q_rank > 0) return mla.q_rank;
  if (site != AdapterSite::kOut || attention.linear) return spec.hidden;
  return int64_t{attention.n_heads} * (mla.kv_rank > 0 ? mla.v_dim : attention.head_dim);
}

}  // namespace

AdapterPlaces::AdapterPlaces(const ModelDescription& model, bool gguf_names)
    : model_(model), gguf_names_(gguf_names), base_is_gguf_(HasGgufNames(model)) {
  const std::vector<NameMap> maps =
      gguf_names ? std::vector<NameMap>{GgufFileNames(model)} : HuggingFaceNames(model);
  for (const NameMap& names : maps) {
    qkv_by_kv_head_ = names.qkv_by_kv_head;
    for (int32_t layer = 0; layer < model.spec.n_layers(); ++layer) AddLayer(names, layer);
    Refuse(names.embed, "is the embedding");
    Refuse(names.lm_head, "is the output head");
  }
  Refuse(gguf_names ? "output.weight" : "lm_head.weight", "is the output head");
}

void AdapterPlaces::AddLayer(const NameMap& pattern, int32_t layer) {
  const LayerSpec& spec = model_.spec.layers[static_cast<size_t>(layer)];
  const LayerNames names = pattern.Layer(layer, spec);
  const bool latent = spec.attention.mla.kv_rank > 0;
  const auto add = [&](const std::string& tensor, AdapterSite site, int32_t part) {
    if (tensor.empty()) return;
    entries_.emplace(NameInDecoder(ModuleOf(tensor)), Entry{layer, site, part});
  };
  if (latent) {
    add(names.q_a, AdapterSite::kQueryA, 0);
    add(names.q, AdapterSite::kQueryB, 0);
    add(names.kv_a, AdapterSite::kKvA, 0);
  } else {
    add(names.q, AdapterSite::kQkv, 0);
    add(names.k, AdapterSite::kQkv, 1);
    add(names.v, AdapterSite::kQkv, 2);
    add(names.qkv, AdapterSite::kQkv, kWhole);
  }
  add(names.o, AdapterSite::kOut, 0);
  if (spec.mlp.inter > 0) {
    add(names.gate, AdapterSite::kUp, 0);
    add(names.up, AdapterSite::kUp, spec.mlp.gated ? 1 : 0);
    add(names.gate_up, AdapterSite::kUp, kWhole);
    add(names.down, AdapterSite::kDown, 0);
  }
  add(names.row_gate, AdapterSite::kRowGate, 0);
  add(names.router, AdapterSite::kRouter, 0);
  for (const std::string* expert :
       {&names.expert_gate, &names.expert_up, &names.expert_gate_up, &names.expert_down}) {
    if (expert->empty()) continue;
    for (int32_t e = 0; e < spec.moe.n_experts; ++e) Refuse(ExpertName(*expert, e), "is an expert");
  }
  for (const std::string* heads : {&names.kv_b, &names.k_b, &names.v_b}) {
    Refuse(*heads, "is folded into latent attention");
  }
}

void AdapterPlaces::Refuse(std::string_view tensor, std::string_view why) {
  if (!tensor.empty()) refused_.emplace(NameInDecoder(ModuleOf(tensor)), why);
}

absl::StatusOr<ModulePlace> AdapterPlaces::Find(std::string_view module) const {
  const std::string_view name = NameInDecoder(module);
  if (const auto found = entries_.find(name); found != entries_.end()) {
    return PlaceOf(found->second);
  }
  if (const auto found = refused_.find(name); found != refused_.end()) {
    return absl::InvalidArgumentError(base::StrCat(
        "module ", base::Quote(module), " ", found->second,
        ", for which adapters are not supported; merge the adapter into its base with PEFT "
        "(merge_and_unload) and serve the result"));
  }
  return absl::InvalidArgumentError(
      base::StrCat("module ", base::Quote(module), " is not in the base, which has ", Known()));
}

std::string AdapterPlaces::Known() const {
  std::set<std::string> kinds;
  for (const auto& [name, entry] : entries_) kinds.insert(name.substr(name.rfind('.') + 1));
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : ", ") + kind;
  return base::StrCat(text, " in ", model_.spec.n_layers(), " layers");
}

ModulePlace AdapterPlaces::PlaceOf(const Entry& entry) const {
  const LayerSpec& layer = model_.spec.layers[static_cast<size_t>(entry.layer)];
  const std::vector<int64_t> rows = PartRows(model_.spec, layer, entry.site);
  ModulePlace place;
  place.layer = entry.layer;
  place.site = entry.site;
  place.inputs = Inputs(model_.spec, layer, entry.site);
  for (int32_t part = 0; part < static_cast<int32_t>(rows.size()); ++part) {
    if (entry.part != kWhole && entry.part != part) continue;
    const int64_t count = rows[static_cast<size_t>(part)];
    place.parts.push_back({part, RowsOfPart(entry, part, place.outputs, count)});
    place.outputs += count;
  }
  return place;
}

// For each row of the part in the linear's order, the row of the module's output; the part's rows
// begin at `first` in the module.
std::vector<int32_t> AdapterPlaces::RowsOfPart(const Entry& entry, int32_t part, int64_t first,
                                               int64_t count) const {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
  const AttentionSpec& attention = model_.spec.layers[static_cast<size_t>(entry.layer)].attention;
  const int32_t dim = attention.head_dim;
  if (entry.site == AdapterSite::kQkv && entry.part == kWhole && qkv_by_kv_head_) {
    const int32_t group = attention.n_heads / attention.n_kv_heads;
    for (int32_t i = 0; i < static_cast<int32_t>(count); ++i) {
      const int32_t head = i / dim;
      const int32_t kv_head = part == 0 ? head / group : head;
      const int32_t within = part == 0 ? head % group : group + part - 1;
      rows[static_cast<size_t>(i)] = (kv_head * (group + 2) + within) * dim + i % dim;
    }
  }
  if (entry.site == AdapterSite::kKvA) {
    const MlaSpec& mla = attention.mla;  // the linear has the rotated part first
    for (int32_t i = 0; i < static_cast<int32_t>(count); ++i) {
      rows[static_cast<size_t>(i)] = i < mla.rope_dim ? mla.kv_rank + i : i - mla.rope_dim;
    }
  }
  const bool rotated = entry.site == AdapterSite::kQkv && part < 2;
  if (!rotated || gguf_names_ == base_is_gguf_ || !GgufPermutesQk(model_)) return rows;
  const std::vector<int32_t> before = rows;
  const int32_t half = dim / 2;
  for (int32_t i = 0; i < static_cast<int32_t>(count); ++i) {
    const int32_t at = i % dim;
    const int32_t from = base_is_gguf_ ? at / 2 + at % 2 * half : 2 * (at % half) + at / half;
    const int32_t source = i - at + from;
    rows[static_cast<size_t>(i)] = before[static_cast<size_t>(source)];
  }
  return rows;
}

}  // namespace heddle::engine
