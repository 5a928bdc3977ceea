#include "server/http/adapter_update.h"

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/http/responses.h"
#include "server/openai/adapter_updates.h"

namespace heddle::server {
namespace {

// The result of a load, which may come before somebody listens for it. Any thread.
class LoadResult {
 public:
  using Listener = std::function<void(const absl::Status&)>;

  void Set(absl::Status status) {
    Listener listener;
    {
      std::lock_guard lock(mutex_);
      result_ = std::move(status);
      listener = std::move(listener_);
    }
    if (listener) listener(*result_);
  }

  void Listen(Listener listener) {
    {
      std::lock_guard lock(mutex_);
      if (!result_.has_value()) {
        listener_ = std::move(listener);
        return;
      }
    }
    listener(*result_);
  }

 private:
  std::mutex mutex_;
  std::optional<absl::Status> result_;  // set once; GUARDED_BY(mutex_) until then
  Listener listener_;                   // GUARDED_BY(mutex_)
};

UpdateForm FormOf(RouteId id) {
  return id == RouteId::kLoadPinnedAdapter || id == RouteId::kUnloadNamedAdapter
             ? UpdateForm::kSglang
             : UpdateForm::kVllm;
}

HttpResponse AnswerIn(UpdateForm form, std::string text) {
  return form == UpdateForm::kSglang ? JsonResponse(std::move(text))
                                     : TextResponse("text/plain; charset=utf-8", std::move(text));
}

HttpResponse FailureIn(UpdateForm form, const absl::Status& failed, const PreparationParts& parts) {
  const absl::Status status = AdapterUpdateError(failed);
  const ApiError error = ToApiError(status);
  return ErrorResponse(error,
                       form == UpdateForm::kSglang ? FailedUpdateAnswer(status, parts.context)
                                                   : ErrorBodyFor(parts.request.path, error),
                       parts.server->options.cors_origin);
}

// Waits for the end of a load. Thread: the connection's I/O thread.
class LoadExchange final : public Exchange, public std::enable_shared_from_this<LoadExchange> {
 public:
  LoadExchange(PreparationParts parts, AdapterLoad load)
      : parts_(std::move(parts)), load_(std::move(load)) {}

  void Listen(LoadResult* result) {
    result->Listen([self = shared_from_this(),
                    inbox = parts_.inbox->shared_from_this()](const absl::Status& status) {
      inbox->Post([self, status] { self->OnLoaded(status); });
    });
  }

  void OnDisconnect() override { ended_ = true; }

  void OnTick(Clock::time_point now) override {
    const Clock::duration limit = parts_.server->options.request_timeout;
    if (!ended_ && IsOverdue(now - parts_.request.received, limit)) End(OverdueError(limit));
  }

 private:
  void OnLoaded(const absl::Status& status) {
    if (!ended_) End(status);
  }

  void End(const absl::Status& status) {
    ended_ = true;
    const UpdateForm form = FormOf(parts_.route);
    if (!status.ok()) {
      parts_.writer->Send(FailureIn(form, status, parts_));
      return;
    }
    HttpResponse response =
        AnswerIn(form, AdapterUpdateAnswer(form, load_.name, "added", parts_.context));
    AddCorsHeaders(parts_.server->options.cors_origin, &response);
    parts_.writer->Send(std::move(response));
  }

  const PreparationParts parts_;
  const AdapterLoad load_;
  bool ended_ = false;
};

class AdapterUpdate final : public Preparation {
 public:
  explicit AdapterUpdate(PreparationParts parts)
      : parts_(std::move(parts)), form_(FormOf(parts_.route)) {}

  absl::Status Read(const Patience& patience) override {
    if (!parts_.server->options.allow_adapter_updates) {
      return absl::PermissionDeniedError(
          "this server takes no changes of adapters: it was started without --allow-lora-updates");
    }
    parts_.context.patience = patience;
    switch (parts_.route) {
      case RouteId::kSetBaseAdapters: {
        HEDDLE_ASSIGN_OR_RETURN(text_, SetBaseAdapters(parts_.request.body, parts_.context));
        Log("scales of adapters were set", "");
        return absl::OkStatus();
      }
      case RouteId::kUnloadAdapter:
      case RouteId::kUnloadNamedAdapter:
        return Unload();
      default:
        return Load();
    }
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse) override {
    if (result_ != nullptr) {
      auto exchange = std::make_shared<LoadExchange>(std::move(parts_), std::move(load_));
      exchange->Listen(result_.get());
      return exchange;
    }
    if (!failed_.ok()) {
      parts_.writer->Send(FailureIn(form_, failed_, parts_));
      return nullptr;
    }
    HttpResponse response = parts_.route == RouteId::kSetBaseAdapters
                                ? JsonResponse(std::move(text_))
                                : AnswerIn(form_, std::move(text_));
    AddCorsHeaders(parts_.server->options.cors_origin, &response);
    parts_.writer->Send(std::move(response));
    return nullptr;
  }

 private:
  absl::Status Unload() {
    HEDDLE_ASSIGN_OR_RETURN(const std::string name,
                            ParseAdapterUnload(parts_.request.body, parts_.context));
    failed_ = parts_.context.adapters.registry->Unload(name);
    if (!failed_.ok()) return absl::OkStatus();
    text_ = AdapterUpdateAnswer(form_, name, "removed", parts_.context);
    Log("an adapter was unloaded", name);
    return absl::OkStatus();
  }

  absl::Status Load() {
    HEDDLE_ASSIGN_OR_RETURN(load_, ParseAdapterLoad(parts_.request.body, parts_.context));
    result_ = std::make_shared<LoadResult>();
    Log("an adapter is to be loaded", load_.name);
    parts_.context.adapters.registry->Load(
        load_.name, load_.path, load_.replace, load_.pinned,
        [result = result_](const absl::StatusOr<AdapterLease>& lease) {
          result->Set(lease.status());
        });
    return absl::OkStatus();
  }

  void Log(std::string_view message, std::string_view name) const {
    parts_.server->dependencies.log->Info(
        message, {{"adapter", name}, {"request", std::string_view(parts_.request.request_id)}});
  }

  PreparationParts parts_;
  const UpdateForm form_;
  AdapterLoad load_;
  std::shared_ptr<LoadResult> result_;  // of a load
  absl::Status failed_;                 // of what is done at once
  std::string text_;
};

}  // namespace

bool IsAdapterUpdate(RouteId id) {
  switch (id) {
    case RouteId::kLoadAdapter:
    case RouteId::kUnloadAdapter:
    case RouteId::kLoadPinnedAdapter:
    case RouteId::kUnloadNamedAdapter:
    case RouteId::kSetBaseAdapters:
      return true;
    default:
      return false;
  }
}

std::unique_ptr<Preparation> MakeAdapterUpdate(PreparationParts parts) {
  return std::make_unique<AdapterUpdate>(std::move(parts));
}

}  // namespace heddle::server
