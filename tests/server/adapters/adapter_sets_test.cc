// Several adapters as one: how a set is identified, composed, kept and given up.
#include "server/adapters/adapter_sets.h"

#include "catch2/catch.hpp"
#include "server/request/api_error.h"
#include "tests/server/adapters/registry_rig.h"

namespace heddle::server {
namespace {

using test::Rig;

// Composes by writing contents and scales behind each other.
struct SetRig : Rig {
  explicit SetRig(int64_t host_bytes = 1000) : Rig(host_bytes) {
    for (const char* name : {"a", "b", "c"}) Put("/adapters/" + std::string(name), name);
  }

  absl::StatusOr<AdapterLease> Use(std::vector<ScaledAdapter> adapters) {
    for (const ScaledAdapter& adapter : adapters) REQUIRE(registry->Look(adapter.name).ok());
    test::Result result;
    sets.Acquire(std::move(adapters), [&result](auto got) { result = std::move(got); });
    while (!result.has_value() && registry->LoadNext()) {
    }
    REQUIRE(result.has_value());
    return *std::move(result);
  }

  int composed = 0;
  std::string refuse;
  AdapterSets sets{registry.get(),
                   [this](const std::vector<ScaledImage>& members)
                       -> absl::StatusOr<std::shared_ptr<engine::AdapterImage>> {
                     if (!refuse.empty()) return absl::InvalidArgumentError(refuse);
                     ++composed;
                     std::string content;
                     for (const ScaledImage& member : members) {
                       content += std::string(1, static_cast<char>(member.image->content[0])) +
                                  std::to_string(static_cast<int>(10 * member.scale));
                     }
                     return test::ImageOf(content);
                   }};
};

TEST_CASE("One adapter of a list is that adapter at its scale", "[server][unit]") {
  SetRig rig;
  const auto lease = rig.Use({{"a", 0.5f}});
  REQUIRE(lease.ok());
  CHECK(lease->name == "a");
  CHECK(lease->scale == 0.5f);
  CHECK(lease->id == rig.Get("a")->id);
  CHECK(rig.composed == 0);
}

TEST_CASE("A set has one identity, whatever the order of its members", "[server][unit]") {
  SetRig rig;
  const auto set = rig.Use({{"a", 1}, {"b", 0.5f}});
  REQUIRE(set.ok());
  CHECK(set->scale == 1);
  CHECK(set->image->id == set->id);
  CHECK(rig.Use({{"b", 0.5f}, {"a", 1}})->id == set->id);
  CHECK(rig.composed == 1);
  CHECK(rig.Use({{"a", 0.5f}, {"b", 1}})->id != set->id);
  CHECK(rig.Use({{"a", 1}, {"b", 0.5f}, {"c", 1}})->id != set->id);
  CHECK(rig.Use({{"a", 1}})->id != set->id);
  // Another version of a member makes another set.
  rig.Put("/adapters/b", "B");
  rig.Pass(test::kLong);
  CHECK(rig.Use({{"a", 1}, {"b", 0.5f}})->id != set->id);
}

TEST_CASE("A set that was evicted is composed again, and is the same", "[server][unit]") {
  SetRig rig(/*host_bytes=*/9);  // members of 1 byte, sets of 6
  const engine::AdapterId first = rig.Use({{"a", 1}, {"b", 1}})->id;
  REQUIRE(rig.Use({{"a", 1}, {"c", 1}}).ok());
  CHECK(rig.registry->FindImage(first) == nullptr);
  CHECK(rig.composed == 2);
  CHECK(rig.Use({{"a", 1}, {"b", 1}})->id == first);
  CHECK(rig.composed == 3);
}

TEST_CASE("A set fails with its members, or because they do not fit together", "[server][unit]") {
  SetRig rig;
  rig.files.files["/adapters/b"].broken = "no";
  const absl::Status failed = rig.Use({{"a", 1}, {"b", 1}}).status();
  CHECK(ToApiError(failed).code == "adapter_failed");
  CHECK(std::string(failed.message()).find("\"b\"") != std::string::npos);
  rig.refuse = "the ranks add up to 600";
  const absl::Status refused = rig.Use({{"a", 1}, {"c", 1}}).status();
  CHECK(ToApiError(refused).http_status == 400);
  CHECK(refused.message() == "the adapters cannot be used together: the ranks add up to 600");
}

TEST_CASE("A cancelled wait for a set is never answered", "[server][unit]") {
  for (const int loads : {0, 1, 2}) {
    SetRig rig;
    for (const char* name : {"a", "b"}) REQUIRE(rig.registry->Look(name).ok());
    int answers = 0;
    const uint64_t wait =
        rig.sets.Acquire({{"a", 1}, {"b", 1}}, [&answers](const auto&) { ++answers; });
    for (int i = 0; i < loads; ++i) REQUIRE(rig.registry->LoadNext());
    rig.sets.Cancel(wait);
    while (rig.registry->LoadNext()) {
    }
    CHECK(answers == 0);
    CHECK(rig.registry->figures().waiting == 0);
  }
}

TEST_CASE("Stop answers a set that waits to be composed", "[server][unit]") {
  SetRig rig;
  REQUIRE(rig.Get("a").ok());
  REQUIRE(rig.Get("b").ok());
  test::Result result;
  rig.sets.Acquire({{"a", 1}, {"b", 1}}, [&result](auto got) { result = std::move(got); });
  CHECK_FALSE(result.has_value());
  rig.registry->Stop();
  REQUIRE(result.has_value());
}

}  // namespace
}  // namespace heddle::server
