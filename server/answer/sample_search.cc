#include "server/answer/sample_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/status.h"
#include "engine/text/regex.h"
#include "server/answer/json_slot.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxSlots = 4096;      // matches that are looked at in one text
constexpr size_t kMaxSlotBytes = 8192;  // of the end of a text, where its slot is looked for
constexpr double kSlotSeconds = 0.01;   // of a thread that has others to serve

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

struct SampleSearch::Slot {
  engine::text::Regex regex;
};

// The incomplete beta function at 1/2 with whole arguments: a sum of binomial probabilities.
double ProbabilityOfMajority(int64_t wins, int64_t losses) {
  const auto tosses = static_cast<double>(wins + losses + 1);
  double sum = 0;
  for (int64_t heads = 0; heads <= wins; ++heads) {
    const auto k = static_cast<double>(heads);
    sum += std::exp(std::lgamma(tosses + 1) - std::lgamma(k + 1) - std::lgamma(tosses - k + 1) -
                    tosses * std::log(2.0));
  }
  return sum;
}

double PairSimilarity(std::span<const engine::TokenId> a, std::span<const engine::TokenId> b) {
  using Pair = std::pair<engine::TokenId, engine::TokenId>;
  const auto pairs = [](std::span<const engine::TokenId> tokens) {
    std::set<Pair> all;
    for (size_t i = 1; i < tokens.size(); ++i) all.emplace(tokens[i - 1], tokens[i]);
    return all;
  };
  const std::set<Pair> first = pairs(a), second = pairs(b);
  if (first.empty() || second.empty()) return 0;
  const auto common = std::count_if(first.begin(), first.end(),
                                    [&second](const Pair& pair) { return second.contains(pair); });
  const auto all = first.size() + second.size() - static_cast<size_t>(common);
  return static_cast<double>(common) / static_cast<double>(all);
}

SampleSearch::SampleSearch(const SearchOptions& options)
    : options_(options), next_halving_(static_cast<size_t>(options.prune_tokens)) {}

SampleSearch::~SampleSearch() = default;

absl::StatusOr<std::unique_ptr<SampleSearch>> SampleSearch::Make(const SearchOptions& options) {
  std::unique_ptr<SampleSearch> search(new SampleSearch(options));
  if (options.answer_at.has_value() && !IsJsonPointer(*options.answer_at)) {
    return absl::InvalidArgumentError(
        "the place of the answer is no JSON pointer, such as /answer");
  }
  if (options.answer.empty()) return search;
  HEDDLE_ASSIGN_OR_RETURN(engine::text::Regex regex, engine::text::Regex::Compile(options.answer));
  search->slot_ = std::make_unique<Slot>(Slot{std::move(regex)});
  return search;
}

int32_t SampleSearch::NextWave() const {
  if (num_open_ > 0 || done()) return 0;
  const int32_t left = options_.samples - num_begun();
  // Samples that are compared with each other run at the same time.
  return options_.kind == SearchKind::kBestOfN ? left : std::min(left, options_.wave);
}

void SampleSearch::Begin(int32_t count) {
  samples_.resize(samples_.size() + static_cast<size_t>(count));
  num_open_ += count;
}

void SampleSearch::Take(size_t index, std::span<const engine::TokenId> tokens, double sum_logprob,
                        std::vector<size_t>* cut) {
  Sample& sample = samples_[index];
  if (!sample.is_open) return;
  sample.tokens.insert(sample.tokens.end(), tokens.begin(), tokens.end());
  sample.sum_logprob += sum_logprob;
  if (options_.prune_tokens == 0) return;
  if (options_.kind == SearchKind::kBestOfN) return CutUnlikely(cut);
  const auto step = static_cast<size_t>(options_.prune_tokens);
  if (sample.tokens.size() < sample.looked_at + step) return;
  sample.looked_at = sample.tokens.size();
  CutSimilar(index, cut);
}

// Cuts the sample if an earlier one, or one that has finished, has written the same.
void SampleSearch::CutSimilar(size_t index, std::vector<size_t>* cut) {
  Sample& sample = samples_[index];
  const size_t window = static_cast<size_t>(options_.prune_tokens);
  const auto recent = std::span(sample.tokens).last(window);
  for (size_t i = 0; i < samples_.size(); ++i) {
    const Sample& other = samples_[i];
    const bool may_stand_for = i != index && other.follows == SIZE_MAX &&
                               (other.is_finished || (other.is_open && i < index));
    const size_t length = std::min(other.tokens.size(), sample.tokens.size());
    if (!may_stand_for || length < window) continue;
    const auto theirs = std::span(other.tokens).subspan(length - window, window);
    if (PairSimilarity(recent, theirs) < options_.similarity) continue;
    sample.follows = i;
    return Cut(index, cut);
  }
}

// Successive halving: where all open samples have come as far, the less likely half is cut.
void SampleSearch::CutUnlikely(std::vector<size_t>* cut) {
  std::vector<size_t> open;
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (!samples_[i].is_open) continue;
    if (samples_[i].tokens.size() < next_halving_) return;
    open.push_back(i);
  }
  if (open.size() < 2) return;
  next_halving_ *= 2;
  std::stable_sort(open.begin(), open.end(), [this](size_t a, size_t b) {
    return MeanLogprob(samples_[a]) > MeanLogprob(samples_[b]);
  });
  for (size_t i = (open.size() + 1) / 2; i < open.size(); ++i) Cut(open[i], cut);
}

void SampleSearch::Cut(size_t index, std::vector<size_t>* cut) {
  samples_[index].is_open = false;
  --num_open_;
  ++num_pruned_;
  cut->push_back(index);
}

void SampleSearch::End(size_t index, std::string_view text) {
  Sample& sample = samples_[index];
  if (!sample.is_open) return;
  sample.is_open = false;
  sample.is_finished = true;
  --num_open_;
  ++num_finished_;
  sample.vote = std::string(Trimmed(text));
  if (options_.answer_at.has_value()) {
    sample.vote = JsonSlot(text, *options_.answer_at).value_or("");
  }
  if (slot_ == nullptr) return;
  size_t begin = text.size() - std::min(text.size(), kMaxSlotBytes);
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  engine::text::WorkBudget budget(text.size(), kSlotSeconds);
  const absl::StatusOr<std::vector<std::string_view>> found =
      slot_->regex.FirstGroups(text.substr(begin), kMaxSlots, &budget);
  sample.vote = found.ok() && !found->empty() ? std::string(Trimmed(found->back())) : "";
}

double SampleSearch::MeanLogprob(const Sample& sample) const {
  return sample.sum_logprob / static_cast<double>(std::max<size_t>(1, sample.tokens.size()));
}

double SampleSearch::Worth(const Sample& sample) const {
  return sample.reward.value_or(MeanLogprob(sample));
}

std::vector<size_t> SampleSearch::finished() const {
  std::vector<size_t> all;
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (samples_[i].is_finished) all.push_back(i);
  }
  return all;
}

void SampleSearch::SetRewards(std::span<const size_t> samples, std::span<const double> rewards) {
  for (size_t i = 0; i < samples.size(); ++i) samples_[samples[i]].reward = rewards[i];
}

// A sample that was cut for another one votes as that one.
std::map<std::string, SampleSearch::Votes> SampleSearch::Count() const {
  std::map<std::string, Votes> all;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    const Sample& voter = sample.follows == SIZE_MAX ? sample : samples_[sample.follows];
    const bool has_slot = slot_ != nullptr || options_.answer_at.has_value();
    if (!voter.is_finished || (has_slot && voter.vote.empty())) continue;
    Votes& votes = all[voter.vote];
    const bool is_first = votes.count == 0 && sample.is_finished;
    if (is_first) votes.first = i;
    if (votes.count++ == 0 && !is_first) votes.first = sample.follows;
  }
  return all;
}

bool SampleSearch::IsSettled() const {
  if (options_.kind == SearchKind::kBestOfN) return false;
  int64_t first = 0, second = 0;
  for (const auto& [vote, votes] : Count()) {
    second = std::max(second, std::min(first, votes.count));
    first = std::max(first, votes.count);
  }
  if (first == 0) return false;
  const auto open = std::count_if(samples_.begin(), samples_.end(), [this](const Sample& sample) {
    return !(sample.follows == SIZE_MAX ? sample : samples_[sample.follows]).is_finished;
  });
  if (first > second + options_.samples - num_begun() + open) return true;
  return options_.confidence < 1 && first > 1 &&
         ProbabilityOfMajority(first, second) >= options_.confidence;
}

bool SampleSearch::done() const {
  return (num_open_ == 0 && num_begun() >= options_.samples) || IsSettled();
}

// The likeliest sample or the one with the highest reward, or the first one of those with most
// votes; of equal counts, the one that came first.
size_t SampleSearch::best() const {
  if (options_.kind == SearchKind::kSelfConsistency) {
    Votes leading;
    for (const auto& [vote, votes] : Count()) {
      const bool leads = votes.count > leading.count ||
                         (votes.count == leading.count && votes.first < leading.first);
      if (leads) leading = votes;
    }
    if (leading.count > 0) return leading.first;
  }
  size_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (!samples_[i].is_finished || Worth(samples_[i]) <= most) continue;
    best = i;
    most = Worth(samples_[i]);
  }
  return best;
}

int64_t SampleSearch::votes_of_best() const {
  int64_t most = 0;
  for (const auto& [vote, votes] : Count()) most = std::max(most, votes.count);
  return most;
}

int64_t SampleSearch::saved_tokens() const {
  int64_t of_finished = 0, drawn = 0;
  for (const Sample& sample : samples_) {
    const auto count = static_cast<int64_t>(sample.tokens.size());
    drawn += count;
    if (sample.is_finished) of_finished += count;
  }
  if (num_finished_ == 0) return 0;
  const int64_t all = of_finished * options_.samples / num_finished_;
  return std::max<int64_t>(0, all - drawn);
}

}  // namespace heddle::server
