// llama.cpp's routes about the server: /props, /slots and /apply-template; and vLLM's
// /tokenizer_info. Functions only: any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "server/generation.h"
#include "server/openai/input_items.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// The model and the defaults of sampling.
std::string LlamaProps(const RequestContext& context);

// The sequences that may run at once, as slots: the first ones are taken. UNAVAILABLE: all are, and
// `query` asks for an error then. INVALID_ARGUMENT: another value of its parameter.
absl::StatusOr<std::string> LlamaSlots(const EngineStats& stats, const ServedModel& model,
                                       std::span<const QueryParameter> query);

// {"prompt": the conversation as the model reads it}
absl::StatusOr<std::string> ApplyTemplate(std::string_view body, const RequestContext& context);

// Describes the tokenizer to clients that count or cut prompts by themselves.
std::string TokenizerInfo(const RequestContext& context);

}  // namespace heddle::server
