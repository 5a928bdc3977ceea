// Allocations of reading a request, and what happens where memory is refused: this program's
// operator new counts, and fails on demand.
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/server/server_under_test.h"

namespace {

std::atomic<size_t> largest{0};
std::atomic<size_t> refused_from{SIZE_MAX};

}  // namespace

// Inlined, the compiler would see memory of one kind freed as another.
[[gnu::noinline]] void* operator new(size_t bytes) {
  size_t seen = largest.load();
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  void* memory = bytes >= refused_from.load() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace heddle::test {
namespace {

std::string Echo(const server::GenerationRequest&) { return "ok"; }

std::string Head(size_t length) {
  return "POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: " +
         std::to_string(length) + "\r\n\r\n";
}

TEST_CASE("What a client announces is not allocated before it comes", "[server]") {
  ServerUnderTest server(Echo);
  RawClient client(server.port());
  const std::string some(30'000, ' ');
  largest = 0;
  client.Send(Head(size_t{8} << 20));
  CHECK(client.ReadUntil("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(some);
  CHECK(RawClient(server.port()).Get("/health").status == 200);
  CHECK(largest < size_t{1} << 20);
}

TEST_CASE("A body for which there is no memory fails its request, and nothing else", "[server]") {
  ServerUnderTest server(Echo);
  RawClient other(server.port());
  CHECK(other.Get("/health").status == 200);
  const std::string body(size_t{4} << 20, ' ');
  RawClient client(server.port());
  client.Send(Head(body.size()));
  CHECK(client.ReadUntil("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  refused_from = size_t{1} << 20;
  client.Send(body);
  RawResponse response = client.Read();
  refused_from = SIZE_MAX;
  CHECK(response.status == 503);
  CHECK(response.headers["retry-after"] == "5");
  CHECK(server.http->bodies()->held_bytes() == 0);
  CHECK(other.Get("/health").status == 200);
  const std::string metrics = server.metrics.Render({}, {});
  CHECK(metrics.find("heddle_refused_total{reason=\"out_of_memory\"} 1\n") != std::string::npos);
}

TEST_CASE("A connection for whose buffers there is no memory is closed, and no other", "[server]") {
  ServerUnderTest server(Echo);
  RawClient other(server.port());
  CHECK(other.Get("/health").status == 200);
  // Behind whose answer the one I/O thread has also ended the other's, and reads from it again.
  CHECK(RawClient(server.port()).Get("/health").status == 200);
  refused_from = 4000;  // less than any read takes
  RawClient client(server.port());
  const bool ended = client.ReadsEnd();
  refused_from = SIZE_MAX;
  CHECK(ended);
  CHECK(other.Get("/health").status == 200);
  CHECK(RawClient(server.port()).Get("/health").status == 200);
}

}  // namespace
}  // namespace heddle::test
