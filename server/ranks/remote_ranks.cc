#include "server/ranks/remote_ranks.h"

#include <optional>

#include "base/status.h"
#include "engine/adapter/image_codec.h"
#include "engine/model/rank_binding.h"

namespace heddle::server {

RemoteRanks::~RemoteRanks() { head_->Close("the head has ended"); }

int32_t RemoteRanks::world() const { return head_->world(); }
absl::Status RemoteRanks::status() const { return head_->StatusForClients(); }
bool RemoteRanks::may_regroup() const { return head_->may_regroup(); }

absl::Status RemoteRanks::Regroup(kernels::Device& device) {
  HEDDLE_RETURN_IF_ERROR(head_->Regroup(device));
  encoder_ = engine::PlanEncoder(limits_);
  steps_.clear();
  halves_ = 0;
  return absl::OkStatus();
}

void RemoteRanks::Begin(const engine::StepPlan& plan, Adapters adapters) {
  if (bound_ != std::this_thread::get_id()) {
    bound_ = std::this_thread::get_id();
    static_cast<void>(engine::BindThisThread(head_->own_cpus()));  // worked when it was loaded
  }
  for (const auto& image : adapters) {
    for (int32_t rank = 1; rank < world(); ++rank) {
      ranks::v1::FromHead part;
      engine::EncodeImage(*image, rank, plan, part.mutable_adapter());
      head_->SendTo(rank, part);
    }
  }
  message_.clear();
  encoder_.Encode(plan, &message_);
  ranks::v1::FromHead message;
  message.set_plan(message_);
  head_->BeginHalf(message, plan.step);
  ++halves_;
  steps_.push_back({.layers_end = halves_, .logits_end = halves_});
}

void RemoteRanks::BeginLogits() {
  ranks::v1::FromHead message;
  message.mutable_logits();
  head_->BeginHalf(message, std::nullopt);
  steps_.front().logits_end = ++halves_;
}

absl::Status RemoteRanks::Join(const absl::Status& head) {
  if (!head.ok()) return Fail(head);
  const Step step = steps_.front();
  steps_.pop_front();
  return head_->WaitForHalves(step.layers_end, step.logits_end);
}

absl::Status RemoteRanks::Fail(const absl::Status& why) {
  steps_.clear();
  return head_->Abort(why);
}

}  // namespace heddle::server
