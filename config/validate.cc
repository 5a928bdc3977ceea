#include <algorithm>
#include <set>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/load.h"
#include "config/values.h"

namespace heddle::config {
namespace {

using base::Quote;
using base::StrCat;

constexpr int64_t kMaxBenchBatch = 4096;

absl::Status Contradiction(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

// Whether it is a possible value of Origin: SCHEME://HOST[:PORT], or "*" for all.
bool IsOrigin(const std::string& text) {
  if (text == "*") return true;
  const size_t mark = text.find("://");
  if (mark == std::string::npos || mark == 0 || mark + 3 == text.size()) return false;
  return text.find_first_of("/ ?#,", mark + 3) == std::string::npos;
}

absl::Status ValidateModel(Command command, const Config& config) {
  if (command == kTrace || command == kHealth) return absl::OkStatus();
  if (command == kRender) {
    if (!config.template_file.empty()) return absl::OkStatus();
    return Contradiction("--template is missing: the chat template to render");
  }
  if ((command == kBench || command == kTune) && !config.random_weights.empty()) {
    if (config.model.empty()) return absl::OkStatus();
    return Contradiction(StrCat("MODEL (", Quote(config.model),
                                ") does not go with --random-weights: it has weights of its own"));
  }
  if ((command == kSimulate || command == kPlan) && !config.shape.empty()) {
    if (config.model.empty()) return absl::OkStatus();
    return Contradiction(StrCat("MODEL (", Quote(config.model),
                                ") does not go with --shape: it has a shape of its own"));
  }
  if (!config.model.empty()) return absl::OkStatus();
  const char* without = "";
  if (command == kBench || command == kTune) without = ", or --random-weights SHAPE";
  if (command == kSimulate || command == kPlan) without = ", or --shape SHAPE";
  return Contradiction(StrCat("MODEL is missing: a model's folder or GGUF file, as in `heddle ",
                              CommandName(command), " ./my-model`, or demo: the small one that ",
                              "comes with heddle", without));
}

absl::Status ValidateRankTls(const Config& config) {
  const bool has_cert = !config.rank_tls_cert.empty();
  if (has_cert != !config.rank_tls_key.empty() || has_cert != !config.rank_tls_ca.empty()) {
    return Contradiction(
        "--rank-tls-cert, --rank-tls-key and --rank-tls-ca go together: the head and its ranks "
        "check each other's certificates");
  }
  if (has_cert && config.ranks_listen.empty() && config.join.empty()) {
    return Contradiction("--rank-tls-cert is for --ranks-listen and --join");
  }
  return absl::OkStatus();
}

absl::Status ValidateEngine(const Config& config) {
  HEDDLE_RETURN_IF_ERROR(ValidateRankTls(config));
  if ((config.page_tokens & (config.page_tokens - 1)) != 0) {
    return Contradiction(StrCat("--page-tokens must be a power of two, not ", config.page_tokens));
  }
  if (!config.join.empty() && (!config.ranks_listen.empty() || config.tp * config.pp > 1)) {
    return Contradiction(
        "--join makes this process a rank of another one's engine, which says how the model is "
        "divided: leave out --ranks-listen, --tp and --pp");
  }
  if (config.rank > 0 && config.join.empty()) {
    return Contradiction("--rank is for --join: the process that listens is rank 0");
  }
  if (config.rank_wire != "f32" && config.ranks_listen.empty()) {
    return Contradiction(
        "--rank-wire is for --ranks-listen: ranks in one process send nothing, and those that join "
        "do as the head says");
  }
  if (config.rank_wire != "f32" && config.device.starts_with("cuda")) {
    return Contradiction(
        "--rank-wire is for ranks on CPUs: GPUs send rows and sums as they have them, in BF16");
  }
  if (config.rank_network != "host" && !config.device.starts_with("cuda")) {
    return Contradiction("--rank-network is for ranks on GPUs (--device cuda)");
  }
  if (!config.ranks_listen.empty() && config.tp * config.pp == 1) {
    return Contradiction("--ranks-listen is for --tp or --pp above 1: there is no other rank");
  }
  if (config.max_batch_tokens > 0 && config.max_batch_seqs > config.max_batch_tokens) {
    return Contradiction(StrCat("--max-batch-seqs (", config.max_batch_seqs,
                                ") is larger than --max-batch-tokens (", config.max_batch_tokens,
                                "): each running sequence needs one token of a step"));
  }
  return absl::OkStatus();
}

// Drafters with weights, and whether their name has a path behind it.
struct DraftNetworkName {
  std::string_view name;
  bool has_path;
};
constexpr DraftNetworkName kDraftNetworks[] = {
    {"draft", true}, {"medusa", true}, {"eagle", true}, {"dflash", true}, {"mtp", false}};

// A value of --speculate.
absl::Status CheckDrafter(std::string_view value) {
  constexpr std::string_view kTextDrafters[] = {"off", "auto", "ngram", "suffix"};
  if (std::find(std::begin(kTextDrafters), std::end(kTextDrafters), value) !=
      std::end(kTextDrafters)) {
    return absl::OkStatus();
  }
  const size_t colon = value.find(':');
  const std::string_view kind = value.substr(0, colon);
  const auto network = std::find_if(std::begin(kDraftNetworks), std::end(kDraftNetworks),
                                    [kind](const auto& known) { return known.name == kind; });
  if (network == std::end(kDraftNetworks)) {
    return Contradiction(StrCat("--speculate: ", Quote(value),
                                " is unknown; there are off, auto, ngram, suffix, draft:PATH, ",
                                "medusa:PATH, eagle:PATH, dflash:PATH and mtp"));
  }
  const bool has_path = colon != std::string_view::npos && colon + 1 < value.size();
  if (has_path == network->has_path) return absl::OkStatus();
  return Contradiction(
      network->has_path
          ? StrCat("--speculate ", kind, " needs a path: ", kind, ":PATH")
          : StrCat("--speculate mtp takes no path: its layers are in the model's ", "own files"));
}

absl::Status ValidateSpeculation(const Config& config) {
  int networks = 0;
  for (const std::string& value : config.speculate) {
    HEDDLE_RETURN_IF_ERROR(CheckDrafter(value));
    const std::string_view kind = std::string_view(value).substr(0, value.find(':'));
    networks += std::any_of(std::begin(kDraftNetworks), std::end(kDraftNetworks),
                            [kind](const auto& known) { return known.name == kind; });
  }
  if (networks > 1) {
    return Contradiction(
        "--speculate names several drafters with weights; one of draft, medusa, eagle, dflash and "
        "mtp can "
        "run beside the model");
  }
  const bool off =
      std::find(config.speculate.begin(), config.speculate.end(), "off") != config.speculate.end();
  if (off && config.speculate.size() > 1) {
    return Contradiction("--speculate off does not go with drafters");
  }
  if (!config.speculate.empty() && !config.speculative_config.empty()) {
    return Contradiction("--speculate and --speculative-config say the same: give one of them");
  }
  return absl::OkStatus();
}

absl::Status ValidateScheduling(const Config& config) {
  if (config.host_kv_memory.value > 0 && !config.prefix_cache) {
    return Contradiction("--host-kv-memory needs --prefix-cache on, whose second tier it is");
  }
  if (!config.disk_kv.empty() && config.host_kv_memory.value == 0) {
    return Contradiction("--disk-kv needs --host-kv-memory: the size of its file");
  }
  if (config.max_batch_tokens > 0 && config.max_step_tokens > config.max_batch_tokens) {
    return Contradiction(StrCat("--max-step-tokens (", config.max_step_tokens,
                                ") is larger than --max-batch-tokens (", config.max_batch_tokens,
                                "), for which the memory is taken"));
  }
  if (config.max_step_tokens > 0 && config.max_batch_seqs > config.max_step_tokens) {
    return Contradiction(StrCat("--max-batch-seqs (", config.max_batch_seqs,
                                ") is larger than --max-step-tokens (", config.max_step_tokens,
                                "): each running sequence needs one token of a step"));
  }
  return absl::OkStatus();
}

absl::Status ValidateTls(const Config& config) {
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return Contradiction(config.tls_key.empty()
                             ? "--tls-cert needs --tls-key: the certificate's private key"
                             : "--tls-key needs --tls-cert: the certificate that it belongs to");
  }
  if (!config.tls_client_ca.empty() && config.tls_cert.empty()) {
    return Contradiction(
        "--tls-client-ca needs --tls-cert and --tls-key: clients show certificates over TLS only");
  }
  return absl::OkStatus();
}

absl::Status ValidateServer(const Config& config) {
  HEDDLE_RETURN_IF_ERROR(ValidateTls(config));
  // The resolver takes both for this machine alone.
  if (config.host.empty() || config.host == "*") {
    return Contradiction(StrCat("--host must be an address or a name, not ", Quote(config.host),
                                "; 0.0.0.0 is every network of this machine, and :: those of "
                                "IPv6 as well"));
  }
  std::set<std::string> names;
  for (const std::string& name : config.served_model_name) {
    if (!names.insert(name).second) {
      return Contradiction(StrCat("--served-model-name gives ", Quote(name), " twice"));
    }
  }
  if (config.port != 0 && config.grpc_port == config.port) {
    return Contradiction(
        StrCat("--grpc-port must not be --port (", config.port, "): HTTP and gRPC listen apart"));
  }
  if (config.io_threads > config.max_connections) {
    return Contradiction(StrCat("--io-threads (", config.io_threads,
                                ") is larger than --max-connections (", config.max_connections,
                                "): some threads could never have a connection"));
  }
  const uint64_t pending = config.max_pending_body_bytes.value;
  if (pending > 0 && pending < config.max_body_bytes.value) {
    return Contradiction(StrCat("--max-pending-body-bytes (", base::ExactBytes(pending),
                                ") is smaller than --max-body-bytes (",
                                base::ExactBytes(config.max_body_bytes.value),
                                "): the largest body could never be received"));
  }
  if (!config.cors_origin.empty() && !IsOrigin(config.cors_origin)) {
    return Contradiction(StrCat("--cors-origin must be * or one origin such as ",
                                "https://example.org, without a path, not ",
                                Quote(config.cors_origin)));
  }
  return absl::OkStatus();
}

absl::Status ValidateGenerate(const Config& config) {
  const int forms =
      int{!config.json_schema.empty()} + int{!config.grammar.empty()} + int{!config.regex.empty()};
  if (forms > 1) {
    return Contradiction(
        "--json-schema, --grammar and --regex each say what the answer must be: give one of them");
  }
  if (config.logprobs.has_value() && !config.json) {
    return Contradiction("--logprobs needs --json: text has no place for them");
  }
  if (!config.chat_template.empty() && !config.chat) {
    return Contradiction("--chat-template needs --chat: without it no template is used");
  }
  return absl::OkStatus();
}

absl::Status ValidateTokenize(const Config& config) {
  if (config.decode && config.no_bos) {
    return Contradiction("--decode does not go with --no-bos: BOS is put before texts, not ids");
  }
  return absl::OkStatus();
}

absl::Status ValidateSimulate(const Config& config) {
  if (config.rate.has_value() && config.clients > 0) {
    return Contradiction("--rate does not go with --clients: clients ask when they are answered");
  }
  if (!config.trace.empty() && config.rate.has_value()) {
    return Contradiction("--rate does not go with --trace: its requests say when they arrive");
  }
  if (!config.trace.empty() && config.prefix_tokens > 0) {
    return Contradiction(
        "--prefix-tokens does not go with --trace: its requests say what they share");
  }
  return absl::OkStatus();
}

absl::Status ValidateLink(const Config& config) {
  if (config.link_latency && !config.link_rate) {
    return Contradiction("--link-latency goes with --link-rate: without it ranks share a machine");
  }
  if (config.link_rate && config.tp * config.pp == 1) {
    return Contradiction("--link-rate is for --tp or --pp above 1: there is no other rank");
  }
  if (config.link_rate && !config.rank_cpus.empty()) {
    return Contradiction("--link-rate says that each rank has a machine: leave out --rank-cpus");
  }
  return absl::OkStatus();
}

absl::Status ValidatePlan(const Config& config) {
  if (config.context == 0 || config.context > config.output_tokens) return absl::OkStatus();
  return Contradiction(StrCat("--context (", config.context,
                              ") leaves no room for a prompt beside --output-tokens (",
                              config.output_tokens, ")"));
}

absl::Status ValidateBench(const Config& config) {
  for (const std::string& text : config.batch) {
    absl::StatusOr<int64_t> batch = ParseInteger(text);
    if (!batch.ok() || *batch < 1 || *batch > kMaxBenchBatch) {
      return Contradiction(StrCat("--batch must be whole numbers from 1 to ", kMaxBenchBatch,
                                  ", as in 1,8,32, not ", Quote(text)));
    }
  }
  const bool drafts = !config.speculate.empty() || !config.speculative_config.empty();
  if (drafts && config.bench_text.empty()) {
    return Contradiction("--speculate needs --text: the text to be replayed");
  }
  if (!drafts && !config.bench_text.empty()) {
    return Contradiction("--text needs --speculate: the drafters to be measured");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(Command command, const Config& config) {
  HEDDLE_RETURN_IF_ERROR(ValidateModel(command, config));
  if (command == kServe) HEDDLE_RETURN_IF_ERROR(ValidateServer(config));
  if (command == kGenerate) HEDDLE_RETURN_IF_ERROR(ValidateGenerate(config));
  if (command == kSimulate) HEDDLE_RETURN_IF_ERROR(ValidateSimulate(config));
  if (command == kPlan) HEDDLE_RETURN_IF_ERROR(ValidatePlan(config));
  HEDDLE_RETURN_IF_ERROR(ValidateLink(config));
  if (command == kBench) HEDDLE_RETURN_IF_ERROR(ValidateBench(config));
  if (command == kTokenize) HEDDLE_RETURN_IF_ERROR(ValidateTokenize(config));
  // Generate runs one sequence, and its batch has no --max-batch-seqs to contradict.
  Config engine = config;
  const bool schedules = command == kServe || command == kSimulate || command == kPlan;
  if (!schedules) engine.max_batch_seqs = 1;
  if (schedules) HEDDLE_RETURN_IF_ERROR(ValidateScheduling(config));
  if ((command & (kServe | kGenerate | kBench)) != 0) {
    HEDDLE_RETURN_IF_ERROR(ValidateSpeculation(config));
  }
  return ValidateEngine(engine);
}

}  // namespace heddle::config
