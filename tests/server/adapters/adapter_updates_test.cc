// Changes by operators at run time: loads that replace or fail, unloading, pins, the base's
// adapters.
#include <optional>

#include "catch2/catch.hpp"
#include "server/adapters/adapter_registry.h"
#include "server/request/api_error.h"
#include "tests/server/adapters/registry_rig.h"

namespace heddle::server {
namespace {

using test::Rig;

absl::Status Load(Rig* rig, const std::string& name, const std::string& path, bool replace = false,
                  bool pinned = false) {
  test::Result result;
  rig->registry->Load(name, path, replace, pinned,
                      [&result](auto got) { result = std::move(got); });
  while (!result.has_value() && rig->registry->LoadNext()) {
  }
  REQUIRE(result.has_value());
  return result->status();
}

TEST_CASE("A load that fails leaves what was there, and no name", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/good", "good");
  rig.Put("/adapters/bad", "bad");
  rig.files.files["/adapters/bad"].broken = "lora_B is missing";
  CHECK(absl::IsInvalidArgument(Load(&rig, "new", "bad")));
  CHECK(absl::IsNotFound(rig.registry->Look("new")));
  REQUIRE(Load(&rig, "n", "good").ok());
  const engine::AdapterId before = rig.Get("n")->id;
  CHECK(absl::IsInvalidArgument(Load(&rig, "n", "bad", /*replace=*/true)));
  CHECK(rig.Get("n")->id == before);
  CHECK(test::ContentOf(*rig.Get("n")) == "good");
  CHECK(rig.registry->figures().failed_loads == 2);
}

TEST_CASE("A name appears when its adapter is ready, and the old version serves until then",
          "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/one", "1");
  rig.Put("/adapters/two", "2");
  test::Result done;
  const auto keep = [&done](auto got) { done = std::move(got); };
  rig.registry->Load("n", "one", false, false, keep);
  CHECK_FALSE(done.has_value());
  CHECK(absl::IsNotFound(rig.registry->Look("n")));
  CHECK(rig.registry->figures().waiting == 1);
  REQUIRE(rig.registry->LoadNext());
  REQUIRE(done->ok());
  const engine::AdapterId first = (*done)->id;
  done.reset();
  rig.registry->Load("n", "two", /*replace=*/true, false, keep);
  CHECK(rig.Get("n")->id == first);
  REQUIRE(rig.registry->LoadNext());
  CHECK(rig.Get("n")->id == (*done)->id);
  CHECK(test::ContentOf(*rig.Get("n")) == "2");
}

TEST_CASE("The same name twice at once is loaded once", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "a");
  int loaded = 0;
  int refused = 0;
  for (int i = 0; i < 5; ++i) {
    rig.registry->Load("n", "a", false, false, [&](absl::StatusOr<AdapterLease> got) {
      got.ok() ? ++loaded : ++refused;
      if (!got.ok()) CHECK(absl::IsAlreadyExists(got.status()));
    });
  }
  while (rig.registry->LoadNext()) {
  }
  CHECK(loaded == 1);
  CHECK(refused == 4);
  CHECK(rig.files.num_loads == 1);
}

TEST_CASE("A thousand loads by operators are each answered, and more than may wait are refused",
          "[server][unit]") {
  Rig rig(/*host_bytes=*/100'000, /*max_waiting=*/1000);
  rig.Put("/adapters/a", "a");
  int ok = 0;
  int busy = 0;
  for (int i = 0; i < 1100; ++i) {
    rig.registry->Load("n" + std::to_string(i), "a", false, false,
                       [&](absl::StatusOr<AdapterLease> got) {
                         if (got.ok()) ++ok;
                         if (absl::IsUnavailable(got.status())) ++busy;
                       });
  }
  CHECK(busy == 100);
  while (rig.registry->LoadNext()) {
  }
  CHECK(ok == 1000);
  CHECK(rig.registry->figures().in_memory == 1);  // the same content a thousand times
  CHECK(rig.registry->figures().waiting == 0);
}

TEST_CASE("An unloaded name stays unknown until it is loaded again, though the folder has it",
          "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "a");
  const auto lease = rig.Get("a");
  REQUIRE(lease.ok());
  REQUIRE(rig.registry->Unload("a").ok());
  rig.Pass(test::kLong);
  CHECK(absl::IsNotFound(rig.registry->Look("a")));
  CHECK(ToApiError(rig.registry->Unload("a")).code == "model_not_found");
  CHECK(test::ContentOf(*lease) == "a");  // who has it goes on
  rig.Put("/adapters/never", "asked for");
  REQUIRE(rig.registry->Unload("never").ok());
  CHECK(absl::IsNotFound(rig.registry->Look("never")));
  REQUIRE(Load(&rig, "a", "a").ok());
  CHECK(rig.Get("a")->id == lease->id);
  CHECK(absl::IsNotFound(rig.registry->Unload("nothing")));
}

TEST_CASE("A load takes over a name that the folder has", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "folder");
  rig.Put("/adapters/b", "other");
  REQUIRE(rig.Get("a").ok());
  REQUIRE(Load(&rig, "a", "b").ok());
  CHECK(test::ContentOf(*rig.Get("a")) == "other");
  rig.Put("/adapters/a", "changed");
  rig.Pass(test::kLong);
  CHECK(test::ContentOf(*rig.Get("a")) == "other");  // changes by an operator's hand only
}

TEST_CASE("Those who wait for a name get what an operator loads under it", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "folder");
  rig.Put("/adapters/b", "loaded");
  REQUIRE(rig.registry->Look("a").ok());
  REQUIRE(Load(&rig, "a", "b").ok());
  test::Result waiting;
  rig.registry->Acquire("a", [&waiting](auto got) { waiting = std::move(got); });
  REQUIRE(waiting.has_value());
  CHECK(test::ContentOf(**waiting) == "loaded");
  while (rig.registry->LoadNext()) {
  }
  CHECK(test::ContentOf(*rig.Get("a")) == "loaded");
}

TEST_CASE("What is larger than the memory for adapters is refused and displaces nobody",
          "[server][unit]") {
  Rig rig(/*host_bytes=*/10);
  rig.Put("/adapters/small", "sssss");
  rig.Put("/adapters/huge", std::string(21 * 2, 'h'));
  REQUIRE(rig.Get("small").ok());
  const int loads = rig.files.num_loads;
  CHECK(absl::IsResourceExhausted(Load(&rig, "n", "huge")));
  CHECK(absl::IsInvalidArgument(rig.Get("huge").status()));
  CHECK(rig.files.num_loads == loads);  // not read
  CHECK(rig.registry->figures().evictions == 0);
}

TEST_CASE("Pinned adapters stay, and leave room for the largest of the others", "[server][unit]") {
  Rig rig(/*host_bytes=*/12);
  rig.Put("/adapters/a", "aaaa");
  rig.Put("/adapters/b", "bbbb");
  rig.Put("/adapters/c", "cccc");
  REQUIRE(Load(&rig, "a", "a", false, /*pinned=*/true).ok());
  REQUIRE(Load(&rig, "b", "b", false, /*pinned=*/true).ok());
  CHECK(absl::IsResourceExhausted(Load(&rig, "c", "c", false, /*pinned=*/true)));
  CHECK(absl::IsNotFound(Load(&rig, "d", "d", false, true)));
  REQUIRE(rig.Get("c").ok());
  CHECK(rig.registry->Info("a")->pinned);
  rig.Put("/adapters/e", "eeee");
  REQUIRE(rig.Get("e").ok());  // in the place of c
  const int loads = rig.files.num_loads;
  CHECK(rig.Get("a").ok());
  CHECK(rig.Get("b").ok());
  CHECK(rig.files.num_loads == loads);
  // Loaded again without a pin, it may go.
  REQUIRE(Load(&rig, "a", "a", /*replace=*/true, /*pinned=*/false).ok());
  CHECK_FALSE(rig.registry->Info("a")->pinned);
  CHECK(Load(&rig, "c", "c", false, /*pinned=*/true).ok());
}

TEST_CASE("An adapter of the command line can be unloaded and replaced, not while the base has it",
          "[server][unit]") {
  Rig rig;
  rig.Put("/far", "far");
  rig.Put("/adapters/near", "near");
  REQUIRE(rig.registry->AddFixed("f", "/far").ok());
  CHECK(absl::IsAlreadyExists(Load(&rig, "f", "near")));
  REQUIRE(rig.registry->SetBaseAdapters({{"f", 0.5f}}).ok());
  CHECK(rig.registry->base_adapters() == std::vector<ScaledAdapter>{{"f", 0.5f}});
  CHECK(absl::IsInvalidArgument(rig.registry->Unload("f")));
  REQUIRE(Load(&rig, "f", "near", /*replace=*/true).ok());
  CHECK(test::ContentOf(*rig.Get("f")) == "near");
  REQUIRE(Load(&rig, "run-time", "near").ok());
  CHECK(absl::IsInvalidArgument(rig.registry->SetBaseAdapters({{"run-time", 1}})));
  CHECK(absl::IsNotFound(rig.registry->SetBaseAdapters({{"unknown", 1}})));
  CHECK(rig.registry->base_adapters().size() == 1);
  REQUIRE(rig.registry->SetBaseAdapters({{"f", 0}}).ok());
  CHECK(rig.registry->base_adapters().empty());
  CHECK(rig.registry->Unload("f").ok());
  CHECK(absl::IsNotFound(rig.registry->Look("f")));
}

TEST_CASE("Names of versions, and of what requests wait for, can be read", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "same");
  rig.Put("/adapters/b", "same");
  const engine::AdapterId id = rig.Get("a")->id;
  REQUIRE(rig.Get("b").ok());
  CHECK(rig.registry->NamesOf({id}) == std::vector<std::string>{"a", "b"});
  CHECK(rig.registry->NamesOf({}).empty());
  rig.Put("/adapters/cold", "c");
  REQUIRE(rig.registry->Look("cold").ok());
  const double before = rig.registry->figures().wanted_changed_at;
  test::Result result;
  rig.registry->Acquire("cold", [&result](auto got) { result = std::move(got); });
  CHECK(rig.registry->figures().wanted == std::vector<std::string>{"cold"});
  CHECK(rig.registry->figures().wanted_changed_at > before);
  REQUIRE(rig.registry->LoadNext());
  CHECK(rig.registry->figures().wanted.empty());
}

TEST_CASE("Stop answers loads that wait", "[server][unit]") {
  Rig rig;
  rig.Put("/adapters/a", "a");
  test::Result result;
  rig.registry->Load("n", "a", false, false, [&result](auto got) { result = std::move(got); });
  rig.registry->Stop();
  REQUIRE(result.has_value());
  CHECK(absl::IsUnavailable(result->status()));
}

}  // namespace
}  // namespace heddle::server
