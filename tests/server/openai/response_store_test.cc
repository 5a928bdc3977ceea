#include "server/openai/response_store.h"

#include <memory>
#include <string>

#include "catch2/catch.hpp"

namespace heddle::test {
namespace {

using server::ResponseStore;

TEST_CASE("A response is found by those who made it, until it is forgotten", "[openai]") {
  ResponseStore store;
  store.Put("a", {1, "[]", "{}"});
  REQUIRE(store.Get("a", 1) != nullptr);
  CHECK(store.Get("a", 1)->body == "{}");
  CHECK(store.Get("a", 2) == nullptr);
  CHECK_FALSE(store.Erase("a", 2));
  CHECK(store.Erase("a", 1));
  CHECK(store.Get("a", 1) == nullptr);
  CHECK(store.bytes() == 0);
}

TEST_CASE("Out of room, the longest unused response goes first", "[openai]") {
  const std::string body(97, 'x');  // with id and messages 100 bytes
  ResponseStore store(/*max_bytes=*/300, /*max_entries=*/10);
  for (const char* id : {"a", "b", "c"}) store.Put(id, {0, "[]", body});
  CHECK(store.bytes() == 300);
  CHECK(store.Get("a", 0) != nullptr);  // used just now
  store.Put("d", {0, "[]", body});
  CHECK(store.Get("b", 0) == nullptr);
  CHECK(store.Get("a", 0) != nullptr);
  store.Put("huge", {0, "[]", std::string(1000, 'x')});
  CHECK(store.Get("huge", 0) == nullptr);
  CHECK(store.bytes() == 300);
  ResponseStore few(/*max_bytes=*/1 << 20, /*max_entries=*/2);
  for (const char* id : {"a", "b", "c"}) few.Put(id, {0, "", ""});
  CHECK(few.Get("a", 0) == nullptr);
  CHECK(few.Get("c", 0) != nullptr);
  few.Put("c", {0, "", "new"});
  CHECK(few.Get("b", 0) != nullptr);
  CHECK(few.Get("c", 0)->body == "new");
}

TEST_CASE("The items of a response take room as all else of it does", "[openai]") {
  ResponseStore store(/*max_bytes=*/1000, /*max_entries=*/10);
  const auto items = [](size_t n) {
    return server::ResponseItems(n, server::ResponseItem{"id", "{}"});
  };
  store.Put("a", {0, "[]", "{}", items(2)});
  CHECK(store.bytes() == 5 + 2 * (sizeof(server::ResponseItem) + 4));
  CHECK(store.Get("a", 0)->items.size() == 2);
  store.Put("b", {0, "[]", "{}", items(1000)});
  CHECK(store.Get("b", 0) == nullptr);
  const auto kept = store.Get("a", 0);
  CHECK(store.Erase("a", 0));
  CHECK(kept->items[1].json == "{}");  // whoever has it keeps it
  CHECK(store.bytes() == 0);
}

}  // namespace
}  // namespace heddle::test
