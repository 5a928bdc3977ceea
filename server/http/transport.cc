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

#include "base/message.h"
#include "base/status.h"
#include "server/http/stream.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// The pause after accept fails (no descriptors left) before it is tried again.
constexpr auto kAcceptBackoff = std::chrono::milliseconds(100);
constexpr auto kAcceptWarningInterval = std::chrono::seconds(10);
// Bytes that the kernel may buffer for a client beyond those in flight to it. Without a bound it
// buffers up to four megabytes, which none of our limits would see; the network's own window is not
// affected. What lies there is computed for a client that may never read it: 150 tokens of a plain
// stream, or 15 with 20 log-probabilities each.
constexpr int kMaxKernelUnsentBytes = 32 << 10;
using NotSentLowWater = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;

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

// A thread, and what it runs and owns. Once it runs, only the thread itself uses the members,
// except `context`.
struct IoThread {
  IoThread(const TransportOptions& options, ConnectionCount* connection_count)
      : name(options.thread_name),
        tick_interval(options.tick),
        tls(options.tls),
        count(connection_count),
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
    std::shared_ptr<TransportConnection> connection =
        factory->Make(MakeStream(std::move(socket)), [this](TransportConnection* closed) {
          if (connections.erase(closed) > 0) count->Remove();
        });
    connections.emplace(connection.get(), connection);
    connection->Start();
    if (leaving) connection->Leave();
    if (draining) connection->Drain();
  }

  // Makes room for a new connection: of some connections without a request, closes the one that has
  // been idle for longest. Where those that were looked at are all busy but for slow bodies, it
  // looks at more, so that a few idle ones are found. Returns false if there is none.
  bool CloseIdle() {
    constexpr size_t kLookedAt = 64;
    constexpr size_t kLookedAtForIdle = 512;
    const Clock::time_point now = Clock::now();
    TransportConnection* longest = nullptr;
    Clock::time_point since = Clock::time_point::max();
    const size_t buckets = connections.bucket_count();
    const size_t start = buckets == 0 ? 0 : random() % buckets;
    size_t seen = 0;
    const auto is_enough = [&] {
      return seen >= (longest != nullptr && since > now ? kLookedAtForIdle : kLookedAt);
    };
    for (size_t i = 0; i < buckets && !is_enough(); ++i) {
      const size_t bucket = (start + i) % buckets;
      for (auto it = connections.begin(bucket); it != connections.end(bucket); ++it, ++seen) {
        if (it->second->idle_since() >= since) continue;
        since = it->second->idle_since();
        longest = it->first;
      }
    }
    if (longest == nullptr) return false;
    const std::shared_ptr<TransportConnection> kept = connections.at(longest);
    factory->OnRefused(since > now ? Refusal::kSlowBody : Refusal::kIdle);
    kept->Close();
    return true;
  }

  // The last resort: an exception costs its connection, which will reach a time limit, and not the
  // thread.
  void Run() {
    while (true) {
      try {
        context.run();
        return;
      } catch (...) {
        factory->OnException();
      }
    }
  }

  // Connections may close, and so leave the map, while they are visited.
  void ForEach(const std::function<void(TransportConnection*)>& visit) {
    std::vector<std::shared_ptr<TransportConnection>> all;
    all.reserve(connections.size());
    for (const auto& entry : connections) all.push_back(entry.second);
    for (const auto& connection : all) visit(connection.get());
  }

  void Tick() {
    tick.expires_after(tick_interval);
    tick.async_wait([this](const auto& error) {
      if (error) return;
      Tick();
      ForEach([now = Clock::now()](TransportConnection* connection) { connection->OnTick(now); });
    });
  }

  const std::string name;
  const Clock::duration tick_interval;
  const TlsContext* const tls;
  ConnectionCount* const count;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer tick;
  std::unique_ptr<ConnectionFactory> factory;
  std::minstd_rand random{std::random_device{}()};
  bool leaving = false;
  bool draining = false;
  std::unordered_map<TransportConnection*, std::shared_ptr<TransportConnection>> connections;
  std::thread thread;
};

absl::Status CannotListen(const std::string& host, uint16_t port,
                          const boost::system::error_code& error) {
  std::string_view remedy;
  if (error == asio::error::address_in_use) remedy = "; choose another port (--port, --grpc-port)";
  if (error == asio::error::access_denied) remedy = "; ports from 1024 on need no rights";
  return absl::UnavailableError(
      base::StrCat("cannot listen on ", host, " port ", port, ": ", error.message(), remedy));
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

// Lives on the first I/O thread; distributes connections to all.
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
    Accept();  // first, so that others may come whatever happens to this one
    const bool is_full = count_->Get() >= max_connections_;
    auto shared = std::make_shared<tcp::socket>(std::move(socket));
    if (!is_full) count_->Add();
    asio::post(target->context, [this, target, shared, is_full] {
      if (is_full && !target->CloseIdle()) {
        Refuse(target, std::move(*shared));
        return;
      }
      if (is_full) count_->Add();
      target->Adopt(std::move(*shared));
    });
  }

  // It tries once, without waiting, because a new socket's buffer has room. Over TLS nothing can be
  // said before a handshake.
  static void Refuse(IoThread* target, tcp::socket socket) {
    target->factory->OnRefused(Refusal::kConnection);
    if (target->tls != nullptr) return;
    const std::string bytes = target->factory->RefusalText();
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(bytes), ignored);
  }

  // Without descriptors an idle connection makes room, as at max_connections.
  void RetryLater(const boost::system::error_code& error) {
    const Clock::time_point now = Clock::now();
    if (now >= next_warning_) {
      log_->Warning("cannot accept connections", {{"error", error.message()}});
      next_warning_ = now + kAcceptWarningInterval;
    }
    error == asio::error::no_descriptors ? MakeRoom(threads_->size()) : Wait();
  }

  // Asks up to `left` threads, one after the other, to close an idle connection: each knows its own
  // alone.
  void MakeRoom(size_t left) {
    if (left == 0) return Wait();
    IoThread* owner = (*threads_)[next_owner_++ % threads_->size()].get();
    asio::post(owner->context, [this, owner, left] {
      const bool has_room = owner->CloseIdle();
      asio::post(acceptor_.get_executor(), [this, has_room, left] {
        if (!acceptor_.is_open()) return;
        has_room ? Accept() : MakeRoom(left - 1);
      });
    });
  }

  void Wait() {
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
  size_t next_owner_ = 0;             // of idle connections
  Clock::time_point next_warning_{};  // of clients that cannot be accepted
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
  ConnectionCount count;
  std::vector<std::unique_ptr<IoThread>> threads;
  std::unique_ptr<Listener> listener;
  bool stopped = false;
};

Transport::Transport(std::unique_ptr<State> state) : state_(std::move(state)) {}

Transport::~Transport() { Stop(); }

absl::StatusOr<std::unique_ptr<Transport>> Transport::Start(const TransportOptions& options,
                                                            const MakeFactory& make_factory,
                                                            const Logger* log) {
  auto state = std::make_unique<State>();
  for (int i = 0; i < std::max(1, options.io_threads); ++i) {
    auto thread = std::make_unique<IoThread>(options, &state->count);
    thread->factory = make_factory([context = &thread->context](std::function<void()> task) {
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
    thread->thread = std::thread([thread = thread.get()] {
      pthread_setname_np(pthread_self(), thread->name.c_str());
      thread->Run();
    });
  }
  return std::unique_ptr<Transport>(new Transport(std::move(state)));
}

uint16_t Transport::port() const { return state_->listener->port(); }

int Transport::open_connections() const { return state_->count.Get(); }

void Transport::Leave() {
  if (state_->stopped) return;
  for (auto& thread : state_->threads) {
    RunOn(thread.get(), [&thread] {
      thread->leaving = true;
      thread->ForEach([](TransportConnection* connection) { connection->Leave(); });
    });
  }
}

bool Transport::Drain(Clock::time_point deadline) {
  if (state_->stopped) return true;
  RunOn(state_->threads.front().get(), [this] { state_->listener->Close(); });
  for (auto& thread : state_->threads) {
    RunOn(thread.get(), [&thread] {
      thread->draining = true;
      thread->ForEach([](TransportConnection* connection) { connection->Drain(); });
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
      thread->ForEach([](TransportConnection* connection) { connection->Close(); });
    });
  }
  for (auto& thread : state_->threads) thread->context.stop();
  for (auto& thread : state_->threads) thread->thread.join();
  // Factories and their handlers are destroyed while their threads' contexts still live, because
  // others may be posting to them.
  for (auto& thread : state_->threads) thread->factory.reset();
}

}  // namespace heddle::server
