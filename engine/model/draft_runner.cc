#include "engine/model/draft_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

// A drafter whose logits gave no token in so many passes in a row is broken.
constexpr int32_t kMostPassesWithoutDraw = 8;

int64_t DraftNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The slice that the sample draws from.
int32_t SliceOf(const StepPlan& plan, const SampleRow& sample) {
  const auto behind = std::upper_bound(
      plan.sequences.begin(), plan.sequences.end(), sample.row,
      [](int32_t row, const SequenceSlice& slice) { return row < slice.token_begin; });
  return static_cast<int32_t>(behind - plan.sequences.begin()) - 1;
}

// The index (chain_batch.h) of the slice's first row.
int32_t FirstIndex(const SequenceSlice& slice) { return slice.context_tokens - slice.num_tokens; }

}  // namespace

DraftRunner::DraftRunner(Parts parts, const ExecutorLimits& limits)
    : parts_(std::move(parts)),
      limits_(limits),
      pages_(limits.num_pages, limits.num_host_pages, limits.page_tokens) {}

int64_t DraftRunner::WorkspaceBytes(const DraftTraits& traits) {
  return int64_t{DraftLogits::kMaxRows} * traits.vocab * int64_t{sizeof(float)};
}

absl::StatusOr<std::unique_ptr<DraftRunner>> DraftRunner::Create(kernels::Device& device,
                                                                 Parts parts,
                                                                 const ExecutorLimits& limits) {
  std::unique_ptr<DraftRunner> runner(new DraftRunner(std::move(parts), limits));
  HEDDLE_ASSIGN_OR_RETURN(runner->logits_, device.Allocate(WorkspaceBytes(runner->traits())));
  const bool has_same_tokens =
      runner->traits().target_ids.empty() && runner->traits().vocab == limits.vocab;
  runner->keeps_shares_ = has_same_tokens && device.samples_by_rejection();
  return runner;
}

void DraftRunner::ReplacePool(const ExecutorLimits& limits) {
  limits_ = limits;
  pages_ = DraftPages(limits.num_pages, limits.num_host_pages, limits.page_tokens);
}

void DraftRunner::Run(kernels::Device& device, const Step& step, StepResult* result) {
  for (SequenceId id : step.plan.ended) shares_.Forget(id);
  if (has_failed_) return;
  chains_.clear();
  absl::Status status = RunPasses(device, step, result);
  if (status.ok() && passes_without_draw_ >= kMostPassesWithoutDraw) {
    status = absl::InternalError("its logits are not numbers");
  }
  if (status.ok()) return Report(result);
  has_failed_ = true;
  result->draft_failure = std::string(status.message());
}

// Lists the chains that can be guessed, those that want most guesses first: the chains that go on
// are then the first ones in every pass.
void DraftRunner::ListChains(const StepPlan& plan, const StepResult& result) {
  for (const DraftAhead& ask : plan.drafts_ahead) AddChain(plan, ask, result);
  std::stable_sort(chains_.begin(), chains_.end(),
                   [](const Chain& a, const Chain& b) { return a.num_wanted > b.num_wanted; });
}

void DraftRunner::AddChain(const StepPlan& plan, const DraftAhead& ask, const StepResult& result) {
  const SampleRow& sample = plan.samples[static_cast<size_t>(ask.sample)];
  const SequenceGain& gain = result.gains[static_cast<size_t>(ask.sample)];
  // Tokens that are forced behind the last row have to run in a step of the model first.
  const bool is_one_pending = gain.failure == DrawFailure::kNone && gain.num_tokens > 0 &&
                              gain.num_tokens == gain.rows_kept;
  if (!is_one_pending) return;
  const auto last = static_cast<size_t>(gain.token_begin + gain.num_tokens) - 1;
  const TokenId pending = result.tokens[last].token;
  if (pending < 0) return;
  Chain chain;
  chain.slice = SliceOf(plan, sample);
  const SequenceSlice& slice = plan.sequences[static_cast<size_t>(chain.slice)];
  chain.next = {.id = sample.id, .row = 0, .position = sample.position + gain.num_tokens};
  chain.slot_begin = ask.slot_begin;
  chain.num_slots = ask.num_slots;
  chain.num_wanted = std::min(ask.num_tokens, kMaxGuesses);
  chain.min_survival = ask.min_survival;
  chain.max_catch_up = ask.max_catch_up;
  chain.pending = pending;
  const int32_t last_kept =
      FirstIndex(slice) + (sample.row - slice.token_begin) + gain.rows_kept - 1;
  chain.end = !traits().features.empty() ? last_kept : last_kept + 1;
  if (const int32_t most = traits().max_context; most > 0) {
    chain.num_wanted = std::min(chain.num_wanted, most - 1 - chain.next.position);
  }
  if (traits().guesses_per_pass > 1 || traits().is_block()) {
    chain.num_wanted = std::min(chain.num_wanted, traits().guesses_per_pass);
  }
  if (chain.num_wanted < 1) return;
  const bool has_seen_all = FirstUnknown(plan, chain) >= FirstIndex(slice);
  const bool must_have_seen = !traits().features.empty() && !traits().kv_layers.empty();
  if (must_have_seen && !has_seen_all) return;
  chains_.push_back(std::move(chain));
}

// The index of the first position that the drafter has not computed and can compute.
int32_t DraftRunner::FirstUnknown(const StepPlan& plan, const Chain& chain) const {
  const SlicePages pages = PagesOfSlice(plan, chain.slice, chain.slot_begin, chain.num_slots, 0);
  int32_t index = 0;
  for (const KvSpan& span : pages.spans) {
    const int32_t known = std::min(span.num_tokens, pages_.known(span.page));
    index += known;
    if (known < span.num_tokens) break;
  }
  return std::max(index, MissingInFront(plan, chain.slice));
}

absl::Status DraftRunner::RunPasses(kernels::Device& device, const Step& step, StepResult* result) {
  ListChains(step.plan, *result);
  if (traits().is_block()) return RunBlocks(device, step, result);
  const bool reads_features = !traits().features.empty();
  const bool sees_step = reads_features && step.plan.feeds_drafter && !step.plan.token_ids.empty();
  if (chains_.empty() && (!sees_step || traits().kv_layers.empty())) return absl::OkStatus();
  logit_rows_.clear();
  const kernels::HostBatch first = reads_features ? StepBatch(step, *result) : CatchUpBatch(step);
  if (first.n_tokens() == 0) return absl::OkStatus();
  DraftPass pass{.number = 0,
                 .n_rows = first.n_tokens(),
                 .n_chains = static_cast<int32_t>(chains_.size()),
                 .features = step.features,
                 .cache = &step.cache,
                 .first_kv_layer = parts_.first_kv_layer};
  HEDDLE_RETURN_IF_ERROR(device.Plan(first));
  HEDDLE_RETURN_IF_ERROR(RunPass(device, step, pass, /*guess=*/0, result));
  if (reads_features) CountSeen(step.plan);
  return RunLaterGuesses(device, step, pass, result);
}

absl::Status DraftRunner::RunLaterGuesses(kernels::Device& device, const Step& step, DraftPass pass,
                                          StepResult* result) {
  for (int32_t guess = 1; NumGoingOn(guess) > 0; ++guess) {
    const bool is_other_head = guess < traits().guesses_per_pass;
    pass.n_chains = NumGoingOn(guess);
    if (!is_other_head) {
      pass.number = guess;
      pass.n_rows = pass.n_chains;
      pass.features = {};
      HEDDLE_RETURN_IF_ERROR(device.Plan(NextBatch(step, guess, pass.n_chains)));
    }
    HEDDLE_RETURN_IF_ERROR(RunPass(device, step, pass, guess, result));
  }
  return absl::OkStatus();
}

// The passes of a network that guesses a block at once. Their times count as one.
absl::Status DraftRunner::RunBlocks(kernels::Device& device, const Step& step, StepResult* result) {
  if (step.plan.token_ids.empty() || (chains_.empty() && !step.plan.feeds_drafter)) {
    return absl::OkStatus();
  }
  const int64_t start_ns = DraftNowNs();
  logit_rows_.clear();
  const kernels::HostBatch rows = StepBatch(step, *result);
  DraftPass pass{.number = 0,
                 .n_rows = rows.n_tokens(),
                 .features = step.features,
                 .cache = &step.cache,
                 .first_kv_layer = parts_.first_kv_layer};
  HEDDLE_RETURN_IF_ERROR(device.Plan(rows));
  HEDDLE_RETURN_IF_ERROR(
      device.Run([&](kernels::Ops& ops) { parts_.network->Forward(ops, pass); }));
  CountSeen(step.plan);
  const int64_t keys_ns = DraftNowNs() - start_ns;
  const int32_t keys_rows = pass.n_rows;
  FitBlocks();
  if (chains_.empty()) {
    result->draft_times.push_back({.rows = keys_rows, .is_first = true, .ns = keys_ns});
    return absl::OkStatus();
  }
  const kernels::HostBatch blocks = BlockBatch(step.plan);
  pass.number = 1;
  pass.n_rows = blocks.n_tokens();
  pass.n_chains = static_cast<int32_t>(chains_.size());
  pass.features = {};
  pass.guess_rows = guess_rows_;
  HEDDLE_RETURN_IF_ERROR(device.Plan(blocks));
  HEDDLE_RETURN_IF_ERROR(RunPass(device, step, pass, /*guess=*/0, result));
  DraftPassTime& time = result->draft_times.back();
  time.rows = std::max(time.rows, keys_rows);
  time.ns += keys_ns;
  return RunLaterGuesses(device, step, pass, result);
}

// Leaves blocks out, and makes blocks shorter, until all of them are no more than a batch.
void DraftRunner::FitBlocks() {
  constexpr int32_t kLeastRows = 2;
  const int32_t most_chains = limits_.max_batch_tokens / kLeastRows;
  if (static_cast<int32_t>(chains_.size()) > most_chains) {
    chains_.resize(static_cast<size_t>(most_chains));
  }
  if (chains_.empty()) return;
  const int32_t most = limits_.max_batch_tokens / static_cast<int32_t>(chains_.size()) - 1;
  for (Chain& chain : chains_) chain.num_wanted = std::min(chain.num_wanted, most);
}

// A block of rows for each chain. Where the logits of all guesses are computed at once, each guess
// has rows of all chains, also of those that want fewer guesses; their last one stands in.
kernels::HostBatch DraftRunner::BlockBatch(const StepPlan& plan) {
  chain_batch_.Begin(plan, limits_.page_tokens);
  logit_rows_.clear();
  const auto n_chains = static_cast<int32_t>(chains_.size());
  const int32_t n_guesses = chains_.front().num_wanted;
  std::vector<int32_t>& first_rows = rows_kept_;  // no longer needed
  first_rows.clear();
  for (const Chain& chain : chains_) {
    first_rows.push_back(chain_batch_.n_rows());
    next_tokens_.assign(1, chain.pending);
    next_tokens_.resize(static_cast<size_t>(chain.num_wanted) + 1, traits().mask);
    chain_batch_.AddBlock(plan, chain, chain.end + 1, next_tokens_);
  }
  const bool at_once = n_guesses * n_chains <= DraftLogits::kMaxRows;
  guess_rows_.assign(1, 0);
  for (int32_t guess = 0; guess < n_guesses; ++guess) {
    for (int32_t c = 0; c < n_chains; ++c) {
      const int32_t wanted = chains_[static_cast<size_t>(c)].num_wanted;
      if (wanted <= guess && !at_once) break;  // as all later ones
      logit_rows_.push_back(first_rows[static_cast<size_t>(c)] + std::min(guess + 1, wanted));
    }
    guess_rows_.push_back(static_cast<int32_t>(logit_rows_.size()));
  }
  return chain_batch_.View(logit_rows_);
}

// The rows of the step itself, for a drafter that reads the model's hidden states: each with the
// token behind it, if that is what the drafter reads.
kernels::HostBatch DraftRunner::StepBatch(const Step& step, const StepResult& result) {
  const StepPlan& plan = step.plan;
  next_tokens_.assign(plan.token_ids.begin(), plan.token_ids.end());
  rows_kept_.clear();
  for (const SequenceSlice& slice : plan.sequences) rows_kept_.push_back(slice.num_tokens);
  if (traits().reads_next_token) {
    for (const SequenceSlice& slice : plan.sequences) {
      const auto first = next_tokens_.begin() + slice.token_begin;
      std::copy(first + 1, first + slice.num_tokens, first);
      const auto last = static_cast<size_t>(slice.token_begin + slice.num_tokens) - 1;
      next_tokens_[last] = std::max(0, slice.next_token);
      if (slice.next_token < 0) --rows_kept_[static_cast<size_t>(&slice - plan.sequences.data())];
    }
  }
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    const SampleRow& sample = plan.samples[i];
    const SequenceGain& gain = result.gains[i];
    const auto slice = static_cast<size_t>(SliceOf(plan, sample));
    const int32_t before = sample.row - plan.sequences[slice].token_begin;
    rows_kept_[slice] = before;
    if (gain.rows_kept < 1 || gain.num_tokens < gain.rows_kept) continue;
    const auto drawn = static_cast<size_t>(gain.token_begin + gain.rows_kept) - 1;
    const TokenId token = result.tokens[drawn].token;
    if (token < 0) continue;
    rows_kept_[slice] = before + gain.rows_kept;
    if (!traits().reads_next_token) continue;
    next_tokens_[static_cast<size_t>(sample.row + gain.rows_kept) - 1] = token;
  }
  for (const Chain& chain : chains_) {
    if (traits().is_block()) break;
    const SequenceSlice& slice = plan.sequences[static_cast<size_t>(chain.slice)];
    logit_rows_.push_back(slice.token_begin + chain.end - FirstIndex(slice));
  }
  kernels::HostBatch batch = plan_batch_.Build(plan, limits_.page_tokens, logit_rows_);
  batch.token_ids = next_tokens_;
  return batch;
}

// The drafter has computed the rows of the step that stay.
void DraftRunner::CountSeen(const StepPlan& plan) {
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceSlice& slice = plan.sequences[i];
    for (int32_t row = 0; row < rows_kept_[i]; ++row) {
      const int32_t at_row = slice.token_begin + row;
      const auto at = static_cast<size_t>(at_row);
      pages_.SetKnown(plan.kv_slots[at], slice.id, plan.token_ids[at]);
    }
  }
}

// A batch of the tokens of each chain that a drafter has not computed yet, and the pending one.
// Chains for which a step has no room catch up in part, and go on in later steps.
kernels::HostBatch DraftRunner::CatchUpBatch(const Step& step) {
  chain_batch_.Begin(step.plan, limits_.page_tokens);
  int32_t room = limits_.max_batch_tokens;
  for (Chain& chain : chains_) {
    const int32_t begin = std::min(FirstUnknown(step.plan, chain), chain.end);
    const int32_t end = std::min(chain.end, begin + room - 1);
    const bool is_too_far = chain.end - begin > chain.max_catch_up;
    chain.is_over = end < chain.end || is_too_far;
    if (room == 0 || is_too_far) continue;
    const SlicePages pages =
        PagesOfSlice(step.plan, chain.slice, chain.slot_begin, chain.num_slots, 0);
    next_tokens_.clear();
    ForEachSlot(pages, begin, end + 1, [&](int32_t index, KvSlot slot) {
      const TokenId token = index == chain.end ? chain.pending : pages_.token(slot);
      const bool is_own = token >= 0 && token < traits().vocab;
      next_tokens_.push_back(is_own ? token : 0);
      pages_.SetKnown(slot, chain.next.id, token);
    });
    chain_batch_.Add(step.plan, chain, begin, next_tokens_);
    room -= static_cast<int32_t>(next_tokens_.size());
    if (!chain.is_over) logit_rows_.push_back(chain_batch_.n_rows() - 1);
  }
  std::erase_if(chains_, [](const Chain& chain) { return chain.is_over; });
  return chain_batch_.View(logit_rows_);
}

// One row for each chain: its last guess.
kernels::HostBatch DraftRunner::NextBatch(const Step& step, int32_t pass, int32_t n_chains) {
  chain_batch_.Begin(step.plan, limits_.page_tokens);
  logit_rows_.clear();
  for (int32_t c = 0; c < n_chains; ++c) {
    const Chain& chain = chains_[static_cast<size_t>(c)];
    const int32_t index = chain.end + pass;
    const bool has_guess = static_cast<int32_t>(chain.guesses.size()) == pass;
    const TokenId token = has_guess ? chain.guesses.back() : chain.pending;
    const TokenId input = traits().target_ids.empty() && token >= traits().vocab ? 0 : token;
    chain_batch_.Add(step.plan, chain, index, {&input, 1});
    logit_rows_.push_back(c);
    if (!has_guess || !traits().features.empty()) continue;
    const SlicePages pages =
        PagesOfSlice(step.plan, chain.slice, chain.slot_begin, chain.num_slots, 0);
    ForEachSlot(pages, index, index + 1,
                [&](int32_t, KvSlot slot) { pages_.SetKnown(slot, chain.next.id, token); });
  }
  return chain_batch_.View(logit_rows_);
}

// Draws sampled rows [begin, end) from the first rows of the logits.
void DraftRunner::SampleRows(kernels::Ops& ops, int32_t n_logit_rows, int32_t begin, int32_t end) {
  if (begin == end) return;
  const auto rows =
      std::span(sample_rows_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  ops.Sample({.logits = {logits_->data(), n_logit_rows, traits().vocab, traits().vocab},
              .rows = rows,
              .tokens = drawn_.data() + begin,
              .logprobs = logprobs_.data() + begin});
}

// A network that makes several guesses in a pass gives the logits of all of them at once, if they
// fit: their draws follow each other, because each depends on the tokens before it.
absl::Status DraftRunner::RunPass(kernels::Device& device, const Step& step, const DraftPass& pass,
                                  int32_t guess, StepResult* result) {
  const int64_t start_ns = DraftNowNs();
  const int32_t head = guess % traits().guesses_per_pass;
  if (head == 0) {
    const int32_t wanted = chains_.empty() ? 1 : chains_.front().num_wanted;
    guesses_at_once_ = std::min(traits().guesses_per_pass, wanted);
    if (guesses_at_once_ * pass.n_chains > DraftLogits::kMaxRows) guesses_at_once_ = 1;
    rows_per_guess_ = pass.n_chains;
  }
  const bool has_logits = head > 0 && head < guesses_at_once_;
  const int32_t n_drawn =
      BuildRows(step.sampler, pass.n_chains, has_logits ? head * rows_per_guess_ : 0);
  HEDDLE_RETURN_IF_ERROR(device.Run([&](kernels::Ops& ops) {
    if (has_logits) return SampleRows(ops, guesses_at_once_ * rows_per_guess_, 0, n_drawn);
    if (head == 0) parts_.network->Forward(ops, pass);
    int32_t at = 0;
    for (int32_t first = 0; first < pass.n_chains && n_drawn > 0; first += DraftLogits::kMaxRows) {
      DraftLogits logits{.first_chain = first,
                         .n_chains = std::min(DraftLogits::kMaxRows, pass.n_chains - first),
                         .first_guess = head,
                         .n_guesses = head == 0 ? guesses_at_once_ : 1};
      const int32_t rows = logits.n_chains * logits.n_guesses;
      logits.out = {logits_->data(), rows, traits().vocab, traits().vocab};
      parts_.network->Logits(ops, logits);
      const int32_t begin = at;
      const int32_t end_chain = first + logits.n_chains;
      while (at < n_drawn && sampled_chain_[static_cast<size_t>(at)] < end_chain) ++at;
      SampleRows(ops, rows, begin, at);
    }
  }));
  TakeGuesses(n_drawn);
  result->draft_times.push_back({.rows = guess == 0 ? pass.n_rows : pass.n_chains,
                                 .is_first = guess == 0,
                                 .ns = DraftNowNs() - start_ns});
  return absl::OkStatus();
}

// Guesses are drawn as the model draws, with the random number of their position and all that
// shapes its distribution: where both agree on the distribution they draw the same token. A drafter
// with a vocabulary of its own knows no edits and masks. Returns the number of rows; the chains'
// logits are in blocks that begin at `first_logit_row`.
int32_t DraftRunner::BuildRows(SamplerState& sampler, int32_t n_chains, int32_t first_logit_row) {
  const bool is_whole_vocab = traits().target_ids.empty() && traits().vocab >= limits_.vocab;
  sampler.ResetEdits();
  sample_rows_.clear();
  sampled_chain_.clear();
  for (int32_t c = 0; c < n_chains; ++c) {
    Chain& chain = chains_[static_cast<size_t>(c)];
    const bool has_all = static_cast<int32_t>(chain.guesses.size()) >= chain.num_wanted;
    if (chain.is_over || has_all) continue;
    auto row =
        sampler.GuessRow(chain.next, chain.guesses, first_logit_row + c % DraftLogits::kMaxRows);
    chain.is_over = !row.has_value();
    if (chain.is_over) continue;
    row->num_top = 0;
    if (chain.guesses.empty() && keeps_shares_ && sampler.RejectsGuesses(chain.next.id)) {
      chain.keeps_shares = shares_.Reserve(chain.next.id, chain.num_wanted, traits().vocab);
    }
    if (chain.keeps_shares) GuessShares::BeginGuess(traits().vocab, &chain, &*row);
    if (!is_whole_vocab) row->edits = {};
    if (traits().vocab != limits_.vocab) row->allowed = nullptr;  // a mask is as wide as the model
    if (!traits().guessable.empty()) row->allowed = GuessableOf(c, row->allowed);
    sample_rows_.push_back(*row);
    sampled_chain_.push_back(c);
  }
  drawn_.resize(sample_rows_.size());
  logprobs_.resize(sample_rows_.size());
  return static_cast<int32_t>(sample_rows_.size());
}

// The tokens that the drafter can guess and `allowed`, unless it is null, allows too.
const uint32_t* DraftRunner::GuessableOf(int32_t chain, const uint32_t* allowed) {
  const std::vector<uint32_t>& own = traits().guessable;
  if (allowed == nullptr) return own.data();
  masks_.resize(std::max(masks_.size(), chains_.size() * own.size()));
  uint32_t* both = masks_.data() + static_cast<size_t>(chain) * own.size();
  for (size_t i = 0; i < own.size(); ++i) both[i] = own[i] & allowed[i];
  return both;
}

void DraftRunner::TakeGuesses(int32_t n_drawn) {
  int32_t num_tokens = 0;
  int32_t num_free = 0;  // rows from which some token must come
  for (int32_t i = 0; i < n_drawn; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool is_own = sample_rows_[at].allowed == traits().guessable.data();
    num_free += traits().guessable.empty() || is_own ? 1 : 0;
    Chain& chain = chains_[static_cast<size_t>(sampled_chain_[at])];
    TokenId token = drawn_[at];
    if (token >= 0 && !traits().target_ids.empty()) {
      token = traits().target_ids[static_cast<size_t>(token)];
    }
    num_tokens += token >= 0 ? 1 : 0;
    chain.is_over = token < 0 || token >= limits_.vocab;
    if (chain.is_over && chain.keeps_shares) chain.shares.pop_back();
    if (chain.is_over) continue;
    const float probability = std::exp(std::min(0.0f, logprobs_[at]));
    chain.guesses.push_back(token);
    chain.probabilities.push_back(probability);
    chain.survival *= probability;
    chain.is_over = chain.survival < chain.min_survival;
  }
  // A grammar may forbid all tokens that the drafter can guess.
  if (num_tokens + num_free > 0)
    passes_without_draw_ = num_tokens > 0 ? 0 : passes_without_draw_ + 1;
}

// The chains that a further guess is wanted of are among the first so many.
int32_t DraftRunner::NumGoingOn(int32_t guess) const {
  auto count = static_cast<int32_t>(chains_.size());
  while (count > 0) {
    const Chain& last = chains_[static_cast<size_t>(count) - 1];
    if (!last.is_over && last.num_wanted > guess) break;
    --count;
  }
  return count;
}

void DraftRunner::Report(StepResult* result) {
  for (Chain& chain : chains_) {
    if (chain.keeps_shares) shares_.Keep(&chain);
    if (chain.guesses.empty()) continue;
    result->guessed.push_back({.id = chain.next.id,
                               .guess_begin = static_cast<int32_t>(result->guesses.size()),
                               .num_guesses = static_cast<int32_t>(chain.guesses.size())});
    for (size_t i = 0; i < chain.guesses.size(); ++i) {
      result->guesses.push_back({chain.guesses[i], chain.probabilities[i]});
    }
  }
}

}  // namespace heddle::engine
