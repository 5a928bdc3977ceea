#include "server/cli/speculation_options.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/heads/open_heads.h"
#include "engine/model/draft_model.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"
#include "server/request/fields.h"
#include "server/request/json_input.h"
#include "server/request/request_fields.h"

namespace heddle::server {
namespace fields {
namespace {

// vLLM's members; its defaults of prompt_lookup_min and _max are ours. 64 rows are a tile of every
// kernel.
constexpr Field kSpeculativeConfig[] = {
    {"method", kString, 0, kInfinity, "",
     "ngram, suffix, draft_model, medusa, eagle, eagle3 or mtp", true},
    {"model", kString, 0, kInfinity, "", "the path of a drafter with weights"},
    {"num_speculative_tokens", kInteger, 1, 64},
    {"prompt_lookup_min", kInteger, 1, 64},
    {"prompt_lookup_max", kInteger, 1, 64},
    {"suffix_decoding_max_tree_depth", kInteger, 2, 256},
    {"suffix_decoding_max_cached_requests", kInteger, 0, 10'000'000},
    {"draft_tensor_parallel_size", kInteger, 1, 1},
};

}  // namespace
}  // namespace fields

namespace {

using base::Quote;
using base::StrCat;

// --speculate, if nothing is said (docs/decisions/0063).
constexpr const char* kDefaultDrafters = "auto";
constexpr std::string_view kJsonOption = "--speculative-config: ";
// Bytes for each cached request of vLLM's count: about 400 tokens of 20 bytes each.
constexpr int64_t kCachedRequestBytes = 8192;
constexpr int64_t kMaxCorpusBytes = int64_t{4} << 30;

// vLLM's members that would change what is drafted, and cannot be honoured.
constexpr RefusedField kRefusedMembers[] = {
    {"quantization", "", "a drafter's weights stay as its files have them"},
    {"speculative_token_tree", "", "drafts are chains"},
    {"suffix_decoding_max_spec_factor", "", "measured times decide on the length of drafts"},
    {"suffix_decoding_min_token_prob", "",
     "measured times decide; a request can give 'speculative.min_p'"},
    {"num_speculative_tokens_per_batch_size", "", "measured times decide on the length of drafts"},
};

absl::Status Prefixed(const absl::Status& status) {
  return absl::InvalidArgumentError(StrCat(kJsonOption, MessageOf(status)));
}

using NetworkKind = NetworkOptions::Kind;

// A drafter with weights by its name in --speculate; kNone: it is none.
NetworkKind KindOfName(std::string_view name) {
  if (name == "draft") return NetworkKind::kDraftModel;
  if (name == "medusa") return NetworkKind::kMedusa;
  if (name == "eagle" || name == "dflash") return NetworkKind::kEagle;  // told apart by their files
  return name == "mtp" ? NetworkKind::kMtp : NetworkKind::kNone;
}

// The same by vLLM's name.
NetworkKind KindOfMethod(std::string_view method) {
  if (method == "draft_model") return NetworkKind::kDraftModel;
  if (method == "eagle3") return NetworkKind::kEagle;
  return method == "draft" ? NetworkKind::kNone : KindOfName(method);
}

absl::StatusOr<SpeculationOptions> ReadMembers(const Json& json) {
  HEDDLE_RETURN_IF_ERROR(CheckRefused(json, kRefusedMembers));
  HEDDLE_RETURN_IF_ERROR(CheckKnown(json, fields::kSpeculativeConfig, kRefusedMembers));
  HEDDLE_ASSIGN_OR_RETURN(const auto body, RequestFields<fields::kSpeculativeConfig>::Check(json));
  SpeculationOptions options;
  options.on = true;
  engine::DrafterOptions& drafters = options.drafters;
  const std::string& method = *body.Text<"method">();
  drafters.ngram = method == "ngram";
  drafters.suffix = method == "suffix";
  options.network.kind = KindOfMethod(method);
  if (!drafters.ngram && !drafters.suffix && options.network.kind == NetworkKind::kNone) {
    return absl::InvalidArgumentError(StrCat("the method ", Quote(method),
                                             " is unknown; there are ngram, suffix, draft_model, ",
                                             "medusa, eagle, eagle3, dflash and mtp"));
  }
  const bool needs_model =
      options.network.kind != NetworkKind::kNone && options.network.kind != NetworkKind::kMtp;
  if (const std::string* model = body.Text<"model">(); model != nullptr) {
    if (options.network.kind == NetworkKind::kNone) {
      return absl::InvalidArgumentError(
          StrCat("the method ", Quote(method), " has no use for \"model\""));
    }
    if (needs_model) options.network.path = *model;
  }
  if (needs_model && options.network.path.empty()) {
    return absl::InvalidArgumentError(
        StrCat("the method ", Quote(method), " needs \"model\", the path of the drafter"));
  }
  options.max_tokens = static_cast<int32_t>(body.Int<"num_speculative_tokens">(options.max_tokens));
  engine::NgramOptions& ngram = drafters.ngram_options;
  ngram.max_match = static_cast<int32_t>(body.Int<"prompt_lookup_max">(
      std::max<int64_t>(ngram.max_match, body.Int<"prompt_lookup_min">(0))));
  ngram.min_match = static_cast<int32_t>(
      body.Int<"prompt_lookup_min">(std::min(ngram.min_match, ngram.max_match)));
  if (ngram.min_match > ngram.max_match) {
    return absl::InvalidArgumentError(StrCat("prompt_lookup_min (", ngram.min_match,
                                             ") is larger than prompt_lookup_max (",
                                             ngram.max_match, ")"));
  }
  engine::SuffixOptions& suffix = drafters.suffix_options;
  suffix.max_match =
      static_cast<int32_t>(body.Int<"suffix_decoding_max_tree_depth">(suffix.max_match));
  if (body.Has<"suffix_decoding_max_cached_requests">()) {
    suffix.max_corpus_bytes = std::min(
        kMaxCorpusBytes, kCachedRequestBytes * body.Int<"suffix_decoding_max_cached_requests">(0));
  }
  return options;
}

}  // namespace

absl::StatusOr<SpeculationOptions> ToSpeculationOptions(const config::EngineConfig& config) {
  SpeculationOptions options;
  if (!config.speculative_config.empty()) {
    const absl::StatusOr<Json> json = ParseJsonObject(config.speculative_config);
    if (!json.ok()) return Prefixed(json.status());
    absl::StatusOr<SpeculationOptions> read = ReadMembers(*json);
    if (!read.ok()) return Prefixed(read.status());
    options = *read;
  }
  const bool says_nothing = config.speculate.empty() && config.speculative_config.empty();
  const std::vector<std::string> names =
      says_nothing ? std::vector<std::string>{kDefaultDrafters} : config.speculate;
  for (const std::string& name : names) {  // config/ knows them
    options.on = options.on || name != "off";
    options.drafters.ngram = options.drafters.ngram || name == "ngram" || name == "auto";
    options.drafters.suffix = options.drafters.suffix || name == "suffix" || name == "auto";
    if (name == "auto" && options.network.kind == NetworkKind::kNone) {
      options.network.kind = NetworkKind::kAny;
    }
    const size_t colon = name.find(':');
    const NetworkKind kind = KindOfName(std::string_view(name).substr(0, colon));
    if (kind == NetworkKind::kNone) continue;
    options.network = {kind, colon == std::string::npos ? "" : name.substr(colon + 1)};
  }
  if (config.speculate_max > 0) options.max_tokens = static_cast<int32_t>(config.speculate_max);
  return options;
}

namespace {

using Source = absl::StatusOr<std::unique_ptr<engine::DraftSource>>;

Source OpenNetwork(const NetworkOptions& network, const engine::Checkpoint& checkpoint,
                   const engine::ModelDescription& model) {
  switch (network.kind) {
    case NetworkKind::kDraftModel:
      return engine::OpenDraftModel(network.path, checkpoint, model);
    case NetworkKind::kMedusa:
      return engine::OpenMedusa(network.path, model);
    case NetworkKind::kEagle:
      return engine::OpenEagle(network.path, checkpoint, model);
    case NetworkKind::kMtp:
      return engine::OpenMtp(checkpoint, model);
    case NetworkKind::kAny:
    case NetworkKind::kNone:
      break;
  }
  return nullptr;
}

// The drafter that lies in the model's folder: in a folder of its own that has the kind's name, or
// in the model's own files.
NetworkOptions FindNetwork(const engine::Checkpoint& checkpoint,
                           const engine::ModelDescription& model) {
  constexpr std::pair<std::string_view, NetworkKind> kFolders[] = {
      {"eagle", NetworkKind::kEagle},
      {"dflash", NetworkKind::kEagle},
      {"medusa", NetworkKind::kMedusa},
      {"draft", NetworkKind::kDraftModel}};
  for (const auto& [name, kind] : kFolders) {
    const std::filesystem::path folder = checkpoint.path() / name;
    std::error_code error;
    if (std::filesystem::exists(folder / "config.json", error)) return {kind, folder.string()};
  }
  return {engine::HasMtp(checkpoint, model) ? NetworkKind::kMtp : NetworkKind::kNone, ""};
}

}  // namespace

absl::StatusOr<engine::OpenDraft> ToOpenDraft(const config::EngineConfig& config,
                                              std::string* left_out) {
  HEDDLE_ASSIGN_OR_RETURN(const SpeculationOptions options, ToSpeculationOptions(config));
  const NetworkOptions network = options.network;
  if (!options.on || network.kind == NetworkKind::kNone) return engine::OpenDraft();
  return [network, left_out](const engine::Checkpoint& checkpoint,
                             const engine::ModelDescription& model) -> Source {
    if (network.kind != NetworkKind::kAny) return OpenNetwork(network, checkpoint, model);
    Source found = OpenNetwork(FindNetwork(checkpoint, model), checkpoint, model);
    if (found.ok()) return found;
    *left_out = StrCat("the drafter that lies beside the model: ", MessageOf(found.status()));
    return nullptr;
  };
}

SpeculationReport DescribeSpeculation(const SpeculationOptions& options,
                                      const engine::ExecutorLimits& limits,
                                      const std::string& drafter, const std::string& left_out) {
  if (!options.on) return {};
  if (limits.max_draft_tokens == 0) {
    return {.drafters = "", .without = "the model's executor verifies no drafts"};
  }
  SpeculationReport report{.drafters = "predicted outputs", .without = left_out};
  if (options.drafters.suffix) report.drafters += ", suffixes";
  if (options.drafters.ngram) report.drafters += ", n-grams";
  if (!drafter.empty()) report.drafters += ", " + drafter;
  return report;
}

}  // namespace heddle::server
