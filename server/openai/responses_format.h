// The answers of /v1/responses: a response object with items (reasoning, messages, function calls),
// or a stream of typed events, each with its number in the sequence; no "[DONE]".
//
// Streamed: response.created, response.in_progress; per item response.output_item.added, its parts
// and deltas, ...done; at last response.completed, .incomplete or .failed with the whole object.
// Source: OpenAI's API reference, "Responses" and "Streaming events".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer/answer_format.h"
#include "server/openai/conversation_store.h"
#include "server/openai/request_context.h"
#include "server/openai/response_store.h"
#include "server/openai/response_tools.h"

namespace heddle::server {

class JsonWriter;

void WriteResponsesUsage(const Usage& usage, JsonWriter* json);

class ResponsesFormat final : public AnswerFormat {
 public:
  struct Options {
    const TextCodec* codec = nullptr;  // outlives the format
    std::string unique;                // makes this response's ids unique
    int64_t created = 0;               // seconds since 1970
    std::string echo;                  // members that repeat the request
    std::string messages;              // the conversation so far, for the store
    ResponseItems items;               // the same, item by item
    ResponseTools tools;               // what the chat's functions are in this API
    bool background = false;           // it runs without its client
    // The conversation that items from number `first_new_item` on are added to, with the answer's.
    ConversationStore* conversations = nullptr;
    std::string conversation;  // empty: none
    size_t first_new_item = 0;
    ResponseStore* store = nullptr;  // null: the response is not kept
    uint64_t tenant = 0;
  };

  // The pointers outlive the format.
  ResponsesFormat(const ApiRequest* request, const ServedModel* model, Options options);

  // The first events of a response in the background, which are there before it begins.
  std::string QueuedFrames();
  // The response's id.
  std::string id() const;

  bool repeats_at_end() const override { return true; }
  void Begin(const Usage& so_far, std::string* frames) override;
  void BeginChoice(size_t, std::string*) override {}
  void WritePiece(size_t index, const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                  std::string* frames) override;
  void EndChoice(size_t index, const ChoiceResult& result, std::string* frames) override;
  void End(std::span<const ChoiceResult> choices, const Usage& usage, std::string* frames) override;
  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorFrames(const ApiError& error) override;

 private:
  void OpenItem(OutputPiece item, std::string* frames);
  void CloseItem(std::string* frames, bool cut = false);
  void WriteArguments(const OutputPiece& piece, std::string* frames);
  void WriteCallDone(std::string* frames);
  std::string CallPlace() const;  // "item_id" and "output_index" of the open call
  std::string_view PrefixOf(const OutputPiece& piece) const;
  void WriteEvent(std::string_view type, std::string_view members, std::string* frames);
  void WriteResponseEvent(std::string_view type, std::string_view response, std::string* frames);
  std::string Place() const;  // "item_id", "output_index" and "content_index" of the open item
  std::string PartJson(const OutputPiece& piece, std::span<const ChoiceToken> tokens) const;
  std::string ItemJson(const OutputPiece& piece, std::span<const ChoiceToken> tokens, size_t number,
                       std::string_view status) const;
  std::string Response(std::string_view status, std::span<const ChoiceResult> choices,
                       const Usage* usage, const ApiError* error) const;
  void Keep(const ChoiceResult& result, const std::string& body) const;
  void AddToConversation(const std::string& body) const;

  // The API's tool of a call, if it is no plain function; nullptr otherwise.
  const ResponseTool* ToolOf(const OutputPiece& piece) const {
    return options_.tools.Of(piece.call.name);
  }

  const ApiRequest* request_;
  const ServedModel* model_;
  Options options_;
  int64_t sequence_ = 0;
  size_t n_items_ = 0;                    // begun so far
  bool open_ = false;                     // whether the last of them is open
  OutputPiece item_;                      // the open one, with its text so far
  std::vector<ChoiceToken> item_tokens_;  // tokens of its text, if logprobs were asked for
};

}  // namespace heddle::server
