#include "server/openai/refused_fields.h"

namespace heddle::server {
namespace {

constexpr RefusedField kRefusedChatFields[] = {
    {"functions", "[]", "the old form of tools is not supported; use tools"},
    {"function_call", R"("none")", "the old form of tool_choice is not supported"},
    {"modalities", R"(["text"])", "this server answers with text only"},
    {"audio", "", "this server answers with text only"},
    {"web_search_options", "", "this server does not search"},
    // Other servers' own fields, which would change the answer.
    {"use_beam_search", "false", "there is no beam search"},
    {"truncate_prompt_tokens", "", "prompts are not cut"},
    {"regex", "", "give the expression as 'guided_regex' or in 'structured_outputs'"},
    {"ebnf", "", "give a grammar in GBNF as 'guided_grammar' or in 'structured_outputs'"},
    {"allowed_token_ids", "", "say what the answer may be in 'structured_outputs'"},
    {"include_stop_str_in_output", "false", "stop strings are not part of the answer"},
    {"no_stop_trim", "false", "stop strings are not part of the answer"},
    {"stop_regex", "", "an answer ends at strings ('stop') or tokens ('stop_token_ids')"},
    {"skip_special_tokens", "true", "special tokens are not part of the answer"},
    {"return_token_ids", "false", "answers are text; 'logprobs' has the bytes of each token"},
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

constexpr RefusedField kRefusedResponsesFields[] = {
    {"background", "false", "responses are not computed in the background"},
    {"conversation", "", "conversations are not kept; use previous_response_id"},
    {"prompt", "", "there are no stored prompts"},
};

}  // namespace

std::span<const RefusedField> RefusedChatFields() { return kRefusedChatFields; }
std::span<const RefusedField> RefusedResponsesFields() { return kRefusedResponsesFields; }

}  // namespace heddle::server
