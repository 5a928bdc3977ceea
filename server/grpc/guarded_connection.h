// One client of the gRPC front end: passes bytes between the client, plain or inside TLS, and
// gRPC's server, checked by an Http2Guard.
//
// gRPC gets its end of a local socket pair once the client has sent the HTTP/2 preface. Each
// direction has one buffer and one pending operation, so that a side that does not read stops the
// other side.
// Thread: the I/O thread's, as for every TransportConnection.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http2_guard.h"
#include "server/http/linger.h"
#include "server/http/peer_resets.h"
#include "server/http/stream.h"
#include "server/http/transport.h"
#include "server/log.h"

namespace heddle::server {

struct GuardOptions {
  Http2Guard::Limits limits;
  Clock::duration preface_timeout = std::chrono::seconds(10);  // including the TLS handshake
  Clock::duration write_timeout = std::chrono::seconds(30);    // while the client takes no byte
};

class GuardedConnection final : public TransportConnection,
                                public std::enable_shared_from_this<GuardedConnection> {
 public:
  // Shared by all connections; outlives them.
  struct Shared {
    GuardOptions options;
    BodyBudget* bodies;
    PeerResets* resets;
    const Logger* log;
    // Gives the descriptor to gRPC as a connection, which owns it, of a client of that number
    // (peer.h).
    std::function<void(int fd, uint64_t peer)> serve;
    std::function<void(Refusal)> on_refused;
    std::function<void(std::string_view reason)> on_handshake_failed;
    std::function<void()> on_exception;  // within a catch block
  };

  GuardedConnection(std::unique_ptr<Stream> stream, const Shared* shared, ClosedCallback on_closed);

  void Start() override;
  void Leave() override {}  // gRPC tells its clients itself
  void Drain() override;    // gRPC serves no further client; those that it has end when it closes
  void Close() override;
  void OnTick(Clock::time_point now) override;
  Clock::time_point idle_since() const override;

 private:
  // The bytes in transit in one direction.
  struct Way {
    std::string received;  // the buffer that is read into
    std::string waiting;   // to be written next
    std::string in_flight;
    size_t written = 0;
    bool reads = false;
    bool writes = false;
    bool ended = false;  // its source has ended
    Clock::time_point last_write;

    bool is_empty() const { return !writes && waiting.empty(); }
  };

  template <typename Body>
  void Guarded(const Body& body);
  void Begin();
  bool ConnectServer();
  void ReadClient();
  void PauseReading(Clock::duration pause);
  void OnClientBytes(const boost::system::error_code& error, size_t bytes);
  void ReadServer();
  void OnServerBytes(const boost::system::error_code& error, size_t bytes);
  void FlushClient();
  void FlushServer();
  void TakeFrames();
  void EndClient();
  void Cut(const Http2Guard::Fault& fault);
  void CountRefused();

  std::unique_ptr<Stream> stream_;
  boost::asio::local::stream_protocol::socket server_;
  const Shared* shared_;
  ClosedCallback on_closed_;
  Http2Guard guard_;
  Way to_server_;
  Way to_client_;
  Clock::time_point began_;
  Clock::time_point last_activity_;
  bool handshake_done_ = false;
  bool connected_ = false;  // to gRPC
  boost::asio::steady_timer pause_;
  bool is_paused_ = false;  // reads nothing from the client until pause_ is over
  bool is_cut_ = false;     // closes once the client has been told
  Linger linger_;           // begins when gRPC has ended and the kernel has all
  bool closed_ = false;
};

}  // namespace heddle::server
