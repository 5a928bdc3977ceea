// grpc.health.v1.Health: whether the server takes calls. It needs no key, like /ready over HTTP.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "proto/grpc/health/v1/health.pb.h"
#include "server/grpc/services.h"

namespace heddle::server {

class WatchCall;

class HealthService {
 public:
  static constexpr std::string_view kWatch = "/grpc.health.v1.Health/Watch";

  // `services`: their names; each has the server's health.
  explicit HealthService(std::set<std::string> services) : services_(std::move(services)) {}

  // Tells all watchers.
  void SetServing(bool serving);
  // Ends the calls of present and future watchers.
  void Stop();

  Method CheckMethod();
  grpc::ServerGenericBidiReactor* NewWatchCall(ServiceContext* context,
                                               const grpc::GenericCallbackServerContext& call);

 private:
  friend class WatchCall;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  Status StatusLocked(const std::string& service) const;
  void Add(WatchCall* call);  // also sends it the status
  void Remove(WatchCall* call);

  // They need no key, and must not use up all allowed calls.
  static constexpr size_t kMaxWatchers = 256;

  const std::set<std::string> services_;
  mutable std::mutex mutex_;
  bool serving_ = false;           // GUARDED_BY(mutex_)
  bool stopped_ = false;           // GUARDED_BY(mutex_)
  std::set<WatchCall*> watchers_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
