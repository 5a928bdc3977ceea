// A registry without threads, over files and a clock that the test makes up.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "catch2/catch.hpp"
#include "server/adapters/adapter_registry.h"
#include "tests/server/adapters/fake_source.h"

namespace heddle::server::test {

using Result = std::optional<absl::StatusOr<AdapterLease>>;

inline constexpr std::chrono::milliseconds kLong{1001};  // more than kLookInterval

struct Rig {
  explicit Rig(int64_t host_bytes = 1000, size_t max_waiting = 4096) {
    AdapterRegistry::Options options;
    options.root = "/adapters";
    options.host_bytes = host_bytes;
    options.threads = 0;
    options.max_waiting = max_waiting;
    options.now = [this] { return now; };
    registry =
        std::make_unique<AdapterRegistry>(std::move(options), std::make_unique<FakeSource>(&files));
  }

  void Put(const std::string& path, std::string content) {
    files.files[path] = {std::move(content), ++time, ""};
  }

  // The adapter that a request that names it gets, if need be after a load.
  absl::StatusOr<AdapterLease> Get(const std::string& name) {
    absl::Status look = registry->Look(name);
    if (!look.ok()) return look;
    Result result;
    registry->Acquire(name, [&result](auto got) { result = std::move(got); });
    while (!result.has_value() && registry->LoadNext()) {
    }
    REQUIRE(result.has_value());
    return *std::move(result);
  }

  void Pass(std::chrono::milliseconds time_passed) { now += time_passed; }

  FakeFiles files;
  int64_t time = 0;
  AdapterRegistry::Clock::time_point now{std::chrono::hours(1)};
  std::unique_ptr<AdapterRegistry> registry;
};

inline std::string ContentOf(const AdapterLease& lease) {
  return {reinterpret_cast<const char*>(lease.image->content.get()),
          static_cast<size_t>(lease.image->bytes())};
}

}  // namespace heddle::server::test
