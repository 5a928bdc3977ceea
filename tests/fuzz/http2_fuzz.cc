// Any bytes as those of an HTTP/2 client: through the guard and the session, with an answer to
// every request. The first byte says how the rest is cut, and what is answered.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http/http2_guard.h"
#include "server/http/http2_session.h"

namespace heddle::test {
namespace {

using server::BodyBudget;
using server::Clock;
using server::Http2Guard;
using server::Http2Head;
using server::Http2Session;

constexpr size_t kMaxHeaderBytes = size_t{16} << 10;

// Answers each request, some of them before they are whole.
class Answers final : public server::Http2Events {
 public:
  explicit Answers(uint8_t choice) : choice_(choice) {}

  void OnHead(int32_t id, Http2Head head, bool ends) override {
    size_t bytes = head.method.size() + head.path.size() + head.authority.size();
    for (const auto& [name, value] : head.headers) bytes += name.size() + value.size();
    HEDDLE_CHECK(bytes <= kMaxHeaderBytes, "a header has a bound");
    ++num_open_;
    if ((choice_ & 1) != 0) session->Accept(id);
    if (ends || (choice_ & 2) != 0) Answer(id);
  }
  void OnBody(int32_t, std::string_view) override {}
  void OnBodyEnd(int32_t id) override { Answer(id); }
  void OnAnswered(int32_t id) override {
    if ((choice_ & 4) != 0) session->Reset(id, Http2Session::Reason::kNoError);
  }
  void OnClosed(int32_t, bool) override { HEDDLE_CHECK(num_open_-- > 0, "what closes was open"); }

  Http2Session* session = nullptr;

 private:
  void Answer(int32_t id) {
    session->Start(id, 200, {{"content-type", "text/plain"}}, /*has_body=*/(choice_ & 8) != 0);
    if ((choice_ & 8) == 0) return;
    session->Write(id, std::string(1000, 'x'));
    session->End(id);
  }

  const uint8_t choice_;
  int64_t num_open_ = 0;
};

void Talk(uint8_t choice, std::string_view input) {
  BodyBudget bodies(1 << 20);
  Http2Guard::Limits limits;
  limits.max_streams = 100;
  limits.has_messages = false;
  Http2Guard guard(limits, &bodies);
  Answers answers(choice);
  Http2Session session({.max_header_bytes = kMaxHeaderBytes}, &answers);
  answers.session = &session;
  const Clock::time_point now{std::chrono::seconds(1)};
  const size_t piece = 1 + (choice >> 4) * size_t{7};
  const std::string bytes = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(input);
  for (size_t at = 0; at < bytes.size(); at += piece) {
    std::string passed, frames, sent;
    if (guard.FromClient(std::string_view(bytes).substr(at, piece), now, &passed)) return;
    if (!session.Receive(passed).ok()) return;
    session.Next(size_t{32} << 10, &frames);
    guard.FromServer(frames, now, &sent);
    HEDDLE_CHECK(sent.size() >= frames.size(), "the guard drops nothing of the server's");
    HEDDLE_CHECK(session.num_streams() <= 2 * limits.max_streams + 1, "streams have a bound");
  }
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  heddle::test::Talk(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
