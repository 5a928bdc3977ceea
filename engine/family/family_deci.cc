// Reads config.json of DeciLM and Nemotron-NAS (models of the Puzzle search, Bercovich et al.
// 2024): every layer has its own number of KV heads and MLP width, may lack a block, or has one
// matrix in place of attention.
#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kBlocks = "block_configs";

// How a block differs from the usual one: left out, or one matrix.
struct BlockKind {
  bool none = false;
  bool linear = false;
};

absl::StatusOr<BlockKind> ReadKind(const JsonSource& block) {
  BlockKind kind;
  HEDDLE_ASSIGN_OR_RETURN(kind.none, block.BoolOr("no_op", false));
  HEDDLE_ASSIGN_OR_RETURN(kind.linear, block.BoolOr("replace_with_linear", false));
  return kind;
}

absl::Status SetKvHeads(const ConfigSource& source, std::string_view key, int32_t n_kv_heads,
                        AttentionSpec* attention) {
  if (attention->n_heads % n_kv_heads != 0) {
    return source.Error(
        key, base::StrCat(n_kv_heads),
        base::StrCat("a divisor of \"num_attention_heads\" (", attention->n_heads, ")"));
  }
  attention->n_kv_heads = n_kv_heads;
  return absl::OkStatus();
}

absl::Status ReadAttention(const JsonSource& block, AttentionSpec* attention) {
  constexpr std::string_view kGroup = "n_heads_in_group";
  HEDDLE_ASSIGN_OR_RETURN(const BlockKind kind, ReadKind(block));
  if (kind.none || kind.linear) {
    attention->n_heads = 0;
    attention->linear = kind.linear;
    attention->rope = RopeSpec{};
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(int32_t group, block.Dim(kGroup, kMaxHeads));
  if (attention->n_heads % group != 0) {
    return block.Error(
        kGroup, base::StrCat(group),
        base::StrCat("a divisor of \"num_attention_heads\" (", attention->n_heads, ")"));
  }
  attention->n_kv_heads = attention->n_heads / group;
  return absl::OkStatus();
}

absl::Status ReadMlp(const JsonSource& block, int32_t hidden, MlpSpec* mlp) {
  constexpr std::string_view kMultiplier = "ffn_mult";
  constexpr int64_t kMultiple = 256;  // widths are rounded up to it
  HEDDLE_ASSIGN_OR_RETURN(const BlockKind kind, ReadKind(block));
  if (kind.linear) return block.Unsupported("replace_with_linear", "true", "expected false");
  mlp->inter = 0;
  if (kind.none) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(double multiplier, block.Positive(kMultiplier, kMaxFactor));
  const double width = 2.0 * multiplier * hidden / 3.0;
  if (!(width >= 1.0 && width <= double{kMaxInter})) {
    return block.Error(kMultiplier, base::StrCat(multiplier),
                       base::StrCat("a width from 1 to ", kMaxInter));
  }
  const auto inter = static_cast<int64_t>(width);
  mlp->inter = static_cast<int32_t>((inter + kMultiple - 1) / kMultiple * kMultiple);
  return absl::OkStatus();
}

absl::Status ReadBlock(const JsonSource& config, const json& value, size_t index, int32_t hidden,
                       LayerSpec* layer) {
  const std::string path = base::StrCat(kBlocks, "[", index, "].");
  for (std::string_view part : {"attention", "ffn"}) {
    if (!value.is_object() || !value.contains(part) || !value[part].is_object()) {
      return config.Error(kBlocks, JsonSource::Show(value),
                          "objects with \"attention\" and \"ffn\"");
    }
  }
  const JsonSource attention(config.file(), value["attention"], path + "attention.");
  HEDDLE_RETURN_IF_ERROR(ReadAttention(attention, &layer->attention));
  const JsonSource ffn(config.file(), value["ffn"], path + "ffn.");
  return ReadMlp(ffn, hidden, &layer->mlp);
}

// Finds a list with one entry per layer.
absl::StatusOr<const json*> FindList(const JsonSource& config, std::string_view key,
                                     const ModelSpec& spec) {
  const json* list = config.Find(key);
  if (list == nullptr || (list->is_array() && list->size() == spec.layers.size())) return list;
  return config.Error(key, JsonSource::Show(*list),
                      base::StrCat("a list of ", spec.n_layers(), ", one per layer"));
}

}  // namespace

absl::Status RefineDeci(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kKvHeads = "num_key_value_heads_per_layer";  // DeciLM-7B
  HEDDLE_ASSIGN_OR_RETURN(const json* kv_heads, FindList(config, kKvHeads, *spec));
  HEDDLE_ASSIGN_OR_RETURN(const json* blocks, FindList(config, kBlocks, *spec));
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    if (kv_heads != nullptr) {
      const json& item = (*kv_heads)[i];
      const int64_t count = item.is_number_integer() ? item.get<int64_t>() : 0;
      if (count < 1 || count > layer.attention.n_heads) {
        return config.Error(kKvHeads, JsonSource::Show(item),
                            base::StrCat("integers from 1 to ", layer.attention.n_heads));
      }
      HEDDLE_RETURN_IF_ERROR(
          SetKvHeads(config, kKvHeads, static_cast<int32_t>(count), &layer.attention));
    }
    if (blocks != nullptr) {
      HEDDLE_RETURN_IF_ERROR(ReadBlock(config, (*blocks)[i], i, spec->hidden, &layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
