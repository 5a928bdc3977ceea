// The context in which a request is read: the served model, the operator's decisions, the client's
// key, and how long reading may take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/sampling_params.h"
#include "scheduler/policy.h"
#include "server/adapters/adapter_view.h"
#include "server/answer/api_request.h"
#include "server/text/text_codec.h"

namespace heddle::engine {
class PooledHead;
}

namespace heddle::server {

// The model as the API shows it.
struct ServedModel {
  std::string id;                    // the clients' name for it
  std::vector<std::string> aliases;  // also accepted
  std::string owned_by = "heddle";
  std::string fingerprint;  // system_fingerprint: changes when the same seed may give another
                            // answer
  int64_t created = 0;      // seconds since 1970
  int32_t max_context = 0;  // positions per sequence
  // Those of one whose parts lie side by side, of which windows give nothing back; 0: as many.
  int32_t max_joined_context = 0;
  int32_t segments = 0;  // ExecutorLimits::segments
  // From the model's generation_config: temperature, top_k, top_p, min_p, repetition_penalty.
  engine::SamplingParams defaults;
  engine::Pooling pooling = engine::Pooling::kLast;  // for embeddings
  int32_t embedding_size = 0;                        // numbers per embedding
  // The output of a model that gives embeddings or scores of classes; null: it writes text.
  std::shared_ptr<const engine::PooledHead> head;
  // Description of the model, for clients that show it; empty or 0: unknown.
  std::string family;         // as "llama"
  std::string weight_format;  // of most weights, as "q4_0"
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;
  int32_t max_sequences = 0;  // that run at once
};

// An operator's decisions about requests.
struct RequestPolicy {
  bool clamp_max_tokens = true;       // false: beyond the context is an error
  bool ignore_unknown_fields = true;  // false: they are errors
  bool drops_unsupported = false;     // of schemas; false: it is an error
  bool has_reward_model = false;      // beside this server (server/reward/)
  scheduler::PolicyKind scheduling = scheduler::PolicyKind::kFcfs;
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
};

// A grammar that the text of a custom tool's call must fit.
struct TextGrammar {
  std::string function;   // the chat's name of the tool, whose argument "input" is the text
  bool is_regex = false;  // otherwise Lark
  std::string definition;
};

// How long reading a request may take.
struct Patience {
  // The caller's thread has others to serve: work that may take longer than reading a body of this
  // size, whatever it is, ends with TakesLong.
  bool short_only = false;
  // Called every few tenths of a millisecond by long work (compiling a grammar); an error ends the
  // reading of the request, and nothing is remembered of it. TakesLong: it is to be read again. If
  // null, and with `short_only`, no work that would ask is begun.
  std::function<absl::Status()> ask;
};

struct RequestContext {
  const ServedModel* model = nullptr;
  const TextCodec* codec = nullptr;
  uint64_t random_seed = 0;  // used if the client gives no seed
  RequestPolicy policy;
  uint64_t tenant = 0;  // owner of the API key; 0: no keys
  Patience patience;
  AdapterView adapters = {};
  std::string deployment = {};            // the model that the path names; empty: the body names it
  std::optional<size_t> json_bytes = {};  // of a body that has binary data behind its JSON
  const std::vector<TextGrammar>* text_grammars = nullptr;  // of tools; null: none
};

// The status of reading that needs more than the context's patience: it is to be repeated with
// more. Clients never see it.
absl::Status TakesLong();
bool IsTakesLong(const absl::Status& status);

}  // namespace heddle::server
