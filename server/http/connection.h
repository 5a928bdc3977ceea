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
// Over TLS, the time for the first request's header includes the handshake.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http/exchange.h"
#include "server/http/request_parser.h"
#include "server/http/stream.h"

namespace heddle::server {

// Bytes that the clients of all connections have not taken yet. A connection may hold max_bytes,
// or, where many clients do not read, its share of what is left of the whole: the limit sinks as
// the sum grows (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2),
// 1998). No limit is below kLeast, which those who read never reach.
// Thread-safety: any thread.
class UnsentBytes {
 public:
  // What 500 clients that stop reading may cost: 264 KB each, and 134 MB together.
  static constexpr int64_t kMaxTotal = int64_t{128} << 20;
  static constexpr int64_t kShareOfRest = 8;
  static constexpr int64_t kLeast = int64_t{32} << 10;

  void Add(int64_t bytes) { total_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t total() const { return total_.load(std::memory_order_relaxed); }
  size_t Limit(size_t max_bytes) const {
    const int64_t share = std::max(kLeast, (kMaxTotal - total()) / kShareOfRest);
    return std::min(max_bytes, static_cast<size_t>(share));
  }

 private:
  std::atomic<int64_t> total_ = 0;
};

struct ConnectionLimits {
  ParserLimits parser;
  Clock::duration header_timeout = std::chrono::seconds(10);  // first byte to end of header
  Clock::duration body_timeout = std::chrono::seconds(30);    // end of header to end of body
  Clock::duration idle_timeout = std::chrono::seconds(75);    // between requests
  Clock::duration write_timeout = std::chrono::seconds(30);   // without the client taking a byte
  Clock::duration keep_alive_interval = std::chrono::seconds(15);  // of a silent stream
  size_t max_unsent_bytes = size_t{1} << 20;  // what a client may leave unread of a stream
};

class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  using ClosedCallback = std::function<void(Connection*)>;

  // `handler`, `limits` and `unsent` outlive the connection; `on_closed` is called once.
  Connection(std::unique_ptr<Stream> stream, Handler* handler, const ConnectionLimits& limits,
             UnsentBytes* unsent, std::function<std::string()> new_request_id,
             ClosedCallback on_closed);
  ~Connection() override;

  void Start();

  // Goes on, but the next answer is the last: it tells the client so.
  void Leave() { leaving_ = true; }

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
  bool is_overfull() const override;
  void Abort() override;
  RequestRecord& record() override { return record_; }

 private:
  enum class State : uint8_t {
    kHandshake,  // of TLS
    kIdle,       // no byte of the next request has come
    kReading,    // in its header or body
    kHandling,   // an exchange is in progress, or its answer is being written
    kLingering,  // everything is sent; waits for the client to close
    kClosed,
  };

  void OnHandshake(const boost::system::error_code& error);
  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void Parse();
  void Dispatch();
  // The client's own where it sent one that is fit, else a new one.
  std::string RequestIdOf(const HttpRequest& request) const;
  void FailReading(int status, std::string_view message);
  void OnClientGone();
  void CountUnsent();
  void AppendAnswerHeaders(HttpResponse* response);
  void Flush();
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void FinishRequest();
  void ReleaseBuffers();
  void BeginNextRequest();
  void Linger();
  void Report(bool cancelled);

  std::unique_ptr<Stream> stream_;
  Handler* handler_;
  const ConnectionLimits& limits_;
  UnsentBytes* unsent_;
  std::function<std::string()> new_request_id_;
  ClosedCallback on_closed_;

  State state_ = State::kIdle;
  bool leaving_ = false;
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
  size_t counted_unsent_ = 0;  // in the sum of all connections
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
