#include "server/http/body_budget.h"

#include <algorithm>
#include <utility>

namespace heddle::server {

// All members except `bytes` are GUARDED_BY the budget's mutex.
struct BodyBudget::Entry {
  int64_t bytes = 0;
  bool granted = false;
  std::function<void()> on_granted;
};

BodyBudget::Place::Place(BodyBudget* budget, std::shared_ptr<Entry> entry)
    : budget_(budget), entry_(std::move(entry)) {}

BodyBudget::Place::Place(Place&& other) noexcept
    : budget_(other.budget_), entry_(std::move(other.entry_)) {}

BodyBudget::Place& BodyBudget::Place::operator=(Place&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = other.budget_;
  entry_ = std::move(other.entry_);
  return *this;
}

bool BodyBudget::Place::is_granted() const {
  if (entry_ == nullptr) return false;
  std::lock_guard lock(budget_->mutex_);
  return entry_->granted;
}

void BodyBudget::Place::Release() {
  if (entry_ != nullptr) budget_->Release(std::exchange(entry_, nullptr));
}

BodyBudget::Place BodyBudget::Ask(int64_t bytes, std::function<void()> on_granted) {
  auto entry = std::make_shared<Entry>();
  entry->bytes = bytes;
  entry->on_granted = std::move(on_granted);
  std::lock_guard lock(mutex_);
  if (queue_.empty() && FitsLocked(bytes)) {
    entry->granted = true;
    held_bytes_ += bytes;
  } else {
    queue_.push_back(entry);
  }
  return {this, std::move(entry)};
}

BodyBudget::Place BodyBudget::Try(int64_t bytes) {
  auto entry = std::make_shared<Entry>();
  entry->bytes = bytes;
  entry->granted = true;
  std::lock_guard lock(mutex_);
  if (!queue_.empty() || !FitsLocked(bytes)) return {};
  held_bytes_ += bytes;
  return {this, std::move(entry)};
}

int64_t BodyBudget::held_bytes() const {
  std::lock_guard lock(mutex_);
  return held_bytes_;
}

int64_t BodyBudget::num_waiting() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(queue_.size());
}

bool BodyBudget::FitsLocked(int64_t bytes) const {
  return held_bytes_ == 0 || bytes <= max_bytes_ - held_bytes_;
}

void BodyBudget::Release(const std::shared_ptr<Entry>& entry) {
  std::vector<std::function<void()>> granted;
  {
    std::lock_guard lock(mutex_);
    if (entry->granted) {
      held_bytes_ -= entry->bytes;
    } else {
      queue_.erase(std::remove(queue_.begin(), queue_.end(), entry), queue_.end());
    }
    while (!queue_.empty() && FitsLocked(queue_.front()->bytes)) {
      Entry& next = *queue_.front();
      next.granted = true;
      held_bytes_ += next.bytes;
      granted.push_back(std::move(next.on_granted));
      queue_.pop_front();
    }
  }
  for (const std::function<void()>& tell : granted) tell();
}

}  // namespace heddle::server
