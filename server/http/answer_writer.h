// Sends the answer of one request to its client, whole or as a stream. An error before the first
// frame is a real HTTP status, because the head of a stream is only sent with its first frame; a
// later one is an error frame, and the stream still ends in order.
// Thread: the connection's I/O thread.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/answer/answer.h"
#include "server/answer/api_request.h"
#include "server/http/exchange.h"
#include "server/http/server_context.h"

namespace heddle::server {

class AnswerWriter {
 public:
  // The arguments outlive it.
  AnswerWriter(ServerContext* context, ResponseWriter* writer, const ApiRequest* request,
               AnswerFormat* format)
      : context_(context), writer_(writer), request_(request), format_(format) {}

  // Sends frames of a stream. False: the client leaves too much unread; a log line says so, and the
  // request is to be cancelled and its connection aborted.
  bool Send(const std::string& frames);
  bool streaming() const { return streaming_; }

  // Each of these ends the exchange at the transport: whatever else ends comes before.
  void EndStream() { writer_->EndStream(); }
  void SendWhole(std::string body);
  // Sends an answer that comes at once, whole or as the stream that its client asked for. Calls
  // `end`, in which all else ends, before the exchange ends at the transport.
  void SendAtOnce(const Answer& answer, const std::function<void()>& end);
  void SendError(const absl::Status& status);

  // Counts the end of the stream, if there was one. Call once.
  void Count();

 private:
  void AddHeaders(HttpResponse* response) const;
  void AddWarning(HttpResponse* response) const;

  ServerContext* context_;
  ResponseWriter* writer_;
  const ApiRequest* request_;
  AnswerFormat* format_;
  bool streaming_ = false;
};

}  // namespace heddle::server
