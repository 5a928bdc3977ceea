// Chat templates come with models: for any bytes, parsing and rendering must end in a text or an
// error. A zero byte ends the template; the context may follow as JSON.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::ordered_json;

const Json& DefaultContext() {
  static const Json kContext = Json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Grüße & <b>"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type":
                  "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]},
                 {"role": "tool", "content": "21", "tool_call_id": "1"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3})");
  return kContext;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  heddle::engine::text::ChatTemplate::Options options;
  options.limits.max_steps = 20000;
  options.limits.max_built_bytes = 8 << 20;
  options.limits.max_output_bytes = 1 << 20;
  size_t end = std::min(input.find('\0'), input.size());
  auto parsed =
      heddle::engine::text::ChatTemplate::Parse(std::string(input.substr(0, end)), options);
  if (!parsed.ok()) return 0;
  Json context = DefaultContext();
  if (end < input.size()) {
    Json given = Json::parse(input.substr(end + 1), nullptr, /*allow_exceptions=*/false);
    if (given.is_object()) context = std::move(given);
  }
  static_cast<void>((*parsed)->Render(context));
  return 0;
}
