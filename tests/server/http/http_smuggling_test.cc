// Requests that two servers could read differently, and bodies that are not what their headers say:
// none is answered but by an error, nothing behind it is taken for a request, and the engine never
// hears of it. Sources: RFC 9112 (sections 2.2, 5, 6, 7 and 11.2), and the classes of Linhart et
// al., "HTTP Request Smuggling", 2005, and of Kettle, "HTTP Desync Attacks", 2019.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;

const char* const kHost = "Host: t\r\n";
// The text that an attacker would like to have read as a second request.
const char* const kHidden = "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n";

std::string Post(const std::string& headers, const std::string& rest) {
  return "POST /tokenize HTTP/1.1\r\n" + std::string(kHost) + headers + "\r\n" + rest;
}

struct Try {
  const char* what;
  std::string bytes;
  int status = 400;
};

void CheckRefused(const Try& attempt) {
  INFO(attempt.what << "\n" << attempt.bytes);
  ServerUnderTest server([](const server::GenerationRequest&) { return std::string("no"); });
  RawClient client(server.port());
  client.Send(attempt.bytes);
  RawResponse response = client.Read();
  CHECK(response.status == attempt.status);
  CHECK(response.headers["connection"] == "close");
  const json body = json::parse(response.body, nullptr, false);
  REQUIRE(body.is_object());
  CHECK(body["error"]["message"].is_string());
  CHECK(client.ReadsEnd());  // no second answer
  CHECK(server.generation->num_submitted() == 0);
  CHECK(RawClient(server.port()).Get("/health").status == 200);
}

TEST_CASE("Two ways to tell a body's length are refused, whichever comes first", "[server]") {
  const std::string both = "0\r\n\r\n" + std::string(kHidden);
  const Try tries[] = {
      {"length, then chunked", Post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", both)},
      {"chunked, then length", Post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", both)},
      {"two lengths", Post("Content-Length: 2\r\nContent-Length: 40\r\n", "{}")},
      {"one length twice", Post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}")},
      {"a list of lengths", Post("Content-Length: 2, 2\r\n", "{}")},
      {"chunked twice", Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", both)},
      {"chunked, and a coding",
       Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", both)},
  };
  for (const Try& attempt : tries) CheckRefused(attempt);
}

TEST_CASE("HTTP/1.0 has no chunks", "[server]") {
  const std::string body = "2\r\n{}\r\n0\r\n\r\n";
  CheckRefused({"chunked in HTTP/1.0",
                "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + body});
  CheckRefused({"a list in HTTP/1.0",
                "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + body});
}

TEST_CASE("Empty lines before a request are skipped, a few of them", "[server]") {
  ServerUnderTest server([](const server::GenerationRequest&) { return std::string("no"); });
  RawClient client(server.port());
  client.Send("\r\nGET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  CHECK(client.Read().status == 200);
  for (const char* piece : {"\r", "\n", "\r\n", "GET /health HTTP/1.1\r\nHost: t\r\n\r\n"}) {
    client.Send(piece);
  }
  CHECK(client.Read().status == 200);
  CheckRefused({"many", "\r\n\r\n\r\n\r\n\r\n\r\nGET /health HTTP/1.1\r\nHost: t\r\n\r\n"});
  CheckRefused({"lone line feeds", "\n\nGET /health HTTP/1.1\r\nHost: t\r\n\r\n"});
}

TEST_CASE("Only OPTIONS can be asked of the whole server", "[server]") {
  ServerUnderTest server([](const server::GenerationRequest&) { return std::string("no"); });
  RawClient client(server.port());
  client.Send("GET * HTTP/1.1\r\nHost: t\r\n\r\n");
  RawResponse response = client.Read();
  CHECK(response.status == 405);
  CHECK(json::parse(response.body)["error"]["message"] == "* takes OPTIONS, not \"GET\"");
  client.Send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
  CHECK(client.Read().status == 204);
}

TEST_CASE("Lengths that are no plain number are refused", "[server]") {
  for (const char* length : {"+2", "-2", "0x2", "2 2", "2;", "", "two", "18446744073709551618",
                             "99999999999999999999999999"}) {
    CheckRefused({length, Post(std::string("Content-Length: ") + length + "\r\n", "{}")});
  }
}

TEST_CASE("Transfer codings other than chunked alone are refused", "[server]") {
  for (const char* coding : {"gzip, chunked", "chunked, gzip", "identity", "xchunked", "chunkedx",
                             "chunked, chunked", "\"chunked\""}) {
    Try attempt{coding, Post(std::string("Transfer-Encoding: ") + coding + "\r\n", "0\r\n\r\n")};
    INFO(coding);
    ServerUnderTest server([](const server::GenerationRequest&) { return std::string("no"); });
    RawClient client(server.port());
    client.Send(attempt.bytes);
    const int status = client.Read().status;
    CHECK((status == 400 || status == 501));
    CHECK(client.ReadsEnd());
  }
}

TEST_CASE("Header lines that hide others are refused", "[server]") {
  const std::string rest = "0\r\n\r\n";
  const Try tries[] = {
      {"a folded line", Post("X-A: b\r\n Transfer-Encoding: chunked\r\n", rest)},
      {"a folded line by tab", Post("X-A: b\r\n\tTransfer-Encoding: chunked\r\n", rest)},
      {"a folded value", Post("Transfer-Encoding:\r\n chunked\r\n", rest)},
      {"space before the colon", Post("Transfer-Encoding : chunked\r\n", rest)},
      {"no name", Post(": chunked\r\n", rest)},
      {"no colon", Post("Transfer-Encoding chunked\r\n", rest)},
      {"a lone CR", Post("X-A: b\rTransfer-Encoding: chunked\r\n", rest)},
      {"a lone LF", Post("X-A: b\nTransfer-Encoding: chunked\r\n", rest)},
      {"a NUL in a value", Post(std::string("X-A: b\0c\r\n", 10), rest)},
      {"a NUL in a name", Post(std::string("X-\0A: b\r\n", 9), rest)},
      {"a name that is no token", Post("X(A): b\r\n", rest)},
      {"a space before the first header",
       "POST /tokenize HTTP/1.1\r\n Host: t\r\nContent-Length: 2\r\n\r\n{}"},
  };
  for (const Try& attempt : tries) CheckRefused(attempt);
}

TEST_CASE("Headers that say one thing are refused when they stand twice", "[server]") {
  for (const char* header : {"Host: a", "Authorization: Bearer a", "X-Api-Key: a",
                             "Content-Type: text/plain", "X-Request-Id: a"}) {
    const std::string twice = std::string(header) + "\r\n" + header + "\r\n";
    CheckRefused({header, Post(twice + "Content-Length: 2\r\n", "{}")});
  }
}

TEST_CASE("Request lines that could be read in two ways are refused", "[server]") {
  const std::string end = std::string("\r\n") + kHost + "\r\n";
  const Try tries[] = {
      {"a tab between the parts", "GET\t/health HTTP/1.1" + end},
      {"two spaces", "GET  /health HTTP/1.1" + end},
      {"a space in the target", "GET /health /x HTTP/1.1" + end, 505},
      {"no version", "GET /health" + end},
      {"a fragment of a version", "GET /health HTTP/1." + end, 505},
      {"a version of another protocol", "GET /health ICY/1.1" + end, 505},
      {"a control in the target", "GET /hea\x01lth HTTP/1.1" + end},
      {"no path", "GET health HTTP/1.1" + end},
  };
  for (const Try& attempt : tries) CheckRefused(attempt);
}

TEST_CASE("Chunks that are not what they say are refused", "[server]") {
  const std::string headers = "Transfer-Encoding: chunked\r\n";
  const Try tries[] = {
      {"a chunk longer than its size", Post(headers, "2\r\n{}x\r\n0\r\n\r\n")},
      {"a chunk shorter than its size", Post(headers, "5\r\n{}\r\n0\r\n\r\n0\r\n\r\n")},
      {"a size that is no number", Post(headers, "zz\r\n{}\r\n0\r\n\r\n")},
      {"no size", Post(headers, "\r\n{}\r\n0\r\n\r\n")},
      {"a negative size", Post(headers, "-2\r\n{}\r\n0\r\n\r\n")},
      {"a size with a prefix", Post(headers, "0x2\r\n{}\r\n0\r\n\r\n")},
      {"a size beyond 64 bits", Post(headers, "10000000000000002\r\n{}\r\n0\r\n\r\n")},
      {"a line end that is none", Post(headers, "2\n{}\r\n0\r\n\r\n")},
      {"extensions without end, for a byte each", Post(headers,
                                                       [] {
                                                         std::string chunks;
                                                         for (int i = 0; i < 40; ++i)
                                                           chunks += "1;" + std::string(4000, 'x') +
                                                                     "\r\na\r\n";
                                                         return chunks;
                                                       }())},
      {"a trailer that is no header", Post(headers, "2\r\n{}\r\n0\r\nno colon\r\n\r\n")},
  };
  for (const Try& attempt : tries) CheckRefused(attempt);
  CheckRefused({"a size beyond the limit", Post(headers, "fffffffffffffff\r\n{}"), 413});
}

TEST_CASE("A body that ends early is no request", "[server]") {
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}]})";
  const std::string begins[] = {
      "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
          std::to_string(chat.size() + 1) + "\r\n\r\n" + chat,
      "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2c\r\n" +
          chat + "\r\n",
  };
  for (const std::string& begin : begins) {
    ServerUnderTest server([](const server::GenerationRequest&) { return std::string("no"); });
    RawClient client(server.port());
    client.Send(begin);
    client.EndSending();
    CHECK(client.Read().status == 0);
    CHECK(server.generation->num_submitted() == 0);
    CHECK(RawClient(server.port()).Get("/health").status == 200);
  }
}

TEST_CASE("Headers of trailers are not taken for headers", "[server]") {
  server::HttpServerOptions options;
  options.api_keys = {"secret"};
  ServerUnderTest server([](const server::GenerationRequest&) { return std::string("no"); },
                         options);
  RawClient client(server.port());
  client.Send(Post("Transfer-Encoding: chunked\r\n",
                   "2\r\n{}\r\n0\r\nAuthorization: Bearer secret\r\n\r\n"));
  CHECK(client.Read().status == 401);
}

}  // namespace
}  // namespace heddle::test
