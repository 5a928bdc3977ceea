#include "engine/family/pooled.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/json_file.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxModules = 16;
constexpr size_t kMaxLabels = 1 << 16;
constexpr size_t kMaxPrompts = 256;

constexpr std::string_view kClassifies = "ForSequenceClassification";
// Ends of names of classes with the same layers, the longer of two that fit first.
constexpr std::string_view kHeads[] = {
    kClassifies, "ForConditionalGeneration", "ForCausalLM", "ForMaskedLM", "LMHeadModel", "Model"};

std::string_view StemOf(std::string_view name) {
  for (const std::string_view head : kHeads) {
    if (name.ends_with(head)) return name.substr(0, name.size() - head.size());
  }
  return name;
}

// The JSON of a file that may be missing.
absl::StatusOr<std::optional<json>> ReadIfThere(const fs::path& path) {
  absl::StatusOr<json> value = ReadJsonFile(path);
  if (absl::IsNotFound(value.status())) return std::nullopt;
  if (!value.ok()) return value.status();
  std::optional<json> found(std::in_place, *std::move(value));
  return found;
}

// The name of a Python class without its module.
std::string_view ClassOf(std::string_view name) { return name.substr(name.rfind('.') + 1); }

absl::StatusOr<HeadActivation> ParseActivation(const JsonSource& config, std::string_view key) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string name,
                          config.StringOr(key, "torch.nn.modules.activation.Tanh"));
  const std::string_view activation = ClassOf(name);
  if (activation == "Identity") return HeadActivation::kNone;
  if (activation == "Tanh") return HeadActivation::kTanh;
  if (activation == "ReLU") return HeadActivation::kRelu;
  if (activation == "GELU") return HeadActivation::kGelu;
  if (activation == "SiLU") return HeadActivation::kSilu;
  if (activation == "Sigmoid") return HeadActivation::kSigmoid;
  return config.Unsupported(key, base::Quote(name),
                            "supported are Identity, Tanh, ReLU, GELU, SiLU and Sigmoid");
}

// Reads the modules behind the decoder or encoder, one after the other.
class ModuleReader {
 public:
  ModuleReader(const fs::path& folder, int32_t hidden, PooledOutput* output)
      : folder_(folder), width_(hidden), output_(*output) {}

  absl::Status Read(const json& modules) {
    const std::string file = (folder_ / "modules.json").string();
    if (!modules.is_array() || modules.empty() || modules.size() > kMaxModules) {
      return absl::InvalidArgumentError(
          base::StrCat(file, " must hold a list of 1 to ", kMaxModules, " modules"));
    }
    output_.normalize = false;
    for (const json& entry : modules) {
      if (!entry.is_object()) {
        return absl::InvalidArgumentError(base::StrCat(file, " has a module that is no object"));
      }
      const JsonSource source(file, entry);
      HEDDLE_ASSIGN_OR_RETURN(const std::string type, source.String("type"));
      HEDDLE_ASSIGN_OR_RETURN(const std::string path, source.StringOr("path", ""));
      if (path.find('/') != std::string::npos || path == ".." ||
          path.find('\0') != std::string::npos) {
        return source.Error("path", base::Quote(path), "the name of a folder beside it");
      }
      HEDDLE_RETURN_IF_ERROR(Add(source, ClassOf(type), path));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Add(const JsonSource& source, std::string_view type, const std::string& path) {
    if (output_.normalize) {
      return source.Unsupported("type", base::Quote(type), "Normalize must be the last module");
    }
    if (type == "Transformer") return absl::OkStatus();
    if (type == "Normalize") {
      output_.normalize = true;
      return absl::OkStatus();
    }
    if (type != "Pooling" && type != "Dense" && type != "LayerNorm") {
      return source.Unsupported("type", base::Quote(type),
                                "supported are Transformer, Pooling, Dense, LayerNorm, Normalize");
    }
    const fs::path file = folder_ / path / "config.json";
    HEDDLE_ASSIGN_OR_RETURN(const json value, ReadJsonFile(file));
    if (!value.is_object()) {
      return absl::InvalidArgumentError(base::StrCat(file.string(), " is not a JSON object"));
    }
    const JsonSource config(file.string(), value);
    if (type == "Pooling") return AddPooling(config);
    return type == "Dense" ? AddDense(config, path) : AddNorm(config, path);
  }

  absl::Status AddPooling(const JsonSource& config) {
    HEDDLE_ASSIGN_OR_RETURN(const bool include_prompt, config.BoolOr("include_prompt", true));
    if (!include_prompt) {
      return config.Unsupported("include_prompt", "false", "a prompt's states are pooled, too");
    }
    constexpr std::pair<std::string_view, Pooling> kModes[] = {
        {"pooling_mode_cls_token", Pooling::kFirst},
        {"pooling_mode_mean_tokens", Pooling::kMean},
        {"pooling_mode_lasttoken", Pooling::kLast}};
    for (const auto& [key, pooling] : kModes) {
      HEDDLE_ASSIGN_OR_RETURN(const bool is_on, config.BoolOr(key, false));
      if (is_on) HEDDLE_RETURN_IF_ERROR(SetPooling(config, key, pooling));
    }
    for (const std::string_view key :
         {"pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
          "pooling_mode_weightedmean_tokens"}) {
      HEDDLE_ASSIGN_OR_RETURN(const bool is_on, config.BoolOr(key, false));
      if (is_on) {
        return config.Unsupported(key, "true",
                                  "supported are the states of the first and of the last token, "
                                  "and the mean of all");
      }
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::string mode, config.StringOr("pooling_mode", ""));
    if (mode.empty()) return absl::OkStatus();
    if (mode == "cls") return SetPooling(config, "pooling_mode", Pooling::kFirst);
    if (mode == "mean") return SetPooling(config, "pooling_mode", Pooling::kMean);
    if (mode == "lasttoken") return SetPooling(config, "pooling_mode", Pooling::kLast);
    return config.Unsupported("pooling_mode", base::Quote(mode),
                              "supported are cls, mean and lasttoken");
  }

  absl::Status SetPooling(const JsonSource& config, std::string_view key, Pooling pooling) {
    if (output_.pooling && *output_.pooling != pooling) {
      return config.Unsupported(key, "set beside another one", "one way of pooling is supported");
    }
    output_.pooling = pooling;
    return absl::OkStatus();
  }

  absl::Status AddDense(const JsonSource& config, const std::string& path) {
    HeadLayer layer{.folder = path};
    HEDDLE_ASSIGN_OR_RETURN(layer.in, config.Dim("in_features", kMaxHidden));
    HEDDLE_ASSIGN_OR_RETURN(layer.out, config.Dim("out_features", kMaxHidden));
    if (layer.in != width_) {
      return config.Error("in_features", base::StrCat(layer.in),
                          base::StrCat(width_, ", the width of what it reads"));
    }
    HEDDLE_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr("bias", true));
    HEDDLE_ASSIGN_OR_RETURN(layer.activation, ParseActivation(config, "activation_function"));
    layer.weight = "linear.weight";
    if (has_bias) layer.bias = "linear.bias";
    width_ = layer.out;
    output_.layers.push_back(std::move(layer));
    return absl::OkStatus();
  }

  absl::Status AddNorm(const JsonSource& config, const std::string& path) {
    HEDDLE_ASSIGN_OR_RETURN(const int32_t width, config.Dim("dimension", kMaxHidden));
    if (width != width_) {
      return config.Error("dimension", base::StrCat(width),
                          base::StrCat(width_, ", the width of what it reads"));
    }
    output_.layers.push_back({.in = width,
                              .out = width,
                              .weight = "norm.weight",
                              .bias = "norm.bias",
                              .folder = path,
                              .is_norm = true});
    return absl::OkStatus();
  }

  const fs::path& folder_;
  int32_t width_;  // of what the next module reads
  PooledOutput& output_;
};

absl::Status ReadPrompts(const fs::path& folder, PooledOutput* output) {
  const fs::path file = folder / "config_sentence_transformers.json";
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<json> value, ReadIfThere(file));
  if (!value.has_value()) return absl::OkStatus();
  if (!value->is_object()) {
    return absl::InvalidArgumentError(base::StrCat(file.string(), " is not a JSON object"));
  }
  const JsonSource config(file.string(), *value);
  HEDDLE_ASSIGN_OR_RETURN(output->default_prompt, config.StringOr("default_prompt_name", ""));
  const json* prompts = config.Find("prompts");
  if (prompts == nullptr) return absl::OkStatus();
  if (!prompts->is_object() || prompts->size() > kMaxPrompts) {
    return config.Error("prompts", JsonSource::Show(*prompts), "an object of names and texts");
  }
  for (const auto& [name, text] : prompts->items()) {
    if (!text.is_string()) {
      return config.Error(base::StrCat("prompts.", name), JsonSource::Show(text), "a text");
    }
    output->prompts.emplace_back(name, text.get_ref<const std::string&>());
  }
  return absl::OkStatus();
}

absl::Status ReadMaxTokens(const fs::path& folder, PooledOutput* output) {
  const fs::path file = folder / "sentence_bert_config.json";
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<json> value, ReadIfThere(file));
  if (!value.has_value() || !value->is_object()) return absl::OkStatus();
  const JsonSource config(file.string(), *value);
  HEDDLE_ASSIGN_OR_RETURN(output->max_tokens, config.DimOr("max_seq_length", kMaxContext, 0));
  return absl::OkStatus();
}

// The names of classes: those of id2label, or as transformers names them.
absl::StatusOr<std::vector<std::string>> ReadLabels(const JsonSource& config) {
  constexpr int32_t kAbsentLabels = 2;  // PretrainedConfig
  const json* labels = config.Find("id2label");
  HEDDLE_ASSIGN_OR_RETURN(int32_t count, config.DimOr("num_labels", kMaxLabels, kAbsentLabels));
  if (labels != nullptr && labels->is_object() && !labels->empty()) {
    if (labels->size() > kMaxLabels) {
      return config.Error("id2label", base::StrCat(labels->size(), " entries"),
                          base::StrCat("at most ", kMaxLabels));
    }
    count = static_cast<int32_t>(labels->size());
  }
  std::vector<std::string> names;
  for (int32_t i = 0; i < count; ++i) {
    const std::string id = base::StrCat(i);
    const bool is_named = labels != nullptr && labels->is_object() && labels->contains(id) &&
                          labels->at(id).is_string();
    names.push_back(is_named ? labels->at(id).get<std::string>() : base::StrCat("LABEL_", i));
  }
  return names;
}

// Keys that sentence-transformers' CrossEncoder keeps in config.json go before transformers' own.
absl::StatusOr<ScoreRule> ReadRule(const JsonSource& config, size_t n_labels) {
  HEDDLE_ASSIGN_OR_RETURN(std::string name,
                          config.StringOr("sbert_ce_default_activation_function", ""));
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<JsonSource> own,
                          config.Object("sentence_transformers"));
  if (own.has_value()) {
    HEDDLE_ASSIGN_OR_RETURN(name, own->StringOr("activation_fn", name));
    static_cast<void>(own->Has("version"));
  }
  const std::string_view activation = ClassOf(name);
  if (activation == "Identity") return ScoreRule::kRaw;
  if (activation == "Sigmoid") return ScoreRule::kSigmoid;
  if (activation == "Softmax") return ScoreRule::kSoftmax;
  if (!activation.empty()) {
    return config.Unsupported("sentence_transformers.activation_fn", base::Quote(name),
                              "supported are Identity, Sigmoid and Softmax");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string problem, config.StringOr("problem_type", ""));
  if (problem == "regression") return ScoreRule::kRaw;
  if (problem == "multi_label_classification" || n_labels == 1) return ScoreRule::kSigmoid;
  return ScoreRule::kSoftmax;
}

absl::Status DescribeClassifier(const Family& family, std::string_view prefix,
                                const ConfigParts& config, ModelDescription* description) {
  PooledOutput output;
  HEDDLE_ASSIGN_OR_RETURN(output.labels, ReadLabels(config.whole));
  HEDDLE_ASSIGN_OR_RETURN(output.rule, ReadRule(config.whole, output.labels.size()));
  const int32_t hidden = description->spec.hidden;
  const auto n_labels = static_cast<int32_t>(output.labels.size());
  if (family.classifier != nullptr) {
    HEDDLE_RETURN_IF_ERROR(family.classifier(config.decoder, prefix, hidden, n_labels, &output));
  } else {
    output.pooling = Pooling::kLast;
    output.layers.push_back({.in = hidden, .out = n_labels, .weight = "score.weight"});
  }
  description->pooled = std::move(output);
  return absl::OkStatus();
}

// There is no head of a vocabulary; what would draw from logits has the embedding in its place.
void DropHead(ModelDescription* description) {
  description->spec.tied_embeddings = true;
  description->names.lm_head.clear();
}

}  // namespace

ModelTask TaskOf(const JsonSource& config) {
  const json* architectures = config.Find("architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->empty() ||
      !architectures->front().is_string()) {
    return ModelTask::kGenerate;
  }
  const std::string_view name = architectures->front().get_ref<const std::string&>();
  if (name.ends_with(kClassifies)) return ModelTask::kClassify;
  const bool is_bare = name.ends_with("Model") && !name.ends_with("LMHeadModel");
  return is_bare ? ModelTask::kEmbed : ModelTask::kGenerate;
}

bool IsVariantOf(std::string_view name, std::string_view architecture) {
  const bool is_bare = name.ends_with("Model") && !name.ends_with("LMHeadModel");
  return (is_bare || name.ends_with(kClassifies)) && StemOf(name) == StemOf(architecture);
}

absl::Status DescribePooled(const Checkpoint& checkpoint, const Family& family,
                            std::string_view prefix, const ConfigParts& config,
                            ModelDescription* description) {
  const ModelTask task = TaskOf(config.whole);
  const fs::path& folder = checkpoint.path();
  if (task == ModelTask::kClassify) {
    HEDDLE_RETURN_IF_ERROR(DescribeClassifier(family, prefix, config, description));
    DropHead(description);
    return ReadMaxTokens(folder, &*description->pooled);
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<json> modules, ReadIfThere(folder / "modules.json"));
  const bool writes_text = !family.is_encoder && !description->spec.reads_whole_texts();
  if (task == ModelTask::kGenerate && !modules.has_value() && writes_text) {
    return absl::OkStatus();
  }
  PooledOutput output;
  if (modules.has_value()) {
    HEDDLE_RETURN_IF_ERROR(ModuleReader(folder, description->spec.hidden, &output).Read(*modules));
  }
  HEDDLE_RETURN_IF_ERROR(ReadPrompts(folder, &output));
  HEDDLE_RETURN_IF_ERROR(ReadMaxTokens(folder, &output));
  if (!output.pooling && family.is_encoder) output.pooling = Pooling::kMean;
  description->pooled = std::move(output);
  DropHead(description);
  return absl::OkStatus();
}

}  // namespace heddle::engine
