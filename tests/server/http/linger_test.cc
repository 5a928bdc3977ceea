// How long a connection stays open after its last byte.
#include "server/http/linger.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <string>

#include "catch2/catch.hpp"
#include "server/http/stream.h"

namespace heddle::test {
namespace {

using boost::asio::ip::tcp;
using server::Clock;
using server::Linger;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point kStart{seconds(1000)};

TEST_CASE("A connection is open while bytes are delivered, and two seconds longer", "[http]") {
  Linger linger(/*write_timeout=*/seconds(30));
  CHECK_FALSE(linger.has_begun());
  linger.Begin(/*undelivered_bytes=*/4000, kStart);
  CHECK(linger.has_begun());
  Clock::time_point now = kStart;
  for (size_t left = 4000; left > 0; left -= 1000) {
    now += seconds(29);
    CHECK_FALSE(linger.Update(left - 1000, now));
  }
  CHECK_FALSE(linger.Update(0, now + milliseconds(1999)));
  CHECK(linger.Update(0, now + seconds(2)));
}

TEST_CASE("A client that takes a byte now and then is given up in the end", "[http]") {
  Linger linger(/*write_timeout=*/seconds(30));
  linger.Begin(/*undelivered_bytes=*/32768, kStart);
  size_t left = 32768;
  Clock::time_point now = kStart;
  for (; now < kStart + seconds(119); now += seconds(7)) CHECK_FALSE(linger.Update(--left, now));
  CHECK(linger.Update(--left, kStart + seconds(120)));
}

TEST_CASE("A client that takes nothing is given up after the write timeout", "[http]") {
  Linger linger(/*write_timeout=*/seconds(30));
  linger.Begin(4000, kStart);
  CHECK_FALSE(linger.Update(4000, kStart + milliseconds(29'999)));
  CHECK(linger.Update(4000, kStart + seconds(30)));
}

TEST_CASE("A client with all its bytes may close first, and is not waited for", "[http]") {
  Linger linger(/*write_timeout=*/seconds(30));
  linger.Begin(0, kStart);
  CHECK_FALSE(linger.Update(0, kStart + milliseconds(1999)));
  CHECK(linger.Update(0, kStart + seconds(2)));
}

TEST_CASE("A client may send a bounded number of bytes that nobody wants", "[http]") {
  Linger linger(/*write_timeout=*/seconds(30));
  linger.Begin(0, kStart);
  CHECK(linger.Drop(Linger::kMaxDroppedBytes));
  CHECK_FALSE(linger.Drop(1));
}

TEST_CASE("A stream counts the bytes that the client's system has not confirmed", "[http]") {
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  tcp::socket client(context, tcp::v4());
  client.set_option(tcp::socket::receive_buffer_size(4096));
  client.connect(acceptor.local_endpoint());
  tcp::socket accepted = acceptor.accept();
  accepted.non_blocking(true);
  const std::string bytes(size_t{1} << 20, 'a');
  boost::system::error_code error;
  const size_t written = accepted.write_some(boost::asio::buffer(bytes), error);
  REQUIRE(written > 64 << 10);
  const auto stream = server::MakePlainStream(std::move(accepted));
  CHECK(stream->undelivered_bytes() > 0);
  CHECK(stream->undelivered_bytes() <= written);
  std::string received(written, '\0');
  boost::asio::read(client, boost::asio::buffer(received));
  const auto end = std::chrono::steady_clock::now() + seconds(20);
  while (stream->undelivered_bytes() > 0 && std::chrono::steady_clock::now() < end) {
  }
  CHECK(stream->undelivered_bytes() == 0);
  stream->Close();
  CHECK(stream->undelivered_bytes() == 0);
}

}  // namespace
}  // namespace heddle::test
