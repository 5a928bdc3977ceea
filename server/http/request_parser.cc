#include "server/http/request_parser.h"

#include <boost/beast/core/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "base/message.h"

namespace heddle::server {

namespace http = boost::beast::http;

struct RequestParser::Beast {
  http::request_parser<http::string_body> parser;
};

namespace {

// What may lie in the buffer behind an unfinished line: one read of the connection.
constexpr size_t kMaxUnparsedBytes = size_t{64} << 10;

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Tells the client's fault as far as Beast knows it.
std::string Describe(const boost::system::error_code& error) {
  return base::StrCat("the request is not valid HTTP: ", error.message());
}

// Whether a line of the header goes on in the next one, as RFC 9112, section 5.2, no longer lets
// clients do. `data` begins in the header; false while its end has not come.
bool HasFoldedLine(std::string_view data) {
  const size_t end = data.find("\r\n\r\n");
  if (end == std::string_view::npos) return false;
  const std::string_view header = data.substr(0, end);
  for (size_t line = header.find("\r\n"); line != std::string_view::npos;
       line = header.find("\r\n", line + 2)) {
    const char next = line + 2 < header.size() ? header[line + 2] : '\0';
    if (next == ' ' || next == '\t') return true;
  }
  return false;
}

// The first of the headers that may stand once that stands twice, or "".
std::string_view RepeatedHeader(const HttpRequest& request) {
  constexpr std::string_view kSingle[] = {"Authorization",  "X-Api-Key",        "Content-Type",
                                          "Expect",         "Traceparent",      "X-Request-Id",
                                          "Content-Length", "Transfer-Encoding"};
  for (std::string_view name : kSingle) {
    int count = 0;
    for (const auto& header : request.headers) {
      if (EqualsIgnoringCase(header.first, name) && ++count > 1) return name;
    }
  }
  return "";
}

}  // namespace

RequestParser::RequestParser(const ParserLimits& limits)
    : limits_(limits), beast_(std::make_unique<Beast>()) {
  beast_->parser.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
  beast_->parser.body_limit(limits.max_body_bytes);
}

RequestParser::~RequestParser() = default;

size_t RequestParser::Feed(std::string_view data) {
  size_t consumed = 0;
  while (state_ == State::kHeader || state_ == State::kBody) {
    // Bodies of known length 0 are done with the header; Beast must not be fed after that.
    if (beast_->parser.is_done()) {
      state_ = State::kDone;
      break;
    }
    if (consumed == data.size()) break;
    if (state_ == State::kHeader && HasFoldedLine(data.substr(consumed))) {
      Fail(400, "a header must not go on in the next line");
      break;
    }
    boost::system::error_code error;
    size_t used = beast_->parser.put(
        boost::asio::const_buffer(data.data() + consumed, data.size() - consumed), error);
    consumed += used;
    if (error == http::error::need_more) {
      // Beast bounds headers; lines between chunks are bounded here.
      if (data.size() - consumed > limits_.max_header_bytes + kMaxUnparsedBytes) {
        Fail(400, "a line of the chunked body is too long");
      }
      break;
    }
    if (error == http::error::header_limit) {
      Fail(431,
           base::StrCat("the request's header has more than ", limits_.max_header_bytes, " bytes"));
    } else if (error == http::error::body_limit) {
      if (state_ == State::kHeader) OnHeader();  // whose body it would be is known
      Fail(413, base::StrCat("the request's body has more than ", limits_.max_body_bytes,
                             " bytes (--max-body-bytes)"));
    } else if (error == http::error::bad_version) {
      Fail(505, "this server speaks HTTP/1.1 and HTTP/1.0");
    } else if (error) {
      Fail(400, Describe(error));
    } else if (state_ == State::kHeader && beast_->parser.is_header_done()) {
      OnHeader();
    }
  }
  return consumed;
}

void RequestParser::OnHeader() {
  state_ = State::kBody;
  const auto& message = beast_->parser.get();
  request_.method = std::string(View(message.method_string()));
  request_.http11 = message.version() == 11;
  request_.keep_alive = message.keep_alive();
  int hosts = 0;
  for (const auto& field : message) {
    request_.headers.emplace_back(View(field.name_string()), View(field.value()));
    if (field.name() == http::field::host) ++hosts;
  }
  if (!ParseTarget(View(message.target()), &request_)) {
    Fail(400, "the request's target must be a path, with whole percent escapes");
  } else if (hosts > 1 || (hosts == 0 && request_.http11)) {
    Fail(400, base::StrCat("a request must have one Host header, found ", hosts));
  } else if (std::string_view name = RepeatedHeader(request_); !name.empty()) {
    Fail(400, base::StrCat("a request must not have the header ", name, " twice"));
  } else if (std::string_view length = request_.Header("Content-Length");
             length.find_first_not_of("0123456789") != std::string_view::npos) {
    Fail(400, base::StrCat("Content-Length must be one number, found ", base::Quote(length)));
  } else if (std::string_view coding = request_.Header("Transfer-Encoding");
             !coding.empty() && !EqualsIgnoringCase(coding, "chunked")) {
    Fail(501, base::StrCat("transfer coding ", base::Quote(coding),
                           " is not supported; send 'chunked' or a Content-Length"));
  } else if (std::string_view encoding = request_.Header("Content-Encoding");
             !encoding.empty() && !EqualsIgnoringCase(encoding, "identity")) {
    Fail(415, base::StrCat("content encoding ", base::Quote(encoding),
                           " is not supported; send the body as it is"));
  } else if (std::string_view expect = request_.Header("Expect"); !expect.empty()) {
    expects_continue_ = EqualsIgnoringCase(expect, "100-continue") && request_.http11;
    if (!expects_continue_) Fail(417, "only 'Expect: 100-continue' is supported");
  }
  beast_->parser.eager(true);
}

HttpRequest RequestParser::TakeRequest() {
  if (state_ == State::kDone) request_.body = std::move(beast_->parser.get().body());
  return std::move(request_);
}

void RequestParser::Fail(int status, std::string message) {
  state_ = State::kFailed;
  error_status_ = status;
  error_message_ = std::move(message);
}

}  // namespace heddle::server
