#include "engine/adapter/peft_config.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/config_source.h"
#include "engine/files/json_file.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Fields that say how an adapter was trained, or that the tensors' names and shapes say better.
constexpr std::string_view kHarmless[] = {"auto_mapping",
                                          "base_model_name_or_path",
                                          "exclude_modules",
                                          "fan_in_fan_out",
                                          "inference_mode",
                                          "layers_pattern",
                                          "layers_to_transform",
                                          "lora_dropout",
                                          "megatron_config",
                                          "megatron_core",
                                          "peft_type",
                                          "peft_version",
                                          "qalora_group_size",
                                          "r",
                                          "lora_alpha",
                                          "use_rslora",
                                          "rank_pattern",
                                          "alpha_pattern",
                                          "revision",
                                          "runtime_config",
                                          "target_modules",
                                          "task_type",
                                          "init_lora_weights",
                                          "bias",
                                          "loftq_config",
                                          "eva_config",
                                          "lora_ga_config",
                                          "ensure_weight_tying",
                                          "lora_bias",
                                          "modules_to_save",
                                          "target_parameters",
                                          "use_dora",
                                          "parent_library",
                                          "_custom_modules"};

// Initialisations that leave the base's weights as they are.
constexpr std::string_view kPlainInits[] = {"gaussian", "orthogonal", "eva"};

constexpr size_t kMaxPatterns = 1024;
constexpr size_t kMaxPatternLength = 512;

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  for (const std::string_view known : names) {
    if (known == name) return true;
  }
  return false;
}

// Whether the value asks for nothing: null, false, 0, or empty.
bool IsOff(const nlohmann::json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_null() || value.empty() || value == "";
}

absl::Status Refused(std::string_view file, std::string_view field, const nlohmann::json& value) {
  return absl::InvalidArgumentError(base::StrCat(
      file, ": \"", field, "\" is ", JsonSource::Show(value),
      ", which is not supported; merge the adapter into its base with PEFT (merge_and_unload) and "
      "serve the result, or train without it"));
}

// Initialisations such as PiSSA and OLoRA change the base's weights: beside the original base their
// factors mean nothing, unless they were converted when they were saved, and nothing tells.
absl::Status CheckInit(std::string_view file, const nlohmann::json& config) {
  const auto init = config.find("init_lora_weights");
  if (init == config.end() || init->is_null() || init->is_boolean()) return absl::OkStatus();
  if (init->is_string() && Contains(kPlainInits, init->get_ref<const std::string&>())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      base::StrCat(file, ": \"init_lora_weights\" is ", JsonSource::Show(*init),
                   ", which trains beside a changed base; save the adapter converted to plain LoRA "
                   "(path_initial_model_for_weight_conversion), which sets the field to true"));
}

absl::Status CheckFields(std::string_view file, const nlohmann::json& config) {
  if (const auto type = config.find("peft_type"); type != config.end() && *type != "LORA") {
    return absl::InvalidArgumentError(
        base::StrCat(file, ": \"peft_type\" is ", JsonSource::Show(*type), "; valid is LORA"));
  }
  if (const auto bias = config.find("bias"); bias != config.end() && !bias->is_null()) {
    if (*bias != "none" && *bias != "all" && *bias != "lora_only") {
      return Refused(file, "bias", *bias);
    }
  }
  for (const auto& [field, value] : config.items()) {
    if (!Contains(kHarmless, field) && !IsOff(value)) return Refused(file, field, value);
  }
  return CheckInit(file, config);
}

// The keys of the object under `key` in the order of the text, which is valid JSON.
std::vector<std::string> KeysInOrder(std::string_view text, std::string_view key) {
  std::vector<std::string> keys;
  bool inside = false;
  const auto visit = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event != nlohmann::json::parse_event_t::key) return true;
    const auto& name = parsed.get_ref<const std::string&>();
    if (depth == 1) inside = name == key;
    if (depth == 2 && inside && std::find(keys.begin(), keys.end(), name) == keys.end()) {
      keys.push_back(name);
    }
    return true;
  };
  if (nlohmann::json::parse(text, visit, /*allow_exceptions=*/false).is_discarded()) return {};
  return keys;
}

}  // namespace

absl::StatusOr<PeftConfig> PeftConfig::Parse(std::string_view text, std::string_view file) {
  HEDDLE_ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(text, file));
  if (!config.is_object()) {
    return absl::InvalidArgumentError(base::StrCat(file, ": is no JSON object"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckFields(file, config));
  PeftConfig parsed;
  parsed.file_ = std::string(file);
  const JsonSource source(parsed.file_, config);
  if (source.Find("base_model_name_or_path") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(parsed.base_, source.String("base_model_name_or_path"));
  }
  if (source.Find("r") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(parsed.rank_, source.Float("r"));
  }
  if (source.Find("lora_alpha") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(parsed.alpha_, source.Float("lora_alpha"));
  }
  if (source.Find("use_rslora") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(parsed.rslora_, source.Bool("use_rslora"));
  }
  if (source.Find("use_dora") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(parsed.use_dora_, source.Bool("use_dora"));
  }
  if (source.Find("ensure_weight_tying") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(parsed.ties_weights_, source.Bool("ensure_weight_tying"));
  }
  HEDDLE_RETURN_IF_ERROR(
      parsed.ParsePatterns(config, text, "alpha_pattern", &parsed.alpha_patterns_));
  HEDDLE_RETURN_IF_ERROR(
      parsed.ParsePatterns(config, text, "rank_pattern", &parsed.rank_patterns_));
  return parsed;
}

absl::Status PeftConfig::ParsePatterns(const nlohmann::json& config, std::string_view json,
                                       const char* key, std::vector<Pattern>* patterns) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(base::StrCat(file_, ": \"", key, "\" ", what));
  };
  if (!found->is_object()) return error("is no object of numbers");
  if (found->size() > kMaxPatterns) return error("has too many entries");
  for (const std::string& text : KeysInOrder(json, key)) {
    const auto entry = found->find(text);
    if (entry == found->end()) continue;  // of another object under the same key, which came before
    const nlohmann::json& value = *entry;
    if (!value.is_number()) return error(base::StrCat("holds no number for ", base::Quote(text)));
    if (text.size() > kMaxPatternLength) return error("has an entry that is too long");
    absl::StatusOr<text::Regex> regex =
        text::Regex::Compile(base::StrCat("\\A(?:.*\\.)?(?:", text, ")\\z"));
    if (!regex.ok()) {
      return error(base::StrCat("has ", base::Quote(text), ", which is no regular expression: ",
                                std::string(regex.status().message())));
    }
    patterns->push_back({text, *std::move(regex), value.get<double>()});
  }
  return absl::OkStatus();
}

// PEFT takes the first entry that matches, in the order of the file.
absl::StatusOr<double> PeftConfig::ValueOf(const std::vector<Pattern>& patterns,
                                           std::string_view module, double otherwise) {
  for (const Pattern& pattern : patterns) {
    bool matches = false;
    HEDDLE_RETURN_IF_ERROR(pattern.regex.ForEachMatch(module, [&](size_t, size_t) {
      matches = true;
      return absl::OkStatus();
    }));
    if (matches) return pattern.value;
  }
  return otherwise;
}

absl::StatusOr<float> PeftConfig::Scale(std::string_view module, int32_t rank) const {
  HEDDLE_ASSIGN_OR_RETURN(const double alpha, ValueOf(alpha_patterns_, module, alpha_));
  HEDDLE_ASSIGN_OR_RETURN(const double said, ValueOf(rank_patterns_, module, rank_));
  if (said != rank) {
    return absl::InvalidArgumentError(
        base::StrCat(file_, ": the rank of ", base::Quote(module), " is ", said,
                     " there (r or rank_pattern) and ", rank,
                     " by its tensors; the configuration belongs to another adapter"));
  }
  const double scale = alpha / (rslora_ ? std::sqrt(static_cast<double>(rank)) : rank);
  if (!(std::fabs(scale) < 1e6)) {
    return absl::InvalidArgumentError(
        base::StrCat(file_, ": \"lora_alpha\" of ", alpha, " is out of range"));
  }
  return static_cast<float>(scale);
}

}  // namespace heddle::engine
