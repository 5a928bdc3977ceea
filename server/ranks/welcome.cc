#include "server/ranks/welcome.h"

#include <string>

#include "base/message.h"
#include "kernels/communicator.h"

namespace heddle::server {

ranks::v1::Welcome ToWelcome(const RankSettings& settings, int32_t rank) {
  ranks::v1::Welcome welcome;
  welcome.set_rank(rank);
  welcome.set_tp(settings.layout.tp);
  welcome.set_pp(settings.layout.pp);
  welcome.set_expert_parallel(settings.layout.expert_parallel);
  welcome.set_tp_invariant(settings.layout.invariant);
  for (const int32_t layers : settings.layout.stage_layers) welcome.add_stage_layers(layers);
  for (const double share : settings.layout.weights) welcome.add_tp_shares(share);
  welcome.set_rounds_rows(settings.wire == kernels::DType::kBF16);
  welcome.set_weights(settings.weights);
  welcome.set_kv_type(settings.kv_type);
  welcome.set_page_tokens(settings.page_tokens);
  welcome.set_max_batch_tokens(settings.max_batch_tokens);
  welcome.set_max_batch_seqs(settings.max_batch_seqs);
  welcome.set_max_context(settings.max_context);
  welcome.set_timeout_ms(settings.timeout.count());
  welcome.set_rejoin_ms(settings.rejoin.count());
  welcome.set_session(settings.session);
  welcome.set_adapter_max_rank(settings.adapter_max_rank);
  return welcome;
}

absl::StatusOr<RankSettings> FromWelcome(const ranks::v1::Welcome& welcome) {
  const auto has_sizes = [](int32_t count) { return count >= 1 && count <= kernels::kMaxRanks; };
  const bool is_layout = has_sizes(welcome.tp()) && has_sizes(welcome.pp()) &&
                         welcome.tp() * welcome.pp() <= kernels::kMaxRanks;
  if (!is_layout || welcome.rank() < 1 || welcome.rank() >= welcome.tp() * welcome.pp()) {
    return absl::InvalidArgumentError(
        base::StrCat("the head gave this process rank ", std::to_string(welcome.rank()), " of ",
                     std::to_string(welcome.tp()), " x ", std::to_string(welcome.pp())));
  }
  RankSettings settings;
  settings.layout.tp = welcome.tp();
  settings.layout.pp = welcome.pp();
  settings.layout.expert_parallel = welcome.expert_parallel();
  settings.layout.invariant = welcome.tp_invariant();
  settings.layout.stage_layers.assign(welcome.stage_layers().begin(), welcome.stage_layers().end());
  settings.layout.weights.assign(welcome.tp_shares().begin(), welcome.tp_shares().end());
  settings.wire = welcome.rounds_rows() ? kernels::DType::kBF16 : kernels::DType::kF32;
  settings.weights = welcome.weights();
  settings.kv_type = welcome.kv_type();
  settings.page_tokens = welcome.page_tokens();
  settings.max_batch_tokens = welcome.max_batch_tokens();
  settings.max_batch_seqs = welcome.max_batch_seqs();
  settings.max_context = welcome.max_context();
  settings.timeout = std::chrono::milliseconds(welcome.timeout_ms());
  settings.rejoin = std::chrono::milliseconds(welcome.rejoin_ms());
  settings.session = welcome.session();
  settings.adapter_max_rank = welcome.adapter_max_rank();
  return settings;
}

}  // namespace heddle::server
