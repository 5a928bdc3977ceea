// Messages of ranks, and a book of ranks on a clock of its own, for tests of what it does with
// them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "server/ranks/rank_roster.h"
#include "tests/parallel/head_identity.h"

namespace heddle::server::test {

using Phase = RankRoster::Phase;
using CallId = RankRoster::CallId;
using ranks::v1::FromRank;

inline constexpr uint64_t kSession = 4711;
inline constexpr uint64_t kHeadFamily = 815;

inline FromRank Hello(const RankIdentity& identity = kHead) {
  FromRank message;
  message.mutable_hello()->set_token(identity.token);
  message.mutable_hello()->set_build(identity.build);
  message.mutable_hello()->set_model_digest(identity.model_digest);
  message.mutable_hello()->set_isa(identity.isa);
  message.mutable_hello()->set_mesh_address("an address");
  return message;
}

inline FromRank HelloOf(int32_t held_rank, uint64_t session = kSession) {
  FromRank message = Hello();
  message.mutable_hello()->set_held_session(session);
  message.mutable_hello()->set_held_rank(held_rank);
  return message;
}

inline FromRank HelloOfProcess(uint64_t process, FromRank hello) {
  hello.mutable_hello()->set_process(process);
  return hello;
}

inline FromRank Offer(int32_t pages = 100) {
  FromRank message;
  ranks::v1::Offer& offer = *message.mutable_offer();
  offer.set_num_pages(pages);
  offer.set_max_context(640);
  offer.set_logit_rows(64);
  offer.set_kv_type("f16");
  offer.set_page_tokens(16);
  return message;
}

inline FromRank Ready() {
  FromRank message;
  message.mutable_ready();
  return message;
}

inline FromRank Done(uint64_t halves) {
  FromRank message;
  message.mutable_done()->set_halves(halves);
  return message;
}

inline FromRank Beat(uint64_t step, int64_t op) {
  FromRank message;
  message.mutable_beat()->set_step(step);
  message.mutable_beat()->set_op(op);
  return message;
}

inline engine::RankOffer OwnOffer() {
  engine::RankOffer own;
  own.limits.num_pages = 80;
  own.limits.num_host_pages = 0;
  own.limits.max_context = 1000;
  own.limits.page_tokens = 16;
  own.logit_rows = 64;
  own.kv_type = "f16";
  return own;
}

// A roster of `tp` x `pp` ranks on a clock of its own.
struct Group {
  explicit Group(int32_t tp, int32_t pp = 1, int32_t head_ranks = 1)
      : roster(kHead, {.layout = {.tp = tp, .pp = pp},
                       .timeout = std::chrono::milliseconds(1000),
                       .session = kSession,
                       .head_ranks = head_ranks,
                       .head_family = kHeadFamily}) {
    roster.Tick(now);
  }
  CallId Call(const std::string& host = "10.0.0.7") { return *roster.Begin(host, now); }
  absl::Status Say(CallId call, const FromRank& message) { return roster.Take(call, message, now); }
  std::string Refusal(const FromRank& hello) {
    const CallId call = Call();
    const absl::Status status = Say(call, hello);
    roster.End(call);
    return status.ToString();
  }
  // Lets time pass as the head does, which looks ten times a second.
  std::vector<CallId> Pass(int64_t ms) {
    std::vector<CallId> ended;
    for (int64_t at = 0; at < ms; at += 100) {
      now += std::chrono::milliseconds(100);
      for (const CallId call : roster.Tick(now)) ended.push_back(call);
    }
    return ended;
  }
  // All ranks beside the head, up to the phase of steps.
  std::vector<CallId> Run() {
    std::vector<CallId> calls;
    for (int32_t rank = 1; rank < roster.world(); ++rank) {
      calls.push_back(Call());
      REQUIRE(Say(calls.back(), Hello()).ok());
      REQUIRE(Say(calls.back(), Offer()).ok());
    }
    REQUIRE(roster.has_all_offers());
    REQUIRE(roster.Start(OwnOffer()).ok());
    for (const CallId call : calls) REQUIRE(Say(call, Ready()).ok());
    REQUIRE(roster.phase() == Phase::kRunning);
    return calls;
  }

  RankRoster roster;
  RankRoster::Time now{std::chrono::hours(5)};
};

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace heddle::server::test
