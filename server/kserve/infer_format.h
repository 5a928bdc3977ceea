// The answer of the Open Inference Protocol's infer: the tensor "text_output" with the text of each
// choice.
#pragma once

#include <string>

#include "server/answer/answer_format.h"
#include "server/answer/api_request.h"

namespace heddle::server {

class InferFormat final : public AnswerFormat {
 public:
  // `request` outlives the format. `id`: the client's, or empty.
  InferFormat(const ApiRequest* request, std::string id) : request_(request), id_(std::move(id)) {}

  // Answers are not streamed.
  void BeginChoice(size_t, std::string*) override {}
  void WritePiece(size_t, const OutputPiece&, std::span<const ChoiceToken>, std::string*) override {
  }
  void EndChoice(size_t, const ChoiceResult&, std::string*) override {}
  void End(std::span<const ChoiceResult>, const Usage&, std::string*) override {}

  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorBody(const ApiError& error) const override;
  std::string ErrorFrames(const ApiError& error) override { return ErrorBody(error); }

 private:
  const ApiRequest* request_;
  std::string id_;
};

// {"error": MESSAGE}
std::string InferErrorJson(const ApiError& error);

}  // namespace heddle::server
