#include "server/http/search_exchange.h"

#include <string>
#include <utility>

#include "server/reward/reward_client.h"

namespace heddle::server {

SearchExchange::SearchExchange(ServerContext* context, std::unique_ptr<ApiRequest> request,
                               std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                               Clock::time_point received, scheduler::AdapterUse adapter,
                               std::unique_ptr<SampleSearch> search)
    : EngineExchange(context, writer, received, std::move(adapter)),
      request_(std::move(request)),
      answer_(request_.get(), context->dependencies.codec, std::move(format)),
      sender_(context, writer, request_.get(), &answer_.format()),
      search_(std::move(search)),
      is_cut_(static_cast<size_t>(request_->search.samples)) {
  if (context->branches == nullptr) return;
  first_context_ = context->branches->ReserveContexts(request_->search.samples);
}

absl::Status SearchExchange::Submit(EventInbox* inbox) {
  inbox_ = inbox->shared_from_this();
  const GenerationRequest& asked = request_->generations.front();
  writer_->record().asked = {asked.max_tokens, asked.sampling.temperature, asked.sampling.top_p, 1};
  absl::Status status = SubmitWave();
  if (!status.ok()) {
    CancelAll();
    DropContexts();
    ended_ = true;
  }
  return status;
}

// Samples draw with seeds one apart, in whichever waves they run. Later waves take over what the
// first sample has computed of the prompt.
absl::Status SearchExchange::SubmitWave() {
  const int32_t count = search_->NextWave();
  const auto begun = static_cast<uint64_t>(search_->num_begun());
  GenerationRequest wave = request_->generations.front();
  wave.num_branches = count;
  wave.sampling.seed += begun;
  if (first_context_ != 0) {
    wave.keep = scheduler::ContextId{first_context_ + begun};
    if (begun > 0) wave.from = scheduler::ContextId{first_context_};
  }
  absl::Status status =
      SubmitToEngine(std::move(wave), inbox_->SinkFor(shared_from_this(), first_of_.size()));
  if (!status.ok()) return status;
  first_of_.push_back(begun);
  search_->Begin(count);
  return absl::OkStatus();
}

void SearchExchange::Take(size_t wave, GenerationEvent event) {
  if (overflowed()) {
    return Fail(absl::InternalError("the server could not keep up with this request's tokens"));
  }
  const int32_t branch = event.branch;
  const size_t sample = first_of_[wave] + static_cast<size_t>(branch);
  if (is_cut_[sample]) return;  // its end
  Measure(sample, event);
  std::vector<engine::TokenId> tokens;
  double sum_logprob = 0;
  for (const engine::SampledToken& token : event.tokens) {
    tokens.push_back(token.token);
    sum_logprob += token.logprob;
  }
  const bool finished = event.finished;
  event.branch = static_cast<int32_t>(sample);
  if (wave > 0) event.cached_tokens = 0;
  Answer::Output output;
  answer_.Take(0, std::move(event), &output);
  if (!answer_.error().ok()) return Fail(answer_.error());
  std::vector<size_t> cut;
  search_->Take(sample, tokens, sum_logprob, &cut);
  for (const size_t one : cut) {
    is_cut_[one] = true;
    size_t of = first_of_.size() - 1;
    while (first_of_[of] > one) --of;
    const auto index = static_cast<int32_t>(one - first_of_[of]);
    context_->dependencies.generation->CancelBranch(ids_[of], index);
  }
  const bool stopped = !output.stopped_branches.empty();
  if (stopped) context_->dependencies.generation->CancelBranch(ids_[wave], branch);
  if (stopped || finished) search_->End(sample, answer_.Content(sample));
  GoOn();
}

// The answer, or the next wave, as soon as there is room for it in the engine's queue.
void SearchExchange::GoOn() {
  if (asked_for_rewards_) return;  // TakeRewards goes on
  if (search_->done()) return request_->search.by_reward ? AskForRewards() : Finish();
  if (search_->NextWave() == 0) return;
  const absl::Status status = SubmitWave();
  if (!status.ok() && !absl::IsResourceExhausted(status)) Fail(status);
}

void SearchExchange::Watch() { GoOn(); }

void SearchExchange::AskForRewards() {
  asked_for_rewards_ = true;
  std::vector<size_t> samples = search_->finished();
  std::vector<std::string> texts;
  texts.reserve(samples.size());
  for (const size_t sample : samples) texts.push_back(answer_.Content(sample));
  // The last reference to the exchange goes on its own thread.
  auto take = [inbox = inbox_, weak = weak_from_this(),
               samples = std::move(samples)](absl::StatusOr<std::vector<double>> rewards) {
    inbox->Post([weak, samples, rewards = std::move(rewards)] {
      if (const auto self = weak.lock(); self != nullptr) self->TakeRewards(samples, rewards);
    });
  };
  context_->dependencies.rewards->Score(request_->search.question, texts, std::move(take));
}

void SearchExchange::TakeRewards(const std::vector<size_t>& samples,
                                 const absl::StatusOr<std::vector<double>>& rewards) {
  if (ended_) return;
  if (rewards.ok()) {
    search_->SetRewards(samples, *rewards);
  } else {
    request_->Warn("the reward model gave no scores: this is the likeliest of the samples");
  }
  Finish();
}

void SearchExchange::Finish() {
  CancelAll();
  answer_.Choose(search_->best());
  Usage& usage = answer_.usage();
  usage.has_samples = true;
  usage.samples = search_->num_begun();
  usage.finished_samples = search_->num_finished();
  usage.pruned_samples = search_->num_pruned();
  usage.votes = search_->votes_of_best();
  usage.saved_tokens = search_->saved_tokens();
  usage.reward = search_->reward_of_best();
  sender_.SendAtOnce(answer_, [this] { End(); });
}

void SearchExchange::Fail(const absl::Status& status) {
  CancelAll();
  End();
  sender_.SendError(status);
}

// Behind the cancellation of what may still leave one.
void SearchExchange::DropContexts() {
  if (first_context_ == 0) return;
  for (int32_t i = 0; i < request_->search.samples; ++i) {
    context_->dependencies.generation->DropContext(
        scheduler::ContextId{first_context_ + static_cast<uint64_t>(i)});
  }
}

void SearchExchange::End() {
  EngineExchange::End();
  DropContexts();
  sender_.Count();
  CountAnswer(answer_.usage(), answer_.finish_reasons());
  context_->dependencies.metrics->CountSearch(search_->num_begun(), search_->num_pruned(),
                                              answer_.usage().saved_tokens);
}

}  // namespace heddle::server
