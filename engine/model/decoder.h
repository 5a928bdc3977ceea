// The decoder forward: one function for all families, reading ModelSpec and calling Ops.
//
// Activations live in buffers taken at creation for max_batch_tokens rows; a forward allocates
// nothing. The residual stream is `x`; each block adds to it in its last matmul's epilogue, or
// after its own norm (see LayerSpec). Where the spec is a rank's part of a model, a block's last
// matmul gives this rank's part of a sum, which Ops::AllReduce completes and adds: the stream is
// the same on all ranks, bit for bit. Where it is a stage of a pipeline, the stream comes from the
// stage before and goes on to the next, unrounded; the last one returns the rows that need logits
// to the first. Thread-safety: none; owned by the executor. Source: Vaswani et al. 2017 (decoder),
// Touvron et al. 2023 (pre-norm, RoPE, SwiGLU).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/adapter_tables.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "kernels/device.h"

namespace heddle::engine {

class Decoder {
 public:
  // `spec` and `weights` must outlive the decoder.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(kernels::Device& device,
                                                         const ModelSpec& spec,
                                                         const ModelWeights& weights,
                                                         int32_t max_batch_tokens);

  // Runs the device's current batch (Device::Plan) through all layers, writing keys and values to
  // `cache`; afterwards hidden_rows() holds the normed hidden state of the batch's logit rows, in a
  // pipeline on stage 0 only. All ranks of all stages call it.
  void Forward(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows, const KvStorage& cache);

  // The halves of Forward: through this stage's layers, and, on stage 0 alone, from what leaves the
  // last one. The first half of later steps may run before the second one of a step, up to
  // ModelSpec::steps_in_flight in all.
  void RunStage(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows, const KvStorage& cache);
  void NormLogitRows(kernels::Ops& ops, int32_t n_logit_rows);

  // The middle of Forward alone, for networks that write the stream themselves and read what leaves
  // the last layer. `pair` [n_tokens, 2 hidden]: for layers with AttentionInput::kPair.
  void RunLayers(kernels::Ops& ops, int32_t n_tokens, const KvStorage& cache, kernels::Tensor pair);
  kernels::Tensor Stream(int32_t n_tokens) const;  // [n_tokens, hidden]
  // Writes each layer's keys and values of the batch's rows, whose attention inputs are `states`
  // [n_tokens, hidden] in all layers, and runs nothing else. REQUIRES: no layer has latent
  // attention or norms over all heads.
  void WriteKeys(kernels::Ops& ops, kernels::Tensor states, const KvStorage& cache);

  // Keeps, from the next Forward on, hidden states of all rows side by side
  // (DraftTraits::features). In a pipeline each stage sends those that it has to stage 0; of a
  // stage's ranks, which all have them, the first one does. RESOURCE_EXHAUSTED if the device lacks
  // the memory.
  absl::Status KeepFeatures(kernels::Device& device, std::span<const int32_t> features,
                            int32_t max_batch_tokens);
  // Whether the next Forward keeps them; true unless set.
  void set_keeps_features(bool keeps) { keeps_features_ = keeps; }
  // In a pipeline, on stage 0 and behind NormLogitRows, for a step that keeps them: puts those of
  // all stages side by side. `place`: kept_place() behind the step's RunStage.
  void CollectFeatures(kernels::Ops& ops, int32_t n_tokens, size_t place);
  size_t kept_place() const { return kept_place_; }
  // Those of the last Forward's rows, [n_tokens, features * hidden].
  kernels::Tensor Features(int32_t n_tokens) const;
  // Bytes that they take on all `n_stages` stages.
  static int64_t FeatureBytes(const ModelSpec& spec, size_t features, int32_t n_stages,
                              int32_t max_batch_tokens, kernels::DType dtype);

  // Its layers are those of the cache from this one on; 0 unless set.
  void SetFirstKvLayer(int32_t layer) { first_kv_layer_ = layer; }
  // Rows of all steps so far that ended before the last layer (decision 0145).
  int64_t rows_left_out() const { return rows_left_out_; }

  // The adapters of rows that have one; nullptr: rows have none. They must outlive the decoder.
  void SetAdapters(const AdapterTables* adapters) { adapters_ = adapters; }

  // Whether adapters that are loaded change NormLogitRows or Logits, which then read the device's
  // batch: it must be that of the rows.
  bool AdaptsLogits() const {
    return Adapters(kModelLayer, AdapterSite::kFinalNorm) != nullptr ||
           Adapters(kModelLayer, AdapterSite::kHead) != nullptr;
  }
  // Logits of hidden rows [first, first + logits.rows) into `logits` [n, vocab] F32. In a part of a
  // model, all ranks call it, and those that do not want the logits leave data == nullptr.
  void Logits(kernels::Ops& ops, int32_t first, kernels::Tensor logits);
  // Takes the memory for up to `rows` rows of a part's own logits; call it before Logits.
  absl::Status ReserveLogits(kernels::Device& device, int32_t rows);

  // Hidden row `row` of the last Forward, on the device: [hidden] of dtype(). Valid after Run.
  const void* HiddenRow(int32_t row) const;
  // The first `rows` of them, [rows, hidden].
  kernels::Tensor HiddenRows(int32_t rows) const { return View(*normed_, rows, spec_.hidden); }
  kernels::DType dtype() const { return dtype_; }

  // Bytes that Create takes for `max_batch_tokens` rows.
  static int64_t ActivationBytes(const ModelSpec& spec, int32_t max_batch_tokens,
                                 kernels::DType dtype);

 private:
  Decoder(const ModelSpec& spec, const ModelWeights& weights) : spec_(spec), weights_(weights) {}

  // A RoPE that some layers share, with the angles of this step.
  struct Rotation {
    RopeSpec spec;
    std::vector<float> inv_freq;
    std::unique_ptr<kernels::Buffer> cos_sin;  // [max_batch_tokens, rotary_dim] F32
  };

  // The input of a block: the stream or, where the layer norms first, rows that `norm` is to make.
  // The product that reads them applies the norm if it is their only reader; otherwise Normed does.
  struct BlockInput {
    kernels::Tensor x;
    std::optional<kernels::NormArgs> norm;
  };

  absl::Status AllocateBuffers(kernels::Device& device, int32_t max_batch_tokens);
  absl::Status PrepareRotations(kernels::Device& device, int32_t max_batch_tokens);
  void ComputeAngles(kernels::Ops& ops);
  void Attention(kernels::Ops& ops, int32_t layer, int32_t n_tokens, const KvStorage& cache);
  // Makes the product of query, key and value heads, rotates them, and writes the keys and values.
  // Returns the queries.
  kernels::Tensor MakeHeads(kernels::Ops& ops, int32_t layer, const kernels::LinearArgs& product,
                            const KvStorage& cache);
  // The heads among the columns of the product `out`.
  kernels::RopeKvWriteArgs HeadsOf(int32_t layer, kernels::Tensor out,
                                   const KvStorage& cache) const;
  // Norms the values of each head alone, without weights.
  void NormValues(kernels::Ops& ops, const AttentionSpec& attention, kernels::Tensor v);
  // The layer of the cache that holds the keys that this one reads.
  int32_t KvLayerOf(int32_t layer) const {
    const int32_t other = spec_.layers[layer].attention.kv_layer;
    return first_kv_layer_ + (other < 0 ? layer : other);
  }
  // Writes layer_inputs_ for all layers, from the tokens and their embeddings.
  void MakeLayerInputs(kernels::Ops& ops, kernels::Tensor embedding);
  // Adds the layer's input to the stream, and scales the stream, in layers that do so.
  void EndLayer(kernels::Ops& ops, int32_t layer, int32_t n_tokens);
  // The layer's own input's part of the stream: norm(out(act(in(x)) * own)), in normed_.
  kernels::Tensor OwnInput(kernels::Ops& ops, int32_t layer, kernels::Tensor x);
  // Alternating updates (ModelSpec::altup); functions that do nothing without them. Between layers
  // x_ has the active stream. Of these, the first makes all streams of the embedding, the second
  // and third are what a layer begins and ends with, and the last leaves their mean in x_.
  void BeginStreams(kernels::Ops& ops, kernels::Tensor x);
  void PredictStreams(kernels::Ops& ops, int32_t layer, int32_t n_tokens);
  void CorrectStreams(kernels::Ops& ops, int32_t layer, int32_t n_tokens);
  void EndStreams(kernels::Ops& ops, kernels::Tensor x);
  // The factors that a product makes of what the router says of x_.
  kernels::Tensor StreamFactors(kernels::Ops& ops, const AltUpWeights& weights,
                                const LinearWeights& product, int32_t n_tokens);
  kernels::Tensor OneStream(int32_t index, int32_t n_tokens);
  // Adds the block beside attention (LayerSpec::laurel_rank) to the stream. Returns what attention
  // reads.
  kernels::Tensor AddLaurel(kernels::Ops& ops, int32_t layer, const BlockInput& in);
  // The input [n_tokens, inner size] of an MLP's second product.
  kernels::Tensor Inner(int32_t layer, int32_t n_tokens) const;
  // The block of an MLP and experts with norms of their own (MoeSpec::apart).
  void ExpertsApart(kernels::Ops& ops, int32_t layer, int32_t n_tokens);
  void AddToStream(kernels::Ops& ops, kernels::Tensor added);
  void AttendWithoutHeads(kernels::Ops& ops, int32_t layer, int32_t n_tokens);
  const kernels::QueryRotation* RotationOf(int32_t layer) const;
  void LatentAttention(kernels::Ops& ops, int32_t layer, int32_t n_tokens, const KvStorage& cache);
  void Convolve(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens,
                const KvStorage& cache);
  void Recur(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens,
             const KvStorage& cache);
  // A memory unit (MemorySpec).
  void ReadMemory(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens);
  // The normed differences of a layer's pairs of heads [n_tokens, n_heads * head_dim], of what the
  // heads give, which is overwritten.
  kernels::Tensor Differences(kernels::Ops& ops, int32_t layer, kernels::Tensor attended);
  // A selective scan of rows [n_tokens, shape.cols()], of which it overwrites the channels.
  void Select(kernels::Ops& ops, int32_t layer, kernels::Tensor rows, kernels::Tensor out,
              const KvStorage& cache);
  // RWKV-7's time mix of the normed input, and the mix of neighbouring rows before it, or before
  // the MLP (one of them).
  void MixTime(kernels::Ops& ops, int32_t layer, kernels::Tensor in, const KvStorage& cache);
  kernels::Tensor Shift(kernels::Ops& ops, int32_t layer, kernels::Tensor x, const float* mix,
                        int32_t n_mixes, const KvStorage& cache);
  // Multiplies the columns of a recurrence's input by their factors.
  void ScaleSections(kernels::Ops& ops, const RecurrenceSpec& spec, kernels::Tensor rows) const;
  // Copies the stream that enters `layer` to the features that want it.
  void KeepStream(kernels::Ops& ops, int32_t layer, kernels::Tensor x);
  // The same for what leaves the last layer.
  void KeepFinal(kernels::Ops& ops, kernels::Tensor x);
  void PostFeatures(kernels::Ops& ops, int32_t n_tokens);
  bool IsHere(size_t feature) const { return spec_.StageOf(features_[feature]) == spec_.stage; }
  // The rows of a feature that this stage of a pipeline has, [n_tokens, hidden].
  kernels::Tensor KeptHere(size_t feature, size_t place, int32_t n_tokens) const;
  kernels::Tensor FeatureColumns(size_t feature, int32_t n_tokens) const;
  // Writes to qkv_ the rotated queries, with the keys' projection absorbed, and the row for the
  // cache. Returns how the keys' projection was absorbed.
  kernels::HeadLinearArgs LatentQuery(kernels::Ops& ops, int32_t layer, kernels::Tensor in,
                                      kernels::Tensor q, kernels::Tensor row,
                                      const KvStorage& cache);
  // Writes the keys of the layer's indexer, if it has one, and sets choice_. `latent`: the query's
  // latent vector.
  void ChoosePositions(kernels::Ops& ops, int32_t layer, kernels::Tensor in, kernels::Tensor latent,
                       const KvStorage& cache);
  // The two halves of the MLP: from the stream to its inner activations, and back. With parallel
  // residuals attention runs in between.
  void MlpIn(kernels::Ops& ops, int32_t layer, int32_t n_tokens, const KvStorage& cache);
  void MlpOut(kernels::Ops& ops, int32_t layer, int32_t n_tokens);
  // Chooses the experts of each row of `in`.
  void Route(kernels::Ops& ops, int32_t layer, kernels::Tensor in);
  // Adds to the stream the output of the experts that the block's input `in` is routed to.
  void Experts(kernels::Ops& ops, int32_t layer, kernels::Tensor in);
  // Adds to `out` what the chosen experts make of `in`, or with `adds` false writes it there.
  void MixExperts(kernels::Ops& ops, int32_t layer, kernels::Tensor in, kernels::Tensor out,
                  bool adds);
  // Norms q and k, each over all heads as one vector (QkNorm::kFullWidth).
  void NormQk(kernels::Ops& ops, int32_t layer, kernels::Tensor q, kernels::Tensor k);
  // The same where each rank has some of the heads, [borders[rank], borders[rank + 1]).
  void NormHeadsOfRanks(kernels::Ops& ops, kernels::Tensor own, const DeviceVector& weight,
                        std::span<const int32_t> borders, int32_t head_dim,
                        const kernels::AdapterMatrix* adapters);
  // Posts rows of a buffer to another stage, and puts another one in its place.
  void PostRows(kernels::Ops& ops, int32_t rows, int32_t to,
                std::unique_ptr<kernels::Buffer>* from);
  // Gathers the rows that need logits, and sends them to stage 0 if that is another one.
  void LeaveStage(kernels::Ops& ops, kernels::Tensor x, int32_t n_logit_rows);
  // Layers [begin, end).
  void RunRange(kernels::Ops& ops, int32_t begin, int32_t end, int32_t n_tokens,
                const KvStorage& cache);
  // The layer before which this step's rows without logits end; n_layers() if they go through all.
  int32_t NarrowsAt(const kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows) const;
  // Leaves the logit rows alone in the buffers that later layers read, and in the batch.
  void Narrow(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows);
  // Writes the stream: embeddings, or what the stage before has sent.
  void BeginStream(kernels::Ops& ops, kernels::Tensor x);
  void Embed(kernels::Ops& ops, kernels::Tensor x);
  void AdaptEmbedding(kernels::Ops& ops, kernels::Tensor x) const;
  // `site`: of the norm. Unnormed gives the norm also where a sum over ranks has made its rows.
  BlockInput Unnormed(int32_t layer, const NormWeights& norm, AdapterSite site,
                      int32_t n_tokens) const;
  BlockInput InputOf(int32_t layer, const NormWeights& norm, AdapterSite site, int32_t n_tokens);
  BlockInput InputOfAttention(int32_t layer, int32_t n_tokens);
  // Whether the next layer reads what this one has normed (AttentionInput::kShared).
  bool NextSharesInput(int32_t layer) const {
    return layer + 1 < spec_.n_layers() &&
           spec_.layers[layer + 1].attention_input == AttentionInput::kShared;
  }
  static void Scale(kernels::Ops& ops, float factor, kernels::Tensor x) {
    if (factor != 1.0f) ops.Scale(x, factor);
  }
  static kernels::Tensor Normed(kernels::Ops& ops, const BlockInput& in);
  // Adds post_norm(linear(in)) to the stream, for the linear at kOut or kDown of the layer; behind
  // the next block in layers with Wiring::kLadder.
  void AddToStream(kernels::Ops& ops, int32_t layer, AdapterSite site, kernels::Tensor in);
  // The product of that linear, as it is added to the stream.
  kernels::LinearArgs LastProduct(int32_t layer, AdapterSite site, kernels::Tensor in) const;
  // Wiring::kLadder. The first adds what is late, and keeps what this block gives until the next
  // one has read the stream; where ranks share it, its parts are on their way. The second adds it;
  // `norm` makes the next block's rows where that is a sum. The last two
  // pass it on to the next stage of a pipeline, if the layers before end with such a block.
  void AddLater(kernels::Ops& ops, int32_t layer, AdapterSite site, kernels::Tensor in);
  void AddLate(kernels::Ops& ops, const std::optional<kernels::NormArgs>& norm);
  void PostLate(kernels::Ops& ops, int32_t n_tokens);
  void RecvLate(kernels::Ops& ops, int32_t n_tokens);
  bool LeavesLate(int32_t stage) const {
    const int32_t last = spec_.stage_borders[static_cast<size_t>(stage) + 1] - 1;
    return last >= 0 && spec_.layers[last].wiring == Wiring::kLadder;
  }
  // The same without the norm, or into `out` if there is one, in a part of a model: adds up what
  // the ranks have. `product` is that linear; its weight is null if this rank has no share.
  void AddOfRanks(kernels::Ops& ops, const kernels::LinearArgs& product, kernels::Tensor out,
                  const std::optional<kernels::NormArgs>& norm);
  // Makes the product. Returns the sum that is then to be added up.
  kernels::AllReduceArgs OwnPart(kernels::Ops& ops, kernels::LinearArgs product,
                                 kernels::Tensor out);
  // The norm of the block that reads the stream next behind AddToStream, for the sum to make its
  // rows on the way; none: that block reads something else, or there is none here.
  std::optional<kernels::NormArgs> NormBehind(int32_t layer, AdapterSite site,
                                              int32_t n_tokens) const;
  // A buffer for a sum's part: not one that the other ranks may still be reading.
  kernels::Tensor NextPart(int64_t rows);
  kernels::NormArgs NormOf(const NormWeights& norm, kernels::Tensor x, kernels::Tensor out) const;
  // The first `rows` rows of a buffer as [rows, cols], densely packed.
  kernels::Tensor View(kernels::Buffer& buffer, int32_t rows, int32_t cols) const;
  // Those of a buffer that one half of a step may read while the other one is a layer ahead: they
  // begin `stride` elements apart, whatever the layer's width is, so that the halves never share
  // memory (decision 0150).
  static kernels::Tensor Spread(kernels::Buffer& buffer, int64_t stride, int32_t rows,
                                int64_t cols) {
    return {buffer.data(), rows, cols, stride};
  }

  // Columns [first, first + cols) of a tensor of activations.
  kernels::Tensor Columns(kernels::Tensor tensor, int64_t first, int64_t cols) const {
    auto* data = static_cast<char*>(tensor.data) + kernels::RowBytes(dtype_, first);
    return {data, tensor.rows, cols, tensor.stride};
  }

  // The argument of an op at the site; nullptr: no adapter changes it.
  const kernels::AdapterMatrix* Adapters(int32_t layer, AdapterSite site) const {
    return adapters_ == nullptr ? nullptr : adapters_->matrix(layer, site);
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const AdapterTables* adapters_ = nullptr;
  int32_t first_kv_layer_ = 0;
  int64_t rows_left_out_ = 0;
  kernels::Tensor pair_;           // of RunLayers
  std::vector<int32_t> features_;  // kept of all rows
  bool keeps_features_ = true;
  size_t kept_place_ = 0;                        // of the last step, index into kept_here_
  kernels::DType dtype_ = kernels::DType::kF32;  // of activations
  std::unique_ptr<kernels::Buffer> x_;           // [max_batch_tokens, hidden]
  std::unique_ptr<kernels::Buffer> normed_;      // [max_batch_tokens, hidden]
  std::unique_ptr<kernels::Buffer> qkv_;         // [max_batch_tokens, widest q + k + v]
  std::unique_ptr<kernels::Buffer> attended_;    // [max_batch_tokens, widest attended_dim()]
  std::unique_ptr<kernels::Buffer> q_latent_;    // [max_batch_tokens, widest q_rank], or a
                                                 // selective scan's factors
  std::unique_ptr<kernels::Buffer> heads_;  // [max_batch_tokens, n_heads * widest (q_dim, v_dim)],
                                            // or pairs' differences
  std::unique_ptr<kernels::Buffer> kept_;   // [max_batch_tokens, features * hidden], or null
  // In a pipeline those of this stage, in turn [steps in flight], each [features here *
  // max_batch_tokens, hidden].
  std::vector<std::unique_ptr<kernels::Buffer>> kept_here_;
  int64_t kept_rows_ = 0;  // max_batch_tokens
  // From row to row of qkv_, attended_ and heads_ in layers that attend, and of inner_ in layers
  // with Wiring::kParallel.
  struct {
    int64_t qkv = 0, attended = 0, heads = 0, inner = 0;
  } strides_;
  std::unique_ptr<kernels::Buffer> inner_;           // [max_batch_tokens, widest inter]
  std::unique_ptr<kernels::Buffer> layer_inputs_;    // [max_batch_tokens, spec.layer_inputs()]
  std::unique_ptr<kernels::Buffer> streams_;         // [max_batch_tokens, altup.count * hidden]
  std::unique_ptr<kernels::Buffer> stream_factors_;  // [max_batch_tokens, altup.count ^ 2] F32
  std::unique_ptr<kernels::Buffer> aside_;  // [max_batch_tokens, hidden], of experts apart,
                                            // streams and laurel blocks
  // The following belong to time mixes.
  std::unique_ptr<kernels::Buffer> shifted_;      // [max_batch_tokens, 6 * hidden]
  std::unique_ptr<kernels::Buffer> time_mix_;     // [max_batch_tokens, 7 * heads * head_dim]
  std::unique_ptr<kernels::Buffer> waist_;        // [max_batch_tokens, widest rank]
  std::unique_ptr<kernels::Buffer> first_value_;  // [max_batch_tokens, heads * head_dim]
  std::unique_ptr<kernels::Buffer> memory_;       // [max_batch_tokens, values], of memory units
  // The following belong to indexers.
  std::unique_ptr<kernels::Buffer> index_keys_;     // [max_batch_tokens, widest head_dim]
  std::unique_ptr<kernels::Buffer> index_weights_;  // [max_batch_tokens, most heads] F32
  std::unique_ptr<kernels::Buffer> index_places_;   // [max_batch_tokens, 1 + largest top_k] int32
  kernels::ChosenPlaces choice_;                    // of the last layer with an indexer
  // The following belong to mixtures of experts; they have one row per token and choice.
  std::unique_ptr<kernels::Buffer> route_logits_;   // [max_batch_tokens, most experts] F32
  std::unique_ptr<kernels::Buffer> row_gates_;      // [max_batch_tokens, 1] F32
  std::unique_ptr<kernels::Buffer> chosen_;         // [max_batch_tokens, largest top_k] int32
  std::unique_ptr<kernels::Buffer> chosen_weight_;  // the same, F32
  std::unique_ptr<kernels::Buffer> expert_inner_;   // [max_batch_tokens * top_k, inter]
  std::unique_ptr<kernels::Buffer> expert_rows_;    // [max_batch_tokens * top_k, hidden]
  // Rows of the last steps that other stages may still read, in turn, for each message of a step
  // [n_stages], each [max_batch_tokens, hidden].
  std::vector<std::unique_ptr<kernels::Buffer>> posted_;
  size_t next_posted_ = 0;
  // The following belong to a part of a model.
  // Sums take these in turn: two, or four where sums are late; each [max_batch_tokens, hidden].
  std::vector<std::unique_ptr<kernels::Buffer>> parts_;
  std::unique_ptr<kernels::Buffer> all_heads_;   // [max_batch_tokens, widest of all ranks' q]
  std::unique_ptr<kernels::Buffer> own_logits_;  // [rows of logits, own vocab] F32
  size_t next_part_ = 0;                         // index into parts_
  bool is_normed_ = false;                       // normed_ has the rows that the next block reads
  kernels::Tensor part_;                         // of the block's sum; null: nothing there yet
  // Rows of a block that the stream does not have yet (Wiring::kLadder): a sum over ranks that has
  // begun, or rows as they are, of this rank alone or from the stage before.
  struct Late {
    enum class Kind : uint8_t { kNothing, kSum, kRows };
    Kind kind = Kind::kNothing;
    size_t place = 0;            // kRows: index into late_rows_
    kernels::Tensor rows;        // the same
    kernels::AllReduceArgs sum;  // kSum
  };
  Late late_;
  // Those rows, in turn; each [max_batch_tokens, hidden].
  std::vector<std::unique_ptr<kernels::Buffer>> late_rows_;
  std::vector<Rotation> rotations_;
  std::vector<int32_t> rotation_of_layer_;               // index into rotations_, -1: none
  std::vector<kernels::QueryRotation> query_rotations_;  // [layers]
};

}  // namespace heddle::engine
