// The events of a response that is computed in the background, for clients that read them while
// they come, later, or again: each event has its place in the order as its number. And the response
// as it is now.
// Thread-safety: all members may be called from any thread; locks are held briefly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::server {

class ResponseLog {
 public:
  // Told when there are more events, or the end, on any thread. It must return at once.
  using Wake = std::function<void()>;

  ResponseLog(std::string id, uint64_t tenant) : id_(std::move(id)), tenant_(tenant) {}

  const std::string& id() const { return id_; }
  uint64_t tenant() const { return tenant_; }

  // Adds whole events, as they are sent. Returns their bytes.
  size_t Append(std::string_view frames);
  // No more events follow. Without effect on an ended log.
  void End();
  // Ends it as a response that was cancelled; returns false, and changes nothing, if it has ended.
  bool Cancel();
  // Forgets the oldest events, `bytes` of them at least where there are as many, to make room.
  size_t ForgetOldest(size_t bytes);

  struct Piece {
    std::string frames;
    int64_t next = 0;      // number of the event behind them
    bool is_last = false;  // the log has ended and has no more
  };
  // Events from number `from` on, about `max_bytes` of them. Empty: some of them were forgotten.
  std::optional<Piece> Read(int64_t from, size_t max_bytes) const;

  std::string body() const;  // the response as JSON
  bool has_ended() const;
  size_t bytes() const;

  // Calls `wake` at each change, until Forget with the number that this returns.
  uint64_t Follow(Wake wake);
  void Forget(uint64_t follower);

 private:
  void WakeLocked() const;

  const std::string id_;
  const uint64_t tenant_;
  mutable std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  std::deque<std::string> events_;
  int64_t first_ = 0;  // number of the first of them
  size_t bytes_ = 0;
  std::string body_;
  bool has_ended_ = false;
  std::map<uint64_t, Wake> followers_;
  uint64_t next_follower_ = 1;
};

}  // namespace heddle::server
