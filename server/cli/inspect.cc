#include "server/cli/inspect.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using engine::AttentionSpec;
using engine::FormatBytes;
using engine::LayerSpec;
using engine::ModelSpec;

// "8" if all layers agree, else "4..8".
template <typename Field>
std::string Range(const ModelSpec& spec, Field field) {
  std::set<int32_t> values;
  for (const LayerSpec& layer : spec.layers) values.insert(field(layer));
  if (values.empty()) return "-";
  if (values.size() == 1) return absl::StrCat(*values.begin());
  return absl::StrCat(*values.begin(), "..", *values.rbegin());
}

int64_t Parameters(const ModelSpec& spec) {
  int64_t count = int64_t{spec.vocab} * spec.hidden * (spec.tied_embeddings ? 1 : 2);
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const int64_t q = int64_t{attention.n_heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
    const int64_t up = int64_t{layer.mlp.gated ? 2 : 1} * layer.mlp.inter;
    count += spec.hidden * (2 * q + 2 * kv + up + layer.mlp.inter + 2);
  }
  return count + spec.hidden;
}

std::string ParameterCount(int64_t count) {
  if (count >= 1'000'000'000) return absl::StrFormat("%.2f billion", count / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.2f million", count / 1e6);
  return absl::StrCat(count);
}

std::string AttentionText(const ModelSpec& spec) {
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
  return text;
}

void Line(std::string* out, const char* label, const std::string& value) {
  absl::StrAppendFormat(out, "%-14s %s\n", label, value);
}

void AppendTensors(const engine::TensorReports& reports, std::string* out) {
  for (const engine::TensorReport& tensor : reports.tensors) {
    absl::StrAppendFormat(out, "%-56s [%s] %s", tensor.name, absl::StrJoin(tensor.shape, ", "),
                          tensor.type);
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
    nlohmann::ordered_json entry = {{"name", tensor.name},
                                    {"shape", tensor.shape},
                                    {"type", tensor.type},
                                    {"kept_as", tensor.kept},
                                    {"bytes", tensor.bytes}};
    if (tensor.relative_rms) entry["relative_rms_error"] = *tensor.relative_rms;
    list.push_back(std::move(entry));
  }
  (*json)["tensors"] = std::move(list);
  if (reports.relative_rms) (*json)["relative_rms_error"] = *reports.relative_rms;
}

}  // namespace

std::string InspectText(const std::string& path, const engine::LoadedModel& model,
                        const engine::TensorReports& tensors) {
  const ModelSpec& spec = model.model.spec;
  const engine::Capacity& capacity = model.capacity;
  std::string out;
  Line(&out, "model", path);
  Line(&out, "family", spec.family);
  Line(&out, "parameters", ParameterCount(Parameters(spec)));
  Line(&out, "layers",
       absl::StrCat(spec.n_layers(), " of width ", spec.hidden, ", MLP ",
                    Range(spec, [](const LayerSpec& l) { return l.mlp.inter; })));
  Line(&out, "attention", AttentionText(spec));
  Line(&out, "vocabulary", absl::StrCat(spec.vocab, spec.tied_embeddings ? ", tied head" : ""));
  Line(&out, "context", absl::StrCat(spec.max_context, " tokens"));
  Line(&out, "weights", absl::StrCat(FormatBytes(capacity.weight_bytes), ": ", model.formats));
  Line(&out, "KV cache",
       absl::StrCat(std::string(kernels::Info(model.kv_dtype).name), ", ",
                    FormatBytes(capacity.kv_bytes_per_token), " per token"));
  Line(&out, "this machine",
       absl::StrCat(FormatBytes(capacity.available_bytes), " free; ", DescribeCapacity(capacity)));
  AppendTensors(tensors, &out);
  return out;
}

std::string InspectJson(const std::string& path, const engine::LoadedModel& model,
                        const engine::TensorReports& tensors) {
  const ModelSpec& spec = model.model.spec;
  const engine::Capacity& capacity = model.capacity;
  nlohmann::ordered_json json = {
      {"model", path},
      {"family", spec.family},
      {"parameters", Parameters(spec)},
      {"layers", spec.n_layers()},
      {"hidden", spec.hidden},
      {"vocab", spec.vocab},
      {"max_context", spec.max_context},
      {"formats", model.formats},
      {"weight_bytes", capacity.weight_bytes},
      {"workspace_bytes", capacity.workspace_bytes},
      {"kv_type", kernels::Info(model.kv_dtype).name},
      {"kv_bytes_per_token", capacity.kv_bytes_per_token},
      {"kv_bytes", capacity.kv_bytes},
      {"available_bytes", capacity.available_bytes},
      {"pool_tokens", capacity.pool_tokens()},
      {"page_tokens", capacity.limits.page_tokens},
      {"usable_context", capacity.limits.max_context},
      {"eos_ids", model.model.eos_ids},
  };
  if (!tensors.tensors.empty()) AddTensors(tensors, &json);
  return json.dump(2) + "\n";
}

}  // namespace heddle::server
