#include "server/loop/queue_room.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace heddle::server {

absl::Status QueueRoom::Check(uint64_t client, int64_t tokens, int64_t waiting,
                              int64_t waiting_tokens) const {
  if (limits_.is_per_client) waiting = std::min(waiting, num_waiting_);
  if (waiting >= limits_.max_requests) {
    return absl::ResourceExhaustedError(absl::StrCat("The queue is full: ", waiting,
                                                     " requests wait and the limit is ",
                                                     limits_.max_requests, "."));
  }
  const int64_t with_this = waiting_tokens + tokens;
  if (limits_.max_tokens > 0 && waiting > 0 && with_this > limits_.max_tokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("The queue is full: with this prompt ", with_this,
                     " tokens would wait and the limit is ", limits_.max_tokens, "."));
  }
  return CheckShare(client, waiting);
}

absl::Status QueueRoom::CheckShare(uint64_t client, int64_t waiting) const {
  if (!limits_.is_per_client) return absl::OkStatus();
  const auto it = waiting_of_client_.find(client);
  const int64_t own = it == waiting_of_client_.end() ? 0 : it->second;
  const int64_t free = limits_.max_requests - waiting;
  if (own < kShareOfFree * free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "Your share of the queue is full: ", own, " requests of this API key or address wait and ",
      free, " of ", limits_.max_requests, " places are free."));
}

void QueueRoom::Enter(uint64_t client) {
  if (!limits_.is_per_client) return;
  ++waiting_of_client_[client];
  ++num_waiting_;
}

void QueueRoom::Leave(uint64_t client) {
  if (!limits_.is_per_client) return;
  --num_waiting_;
  const auto it = waiting_of_client_.find(client);
  if (--it->second == 0) waiting_of_client_.erase(it);
}

}  // namespace heddle::server
