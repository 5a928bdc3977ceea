// Reads the frames of one HTTP/2 connection as they pass in both directions between a client and
// the code that speaks HTTP/2 (gRPC's server, or nghttp2 for HTTP), and limits the client to what a
// client needs. It does not change what passes; it can cut the connection, and answer single
// streams in the server's place.
//
// nghttp2 (1.52) bounds no frames but its own answers. gRPC's own limits (version 1.51) do not
// suffice: a call that is cancelled at once costs it tens of kilobytes while its threads are
// behind, and it bounds neither the number of cancelled calls nor the memory of all clients'
// messages.
//
// The guard bounds streams, and how many of them the client resets; frames that carry nothing
// (pings, settings, priorities, window updates, empty data, resets of streams that are over), in
// relation to what the server sends; the size and number of pieces of header blocks; and messages
// in reception, which share the budget of all bodies.
//
// Source: RFC 9113; the attacks: CVE-2019-9511 to -9518, CVE-2023-44487, CVE-2024-27316,
// CVE-2025-8671.
//
// Thread-safety: none; owned by one connection.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/http/body_budget.h"
#include "server/http/exchange.h"

namespace heddle::server {

// A token bucket: allows `burst` at once and `per_second` in the long run.
class Allowance {
 public:
  Allowance(double burst, double per_second) : burst_(burst), per_second_(per_second) {}

  void Earn(double amount) { level_ = level_ - amount < 0 ? 0 : level_ - amount; }
  // Returns false if it is used up.
  bool Spend(double amount, Clock::time_point now);

 private:
  double burst_;
  double per_second_;
  double level_ = 0;  // spent and not restored
  Clock::time_point last_{};
};

class Http2Guard {
 public:
  struct Limits {
    size_t max_streams = 256;  // announced by gRPC; twice as many end the connection
    // Streams that a client may reset: all of its streams at once, then a usual rate.
    double resets = 512;
    double resets_per_second = 50;
    // The burst of a connection that begins while its client owes resets (peer_resets.h): as many
    // as a client takes back that means nobody ill.
    double debtor_resets = 16;
    // Frames without content. Each frame of the server allows some more, because clients answer
    // frames.
    double idle_frames = 2000;
    double idle_frames_per_second = 200;
    double idle_frames_per_answer = 4;
    size_t max_header_bytes = size_t{32} << 10;  // per header block, as sent
    int max_header_frames = 16;                  // per header block
    bool has_messages = true;                    // streams are gRPC's, whose messages are looked at
    size_t max_message_bytes = size_t{8} << 20;  // gRPC would only report that it was too large
    // Smaller messages need no place in the budget.
    size_t free_message_bytes = size_t{16} << 10;
    // Time without a byte after which a message that others wait for is refused.
    Clock::duration stall_timeout = std::chrono::seconds(2);
  };

  // The reason to cut a connection.
  struct Fault {
    Refusal refusal;
    std::string_view what;  // for the log
  };

  // `bodies` must outlive the guard. `owes_resets`: see Limits::debtor_resets.
  Http2Guard(const Limits& limits, BodyBudget* bodies, bool owes_resets = false);

  // Passes the client's `data` on to `*to_server`. On a fault the connection must be cut, and
  // `*to_server` must not be sent.
  std::optional<Fault> FromClient(std::string_view data, Clock::time_point now,
                                  std::string* to_server);

  // Passes the server's `data` on to `*to_client`, with the guard's own frames in between. The next
  // FromClient reports a fault found in the server's frames.
  void FromServer(std::string_view data, Clock::time_point now, std::string* to_client);

  // The guard's own frames: for the client, if they can be sent now, and for the server.
  void TakeFrames(std::string* to_client, std::string* to_server);

  // Takes the places of messages that have stopped arriving if others wait for them.
  void OnTick(Clock::time_point now);

  // A frame that tells the client why it is cut.
  std::string GoAway() const;

  bool has_preface() const { return preface_bytes_ == kPreface.size(); }
  size_t num_streams() const { return streams_.size(); }
  // Messages refused for want of memory since the last call.
  int TakeRefusedMessages() { return std::exchange(num_refused_messages_, 0); }
  // Streams that the client has reset since the last call.
  int TakeResets() { return std::exchange(num_resets_, 0); }

 private:
  static constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  static constexpr size_t kFrameHead = 9;

  struct Frame {
    uint32_t length = 0;
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
  };

  // Finds the frames in a stream of bytes.
  struct Reader {
    std::array<unsigned char, kFrameHead> head{};
    size_t head_bytes = 0;
    Frame frame;
    uint32_t left = 0;  // of the frame's payload

    bool at_boundary() const { return head_bytes == 0 && left == 0; }
    // Takes bytes of a frame's head; returns true if it is complete.
    bool TakeHead(std::string_view* data);
  };

  // A call as the guard knows it, until either side has ended it for good.
  struct Stream {
    bool ended_by_client = false;
    bool refused = false;  // its data are dropped
    std::array<unsigned char, 5> prefix{};
    size_t prefix_bytes = 0;
    uint64_t message_left = 0;
    BodyBudget::Place place;
    Clock::time_point last_byte;
  };

  std::optional<Fault> OnClientFrame(const Frame& frame, Clock::time_point now);
  std::optional<Fault> OnHeaders(const Frame& frame);
  std::optional<Fault> OnContinuation(const Frame& frame);
  std::optional<Fault> OnReset(uint32_t stream, Clock::time_point now);
  bool IsLateReset(const Frame& frame) const;
  static bool IsIdle(const Frame& frame);
  bool PassesData(const Frame& frame, std::string_view payload, Clock::time_point now);
  bool TakeMessageBytes(Stream* stream, std::string_view bytes, Clock::time_point now);
  void EndFrame();
  void RefuseMessage(uint32_t id, Stream* stream);
  void OnServerFrame(const Frame& frame, Clock::time_point now);

  const Limits limits_;
  BodyBudget* bodies_;
  size_t preface_bytes_ = 0;
  Reader client_;
  Reader server_;
  // The state of the client's current frame.
  bool in_headers_ = false;  // CONTINUATION frames must follow
  uint32_t headers_stream_ = 0;
  uint64_t header_bytes_ = 0;
  int header_frames_ = 0;
  bool drops_frame_ = false;    // the frame is not passed on
  uint32_t padding_ = 0;        // bytes at the end of a DATA frame
  bool reads_padding_ = false;  // the padding's length is the next byte
  std::unordered_map<uint32_t, Stream> streams_;
  Allowance resets_;
  bool too_many_resets_ = false;
  int num_resets_ = 0;
  Allowance idle_frames_;
  uint32_t last_stream_ = 0;
  uint64_t dropped_bytes_ = 0;  // dropped DATA bytes, to be credited to the client's window
  int num_refused_messages_ = 0;
  std::string for_client_;
  std::string for_server_;
};

}  // namespace heddle::server
