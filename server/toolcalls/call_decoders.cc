#include "server/toolcalls/call_decoders.h"

#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "server/request/json_input.h"
#include "server/toolcalls/white_space.h"

namespace heddle::server {
namespace {

std::string_view Trim(std::string_view text) {
  size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kWhite) - begin + 1);
}

// Removes `text` up to and including `mark` from its front and returns it; nullopt, with no change,
// without a mark.
std::optional<std::string_view> TakeUntil(std::string_view mark, std::string_view* text) {
  size_t at = text->find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view taken = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return taken;
}

// One line end at each side belongs to the format and not to the value.
std::string_view DropLineEnds(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

// Converts a value that was written without quotes to the type of its parameter. A value that does
// not parse as JSON stays a string: the tool can report more about it than we can.
Json TypedValue(std::string_view value, std::string_view type) {
  if (type.empty() || type == "string") return std::string(value);
  std::string_view text = Trim(value);
  if (text == "True" || text == "False") return text == "True";
  if (text == "None") return nullptr;
  // It is parsed within an object, so that the bounds of untrusted JSON apply.
  std::string wrapped = R"({"v":)";
  wrapped.append(text).append("}");
  absl::StatusOr<Json> parsed = ParseJsonObject(wrapped);
  if (!parsed.ok() || parsed->size() != 1) return std::string(value);
  return (*parsed)["v"];
}

// The arguments of a call as the text of an object.
std::optional<std::string> ArgumentsText(const Json* arguments) {
  if (arguments == nullptr) return "{}";
  if (arguments->is_object()) return arguments->dump();
  const std::string* text = TextOf(arguments);
  if (text == nullptr) return std::nullopt;
  // Some models write the object as a string.
  return ParseJsonObject(*text).ok() ? std::optional(*text) : std::nullopt;
}

std::optional<ToolCall> CallOf(const Json& json) {
  const Json* given = Find(json, "name");
  const std::string* name = TextOf(given == nullptr ? Find(json, "tool_name") : given);
  if (name == nullptr) {
    const Json* function = Find(json, "function");
    if (function != nullptr && function->is_object()) return CallOf(*function);
    name = TextOf(function);
    if (name == nullptr) return std::nullopt;
  }
  const Json* arguments = Find(json, "arguments");
  if (arguments == nullptr) arguments = Find(json, "parameters");
  std::optional<std::string> text = ArgumentsText(arguments);
  if (!text.has_value() || name->empty()) return std::nullopt;
  return ToolCall{*name, *std::move(text)};
}

std::optional<ToolCall> ParseJsonCall(std::string_view text) {
  absl::StatusOr<Json> json = ParseJsonObject(text);
  return json.ok() ? CallOf(*json) : std::nullopt;
}

// The tags that begin and end a call and a parameter.
struct TagSet {
  std::string_view call_open, call_close, parameter_open;
  std::string_view name_end;  // behind both names
};

constexpr std::string_view kParameterClose = "</parameter>";

bool DecodeTaggedCall(std::string_view body, const TagSet& tags, const ToolSet& tools,
                      std::vector<ToolCall>* calls) {
  std::optional<std::string_view> name = TakeUntil(tags.name_end, &body);
  if (!name.has_value() || Trim(*name).empty()) return false;
  Json arguments = Json::object();
  while (TakeUntil(tags.parameter_open, &body).has_value()) {
    std::optional<std::string_view> key = TakeUntil(tags.name_end, &body);
    if (!key.has_value()) return false;
    std::optional<std::string_view> value = TakeUntil(kParameterClose, &body);
    if (!value.has_value() || arguments.size() >= kMaxJsonMembers) return false;
    arguments[std::string(Trim(*key))] =
        TypedValue(DropLineEnds(*value), tools.TypeOf(Trim(*name), Trim(*key)));
  }
  calls->push_back({std::string(Trim(*name)), arguments.dump()});
  return true;
}

}  // namespace

// Finds the name in the text before the object of DecodeNamedJson: its last word that does not
// belong to a format, cut at marks, without "functions." before and ":0" behind it.
std::string_view CalledName(std::string_view header) {
  std::string_view rest = header;
  // In "function<sep>name" the name is behind the first mark, in "name<sep>" before it.
  size_t mark = rest.find_first_of("<[ \n\t");
  std::string_view first = Trim(rest.substr(0, mark));
  if (first == "function" && mark != std::string_view::npos) {
    size_t behind = rest.find_first_of(">]", mark);
    if (behind == std::string_view::npos) return "";
    rest = Trim(rest.substr(behind + 1));
    std::string_view second = rest.substr(0, rest.find_first_of("<[` \n\t"));
    if (!second.empty()) first = second;
  }
  constexpr std::string_view kNamespace = "functions.";
  if (first.starts_with(kNamespace)) first.remove_prefix(kNamespace.size());
  size_t colon = first.rfind(':');
  if (colon != std::string_view::npos && colon + 1 < first.size() &&
      first.find_first_not_of("0123456789", colon + 1) == std::string_view::npos) {
    first = first.substr(0, colon);
  }
  return first;
}

bool DecodeJsonCall(std::string_view text, const ToolSet&, std::vector<ToolCall>* calls) {
  std::optional<ToolCall> call = ParseJsonCall(text);
  if (!call.has_value()) return false;
  calls->push_back(*std::move(call));
  return true;
}

bool DecodeOfferedJsonCall(std::string_view text, const ToolSet& tools,
                           std::vector<ToolCall>* calls) {
  std::optional<ToolCall> call = ParseJsonCall(text);
  if (!call.has_value() || !tools.Has(call->name)) return false;
  calls->push_back(*std::move(call));
  return true;
}

bool DecodeNamedJson(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls) {
  text = Trim(text);
  if (text.starts_with('{')) return DecodeJsonCall(text, tools, calls);
  size_t brace = text.find('{');
  if (brace == std::string_view::npos) return false;
  std::string_view name = CalledName(text.substr(0, brace));
  if (name.empty()) return false;
  std::string_view object = text.substr(brace);
  constexpr std::string_view kFence = "```";
  if (object.ends_with(kFence)) object.remove_suffix(kFence.size());
  absl::StatusOr<Json> arguments = ParseJsonObject(object);
  if (!arguments.ok()) return false;
  calls->push_back({std::string(name), arguments->dump()});
  return true;
}

bool DecodeTaggedCalls(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls) {
  constexpr TagSet kEquals = {"<function=", "</function>", "<parameter=", ">"};
  constexpr TagSet kAttributes = {"<invoke name=\"", "</invoke>", "<parameter name=\"", "\">"};
  const TagSet& tags =
      text.find(kAttributes.call_open) == std::string_view::npos ? kEquals : kAttributes;
  size_t before = calls->size();
  while (TakeUntil(tags.call_open, &text).has_value()) {
    std::string_view body = TakeUntil(tags.call_close, &text).value_or(text);
    if (!DecodeTaggedCall(body, tags, tools, calls)) {
      calls->resize(before);
      return false;
    }
  }
  return calls->size() > before;
}

bool DecodeArgPairs(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls) {
  constexpr std::string_view kKeyOpen = "<arg_key>";
  std::string_view name = Trim(text.substr(0, text.find(kKeyOpen)));
  if (name.empty() || name.find_first_of("{<\n ") != std::string_view::npos) return false;
  Json arguments = Json::object();
  while (TakeUntil(kKeyOpen, &text).has_value()) {
    std::optional<std::string_view> key = TakeUntil("</arg_key>", &text);
    if (!key.has_value() || !TakeUntil("<arg_value>", &text).has_value()) return false;
    std::optional<std::string_view> value = TakeUntil("</arg_value>", &text);
    if (!value.has_value() || arguments.size() >= kMaxJsonMembers) return false;
    arguments[std::string(Trim(*key))] = TypedValue(*value, tools.TypeOf(name, Trim(*key)));
  }
  calls->push_back({std::string(name), arguments.dump()});
  return true;
}

}  // namespace heddle::server
