// One line of a batch as a request: the answer's writer, which has no client.
// Thread: the one that runs batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/batch/batch_input.h"
#include "server/batch/batch_record.h"
#include "server/http/exchange.h"

namespace heddle::server {

class BatchCall final : public ResponseWriter, public std::enable_shared_from_this<BatchCall> {
 public:
  using Done = std::function<void(std::shared_ptr<BatchCall>)>;

  // `on_done` is called once, perhaps within Begin; it must not destroy the call. `number` tells
  // the order in which calls began.
  BatchCall(BatchLine line, uint64_t number, Done on_done)
      : line_(std::move(line)), number_(number), on_done_(std::move(on_done)) {}

  // Makes the request in the name of the batch's owner.
  void Begin(const BatchRecord& batch, std::string request_id, Handler* handler);
  // Takes it back; nothing follows.
  void Cancel(Handler* handler);
  // The answer was taken: the request is reported.
  void Report(Handler* handler);

  // A call that is held gets no steps of the engine.
  void Hold(bool holds);
  bool is_held() const { return is_held_; }

  void OnTick(Clock::time_point now);

  const BatchLine& line() const { return line_; }
  BatchLine TakeLine() { return std::move(line_); }
  const HttpResponse& response() const { return response_; }
  const std::string& request_id() const { return record_.request_id; }
  uint64_t number() const { return number_; }

  // ResponseWriter:
  void Send(HttpResponse response) override;
  void StartStream(HttpResponse head, std::string_view keep_alive) override;
  void Write(std::string_view) override {}
  void EndStream() override { Abort(); }
  size_t buffered_bytes() const override { return 0; }
  bool is_behind() const override { return is_held_; }
  bool is_overfull() const override { return false; }
  void Abort() override;
  RequestRecord& record() override { return record_; }

 private:
  BatchLine line_;
  const uint64_t number_;
  const Done on_done_;
  std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;
  HttpResponse response_;
  Clock::time_point received_;
  bool is_held_ = false;
  bool is_done_ = false;
};

}  // namespace heddle::server
