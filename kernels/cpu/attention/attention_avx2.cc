// Attention kernels of the level of vec_avx2.h: more than four queries have the lanes, and up to
// four share the lanes of the keys. Both give the same bits.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

#include "kernels/cpu/attention/attention_code_keys.h"
#include "kernels/cpu/attention/attention_query_lanes.h"

namespace heddle::kernels::cpu {
namespace {

// A vector of queries costs as much for one query as for eight, a transposition as much as four.
constexpr int32_t kMaxFewQueries = 4;

template <typename Element>
void AttendEither(const AttendArgs& args) {
  if (args.bias != nullptr) return AttendOver<Element>(args);  // the only one that has biases
  if (args.num_queries > kMaxFewQueries) return AttendByLanes<Element>(args);
  if constexpr (Element::kBytes <= 2) {
    AttendOver<Element, CodeKeys<Element>>(args);
  } else {
    AttendOver<Element>(args);
  }
}

void AttendAvx2(const AttendArgs& args) {
  switch (args.type) {
    case KvType::kF32:
      return AttendEither<F32Element>(args);
    case KvType::kF16:
      return AttendEither<F16Element>(args);
    case KvType::kBF16:
      return AttendEither<BF16Element>(args);
    case KvType::kInt8:
      return AttendEither<Int8Element>(args);
    case KvType::kF8E4M3:
      return AttendEither<F8Element>(args);
  }
}

}  // namespace

extern const AttentionKernels kAttentionAvx2;
const AttentionKernels kAttentionAvx2 = {AttendAvx2, MergeParts, FinishRow};

}  // namespace heddle::kernels::cpu
