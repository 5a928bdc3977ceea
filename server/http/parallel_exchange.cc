#include "server/http/parallel_exchange.h"

#include <algorithm>
#include <utility>

#include "server/answer/event_failure.h"

namespace heddle::server {
namespace {

// The places of a sequence, in the order that the request's format reads branches in.
int32_t PlacesFor(const ApiRequest& request, const ServedModel& model) {
  const bool is_joined =
      request.parallel.syntax != nullptr && request.parallel.syntax->is_concurrent();
  return is_joined && model.max_joined_context > 0 ? model.max_joined_context : model.max_context;
}

}  // namespace

ParallelExchange::ParallelExchange(ServerContext* context,
                                   std::unique_ptr<const ApiRequest> request,
                                   std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                                   Clock::time_point received, scheduler::AdapterUse adapter)
    : EngineExchange(context, writer, received, std::move(adapter)),
      request_(std::move(request)),
      answer_(request_.get(), context->dependencies.codec, std::move(format)),
      sender_(context, writer, request_.get(), &answer_.format()),
      tree_(request_.get(), context->dependencies.codec,
            std::max(1, context->dependencies.generation->Stats().page_tokens),
            PlacesFor(*request_, *context->dependencies.model), ContextNames(), &answer_) {}

ParallelTree::NewContext ParallelExchange::ContextNames() {
  return [table = context_->branches.get()] {
    return table == nullptr ? scheduler::ContextId{}
                            : scheduler::ContextId{table->ReserveContexts(1)};
  };
}

absl::Status ParallelExchange::Submit(EventInbox* inbox) {
  inbox_ = inbox->shared_from_this();
  const GenerationRequest& first = request_->generations.front();
  writer_->record().asked = {first.max_tokens, first.sampling.temperature, first.sampling.top_p, 1};
  ParallelOrders orders;
  tree_.Begin(&orders);
  Follow(std::move(orders));
  absl::Status status = SubmitWaiting();
  if (status.ok() && !waiting_.empty()) {
    status = absl::ResourceExhaustedError("the queue is full");
  }
  if (!status.ok()) {
    CancelAll();
    DropContexts();
    ended_ = true;
  }
  return status;
}

void ParallelExchange::CancelRun(size_t run) {
  std::erase_if(waiting_, [run](const ParallelOrders::Run& one) { return one.number == run; });
  if (run < id_of_.size() && id_of_[run] != RequestId{}) {
    context_->dependencies.generation->Cancel(id_of_[run]);
  }
}

void ParallelExchange::Follow(ParallelOrders orders) {
  GenerationService* service = context_->dependencies.generation;
  for (const size_t run : orders.stops) CancelRun(run);
  for (scheduler::ContextJoin& join : orders.joins) service->JoinContexts(std::move(join));
  for (ParallelOrders::Run& run : orders.runs) {
    if (tree_.Awaits(run.number)) waiting_.push_back(std::move(run));
  }
  for (const scheduler::ContextId id : orders.drops) service->DropContext(id);
}

// The first run is refused where the engine's queue is full; later ones wait for room in it.
absl::Status ParallelExchange::SubmitWaiting() {
  while (!waiting_.empty()) {
    const size_t run = waiting_.front().number;
    absl::Status status =
        SubmitToEngine(waiting_.front().request, inbox_->SinkFor(shared_from_this(), run));
    if (absl::IsResourceExhausted(status) && submitted_) return absl::OkStatus();
    if (!status.ok()) return status;
    submitted_ = true;
    if (id_of_.size() <= run) id_of_.resize(run + 1);
    id_of_[run] = ids_.back();
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

void ParallelExchange::Take(size_t run, GenerationEvent event) {
  if (overflowed()) {
    return Fail(absl::InternalError("the server could not keep up with this request's tokens"));
  }
  if (!tree_.Awaits(run)) return;
  Measure(run, event);
  if (absl::Status failure = FailureOf(event); !failure.ok()) return Fail(failure);
  const RequestRecord& record = writer_->record();
  answer_.format().SetTimes(
      {record.queued_seconds, record.first_token_seconds, record.last_event_seconds});
  ParallelOrders orders;
  tree_.Take(run, std::move(event), SecondsBetween(received_, Clock::now()), &orders);
  Continue(std::move(orders));
}

void ParallelExchange::Watch() {
  ParallelOrders orders;
  tree_.CutSlow(SecondsBetween(received_, Clock::now()), &orders);
  Continue(std::move(orders));
}

void ParallelExchange::Continue(ParallelOrders orders) {
  Follow(std::move(orders));
  if (tree_.done()) return Finish();
  if (const absl::Status status = SubmitWaiting(); !status.ok()) return Fail(status);
  if (const std::string frames = answer_.TakeFrames(); !frames.empty()) SendFrames(frames);
}

void ParallelExchange::SendFrames(const std::string& frames) {
  if (sender_.Send(frames)) return PauseIfBehind();
  CancelAll();
  End();
  writer_->Abort();
}

void ParallelExchange::Finish() {
  CancelAll();
  answer_.usage().critical_path_tokens = tree_.critical_path();
  answer_.usage().branches = tree_.num_branches();
  answer_.Finish(tree_.length());
  if (!request_->stream) {
    std::string body = answer_.Body();
    End();
    return sender_.SendWhole(std::move(body));
  }
  SendFrames(answer_.TakeFrames());
  if (ended_) return;
  End();
  sender_.EndStream();
}

void ParallelExchange::Fail(const absl::Status& status) {
  CancelAll();
  End();
  sender_.SendError(status);
}

// Behind the cancellation of what may still leave one.
void ParallelExchange::DropContexts() {
  for (const scheduler::ContextId id : tree_.contexts()) {
    context_->dependencies.generation->DropContext(id);
  }
}

void ParallelExchange::End() {
  EngineExchange::End();
  waiting_.clear();
  DropContexts();
  sender_.Count();
  std::vector<std::string> reasons;
  if (tree_.done()) reasons.emplace_back(tree_.length() ? "length" : "stop");
  CountAnswer(answer_.usage(), std::move(reasons));
  context_->dependencies.metrics->CountBranches(tree_.num_branches(), tree_.total_tokens(),
                                                tree_.critical_path());
}

}  // namespace heddle::server
