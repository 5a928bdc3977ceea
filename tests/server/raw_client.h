// A blocking HTTP client that can misbehave: it sends any bytes, in any pieces, and reads what
// comes. Every wait ends after ten seconds.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::test {

struct RawResponse {
  int status = 0;                              // 0: the connection closed first
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // dechunked
};

class RawClient {
 public:
  // Buffer 0: the system's default. The client's own address is 127.0.0.`source`.
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0, uint8_t source = 1);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Send(std::string_view bytes);  // false: the peer closed
  void EndSending();                  // shutdown of our half
  void Close();
  void Reset();  // close with RST

  // One response with its whole body.
  RawResponse Read(bool head_request = false);
  // Status line and headers only.
  RawResponse ReadHead();
  // Reads until `text` has been seen in the bytes after the last read; returns all up to its end,
  // or what came before the end of the stream.
  std::string ReadUntil(std::string_view text);
  // The next bytes, `most` at most; empty: the end of the stream.
  std::string ReadBytes(size_t most);
  // True: the peer closes (end or reset) without sending anything more.
  bool ReadsEnd();

  // Send and Read of a request with a body, or without.
  RawResponse Get(std::string_view path);
  RawResponse Post(std::string_view path, std::string_view body, std::string_view headers = "");

 private:
  bool Fill();  // reads some bytes; false: end or timeout

  int fd_ = -1;
  bool ended_ = false;  // the last Fill saw the end of the stream
  std::string buffer_;
};

std::string PostText(std::string_view path, std::string_view body, std::string_view headers = "");

// The payloads of "data: " lines, in order.
std::vector<std::string> SseData(std::string_view body);

}  // namespace heddle::test
