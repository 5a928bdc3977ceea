// One TCP connection: reads requests, hands them to the Handler one after the other, writes the
// answers in order.
//
// Thread: all members are called on the I/O thread that owns the connection. Kept alive by its
// thread's list and by its own pending operations.
//
// Reading never stops while a request is answered, so that a client that leaves is seen at once
// (the end of its stream, also of its sending half, counts as leaving); pipelined requests wait in
// the buffer, and once that is full the kernel's buffers push back on the client.
// Time limits are checked by OnTick, a few times a second, and not by a timer per connection.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http/exchange.h"
#include "server/http/request_parser.h"

namespace heddle::server {

struct ConnectionLimits {
  ParserLimits parser;
  Clock::duration header_timeout = std::chrono::seconds(10);  // first byte to end of header
  Clock::duration body_timeout = std::chrono::seconds(30);    // end of header to end of body
  Clock::duration idle_timeout = std::chrono::seconds(75);    // between requests
  Clock::duration write_timeout = std::chrono::seconds(30);   // without the client taking a byte
  Clock::duration keep_alive_interval = std::chrono::seconds(15);  // of a silent stream
};

class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using ClosedCallback = std::function<void(Connection*)>;

  // `handler` and `limits` outlive the connection; `on_closed` is called once.
  Connection(Socket socket, Handler* handler, const ConnectionLimits& limits,
             std::function<std::string()> new_request_id, ClosedCallback on_closed);
  ~Connection() override;

  void Start();

  // Closes now if idle, otherwise after the request in hand.
  void Drain();

  // Closes now; an exchange in progress is told.
  void Close();

  void OnTick(Clock::time_point now);

  // ResponseWriter:
  void Send(HttpResponse response) override;
  void StartStream(HttpResponse head, std::string_view keep_alive) override;
  void Write(std::string_view data) override;
  void EndStream() override;
  size_t buffered_bytes() const override;
  void Abort() override;
  RequestRecord& record() override { return record_; }

 private:
  enum class State : uint8_t {
    kIdle,       // no byte of the next request has come
    kReading,    // in its header or body
    kHandling,   // an exchange is in progress, or its answer is being written
    kLingering,  // everything is sent; waits for the client to close
    kClosed,
  };

  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void Parse();
  void Dispatch();
  void FailReading(int status, std::string_view message);
  void OnClientGone();
  void AppendAnswerHeaders(HttpResponse* response);
  void Flush();
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void FinishRequest();
  void BeginNextRequest();
  void Linger();
  void Report(bool cancelled);

  Socket socket_;
  Handler* handler_;
  const ConnectionLimits& limits_;
  std::function<std::string()> new_request_id_;
  ClosedCallback on_closed_;

  State state_ = State::kIdle;
  bool draining_ = false;
  Clock::time_point deadline_;  // of the state, kHandling apart

  std::string input_;  // received and not yet parsed
  std::string receive_buffer_;
  bool read_in_flight_ = false;
  size_t lingered_bytes_ = 0;
  std::unique_ptr<RequestParser> parser_;
  bool continue_sent_ = false;

  std::string outgoing_;   // to be written next
  std::string in_flight_;  // being written; [0, written_) is out
  size_t written_ = 0;
  bool write_in_flight_ = false;
  Clock::time_point last_write_;

  // Of the request in hand.
  std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;
  Clock::time_point received_;
  bool head_only_ = false;
  bool http11_ = true;
  bool keep_alive_ = false;
  bool streaming_ = false;
  bool response_done_ = false;  // the answer's last byte is in outgoing_ or out
  std::string stream_keep_alive_;
};

}  // namespace heddle::server
