#include "server/http/page_origin.h"

#include <string>

#include "catch2/catch.hpp"

namespace heddle::test {
namespace {

using server::CheckPageOrigin;
using server::HttpRequest;
using server::IsLoopback;

struct Sent {
  std::string origin;
  std::string host;
  std::string site;  // Sec-Fetch-Site
  std::string method = "POST";
};

bool Passes(const Sent& sent, bool on_loopback, std::string_view allowed = "") {
  HttpRequest request;
  request.method = sent.method;
  if (!sent.host.empty()) request.headers.emplace_back("Host", sent.host);
  if (!sent.origin.empty()) request.headers.emplace_back("Origin", sent.origin);
  if (!sent.site.empty()) request.headers.emplace_back("Sec-Fetch-Site", sent.site);
  return CheckPageOrigin(request, allowed, on_loopback).ok();
}

bool PassesAnywhere(const Sent& sent) { return Passes(sent, true) && Passes(sent, false); }
bool PassesNowhere(const Sent& sent) { return !Passes(sent, true) && !Passes(sent, false); }

TEST_CASE("Programs say nothing of pages and are not refused", "[page_origin]") {
  CHECK(PassesAnywhere({"", "127.0.0.1:8000", ""}));
  CHECK(PassesAnywhere({"", "whatever.example", ""}));
  CHECK(PassesAnywhere({"", "", ""}));
}

TEST_CASE("The server's own page may ask, also behind proxies", "[page_origin]") {
  CHECK(PassesAnywhere({"http://127.0.0.1:8000", "127.0.0.1:8000", "same-origin"}));
  CHECK(PassesAnywhere({"https://chat.example", "heddle:8000", "same-origin"}));
  CHECK(PassesAnywhere({"", "127.0.0.1:8000", "none"}));
  CHECK(PassesAnywhere({"http://localhost:8000", "localhost:8000", ""}));
  CHECK(PassesAnywhere({"http://a.LocalHost:8000", "A.localhost:8000", ""}));
  CHECK(PassesAnywhere({"http://[::1]:8000", "[::1]:8000", ""}));
  CHECK(PassesAnywhere({"http://192.168.1.5:8000", "192.168.1.5:8000", ""}));
  CHECK(Passes({"http://box:8000", "box:8000", ""}, /*on_loopback=*/false));
}

TEST_CASE("Pages of other sites may not ask", "[page_origin]") {
  CHECK(PassesNowhere({"https://evil.example", "127.0.0.1:8000", "cross-site"}));
  CHECK(PassesNowhere({"http://localhost:3000", "localhost:8000", "same-site"}));
  CHECK(PassesNowhere({"https://evil.example", "127.0.0.1:8000", ""}));
  CHECK(PassesNowhere({"http://localhost:3000", "localhost:8000", ""}));
  CHECK(PassesNowhere({"http://127.0.0.1:8000", "", ""}));
  CHECK(PassesNowhere({"", "127.0.0.1:8000", "cross-site"}));
  CHECK(PassesNowhere({"https://evil.example", "127.0.0.1:8000", "", "DELETE"}));
  CHECK(PassesNowhere({"https://evil.example", "127.0.0.1:8000", "nonsense"}));
  // A page in a sandboxed frame, which any page can make, and values that are no origin at all.
  CHECK(PassesNowhere({"null", "127.0.0.1:8000", ""}));
  CHECK(PassesNowhere({"null", "null", ""}));
  CHECK(PassesNowhere({"127.0.0.1:8000", "127.0.0.1:8000", ""}));
  CHECK(PassesNowhere({"http://", "127.0.0.1:8000", ""}));
  CHECK(PassesNowhere({"http://", "", ""}));
}

TEST_CASE("On this machine alone a name may be the attacker's", "[page_origin]") {
  for (const char* name : {"evil.example:8000", "evillocalhost:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "[evil:1", "x"}) {
    INFO(name);
    CHECK_FALSE(Passes({std::string("http://") + name, name, ""}, /*on_loopback=*/true));
  }
}

TEST_CASE("Pages may ask that were allowed to, and applications", "[page_origin]") {
  const Sent page = {"https://app.example", "127.0.0.1:8000", "cross-site"};
  CHECK(Passes(page, true, "https://app.example"));
  CHECK(Passes(page, true, "*"));
  CHECK_FALSE(Passes(page, true, "https://app.example:444"));
  CHECK(Passes({"", "127.0.0.1:8000", "cross-site"}, true, "*"));
  CHECK_FALSE(Passes({"", "127.0.0.1:8000", "cross-site"}, true, "https://app.example"));
  CHECK(PassesAnywhere({"vscode-webview://1f2e", "127.0.0.1:8000", "cross-site"}));
  CHECK(PassesAnywhere({"app://obsidian.md", "127.0.0.1:8000", ""}));
}

TEST_CASE("What changes and costs nothing is not looked at", "[page_origin]") {
  for (const char* method : {"GET", "HEAD", "OPTIONS"}) {
    CHECK(PassesAnywhere({"https://evil.example", "127.0.0.1:8000", "cross-site", method}));
  }
}

TEST_CASE("Loopback is an address of this machine alone", "[page_origin]") {
  CHECK(IsLoopback("127.0.0.1"));
  CHECK(IsLoopback("127.8.0.1"));
  CHECK(IsLoopback("::1"));
  CHECK(IsLoopback("localhost"));
  CHECK_FALSE(IsLoopback("0.0.0.0"));
  CHECK_FALSE(IsLoopback("::"));
  CHECK_FALSE(IsLoopback("192.168.127.1"));
}

}  // namespace
}  // namespace heddle::test
