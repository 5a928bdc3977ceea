// HTTP/2 of one connection, without its socket: bytes in, requests out; answers in, bytes out.
// nghttp2 keeps the protocol (RFC 9113, RFC 7541); this class bounds what a client may cost.
//
// Bounds: streams at a time; the size of a header, while it is decoded; what is received of bodies
// and not yet taken: a stream's window opens only as far as its reader says (Accept). What a client
// sends that carries nothing, and what it takes back, is bounded before (http2_guard.h).
// Thread-safety: none; belongs to its connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/http/http_message.h"

struct nghttp2_session;

namespace heddle::server {

// A stream's header, as it came.
struct Http2Head {
  std::string method;
  std::string path;  // the target: path and query
  std::string authority;
  std::vector<std::pair<std::string, std::string>> headers;  // without those that begin with ':'
  bool is_too_large = false;  // beyond the limit; what is above is not all
};

// Events of a connection's streams. Called within Receive, if nothing else is said.
class Http2Events {
 public:
  virtual ~Http2Events() = default;

  // A request's header is whole. `ends`: it has no body.
  virtual void OnHead(int32_t stream, Http2Head head, bool ends) = 0;
  virtual void OnBody(int32_t stream, std::string_view bytes) = 0;
  virtual void OnBodyEnd(int32_t stream) = 0;
  // The answer's last frame was made. Called within Next.
  virtual void OnAnswered(int32_t stream) = 0;
  // The stream is over, by either side. `by_client`: it was reset. Called within Receive and Next.
  virtual void OnClosed(int32_t stream, bool by_client) = 0;
};

class Http2Session {
 public:
  struct Limits {
    uint32_t max_streams = 100;
    size_t max_header_bytes = size_t{16} << 10;
    // Bytes of a body that a client may send before the request is accepted, and after.
    int32_t first_window = 16 << 10;
    int32_t body_window = 256 << 10;
    int32_t connection_window = 1 << 20;
  };

  // `events` outlives the session.
  Http2Session(const Limits& limits, Http2Events* events);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // Takes bytes of the client. An error: the connection is broken. RESOURCE_EXHAUSTED: the client
  // does not read the answers to its pings and settings.
  absl::Status Receive(std::string_view bytes);

  // Appends frames to send, until there are no more or `out` has `most` bytes.
  void Next(size_t most, std::string* out);

  // Lets the client send more of a stream's body than the first window. Before it, what has come is
  // not acknowledged.
  void Accept(int32_t stream);

  // An answer: its head, with a body whose bytes follow (Write, End), or whole.
  using Headers = std::vector<std::pair<std::string, std::string>>;
  void Start(int32_t stream, int status, const Headers& headers, bool has_body);
  void Write(int32_t stream, std::string_view bytes);
  void End(int32_t stream);
  void Continue(int32_t stream);  // status 100
  // Ends a stream at once. NO_ERROR: the answer is whole, and the rest of the request is of no use.
  enum class Reason : uint8_t { kNoError, kInternal, kRefused, kCancel, kCalm };
  void Reset(int32_t stream, Reason reason);

  // Bytes of an answer that are not in frames yet.
  size_t unsent_bytes(int32_t stream) const;
  bool wants_write() const;
  size_t num_streams() const { return streams_.size(); }
  // Tells the client to begin no more streams.
  void GoAway();
  // Whether a header block has begun and not ended.
  bool is_in_header() const { return header_stream_ != 0; }
  // Whether neither side has anything to say any more.
  bool is_over() const;

 private:
  struct Stream {
    Http2Head head;
    size_t header_bytes = 0;
    bool has_head = false;  // told to the events
    bool is_accepted = false;
    size_t unacknowledged = 0;  // bytes of the body
    std::string unsent;         // of the answer; [0, sent) is in frames
    size_t sent = 0;
    bool has_ended = false;  // no more will be written
  };
  struct Callbacks;

  Stream* Find(int32_t stream);
  void Acknowledge(int32_t id, Stream* stream);

  const Limits limits_;
  Http2Events* const events_;
  nghttp2_session* session_ = nullptr;
  std::unordered_map<int32_t, std::unique_ptr<Stream>> streams_;
  int32_t header_stream_ = 0;  // whose header is being received; 0: none
};

}  // namespace heddle::server
