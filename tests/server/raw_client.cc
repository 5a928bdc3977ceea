#include "tests/server/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/check.h"
#include "base/message.h"

namespace heddle::test {
namespace {

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

RawClient::RawClient(uint16_t port, int receive_buffer_bytes, uint8_t source) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  HEDDLE_CHECK(fd_ >= 0, "socket");
  if (receive_buffer_bytes > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  timeval timeout{10, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (source != 1) {
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + source);
    HEDDLE_CHECK(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
                 "bind to an address of the loopback network");
  }
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int connected = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  HEDDLE_CHECK(connected == 0, "connect to the server under test");
}

RawClient::~RawClient() { Close(); }

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::EndSending() { ::shutdown(fd_, SHUT_WR); }

void RawClient::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawClient::Reset() {
  linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  Close();
}

bool RawClient::Fill() {
  char bytes[16384];
  ssize_t received = ::recv(fd_, bytes, sizeof(bytes), 0);
  ended_ = received == 0 || (received < 0 && errno == ECONNRESET);
  if (received <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(received));
  return true;
}

std::string RawClient::ReadUntil(std::string_view text) {
  size_t at = std::string::npos;
  while ((at = buffer_.find(text)) == std::string::npos) {
    if (!Fill()) return std::exchange(buffer_, "");
  }
  std::string result = buffer_.substr(0, at + text.size());
  buffer_.erase(0, at + text.size());
  return result;
}

std::string RawClient::ReadBytes(size_t most) {
  if (buffer_.empty() && !Fill()) return "";
  const std::string bytes = buffer_.substr(0, most);
  buffer_.erase(0, bytes.size());
  return bytes;
}

bool RawClient::ReadsEnd() { return buffer_.empty() && !Fill() && ended_; }

RawResponse RawClient::ReadHead() {
  RawResponse response;
  std::string head = ReadUntil("\r\n\r\n");
  if (!head.ends_with("\r\n\r\n") || head.size() < 12) return response;
  response.status = std::atoi(head.c_str() + 9);
  size_t line = head.find("\r\n") + 2;
  while (line < head.size() - 2) {
    size_t end = head.find("\r\n", line);
    size_t colon = head.find(": ", line);
    response.headers[Lower(head.substr(line, colon - line))] =
        head.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  return response;
}

RawResponse RawClient::Read(bool head_request) {
  RawResponse response = ReadHead();
  if (response.status == 0 || response.status == 204 || head_request) return response;
  if (response.headers.contains("transfer-encoding")) {
    while (true) {
      size_t size = std::strtoul(ReadUntil("\r\n").c_str(), nullptr, 16);
      while (buffer_.size() < size + 2) {
        if (!Fill()) return response;
      }
      response.body.append(buffer_, 0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) return response;
    }
  }
  if (response.headers.contains("content-length")) {
    size_t size = std::strtoul(response.headers["content-length"].c_str(), nullptr, 10);
    while (buffer_.size() < size && Fill()) {
    }
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return response;
  }
  while (Fill()) {
  }
  response.body = std::exchange(buffer_, "");
  return response;
}

RawResponse RawClient::Get(std::string_view path) {
  Send(base::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n\r\n"));
  return Read();
}

RawResponse RawClient::Post(std::string_view path, std::string_view body,
                            std::string_view headers) {
  Send(PostText(path, body, headers));
  return Read();
}

std::string PostText(std::string_view path, std::string_view body, std::string_view headers) {
  return base::StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(),
                      "\r\n", headers, "\r\n", body);
}

std::vector<std::string> SseData(std::string_view body) {
  std::vector<std::string> data;
  while (!body.empty()) {
    size_t end = body.find("\n\n");
    std::string_view event = body.substr(0, end);
    if (event.starts_with("data: ")) data.emplace_back(event.substr(6));
    if (end == std::string_view::npos) break;
    body.remove_prefix(end + 2);
  }
  return data;
}

}  // namespace heddle::test
