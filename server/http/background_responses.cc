#include "server/http/background_responses.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "server/http/api_handler.h"
#include "server/http/generation_exchange.h"
#include "server/http/request_guard.h"
#include "server/http/server_context.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;

constexpr auto kBackgroundTick = std::chrono::milliseconds(250);

}  // namespace

// The writer of a response that goes to its log. Thread: the responses'.
class BackgroundCall final : public ResponseWriter,
                             public std::enable_shared_from_this<BackgroundCall> {
 public:
  BackgroundCall(BackgroundResponses* owner, std::shared_ptr<ResponseLog> log, RequestRecord record,
                 Clock::time_point received)
      : owner_(owner), log_(std::move(log)), record_(std::move(record)), received_(received) {}

  void SetExchange(std::shared_ptr<Exchange> exchange) { exchange_ = std::move(exchange); }
  const std::string& id() const { return log_->id(); }

  void Tick(Clock::time_point now) {
    if (!is_done_) exchange_->OnTick(now);
  }

  void Cancel() {
    if (is_done_) return;
    exchange_->OnDisconnect();
    Done(/*cancelled=*/true);
  }

  void Report(Handler* handler) {
    record_.total_seconds = SecondsBetween(received_, Clock::now());
    record_.outcome = OutcomeOf(record_, cancelled_);
    handler->OnFinished(record_);
  }

  // ResponseWriter:
  void Send(HttpResponse response) override {
    record_.status = response.status;
    Done(/*cancelled=*/false);
  }
  void StartStream(HttpResponse head, std::string_view) override { record_.status = head.status; }
  void Write(std::string_view data) override { owner_->CountBytes(log_.get(), log_->Append(data)); }
  void EndStream() override { Done(/*cancelled=*/false); }
  size_t buffered_bytes() const override { return 0; }
  bool is_behind() const override { return false; }
  bool is_overfull() const override { return false; }
  void Abort() override { Done(/*cancelled=*/false); }
  RequestRecord& record() override { return record_; }

 private:
  void Done(bool cancelled) {
    if (is_done_) return;
    is_done_ = true;
    cancelled_ = cancelled;
    log_->End();
    asio::post(owner_->context_,
               [owner = owner_, self = shared_from_this()] { owner->OnDone(self); });
  }

  BackgroundResponses* owner_;
  const std::shared_ptr<ResponseLog> log_;
  RequestRecord record_;
  const Clock::time_point received_;
  std::shared_ptr<Exchange> exchange_;
  bool is_done_ = false;
  bool cancelled_ = false;
};

BackgroundResponses::BackgroundResponses(ServerContext* server)
    : server_(server), work_(context_.get_executor()), timer_(context_) {
  const auto post = [this](std::function<void()> task) { asio::post(context_, std::move(task)); };
  handler_ = std::make_unique<ApiHandler>(server, post);
  inbox_ = std::make_shared<EventInbox>(post);
  thread_ = std::thread([this] { Loop(); });
}

BackgroundResponses::~BackgroundResponses() { Stop(); }

// An exception (out of memory) costs what was to be done at that moment, and not the thread.
void BackgroundResponses::Loop() {
  while (true) {
    try {
      context_.run();
      return;
    } catch (...) {
      handler_->OnException("background", "").IgnoreError();
    }
  }
}

void BackgroundResponses::Tick() {
  if (calls_.empty()) return;
  timer_.expires_after(kBackgroundTick);
  timer_.async_wait([this](const auto& error) {
    if (!error) Tick();
  });
  const std::vector<std::shared_ptr<BackgroundCall>> calls = calls_;
  for (const auto& call : calls) call->Tick(Clock::now());
}

void BackgroundResponses::Begin(Start start, Started on_started) {
  auto shared = std::make_shared<Start>(std::move(start));
  asio::post(context_, [this, shared, on_started = std::move(on_started)] {
    Run(std::move(*shared), on_started);
  });
}

void BackgroundResponses::Run(Start start, const Started& on_started) {
  {
    std::lock_guard lock(mutex_);
    if (num_running_ >= kMaxRunning) {
      on_started(absl::ResourceExhaustedError("too many responses run in the background"));
      return;
    }
  }
  const Generation::Background& background = *start.generation.background;
  auto log = std::make_shared<ResponseLog>(background.id, start.tenant);
  auto call = std::make_shared<BackgroundCall>(this, log, std::move(start.record), start.received);
  auto exchange = std::make_shared<GenerationExchange>(
      server_, std::move(start.generation.request), std::move(start.generation.format), call.get(),
      start.received, std::move(start.adapter));
  call->SetExchange(exchange);
  AddLog(log);
  const absl::Status submitted =
      Guarded(server_->dependencies, "background", call->record().request_id, [&] {
        exchange->BeginStream(background.frames);
        return exchange->Submit(inbox_.get());
      });
  if (!submitted.ok()) {
    Erase(log);
    call->record().status = 0;
    call->Report(handler_.get());
    on_started(submitted);  // behind the report, which gives back the key's place
    return;
  }
  {
    std::lock_guard lock(mutex_);
    ++num_running_;
  }
  calls_.push_back(std::move(call));
  if (calls_.size() == 1) Tick();
  on_started(log);
}

void BackgroundResponses::OnDone(const std::shared_ptr<BackgroundCall>& call) {
  if (std::erase(calls_, call) == 0) return;
  call->Report(handler_.get());
  std::lock_guard lock(mutex_);
  if (--num_running_ == 0) none_running_.notify_all();
}

void BackgroundResponses::OnCancelled(const std::string& id) {
  const std::vector<std::shared_ptr<BackgroundCall>> calls = calls_;
  for (const auto& call : calls) {
    if (call->id() == id) call->Cancel();
  }
}

void BackgroundResponses::AddLog(const std::shared_ptr<ResponseLog>& log) {
  std::lock_guard lock(mutex_);
  by_id_[log->id()] = order_.insert(order_.end(), log);
}

void BackgroundResponses::CountBytes(ResponseLog* log, size_t bytes) {
  std::lock_guard lock(mutex_);
  bytes_ += bytes;
  for (auto it = order_.begin(); bytes_ > kMaxBytes && it != order_.end();) {
    const auto next = std::next(it);
    if ((*it)->has_ended()) DropLocked(it);
    it = next;
  }
  if (bytes_ > kMaxBytes) bytes_ -= log->ForgetOldest(bytes_ - kMaxBytes);
}

void BackgroundResponses::DropLocked(Order::iterator it) {
  bytes_ -= std::min(bytes_, (*it)->bytes());
  by_id_.erase((*it)->id());
  order_.erase(it);
}

std::shared_ptr<ResponseLog> BackgroundResponses::Find(std::string_view id, uint64_t tenant) const {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || (*found->second)->tenant() != tenant) return nullptr;
  return *found->second;
}

bool BackgroundResponses::Cancel(const std::shared_ptr<ResponseLog>& log) {
  if (!log->Cancel()) return false;
  asio::post(context_, [this, id = log->id()] { OnCancelled(id); });
  return true;
}

void BackgroundResponses::Erase(const std::shared_ptr<ResponseLog>& log) {
  Cancel(log);
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(log->id());
  if (found != by_id_.end()) DropLocked(found->second);
}

bool BackgroundResponses::Drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return none_running_.wait_until(lock, deadline, [this] { return num_running_ == 0; });
}

void BackgroundResponses::Stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    const std::vector<std::shared_ptr<BackgroundCall>> calls = calls_;
    for (const auto& call : calls) call->Cancel();
    for (const auto& call : calls) OnDone(call);
    context_.stop();
  });
  thread_.join();
  inbox_->Close();
  handler_.reset();
}

}  // namespace heddle::server
