#include "server/openai/refused_fields.h"

namespace heddle::server {
namespace {

// Refused by both routes.
constexpr RefusedField kRefusedGenerationFields[] = {
    {"functions", "[]", "the old form of tools is not supported; use tools"},
    {"function_call", R"("none")", "the old form of tool_choice is not supported"},
    {"modalities", R"(["text"])", "this server answers with text only"},
    {"audio", "", "this server answers with text only"},
    {"web_search_options", "", "this server does not search"},
    // Other servers' own fields, which would change the answer.
    {"regex", "", "give the expression as 'guided_regex' or in 'structured_outputs'"},
    {"ebnf", "", "give a grammar in GBNF as 'guided_grammar' or in 'structured_outputs'"},
    {"allowed_token_ids", "", "say what the answer may be in 'structured_outputs'"},
    {"no_stop_trim", "false", "give 'include_stop_str_in_output'"},
    {"stop_regex", "", "an answer ends at strings ('stop') or tokens ('stop_token_ids')"},
    {"return_tokens_as_token_ids", "false", "'logprobs' has the text and bytes of each token"},
    {"logits_processors", "[]", "requests bring no code"},
    {"chat_template", "", "the template is the server's (--chat-template)"},
    {"documents", "[]", "give them to the template in 'chat_template_kwargs'"},
    {"thinking_token_budget", "", "reasoning is limited by 'max_completion_tokens' alone"},
    {"lora_path", "", "name the adapter in 'model' (docs/adapters.md)"},
    {"n_predict", "", "give 'max_tokens'"},
    {"random_seed", "", "give 'seed'"},
    {"repeat_penalty", "1", "give 'repetition_penalty'"},
    {"mirostat", "0", "this sampler is not supported"},
    {"dynatemp_range", "0", "this sampler is not supported"},
};

constexpr RefusedField kRefusedOfChat[] = {
    {"echo", "false", "the prompt is only repeated by /v1/completions"},
    {"best_of", "1", "it is a field of /v1/completions"},
    {"suffix", R"("")", "it is a field of /v1/completions"},
    {"prompt", "", "a chat is given as 'messages'; /v1/completions takes a prompt"},
    {"input", "", "a chat is given as 'messages'; /v1/responses takes an input"},
    {"instructions", "", "give a message of the role system"},
    {"max_output_tokens", "", "give 'max_completion_tokens'"},
};

constexpr RefusedField kRefusedOfCompletions[] = {
    {"messages", "", "a chat belongs to /v1/chat/completions"},
    {"tools", "[]", "tools belong to /v1/chat/completions"},
    {"tool_choice", R"("none")", "tools belong to /v1/chat/completions"},
    {"top_logprobs", "0", "give the number of alternatives as 'logprobs'"},
    {"input", "", "give 'prompt'"},
    {"instructions", "", "they belong to /v1/responses"},
    {"max_output_tokens", "", "give 'max_tokens'"},
};

constexpr RefusedField kRefusedResponsesFields[] = {
    {"messages", "", "give 'input'"},
    {"max_tokens", "", "give 'max_output_tokens'"},
    {"max_completion_tokens", "", "give 'max_output_tokens'"},
    {"response_format", R"({"type":"text"})", "give 'text.format'"},
    {"reasoning_effort", "", "give 'reasoning.effort'"},
    {"n", "1", "a response is one answer"},
    {"guided_json", "", "give 'text.format'"},
    {"guided_regex", "", "it is a field of /v1/chat/completions"},
    {"guided_choice", "", "it is a field of /v1/chat/completions"},
    {"guided_grammar", "", "it is a field of /v1/chat/completions"},
    {"structured_outputs", "", "it is a field of /v1/chat/completions"},
    {"prompt", "", "there are no stored prompts"},
    {"functions", "[]", "give 'tools'"},
    {"function_call", R"("none")", "give 'tool_choice'"},
    {"logprobs", "false", "give 'top_logprobs'"},
    {"echo", "false", "the prompt is only repeated by /v1/completions"},
    {"best_of", "1", "it is a field of /v1/completions"},
    {"suffix", R"("")", "it is a field of /v1/completions"},
};

constexpr RefusedField kRefusedMessagesFields[] = {
    {"stop", "", "give 'stop_sequences'"},
    {"response_format", R"({"type":"text"})", "give 'output_config.format'"},
    {"max_completion_tokens", "", "give 'max_tokens'"},
    {"max_output_tokens", "", "give 'max_tokens'"},
    {"mcp_servers", "[]", "this server does not call other servers"},
    {"n", "1", "a message is one answer"},
};

constexpr auto kRefusedChatFields = fields::Concat(kRefusedGenerationFields, kRefusedOfChat);
constexpr auto kRefusedCompletionFields =
    fields::Concat(kRefusedGenerationFields, kRefusedOfCompletions);

}  // namespace

std::span<const RefusedField> RefusedChatFields() { return kRefusedChatFields; }
std::span<const RefusedField> RefusedCompletionFields() { return kRefusedCompletionFields; }
std::span<const RefusedField> RefusedMessagesFields() { return kRefusedMessagesFields; }
std::span<const RefusedField> RefusedResponsesFields() { return kRefusedResponsesFields; }

}  // namespace heddle::server
