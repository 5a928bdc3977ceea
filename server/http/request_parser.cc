#include "server/http/request_parser.h"

#include <algorithm>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <utility>

#include "base/message.h"
#include "server/http/request_headers.h"

namespace heddle::server {

namespace http = boost::beast::http;

namespace {

// Bytes that the buffer may hold behind an unfinished line: one read of the connection.
constexpr size_t kMaxUnparsedBytes = size_t{64} << 10;
// Framing bytes of a chunked body that are always allowed, and those allowed per byte of the body:
// a chunk of one byte has five of framing without extensions.
constexpr uint64_t kFreeFramingBytes = uint64_t{64} << 10;
constexpr uint64_t kFramingPerBodyByte = 8;
// RFC 9112, section 2.2: at least one empty line is to be ignored; old clients send one behind a
// body.
constexpr int kMaxEmptyLines = 4;
constexpr size_t kFirstBodyBytes = size_t{4} << 10;

// A Body type for Beast. Its text grows by doubling and never beyond the announced length; Beast's
// own string_body allocates the announced length at once.
struct GrowingBody {
  using value_type = std::string;

  class reader {  // NOLINT(readability-identifier-naming): Beast's name
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>& length, boost::system::error_code& error) {
      most_ = length ? static_cast<size_t>(*length) : std::string::npos;
      error = {};
    }

    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      const size_t bytes = boost::asio::buffer_size(buffers);
      Grow(body_.size() + bytes);
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer buffer(*it);
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return bytes;
    }

    void finish(boost::system::error_code& error) { error = {}; }

   private:
    void Grow(size_t needed) {
      if (needed <= body_.capacity()) return;
      const size_t doubled = std::max(2 * body_.capacity(), kFirstBodyBytes);
      body_.reserve(std::max(needed, std::min(doubled, most_)));
    }

    value_type& body_;
    size_t most_ = 0;
  };
};

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Describes the client's mistake as far as Beast knows it.
std::string Describe(const boost::system::error_code& error) {
  return base::StrCat("the request is not valid HTTP: ", error.message());
}

// Whether a line of the header continues on the next one, which RFC 9112, section 5.2, no longer
// allows clients. `data` begins in the header; false while its end has not arrived.
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

}  // namespace

struct RequestParser::Beast {
  http::request_parser<GrowingBody> parser;
};

RequestParser::RequestParser(const ParserLimits& limits)
    : limits_(limits), beast_(std::make_unique<Beast>()) {
  beast_->parser.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
  beast_->parser.body_limit(limits.max_body_bytes);
}

RequestParser::~RequestParser() = default;

size_t RequestParser::FeedTo(std::string_view data, bool stops_at_body) {
  size_t consumed = has_begun_ ? 0 : SkipEmptyLines(data);
  while (state_ == State::kHeader || state_ == State::kBody) {
    // Bodies of known length 0 end with the header; Beast must not be fed after that.
    if (beast_->parser.is_done()) {
      state_ = State::kDone;
      break;
    }
    if (!has_begun_ || consumed == data.size()) break;
    if (state_ == State::kHeader && HasFoldedLine(data.substr(consumed))) {
      Fail(400, "a header must not go on in the next line");
      break;
    }
    boost::system::error_code error;
    size_t used = beast_->parser.put(
        boost::asio::const_buffer(data.data() + consumed, data.size() - consumed), error);
    consumed += used;
    if (state_ == State::kBody) CheckFraming(used);
    if (error == http::error::need_more) {
      // Beast bounds headers; lines between chunks are bounded here.
      if (data.size() - consumed > limits_.max_header_bytes + kMaxUnparsedBytes) {
        Fail(400, "a line of the chunked body is too long");
      }
      break;
    }
    if (error) {
      OnError(error);
    } else if (state_ == State::kHeader && beast_->parser.is_header_done()) {
      OnHeader();
      if (stops_at_body && !beast_->parser.is_done()) break;
    }
  }
  return consumed;
}

// Returns the number of their bytes. A lone CR may be the beginning of one.
size_t RequestParser::SkipEmptyLines(std::string_view data) {
  constexpr std::string_view kLineEnd = "\r\n";
  size_t skipped = 0;
  while (num_empty_lines_ < kMaxEmptyLines && data.substr(skipped).starts_with(kLineEnd)) {
    skipped += kLineEnd.size();
    ++num_empty_lines_;
  }
  const std::string_view rest = data.substr(skipped);
  has_begun_ = !rest.empty() && (rest != "\r" || num_empty_lines_ == kMaxEmptyLines);
  return skipped;
}

// `used`: bytes that Beast has consumed of the body, with its framing.
void RequestParser::CheckFraming(size_t used) {
  fed_body_bytes_ += used;
  if (body_length_) return;
  const uint64_t body_bytes = beast_->parser.get().body().size();
  if (fed_body_bytes_ - body_bytes > kFreeFramingBytes + kFramingPerBodyByte * body_bytes) {
    Fail(400, "the chunked body is more framing than body");
  }
}

void RequestParser::OnError(const boost::system::error_code& error) {
  if (error == http::error::header_limit) {
    Fail(431,
         base::StrCat("the request's header has more than ", limits_.max_header_bytes, " bytes"));
  } else if (error == http::error::body_limit) {
    if (state_ == State::kHeader) OnHeader();  // the request of the body is known
    Fail(413, base::StrCat("the request's body has more than ", limits_.max_body_bytes,
                           " bytes (--max-body-bytes)"));
  } else if (error == http::error::bad_version) {
    Fail(505, "this server speaks HTTP/1.1 and HTTP/1.0");
  } else {
    Fail(400, Describe(error));
  }
}

void RequestParser::OnHeader() {
  state_ = State::kBody;
  const auto& message = beast_->parser.get();
  request_.method = std::string(View(message.method_string()));
  request_.http11 = message.version() == 11;
  request_.keep_alive = message.keep_alive();
  if (beast_->parser.is_header_done() && !beast_->parser.chunked()) {
    body_length_ = beast_->parser.content_length().value_or(0);
  }
  int num_hosts = 0;
  for (const auto& field : message) {
    request_.headers.emplace_back(View(field.name_string()), View(field.value()));
    if (field.name() == http::field::host) ++num_hosts;
  }
  if (!ParseTarget(View(message.target()), &request_)) {
    Fail(400, "the request's target must be a path, with whole percent escapes");
  } else {
    CheckHeader(num_hosts);
  }
  if (state_ == State::kBody) CheckCodings();
  beast_->parser.eager(true);
}

void RequestParser::CheckHeader(int num_hosts) {
  if (num_hosts > 1 || (num_hosts == 0 && request_.http11)) {
    Fail(400, base::StrCat("a request must have one Host header, found ", num_hosts));
  } else if (std::optional<HeaderFault> fault = FaultOf(request_)) {
    Fail(fault->status, std::move(fault->message));
  }
}

void RequestParser::CheckCodings() {
  const std::string_view coding = request_.Header("Transfer-Encoding");
  if (!coding.empty() && !request_.http11) {
    // RFC 9112, section 6.1: the framing is faulty, because HTTP/1.0 has no chunks.
    Fail(400, "a request of HTTP/1.0 must not have a Transfer-Encoding; send a Content-Length");
  } else if (!coding.empty() && !EqualsIgnoringCase(coding, "chunked")) {
    Fail(501, base::StrCat("transfer coding ", base::Quote(coding),
                           " is not supported; send 'chunked' or a Content-Length"));
  } else {
    expects_continue_ = !request_.Header("Expect").empty();
  }
}

size_t RequestParser::received_body_bytes() const { return beast_->parser.get().body().size(); }

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
