// One stream of an HTTP/2 connection: a request in reception, and then the writer of its answer.
// Private to Http2Connection.
// Thread: the connection's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/body_budget.h"
#include "server/http/exchange.h"
#include "server/http/http2_session.h"
#include "server/http/reading_pace.h"

namespace heddle::server {

class Http2Connection;

class Http2Call final : public ResponseWriter, public std::enable_shared_from_this<Http2Call> {
 public:
  // `connection` outlives the call's activity, which ends with OnClosed.
  Http2Call(Http2Connection* connection, int32_t id) : connection_(connection), id_(id) {}

  // The request's header; `ends`: it has no body.
  void OnHead(Http2Head head, bool ends);
  void OnBody(std::string_view bytes);
  void OnBodyEnd();
  // The answer's last frame is on its way.
  void OnAnswered();
  // The stream is over; nothing is called any more.
  void OnClosed();
  void OnTick(Clock::time_point now);
  // Frames were made: tells the exchange what its client has taken.
  void OnSent(Clock::time_point now);
  size_t unsent_bytes() const;
  // Since when the request's body has been arriving; the end of time if it waits for memory, or is
  // whole.
  Clock::time_point body_since() const;
  Clock::time_point last_body_byte() const { return last_body_byte_; }

  // ResponseWriter:
  void Send(HttpResponse response) override;
  void StartStream(HttpResponse head, std::string_view keep_alive) override;
  void Write(std::string_view data) override;
  void EndStream() override;
  size_t buffered_bytes() const override { return unsent_bytes(); }
  bool is_behind() const override { return pace_.is_behind(); }
  bool is_overfull() const override;
  void Abort() override;
  RequestRecord& record() override { return record_; }

 private:
  enum class State : uint8_t { kReading, kHandling, kOver };

  void Refuse(int status, std::string_view message);
  void AskForBodyMemory();
  void OnBodyMemory();
  void Dispatch();
  void Respond(const HttpResponse& response, std::optional<size_t> body_bytes, bool has_body);
  void Report(bool cancelled);

  Http2Connection* const connection_;
  const int32_t id_;
  State state_ = State::kReading;
  HttpRequest request_;
  std::optional<uint64_t> body_length_;
  bool expects_continue_ = false;
  bool request_ended_ = false;
  BodyBudget::Place body_place_;
  Clock::time_point body_since_;      // when the body began to arrive, or could
  Clock::time_point deadline_;        // of the body
  Clock::time_point last_body_byte_;  // or the time of its admission
  std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;
  Clock::time_point received_;
  bool head_only_ = false;
  bool streaming_ = false;
  bool response_done_ = false;
  bool is_reported_ = false;
  std::string keep_alive_;
  ReadingPace pace_;
  size_t last_unsent_ = 0;
  Clock::time_point last_progress_;  // when something was written, or its client took something
};

}  // namespace heddle::server
