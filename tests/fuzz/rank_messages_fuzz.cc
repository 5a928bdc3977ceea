// Any messages of ranks to the head's book of them, on several calls, and of a head to a rank. The
// first byte chooses the side; then each message is a byte that says what happens, a byte that says
// on which call, a byte with a length, and so many bytes. Some messages are made right, so that
// what lies behind Hello is reached.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/parallel/plan_codec.h"
#include "server/ranks/rank_orders.h"
#include "server/ranks/rank_roster.h"
#include "server/ranks/welcome.h"

namespace {

using heddle::engine::RankOffer;
using heddle::server::RankIdentity;
using heddle::server::RankOrders;
using heddle::server::RankRoster;
using heddle::server::RankSettings;
using Phase = RankRoster::Phase;
namespace v1 = heddle::ranks::v1;

const RankIdentity kIdentity{.token = "token", .build = "b", .model_digest = 1, .isa = "avx2"};

class Input {
 public:
  explicit Input(std::string_view rest) : rest_(rest) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  std::string Bytes() {
    const size_t wanted = Byte();
    const size_t count = std::min(wanted, rest_.size());
    std::string taken(rest_.substr(0, count));
    rest_.remove_prefix(count);
    return taken;
  }

 private:
  std::string_view rest_;
};

RankOffer OwnOffer() {
  RankOffer own;
  own.limits.num_pages = 100;
  own.limits.page_tokens = 4;
  own.limits.max_context = 64;
  own.limits.max_batch_tokens = 32;
  own.limits.max_batch_seqs = 8;
  own.limits.num_host_pages = 4;
  own.limits.vocab = 1000;
  own.logit_rows = 64;
  own.kv_type = "f16";
  return own;
}

// A message that an honest rank would send, or, by chance, whatever the bytes are.
v1::FromRank MessageOf(uint8_t what, Input* input) {
  v1::FromRank message;
  switch (what) {
    case 0: {
      message.mutable_hello()->set_token(kIdentity.token);
      message.mutable_hello()->set_build(kIdentity.build);
      message.mutable_hello()->set_model_digest(kIdentity.model_digest);
      message.mutable_hello()->set_isa(kIdentity.isa);
      message.mutable_hello()->set_mesh_address("a");
      message.mutable_hello()->set_held_rank(input->Byte());
      const uint8_t caller = input->Byte();
      message.mutable_hello()->set_held_session(2 * (caller % 2));
      message.mutable_hello()->set_process(caller / 2 % 4);
      if (caller / 8 % 4 == 0) break;
      message.mutable_hello()->set_family(1 + caller / 8 % 4);
      message.mutable_hello()->set_family_rank(caller / 32 % 4);
      message.mutable_hello()->set_family_ranks(2 + caller / 128);
      break;
    }
    case 1:
      message.mutable_offer()->set_num_pages(input->Byte());
      message.mutable_offer()->set_max_context(input->Byte());
      message.mutable_offer()->set_logit_rows(64);
      message.mutable_offer()->set_page_tokens(4);
      message.mutable_offer()->set_kv_type("f16");
      break;
    case 2:
      message.mutable_ready();
      break;
    case 3:
      message.mutable_done()->set_halves(input->Byte());
      break;
    case 4:
      message.mutable_beat()->set_step(input->Byte());
      break;
    default:
      static_cast<void>(message.ParseFromString(input->Bytes()));
  }
  return message;
}

void Check(const RankRoster& roster) {
  std::set<RankRoster::CallId> calls;
  for (const auto& [rank, call] : roster.ranks()) {
    const RankRoster::Member* member = roster.Find(call);
    HEDDLE_CHECK(member != nullptr && member->rank == rank, "a place of nobody");
    HEDDLE_CHECK(rank >= 1 && rank < roster.world(), "a place that there is not");
    HEDDLE_CHECK(calls.insert(call).second, "a call with two places");
    const int32_t tp = roster.world() > 0 ? roster.tp() : 1;
    HEDDLE_CHECK(member->first() >= 0 && member->first() / tp == rank / tp &&
                     (member->first() + member->family_ranks - 1) / tp == rank / tp,
                 "a process with ranks of two stages");
  }
  HEDDLE_CHECK((roster.phase() == Phase::kLost) == !roster.failure().ok(), "lost for no reason");
  const bool is_fixed = roster.phase() == Phase::kLoading || roster.phase() == Phase::kRunning;
  HEDDLE_CHECK(!is_fixed || roster.has_all_offers(), "a group that is not whole");
}

void FuzzHead(Input input) {
  RankSettings settings{.layout = {.tp = 1 + input.Byte() % 3, .pp = 1 + input.Byte() % 2},
                        .timeout = std::chrono::milliseconds(1000),
                        .session = 2};
  settings.head_ranks = 1 + input.Byte() % settings.layout.tp;
  RankRoster roster(kIdentity, settings);
  std::vector<RankRoster::CallId> calls = {0};
  RankRoster::Time now{std::chrono::hours(1)};
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    const RankRoster::CallId call = calls[input.Byte() % calls.size()];
    switch (what % 16) {
      case 6: {
        const auto begun = roster.Begin("host", now);
        if (begun.ok()) calls.push_back(*begun);
        break;
      }
      case 7:
        roster.End(call);
        break;
      case 8:
        now += std::chrono::milliseconds(input.Byte());
        for (const RankRoster::CallId silent : roster.Tick(now)) roster.End(silent);
        break;
      case 9:
        if (roster.phase() == Phase::kGathering && roster.has_all_offers()) {
          static_cast<void>(roster.Start(OwnOffer()));
        }
        break;
      case 10:
        roster.CountHalf();
        static_cast<void>(roster.AreDone(input.Byte(), input.Byte()));
        break;
      case 11:
        if (roster.phase() != Phase::kLost) break;
        for (const RankRoster::CallId each : calls) roster.End(each);
        roster.Regather(now);
        break;
      default: {
        const bool is_known = roster.Find(call) != nullptr && roster.Find(call)->rank > 0;
        const absl::Status status = roster.Take(call, MessageOf(what % 16, &input), now);
        if (!status.ok()) roster.End(call);
        HEDDLE_CHECK(!status.ok() || is_known || roster.Find(call)->rank > 0, "let in by nothing");
      }
    }
    Check(roster);
  }
}

void FuzzRank(Input input) {
  v1::FromHead message;
  if (message.ParseFromString(input.Bytes())) {
    const auto settings = heddle::server::FromWelcome(message.welcome());
    HEDDLE_CHECK(!settings.ok() || message.welcome().rank() < settings->layout.world(), "no place");
  }
  const RankOffer own = OwnOffer();
  heddle::engine::ExecutorLimits limits = own.limits;
  if (message.ParseFromString(input.Bytes())) {
    const auto start = heddle::server::FromStart(message.start(), own, 2);
    if (start.ok()) limits = start->limits;
    HEDDLE_CHECK(limits.num_pages <= own.limits.num_pages, "more than was offered");
  }
  RankOrders orders(limits, 1);
  uint64_t chain = 0;
  while (!input.empty()) {
    if (input.Byte() % 2 == 0) {
      std::string plan = "HPLN\x02" + input.Bytes();
      chain = heddle::engine::ChainChecksum(chain, plan);
      heddle::engine::ByteWriter(&plan).Word(chain);
      message.set_plan(plan);
    } else if (!message.ParseFromString(input.Bytes())) {
      continue;
    }
    const auto order = orders.Take(message);
    if (!order.ok()) return;
    const bool is_half = order->kind == RankOrders::Order::Kind::kStage ||
                         order->kind == RankOrders::Order::Kind::kLogits;
    HEDDLE_CHECK(is_half == (order->plan != nullptr), "an order without a plan");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(std::string_view(reinterpret_cast<const char*>(data), size));
  if (input.Byte() % 4 == 3) {
    FuzzRank(input);
  } else {
    FuzzHead(input);
  }
  return 0;
}
