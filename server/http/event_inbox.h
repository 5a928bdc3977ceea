// Carries events from the engine loop's thread, and results of preparations, to one I/O thread. The
// loop never waits: a push is a lock held for a few instructions, and one wake-up per burst.
//
// Thread-safety: sinks, Post and Close may be called from any thread; deliveries happen on the I/O
// thread.
// Bound: a receiver with more than kMaxQueuedEvents waiting events, or without memory for its
// event, loses the newest and is told so (overflowed). The former requires an I/O thread that is
// stuck for thousands of steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "server/generation.h"
#include "server/http/transport.h"

namespace heddle::server {

class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  virtual void OnEvent(size_t prompt, GenerationEvent event) = 0;

  bool overflowed() const { return overflowed_.load(std::memory_order_relaxed); }

 private:
  friend class EventInbox;
  std::atomic<int32_t> queued_ = 0;
  std::atomic<bool> overflowed_ = false;
};

class EventInbox : public std::enable_shared_from_this<EventInbox> {
 public:
  static constexpr int32_t kMaxQueuedEvents = 4096;

  explicit EventInbox(PostTask post) : post_(std::move(post)) {}

  // A sink for GenerationService::Submit. It keeps inbox and receiver alive, and drops events once
  // the inbox is closed.
  EventSink SinkFor(std::shared_ptr<EventReceiver> receiver, size_t prompt);

  // Runs `task` on the I/O thread soon; it is dropped once the inbox is closed.
  void Post(std::function<void()> task);

  // The I/O thread ends: waiting and future items are dropped.
  void Close();

 private:
  struct Item {
    std::shared_ptr<EventReceiver> receiver;
    size_t prompt;
    GenerationEvent event;
  };

  void Push(Item item);
  void Deliver();

  std::mutex mutex_;
  std::vector<Item> items_;  // GUARDED_BY(mutex_)
  bool closed_ = false;      // GUARDED_BY(mutex_)
  PostTask post_;            // called under mutex_, so that Close can end its use
};

}  // namespace heddle::server
