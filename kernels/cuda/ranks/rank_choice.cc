#include "kernels/cuda/ranks/rank_choice.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "kernels/cuda/ranks/peer_params.h"

namespace heddle::kernels::cuda {
namespace {

// Each rank tells the others so much.
struct RankWords {
  char name[120];
  int32_t num_multiprocessors;
  int32_t has_hopper_code;
  int32_t activations;   // DType
  int32_t network;       // RankNetwork
  int32_t nccl_version;  // 0: it has none
  char why_no_nccl[200];
  uint64_t device;
};

template <size_t kSize>
void Put(absl::string_view text, char (&to)[kSize]) {
  std::memcpy(to, text.data(), std::min(text.size(), kSize - 1));
}

RankWords WordsOf(const DeviceInfo& device, const RankTraits& own) {
  RankWords words = {};
  Put(device.name, words.name);
  words.num_multiprocessors = device.num_multiprocessors;
  words.has_hopper_code = device.has_hopper_code ? 1 : 0;
  words.activations = static_cast<int32_t>(own.activations);
  words.network = static_cast<int32_t>(own.network);
  words.nccl_version = own.nccl.ok() ? own.nccl->version : 0;
  Put(own.nccl.status().message(), words.why_no_nccl);
  words.device = DeviceNumber(device.ordinal);
  return words;
}

absl::Status CheckKinds(std::span<const RankWords> all, size_t rank, const DeviceInfo& device,
                        const RankTraits& traits) {
  const RankWords& own = all[rank];
  const char* noun = traits.shares_layers ? "rank" : "stage";
  for (size_t r = 0; r < all.size(); ++r) {
    const RankWords& other = all[r];
    const bool are_equal = std::strcmp(own.name, other.name) == 0 &&
                           own.num_multiprocessors == other.num_multiprocessors &&
                           own.has_hopper_code == other.has_hopper_code;
    if (own.activations == other.activations && (are_equal || !traits.shares_layers)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "cuda:", device.ordinal, " (", device.name, ") and the ", other.name, " of ", noun, " ", r,
        own.activations != other.activations
            ? " have activations of different types"
            : " are of different kinds; GPUs that share layers have to be equal"));
  }
  return absl::OkStatus();
}

// Minor versions of NCCL may speak to each other otherwise.
int32_t Series(int32_t version) { return version / 100; }

// Why these ranks do not use NCCL; empty: they do.
std::string WhyNoNccl(std::span<const RankWords> all) {
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].network == static_cast<int32_t>(RankNetwork::kHost)) {
      return absl::StrCat("rank ", r, " of the group: --rank-network is host");
    }
    if (all[r].nccl_version == 0)
      return absl::StrCat("rank ", r, " of the group: ", all[r].why_no_nccl);
    if (Series(all[r].nccl_version) != Series(all[0].nccl_version)) {
      return absl::StrCat("rank ", r, " has NCCL ", NcclVersionText(all[r].nccl_version),
                          ", rank 0 has ", NcclVersionText(all[0].nccl_version));
    }
    for (size_t other = 0; other < r; ++other) {
      if (all[r].device == 0 || all[r].device != all[other].device) continue;
      return absl::StrCat("ranks ", other, " and ", r, " share a GPU, which NCCL refuses");
    }
  }
  return "";
}

absl::StatusOr<RankChoice> Choose(std::span<const RankWords> all) {
  const auto find = [&](RankNetwork network) {
    return std::find_if(all.begin(), all.end(), [network](const RankWords& one) {
      return one.network == static_cast<int32_t>(network);
    });
  };
  const auto nccl = find(RankNetwork::kNccl), host = find(RankNetwork::kHost);
  RankChoice choice = {.uses_nccl = false, .why_not = WhyNoNccl(all)};
  choice.uses_nccl = choice.why_not.empty();
  choice.must_use_nccl = nccl != all.end();
  if (nccl == all.end()) return choice;
  if (host != all.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank-network is nccl on rank ", nccl - all.begin(), " and host on rank ",
                     host - all.begin(), "; ranks that meet have the same"));
  }
  if (choice.uses_nccl) return choice;
  return absl::FailedPreconditionError(
      absl::StrCat("--rank-network is nccl: ", choice.why_not,
                   "; install NCCL (package libnccl2) on all machines, or use auto or host"));
}

}  // namespace

absl::StatusOr<RankChoice> AgreeOnRanks(Communicator& group, const DeviceInfo& device,
                                        const RankTraits& own) {
  const RankWords words = WordsOf(device, own);
  std::array<const void*, kMaxRanks> said{};
  const auto world = static_cast<size_t>(group.world());
  std::vector<RankWords> all(world);
  bool is_met = group.Exchange(&words, sizeof(words), sizeof(words), said);
  for (size_t r = 0; is_met && r < world; ++r) {
    if (said[r] != nullptr) std::memcpy(&all[r], said[r], sizeof(words));
    all[r].name[sizeof(words.name) - 1] = '\0';
    all[r].why_no_nccl[sizeof(words.why_no_nccl) - 1] = '\0';
  }
  is_met = is_met && group.Barrier();  // all have read this one's
  if (!is_met) return WhyAborted(group);
  HEDDLE_RETURN_IF_ERROR(CheckKinds(all, static_cast<size_t>(group.rank()), device, own));
  return Choose(all);
}

absl::StatusOr<std::string> WhyNotConnected(Communicator& group, const absl::Status& own) {
  struct Words {
    char text[300];
  };
  Words words = {};
  if (!own.ok()) Put(own.message(), words.text);
  std::array<const void*, kMaxRanks> said{};
  if (!group.Exchange(&words, sizeof(words), sizeof(words), said)) return WhyAborted(group);
  std::string why;
  for (size_t r = 0; why.empty() && r < static_cast<size_t>(group.world()); ++r) {
    Words other = {};
    if (said[r] != nullptr) std::memcpy(&other, said[r], sizeof(other));
    other.text[sizeof(other.text) - 1] = '\0';
    if (other.text[0] != '\0') why = absl::StrCat("rank ", r, " of the group: ", other.text);
  }
  if (!group.Barrier()) return WhyAborted(group);
  return why;
}

}  // namespace heddle::kernels::cuda
