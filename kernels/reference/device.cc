#include "kernels/device.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kernels/communicator.h"
#include "kernels/copy_page.h"
#include "kernels/host_memory.h"
#include "kernels/owned_batch.h"
#include "kernels/reference/reference.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels {
namespace {

class ReferenceOps final : public Ops {
 public:
  // `communicator` and `stages`: nullptr outside of groups and pipelines.
  ReferenceOps(const HostBatch& batch, Communicator* communicator, Communicator* stages)
      : batch_(batch), communicator_(communicator), stages_(stages) {}

  void Embed(const PackedWeight& table, float scale, Tensor out) override {
    reference::Embed(batch_, static_cast<const reference::Weight&>(table), scale, out);
  }
  void AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) override {
    reference::AdaptEmbedding(batch_, adapters, x);
  }
  void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) override {
    reference::AddPositions(batch_, static_cast<const reference::Weight&>(table), offset, x);
  }
  void AddTokenTypes(const PackedWeight& table, Tensor x) override {
    reference::AddTokenTypes(batch_, static_cast<const reference::Weight&>(table), x);
  }
  void AddSegments(const SegmentArgs& args) override { reference::AddSegments(batch_, args); }
  void Norm(const NormArgs& args) override { reference::Norm(batch_, args); }
  void Linear(const LinearArgs& args) override {
    if (args.norm.has_value()) Norm(*args.norm);
    reference::Linear(batch_, args);
  }
  void RopeAngles(const RopeAnglesArgs& args) override { reference::RopeAngles(batch_, args); }
  void RopeKvWrite(const RopeKvWriteArgs& args) override {
    reference::RopeKvWrite(batch_.OfGroup(args.cache.group), args);
  }
  void Attention(const AttentionArgs& args) override {
    reference::Attention(batch_.OfGroup(args.cache.group), args);
  }
  void TokenShift(const TokenShiftArgs& args) override {
    reference::TokenShift(batch_.OfGroup(args.cache.group), args);
  }
  void TimeMix(const WkvArgs& args) override {
    reference::TimeMix(batch_.OfGroup(args.cache.group), args);
  }
  void SquashElements(Squash kind, Tensor x) override { reference::SquashElements(kind, x); }
  void SelectPositions(const SelectArgs& args) override {
    reference::SelectPositions(batch_.OfGroup(args.cache.group), args);
  }
  bool SeesMoreThan(int32_t, int32_t) const override { return true; }
  void ShortConv(const ShortConvArgs& args) override {
    reference::ShortConv(batch_.OfGroup(args.cache.group), args);
  }
  void Recurrence(const RecurrenceArgs& args) override {
    reference::Recurrence(batch_.OfGroup(args.cache.group), args);
  }
  void Sharpen(const SharpenArgs& args) override { reference::Sharpen(batch_, args); }
  void Xielu(const XieluArgs& args) override { reference::Xielu(args); }
  void Multiply(Tensor factor, Tensor x) override { reference::Multiply(factor, x); }
  void PredictStreams(const StreamsArgs& args) override { reference::PredictStreams(args); }
  void CorrectStreams(const StreamsArgs& args) override { reference::CorrectStreams(args); }
  void MatchMagnitude(Tensor like, Tensor x) override { reference::MatchMagnitude(like, x); }
  void SparseGate(const SparseGateArgs& args) override { reference::SparseGate(args); }
  void GateElements(Tensor gate, Tensor x) override { reference::GateElements(gate, x); }
  void Scale(Tensor x, float factor) override { reference::ScaleLogits(x, factor, 0.0f); }
  void Route(const RouteArgs& args) override { reference::Route(args); }
  void ExpertMix(const ExpertMixArgs& args) override { reference::ExpertMix(batch_, args); }
  void HeadLinear(const HeadLinearArgs& args) override { reference::HeadLinear(batch_, args); }
  void GateRows(Tensor gate_f32, Tensor x) override { reference::GateRows(gate_f32, x); }
  void GatherLogitRows(Tensor x, Tensor out) override {
    reference::GatherLogitRows(batch_, x, out);
  }
  void CopyRows(Tensor x, Tensor out) override { reference::CopyRows(x, out); }
  void SumRows(const SumRowsArgs& args) override { reference::SumRows(args); }
  void ScaleLogits(Tensor logits_f32, float scale, float softcap) override {
    reference::ScaleLogits(logits_f32, scale, softcap);
  }
  void Sample(const SampleArgs& args) override { reference::Sample(args); }
  void EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) override {
    reference::EmbedShare(batch_, static_cast<const reference::Weight&>(table), first_row, scale,
                          out);
  }
  void AllReduce(const AllReduceArgs& args) override {
    reference::AllReduce(batch_, args, Group());
  }
  void GatherColumns(const GatherColumnsArgs& args) override {
    reference::GatherColumns(args, Group());
  }
  void SendRows(Tensor rows, int32_t to) override {
    HEDDLE_CHECK(stages_ != nullptr, "this device is no stage");
    static_cast<void>(stages_->Post(rows.data, rows.rows * rows.cols * 4, to));
  }
  void RecvRows(Tensor rows, int32_t from) override {
    HEDDLE_CHECK(stages_ != nullptr, "this device is no stage");
    static_cast<void>(stages_->Recv(rows.data, rows.rows * rows.cols * 4, from));
  }

 private:
  Communicator& Group() const {
    HEDDLE_CHECK(communicator_ != nullptr, "this device is in no group of ranks");
    return *communicator_;
  }

  const HostBatch& batch_;
  Communicator* const communicator_;
  Communicator* const stages_;
};

class ReferenceDevice final : public Device {
 public:
  std::string description() const override { return "reference (plain loops, 1 thread)"; }
  DType activation_dtype() const override { return DType::kF32; }
  bool HasKvType(DType) const override { return true; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return AllocateHost(bytes, "buffer");
  }

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(
      std::span<const WeightSource> sources) override {
    HEDDLE_ASSIGN_OR_RETURN(StackedShape shape, CheckSources(sources));
    auto weight = std::make_unique<reference::Weight>();
    weight->rows = shape.rows;
    weight->cols = shape.cols;
    weight->bytes = shape.rows * shape.cols * static_cast<int64_t>(sizeof(float));
    weight->values.resize(static_cast<size_t>(shape.rows * shape.cols));
    float* out = weight->values.data();
    for (const WeightSource& source : sources) {
      std::vector<uint8_t> buffer;
      for (int64_t r = 0; r < source.rows; ++r, out += source.cols) {
        DecodeSourceRow(source, SourceRows(source, r, 1, &buffer), out);
      }
    }
    return std::unique_ptr<PackedWeight>(std::move(weight));
  }

  absl::StatusOr<std::unique_ptr<PackedStack>> PackStack(std::span<const WeightSource> sources,
                                                         int32_t count) override {
    auto stack = std::make_unique<reference::Stack>();
    HEDDLE_RETURN_IF_ERROR(CheckStack(sources, count));
    HEDDLE_ASSIGN_OR_RETURN(stack->all, Pack(sources));
    stack->count = count;
    stack->rows = stack->all->rows / count;
    stack->cols = stack->all->cols;
    stack->bytes = stack->all->bytes;
    return std::unique_ptr<PackedStack>(std::move(stack));
  }

  absl::Status JoinGroup(std::shared_ptr<Communicator> communicator) override {
    communicator_ = std::move(communicator);
    return absl::OkStatus();
  }

  absl::Status JoinStages(std::shared_ptr<Communicator> stages) override {
    stages_ = std::move(stages);
    return absl::OkStatus();
  }

  bool samples_by_rejection() const override { return true; }
  absl::Status Plan(const HostBatch& batch) override { return batch_.Assign(batch); }

  absl::Status Run(const std::function<void(Ops&)>& body) override {
    ReferenceOps ops(batch_.view(), communicator_.get(), stages_.get());
    body(ops);
    return absl::OkStatus();
  }

  void CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) override {
    CopyHostPage(cache, from, to, num_tokens);
  }

 private:
  OwnedBatch batch_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Communicator> stages_;
};

}  // namespace

std::unique_ptr<Device> CreateReferenceDevice() { return std::make_unique<ReferenceDevice>(); }

}  // namespace heddle::kernels
