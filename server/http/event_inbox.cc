#include "server/http/event_inbox.h"

#include <utility>

namespace heddle::server {

EventSink EventInbox::SinkFor(std::shared_ptr<EventReceiver> receiver, size_t prompt) {
  return
      [self = shared_from_this(), receiver = std::move(receiver), prompt](GenerationEvent&& event) {
        self->Push(Item{receiver, prompt, std::move(event)});
      };
}

void EventInbox::Post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  if (!closed_) post_(std::move(task));
}

void EventInbox::Close() {
  std::vector<Item> dropped;
  std::lock_guard lock(mutex_);
  closed_ = true;
  std::swap(dropped, items_);
  post_ = nullptr;
}

void EventInbox::Push(Item item) {
  const std::shared_ptr<EventReceiver> kept = item.receiver;
  EventReceiver& receiver = *kept;
  if (receiver.queued_.fetch_add(1, std::memory_order_relaxed) >= kMaxQueuedEvents) {
    receiver.overflowed_.store(true, std::memory_order_relaxed);
    receiver.queued_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  std::lock_guard lock(mutex_);
  if (closed_) return;
  const size_t waiting = items_.size();
  try {
    items_.push_back(std::move(item));
    if (waiting == 0) post_([self = shared_from_this()] { self->Deliver(); });
  } catch (...) {  // out of memory; the caller is the engine's thread, which serves others
    items_.resize(waiting);
    receiver.overflowed_.store(true, std::memory_order_relaxed);
    receiver.queued_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void EventInbox::Deliver() {
  std::vector<Item> items;
  {
    std::lock_guard lock(mutex_);
    std::swap(items, items_);
  }
  for (Item& item : items) {
    item.receiver->queued_.fetch_sub(1, std::memory_order_relaxed);
    item.receiver->OnEvent(item.prompt, std::move(item.event));
  }
}

}  // namespace heddle::server
