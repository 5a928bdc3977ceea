// Parts of request parsing that the routes, including Anthropic's, share: the model's name,
// prompts, messages.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "server/openai/chat_fields.h"
#include "server/openai/model_choice.h"
#include "server/openai/openai_request.h"
#include "server/request/fields.h"
#include "server/request/json_input.h"
#include "server/request/request_fields.h"
#include "server/text/text_codec.h"

namespace heddle::server {

// The fields that the functions below read, for any route.
namespace fields {
inline constexpr Field kModelPart[] = {{"model", kString}};
inline constexpr Field kLengthPart[] = {{"max_tokens", kInteger},
                                        {"max_completion_tokens", kInteger}};
inline constexpr Field kToolsPart[] = {{"tools", kArray}, {"tool_choice", kStringOrObject}};
inline constexpr Field kConversationPart[] = {{"messages", kArray},
                                              {"tools", kArray},
                                              {"tool_choice", kStringOrObject},
                                              {"chat_template_kwargs", kObject},
                                              {"add_generation_prompt", kBoolean},
                                              {"continue_final_message", kBoolean},
                                              {"reasoning_effort", kString},
                                              {"enable_thinking", kBoolean}};
}  // namespace fields

using GenerationFields = RequestFields<fields::kGeneration>;
using ToolFields = RequestFields<fields::kToolsPart>;
using ConversationFields = RequestFields<fields::kConversationPart>;

// The JSON object of those members that all requests of a tree of branches have in common; each may
// be nullptr.
std::string CommonMembers(const std::string* model, const Json* lora,
                          const std::string* cache_salt);

struct ApiPrompt {
  std::vector<TokenId> tokens;  // not empty
  std::string text;             // for echo; empty unless asked for
};

// ParseRequest (openai_request.h) for a body that is already parsed.
absl::StatusOr<ApiRequest> ReadRequest(Endpoint endpoint, const Json& body,
                                       const RequestContext& context);

// Applies the server's policy to members that no table knows, and refuses unsupported ones.
absl::Status CheckOthers(const Json& body, std::span<const Field> fields,
                         std::span<const RefusedField> refused, const RequestContext& context);

// Checks a body by its table alone: types, ranges, refused fields and, if the server is told to
// (--unknown-fields error), unknown ones.
template <const auto& kTable>
absl::StatusOr<RequestFields<kTable>> CheckBody(const Json& body,
                                                std::span<const RefusedField> refused,
                                                const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(RequestFields<kTable> fields, RequestFields<kTable>::Check(body));
  HEDDLE_RETURN_IF_ERROR(CheckOthers(body, kTable, refused, context));
  return fields;
}

// Renames fields in an error for another API: if the field at fault, or the message, begins with
// one of `names` (first), it is replaced by the second.
struct Renamed {
  std::string_view from;
  std::string_view to;
};
absl::Status RenameFields(absl::Status status, std::span<const Renamed> names);

// ChooseModel (model_choice.h) for routes that take no list of adapters.
absl::StatusOr<ModelChoice> CheckModel(const RequestFields<fields::kModelPart>& body,
                                       const RequestContext& context);

// The tokens of `text`; errors name `path` as the field at fault.
absl::StatusOr<std::vector<TokenId>> EncodeField(std::string_view text, std::string_view path,
                                                 bool add_special, const TextCodec& codec);

// `path` names the array in errors. Ids must be in [0, vocab).
absl::StatusOr<std::vector<TokenId>> ReadTokenIds(const Json& array, std::string_view path,
                                                  int32_t vocab);

// The last `limit` tokens; returns whether there were more. REQUIRES: limit > 0.
bool KeepLast(int64_t limit, std::vector<TokenId>* tokens);
// "truncate_prompt_tokens" is 0, which would leave nothing to read.
absl::Status ZeroTruncation();

struct PromptOptions {
  size_t max_prompts = 1;
  bool echo = false;
  bool add_special = true;
};

// Reads `value`, of the field `name`, in the four forms of "prompt": a text, token ids, or several
// of either.
absl::StatusOr<std::vector<ApiPrompt>> ReadPrompts(const Json& value, std::string_view name,
                                                   const PromptOptions& options,
                                                   const TextCodec& codec);

// Puts the tokens of `suffix` and the fill-in tokens around each prompt. INVALID_ARGUMENT: the
// model has no such tokens.
absl::Status AddSuffix(const RequestFields<fields::kCompletion>& body, const TextCodec& codec,
                       std::vector<ApiPrompt>* prompts);

// Resolves a "tool_choice" of the type "allowed_tools" ({"mode", "tools":
// [{"type":"function","function": {"name"}}]}): returns `body` with the remaining tools, and the
// mode as the choice. Empty for any other choice. `fields` are those of `body`.
absl::StatusOr<std::optional<Json>> WithAllowedTools(const ToolFields& fields, const Json& body);

// Whether the request lets the model call tools: some are given, and not hidden.
bool OffersTools(const ToolFields& body);

// The tools offered to the model; CheckTools has passed.
ToolSet ReadToolSet(const ToolFields& body);

// The conversation, rendered and encoded.
absl::StatusOr<std::vector<TokenId>> EncodeMessages(const ConversationFields& body,
                                                    const RequestContext& context);

// The conversation, rendered: the text that the model reads.
absl::StatusOr<std::string> RenderMessages(const ConversationFields& body,
                                           const RequestContext& context);

// The number of tokens that the model reads for a chat request's body, whether or not the context
// holds them; the body's table is checked, its demands on the answer are not.
absl::StatusOr<size_t> CountChatTokens(const Json& chat, const RequestContext& context);

}  // namespace heddle::server
