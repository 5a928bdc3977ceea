#include "server/cli/inspect.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using engine::AttentionSpec;
using engine::LayerSpec;
using engine::ModelSpec;

// Text like "8" if all layers agree, otherwise "4..8".
template <typename Field>
std::string Range(const ModelSpec& spec, Field field) {
  std::set<int32_t> values;
  for (const LayerSpec& layer : spec.layers) values.insert(field(layer));
  if (values.empty()) return "-";
  if (values.size() == 1) return absl::StrCat(*values.begin());
  return absl::StrCat(*values.begin(), "..", *values.rbegin());
}

std::string ParameterCount(int64_t count) {
  if (count >= 1'000'000'000) return absl::StrFormat("%.2f billion", count / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.2f million", count / 1e6);
  return absl::StrCat(count);
}

// The state that a sequence keeps beside its keys and values; empty if there is none.
std::string StateText(const engine::Capacity& capacity) {
  if (capacity.limits.state_groups == 0) return "";
  return absl::StrCat(" and ", base::ShowBytes(capacity.state_bytes()), " of state per user");
}

// Text like "short convolutions over 3 positions in 10 layers"; empty without any.
std::string ConvolutionText(const ModelSpec& spec) {
  const auto layers = std::count_if(spec.layers.begin(), spec.layers.end(),
                                    [](const LayerSpec& l) { return l.attention.conv.taps > 0; });
  if (layers == 0) return "";
  return absl::StrCat("short convolutions over ",
                      Range(spec, [](const LayerSpec& l) { return l.attention.conv.taps; }),
                      " positions in ", layers, layers == 1 ? " layer" : " layers");
}

// The output of a model that writes no text.
std::string PooledText(const engine::PooledOutput& pooled) {
  if (pooled.is_classifier()) {
    return absl::StrCat("scores of ", pooled.labels.size(), " classes, no text");
  }
  const char* from = "embeddings";
  switch (pooled.pooling.value_or(engine::Pooling::kLast)) {
    case engine::Pooling::kMean:
      from = "embeddings, the mean of all tokens";
      break;
    case engine::Pooling::kFirst:
      from = "embeddings of the first token";
      break;
    case engine::Pooling::kLast:
    case engine::Pooling::kNone:
      from = "embeddings of the last token";
      break;
  }
  return absl::StrCat(from, pooled.normalize ? ", of length 1" : "", "; no text");
}

// Text like "gated delta nets of 32 heads of 128 x 128 in 36 layers"; empty without any.
std::string RecurrenceText(const ModelSpec& whole) {
  ModelSpec spec = whole;  // the layers that recur
  std::erase_if(spec.layers,
                [](const LayerSpec& l) { return l.attention.recurrence.shape.taps == 0; });
  if (spec.layers.empty()) return "";
  const kernels::RecurrenceShape& shape = spec.layers.front().attention.recurrence.shape;
  const bool is_delta = shape.rule == kernels::RecurrenceRule::kGatedDelta;
  if (shape.is_selective()) {
    return absl::StrCat("Mamba of ", shape.values(), " channels of ", shape.key_dim, " in ",
                        spec.layers.size(), spec.layers.size() == 1 ? " layer" : " layers");
  }
  return absl::StrCat(is_delta ? "gated delta nets" : "Mamba-2", " of ", shape.n_heads,
                      " heads of ", shape.key_dim, " x ", shape.value_dim, " in ",
                      spec.layers.size(), spec.layers.size() == 1 ? " layer" : " layers");
}

// Text like "RWKV-7's time mixes of 32 heads of 64 in 24 layers"; empty without any.
std::string TimeMixText(const ModelSpec& spec) {
  const engine::WkvSpec& wkv = spec.layers.front().attention.wkv;
  if (!wkv.is_here()) return "";
  return absl::StrCat("RWKV-7's time mixes of ", wkv.n_heads, " heads of ", wkv.head_dim, " in ",
                      spec.layers.size(), spec.layers.size() == 1 ? " layer" : " layers");
}

// Text like "gated memory units of 5120 channels in 7 layers"; empty without any.
std::string MemoryText(const ModelSpec& whole) {
  ModelSpec spec = whole;  // the layers that read a memory
  std::erase_if(spec.layers, [](const LayerSpec& l) { return !l.attention.memory.is_here(); });
  if (spec.layers.empty()) return "";
  return absl::StrCat("gated memory units of ",
                      Range(spec, [](const LayerSpec& l) { return l.attention.memory.channels; }),
                      " channels in ", spec.layers.size(),
                      spec.layers.size() == 1 ? " layer" : " layers");
}

std::string AttentionText(const ModelSpec& whole) {
  ModelSpec spec = whole;  // without the layers that convolve or recur
  std::erase_if(spec.layers, [](const LayerSpec& l) {
    return l.attention.conv.taps > 0 || l.attention.recurrence.shape.taps > 0 ||
           l.attention.wkv.is_here() || l.attention.memory.is_here();
  });
  if (spec.layers.empty()) return "none";
  std::string text = absl::StrCat(
      Range(spec, [](const LayerSpec& l) { return l.attention.n_heads; }), " heads of ",
      Range(spec, [](const LayerSpec& l) { return l.attention.head_dim; }), ", ",
      Range(spec, [](const LayerSpec& l) { return l.attention.n_kv_heads; }), " key/value heads");
  const auto windowed = std::count_if(spec.layers.begin(), spec.layers.end(),
                                      [](const LayerSpec& l) { return l.attention.window > 0; });
  if (windowed > 0) {
    absl::StrAppend(&text, ", sliding window of ",
                    Range(spec, [](const LayerSpec& l) { return l.attention.window; }), " in ",
                    windowed, " layers");
  }
  if (spec.layers.front().attention.differential.is_here) {
    absl::StrAppend(&text, ", differences of pairs of heads");
  }
  return text;
}

// Text like "2048 positions chosen by 64 heads of 128 in 61 layers"; empty without indexers.
std::string IndexerText(const ModelSpec& whole) {
  ModelSpec spec = whole;  // the layers with an indexer
  std::erase_if(spec.layers, [](const LayerSpec& l) { return !l.attention.mla.indexer.is_here(); });
  if (spec.layers.empty()) return "";
  const engine::IndexerSpec& indexer = spec.layers.front().attention.mla.indexer;
  return absl::StrCat(indexer.top_k, " positions chosen by ", indexer.n_heads, " heads of ",
                      indexer.head_dim, " in ", spec.layers.size(),
                      spec.layers.size() == 1 ? " layer" : " layers", "; shorter texts read all");
}

std::string LayersText(const ModelSpec& spec) {
  const std::string inter = Range(spec, [](const LayerSpec& l) { return l.mlp.inter; });
  return absl::StrCat(spec.n_counted_layers(), " of width ", spec.hidden,
                      inter == "0" ? "" : absl::StrCat(", MLP ", inter));
}

// Text like "8 of width 1024 in 30 layers, 2 for each token"; empty without experts.
std::string ExpertsText(const ModelSpec& spec) {
  const auto has_experts = [](const LayerSpec& layer) { return layer.moe.n_experts > 0; };
  const auto first = std::find_if(spec.layers.begin(), spec.layers.end(), has_experts);
  if (first == spec.layers.end()) return "";
  const auto layers = std::count_if(spec.layers.begin(), spec.layers.end(), has_experts);
  return absl::StrCat(first->moe.n_experts, " of width ", first->moe.inter, " in ", layers,
                      " layers, ", first->moe.rule.top_k, " for each token");
}

void Line(std::string* out, const char* label, const std::string& value) {
  absl::StrAppendFormat(out, "%-14s %s\n", label, value);
}

void AppendTensors(const engine::TensorReports& reports, std::string* out) {
  for (const engine::TensorReport& tensor : reports.tensors) {
    absl::StrAppendFormat(out, "%-56s [%s] %s", tensor.name, absl::StrJoin(tensor.shape, ", "),
                          tensor.type);
    if (!tensor.used) absl::StrAppend(out, ", not used");
    if (tensor.relative_rms) {
      absl::StrAppendFormat(out, ", as %s with a relative error of %.2f %%", tensor.kept,
                            *tensor.relative_rms * 100);
    }
    absl::StrAppend(out, "\n");
  }
  if (reports.relative_rms) {
    absl::StrAppendFormat(out, "quantising changes the weights by %.2f %% (root mean square)\n",
                          *reports.relative_rms * 100);
  }
}

void AddTensors(const engine::TensorReports& reports, nlohmann::ordered_json* json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const engine::TensorReport& tensor : reports.tensors) {
    nlohmann::ordered_json entry = {{"name", tensor.name}, {"shape", tensor.shape},
                                    {"type", tensor.type}, {"kept_as", tensor.kept},
                                    {"used", tensor.used}, {"bytes", tensor.bytes}};
    if (tensor.relative_rms) entry["relative_rms_error"] = *tensor.relative_rms;
    list.push_back(std::move(entry));
  }
  (*json)["tensors"] = std::move(list);
  if (reports.relative_rms) (*json)["relative_rms_error"] = *reports.relative_rms;
}

}  // namespace

std::string UnusedText(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(names.size(), kShown);
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more tensors");
  return text;
}

std::string InspectText(const std::string& path, const engine::ModelInfo& model,
                        const engine::TensorReports& tensors) {
  const ModelSpec& spec = model.model.spec;
  const engine::Capacity& capacity = model.capacity;
  std::string out;
  Line(&out, "model", path);
  Line(&out, "family", spec.family);
  Line(&out, "parameters", ParameterCount(engine::CountParameters(model.model)));
  Line(&out, "layers", LayersText(spec));
  if (model.model.pooled.has_value()) Line(&out, "output", PooledText(*model.model.pooled));
  if (const std::string experts = ExpertsText(spec); !experts.empty()) {
    Line(&out, "experts", experts);
  }
  Line(&out, "attention", AttentionText(spec));
  if (const std::string indexer = IndexerText(spec); !indexer.empty()) {
    Line(&out, "sparse", indexer);
  }
  if (const std::string mixes = TimeMixText(spec); !mixes.empty()) {
    Line(&out, "recurrence", mixes);
  }
  if (const std::string recurrences = RecurrenceText(spec); !recurrences.empty()) {
    Line(&out, "recurrence", recurrences);
  }
  if (const std::string memory = MemoryText(spec); !memory.empty()) Line(&out, "memory", memory);
  if (const std::string convolutions = ConvolutionText(spec); !convolutions.empty()) {
    Line(&out, "recurrent", convolutions);
  }
  const bool is_tied = spec.tied_embeddings && !model.model.pooled.has_value();
  Line(&out, "vocabulary", absl::StrCat(spec.vocab, is_tied ? ", tied head" : ""));
  Line(&out, "context", absl::StrCat(spec.max_context, " tokens"));
  Line(&out, "weights", absl::StrCat(base::ShowBytes(capacity.weight_bytes), ": ", model.formats));
  Line(&out, "KV cache",
       absl::StrCat(std::string(kernels::Info(model.kv_dtype).name), ", ",
                    base::ShowBytes(capacity.kv_bytes_per_token), " per token",
                    StateText(capacity)));
  Line(&out, "this machine",
       absl::StrCat(base::ShowBytes(capacity.available_bytes), " free; ",
                    DescribeCapacity(capacity)));
  if (!model.unused_tensors.empty()) Line(&out, "not used", UnusedText(model.unused_tensors));
  AppendTensors(tensors, &out);
  return out;
}

std::string InspectJson(const std::string& path, const engine::ModelInfo& model,
                        const engine::TensorReports& tensors) {
  const ModelSpec& spec = model.model.spec;
  const engine::Capacity& capacity = model.capacity;
  nlohmann::ordered_json json = {
      {"model", path},
      {"family", spec.family},
      {"parameters", engine::CountParameters(model.model)},
      {"layers", spec.n_counted_layers()},
      {"hidden", spec.hidden},
      {"vocab", spec.vocab},
      {"max_context", spec.max_context},
      {"formats", model.formats},
      {"weight_bytes", capacity.weight_bytes},
      {"workspace_bytes", capacity.workspace_bytes},
      {"kv_type", kernels::Info(model.kv_dtype).name},
      {"kv_bytes_per_token", capacity.kv_bytes_per_token},
      {"state_bytes_per_user", capacity.state_bytes()},
      {"kv_bytes", capacity.kv_bytes},
      {"available_bytes", capacity.available_bytes},
      {"pool_tokens", capacity.pool_tokens()},
      {"page_tokens", capacity.limits.page_tokens},
      {"usable_context", capacity.limits.max_context},
      {"eos_ids", model.model.eos_ids},
      {"unused_tensors", model.unused_tensors},
  };
  if (!tensors.tensors.empty()) AddTensors(tensors, &json);
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace heddle::server
