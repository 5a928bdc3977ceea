#include "server/http/answer_writer.h"

#include <utility>

#include "server/http/responses.h"

namespace heddle::server {

bool AnswerWriter::Send(const std::string& frames) {
  if (!streaming_) {
    streaming_ = true;
    context_->dependencies.metrics->StreamBegan();
    HttpResponse head = TextResponse(format_->content_type(), "");
    AddHeaders(&head);
    writer_->StartStream(std::move(head), format_->keep_alive());
  }
  writer_->Write(frames);
  if (!writer_->is_overfull()) return true;
  context_->dependencies.log->Warning(
      "a client reads too slowly; its request is cancelled",
      {{"request_id", writer_->record().request_id},
       {"buffered_bytes", static_cast<int64_t>(writer_->buffered_bytes())}});
  return false;
}

void AnswerWriter::SendWhole(std::string body) {
  HttpResponse response = JsonResponse(std::move(body));
  AddHeaders(&response);
  writer_->Send(std::move(response));
}

void AnswerWriter::SendAtOnce(const Answer& answer, const std::function<void()>& end) {
  if (!request_->stream) {
    std::string body = answer.Body();
    end();
    return SendWhole(std::move(body));
  }
  const bool is_taken = Send(answer.Frames());
  end();
  is_taken ? writer_->EndStream() : writer_->Abort();
}

void AnswerWriter::SendError(const absl::Status& status) {
  ApiError error = ToApiError(status);
  if (!streaming_) {
    HttpResponse response =
        ErrorResponse(error, format_->ErrorBody(error), context_->options.cors_origin);
    AddWarning(&response);
    writer_->Send(std::move(response));
    return;
  }
  writer_->record().failed_midway = true;
  writer_->Write(format_->ErrorFrames(error));
  writer_->EndStream();
}

void AnswerWriter::Count() {
  if (streaming_) context_->dependencies.metrics->StreamEnded();
}

void AnswerWriter::AddHeaders(HttpResponse* response) const {
  AddWarning(response);
  AddCorsHeaders(context_->options.cors_origin, response);
}

void AnswerWriter::AddWarning(HttpResponse* response) const {
  if (!request_->warning.empty()) {
    response->headers.emplace_back("X-Heddle-Warning", request_->warning);
  }
}

}  // namespace heddle::server
