// The form that a request demands of its answer: by response_format, by the fields that other
// servers use for the same (guided_json, guided_regex, guided_choice, guided_grammar,
// structured_outputs, grammar, json_schema), or by a tool choice that forces a call.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"
#include "server/openai/request_parts.h"

namespace heddle::server {

// The compiled grammar, or null if nothing is demanded. `tools`: those of a chat. `request` says
// what the model writes around its answer. If the context's patience ends before the grammar is
// compiled, its status is returned, such as TakesLong. INVALID_ARGUMENT has the field in param, as
// in "response_format.json_schema.schema"; the message names keyword and place within a schema.
absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> ReadConstraint(
    const GenerationFields& body, const std::optional<ToolFields>& tools,
    const RequestContext& context, const ApiRequest& request);

// Whether tool_choice forces a call: "required", "any", or the object that names a function.
bool ForcesCall(const ToolFields& body);

// INVALID_ARGUMENT unless a forced call can be honoured: the named tool is offered, and this server
// can force the format in which the model writes calls.
absl::Status CheckToolChoice(const ToolFields& body, const TextCodec& codec);

}  // namespace heddle::server
