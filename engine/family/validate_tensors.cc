// Compares a description's demands (tensor_demands.h) with a checkpoint's tensors before any weight
// is read.
#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/family/model_description.h"
#include "engine/family/tensor_demands.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// A matrix with one row may be stored as a vector, a vector as a matrix (one row or column, or one
// row for each group of a norm), a single number without dimensions, and weights of a convolution
// as a matrix.
bool SameShape(std::span<const int64_t> found, std::span<const int64_t> wanted) {
  if (wanted.size() == 3 && wanted[1] == 1 && found.size() == 2) {
    return found[0] == wanted[0] && found[1] == wanted[2];
  }
  if (wanted.size() == 1 && wanted[0] == 1 && found.empty()) return true;
  if (wanted.size() == 2 && wanted[0] == 1 && found.size() == 1) wanted = wanted.subspan(1);
  while (wanted.size() == 1 && found.size() > 2 && found[0] == 1) found = found.subspan(1);
  if (found.size() == 2 && wanted.size() == 1) return found[0] * found[1] == wanted[0];
  return std::ranges::equal(found, wanted);
}

absl::Status Check(const Checkpoint& checkpoint, const TensorDemand& demand) {
  const CheckpointTensor* tensor = checkpoint.Find(demand.name);
  if (tensor == nullptr) {
    return absl::NotFoundError(base::StrCat(checkpoint.path().string(), ": tensor ",
                                            base::Quote(demand.name), " is missing, expected [",
                                            absl::StrJoin(demand.shape, ", "), "] = [",
                                            demand.meaning, "]"));
  }
  if (!SameShape(tensor->shape, demand.shape)) {
    return absl::InvalidArgumentError(base::StrCat(
        checkpoint.path().string(), ": tensor ", base::Quote(demand.name), " has shape [",
        absl::StrJoin(tensor->shape, ", "), "], expected [", absl::StrJoin(demand.shape, ", "),
        "] = [", demand.meaning, "] by the model's configuration"));
  }
  const bool readable = demand.bytes ? tensor->type_name == "U8" : tensor->dtype.has_value();
  return readable ? absl::OkStatus() : UnsupportedType(checkpoint, *tensor);
}

// Whether a tensor may be ignored: buffers that old versions of the reference implementations
// saved, copies that tying makes redundant, and the image encoders of multimodal models.
bool IsHarmless(std::string_view name) {
  for (const char* suffix : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                             "embeddings.position_ids", "embeddings.token_type_ids"}) {
    if (absl::EndsWith(base::AbslView(name), suffix)) return true;
  }
  if (name.starts_with("cls.") || name.find("pooler.dense.") != std::string_view::npos) return true;
  if (name.starts_with("model.")) name.remove_prefix(6);
  for (const char* part :
       {"vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "embed_vision.",
        "audio_tower.", "embed_audio.", "connector.", "image_newline"}) {
    if (name.starts_with(part)) return true;
  }
  return name == "rope_freqs.weight" || name.starts_with("rope_factors_") ||
         name.ends_with("lm_head.weight");
}

// Calls visit("model.layers.", 3) for "model.layers.3.mlp.up_proj.weight": once for each number
// between two dots, with the part of the name before it.
template <typename Visit>
void ForEachNumber(std::string_view name, const Visit& visit) {
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const char* begin = name.data() + dot + 1;
    const char* end = name.data() + name.size();
    int64_t number = 0;
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error == std::errc() && rest != end && *rest == '.' && *begin != '-') {
      visit(name.substr(0, dot + 1), number);
    }
  }
}

// The number of layers behind the decoder's that predict several tokens at a time (MTP). They are
// no part of the model itself (engine/heads).
int64_t PredictionLayers(const Checkpoint& checkpoint) {
  constexpr int64_t kMost = 1 << 12;
  int64_t count = 0;
  if (const GgufFile* gguf = checkpoint.gguf()) {
    const auto architecture = gguf->StringOr("general.architecture", "");
    if (!architecture.ok()) return 0;
    count = gguf->IntOr(base::StrCat(*architecture, ".nextn_predict_layers"), 0).value_or(0);
  } else {
    const nlohmann::json& config = checkpoint.config();
    const auto value = config.find("num_nextn_predict_layers");
    if (value != config.end() && value->is_number_integer()) count = value->get<int64_t>();
  }
  return std::clamp<int64_t>(count, 0, kMost);
}

// Whether a tensor belongs to such a layer, which a drafter may read, or has the name of one that
// nobody counts (MiMo).
bool IsOfPredictionLayer(std::string_view name, int64_t n_layers, int64_t n_prediction_layers) {
  bool is_one = name.starts_with("mtp.") || name.find(".mtp_layers.") != name.npos;
  ForEachNumber(name, [&](std::string_view part, int64_t number) {
    const bool is_layer = part.ends_with("layers.") || part == "blk.";
    is_one = is_one || (is_layer && number >= n_layers && number < n_layers + n_prediction_layers);
  });
  return is_one;
}

// Refuses files with a layer or an expert beyond those that the description counts.
absl::Status CheckCounts(const Checkpoint& checkpoint, const ModelDescription& description) {
  std::unordered_map<std::string, int64_t> last;  // by the part of the name before the number
  for (const std::string& name : UsedTensors(description)) {
    ForEachNumber(name, [&](std::string_view part, int64_t number) {
      int64_t& highest = last.try_emplace(std::string(part), number).first->second;
      highest = std::max(highest, number);
    });
  }
  absl::Status status;
  for (const std::string_view name : UnusedTensors(checkpoint, description)) {
    ForEachNumber(name, [&](std::string_view part, int64_t number) {
      const auto counted = last.find(std::string(part));
      if (!status.ok() || counted == last.end()) return;
      const int64_t highest = counted->second;
      const bool are_layers = highest + 1 == description.spec.n_layers();
      if (number <= highest + (are_layers ? PredictionLayers(checkpoint) : 0)) return;
      status = absl::InvalidArgumentError(
          base::StrCat(checkpoint.path().string(), ": tensor ", base::Quote(name), " lies behind ",
                       base::Quote(base::StrCat(part, highest)),
                       ", the last that the model's configuration counts"));
    });
  }
  return status;
}

}  // namespace

absl::Status CheckUsedTensors(const Checkpoint& checkpoint, const ModelDescription& description) {
  for (const TensorDemand& demand : DemandsOf(description)) {
    HEDDLE_RETURN_IF_ERROR(Check(checkpoint, demand));
  }
  return absl::OkStatus();
}

absl::Status ValidateTensors(const Checkpoint& checkpoint, const ModelDescription& description) {
  if (checkpoint.tensors().empty()) {
    return absl::InvalidArgumentError(base::StrCat(
        checkpoint.path().string(), " holds no tensors: a file with only a vocabulary can be used ",
        "to tokenize, but not to generate"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckUsedTensors(checkpoint, description));
  return CheckCounts(checkpoint, description);
}

int64_t CountParameters(const ModelDescription& description) {
  int64_t count = 0;
  for (const TensorDemand& demand : DemandsOf(description)) {
    int64_t values = 1;
    for (const int64_t size : demand.shape) values *= size;
    if (!demand.bytes) count += values;
    // A byte of an MXFP4 block holds two codes, and scales are no parameters.
    if (demand.bytes && demand.shape.size() == 4) count += 2 * values;
  }
  return count;
}

std::unordered_set<std::string> UsedTensors(const ModelDescription& description) {
  std::unordered_set<std::string> used;
  for (const TensorDemand& demand : DemandsOf(description)) used.insert(demand.name);
  return used;
}

std::vector<std::string_view> UnusedTensors(const Checkpoint& checkpoint,
                                            const ModelDescription& description) {
  const std::unordered_set<std::string> used = UsedTensors(description);
  const int64_t n_prediction_layers = PredictionLayers(checkpoint);
  std::vector<std::string_view> unused;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (used.contains(std::string(tensor.name)) || IsHarmless(tensor.name)) continue;
    if (IsOfPredictionLayer(tensor.name, description.spec.n_layers(), n_prediction_layers))
      continue;
    unused.push_back(tensor.name);
  }
  return unused;
}

}  // namespace heddle::engine
