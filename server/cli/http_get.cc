#include "server/cli/http_get.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "base/message.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using base::Quote;
using base::StrCat;

bool IsUnreserved(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

// The steps of one exchange; the end of each begins the next.
class Exchange {
 public:
  Exchange(asio::io_context* io, std::chrono::milliseconds timeout)
      : resolver_(*io), stream_(*io), timeout_(timeout) {
    parser_.body_limit(kMaxAnswerBytes);
  }

  void Start(const HttpAddress& address, std::string_view path, std::string_view key) {
    request_.method(http::verb::get);
    request_.target(address.prefix + std::string(path));
    request_.set(http::field::host, StrCat(address.host, ":", address.port));
    request_.set(http::field::connection, "close");
    if (!key.empty()) request_.set(http::field::authorization, StrCat("Bearer ", key));
    resolver_.async_resolve(address.host, address.port,
                            [this](beast::error_code error, const auto& endpoints) {
                              if (Failed(error)) return;
                              Connect(endpoints);
                            });
  }

  const beast::error_code& error() const { return error_; }
  HttpAnswer TakeAnswer() {
    return {static_cast<int>(parser_.get().result_int()), std::move(parser_.get().body())};
  }

 private:
  bool Failed(const beast::error_code& error) {
    error_ = error;
    return bool{error};
  }
  void Connect(const asio::ip::tcp::resolver::results_type& endpoints) {
    stream_.expires_after(timeout_);
    stream_.async_connect(endpoints, [this](beast::error_code error, const auto&) {
      if (!Failed(error)) Write();
    });
  }
  void Write() {
    http::async_write(stream_, request_, [this](beast::error_code error, size_t) {
      if (!Failed(error)) Read();
    });
  }
  void Read() {
    http::async_read(stream_, buffer_, parser_,
                     [this](beast::error_code error, size_t) { Failed(error); });
  }

  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  const std::chrono::milliseconds timeout_;
  http::request<http::empty_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  beast::error_code error_;
};

}  // namespace

absl::StatusOr<HttpAddress> ParseHttpAddress(std::string_view url, std::string_view option) {
  constexpr std::string_view kScheme = "http://";
  constexpr int kMaxPort = 65535;
  auto wrong = [url, option](std::string_view why) {
    return absl::InvalidArgumentError(
        StrCat(option, " is ", Quote(url), ": ", why, "; expected http://HOST[:PORT]"));
  };
  if (url.starts_with("https://")) return wrong("it needs TLS, which this command does not speak");
  if (!url.starts_with(kScheme)) return wrong("it does not begin with http://");
  std::string_view rest = url.substr(kScheme.size());
  HttpAddress address;
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.prefix = rest.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  rest = rest.substr(0, slash);
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == rest.npos) return wrong("a bracket is open");
  const size_t colon = rest.find(':', bracket);
  address.host = rest.substr(0, colon);
  if (bracket > 0) address.host = rest.substr(1, bracket - 1);  // [::1]
  if (colon != rest.npos) address.port = rest.substr(colon + 1);
  if (address.host.empty()) return wrong("it names no host");
  if (address.port.empty() || address.port.size() > 5 ||
      address.port.find_first_not_of("0123456789") != address.port.npos ||
      std::stoi(address.port) > kMaxPort || std::stoi(address.port) == 0) {
    return wrong("its port is no number from 1 to 65535");
  }
  return address;
}

std::string PercentEncoded(std::string_view segment) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : segment) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsUnreserved(byte)) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

absl::StatusOr<HttpAnswer> HttpGet(const HttpAddress& address, std::string_view path,
                                   std::string_view key, std::chrono::milliseconds timeout) {
  asio::io_context io;
  Exchange exchange(&io, timeout);
  exchange.Start(address, path, key);
  io.run();
  if (exchange.error()) {
    return absl::UnavailableError(StrCat("no answer from ", address.host, ":", address.port, ": ",
                                         exchange.error().message()));
  }
  return exchange.TakeAnswer();
}

}  // namespace heddle::server
