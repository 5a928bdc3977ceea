// Merges parts of contexts that no block of attention merges itself: see attention_merge.cuh.
#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;

struct MergeParams {
  AttentionParams attention;
  const AttentionMerge* merges;
};

template <typename T, int kWidth>
HEDDLE_KERNEL AttentionMergeKernel(HEDDLE_PARAMS(MergeParams, m)) {
  StartInTurn();
  const AttentionParams& p = m.attention;
  const merge::Parts parts = {m.merges[BlockX()], BlockZ() * kWarps + WarpIndex(), BlockY()};
  const SequenceView s(p, parts.merge.seq, parts.kv_head, false);
  if (parts.row >= parts.merge.rows || !s.Has(parts.merge.first + parts.row)) return;
  if (parts.merge.into >= 0) return merge::MergeIntoPart<kWidth>(p, parts);
  merge::MergeRow<kWidth>(p, s, parts, T());
}

}  // namespace

Error LaunchAttentionMerge(const AttentionParams& params, const AttentionMerge* merges,
                           int32_t n_merges, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = n_merges,
                             .grid_y = params.args.cache.n_kv_heads,
                             .grid_z = kDecodeTileRows / kWarps,
                             .threads = 32 * kWarps};
  const MergeParams merge = {params, merges};
  return ForActivation(act, [&]<typename T>(T) {
    return MergesWide(params.args, sizeof(T))
               ? Launch(AttentionMergeKernel<T, 4>, shape, stream, merge)
               : Launch(AttentionMergeKernel<T, 1>, shape, stream, merge);
  });
}

}  // namespace heddle::kernels::cuda
