#include "server/http/transport.h"

#include <netinet/tcp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "server/http/connection.h"
#include "server/http/stream.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kMaxTick = std::chrono::milliseconds(250);
// After accept fails (no descriptors left), before it is tried again.
constexpr auto kAcceptBackoff = std::chrono::milliseconds(100);
// What the kernel takes for a client beyond what is under way to it. Without a bound it takes up to
// four megabytes, which no limit of ours would see; the network's own window is not touched.
constexpr int kMaxKernelUnsentBytes = 128 << 10;
using NotSentLowWater = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;

// Often enough for the shortest of the limits.
Clock::duration TickInterval(const ConnectionLimits& limits) {
  Clock::duration shortest =
      std::min({limits.header_timeout, limits.body_timeout, limits.idle_timeout,
                limits.write_timeout, limits.keep_alive_interval});
  return std::min<Clock::duration>(kMaxTick, shortest / 4 + std::chrono::milliseconds(1));
}

// Counts open connections of all threads; Drain waits on it.
class ConnectionCount {
 public:
  int Get() const { return count_.load(); }
  void Add() { ++count_; }
  void Remove() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  bool WaitForNone(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return none_.wait_until(lock, deadline, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::atomic<int> count_ = 0;
};

// "req-" and 16 hexadecimal digits, unlikely to repeat between processes.
class RequestIds {
 public:
  RequestIds() : random_(std::random_device{}()) {}
  std::string Next() {
    return absl::StrFormat("req-%08x%08x", static_cast<uint32_t>(random_()),
                           static_cast<uint32_t>(random_()));
  }

 private:
  std::mt19937 random_;
};

// A thread, what runs on it, and what it owns. All members but `context` are touched by the
// thread itself only, once it runs.
struct IoThread {
  IoThread(const ConnectionLimits* connection_limits, ConnectionCount* connection_count,
           UnsentBytes* unsent_bytes, const TlsContext* tls_context)
      : limits(connection_limits),
        count(connection_count),
        unsent(unsent_bytes),
        tls(tls_context),
        work(context.get_executor()),
        tick(context) {}

  std::unique_ptr<Stream> MakeStream(tcp::socket socket) const {
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(NotSentLowWater(kMaxKernelUnsentBytes), ignored);
    if (tls == nullptr) return MakePlainStream(std::move(socket));
    return MakeTlsStream(std::move(socket), tls->current());
  }

  void Adopt(tcp::socket socket) {
    auto connection = std::make_shared<Connection>(
        MakeStream(std::move(socket)), handler.get(), *limits, unsent,
        [this] { return ids.Next(); },
        [this](Connection* closed) {
          if (connections.erase(closed) > 0) count->Remove();
        });
    connections.emplace(connection.get(), connection);
    connection->Start();
    if (leaving) connection->Leave();
    if (draining) connection->Drain();
  }

  // Connections may close, and so leave the map, while they are visited.
  void ForEach(const std::function<void(Connection*)>& visit) {
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections.size());
    for (const auto& entry : connections) all.push_back(entry.second);
    for (const auto& connection : all) visit(connection.get());
  }

  void Tick() {
    tick.expires_after(TickInterval(*limits));
    tick.async_wait([this](const auto& error) {
      if (error) return;
      ForEach([now = Clock::now()](Connection* connection) { connection->OnTick(now); });
      Tick();
    });
  }

  const ConnectionLimits* limits;
  ConnectionCount* count;
  UnsentBytes* unsent;
  const TlsContext* tls;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer tick;
  std::unique_ptr<Handler> handler;
  RequestIds ids;
  bool leaving = false;
  bool draining = false;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::thread thread;
};

absl::Status CannotListen(const std::string& host, uint16_t port,
                          const boost::system::error_code& error) {
  return absl::UnavailableError(
      base::StrCat("cannot listen on ", host, " port ", port, ": ", error.message()));
}

// Takes the address for `acceptor`, which does not listen yet.
absl::Status Bind(const std::string& host, uint16_t port, tcp::acceptor* acceptor) {
  boost::system::error_code error;
  tcp::resolver resolver(acceptor->get_executor());
  auto found = resolver.resolve(host, std::to_string(port), error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(base::StrCat(
        "host must be an address such as 127.0.0.1 or ::, or a name that resolves, found ",
        base::Quote(host)));
  }
  tcp::endpoint endpoint = *found.begin();
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  return error ? CannotListen(host, port, error) : absl::OkStatus();
}

// Lives on the first I/O thread; deals connections out to all.
class Listener {
 public:
  Listener(std::vector<std::unique_ptr<IoThread>>* threads, ConnectionCount* count,
           int max_connections, const Logger* log)
      : threads_(threads),
        count_(count),
        acceptor_(threads->front()->context),
        retry_(threads->front()->context),
        max_connections_(max_connections),
        log_(log) {}

  absl::Status Listen(const TransportOptions& options) {
    HEDDLE_RETURN_IF_ERROR(Bind(options.host, options.port, &acceptor_));
    boost::system::error_code error;
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    return error ? CannotListen(options.host, options.port, error) : absl::OkStatus();
  }

  void Accept() {
    IoThread* target = (*threads_)[next_thread_++ % threads_->size()].get();
    acceptor_.async_accept(target->context, [this, target](const auto& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      error ? RetryLater(error) : Place(target, std::move(socket));
    });
  }

  void Close() {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  uint16_t port() const { return port_; }

 private:
  void Place(IoThread* target, tcp::socket socket) {
    if (count_->Get() >= max_connections_) {
      Refuse(target, std::move(socket));
    } else {
      count_->Add();
      auto shared = std::make_shared<tcp::socket>(std::move(socket));
      asio::post(target->context, [target, shared] { target->Adopt(std::move(*shared)); });
    }
    Accept();
  }

  // One try, without waiting: a new socket's buffer has room. Over TLS there is nothing to say
  // before a handshake.
  void Refuse(IoThread* target, tcp::socket socket) {
    if (target->tls != nullptr) return;
    HttpResponse response =
        target->handler->MakeError(503, "the server has too many connections", "");
    std::string bytes = ResponseHead(response, BodyFraming::kLength, response.body.size(),
                                     /*keep_alive=*/false, "");
    bytes.append(response.body);
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(bytes), ignored);
  }

  void RetryLater(const boost::system::error_code& error) {
    log_->Warning("cannot accept connections", {{"error", error.message()}});
    retry_.expires_after(kAcceptBackoff);
    retry_.async_wait([this](const auto& cancelled) {
      if (!cancelled && acceptor_.is_open()) Accept();
    });
  }

  std::vector<std::unique_ptr<IoThread>>* threads_;
  ConnectionCount* count_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  int max_connections_;
  const Logger* log_;
  size_t next_thread_ = 0;
  uint16_t port_ = 0;
};

// Runs `task` on the thread and waits for it.
void RunOn(IoThread* thread, const std::function<void()>& task) {
  std::promise<void> done;
  asio::post(thread->context, [&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace

absl::Status CheckAddress(const std::string& host, uint16_t port) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  return Bind(host, port, &acceptor);
}

struct Transport::State {
  ConnectionLimits limits;
  ConnectionCount count;
  UnsentBytes unsent;
  std::vector<std::unique_ptr<IoThread>> threads;
  std::unique_ptr<Listener> listener;
  bool stopped = false;
};

Transport::Transport(std::unique_ptr<State> state) : state_(std::move(state)) {}

Transport::~Transport() { Stop(); }

absl::StatusOr<std::unique_ptr<Transport>> Transport::Start(const TransportOptions& options,
                                                            const ConnectionLimits& limits,
                                                            const HandlerFactory& make_handler,
                                                            const Logger* log) {
  auto state = std::make_unique<State>();
  state->limits = limits;
  for (int i = 0; i < std::max(1, options.io_threads); ++i) {
    auto thread =
        std::make_unique<IoThread>(&state->limits, &state->count, &state->unsent, options.tls);
    thread->handler = make_handler([context = &thread->context](std::function<void()> task) {
      asio::post(*context, std::move(task));
    });
    state->threads.push_back(std::move(thread));
  }
  state->listener =
      std::make_unique<Listener>(&state->threads, &state->count, options.max_connections, log);
  HEDDLE_RETURN_IF_ERROR(state->listener->Listen(options));
  state->listener->Accept();
  for (auto& thread : state->threads) {
    thread->Tick();
    thread->thread = std::thread([context = &thread->context] {
      pthread_setname_np(pthread_self(), "http-io");
      context->run();
    });
  }
  return std::unique_ptr<Transport>(new Transport(std::move(state)));
}

uint16_t Transport::port() const { return state_->listener->port(); }

int64_t Transport::unsent_bytes() const { return state_->unsent.total(); }

int Transport::open_connections() const { return state_->count.Get(); }

void Transport::Leave() {
  if (state_->stopped) return;
  for (auto& thread : state_->threads) {
    RunOn(thread.get(), [&thread] {
      thread->leaving = true;
      thread->ForEach([](Connection* connection) { connection->Leave(); });
    });
  }
}

bool Transport::Drain(Clock::time_point deadline) {
  if (state_->stopped) return true;
  RunOn(state_->threads.front().get(), [this] { state_->listener->Close(); });
  for (auto& thread : state_->threads) {
    RunOn(thread.get(), [&thread] {
      thread->draining = true;
      thread->ForEach([](Connection* connection) { connection->Drain(); });
    });
  }
  return state_->count.WaitForNone(deadline);
}

void Transport::Stop() {
  if (state_->stopped) return;
  state_->stopped = true;
  RunOn(state_->threads.front().get(), [this] { state_->listener->Close(); });
  for (auto& thread : state_->threads) {
    RunOn(thread.get(), [&thread] {
      thread->draining = true;
      thread->ForEach([](Connection* connection) { connection->Close(); });
    });
  }
  for (auto& thread : state_->threads) thread->context.stop();
  for (auto& thread : state_->threads) thread->thread.join();
  // Handlers go while their threads' contexts still live: others may be posting to them.
  for (auto& thread : state_->threads) thread->handler.reset();
}

}  // namespace heddle::server
