// One TCP connection that speaks HTTP/1.1: reads requests, hands them to the Handler one after the
// other, writes the answers in order.
//
// Thread: all members are called on the I/O thread that owns the connection. The thread's list and
// the connection's own pending operations keep it alive.
//
// Reading continues while a request is answered, so that a client that leaves is seen at once
// (ending its stream, or its sending half, counts as leaving). Pipelined requests wait in the
// buffer; once that is full the kernel's buffers push back on the client. A client whose body does
// not fit into the memory that all bodies share waits in the same way (body_budget.h).
// Requests that are not permitted are refused by their header alone. An exception (out of memory)
// ends only this connection.
// OnTick, called a few times a second, checks time limits, instead of a timer per connection.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/body_budget.h"
#include "server/http/exchange.h"
#include "server/http/linger.h"
#include "server/http/peer_resets.h"
#include "server/http/reading_pace.h"
#include "server/http/request_parser.h"
#include "server/http/stream.h"
#include "server/http/transport.h"

namespace heddle::server {

// Bytes that the clients of all connections have not taken yet. A connection may hold max_bytes or,
// if many clients do not read, its share of the free part: the limit sinks as the sum grows
// (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). No
// limit is below kLeast, which clients that read never reach.
// Thread-safety: any thread.
class UnsentBytes {
 public:
  // Cost of 500 clients that stop reading: 264 KB each, and 134 MB together.
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
  // Time without a byte after which a body that others wait for is refused; also the time after
  // which a connection whose body still arrives may be closed for a new one.
  Clock::duration body_stall_timeout = std::chrono::seconds(2);
  Clock::duration idle_timeout = std::chrono::seconds(75);         // between requests
  Clock::duration write_timeout = std::chrono::seconds(30);        // while the client takes no byte
  Clock::duration keep_alive_interval = std::chrono::seconds(15);  // of a silent stream
  size_t max_unsent_bytes = size_t{1} << 20;  // bytes of a stream that a client may leave unread
};

// TransportConnection::idle_since of a connection whose request's body has been arriving since
// `begun`, and came last at `last_byte`. For a short time it is busy. Later its time is one to
// come, behind those of idle connections: a body that has stopped goes first. Without that, clients
// that send their bodies byte by byte would hold all connections, also those that probes of /health
// need.
inline Clock::time_point MayGiveWaySince(Clock::time_point begun, Clock::time_point last_byte,
                                         const ConnectionLimits& limits) {
  if (Clock::now() - begun < limits.body_stall_timeout) return Clock::time_point::max();
  return last_byte + limits.body_timeout;
}

class Connection final : public ResponseWriter,
                         public TransportConnection,
                         public std::enable_shared_from_this<Connection> {
 public:
  // Shared by all connections; outlives them.
  struct Shared {
    const ConnectionLimits* limits;
    UnsentBytes* unsent;
    BodyBudget* bodies;
    PeerResets* resets;  // of HTTP/2
  };

  // `stream`: after its handshake; `first_bytes`: what was read of it. `handler` must outlive the
  // connection; `on_closed` is called once.
  Connection(std::unique_ptr<Stream> stream, std::string first_bytes, Handler* handler,
             const Shared& shared, std::function<std::string()> new_request_id,
             ClosedCallback on_closed);
  ~Connection() override;

  // TransportConnection:
  void Start() override;
  void Leave() override { leaving_ = true; }  // the answer tells the client
  void Drain() override;                      // closes after the current request
  void Close() override;                      // tells a running exchange
  void OnTick(Clock::time_point now) override;
  // A request without a complete header does not count, and one whose body is slow counts little.
  Clock::time_point idle_since() const override;

  // ResponseWriter:
  void Send(HttpResponse response) override;
  void StartStream(HttpResponse head, std::string_view keep_alive) override;
  void Write(std::string_view data) override;
  void EndStream() override;
  size_t buffered_bytes() const override;
  bool is_behind() const override { return pace_.is_behind(); }
  bool is_overfull() const override;
  void Abort() override;
  RequestRecord& record() override { return record_; }

 private:
  enum class State : uint8_t {
    kIdle,       // no byte of the next request has arrived
    kReading,    // in its header or body
    kHandling,   // an exchange is in progress, or its answer is being written
    kLingering,  // all is sent; waits for the client to close
    kClosed,
  };

  // Runs a callback's `body`; an exception closes the connection.
  template <typename Body>
  void Guarded(const Body& body);
  void OnException();  // within a catch block
  void Begin();
  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void Parse();
  bool SkipRefusedBody();
  void OnHead();
  void Refuse(HttpResponse response);
  void BeginAnswer(const HttpRequest& request);
  void AskForBodyMemory();
  void OnBodyMemory();
  void SendContinue();
  void CheckTimes(Clock::time_point now);
  void OnReadingTick(Clock::time_point now);
  void Dispatch();
  // The client's own id if it is acceptable, else a new one.
  std::string RequestIdOf(const HttpRequest& request) const;
  void FailReading(int status, std::string_view message, Refusal refusal);
  void FailReading(int status, std::string_view message);
  void OnClientGone();
  void CountUnsent();
  void AppendAnswerHeaders(HttpResponse* response);
  void Flush();
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void FinishRequest();
  void ReleaseBuffers();
  void BeginNextRequest();
  void EndSending();
  void Report(bool cancelled);

  std::unique_ptr<Stream> stream_;
  Handler* handler_;
  const ConnectionLimits& limits_;
  UnsentBytes* unsent_;
  BodyBudget* bodies_;
  std::function<std::string()> new_request_id_;
  ClosedCallback on_closed_;

  State state_ = State::kIdle;
  bool leaving_ = false;
  bool draining_ = false;
  Clock::time_point deadline_;  // of kIdle and kReading
  Linger linger_;               // of kLingering

  std::string input_;  // received and not yet parsed
  std::string receive_buffer_;
  bool read_in_flight_ = false;
  std::unique_ptr<RequestParser> parser_;
  bool continue_sent_ = false;
  bool head_checked_ = false;
  Clock::time_point body_since_;      // when the body began to arrive, or could
  BodyBudget::Place body_place_;      // of the body being received, if it needs one
  Clock::time_point last_body_byte_;  // or the time of its admission
  uint64_t refused_body_bytes_ = 0;   // still to arrive and to be dropped
  Clock::time_point idle_since_;

  std::string outgoing_;   // to be written next
  std::string in_flight_;  // being written; [0, written_) is sent
  size_t written_ = 0;
  size_t counted_unsent_ = 0;  // part of the sum of all connections
  bool write_in_flight_ = false;
  ReadingPace pace_;
  Clock::time_point last_write_;

  // These belong to the current request.
  std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;
  Clock::time_point received_;
  bool head_only_ = false;
  bool http11_ = true;
  bool keep_alive_ = false;
  bool streaming_ = false;
  bool response_done_ = false;  // the answer's last byte is in outgoing_ or sent
  std::string stream_keep_alive_;
};

template <typename Body>
void Connection::Guarded(const Body& body) {
  try {
    body();
  } catch (...) {
    OnException();
  }
}

}  // namespace heddle::server
