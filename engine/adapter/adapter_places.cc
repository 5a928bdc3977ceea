#include "engine/adapter/adapter_places.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "base/message.h"
#include "engine/family/module_names.h"
#include "engine/model/row_order.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kWeight = ".weight";

// A tensor's name without ".weight".
std::string_view ModuleOf(std::string_view tensor) {
  if (tensor.ends_with(kWeight)) tensor.remove_suffix(kWeight.size());
  return tensor;
}

// Prefixes of tensor names before a decoder's layers: names of wrappers, and of the decoder itself.
constexpr std::string_view kWrappers[] = {"base_model.",  "model.",    "language_model.",
                                          "transformer.", "gpt_neox.", "backbone."};

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

// The module that holds all experts as parameters of its own: the name up to the experts' index, or
// up to the parameter.
std::string StackModule(const std::string& expert) {
  const size_t index = expert.find(".{e}");
  return expert.substr(0, index != std::string::npos ? index : expert.rfind('.'));
}

}  // namespace

AdapterPlaces::AdapterPlaces(const ModelDescription& model, bool gguf_names)
    : model_(model), gguf_names_(gguf_names), base_is_gguf_(HasGgufNames(model)) {
  const std::vector<NameMap> maps =
      gguf_names ? std::vector<NameMap>{GgufFileNames(model)} : HuggingFaceNames(model);
  for (const NameMap& names : maps) AddModel(names);
  // A tied head has no tensor of its own, and may have an adapter of its own.
  Add(gguf_names ? "output" : "lm_head",
      {.layer = kModelLayer, .site = AdapterSite::kHead, .part = kWhole});
}

AdapterPlaces::AdapterPlaces(const ModelDescription& model)
    : model_(model), is_base_(true), gguf_names_(HasGgufNames(model)), base_is_gguf_(gguf_names_) {
  AddModel(model.names);
  if (model.names.lm_head.empty()) {
    Add(model.names.embed, {.layer = kModelLayer, .site = AdapterSite::kHead, .part = kWhole});
  }
}

void AdapterPlaces::Add(const std::string& name, Entry entry) {
  if (name.empty()) return;
  std::vector<Entry>& entries = entries_[std::string(NameInDecoder(ModuleOf(name)))];
  for (const Entry& known : entries) {
    if (known.layer == entry.layer && known.site == entry.site && known.part == entry.part) return;
  }
  entry.tensor = name;
  entries.push_back(std::move(entry));
}

void AdapterPlaces::AddModel(const NameMap& names) {
  qkv_by_kv_head_ = names.qkv_by_kv_head;
  for (int32_t layer = 0; layer < model_.spec.n_layers(); ++layer) AddLayer(names, layer);
  const auto add = [&](const std::string& name, AdapterSite site, const std::string& bias = "") {
    Add(name, {.layer = kModelLayer, .site = site, .part = kWhole, .bias = bias});
  };
  add(names.embed, AdapterSite::kEmbedding);
  add(names.lm_head, AdapterSite::kHead);
  add(names.final_norm, AdapterSite::kFinalNorm, names.final_norm_bias);
  Refuse(names.positions, "holds learned positions");
  Refuse(names.token_types, "holds types of tokens");
  Refuse(names.embed_norm, "norms the embedding");
}

void AdapterPlaces::AddLayer(const NameMap& pattern, int32_t layer) {
  const LayerSpec& spec = model_.spec.layers[static_cast<size_t>(layer)];
  LayerNames names = pattern.Layer(layer, spec);
  // Falcon-H1's converter multiplies its matrices by factors that the model's class applies.
  if (pattern.layers_of_index > 1 && gguf_names_ != base_is_gguf_) {
    names.ForEach([this](const std::string* name) {
      Refuse(*name, "has factors that only one of base and adapter knows");
    });
    return;
  }
  AddAttention(names, spec, layer);
  AddMlp(names, spec, layer, pattern.up_first);
  if (spec.moe.n_experts > 0) AddExperts(pattern, names, spec.moe, layer);
}

void AdapterPlaces::AddAttention(const LayerNames& names, const LayerSpec& spec, int32_t layer) {
  const auto add = [&](const std::string& name, AdapterSite site, int32_t part,
                       const std::string& bias = "") {
    Add(name, {.layer = layer, .site = site, .part = part, .bias = bias});
  };
  if (spec.attention.wkv.is_here()) {
    WkvNames mix = names.wkv;
    mix.ForEach([this](const std::string* name) { Refuse(*name, "is part of a time mix"); });
    Refuse(names.attn_norm, "is part of a time mix");
    return;
  }
  if (spec.attention.mla.kv_rank > 0) {
    for (const std::string* name : {&names.index_q, &names.index_k, &names.index_k_norm,
                                    &names.index_k_norm_bias, &names.index_weights}) {
      Refuse(*name, "chooses positions");
    }
    add(names.q_a, AdapterSite::kQueryA, 0);
    add(names.q, AdapterSite::kQueryB, 0);
    add(names.kv_a, AdapterSite::kKvA, 0);
    Entry heads{.layer = layer, .site = AdapterSite::kKeyHeads, .member = kAllMembers};
    Add(names.kv_b, heads);
    heads.site = AdapterSite::kValueHeads;
    Add(names.kv_b, heads);
    Refuse(names.k_b, "is folded into latent attention");
    Refuse(names.v_b, "is folded into latent attention");
  } else if (spec.attention.recurrence.shape.taps == 0) {
    Add(names.q, {.layer = layer,
                  .site = AdapterSite::kQkv,
                  .bias = names.q_bias,
                  .with_gates = spec.attention.gated});
    add(names.k, AdapterSite::kQkv, 1, names.k_bias);
    add(names.v, AdapterSite::kQkv, 2, names.v_bias);
    add(names.qkv, AdapterSite::kQkv, kWhole, names.qkv_bias);
  }
  if (spec.attention.recurrence.shape.taps > 0) {
    AddRecurrence(names, spec.attention.recurrence, layer);
    add(names.attn_norm, AdapterSite::kAttentionNorm, 0, names.attn_norm_bias);
    return;
  }
  Refuse(names.conv, "is a convolution");
  for (const std::string* name :
       {&names.lambda_q1, &names.lambda_k1, &names.lambda_q2, &names.lambda_k2, &names.pair_norm}) {
    Refuse(*name, "is part of how heads' differences are taken");
  }
  add(names.o, AdapterSite::kOut, 0, names.o_bias);
  add(names.attn_norm, AdapterSite::kAttentionNorm, 0, names.attn_norm_bias);
  add(names.attn_post_norm, AdapterSite::kAttentionPostNorm, 0);
  add(names.q_a_norm, AdapterSite::kQueryNorm, 0);
  add(names.kv_a_norm, AdapterSite::kKeyNorm, 0);
  add(names.q_norm, AdapterSite::kQueryNorm, 0);
  add(names.k_norm, AdapterSite::kKeyNorm, 0);
}

// The product's modules are stacked in this order (engine/model/row_order.h).
void AdapterPlaces::AddRecurrence(const LayerNames& names, const RecurrenceSpec& recurrence,
                                  int32_t layer) {
  Refuse(names.conv, "is a convolution");
  for (const std::string* norm : {&names.recur_norm, &names.recur_steps_norm, &names.recur_key_norm,
                                  &names.recur_query_norm}) {
    Refuse(*norm, "is a norm within a recurrence");
  }
  for (const std::string* product : {&names.recur_factors, &names.recur_steps}) {
    Refuse(*product, "is a product within a recurrence");
  }
  const kernels::RecurrenceShape& shape = recurrence.shape;
  struct Module {
    const std::string& name;
    int64_t rows;
  };
  const Module modules[] = {{names.recur_gate, shape.values()},
                            {names.recur_beta_step, 2 * int64_t{shape.n_heads}},
                            {names.recur_beta, shape.n_heads},
                            {names.recur_step, shape.n_heads}};
  int64_t first = shape.cols();
  for (const Module& module : modules) first -= module.name.empty() ? 0 : module.rows;
  const bool same_rows = gguf_names_ == base_is_gguf_;
  const auto add = [&](const std::string& name, int64_t first_row, int64_t rows,
                       const std::string& bias) {
    if (!same_rows) {
      Refuse(name, "is in a recurrence, whose rows the base's file has in another order");
      return;
    }
    Add(name, {.layer = layer,
               .site = AdapterSite::kQkv,
               .part = kWhole,
               .bias = bias,
               .first_row = first_row,
               .n_rows = rows});
  };
  add(names.qkv, 0, first, names.qkv_bias);
  for (const Module& module : modules) {
    if (module.name.empty()) continue;
    add(module.name, first, module.rows, "");
    first += module.rows;
  }
  if (same_rows) {
    Add(names.o, {.layer = layer, .site = AdapterSite::kOut, .bias = names.o_bias});
  } else {
    Refuse(names.o, "is in a recurrence, whose rows the base's file has in another order");
  }
}

void AdapterPlaces::AddMlp(const LayerNames& names, const LayerSpec& spec, int32_t layer,
                           bool up_first) {
  const auto add = [&](const std::string& name, AdapterSite site, int32_t part,
                       const std::string& bias = "") {
    Add(name, {.layer = layer, .site = site, .part = part, .bias = bias});
  };
  if (spec.mlp.inter > 0) {
    add(names.gate, AdapterSite::kUp, 0, names.gate_bias);
    add(names.up, AdapterSite::kUp, spec.mlp.gated ? 1 : 0, names.up_bias);
    if (up_first) {
      Refuse(names.gate_up, "has the gate's rows behind the others");
    } else {
      add(names.gate_up, AdapterSite::kUp, kWhole);
    }
    add(names.down, AdapterSite::kDown, 0, names.down_bias);
  }
  add(names.mlp_norm, AdapterSite::kMlpNorm, 0, names.mlp_norm_bias);
  add(names.mlp_post_norm, AdapterSite::kMlpPostNorm, 0);
  add(names.row_gate, AdapterSite::kRowGate, 0);
  add(names.router, AdapterSite::kRouter, 0, names.router_bias);
  Refuse(names.input_gate, "makes a layer's own input");
  Refuse(names.input_out, "makes a layer's own input");
  Refuse(names.input_post_norm, "is a norm of a layer's own input");
  for (const std::string* name : {&names.altup_router_norm, &names.altup_router,
                                  &names.altup_predict, &names.altup_correct, &names.altup_scale}) {
    Refuse(*name, "is of alternating updates");
  }
  for (const std::string* name : {&names.laurel_in, &names.laurel_out, &names.laurel_norm}) {
    Refuse(*name, "is of a learned residual beside attention");
  }
  Refuse(names.expert_norm, "is a norm of experts alone");
  Refuse(names.expert_post_norm, "is a norm of experts alone");
  Refuse(names.mlp_own_norm, "is a norm of an MLP beside experts");
}

void AdapterPlaces::AddExperts(const NameMap& pattern, const LayerNames& names, const MoeSpec& moe,
                               int32_t layer) {
  const bool in_turns = pattern.expert_layout != ExpertLayout::kPlain;
  const Entry up{.layer = layer, .site = AdapterSite::kExpertUp};
  Entry gate_up = up;
  gate_up.part = kWhole;
  gate_up.in_turns = in_turns;
  Entry second = up;
  second.part = 1;
  const Entry down{.layer = layer, .site = AdapterSite::kExpertDown};
  AddExpertMatrix(names.expert_gate, moe, up);
  AddExpertMatrix(names.expert_up, moe, second);
  AddExpertMatrix(names.expert_gate_up, moe, gate_up);
  AddExpertMatrix(names.expert_down, moe, down);
  if (gguf_names_ || is_base_ || names.expert_down.empty()) return;
  // PEFT's target_parameters: the factors of both parameters are in the module that holds them, one
  // of them below a further "base_layer". Shapes tell which is which.
  const std::string stack = StackModule(names.expert_down);
  for (const std::string& module : {stack, stack + ".base_layer"}) {
    gate_up.member = kAllMembers;
    Entry stacked_down = down;
    stacked_down.member = kAllMembers;
    Add(module, gate_up);
    Add(module, stacked_down);
  }
}

void AdapterPlaces::AddExpertMatrix(const std::string& name, const MoeSpec& moe,
                                    const Entry& entry) {
  if (name.empty()) return;
  Entry own = entry;
  if (IsStacked(name)) {
    own.member = kAllMembers;
    return Add(name, own);
  }
  for (own.member = 0; own.member < moe.n_experts; ++own.member) {
    Add(ExpertName(name, own.member), own);
  }
}

void AdapterPlaces::Refuse(std::string_view tensor, std::string_view why) {
  if (!tensor.empty()) refused_.emplace(NameInDecoder(ModuleOf(tensor)), why);
}

absl::StatusOr<std::vector<ModulePlace>> AdapterPlaces::Find(std::string_view module,
                                                             int64_t outputs) const {
  const std::string_view name = NameInDecoder(module);
  if (const auto found = entries_.find(name); found != entries_.end()) {
    std::vector<ModulePlace> places;
    for (const Entry& entry : found->second) places.push_back(PlaceOf(entry));
    const bool is_stack = places.size() == 2 && places[0].site == AdapterSite::kExpertUp;
    if (is_stack) places.erase(places.begin() + (places[1].outputs == outputs ? 0 : 1));
    return places;
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

absl::StatusOr<BasePart> AdapterPlaces::FindBase(int32_t layer, AdapterSite site, int32_t member,
                                                 int32_t part) const {
  for (const auto& [name, entries] : entries_) {
    for (const Entry& entry : entries) {
      const bool has_part =
          entry.part == part || entry.part == kWhole || (entry.with_gates && part == kGatePart);
      const bool has_member = entry.member == member || entry.member == kAllMembers;
      if (entry.layer != layer || entry.site != site || !has_part || !has_member) continue;
      if (entry.in_turns) {
        return absl::UnimplementedError("the base's experts are stored transposed or in blocks");
      }
      const ModulePlace place = PlaceOf(entry);
      const auto is_part = [part](const ModulePart& own) { return own.part == part; };
      if (entry.n_rows > 0 && std::ranges::none_of(place.parts, is_part)) continue;
      BasePart found{.tensor = entry.tensor, .bias = entry.bias, .rows = {}};
      for (const ModulePart& own : place.parts) {
        if (own.part == part) found.rows = own.rows;
      }
      const int64_t stride = place.head_stride > 0 ? place.head_stride : place.outputs;
      const int64_t first = entry.member == kAllMembers ? member * stride : 0;
      for (int32_t& row : found.rows) row += static_cast<int32_t>(first);
      return found;
    }
  }
  return absl::NotFoundError("the base lacks this matrix");
}

std::string AdapterPlaces::Known() const {
  std::set<std::string> kinds;
  for (const auto& [name, entries] : entries_) kinds.insert(name.substr(name.rfind('.') + 1));
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : ", ") + kind;
  return base::StrCat(text, " in ", model_.spec.n_layers(), " layers");
}

// A module of latent attention has, for each head, the rows of its key and then of its value.
ModulePlace AdapterPlaces::PlaceOfHeads(const Entry& entry, const SiteShape& shape) const {
  const MlaSpec& mla = model_.spec.layers[static_cast<size_t>(entry.layer)].attention.mla;
  ModulePlace place{.layer = entry.layer, .site = entry.site, .n_members = shape.members};
  place.inputs = mla.kv_rank;
  place.head_stride = mla.nope_dim + mla.v_dim;
  place.outputs = shape.members * place.head_stride;
  const bool is_key = entry.site == AdapterSite::kKeyHeads;
  ModulePart part;
  part.rows.resize(static_cast<size_t>(is_key ? mla.nope_dim : mla.v_dim));
  std::iota(part.rows.begin(), part.rows.end(), is_key ? 0 : mla.nope_dim);
  place.parts.push_back(std::move(part));
  return place;
}

// Parts lie in one module each, whose rows may be in another order.
ModulePlace AdapterPlaces::PlaceOfRecurrence(const Entry& entry, const SiteShape& shape) const {
  const RecurrenceSpec& recurrence =
      model_.spec.layers[static_cast<size_t>(entry.layer)].attention.recurrence;
  ModulePlace place{.layer = entry.layer, .site = entry.site};
  place.inputs = shape.inputs;
  place.outputs = entry.n_rows;
  std::vector<int64_t> order;  // of the linear's rows, those of the stacked modules
  const Cut all = RecurrenceRowsOf(recurrence, {0, recurrence.shape.n_key_heads});
  for (const Range& range : *all.rows) {
    for (int64_t row = range.first; row < range.end(); ++row) order.push_back(row);
  }
  auto row = order.begin();
  for (int32_t part = 0; part < static_cast<int32_t>(shape.parts.size()); ++part) {
    const auto end = row + shape.parts[static_cast<size_t>(part)];
    ModulePart own{.part = part, .rows = {}};
    for (; row != end; ++row) {
      const int64_t within = *row - entry.first_row;
      if (within >= 0 && within < entry.n_rows) own.rows.push_back(static_cast<int32_t>(within));
    }
    if (!own.rows.empty()) place.parts.push_back(std::move(own));
  }
  return place;
}

ModulePlace AdapterPlaces::PlaceOf(const Entry& entry) const {
  const SiteShape shape = ShapeOf(model_.spec, entry.layer, entry.site);
  if (entry.n_rows > 0) return PlaceOfRecurrence(entry, shape);
  if (entry.site == AdapterSite::kKeyHeads || entry.site == AdapterSite::kValueHeads) {
    return PlaceOfHeads(entry, shape);
  }
  ModulePlace place{.layer = entry.layer,
                    .site = entry.site,
                    .member = entry.member == kAllMembers ? 0 : entry.member,
                    .n_members = entry.member == kAllMembers ? shape.members : 1};
  place.inputs = shape.inputs;
  const bool whole = entry.part == kWhole || entry.layer == kModelLayer;
  for (int32_t part = 0; part < static_cast<int32_t>(shape.parts.size()); ++part) {
    const bool is_gate = entry.with_gates && part == kGatePart;
    if (!whole && entry.part != part && !is_gate) continue;
    const int64_t count = shape.parts[static_cast<size_t>(part)];
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
  if (entry.layer == kModelLayer) return rows;
  if (entry.in_turns) {
    for (int32_t i = 0; i < static_cast<int32_t>(count); ++i) {
      rows[static_cast<size_t>(i)] = 2 * i + part;
    }
    return rows;
  }
  const AttentionSpec& attention = model_.spec.layers[static_cast<size_t>(entry.layer)].attention;
  const int32_t dim = attention.head_dim;
  if (entry.with_gates) {
    for (int32_t i = 0; i < static_cast<int32_t>(count); ++i) {
      rows[static_cast<size_t>(i)] = (i / dim * 2 + (part == kGatePart ? 1 : 0)) * dim + i % dim;
    }
    return rows;
  }
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
