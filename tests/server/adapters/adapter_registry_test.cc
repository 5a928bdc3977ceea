// Names, versions, loading and the bound on memory, with files and a clock that the test makes up.
#include "server/adapters/adapter_registry.h"

#include <optional>

#include "catch2/catch.hpp"
#include "server/request/api_error.h"
#include "server/retry_after.h"
#include "tests/server/adapters/registry_rig.h"

namespace heddle::server {
namespace {

using test::ContentOf;
using test::kLong;
using test::Result;
using test::Rig;

TEST_CASE("A name in the folder is loaded when it is asked for", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/sql", "one");
  rig.Put("/adapters/gg.gguf", "two");
  CHECK(absl::IsNotFound(rig.registry->Look("law")));
  CHECK(absl::IsNotFound(rig.registry->Look("../adapters/sql")));
  const auto lease = rig.Get("sql");
  REQUIRE(lease.ok());
  CHECK(lease->image->id == lease->id);
  CHECK(lease->id != engine::AdapterId{});
  CHECK(ContentOf(*lease) == "one");
  CHECK(ContentOf(*rig.Get("gg")) == "two");
  CHECK(rig.registry->Info("sql")->state == AdapterState::kReady);
  CHECK(rig.files.num_loads == 2);
  CHECK(rig.Get("sql")->id == lease->id);
  CHECK(rig.files.num_loads == 2);
}

TEST_CASE("Requests for an adapter that is loading wait for one load", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "content");
  REQUIRE(rig.registry->Look("a").ok());
  std::vector<engine::AdapterId> ids;
  const auto done = [&ids](absl::StatusOr<AdapterLease> got) { ids.push_back(got->id); };
  CHECK(rig.registry->Acquire("a", done) != 0);
  const uint64_t left = rig.registry->Acquire("a", done);
  CHECK(rig.registry->Acquire("a", done) != 0);
  CHECK(rig.registry->Info("a")->state == AdapterState::kLoading);
  CHECK(rig.registry->figures().waiting == 3);
  rig.registry->Cancel(left);
  CHECK(rig.registry->figures().waiting == 2);
  CHECK(ids.empty());
  CHECK(rig.registry->LoadNext());
  CHECK_FALSE(rig.registry->LoadNext());
  CHECK(ids.size() == 2);
  CHECK(rig.files.num_loads == 1);
  CHECK(rig.registry->figures().waiting == 0);
}

TEST_CASE("A changed file is a new version for new requests, once a second has passed",
          "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "old");
  const auto before = rig.Get("a");
  rig.Put("/adapters/a", "new");
  const int stats = rig.files.num_stats;
  CHECK(rig.Get("a")->id == before->id);
  CHECK(rig.files.num_stats == stats);
  rig.Pass(kLong);
  const auto after = rig.Get("a");
  CHECK(after->id != before->id);
  CHECK(ContentOf(*after) == "new");
  CHECK(ContentOf(*before) == "old");  // a request that runs keeps it
  rig.Put("/adapters/a", "old");
  rig.Pass(kLong);
  CHECK(rig.Get("a")->id == before->id);
}

TEST_CASE("The same content has one id and one image, wherever it lies", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "same");
  rig.Put("/adapters/b", "same");
  rig.Put("/elsewhere", "same");
  const auto a = rig.Get("a");
  const auto b = rig.Get("b");
  CHECK(a->id == b->id);
  CHECK(a->image == b->image);
  REQUIRE(rig.registry->AddFixed("c", "/elsewhere").ok());
  CHECK(rig.Get("c")->id == a->id);
  CHECK(rig.registry->figures().host_bytes == 4);
  REQUIRE(rig.registry->Unload("a").ok());
  CHECK(rig.Get("b")->image == b->image);
}

TEST_CASE("A broken adapter fails with its reason until its files change", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "x");
  rig.files.files["/adapters/a"].broken = "lora_A has 3 dimensions";
  const auto failed = rig.Get("a");
  CHECK(absl::IsInvalidArgument(failed.status()));
  CHECK(failed.status().message() == "the adapter \"a\" cannot be used: lora_A has 3 dimensions");
  CHECK(ToApiError(failed.status()).code == "adapter_failed");
  rig.Pass(kLong);
  CHECK(absl::IsInvalidArgument(rig.registry->Look("a")));
  CHECK(rig.files.num_loads == 1);
  rig.Put("/adapters/a", "repaired");
  rig.Pass(kLong);
  CHECK(rig.Get("a").ok());
  CHECK(rig.registry->figures().failed_loads == 1);
}

TEST_CASE("The images used longest ago make room; those in use stay", "[server][unit]") {
  Rig rig(/*host_bytes=*/10);
  rig.Put("/adapters/a", "aaaa");
  rig.Put("/adapters/b", "bbbb");
  rig.Put("/adapters/c", "cccc");
  const auto first = rig.Get("a")->id;
  static_cast<void>(rig.Get("b"));
  static_cast<void>(rig.Get("a"));
  auto held = rig.Get("c");  // b goes
  REQUIRE(held.ok());
  CHECK(rig.registry->figures().evictions == 1);
  CHECK(rig.registry->figures().host_bytes == 8);
  const int loads = rig.files.num_loads;
  auto also_held = rig.Get("a");
  CHECK(also_held->id == first);
  CHECK(rig.files.num_loads == loads);
  const auto refused = rig.Get("b");
  CHECK(absl::IsUnavailable(refused.status()));
  CHECK(RetryAfterSeconds(refused.status()).has_value());
  CHECK(rig.registry->figures().in_memory == 2);
  also_held = absl::CancelledError("");
  CHECK(rig.Get("b").ok());
  CHECK(rig.registry->figures().host_bytes <= 10);
}

TEST_CASE("An image counts until its last user lets go of it", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "aaaa");
  std::optional<AdapterLease> lease = *rig.Get("a");
  REQUIRE(rig.registry->Unload("a").ok());
  CHECK(rig.registry->figures().in_memory == 0);
  CHECK(rig.registry->figures().host_bytes == 4);
  CHECK(ContentOf(*lease) == "aaaa");
  lease.reset();
  CHECK(rig.registry->figures().host_bytes == 0);
}

TEST_CASE("A thousand loads at once are each answered, and more than may wait are refused",
          "[server][unit]") {
  Rig rig(/*host_bytes=*/100'000, /*max_waiting=*/1000);
  int ok = 0;
  int refused = 0;
  for (int i = 0; i < 1100; ++i) {
    const std::string name = "a" + std::to_string(i);
    rig.Put("/adapters/" + name, name);
    REQUIRE(rig.registry->Look(name).ok());
    rig.registry->Acquire(name, [&](absl::StatusOr<AdapterLease> got) {
      if (got.ok()) ++ok;
      if (absl::IsUnavailable(got.status()) && RetryAfterSeconds(got.status())) ++refused;
    });
  }
  CHECK(refused == 100);
  while (rig.registry->LoadNext()) {
  }
  CHECK(ok == 1000);
}

TEST_CASE("A folder that vanishes under load ends the waits, and the name is gone",
          "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "a");
  rig.files.on_load = [&rig] { rig.files.files.clear(); };
  CHECK_FALSE(rig.Get("a").ok());
  rig.Pass(kLong);
  CHECK(absl::IsNotFound(rig.registry->Look("a")));
  CHECK(rig.registry->figures().known == 0);
}

TEST_CASE("Files that change while they are read are read again", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "half");
  bool changed = false;
  rig.files.on_load = [&] {
    if (!std::exchange(changed, true)) rig.Put("/adapters/a", "whole");
  };
  CHECK(ContentOf(*rig.Get("a")) == "whole");
  rig.files.on_load = [&] { rig.Put("/adapters/b", "never the same"); };
  rig.Put("/adapters/b", "x");
  CHECK(absl::IsUnavailable(rig.Get("b").status()));
}

TEST_CASE("Operators load and unload names, within the folder only", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/x/y", "1");
  Result result;
  const auto keep = [&result](absl::StatusOr<AdapterLease> got) { result = std::move(got); };
  const auto load = [&](const std::string& name, const std::string& path, bool replace = false) {
    result.reset();
    rig.registry->Load(name, path, replace, /*pinned=*/false, keep);
    rig.registry->LoadNext();
    return result->status();
  };
  CHECK(load("n", "x/y").ok());
  CHECK(rig.Get("n").ok());
  CHECK(absl::IsAlreadyExists(load("n", "/adapters/x/y")));
  const auto before = rig.Get("n")->id;
  rig.Put("/adapters/x/y", "2");
  CHECK(load("n", "/adapters/x/y", /*replace=*/true).ok());
  CHECK(rig.Get("n")->id != before);
  CHECK(absl::IsPermissionDenied(load("o", "../secret")));
  CHECK(absl::IsPermissionDenied(load("o", "/etc/passwd")));
  CHECK(absl::IsPermissionDenied(load("o", ".")));
  CHECK(absl::IsNotFound(load("o", "z")));
  CHECK(absl::IsInvalidArgument(load("a,b", "x/y")));
  CHECK(rig.registry->Unload("n").ok());
  CHECK(absl::IsNotFound(rig.registry->Unload("n")));
  CHECK(absl::IsNotFound(rig.registry->Look("n")));
}

TEST_CASE("Unloading a name that is loading answers those who wait", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "a");
  REQUIRE(rig.registry->Look("a").ok());
  Result result;
  rig.registry->Acquire("a", [&result](auto got) { result = std::move(got); });
  REQUIRE(rig.registry->Unload("a").ok());
  REQUIRE(result.has_value());
  CHECK(absl::IsNotFound(result->status()));
  CHECK(rig.registry->LoadNext());
  CHECK(rig.files.num_loads == 0);
}

TEST_CASE("An adapter of the command line stays, whatever happens to others", "[server][unit]") {
  Rig rig(/*host_bytes=*/10);
  rig.Put("/far/away", "ffffff");
  rig.Put("/adapters/a", "aaaaa");
  REQUIRE(rig.registry->AddFixed("f", "/far/away").ok());
  CHECK(absl::IsAlreadyExists(rig.registry->AddFixed("f", "/far/away")));
  CHECK(absl::IsUnavailable(rig.Get("a").status()));
  CHECK(rig.Get("f").ok());
  CHECK(rig.registry->NameAt(0).value() == "f");
  CHECK(rig.registry->NamesOf({rig.Get("f")->id}) == std::vector<std::string>{"f"});
  CHECK(absl::IsNotFound(rig.registry->AddFixed("g", "/far/gone")));
}

TEST_CASE("Stop answers all who wait", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "a");
  REQUIRE(rig.registry->Look("a").ok());
  Result result;
  rig.registry->Acquire("a", [&result](auto got) { result = std::move(got); });
  rig.registry->Stop();
  REQUIRE(result.has_value());
  CHECK(absl::IsUnavailable(result->status()));
}

}  // namespace
}  // namespace heddle::server
