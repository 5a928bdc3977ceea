// Forms as clients send them: what curl 7.88 and Python's httpx 0.28 sent was recorded.
#include "server/batch/form.h"

#include <string>

#include "catch2/catch.hpp"
#include "tests/support/status_matchers.h"

namespace heddle::server {
namespace {

constexpr const char* kCurlType =
    "multipart/form-data; boundary=------------------------d74496d66958873e";
constexpr const char* kCurlBody =
    "--------------------------d74496d66958873e\r\n"
    "Content-Disposition: form-data; name=\"purpose\"\r\n"
    "\r\n"
    "batch\r\n"
    "--------------------------d74496d66958873e\r\n"
    "Content-Disposition: form-data; name=\"file\"; filename=\"a\\\"b;c.jsonl\"\r\n"
    "Content-Type: application/octet-stream\r\n"
    "\r\n"
    "{\"a\":1}\r\n--\n\r\n"
    "--------------------------d74496d66958873e--\r\n";

TEST_CASE("A form has the parts that a client sent", "[unit]") {
  const auto form = ParseForm(kCurlType, kCurlBody);
  REQUIRE(form.ok());
  REQUIRE(form->size() == 2);
  CHECK(FindPart(*form, "purpose")->content == "batch");
  CHECK(FindPart(*form, "purpose")->filename.empty());
  CHECK(FindPart(*form, "file")->filename == "a\"b;c.jsonl");
  CHECK(FindPart(*form, "file")->content == "{\"a\":1}\r\n--\n");
  CHECK(FindPart(*form, "other") == nullptr);
}

TEST_CASE("Boundaries may be quoted, and names of headers be written in any case", "[unit]") {
  const auto form = ParseForm("Multipart/Form-Data;charset=utf-8; Boundary=\"b c\"",
                              "--b c\r\nCONTENT-DISPOSITION: form-data; NAME=x\r\n\r\n\r\n--b c--");
  REQUIRE(form.ok());
  REQUIRE(form->size() == 1);
  CHECK(form->front().name == "x");
  CHECK(form->front().content.empty());
}

TEST_CASE("What is no whole form is refused", "[unit]") {
  const std::string whole = kCurlBody;
  for (const char* type : {"", "application/json", "multipart/form-data",
                           "multipart/form-data; boundary=", "multipart/mixed; boundary=b",
                           "multipart/form-data; boundary=\"b"}) {
    INFO(type);
    CHECK(absl::IsInvalidArgument(ParseForm(type, whole).status()));
  }
  // Cut anywhere before its end it is not whole.
  for (size_t size = 0; size + 4 <= whole.size(); ++size) {
    INFO(size);
    CHECK(absl::IsInvalidArgument(ParseForm(kCurlType, whole.substr(0, size)).status()));
  }
  const std::string type = "multipart/form-data; boundary=b";
  const std::string part = "--b\r\nContent-Disposition: form-data; name=x\r\n\r\n1\r\n";
  std::string many;
  for (int i = 0; i < 17; ++i) many += part;
  CHECK_FALSE(ParseForm(type, many + "--b--").ok());
  CHECK(ParseForm(type, many.substr(part.size()) + "--b--").ok());
  CHECK_FALSE(ParseForm(type, "--b\r\nX: " + std::string(5000, 'x') + "\r\n\r\n1\r\n--b--").ok());
  CHECK_FALSE(ParseForm(type, "--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n--b--").ok());
  CHECK_FALSE(ParseForm(type, "--bX\r\n\r\n1\r\n--b--").ok());
}

}  // namespace
}  // namespace heddle::server
