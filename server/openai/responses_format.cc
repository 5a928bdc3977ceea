#include "server/openai/responses_format.h"

#include <utility>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/answer/logprobs.h"
#include "server/json_writer.h"
#include "server/openai/input_items.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

using Kind = OutputPiece::Kind;

// Whether the call is of a tool whose input is no text of JSON, so that it is sent when it is
// whole.
bool ComesWhole(const ResponseTool* tool) {
  return tool != nullptr && tool->kind != ResponseTool::Kind::kFunction;
}

// `cut`: the answer ended in the middle of the piece. A call that the length limit cut off is
// incomplete.
std::string_view ItemStatus(const OutputPiece& piece, bool cut) {
  if (piece.kind == Kind::kCall) cut = !piece.ends_call;
  return cut ? "incomplete" : "completed";
}

std::string_view EndStatus(const ChoiceResult& result) {
  return result.reason == EndReason::kLength ? "incomplete" : "completed";
}

}  // namespace

void WriteResponsesUsage(const Usage& usage, JsonWriter* json) {
  json->BeginObject().Member("input_tokens", usage.prompt_tokens);
  json->Key("input_tokens_details").BeginObject();
  json->Member("cached_tokens", usage.cached_tokens).EndObject();
  json->Member("output_tokens", usage.completion_tokens);
  json->Key("output_tokens_details").BeginObject();
  json->Member("reasoning_tokens", usage.reasoning_tokens).EndObject();
  json->Member("total_tokens", usage.prompt_tokens + usage.completion_tokens).EndObject();
}

std::string ResponsesFormat::PartJson(const OutputPiece& piece,
                                      std::span<const ChoiceToken> tokens) const {
  std::string out;
  JsonWriter json(&out);
  const bool reasoning = piece.kind == Kind::kReasoning;
  json.BeginObject().Member("type", reasoning ? "reasoning_text" : "output_text");
  json.Member("text", piece.text);
  if (!reasoning) {
    json.Key("annotations").BeginArray().EndArray().Key("logprobs");
    WriteTokenLogprobs(tokens, request_->top_logprobs, *options_.codec, &json);
  }
  json.EndObject();
  return out;
}

ResponsesFormat::ResponsesFormat(const ApiRequest* request, const ServedModel* model,
                                 Options options)
    : request_(request), model_(model), options_(std::move(options)) {}

std::string ResponsesFormat::id() const { return base::StrCat("resp_", options_.unique); }

std::string ResponsesFormat::QueuedFrames() {
  std::string frames;
  const std::string response = Response("queued", {}, nullptr, nullptr);
  WriteResponseEvent("response.created", response, &frames);
  WriteResponseEvent("response.queued", response, &frames);
  return frames;
}

void ResponsesFormat::Begin(const Usage&, std::string* frames) {
  const std::string response = Response("in_progress", {}, nullptr, nullptr);
  if (!options_.background) WriteResponseEvent("response.created", response, frames);
  WriteResponseEvent("response.in_progress", response, frames);
}

void ResponsesFormat::WritePiece(size_t, const OutputPiece& piece,
                                 std::span<const ChoiceToken> tokens, std::string* frames) {
  if (piece.kind == Kind::kArguments) {
    WriteArguments(piece, frames);
    return;
  }
  if (open_ && item_.kind != piece.kind) CloseItem(frames);
  if (piece.kind == Kind::kCall) {
    if (open_) CloseItem(frames);
    OpenItem({Kind::kCall, "", {piece.call.name, ""}}, frames);
    WriteArguments({Kind::kArguments, piece.call.arguments, {}, piece.ends_call}, frames);
    return;
  }
  if (piece.text.empty()) return;
  if (!open_) OpenItem({piece.kind, "", {}}, frames);
  item_.text.append(piece.text);
  item_tokens_.insert(item_tokens_.end(), tokens.begin(), tokens.end());
  std::string members = Place();
  JsonWriter json(&members);
  members.push_back(',');
  json.Member("delta", piece.text);
  if (piece.kind == Kind::kContent) {
    json.Key("logprobs");
    WriteTokenLogprobs(tokens, request_->top_logprobs, *options_.codec, &json);
  }
  WriteEvent(piece.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                            : "response.output_text.delta",
             members, frames);
}

void ResponsesFormat::OpenItem(OutputPiece item, std::string* frames) {
  item_ = std::move(item);
  item_tokens_.clear();
  open_ = true;
  ++n_items_;
  WriteEvent("response.output_item.added",
             base::StrCat("\"output_index\":", n_items_ - 1,
                          ",\"item\":", ItemJson(item_, {}, n_items_ - 1, "in_progress")),
             frames);
  if (item_.kind == Kind::kCall) return;
  WriteEvent("response.content_part.added",
             base::StrCat(Place(), ",\"part\":", PartJson(item_, {})), frames);
}

void ResponsesFormat::CloseItem(std::string* frames, bool cut) {
  open_ = false;
  bool reasoning = item_.kind == Kind::kReasoning;
  if (item_.kind == Kind::kCall) {
    WriteCallDone(frames);
  } else {
    std::string members = Place();
    JsonWriter json(&members);
    members.push_back(',');
    json.Member("text", item_.text);
    if (!reasoning) {
      json.Key("logprobs");
      WriteTokenLogprobs(item_tokens_, request_->top_logprobs, *options_.codec, &json);
    }
    WriteEvent(reasoning ? "response.reasoning_text.done" : "response.output_text.done", members,
               frames);
    WriteEvent("response.content_part.done",
               base::StrCat(Place(), ",\"part\":", PartJson(item_, item_tokens_)), frames);
  }
  WriteEvent("response.output_item.done",
             base::StrCat("\"output_index\":", n_items_ - 1, ",\"item\":",
                          ItemJson(item_, item_tokens_, n_items_ - 1, ItemStatus(item_, cut))),
             frames);
}

// Writes the end of the open call's arguments.
void ResponsesFormat::WriteCallDone(std::string* frames) {
  const ResponseTool* tool = ToolOf(item_);
  if (tool != nullptr && tool->kind == ResponseTool::Kind::kClient) return;
  std::string done = CallPlace();
  JsonWriter json(&done);
  if (ComesWhole(tool)) {
    const std::string input = CustomInput(item_.call);
    std::string delta = CallPlace();
    JsonWriter(&delta).Member("delta", input);
    WriteEvent("response.custom_tool_call_input.delta", delta, frames);
    json.Member("input", input);
    WriteEvent("response.custom_tool_call_input.done", done, frames);
    return;
  }
  json.Member("name", tool == nullptr ? item_.call.name : tool->name);
  json.Member("arguments", item_.call.arguments);
  WriteEvent("response.function_call_arguments.done", done, frames);
}

// Writes arguments of the open call.
void ResponsesFormat::WriteArguments(const OutputPiece& piece, std::string* frames) {
  item_.call.arguments.append(piece.text);
  item_.ends_call = piece.ends_call;
  if (!piece.text.empty() && !ComesWhole(ToolOf(item_))) {
    std::string delta = CallPlace();
    JsonWriter(&delta).Member("delta", piece.text);
    WriteEvent("response.function_call_arguments.delta", delta, frames);
  }
  if (piece.ends_call) CloseItem(frames);
}

std::string_view ResponsesFormat::PrefixOf(const OutputPiece& piece) const {
  switch (piece.kind) {
    case Kind::kReasoning:
      return "rs";
    case Kind::kCall:
    case Kind::kArguments:
      return CallPrefix(ToolOf(piece));
    case Kind::kContent:
      break;
  }
  return "msg";
}

std::string ResponsesFormat::CallPlace() const {
  return base::StrCat("\"item_id\":\"", PrefixOf(item_), "_", options_.unique, "_", n_items_ - 1,
                      "\",\"output_index\":", n_items_ - 1, ",");
}

void ResponsesFormat::EndChoice(size_t, const ChoiceResult& result, std::string* frames) {
  if (open_) CloseItem(frames, /*cut=*/result.reason == EndReason::kLength);
}

void ResponsesFormat::End(std::span<const ChoiceResult> choices, const Usage& usage,
                          std::string* frames) {
  std::string_view status = EndStatus(choices.front());
  std::string body = Response(status, choices, &usage, nullptr);
  WriteResponseEvent(base::StrCat("response.", status), body, frames);
  Keep(choices.front(), body);
}

std::string ResponsesFormat::Body(std::span<const ChoiceResult> choices, const Usage& usage) const {
  std::string body = Response(EndStatus(choices.front()), choices, &usage, nullptr);
  Keep(choices.front(), body);
  return body;
}

std::string ResponsesFormat::ErrorFrames(const ApiError& error) {
  std::string frames;
  if (open_) CloseItem(&frames, /*cut=*/true);
  WriteResponseEvent("response.failed", Response("failed", {}, nullptr, &error), &frames);
  return frames;
}

// `members` are those besides type and number.
void ResponsesFormat::WriteEvent(std::string_view type, std::string_view members,
                                 std::string* frames) {
  frames->append("event: ").append(type).append("\ndata: ");
  JsonWriter(frames).BeginObject().Member("type", type).Member("sequence_number", sequence_++);
  frames->append(",").append(members).append("}\n\n");
}

void ResponsesFormat::WriteResponseEvent(std::string_view type, std::string_view response,
                                         std::string* frames) {
  WriteEvent(type, base::StrCat("\"response\":", response), frames);
}

std::string ResponsesFormat::Place() const {
  return base::StrCat("\"item_id\":\"", PrefixOf(item_), "_", options_.unique, "_", n_items_ - 1,
                      "\",\"output_index\":", n_items_ - 1, ",\"content_index\":0");
}

std::string ResponsesFormat::ItemJson(const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                                      size_t number, std::string_view status) const {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", base::StrCat(PrefixOf(piece), "_", options_.unique, "_", number));
  bool empty = piece.text.empty() && status == "in_progress";
  std::string parts = empty ? "[]" : base::StrCat("[", PartJson(piece, tokens), "]");
  if (piece.kind == Kind::kCall) {
    WriteCallItem(ToolOf(piece), piece.call,
                  ToolCallId(request_->syntax, options_.unique, 0, number), status, &json);
  } else if (piece.kind == Kind::kReasoning) {
    json.Member("type", "reasoning").Member("status", status);
    json.Key("summary").BeginArray().EndArray().Key("content").Raw(parts);
  } else {
    json.Member("type", "message").Member("status", status).Member("role", "assistant");
    json.Key("content").Raw(parts);
  }
  json.EndObject();
  return out;
}

// The response object. `choices` is empty while there is no output.
std::string ResponsesFormat::Response(std::string_view status,
                                      std::span<const ChoiceResult> choices, const Usage* usage,
                                      const ApiError* error) const {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", id());
  json.Member("object", "response").Member("created_at", options_.created);
  json.Member("status", status).Key("background").Bool(options_.background).Key("error");
  if (error == nullptr) {
    json.Null();
  } else {
    json.BeginObject().Member("code", "server_error").Member("message", error->message).EndObject();
  }
  json.Key("incomplete_details");
  if (status == "incomplete") {
    json.BeginObject().Member("reason", "max_output_tokens").EndObject();
  } else {
    json.Null();
  }
  json.Member("model", request_->model.shown).Key("output").BeginArray();
  for (const ChoiceResult& choice : choices) {
    for (size_t i = 0; i < choice.pieces.size(); ++i) {
      const OutputPiece& piece = choice.pieces[i];
      const bool cut = status == "incomplete" && i + 1 == choice.pieces.size();
      json.Raw(ItemJson(piece, choice.TokensOf(i), i, ItemStatus(piece, cut)));
    }
  }
  json.EndArray().Key("usage");
  usage == nullptr ? void(json.Null()) : WriteResponsesUsage(*usage, &json);
  out.append(",").append(options_.echo).append("}");
  return out;
}

// Without effect if the conversation was deleted meanwhile, or has no more room.
void ResponsesFormat::AddToConversation(const std::string& body) const {
  ResponseItems added(options_.items.begin() + static_cast<ptrdiff_t>(options_.first_new_item),
                      options_.items.end());
  AddOutputItems(body, &added);
  options_.conversations->Append(options_.conversation, options_.tenant, added)
      .status()
      .IgnoreError();
}

// Stores the conversation with this answer as its last message.
void ResponsesFormat::Keep(const ChoiceResult& result, const std::string& body) const {
  if (!options_.conversation.empty()) AddToConversation(body);
  if (options_.store == nullptr) return;
  Json messages = Json::parse(options_.messages);  // our own text
  Json turn = {{"role", "assistant"}, {"content", result.Text(Kind::kContent)}};
  std::string reasoning = result.Text(Kind::kReasoning);
  if (!reasoning.empty()) turn["reasoning_content"] = std::move(reasoning);
  size_t number = 0;
  for (const OutputPiece& piece : result.pieces) {
    if (piece.kind == Kind::kCall && piece.ends_call) {
      turn["tool_calls"].push_back(
          {{"id", ToolCallId(request_->syntax, options_.unique, 0, number)},
           {"type", "function"},
           {"function", {{"name", piece.call.name}, {"arguments", piece.call.arguments}}}});
    }
    ++number;
  }
  messages.push_back(std::move(turn));
  options_.store->Put(id(), {options_.tenant, messages.dump(), body, options_.items});
}

}  // namespace heddle::server
