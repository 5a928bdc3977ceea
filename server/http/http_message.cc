#include "server/http/http_message.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/message.h"

namespace heddle::server {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = Lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool PercentDecode(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out->push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return false;
    int high = HexValue(text[i + 1]);
    int low = HexValue(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

void AppendHeader(std::string_view name, std::string_view value, std::string* out) {
  out->append(name);
  out->append(": ");
  // A line break would begin another header, so it is replaced.
  for (char c : value) out->push_back(c == '\r' || c == '\n' || c == '\0' ? ' ' : c);
  out->append("\r\n");
}

}  // namespace

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoringCase(key, name)) return value;
  }
  return "";
}

std::string_view ReasonPhrase(int status) {
  constexpr std::array<std::pair<int, std::string_view>, 22> kPhrases = {{
      {200, "OK"},
      {204, "No Content"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
  }};
  for (const auto& [code, phrase] : kPhrases) {
    if (code == status) return phrase;
  }
  return "Unknown";
}

std::string ResponseHead(const HttpResponse& response, BodyFraming framing, size_t body_bytes,
                         bool keep_alive, std::string_view request_id) {
  std::string head =
      base::StrCat("HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status), "\r\n");
  if (response.status != 204) {
    if (!response.content_type.empty()) {
      AppendHeader("Content-Type", response.content_type, &head);
    }
    if (framing == BodyFraming::kLength) {
      AppendHeader("Content-Length", std::to_string(body_bytes), &head);
    } else if (framing == BodyFraming::kChunked) {
      AppendHeader("Transfer-Encoding", "chunked", &head);
    }
  }
  AppendHeader("Connection", keep_alive ? "keep-alive" : "close", &head);
  AppendHeader("Cache-Control", "no-cache", &head);
  AppendHeader("X-Accel-Buffering", "no", &head);
  if (!request_id.empty()) AppendHeader("X-Request-Id", request_id, &head);
  for (const auto& [name, value] : response.headers) AppendHeader(name, value, &head);
  head.append("\r\n");
  return head;
}

void AppendChunk(std::string_view data, std::string* out) {
  char size[24];
  auto [end, error] = std::to_chars(size, size + sizeof(size), data.size(), 16);
  out->append(size, static_cast<size_t>(end - size));
  out->append("\r\n");
  out->append(data);
  out->append("\r\n");
}

bool ParseQuery(std::string_view query,
                std::vector<std::pair<std::string, std::string>>* parameters) {
  std::string spaced(query);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  for (std::string_view rest = spaced; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    auto& [name, value] = parameters->emplace_back();
    if (!PercentDecode(pair.substr(0, equals), &name)) return false;
    if (equals == pair.size()) continue;
    if (!PercentDecode(pair.substr(equals + 1), &value)) return false;
  }
  return true;
}

bool ParseTarget(std::string_view target, HttpRequest* request) {
  // In absolute form (through a proxy), scheme and authority are removed.
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!EqualsIgnoringCase(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    size_t slash = target.find('/');
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (target == "*") {  // OPTIONS *
    request->path = std::string(target);
    return true;
  }
  if (target.empty() || target[0] != '/') return false;
  size_t mark = target.find('?');
  if (mark != std::string_view::npos) {
    request->query = std::string(target.substr(mark + 1));
    target = target.substr(0, mark);
  }
  return PercentDecode(target, &request->path);
}

bool IsRequestId(std::string_view id) {
  constexpr size_t kMaxBytes = 128;
  return !id.empty() && id.size() <= kMaxBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace heddle::server
