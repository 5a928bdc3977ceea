// Layers whose rows have more than one stream, or inputs of their own: factors of elements,
// alternating updates, sparse gates.
#include "base/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

void CheckStreams(const StreamsArgs& args) {
  HEDDLE_CHECK(args.count >= 1 && args.count <= kMaxStreams && args.active >= 0 &&
                   args.active < args.count && args.streams.cols % args.count == 0,
               "a row has too many streams, or lacks the active one");
}

}  // namespace

void CudaOps::Multiply(Tensor factor, Tensor x) {
  if (!step_.status.ok() || x.rows == 0) return;
  Note(LaunchMultiply(factor, x, step_.activations, step_.stream), "multiplying elements");
}

void CudaOps::PredictStreams(const StreamsArgs& args) {
  CheckStreams(args);
  if (!step_.status.ok() || args.streams.rows == 0) return;
  Note(LaunchPredictStreams(args, step_.activations, step_.stream), "predicting streams");
}

void CudaOps::CorrectStreams(const StreamsArgs& args) {
  CheckStreams(args);
  if (!step_.status.ok() || args.streams.rows == 0) return;
  Note(LaunchCorrectStreams(args, step_.activations, step_.stream), "correcting streams");
}

void CudaOps::MatchMagnitude(Tensor like, Tensor x) {
  if (!step_.status.ok() || x.rows == 0) return;
  Note(LaunchMatchMagnitude(like, x, step_.activations, step_.stream), "matching magnitudes");
}

void CudaOps::SparseGate(const SparseGateArgs& args) {
  if (!step_.status.ok() || args.gate_up.rows == 0) return;
  Note(LaunchSparseGate(args, step_.activations, step_.stream), "sparse gates");
}

}  // namespace heddle::kernels::cuda
