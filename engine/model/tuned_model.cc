#include "engine/model/tuned_model.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/message.h"

namespace heddle::engine {
namespace {

std::string AttentionText(const AttentionSpec& attention) {
  if (attention.recurrence.shape.taps > 0) return "a recurrence";
  if (attention.conv.taps > 0) return "a convolution";
  if (attention.wkv.is_here()) return "a time mix";
  if (attention.memory.is_here()) return "a memory unit";
  if (attention.linear) return "a matrix";
  if (attention.n_heads == 0) return "no attention";
  std::string text =
      absl::StrCat(attention.n_heads, "/", attention.n_kv_heads, " heads of ", attention.head_dim);
  if (attention.window > 0) {
    absl::StrAppend(&text, attention.in_chunks ? " in chunks of " : " within ", attention.window);
  }
  const MlaSpec& mla = attention.mla;
  if (mla.kv_rank > 0) absl::StrAppend(&text, " over latents of ", mla.kv_rank + mla.rope_dim);
  if (mla.indexer.top_k > 0) {
    absl::StrAppend(&text, " at ", mla.indexer.top_k, " positions");
    if (mla.indexer.is_here()) absl::StrAppend(&text, ", chosen by ", mla.indexer.n_heads);
  }
  if (attention.both_ways) absl::StrAppend(&text, " both ways");
  return text;
}

std::string LayerText(const LayerSpec& layer) {
  std::string text = AttentionText(layer.attention);
  if (layer.mlp.inter > 0) {
    absl::StrAppend(&text, " and ", layer.mlp.inter, layer.mlp.gated ? "" : " ungated",
                    " features");
  }
  const MoeSpec& moe = layer.moe;
  if (moe.n_experts > 0) {
    absl::StrAppend(&text, " and ", moe.rule.top_k, " of ", moe.n_experts, " experts of ",
                    moe.inter);
  }
  if (layer.wiring == Wiring::kParallel) absl::StrAppend(&text, " side by side");
  if (layer.wiring == Wiring::kLadder) absl::StrAppend(&text, " in a ladder");
  return text;
}

// Quotes text that may come from a file; longer than base::Quote does, since models that differ in
// one number begin alike.
std::string Shown(std::string_view text) {
  constexpr size_t kMostShown = 400;
  const std::string part = absl::Utf8SafeCHexEscape(base::AbslView(text.substr(0, kMostShown)));
  return base::StrCat("\"", part, text.size() > kMostShown ? "...\"" : "\"");
}

}  // namespace

std::string TunedModelText(const ModelSpec& spec, std::string_view weights,
                           kernels::DType kv_dtype) {
  std::vector<std::pair<std::string, int32_t>> kinds;
  for (const LayerSpec& layer : spec.layers) {
    std::string text = LayerText(layer);
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const auto& kind) { return kind.first == text; });
    if (known != kinds.end()) {
      ++known->second;
    } else {
      kinds.reserve(spec.layers.size());
      kinds.emplace_back(std::move(text), 1);
    }
  }
  const std::string layers =
      absl::StrJoin(kinds, ", ", [](std::string* out, const std::pair<std::string, int32_t>& kind) {
        absl::StrAppend(out, kind.second, " layers of ", kind.first);
      });
  return base::StrCat(spec.hidden, " wide, ", spec.vocab, " tokens, ", layers, "; weights ",
                      weights, ", keys ", kernels::Info(kv_dtype).name);
}

absl::Status CheckTunedModel(std::string_view measured, std::string_view found) {
  if (measured.empty() || measured == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      base::StrCat("--tune-profile was measured with another model, format of weights or type of "
                   "keys: ",
                   Shown(measured), "; this one is ", Shown(found),
                   "; measure it with heddle tune, or leave the profile out"));
}

}  // namespace heddle::engine
