#include "server/http/response_following.h"

#include <optional>
#include <utility>

#include "server/http/responses.h"

namespace heddle::server {
namespace {

constexpr size_t kEventBytes = size_t{32} << 10;
constexpr std::string_view kForgotten =
    "event: error\ndata: {\"type\":\"error\",\"code\":\"events_forgotten\",\"message\":\"the "
    "events "
    "from there on are not kept any more\",\"param\":\"starting_after\"}\n\n";

}  // namespace

void FollowingExchange::Begin(const std::string& cors_origin) {
  HttpResponse head = TextResponse("text/event-stream; charset=utf-8", "");
  AddCorsHeaders(cors_origin, &head);
  writer_->StartStream(std::move(head), ": ping\n\n");
  // One task on the I/O thread for any number of events before it runs.
  follower_ = log_->Follow(
      [weak = weak_from_this(), inbox = inbox_->shared_from_this(), is_woken = is_woken_] {
        if (is_woken->exchange(true)) return;
        inbox->Post([weak, is_woken] {
          is_woken->store(false);
          if (const auto self = weak.lock()) self->Send();
        });
      });
  Send();
}

// Sends the next piece of the log. While the client has not taken enough of the last ones, it waits
// for OnDrained.
void FollowingExchange::Send() {
  if (ended_ || writer_->buffered_bytes() >= kEventBytes) return;
  const std::optional<ResponseLog::Piece> piece = log_->Read(next_, kEventBytes);
  if (!piece.has_value()) {
    End();
    writer_->Write(kForgotten);
    writer_->EndStream();
    return;
  }
  next_ = piece->next;
  if (piece->is_last) End();
  if (!piece->frames.empty()) writer_->Write(piece->frames);
  if (piece->is_last) writer_->EndStream();
}

void FollowingExchange::End() {
  ended_ = true;
  log_->Forget(follower_);
}

}  // namespace heddle::server
