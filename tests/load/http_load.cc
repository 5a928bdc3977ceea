// Clients by the thousand from one thread, on epoll, so that the server under load gets the
// machine. Prints one JSON object with what it saw.
//
//   heddle_http_load streams  PORT BODY COUNT STALLED
//       COUNT clients ask at once for the stream of BODY and read it to its end; STALLED more ask
//       and never read. Ends when the COUNT have their end.
//   heddle_http_load requests PORT BODY CONNECTIONS SECONDS PIPELINED
//       Each connection keeps PIPELINED requests for whole answers in flight.
//   heddle_http_load broken   PORT BODY COUNT SEED
//       COUNT connections, 64 at a time, break at random bytes of request or answer, half of them
//       by a reset.
//
// BODY is the JSON text of a request to /v1/chat/completions, or to /v1/completions if it has no
// messages.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(2);
}

std::string RequestText(const std::string& body) {
  const bool chat = body.find("\"messages\"") != std::string::npos;
  return "POST /v1/" + std::string(chat ? "chat/" : "") +
         "completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Counts a word in a text that comes in pieces.
class WordCounter {
 public:
  explicit WordCounter(std::string_view word) : word_(word) {}

  int64_t Count(std::string_view piece) {
    const std::string text = tail_ + std::string(piece);
    int64_t found = 0;
    size_t at = 0;
    for (size_t next = 0; (next = text.find(word_, at)) != std::string::npos; ++found) {
      at = next + word_.size();
    }
    const size_t keep = std::min(text.size() - at, word_.size() - 1);
    tail_ = text.substr(text.size() - keep);
    return found;
  }

 private:
  std::string_view word_;
  std::string tail_;
};

class Client;

// Owns the clients and tells them what happens on their sockets.
class Loop {
 public:
  Loop() : fd_(::epoll_create1(0)) {}

  void Add(std::unique_ptr<Client> client);
  void Remove(Client* client);
  void Run(int timeout_ms);
  size_t num_clients() const { return clients_.size(); }

 private:
  int fd_;
  std::unordered_map<Client*, std::unique_ptr<Client>> clients_;
};

// One connection. Life: connects, sends, reads until it removes itself from the loop.
class Client {
 public:
  Client(uint16_t port, std::string to_send, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), to_send_(std::move(to_send)) {
    if (fd_ < 0) Die("socket");
    if (receive_buffer_bytes > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(int));
    }
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int connected = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    if (connected != 0 && errno != EINPROGRESS) Die("connect");
  }
  virtual ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int fd() const { return fd_; }

  // Returns true if it wants to continue.
  bool OnEvent(uint32_t events) {
    if ((events & EPOLLOUT) != 0 && !all_sent_ && !SendSome()) return false;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return true;
    return !reads() || ReadSome();
  }

 protected:
  virtual bool reads() const { return true; }
  virtual bool OnSent() { return true; }
  virtual bool OnData(std::string_view data) = 0;
  virtual void OnEnd() {}

  void Send(const std::string& bytes) {
    to_send_ += bytes;
    all_sent_ = false;
    SendSome();
  }
  void Reset() const {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  }

 private:
  bool SendSome() {
    while (!to_send_.empty()) {
      const ssize_t sent = ::send(fd_, to_send_.data(), to_send_.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || (OnEnd(), false);
      to_send_.erase(0, static_cast<size_t>(sent));
    }
    all_sent_ = true;
    return OnSent();
  }

  bool ReadSome() {
    static char bytes[1 << 16];
    while (true) {
      const ssize_t got = ::recv(fd_, bytes, sizeof(bytes), 0);
      if (got < 0 && errno == EAGAIN) return true;
      if (got <= 0) break;
      if (!OnData(std::string_view(bytes, static_cast<size_t>(got)))) return false;
    }
    OnEnd();
    return false;
  }

  int fd_;
  std::string to_send_;
  bool all_sent_ = false;
};

void Loop::Add(std::unique_ptr<Client> client) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLET;
  event.data.ptr = client.get();
  if (::epoll_ctl(fd_, EPOLL_CTL_ADD, client->fd(), &event) != 0) Die("epoll_ctl");
  clients_.emplace(client.get(), std::move(client));
}

void Loop::Remove(Client* client) { clients_.erase(client); }

void Loop::Run(int timeout_ms) {
  epoll_event events[256];
  const int count = ::epoll_wait(fd_, events, 256, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto* client = static_cast<Client*>(events[i].data.ptr);
    if (!client->OnEvent(events[i].events)) Remove(client);
  }
}

struct StreamTotals {
  int64_t whole = 0, ended = 0, events = 0, bytes = 0;
  int64_t open = 0, most_open = 0;  // that have begun and not ended
  double last_first_event = 0;
  Clock::time_point began = Clock::now();
};

class StreamClient final : public Client {
 public:
  StreamClient(uint16_t port, const std::string& request, bool stalled, StreamTotals* totals)
      : Client(port, request, stalled ? 4096 : 0), stalled_(stalled), totals_(totals) {}

 protected:
  bool reads() const override { return !stalled_; }
  bool OnData(std::string_view data) override {
    totals_->bytes += static_cast<int64_t>(data.size());
    const int64_t events = events_.Count(data);
    totals_->events += events;
    if (!begun_ && events > 0) {
      begun_ = true;
      totals_->last_first_event = Since(totals_->began);
      totals_->most_open = std::max(totals_->most_open, ++totals_->open);
    }
    if (done_.Count(data) == 0) return true;
    ++totals_->whole;
    OnEnd();
    return false;
  }
  void OnEnd() override {
    ++totals_->ended;
    totals_->open -= begun_ ? 1 : 0;
  }

 private:
  const bool stalled_;
  StreamTotals* totals_;
  WordCounter events_{"data: {"};
  WordCounter done_{"data: [DONE]"};
  bool begun_ = false;
};

int Streams(uint16_t port, const std::string& request, int64_t count, int64_t stalled) {
  Loop loop;
  StreamTotals totals;
  for (int64_t i = 0; i < count + stalled; ++i) {
    loop.Add(std::make_unique<StreamClient>(port, request, i >= count, &totals));
    if (i % 64 == 63) loop.Run(0);  // within the listener's backlog
  }
  while (totals.ended < count) loop.Run(1000);
  std::printf(
      "{\"whole\": %ld, \"ended\": %ld, \"events\": %ld, \"bytes\": %ld, \"most_open\": %ld, "
      "\"last_first_event\": %.3f, \"seconds\": %.3f}\n",
      totals.whole, totals.ended, totals.events, totals.bytes, totals.most_open,
      totals.last_first_event, Since(totals.began));
  return 0;
}

struct RequestTotals {
  int64_t answered = 0, ok = 0;
  bool over = false;
};

class RequestClient final : public Client {
 public:
  RequestClient(uint16_t port, const std::string& request, int pipelined, RequestTotals* totals)
      : Client(port, Repeat(request, pipelined)), request_(request), totals_(totals) {}

 protected:
  bool OnData(std::string_view data) override {
    const int64_t answers = heads_.Count(data);
    totals_->answered += answers;
    totals_->ok += good_.Count(data);
    if (totals_->over) return false;
    if (answers > 0) Send(Repeat(request_, static_cast<int>(answers)));
    return true;
  }

 private:
  static std::string Repeat(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  }

  const std::string request_;
  RequestTotals* totals_;
  WordCounter heads_{"HTTP/1.1 "};
  WordCounter good_{"HTTP/1.1 200 OK"};
};

int Requests(uint16_t port, const std::string& request, int connections, double seconds,
             int pipelined) {
  Loop loop;
  RequestTotals totals;
  for (int i = 0; i < connections; ++i) {
    loop.Add(std::make_unique<RequestClient>(port, request, pipelined, &totals));
  }
  const Clock::time_point began = Clock::now();
  while (Since(began) < seconds) loop.Run(100);
  const double took = Since(began);
  std::printf("{\"answered\": %ld, \"ok\": %ld, \"seconds\": %.3f, \"per_second\": %.0f}\n",
              totals.answered, totals.ok, took, static_cast<double>(totals.answered) / took);
  return 0;
}

class BreakingClient final : public Client {
 public:
  BreakingClient(uint16_t port, const std::string& bytes, int64_t read_bytes, bool reset,
                 int64_t* done)
      : Client(port, bytes), left_(read_bytes), reset_(reset), done_(done) {}
  ~BreakingClient() override {
    if (reset_) Reset();
    ++*done_;
  }

 protected:
  bool OnSent() override { return left_ > 0; }
  bool OnData(std::string_view data) override {
    left_ -= static_cast<int64_t>(data.size());
    // A whole answer leaves the connection open for the next request.
    return left_ > 0 && end_.Count(data) == 0;
  }

 private:
  int64_t left_;
  const bool reset_;
  int64_t* done_;
  WordCounter end_{"data: [DONE]"};
};

int Broken(uint16_t port, const std::string& request, int64_t count, uint64_t seed) {
  constexpr size_t kAtOnce = 64;
  constexpr int64_t kMostRead = 8000;
  Loop loop;
  std::mt19937_64 random(seed);
  int64_t begun = 0;
  int64_t done = 0;
  const Clock::time_point began = Clock::now();
  while (done < count) {
    while (loop.num_clients() < kAtOnce && begun < count) {
      // Half of them are sent whole, and break in their answer; nothing sent is one of the others.
      const size_t sent = random() % (2 * request.size());
      const int64_t read =
          sent < request.size() ? 0 : 1 + static_cast<int64_t>(random() % kMostRead);
      loop.Add(std::make_unique<BreakingClient>(port, request.substr(0, sent), read,
                                                random() % 2 == 0, &done));
      ++begun;
    }
    loop.Run(1000);
  }
  std::printf("{\"broken\": %ld, \"seconds\": %.3f}\n", done, Since(began));
  return 0;
}

int Usage() {
  std::fprintf(stderr,
               "heddle_http_load streams PORT BODY COUNT STALLED\n"
               "heddle_http_load requests PORT BODY CONNECTIONS SECONDS PIPELINED\n"
               "heddle_http_load broken PORT BODY COUNT SEED\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return Usage();
  const std::string mode = argv[1];
  const auto port = static_cast<uint16_t>(std::atoi(argv[2]));
  const std::string request = RequestText(argv[3]);
  if (mode == "streams") return Streams(port, request, std::atoll(argv[4]), std::atoll(argv[5]));
  if (mode == "requests" && argc == 7) {
    return Requests(port, request, std::atoi(argv[4]), std::atof(argv[5]), std::atoi(argv[6]));
  }
  if (mode == "broken") {
    return Broken(port, request, std::atoll(argv[4]), std::strtoull(argv[5], nullptr, 10));
  }
  return Usage();
}
