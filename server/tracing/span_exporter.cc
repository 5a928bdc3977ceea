#include "server/tracing/span_exporter.h"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <iterator>
#include <utility>

#include "base/message.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::string_view kTracesPath = "/v1/traces";
constexpr size_t kMaxAnswerBytes = size_t{64} << 10;
constexpr auto kLongestPause = std::chrono::milliseconds(30'000);

// Runs the operation that `start` begins to its end on the context. `start` gets its handler.
template <typename Start>
error_code Await(asio::io_context* context, const Start& start) {
  error_code result;
  start([&result](const error_code& error, auto&&...) { result = error; });
  context->restart();
  context->run();
  return result;
}

// Makes one request on its own connection. Returns the status of the answer, or 0 and an error.
int PostOnce(const OtlpEndpoint& endpoint, const std::string& body,
             std::chrono::milliseconds timeout, error_code* error) {
  asio::io_context context(1);
  asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(endpoint.host, endpoint.port, *error);
  if (*error) return 0;
  beast::tcp_stream stream(context);
  stream.expires_after(timeout);  // for all of the following operations
  *error = Await(&context, [&](auto done) { stream.async_connect(found, done); });
  if (*error) return 0;
  http::request<http::string_body> request(http::verb::post, endpoint.target, 11);
  request.set(http::field::host, endpoint.host + ":" + endpoint.port);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = body;
  request.prepare_payload();
  *error = Await(&context, [&](auto done) { http::async_write(stream, request, done); });
  if (*error) return 0;
  beast::flat_buffer buffer(kMaxAnswerBytes);
  http::response_parser<http::string_body> answer;
  answer.body_limit(kMaxAnswerBytes);
  *error =
      Await(&context, [&](auto done) { http::async_read_header(stream, buffer, answer, done); });
  return *error ? 0 : static_cast<int>(answer.get().result_int());
}

bool IsRetryable(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

}  // namespace

absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const auto invalid = [url](std::string_view why) {
    return absl::InvalidArgumentError(base::StrCat(
        "--otlp-endpoint must be http://HOST[:PORT][/PATH], found ", base::Quote(url), why));
  };
  if (!url.starts_with(kScheme)) {
    return invalid(url.starts_with("https://")
                       ? ": spans go without TLS; run a collector beside this server, which may "
                         "send them on over TLS"
                       : "");
  }
  std::string_view rest = url.substr(kScheme.size());
  OtlpEndpoint endpoint;
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view path = rest.substr(slash);
  rest = rest.substr(0, slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  endpoint.target = std::string(path);
  if (!path.ends_with(kTracesPath)) endpoint.target.append(kTracesPath);
  // The colons of an IPv6 address are in brackets.
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = rest.substr(0, colon);
  endpoint.port = colon == std::string_view::npos ? "4318" : std::string(rest.substr(colon + 1));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  endpoint.host = std::string(host);
  const bool is_port = !endpoint.port.empty() && endpoint.port.size() <= 5 &&
                       endpoint.port.find_first_not_of("0123456789") == std::string::npos;
  const bool has_odd = url.find_first_of(" \t\r\n?#@") != std::string_view::npos;
  if (endpoint.host.empty() || !is_port || has_odd) return invalid("");
  return endpoint;
}

SpanExporter::SpanExporter(Options options, const Logger* log, Count count)
    : options_(std::move(options)),
      log_(log),
      count_(std::move(count)),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "span-export");
}

SpanExporter::~SpanExporter() { Stop(); }

void SpanExporter::Stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SpanExporter::Export(std::vector<Span> spans) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && buffer_.size() + spans.size() <= options_.max_buffered) {
      wake = buffer_.empty() || buffer_.size() + spans.size() >= options_.max_batch;
      std::move(spans.begin(), spans.end(), std::back_inserter(buffer_));
      spans.clear();
    }
  }
  if (wake) changed_.notify_all();
  if (!spans.empty()) count_(0, static_cast<int64_t>(spans.size()));
}

std::vector<Span> SpanExporter::NextBatch() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !buffer_.empty(); });
  changed_.wait_for(lock, options_.interval,
                    [this] { return stopping_ || buffer_.size() >= options_.max_batch; });
  const auto count = static_cast<ptrdiff_t>(std::min(buffer_.size(), options_.max_batch));
  std::vector<Span> batch(std::make_move_iterator(buffer_.begin()),
                          std::make_move_iterator(buffer_.begin() + count));
  buffer_.erase(buffer_.begin(), buffer_.begin() + count);
  return batch;
}

void SpanExporter::Run() {
  while (true) {
    const std::vector<Span> batch = NextBatch();
    if (batch.empty()) return;
    if (Deliver(batch) || !IsStopping()) continue;
    count_(0, DropAll());  // the rest would fail too, and a caller waits for the end
    return;
  }
}

bool SpanExporter::IsStopping() {
  std::lock_guard lock(mutex_);
  return stopping_;
}

int64_t SpanExporter::DropAll() {
  std::lock_guard lock(mutex_);
  const auto dropped = static_cast<int64_t>(buffer_.size());
  buffer_.clear();
  return dropped;
}

bool SpanExporter::Deliver(const std::vector<Span>& batch) {
  const auto size = static_cast<int64_t>(batch.size());
  const std::string body = OtlpJson(batch, options_.resource);
  std::chrono::milliseconds pause = options_.first_pause;
  for (int tries = 1;; ++tries) {
    std::string why;
    const Sent sent = Post(body, &why);
    NoteHealth(sent == Sent::kTaken, why);
    if (sent == Sent::kTaken) {
      count_(size, 0);
      return true;
    }
    if (sent == Sent::kRefused || tries == options_.max_tries || !Pause(pause)) break;
    pause = std::min(2 * pause, kLongestPause);
  }
  count_(0, size);
  return false;
}

SpanExporter::Sent SpanExporter::Post(const std::string& body, std::string* why) const {
  error_code error;
  const int status = PostOnce(options_.endpoint, body, options_.timeout, &error);
  if (error) {
    *why = error.message();
    return Sent::kTryAgain;
  }
  if (status >= 200 && status < 300) return Sent::kTaken;
  *why = base::StrCat("status ", status);
  return IsRetryable(status) ? Sent::kTryAgain : Sent::kRefused;
}

// Logs one line when it begins to fail and one when it works again, instead of one per batch.
void SpanExporter::NoteHealth(bool healthy, const std::string& why) {
  if (healthy == healthy_) return;
  healthy_ = healthy;
  const std::string where = base::StrCat(options_.endpoint.host, ":", options_.endpoint.port);
  if (healthy) {
    log_->Info("the trace collector takes spans again", {{"collector", where}});
  } else {
    log_->Warning("the trace collector takes no spans", {{"collector", where}, {"error", why}});
  }
}

bool SpanExporter::Pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopping_; });
}

}  // namespace heddle::server
