#include "server/openai/input_items.h"

#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"

namespace heddle::test {
namespace {

using server::ApiError;
using server::InputItems;
using server::Json;
using server::ListItems;
using server::QueryParameter;
using server::ResponseItems;
using server::ResponseStore;
using Query = std::vector<QueryParameter>;

ResponseItems Items(const std::string& input) {
  return InputItems(Json::parse(input), "u", nullptr);
}

Json Listed(const ResponseItems& items, const Query& query = {}) {
  auto page = ListItems(items, query);
  INFO(page.status());
  REQUIRE(page.ok());
  return Json::parse(*page);
}

ApiError Refused(const Query& query) {
  auto page = ListItems(Items(R"("x")"), query);
  REQUIRE_FALSE(page.ok());
  return server::ToApiError(page.status());
}

std::string Ids(const Json& page) {
  std::string ids;
  for (const Json& item : page["data"]) ids += item["id"].get<std::string>() + " ";
  return ids;
}

TEST_CASE("A text is one message of the user", "[openai]") {
  const Json page = Listed(Items(R"("Hé")"));
  CHECK(page["object"] == "list");
  CHECK(page["data"].dump() ==
        R"([{"id":"msg_u_i0","type":"message","status":"completed","role":"user",)"
        R"("content":[{"type":"input_text","text":"Hé"}]}])");
  CHECK(page["first_id"] == "msg_u_i0");
  CHECK(page["last_id"] == "msg_u_i0");
  CHECK(page["has_more"] == false);
}

TEST_CASE("Items of every type have the members that the API gives them", "[openai]") {
  const Json data = Listed(Items(R"([
      {"role":"developer","content":[{"type":"text","text":"a","more":1},"b"]},
      {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}]},
      {"role":"assistant","content":"c","status":"incomplete"},
      {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},
      {"type":"function_call","call_id":"call_1","name":"f","arguments":"{\"a\":1}"},
      {"type":"function_call_output","call_id":"call_1","output":"out","status":7}])"),
                           {{"order", "asc"}})["data"];
  REQUIRE(data.size() == 6);
  CHECK(data[0].dump() ==
        R"({"id":"msg_u_i0","type":"message","status":"completed","role":"developer","content":)"
        R"([{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]})");
  CHECK(data[1].dump() == R"({"id":"rs_1","type":"reasoning","status":"completed",)"
                          R"("summary":[{"type":"summary_text","text":"s"}],"content":[]})");
  CHECK(data[2]["status"] == "incomplete");
  CHECK(data[2]["content"].dump() == R"([{"type":"output_text","text":"c","annotations":[]}])");
  CHECK(data[3]["content"].dump() == R"([{"type":"refusal","refusal":"no"}])");
  CHECK(data[4].dump() ==
        R"({"id":"fc_u_i4","type":"function_call","status":"completed","call_id":"call_1",)"
        R"("name":"f","arguments":"{\"a\":1}"})");
  CHECK(data[5].dump() == R"({"id":"fco_u_i5","type":"function_call_output","status":"completed",)"
                          R"("call_id":"call_1","output":"out"})");
}

TEST_CASE("A client's id stays where it is fit to be one and no other item's", "[openai]") {
  const std::string long_id(129, 'a');
  const ResponseItems items = Items(
      R"([{"id":"msg_A-1.b","content":"x"},{"id":"msg_A-1.b","content":"x"},{"id":"","content":"x"},)"
      R"({"id":7,"content":"x"},{"id":"a b","content":"x"},{"id":"a/é","content":"x"},{"id":")" +
      long_id + R"(","content":"x"},{"id":"msg_u_i8","content":"x"},{"content":"x"}])");
  std::set<std::string> ids;
  for (const server::ResponseItem& item : items) {
    ids.insert(item.id);
    CHECK(Json::parse(item.json)["id"] == item.id);
  }
  CHECK(ids.size() == items.size());
  CHECK(items[0].id == "msg_A-1.b");
  for (size_t i = 1; i < 7; ++i) CHECK(items[i].id == "msg_u_i" + std::to_string(i));
}

TEST_CASE("A response that goes on from another has its items and its answer before its own",
          "[openai]") {
  ResponseStore::Entry previous;
  previous.items = Items(R"("one")");
  previous.body = R"({"output":[{"id":"msg_u_0","type":"message","content":)"
                  R"([{"type":"output_text","text":"two","logprobs":[{"token":"two"}]}]}]})";
  const ResponseItems items = InputItems(
      Json::parse(R"([{"id":"msg_u_0","content":"again"},{"content":"three"}])"), "v", &previous);
  const Json page = Listed(items, {{"order", "asc"}});
  CHECK(Ids(page) == "msg_u_i0 msg_u_0 msg_v_i2 msg_v_i3 ");
  CHECK(page["data"][1]["content"].dump() ==
        R"([{"type":"output_text","text":"two","logprobs":[]}])");
}

TEST_CASE("Pages follow each other in either order, and together are all items", "[openai]") {
  std::string input;
  for (int i = 0; i < 45; ++i) input += R"(,{"content":"x"})";
  const ResponseItems items = Items("[" + input.substr(1) + "]");
  CHECK(Listed(items)["data"].size() == 20);
  CHECK(Listed(items)["first_id"] == "msg_u_i44");
  CHECK(Listed(items, {{"order", "asc"}})["first_id"] == "msg_u_i0");
  for (const std::string order : {"asc", "desc"}) {
    for (const int limit : {1, 7, 44, 45, 46, 100}) {
      Query query = {{"order", order}, {"limit", std::to_string(limit)}};
      std::string seen;
      bool has_more = true;
      for (int pages = 0; has_more; ++pages) {
        REQUIRE(pages < 46);
        const Json page = Listed(items, query);
        CHECK(page["first_id"] == page["data"].front()["id"]);
        CHECK(page["last_id"] == page["data"].back()["id"]);
        has_more = page["has_more"].get<bool>();
        CHECK((page["data"].size() == static_cast<size_t>(limit) || !has_more));
        seen += Ids(page);
        query.resize(2);
        query.emplace_back("after", page["last_id"].get<std::string>());
      }
      std::string all;
      for (size_t i = 0; i < 45; ++i) {
        all += "msg_u_i" + std::to_string(order == "asc" ? i : 44 - i) + " ";
      }
      CHECK(seen == all);
    }
  }
}

TEST_CASE("Behind the last item there is an empty page", "[openai]") {
  const Json page = Listed(Items(R"("x")"), {{"after", "msg_u_i0"}});
  CHECK(page.dump() ==
        R"({"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false})");
  CHECK(Listed({})["data"].empty());
}

TEST_CASE("A query with wrong values is refused by name, and what is not known is left alone",
          "[openai]") {
  for (const std::string limit : {"0", "101", "-1", "", " 5", "5 ", "+5", "5.0", "1e1", "0x5",
                                  "five", "null", "99999999999999999999", "\xff"}) {
    INFO(limit);
    CHECK(Refused({{"limit", limit}}).param == "limit");
    CHECK(Refused({{"limit", limit}}).http_status == 400);
  }
  for (const std::string order : {"", "ASC", "asc,desc", "\xff"}) {
    CHECK(Refused({{"order", order}}).param == "order");
  }
  for (const std::string& after : {std::string(), std::string("msg_u_i1"), std::string(4000, 'a'),
                                   std::string("\0", 1), std::string("\xff")}) {
    CHECK(Refused({{"after", after}}).param == "after");
  }
  CHECK(Refused({{"before", "msg_u_i0"}}).param == "before");
  CHECK(Refused({{"limit", "1"}, {"limit", "1"}}).message == "'limit' is given more than once");
  CHECK(Listed(Items(R"("x")"),
               {{"include[]", "a"}, {"include[]", "b"}, {"", ""}, {"v", "\xff"}})["data"]
            .size() == 1);
}

}  // namespace
}  // namespace heddle::test
