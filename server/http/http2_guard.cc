#include "server/http/http2_guard.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace heddle::server {
namespace {

// Frame types, flags and error codes: RFC 9113, sections 6 and 7.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr uint8_t kEndStream = 0x1;
constexpr uint8_t kAck = 0x1;
constexpr uint8_t kEndHeaders = 0x4;
constexpr uint8_t kPadded = 0x8;
constexpr uint32_t kCancel = 8;
constexpr uint32_t kEnhanceYourCalm = 11;

// Payload of a frame without content that costs as much as the frame itself.
constexpr double kIdlePayloadBytes = 1024;
// DATA frames with less payload count as frames without content: no client splits a message so
// finely.
constexpr uint32_t kLeastData = 32;

void AppendNumber(uint32_t number, size_t bytes, std::string* out) {
  for (size_t i = bytes; i-- > 0;) out->push_back(static_cast<char>((number >> (8 * i)) & 0xFF));
}

// A frame whose payload is `numbers`, four bytes each.
std::string MakeFrame(FrameType type, uint32_t stream, std::initializer_list<uint32_t> numbers) {
  std::string frame;
  AppendNumber(static_cast<uint32_t>(4 * numbers.size()), 3, &frame);
  AppendNumber(type, 1, &frame);
  AppendNumber(0, 1, &frame);
  AppendNumber(stream, 4, &frame);
  for (uint32_t number : numbers) AppendNumber(number, 4, &frame);
  return frame;
}

}  // namespace

bool Allowance::Spend(double amount, Clock::time_point now) {
  if (last_ != Clock::time_point{}) {
    Earn(std::chrono::duration<double>(now - last_).count() * per_second_);
  }
  last_ = now;
  level_ += amount;
  return level_ <= burst_;
}

Http2Guard::Http2Guard(const Limits& limits, BodyBudget* bodies, bool owes_resets)
    : limits_(limits),
      bodies_(bodies),
      resets_(owes_resets ? limits.debtor_resets : limits.resets, limits.resets_per_second),
      idle_frames_(limits.idle_frames, limits.idle_frames_per_second) {}

bool Http2Guard::Reader::TakeHead(std::string_view* data) {
  const size_t taken = std::min(kFrameHead - head_bytes, data->size());
  std::copy_n(data->begin(), taken, head.begin() + static_cast<ptrdiff_t>(head_bytes));
  head_bytes += taken;
  data->remove_prefix(taken);
  if (head_bytes < kFrameHead) return false;
  head_bytes = 0;
  frame.length = uint32_t{head[0]} << 16 | uint32_t{head[1]} << 8 | head[2];
  frame.type = head[3];
  frame.flags = head[4];
  frame.stream =
      (uint32_t{head[5]} & 0x7F) << 24 | uint32_t{head[6]} << 16 | uint32_t{head[7]} << 8 | head[8];
  left = frame.length;
  return true;
}

std::optional<Http2Guard::Fault> Http2Guard::FromClient(std::string_view data,
                                                        Clock::time_point now,
                                                        std::string* to_server) {
  while (!data.empty() && !has_preface()) {
    if (data.front() != kPreface[preface_bytes_]) {
      return Fault{Refusal::kGrpcFrame, "the connection does not begin as HTTP/2 does"};
    }
    to_server->push_back(data.front());
    data.remove_prefix(1);
    ++preface_bytes_;
  }
  while (!data.empty()) {
    if (client_.left == 0) {
      if (!client_.TakeHead(&data)) break;
      if (std::optional<Fault> fault = OnClientFrame(client_.frame, now)) return fault;
      if (!drops_frame_) to_server->append(client_.head.begin(), client_.head.end());
      if (client_.left == 0) EndFrame();
      continue;
    }
    const std::string_view payload = data.substr(0, client_.left);
    data.remove_prefix(payload.size());
    client_.left -= static_cast<uint32_t>(payload.size());
    if (client_.frame.type != kData || PassesData(client_.frame, payload, now)) {
      to_server->append(payload);
    }
    if (client_.left == 0) EndFrame();
  }
  return std::nullopt;
}

std::optional<Http2Guard::Fault> Http2Guard::OnClientFrame(const Frame& frame,
                                                           Clock::time_point now) {
  if (too_many_resets_) return Fault{Refusal::kGrpcResets, "too many calls were taken back"};
  if (in_headers_ != (frame.type == kContinuation)) {
    return Fault{Refusal::kGrpcFrame, "a header block was not continued"};
  }
  std::optional<Fault> fault;
  bool is_late_reset = false;
  drops_frame_ = false;
  switch (frame.type) {
    case kHeaders:
      fault = OnHeaders(frame);
      break;
    case kContinuation:
      fault = OnContinuation(frame);
      break;
    case kRstStream:
      is_late_reset = IsLateReset(frame);
      if (!is_late_reset) fault = OnReset(frame.stream, now);
      break;
    case kData:
      if (auto found = streams_.find(frame.stream); found != streams_.end()) {
        drops_frame_ = found->second.refused;
      }
      reads_padding_ = (frame.flags & kPadded) != 0;
      padding_ = 0;
      break;
    case kPushPromise:
      fault = Fault{Refusal::kGrpcFrame, "a client must not push"};
      break;
    default:
      break;
  }
  const bool is_idle = is_late_reset || IsIdle(frame);
  if (!fault && is_idle && !idle_frames_.Spend(1 + frame.length / kIdlePayloadBytes, now)) {
    fault = Fault{Refusal::kGrpcFlood, "too many frames that carry nothing"};
  }
  return fault;
}

std::optional<Http2Guard::Fault> Http2Guard::OnHeaders(const Frame& frame) {
  in_headers_ = (frame.flags & kEndHeaders) == 0;
  headers_stream_ = frame.stream;
  header_bytes_ = frame.length;
  header_frames_ = 1;
  if (header_bytes_ > limits_.max_header_bytes) {
    return Fault{Refusal::kGrpcFrame, "a header block is too large"};
  }
  if (frame.stream > last_stream_) {
    last_stream_ = frame.stream;
    streams_.try_emplace(frame.stream);
    if (streams_.size() > 2 * limits_.max_streams) {
      return Fault{Refusal::kGrpcResets, "too many streams"};
    }
  }
  return std::nullopt;
}

std::optional<Http2Guard::Fault> Http2Guard::OnContinuation(const Frame& frame) {
  header_bytes_ += frame.length;
  ++header_frames_;
  in_headers_ = (frame.flags & kEndHeaders) == 0;
  if (header_bytes_ > limits_.max_header_bytes || header_frames_ > limits_.max_header_frames ||
      frame.stream != headers_stream_) {
    return Fault{Refusal::kGrpcFrame, "a header block is too large, or has too many pieces"};
  }
  return std::nullopt;
}

// A stream that the server resets before its end counts as well: the client can cause that by
// breaking the protocol.
std::optional<Http2Guard::Fault> Http2Guard::OnReset(uint32_t stream, Clock::time_point now) {
  streams_.erase(stream);
  ++num_resets_;
  if (!resets_.Spend(1, now)) too_many_resets_ = true;
  if (!too_many_resets_) return std::nullopt;
  return Fault{Refusal::kGrpcResets, "too many calls were taken back"};
}

// A stream that is over cannot be taken back. Clients that have reset one reset it again for each
// frame of it that was on its way (Python's h2 does, and so httpx).
bool Http2Guard::IsLateReset(const Frame& frame) const {
  return frame.stream <= last_stream_ && !streams_.contains(frame.stream);
}

// Whether the frame carries neither a call nor its end.
bool Http2Guard::IsIdle(const Frame& frame) {
  const bool ends = (frame.flags & kEndStream) != 0;
  if (frame.type == kHeaders || frame.type == kRstStream) return false;
  return frame.type != kData || (frame.length < kLeastData && !ends);
}

// Returns false if the payload is to be dropped.
bool Http2Guard::PassesData(const Frame& frame, std::string_view payload, Clock::time_point now) {
  if (drops_frame_) {
    dropped_bytes_ += payload.size();
    return false;
  }
  if (!limits_.has_messages) return true;
  const auto found = streams_.find(frame.stream);
  // gRPC handles unknown streams; a stream refused within this frame passes to the frame's end.
  if (found == streams_.end() || found->second.refused) return true;
  Stream& stream = found->second;
  std::string_view content = payload;
  if (reads_padding_) {
    padding_ = static_cast<unsigned char>(content.front());
    content.remove_prefix(1);
    reads_padding_ = false;
  }
  // Keeps the part of this piece before the padding at the frame's end.
  const uint64_t behind = uint64_t{client_.left} + content.size();
  const uint64_t kept = behind > padding_ ? behind - padding_ : 0;
  content = content.substr(0, static_cast<size_t>(std::min<uint64_t>(kept, content.size())));
  if (!TakeMessageBytes(&stream, content, now)) RefuseMessage(frame.stream, &stream);
  return true;
}

// Returns false if there is no place for a message that begins in these bytes.
bool Http2Guard::TakeMessageBytes(Stream* stream, std::string_view bytes, Clock::time_point now) {
  stream->last_byte = now;
  while (!bytes.empty()) {
    if (stream->message_left > 0) {
      const auto taken = std::min<uint64_t>(stream->message_left, bytes.size());
      stream->message_left -= taken;
      bytes.remove_prefix(static_cast<size_t>(taken));
      if (stream->message_left == 0) stream->place.Release();
      continue;
    }
    stream->prefix[stream->prefix_bytes++] = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    if (stream->prefix_bytes < stream->prefix.size()) continue;
    stream->prefix_bytes = 0;
    const auto& prefix = stream->prefix;  // a flag, and the length
    stream->message_left = uint64_t{prefix[1]} << 24 | uint64_t{prefix[2]} << 16 |
                           uint64_t{prefix[3]} << 8 | prefix[4];
    if (stream->message_left <= limits_.free_message_bytes) continue;
    if (stream->message_left > limits_.max_message_bytes) return false;
    stream->place = bodies_->Try(static_cast<int64_t>(stream->message_left));
    if (!stream->place) return false;
  }
  return true;
}

void Http2Guard::RefuseMessage(uint32_t id, Stream* stream) {
  stream->place.Release();
  stream->refused = true;
  ++num_refused_messages_;
  for_client_ += MakeFrame(kRstStream, id, {kEnhanceYourCalm});
  for_server_ += MakeFrame(kRstStream, id, {kCancel});
}

void Http2Guard::EndFrame() {
  const Frame& frame = client_.frame;
  if (frame.type != kData && frame.type != kHeaders) return;
  if ((frame.flags & kEndStream) == 0) return;
  const auto found = streams_.find(frame.stream);
  if (found == streams_.end()) return;
  found->second.ended_by_client = true;
  found->second.place.Release();
  if (found->second.refused) streams_.erase(found);
}

void Http2Guard::FromServer(std::string_view data, Clock::time_point now, std::string* to_client) {
  while (!data.empty()) {
    if (server_.left == 0) {
      if (server_.head_bytes == 0) to_client->append(std::exchange(for_client_, ""));
      if (!server_.TakeHead(&data)) break;
      to_client->append(server_.head.begin(), server_.head.end());
      OnServerFrame(server_.frame, now);
      continue;
    }
    const std::string_view payload = data.substr(0, server_.left);
    data.remove_prefix(payload.size());
    server_.left -= static_cast<uint32_t>(payload.size());
    to_client->append(payload);
  }
}

void Http2Guard::OnServerFrame(const Frame& frame, Clock::time_point now) {
  // Frames that only acknowledge a client's frame are no answers.
  const bool is_ack = (frame.type == kPing || frame.type == kSettings) && (frame.flags & kAck) != 0;
  if (!is_ack) idle_frames_.Earn(limits_.idle_frames_per_answer);
  const bool ends = (frame.type == kHeaders || frame.type == kData) && (frame.flags & kEndStream);
  if (frame.type == kRstStream && streams_.contains(frame.stream)) OnReset(frame.stream, now);
  if (ends) streams_.erase(frame.stream);
}

void Http2Guard::TakeFrames(std::string* to_client, std::string* to_server) {
  if (dropped_bytes_ > 0) {
    for_client_ += MakeFrame(kWindowUpdate, 0, {static_cast<uint32_t>(dropped_bytes_)});
    dropped_bytes_ = 0;
  }
  if (server_.at_boundary()) to_client->append(std::exchange(for_client_, ""));
  if (client_.at_boundary() && !in_headers_) to_server->append(std::exchange(for_server_, ""));
}

void Http2Guard::OnTick(Clock::time_point now) {
  for (auto& [id, stream] : streams_) {
    if (!stream.place || now - stream.last_byte < limits_.stall_timeout) continue;
    if (bodies_->num_waiting() == 0) return;
    RefuseMessage(id, &stream);
  }
}

std::string Http2Guard::GoAway() const {
  // In the middle of a server's frame the client would take it for that frame's payload.
  if (!server_.at_boundary()) return "";
  return MakeFrame(kGoAway, 0, {last_stream_, kEnhanceYourCalm});
}

}  // namespace heddle::server
