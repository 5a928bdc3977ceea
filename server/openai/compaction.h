// POST /v1/responses/compact: a conversation becomes the user's messages and one item with a
// summary that the model wrote, to go on from with less context.
// The item is opaque to clients (`encrypted_content`): a mark of ours and the text in base64. It
// holds nothing that its owner did not send or get, so there is nothing to keep secret in it.
// Source: OpenAI's API reference, "Compact a response".
// Thread-safety: pure functions; a format belongs to one answer.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/answer/answer_format.h"
#include "server/openai/request_context.h"
#include "server/openai/response_store.h"

namespace heddle::server {

// The content of an item for a summary, and back. INVALID_ARGUMENT: it is none of ours.
std::string PackSummary(std::string_view summary);
absl::StatusOr<std::string> UnpackSummary(std::string_view content);

// The instruction to the model behind the conversation: to summarise it.
std::string_view SummaryInstruction();
// The message that stands for a summary in a later conversation.
std::string SummaryMessage(std::string_view summary);

class CompactionFormat final : public AnswerFormat {
 public:
  CompactionFormat(std::string unique, int64_t created, ResponseItems users)
      : unique_(std::move(unique)), created_(created), users_(std::move(users)) {}

  void BeginChoice(size_t, std::string*) override {}
  void WritePiece(size_t, const OutputPiece&, std::span<const ChoiceToken>, std::string*) override {
  }
  void EndChoice(size_t, const ChoiceResult&, std::string*) override {}
  void End(std::span<const ChoiceResult>, const Usage&, std::string*) override {}
  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorFrames(const ApiError& error) override { return ErrorJson(error); }

 private:
  const std::string unique_;
  const int64_t created_;
  const ResponseItems users_;
};

}  // namespace heddle::server
