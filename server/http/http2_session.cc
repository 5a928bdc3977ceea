#include "server/http/http2_session.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/message.h"

namespace heddle::server {
namespace {

// A field's cost beside its texts (RFC 9113, section 6.5.2).
constexpr size_t kFieldBytes = 32;

std::string_view View(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

nghttp2_nv HeaderField(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

uint32_t CodeOf(Http2Session::Reason reason) {
  switch (reason) {
    case Http2Session::Reason::kNoError:
      return NGHTTP2_NO_ERROR;
    case Http2Session::Reason::kInternal:
      return NGHTTP2_INTERNAL_ERROR;
    case Http2Session::Reason::kRefused:
      return NGHTTP2_REFUSED_STREAM;
    case Http2Session::Reason::kCancel:
      return NGHTTP2_CANCEL;
    case Http2Session::Reason::kCalm:
      break;
  }
  return NGHTTP2_ENHANCE_YOUR_CALM;
}

// Only memory can be short: all arguments are ours.
void Check(int result) {
  if (result == NGHTTP2_ERR_NOMEM) throw std::bad_alloc();
}

}  // namespace

// Functions that nghttp2 calls. Exceptions must not pass through C, so each is a failure of the
// session.
struct Http2Session::Callbacks {
  static Http2Session* Of(void* user) { return static_cast<Http2Session*>(user); }

  template <typename Body>
  static int Guarded(const Body& body) {
    try {
      body();
      return 0;
    } catch (...) {
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
  }

  static int OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    return Guarded([&] {
      Http2Session* self = Of(user);
      self->header_stream_ = frame->hd.stream_id;
      if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return;
      self->streams_[frame->hd.stream_id] = std::make_unique<Stream>();
    });
  }

  // NOLINTNEXTLINE(readability-function-size): the parameters are nghttp2's.
  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name_bytes,
                      size_t name_size, const uint8_t* value_bytes, size_t value_size, uint8_t,
                      void* user) {
    return Guarded([&] {
      Http2Session* self = Of(user);
      Stream* stream = self->Find(frame->hd.stream_id);
      if (stream == nullptr || stream->has_head) return;  // trailers mean nothing here
      stream->header_bytes += name_size + value_size + kFieldBytes;
      if (stream->header_bytes > self->limits_.max_header_bytes) {
        stream->head.is_too_large = true;
        return;
      }
      TakeField(View(name_bytes, name_size), View(value_bytes, value_size), &stream->head);
    });
  }

  static void TakeField(std::string_view name, std::string_view value, Http2Head* head) {
    if (name == ":method") {
      head->method = value;
    } else if (name == ":path") {
      head->path = value;
    } else if (name == ":authority") {
      head->authority = value;
    } else if (!name.starts_with(':')) {
      head->headers.emplace_back(name, value);
    }
  }

  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    return Guarded([&] {
      Http2Session* self = Of(user);
      const int32_t id = frame->hd.stream_id;
      const bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
      if (frame->hd.type == NGHTTP2_HEADERS) self->header_stream_ = 0;
      Stream* stream = self->Find(id);
      if (stream == nullptr) return;
      if (frame->hd.type == NGHTTP2_HEADERS && !stream->has_head) {
        stream->has_head = true;
        self->events_->OnHead(id, std::move(stream->head), ends);
      } else if (ends && (frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS)) {
        self->events_->OnBodyEnd(id);
      }
    });
  }

  static int OnData(nghttp2_session*, uint8_t, int32_t id, const uint8_t* bytes, size_t size,
                    void* user) {
    return Guarded([&] {
      Http2Session* self = Of(user);
      // The connection's window is for the sum of all streams, each of which has its own.
      Check(nghttp2_session_consume_connection(self->session_, size));
      Stream* stream = self->Find(id);
      if (stream == nullptr) return;
      stream->unacknowledged += size;
      if (stream->is_accepted) self->Acknowledge(id, stream);
      self->events_->OnBody(id, View(bytes, size));
    });
  }

  static int OnClose(nghttp2_session*, int32_t id, uint32_t code, void* user) {
    return Guarded([&] {
      Http2Session* self = Of(user);
      if (self->header_stream_ == id) self->header_stream_ = 0;
      const auto found = self->streams_.find(id);
      if (found == self->streams_.end()) return;
      const bool was_told = found->second->has_head;
      self->streams_.erase(found);
      if (was_told) self->events_->OnClosed(id, code != NGHTTP2_NO_ERROR);
    });
  }

  static int OnSent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    return Guarded([&] {
      const bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
      const bool is_answer = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
      if (ends && is_answer) Of(user)->events_->OnAnswered(frame->hd.stream_id);
    });
  }

  static ssize_t ReadBody(nghttp2_session*, int32_t id, uint8_t* out, size_t most, uint32_t* flags,
                          nghttp2_data_source*, void* user) {
    Stream* stream = Of(user)->Find(id);
    if (stream == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const size_t taken = std::min(most, stream->unsent.size() - stream->sent);
    if (taken == 0 && !stream->has_ended) return NGHTTP2_ERR_DEFERRED;
    std::copy_n(stream->unsent.data() + stream->sent, taken, reinterpret_cast<char*>(out));
    stream->sent += taken;
    if (stream->sent == stream->unsent.size()) {
      stream->unsent.clear();
      stream->sent = 0;
      if (stream->has_ended) *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return static_cast<ssize_t>(taken);
  }
};

Http2Session::Http2Session(const Limits& limits, Http2Events* events)
    : limits_(limits), events_(events) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* option = nullptr;
  Check(nghttp2_session_callbacks_new(&callbacks));
  Check(nghttp2_option_new(&option));
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, &Callbacks::OnBeginHeaders);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, &Callbacks::OnHeader);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, &Callbacks::OnFrame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &Callbacks::OnData);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, &Callbacks::OnSent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &Callbacks::OnClose);
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_option_set_peer_max_concurrent_streams(option, 0);  // nothing is pushed
  const int made = nghttp2_session_server_new2(&session_, callbacks, this, option);
  nghttp2_option_del(option);
  nghttp2_session_callbacks_del(callbacks);
  Check(made);
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.max_streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, static_cast<uint32_t>(limits.first_window)},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(limits.max_header_bytes)}};
  Check(nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings)));
  Check(nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                              limits.connection_window));
}

// Streams go first, so that no callback tells of their end.
Http2Session::~Http2Session() {
  streams_.clear();
  nghttp2_session_del(session_);
}

absl::Status Http2Session::Receive(std::string_view bytes) {
  const ssize_t taken = nghttp2_session_mem_recv(
      session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (taken == NGHTTP2_ERR_NOMEM || taken == NGHTTP2_ERR_CALLBACK_FAILURE) throw std::bad_alloc();
  if (taken >= 0) return absl::OkStatus();
  if (taken == NGHTTP2_ERR_FLOODED) return absl::ResourceExhaustedError("too many frames");
  return absl::InvalidArgumentError(nghttp2_strerror(static_cast<int>(taken)));
}

void Http2Session::Next(size_t most, std::string* out) {
  while (out->size() < most) {
    const uint8_t* bytes = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_, &bytes);
    if (size == NGHTTP2_ERR_NOMEM || size == NGHTTP2_ERR_CALLBACK_FAILURE) throw std::bad_alloc();
    if (size <= 0) return;
    out->append(View(bytes, static_cast<size_t>(size)));
  }
}

Http2Session::Stream* Http2Session::Find(int32_t stream) {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second.get();
}

void Http2Session::Acknowledge(int32_t id, Stream* stream) {
  Check(nghttp2_session_consume_stream(session_, id, std::exchange(stream->unacknowledged, 0)));
}

void Http2Session::Accept(int32_t id) {
  Stream* stream = Find(id);
  if (stream == nullptr || stream->is_accepted) return;
  stream->is_accepted = true;
  Acknowledge(id, stream);
  Check(
      nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, id, limits_.body_window));
}

void Http2Session::Start(int32_t id, int status, const Headers& headers, bool has_body) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  const std::string code = std::to_string(status);
  std::vector<nghttp2_nv> fields = {HeaderField(":status", code)};
  for (const auto& [name, value] : headers) fields.push_back(HeaderField(name, value));
  nghttp2_data_provider body{};
  body.read_callback = &Callbacks::ReadBody;
  Check(nghttp2_submit_response(session_, id, fields.data(), fields.size(),
                                has_body ? &body : nullptr));
  stream->has_ended = !has_body;
}

void Http2Session::Write(int32_t id, std::string_view bytes) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  if (stream->sent > stream->unsent.size() / 2) {  // what is in frames is not kept for long
    stream->unsent.erase(0, stream->sent);
    stream->sent = 0;
  }
  stream->unsent.append(bytes);
  Check(nghttp2_session_resume_data(session_, id));
}

void Http2Session::End(int32_t id) {
  Stream* stream = Find(id);
  if (stream == nullptr || stream->has_ended) return;
  stream->has_ended = true;
  Check(nghttp2_session_resume_data(session_, id));
}

void Http2Session::Continue(int32_t id) {
  const nghttp2_nv field = HeaderField(":status", "100");
  Check(nghttp2_submit_headers(session_, NGHTTP2_FLAG_NONE, id, nullptr, &field, 1, nullptr));
}

void Http2Session::Reset(int32_t id, Reason reason) {
  Check(nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, CodeOf(reason)));
}

size_t Http2Session::unsent_bytes(int32_t id) const {
  const auto found = streams_.find(id);
  return found == streams_.end() ? 0 : found->second->unsent.size() - found->second->sent;
}

bool Http2Session::wants_write() const { return nghttp2_session_want_write(session_) != 0; }

bool Http2Session::is_over() const {
  return nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0;
}

void Http2Session::GoAway() {
  Check(nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(session_), NGHTTP2_NO_ERROR,
                              nullptr, 0));
}

}  // namespace heddle::server
