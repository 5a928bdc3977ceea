#include "server/http/response_log.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

constexpr std::string_view kFrameEnd = "\n\n";

// The response within an event of ours that has one as its last member; empty: it has none.
std::string_view ResponseIn(std::string_view frame) {
  constexpr std::string_view kMember = ",\"response\":";
  constexpr std::string_view kBehind = "}\n\n";
  if (!frame.starts_with("event: response.")) return "";
  const size_t name_end = frame.find('\n');
  // Events about parts of the response have a second dot in their name.
  const std::string_view name = frame.substr(0, name_end);
  if (name.find('.') != name.rfind('.')) return "";
  const size_t begin = frame.find(kMember);
  if (begin == std::string_view::npos || !frame.ends_with(kBehind)) return "";
  frame.remove_suffix(kBehind.size());
  return frame.substr(begin + kMember.size());
}

}  // namespace

size_t ResponseLog::Append(std::string_view frames) {
  std::lock_guard lock(mutex_);
  if (has_ended_) return 0;
  const size_t added = frames.size();
  while (frames.size() >= kFrameEnd.size()) {
    const size_t end = std::min(frames.find(kFrameEnd), frames.size() - kFrameEnd.size());
    const std::string_view frame = frames.substr(0, end + kFrameEnd.size());
    frames.remove_prefix(frame.size());
    if (const std::string_view response = ResponseIn(frame); !response.empty()) {
      body_ = std::string(response);
    }
    events_.emplace_back(frame);
  }
  bytes_ += added;
  WakeLocked();
  return added;
}

void ResponseLog::End() {
  std::lock_guard lock(mutex_);
  has_ended_ = true;
  WakeLocked();
}

bool ResponseLog::Cancel() {
  std::lock_guard lock(mutex_);
  if (has_ended_) return false;
  has_ended_ = true;
  Json body = Json::parse(body_);  // our own text
  body["status"] = "cancelled";
  body_ = body.dump();
  WakeLocked();
  return true;
}

size_t ResponseLog::ForgetOldest(size_t bytes) {
  std::lock_guard lock(mutex_);
  size_t forgotten = 0;
  while (forgotten < bytes && !events_.empty()) {
    forgotten += events_.front().size();
    events_.pop_front();
    ++first_;
  }
  bytes_ -= forgotten;
  return forgotten;
}

std::optional<ResponseLog::Piece> ResponseLog::Read(int64_t from, size_t max_bytes) const {
  std::lock_guard lock(mutex_);
  if (from < first_) return std::nullopt;
  const auto end = first_ + static_cast<int64_t>(events_.size());
  Piece piece{.next = from};
  while (piece.next < end && piece.frames.size() < max_bytes) {
    piece.frames.append(events_[static_cast<size_t>(piece.next - first_)]);
    ++piece.next;
  }
  piece.is_last = has_ended_ && piece.next >= end;
  return piece;
}

std::string ResponseLog::body() const {
  std::lock_guard lock(mutex_);
  return body_;
}

bool ResponseLog::has_ended() const {
  std::lock_guard lock(mutex_);
  return has_ended_;
}

size_t ResponseLog::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

uint64_t ResponseLog::Follow(Wake wake) {
  std::lock_guard lock(mutex_);
  followers_[next_follower_] = std::move(wake);
  return next_follower_++;
}

void ResponseLog::Forget(uint64_t follower) {
  std::lock_guard lock(mutex_);
  followers_.erase(follower);
}

void ResponseLog::WakeLocked() const {
  for (const auto& [number, wake] : followers_) wake();
}

}  // namespace heddle::server
