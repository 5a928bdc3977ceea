// Beam search against all answers that there are, of a small model that is a table.
#include "server/answer/beam_search.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "catch2/catch.hpp"

namespace heddle::server {
namespace {

using engine::TokenId;
using engine::TokenLogprob;

constexpr TokenId kStop = 0;

// Log-probabilities of `vocab` tokens behind a text, which depend on all of it; likeliest first.
std::vector<TokenLogprob> Next(const std::vector<TokenId>& text, int32_t vocab, uint64_t seed) {
  for (const TokenId token : text) seed = seed * 6364136223846793005u + uint64_t(token) + 1442695u;
  std::mt19937_64 random(seed);
  std::vector<double> weights;
  double sum = 0;
  for (int32_t i = 0; i < vocab; ++i) {
    weights.push_back(std::exp(std::normal_distribution<double>(0, 1)(random)));
    sum += weights.back();
  }
  std::vector<TokenLogprob> next;
  for (int32_t i = 0; i < vocab; ++i) next.push_back({i, float(std::log(weights[i] / sum))});
  std::sort(next.begin(), next.end(),
            [](const TokenLogprob& a, const TokenLogprob& b) { return a.logprob > b.logprob; });
  return next;
}

std::vector<TokenId> TextOf(const BeamSearch::Beam& beam) {
  std::vector<TokenId> text;
  for (const engine::SampledToken& token : beam.tokens) text.push_back(token.token);
  return text;
}

// Runs a search to its end; returns the steps.
int Run(BeamSearch* search, int32_t vocab, uint64_t seed) {
  int steps = 0;
  for (; !search->done(); ++steps) {
    std::vector<std::vector<TokenLogprob>> next;
    for (const BeamSearch::Beam& beam : search->beams()) {
      next.push_back(Next(TextOf(beam), vocab, seed));
      next.back().resize(std::min<size_t>(next.back().size(), search->num_alternatives()));
    }
    search->Advance(next);
  }
  return steps;
}

struct Answer {
  std::vector<TokenId> text;
  double sum;
};

void AllAnswers(std::vector<TokenId>* text, double sum, int32_t vocab, uint64_t seed,
                size_t max_tokens, std::vector<Answer>* all) {
  for (const TokenLogprob& token : Next(*text, vocab, seed)) {
    text->push_back(token.token);
    if (token.token == kStop || text->size() == max_tokens) {
      all->push_back({*text, sum + token.logprob});
    } else {
      AllAnswers(text, sum + token.logprob, vocab, seed, max_tokens, all);
    }
    text->pop_back();
  }
}

TEST_CASE("A search as wide as the tree finds the best answers of all", "[answer]") {
  constexpr int32_t kVocab = 4, kLength = 5;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const double penalty : {0.0, 1.0, 2.0, -1.0}) {
      std::vector<TokenId> text;
      std::vector<Answer> all;
      AllAnswers(&text, 0, kVocab, seed, kLength, &all);
      const auto score = [penalty](const Answer& answer) {
        return answer.sum / std::pow(double(answer.text.size()), penalty);
      };
      std::sort(all.begin(), all.end(),
                [&](const Answer& a, const Answer& b) { return score(a) > score(b); });
      BeamSearch search(
          {.width = 400, .length_penalty = penalty, .max_tokens = kLength, .stop_tokens = {kStop}});
      Run(&search, kVocab, seed);
      const std::vector<BeamSearch::Beam> best = search.Best(5);
      REQUIRE(best.size() == 5);
      for (size_t i = 0; i < best.size(); ++i) {
        INFO("seed " << seed << " penalty " << penalty << " answer " << i);
        CHECK(TextOf(best[i]) == all[i].text);
        CHECK(best[i].sum_logprob == Approx(all[i].sum));
        CHECK(best[i].stopped == (all[i].text.back() == kStop));
      }
    }
  }
}

TEST_CASE("A search of one beam takes the likeliest token each time", "[answer]") {
  BeamSearch search({.width = 1, .max_tokens = 12, .stop_tokens = {99}});
  Run(&search, 8, 7);
  std::vector<TokenId> want;
  while (want.size() < 12) want.push_back(Next(want, 8, 7)[0].token);
  CHECK(TextOf(search.Best(1)[0]) == want);
}

TEST_CASE("An early end changes no answer", "[answer]") {
  int early = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    BeamSearch search(
        {.width = 3, .length_penalty = 0.5, .max_tokens = 30, .stop_tokens = {kStop}});
    early += Run(&search, 5, seed) < 30 ? 1 : 0;
    // The same search by hand, to the end.
    std::vector<Answer> beams = {{{}, 0}}, ended;
    for (int length = 1; length <= 30; ++length) {
      std::vector<Answer> next, kept;
      for (const Answer& beam : beams) {
        for (const TokenLogprob& token : Next(beam.text, 5, seed)) {
          Answer longer = beam;
          longer.text.push_back(token.token);
          longer.sum += token.logprob;
          next.push_back(longer);
        }
      }
      std::stable_sort(next.begin(), next.end(),
                       [](const Answer& a, const Answer& b) { return a.sum > b.sum; });
      for (const Answer& answer : next) {
        if (kept.size() == 3) break;
        (answer.text.back() == kStop ? ended : kept).push_back(answer);
      }
      beams = kept;
    }
    ended.insert(ended.end(), beams.begin(), beams.end());
    const auto score = [](const Answer& a) { return a.sum / std::sqrt(double(a.text.size())); };
    std::stable_sort(ended.begin(), ended.end(),
                     [&](const Answer& a, const Answer& b) { return score(a) > score(b); });
    const std::vector<BeamSearch::Beam> best = search.Best(3);
    for (size_t i = 0; i < 3; ++i) CHECK(TextOf(best[i]) == ended[i].text);
  }
  CHECK(early > 20);
}

TEST_CASE("No answer ends before min_tokens, and there may be fewer than asked for", "[answer]") {
  BeamSearch search({.width = 4, .min_tokens = 3, .max_tokens = 6, .stop_tokens = {kStop}});
  Run(&search, 3, 5);
  for (const BeamSearch::Beam& beam : search.Best(4)) CHECK(beam.tokens.size() > 3);
  BeamSearch only({.width = 4, .max_tokens = 2, .stop_tokens = {kStop}});
  only.Advance(std::vector<std::vector<TokenLogprob>>{{{kStop, -0.1f}}});
  CHECK(only.done());
  CHECK(only.Best(4).size() == 1);
}

}  // namespace
}  // namespace heddle::server
