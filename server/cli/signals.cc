#include "server/cli/signals.h"

#include <signal.h>

namespace heddle::server {
namespace {

sigset_t Watched(bool takes_hangup) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (takes_hangup) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

SignalWatch::SignalWatch(bool takes_hangup) : takes_hangup_(takes_hangup) {
  const sigset_t set = Watched(takes_hangup);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

std::optional<int> SignalWatch::Wait(std::chrono::milliseconds timeout) {
  const sigset_t set = Watched(takes_hangup_);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{.tv_sec = seconds.count(),
                       .tv_nsec = std::chrono::nanoseconds(timeout - seconds).count()};
  const int number = sigtimedwait(&set, nullptr, &limit);
  return number > 0 ? std::optional<int>(number) : std::nullopt;
}

}  // namespace heddle::server
