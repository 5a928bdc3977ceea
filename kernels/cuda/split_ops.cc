#include "kernels/cuda/split_ops.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int64_t kF32Bytes = 4;

template <typename T>
T* At(T* data, int64_t elements) {
  return data == nullptr ? nullptr : data + elements;
}

}  // namespace

void SplitOps::Note(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

absl::Status SplitOps::status() const {
  for (const absl::Status* status :
       {&status_, &halves_.first.status(), &halves_.second.status(), &halves_.whole.status()}) {
    if (!status->ok()) return *status;
  }
  return absl::OkStatus();
}

Tensor SplitOps::Rows(Tensor tensor, const Half& half, int64_t element_bytes) const {
  if (tensor.data == nullptr) return tensor;
  return {static_cast<uint8_t*>(tensor.data) + half.begin * tensor.stride * element_bytes,
          half.count, tensor.cols, tensor.stride};
}

template <typename Fn>
void SplitOps::Each(Fn fn) {
  if (joined_) return fn(halves_.whole, Half{0, halves_.rows});
  if (first_waits_) Note(runtime_.Wait(0, 1));
  first_waits_ = false;
  fn(halves_.first, Half{0, halves_.first_rows});
  kept_.push_back([this, fn] {
    fn(halves_.second, Half{halves_.first_rows, halves_.rows - halves_.first_rows});
  });
}

// Both phases are complete: the second one's ops follow; `between` runs at the end of each half.
void SplitOps::EndPhases(const std::function<void(CudaOps&)>& between) {
  if (first_waits_) Note(runtime_.Wait(0, 1));  // a phase without ops
  Note(runtime_.Signal(0));
  between(halves_.first);
  Note(runtime_.Wait(1, 0));
  for (const std::function<void()>& op : kept_) op();
  kept_.clear();
  Note(runtime_.Signal(1));
  between(halves_.second);
  first_waits_ = true;
}

void SplitOps::Join() {
  if (joined_) return;
  // Without a further phase, the second half's last signal would come before its attention.
  EndPhases([](CudaOps&) {});
  Note(runtime_.Wait(0, 1));
  joined_ = true;
}

void SplitOps::Attention(const AttentionArgs& args) {
  if (joined_) return halves_.whole.Attention(args);
  EndPhases([&args](CudaOps& ops) { ops.Attention(args); });
}

// Each half projects its results beside the other one's phase; that takes none of what phases
// share.
void SplitOps::AttendLatents(const LatentAttentionArgs& args) {
  if (joined_) return halves_.whole.AttendLatents(args);
  EndPhases([&args](CudaOps& ops) { ops.AttendLatents(args); });
}

// A row chooses from its own sequence, of which the other half has later rows, or earlier ones,
// whose phase came before.
void SplitOps::SelectPositions(const SelectArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    SelectArgs own = args;
    own.q = Rows(args.q, half);
    own.weights = Rows(args.weights, half, kF32Bytes);
    own.out = At(args.out, half.begin * ChosenPlaces{nullptr, args.top_k}.stride());
    ops.SelectPositions(own);
  });
}

bool SplitOps::SeesMoreThan(int32_t group, int32_t positions) const {
  return halves_.whole.SeesMoreThan(group, positions);
}

void SplitOps::Embed(const PackedWeight& table, float scale, Tensor out) {
  Each([this, &table, scale, out](CudaOps& ops, const Half& half) {
    ops.Embed(table, scale, Rows(out, half));
  });
}

void SplitOps::AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) {
  Each([this, &adapters, x](CudaOps& ops, const Half& half) {
    ops.AdaptEmbedding(adapters, Rows(x, half));
  });
}

void SplitOps::AddPositions(const PackedWeight& table, int32_t offset, Tensor x) {
  Each([this, &table, offset, x](CudaOps& ops, const Half& half) {
    ops.AddPositions(table, offset, Rows(x, half));
  });
}

void SplitOps::AddTokenTypes(const PackedWeight& table, Tensor x) {
  Each([this, &table, x](CudaOps& ops, const Half& half) {
    ops.AddTokenTypes(table, Rows(x, half));
  });
}

void SplitOps::AddSegments(const SegmentArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    SegmentArgs own = args;
    own.x = Rows(args.x, half);
    ops.AddSegments(own);
  });
}

// From here on tensors may be rows of logits, which are not rows of the step; lanes are joined by
// then.
void SplitOps::Norm(const NormArgs& args) {
  if (joined_) return halves_.whole.Norm(args);
  Each([this, args](CudaOps& ops, const Half& half) { ops.Norm(NormOf(args, half)); });
}

NormArgs SplitOps::NormOf(const NormArgs& args, const Half& half) const {
  const Half rows = RowsOf(args.x, half);
  NormArgs own = args;
  own.x = Rows(args.x, rows);
  own.residual = Rows(args.residual, rows);
  own.out = Rows(args.out, rows);
  return own;
}

SplitOps::Half SplitOps::RowsOf(const Tensor& tensor, const Half& half) const {
  const int64_t times = tensor.rows / halves_.rows;
  return {half.begin * times, half.count * times};
}

void SplitOps::Linear(const LinearArgs& args) {
  if (joined_) return halves_.whole.Linear(args);
  Each([this, args](CudaOps& ops, const Half& half) { ops.Linear(ProductOf(args, half)); });
}

LinearArgs SplitOps::ProductOf(const LinearArgs& args, const Half& half) const {
  LinearArgs own = args;
  own.x = Rows(args.x, half);
  own.out = args.out_f32 ? Rows(args.out, half, kF32Bytes) : Rows(args.out, half);
  if (args.norm.has_value()) own.norm = NormOf(*args.norm, half);
  return own;
}

void SplitOps::RopeAngles(const RopeAnglesArgs& args) {
  Each([args](CudaOps& ops, const Half& half) {
    RopeAnglesArgs own = args;
    own.cos_sin = At(args.cos_sin, half.begin * 2 * static_cast<int64_t>(args.inv_freq.size()));
    ops.RopeAngles(own);
  });
}

void SplitOps::RopeKvWrite(const RopeKvWriteArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) { ops.RopeKvWrite(HeadsOf(args, half)); });
}

RopeKvWriteArgs SplitOps::HeadsOf(const RopeKvWriteArgs& args, const Half& half) const {
  RopeKvWriteArgs own = args;
  own.q = Rows(args.q, half);
  own.k = Rows(args.k, half);
  own.v = Rows(args.v, half);
  own.cos_sin = At(args.cos_sin, half.begin * args.rotary_dim);
  return own;
}

void SplitOps::ProjectHeads(const LinearArgs& product, const RopeKvWriteArgs& heads) {
  Each([this, product, heads](CudaOps& ops, const Half& half) {
    ops.ProjectHeads(ProductOf(product, half), HeadsOf(heads, half));
  });
}

void SplitOps::Route(const RouteArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    RouteArgs own = args;
    own.logits = Rows(args.logits, half, kF32Bytes);
    own.experts = At(args.experts, half.begin * args.rule.top_k);
    own.weights = At(args.weights, half.begin * args.rule.top_k);
    ops.Route(own);
  });
}

void SplitOps::ExpertMix(const ExpertMixArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    const Half pairs = {half.begin * args.top_k, half.count * args.top_k};
    ExpertMixArgs own = args;
    own.x = Rows(args.x, half);
    own.experts = At(args.experts, pairs.begin);
    own.weights = At(args.weights, pairs.begin);
    own.inner = Rows(args.inner, pairs);
    own.rows = Rows(args.rows, pairs);
    own.out = Rows(args.out, half);
    ops.ExpertMix(own);
  });
}

void SplitOps::HeadLinear(const HeadLinearArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    HeadLinearArgs own = args;
    own.x = Rows(args.x, half);
    own.out = Rows(args.out, half);
    ops.HeadLinear(own);
  });
}

void SplitOps::GateRows(Tensor gate_f32, Tensor x) {
  Each([this, gate_f32, x](CudaOps& ops, const Half& half) {
    ops.GateRows(Rows(gate_f32, half, kF32Bytes), Rows(x, half));
  });
}

// A factor with a stride of 0 is the same for both.
void SplitOps::Multiply(Tensor factor, Tensor x) {
  Each([this, factor, x](CudaOps& ops, const Half& half) {
    ops.Multiply(Rows(factor, half), Rows(x, half));
  });
}

void SplitOps::PredictStreams(const StreamsArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    StreamsArgs own = args;
    own.streams = Rows(args.streams, half);
    own.factors = Rows(args.factors, half, kF32Bytes);
    ops.PredictStreams(own);
  });
}

void SplitOps::CorrectStreams(const StreamsArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    StreamsArgs own = args;
    own.streams = Rows(args.streams, half);
    own.factors = Rows(args.factors, half, kF32Bytes);
    own.computed = Rows(args.computed, half);
    ops.CorrectStreams(own);
  });
}

void SplitOps::MatchMagnitude(Tensor like, Tensor x) {
  Each([this, like, x](CudaOps& ops, const Half& half) {
    ops.MatchMagnitude(Rows(like, half), Rows(x, half));
  });
}

void SplitOps::SparseGate(const SparseGateArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    SparseGateArgs own = args;
    own.gate_up = Rows(args.gate_up, half);
    ops.SparseGate(own);
  });
}

void SplitOps::Sharpen(const SharpenArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    SharpenArgs own = args;
    own.x = Rows(args.x, half);
    ops.Sharpen(own);
  });
}

void SplitOps::Xielu(const XieluArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    XieluArgs own = args;
    own.x = Rows(args.x, half);
    ops.Xielu(own);
  });
}

void SplitOps::ShortConv(const ShortConvArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    ShortConvArgs own = args;
    own.bcx = Rows(args.bcx, half);
    own.out = Rows(args.out, half);
    ops.ShortConv(own);
  });
}

void SplitOps::Recurrence(const RecurrenceArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    RecurrenceArgs own = args;
    own.in = Rows(args.in, half);
    own.factors = Rows(args.factors, half);
    own.out = Rows(args.out, half);
    ops.Recurrence(own);
  });
}

void SplitOps::GateElements(Tensor gate, Tensor x) {
  Each([this, gate, x](CudaOps& ops, const Half& half) {
    ops.GateElements(Rows(gate, half), Rows(x, half));
  });
}

// The rows may be those of logits, which are no rows of the step.
void SplitOps::Scale(Tensor x, float factor) {
  if (joined_) return halves_.whole.Scale(x, factor);
  Each([this, x, factor](CudaOps& ops, const Half& half) {
    ops.Scale(Rows(x, RowsOf(x, half)), factor);
  });
}

void SplitOps::TokenShift(const TokenShiftArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    TokenShiftArgs own = args;
    own.x = Rows(args.x, half);
    own.out = Rows(args.out, half);
    ops.TokenShift(own);
  });
}

void SplitOps::TimeMix(const WkvArgs& args) {
  Each([this, args](CudaOps& ops, const Half& half) {
    WkvArgs own = args;
    for (Tensor* tensor :
         {&own.r, &own.k, &own.v, &own.w, &own.a, &own.m, &own.first_value, &own.gate, &own.out}) {
      *tensor = Rows(*tensor, half);
    }
    ops.TimeMix(own);
  });
}

void SplitOps::SquashElements(Squash kind, Tensor x) {
  Each(
      [this, kind, x](CudaOps& ops, const Half& half) { ops.SquashElements(kind, Rows(x, half)); });
}

void SplitOps::GatherLogitRows(Tensor x, Tensor out) {
  Join();
  halves_.whole.GatherLogitRows(x, out);
}

void SplitOps::CopyRows(Tensor x, Tensor out) {
  Each([this, x, out](CudaOps& ops, const Half& half) {
    ops.CopyRows(Rows(x, half), Rows(out, half));
  });
}

void SplitOps::SumRows(const SumRowsArgs& args) {
  Join();
  halves_.whole.SumRows(args);
}

void SplitOps::ScaleLogits(Tensor logits_f32, float scale, float softcap) {
  Join();
  halves_.whole.ScaleLogits(logits_f32, scale, softcap);
}

void SplitOps::Sample(const SampleArgs& args) {
  Join();
  halves_.whole.Sample(args);
}

void SplitOps::EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) {
  Each([this, &table, first_row, scale, out](CudaOps& ops, const Half& half) {
    ops.EmbedShare(table, first_row, scale, Rows(out, half));
  });
}

void SplitOps::AllReduce(const AllReduceArgs& args) {
  if (joined_) return halves_.whole.AllReduce(args);
  EndPhases([this, &args](CudaOps& ops) {
    const Half half = HalfOf(ops);
    AllReduceArgs own = args;
    own.partial = Rows(args.partial, half);
    own.residual = Rows(args.residual, half);
    own.out = Rows(args.out, half);
    if (args.norm.has_value()) own.norm = NormOf(*args.norm, half);
    ops.AllReduce(own);
  });
}

// Heads of all ranks are brought together in packed rows, in a buffer of attention's results: where
// the other half's may still be.
void SplitOps::GatherColumns(const GatherColumnsArgs& args) {
  Join();
  halves_.whole.GatherColumns(args);
}

}  // namespace heddle::kernels::cuda
