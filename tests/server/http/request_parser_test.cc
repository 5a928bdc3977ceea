// The HTTP grammar, fed in pieces. Real sockets are in http_limits_test.cc.
#include "server/http/request_parser.h"

#include <string>

#include "catch2/catch.hpp"

namespace heddle::test {
namespace {

using server::HttpRequest;
using server::ParserLimits;
using server::RequestParser;

// Feeds `bytes` in pieces of `piece` bytes, keeping what is not consumed; returns the rest.
std::string FeedInPieces(RequestParser* parser, const std::string& bytes, size_t piece) {
  std::string buffer;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    buffer += bytes.substr(at, piece);
    buffer.erase(0, parser->Feed(buffer));
  }
  return buffer;
}

TEST_CASE("A request is the same however it is cut, and what follows it is left", "[server]") {
  const std::string bytes =
      "POST /a%20b/c?x=1 HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
      "Content-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    RequestParser parser({});
    std::string rest = FeedInPieces(&parser, bytes, piece);
    REQUIRE(parser.state() == RequestParser::State::kDone);
    CHECK(rest == "GET / HTTP/1.1\r\n");
    HttpRequest request = parser.TakeRequest();
    CHECK(request.method == "POST");
    CHECK(request.path == "/a b/c");
    CHECK(request.query == "x=1");
    CHECK(request.body == "hello");
    CHECK(request.Header("content-TYPE") == "application/json");
    CHECK(request.keep_alive);
  }
}

TEST_CASE("A chunked body is the same however it is cut", "[server]") {
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "3;name=value\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    RequestParser parser({});
    CHECK(FeedInPieces(&parser, bytes, piece).empty());
    REQUIRE(parser.state() == RequestParser::State::kDone);
    HttpRequest request = parser.TakeRequest();
    CHECK(request.body == "abc0123456789");
    CHECK_FALSE(request.keep_alive);
    CHECK(request.Header("Trailer").empty());  // trailers are not headers
  }
}

TEST_CASE("Limits hold however slowly the bytes come", "[server]") {
  ParserLimits limits{/*max_header_bytes=*/200, /*max_body_bytes=*/10};
  for (size_t piece : {1, 7, 100000}) {
    RequestParser header(limits);
    FeedInPieces(&header, "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(1000, 'a'), piece);
    CHECK(header.error_status() == 431);
    RequestParser body(limits);
    FeedInPieces(&body,
                 "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "8\r\n01234567\r\n8\r\n01234567\r\n",
                 piece);
    CHECK(body.error_status() == 413);
    RequestParser declared(limits);
    FeedInPieces(&declared, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n", piece);
    CHECK(declared.error_status() == 413);
  }
}

TEST_CASE("An endless chunk line is refused", "[server]") {
  RequestParser parser({});
  FeedInPieces(&parser,
               "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                   std::string(300000, 'x'),
               4096);
  CHECK(parser.error_status() == 400);
}

TEST_CASE("HTTP versions other than 1.0 and 1.1 are 505", "[server]") {
  RequestParser parser({});
  FeedInPieces(&parser, "GET / HTTP/3.0\r\nHost: h\r\n\r\n", 1000);
  CHECK(parser.error_status() == 505);
}

TEST_CASE("A response cannot be split by what it echoes", "[server]") {
  server::HttpResponse response;
  response.headers.emplace_back("X-Echo", "a\r\nSet-Cookie: b");
  std::string head = server::ResponseHead(response, server::BodyFraming::kLength, 2, true, "id");
  CHECK(head.find("\r\nSet-Cookie") == std::string::npos);
  CHECK(head.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(head.find("\r\nContent-Length: 2\r\n") != std::string::npos);
  CHECK(head.ends_with("\r\n\r\n"));
}

}  // namespace
}  // namespace heddle::test
