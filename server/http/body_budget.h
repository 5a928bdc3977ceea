// The memory that the bodies of all requests in reception may take together.
// A body is charged whole as soon as its length is known, and not as its bytes arrive: an admitted
// body can always finish, so that many half-read bodies never wait for each other. Bodies that do
// not fit wait in a queue, first come, first served. The unit of account is one byte of a body.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace heddle::server {

class BodyBudget {
  struct Entry;

 public:
  // One body's place in the budget or in its queue; the destructor gives it back.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept;
    Place& operator=(Place&& other) noexcept;
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { Release(); }

    explicit operator bool() const { return entry_ != nullptr; }
    bool is_granted() const;
    void Release();

   private:
    friend class BodyBudget;
    Place(BodyBudget* budget, std::shared_ptr<Entry> entry);

    BodyBudget* budget_ = nullptr;
    std::shared_ptr<Entry> entry_;
  };

  explicit BodyBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Grants `bytes` at once if they fit and no body waits; otherwise queues the place and calls
  // `on_granted` once it is granted, on the thread that freed the memory. A body larger than the
  // whole budget is granted when nothing else is held. The budget outlives the place.
  Place Ask(int64_t bytes, std::function<void()> on_granted);

  // Grants `bytes` now or returns an empty place.
  Place Try(int64_t bytes);

  int64_t max_bytes() const { return max_bytes_; }
  int64_t held_bytes() const;
  int64_t num_waiting() const;

 private:
  bool FitsLocked(int64_t bytes) const;
  void Release(const std::shared_ptr<Entry>& entry);

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  int64_t held_bytes_ = 0;                    // GUARDED_BY(mutex_)
  std::deque<std::shared_ptr<Entry>> queue_;  // GUARDED_BY(mutex_); not granted yet
};

}  // namespace heddle::server
