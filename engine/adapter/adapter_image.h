// A LoRA adapter's factors in host memory, converted and cut into pages of the pool's size, so that
// loading it is copying pages, and any page can be dropped and copied again by itself.
//
// Blocks are whole rank rows: rank row i of A, and column i of B, are contiguous. Places are
// relative to the image; pointers are written by AdapterTables when the pages' places in the pool
// are known, into tables that are part of the image's pages as well.
// Where ranks share the model, each has an image of its own, of its part of the factors and for
// pages of its own size (load_adapter.h). The head's holds the others. All ranks load the same
// numbers of image pages to the same pages of their pools; an image that has fewer than others
// leaves the rest. Immutable once made, so any thread may read it. Sources: Hu et al. 2021 (LoRA);
// Sheng et al. 2023 (S-LoRA: factors in the KV pool's pages); Liu et al. 2024 (DoRA).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ids.h"
#include "kernels/dtype.h"

namespace heddle::engine {

// Places in a decoder that an adapter may change, by the decoder's names (weights.h).
enum class AdapterSite : uint8_t {
  kQkv,  // parts: q, k, v
  kOut,  // also the one matrix in place of attention
  kUp,   // parts: gate, up; or up alone without a gate
  kDown,
  kRouter,
  kRowGate,
  kQueryA,  // latent attention: MlaWeights::q_a, q and kv_a
  kQueryB,
  kKvA,
  // Stacks of matrices, which have a member for each of them.
  kExpertUp,  // parts: gate, up; or up alone
  kExpertDown,
  kKeyHeads,  // MlaWeights::k_up and v_up
  kValueHeads,
  // Vectors: they have a gain and a bias alone, which are added to the norm's.
  kAttentionNorm,
  kAttentionPostNorm,
  kMlpNorm,
  kMlpPostNorm,
  // Norms within attention: of all heads as one vector (QkNorm::kFullWidth), which every rank has
  // whole, of single heads, or of the latent vectors.
  kQueryNorm,
  kKeyNorm,
  // Those of the whole model; their layer is kModelLayer.
  kEmbedding,
  kHead,  // in parts, so that long rank rows fit pages
  kFinalNorm,
};
inline constexpr int32_t kNumAdapterSites = 22;
inline constexpr int32_t kModelLayer = -1;

// A place in an image. Blocks begin at multiples of 16 bytes and lie within one page.
struct ImagePlace {
  int32_t page = 0;
  int32_t offset = 0;  // bytes

  bool operator==(const ImagePlace&) const = default;
};
inline constexpr ImagePlace kNoPlace = {-1, 0};

// Low-rank change of one part of one matrix. The matrix's product y of a row x becomes
//   y + scale * B A x + gain * y + bias
// and a row of an embedding e, of token t, e + scale * B A[:, t] + gain * e.
struct ImageFactors {
  int32_t layer = 0;
  AdapterSite site = AdapterSite::kQkv;
  int32_t member = 0;  // of a stack
  int32_t part = 0;
  int32_t inputs = 0;         // columns of A
  int32_t outputs = 0;        // rows of the part
  int32_t rank = 0;           // 0: gain or bias alone
  int32_t block_rows = 0;     // rank rows of a block; the last one may have fewer
  int32_t a_block_rows = 0;   // kEmbedding: tokens of a block of A; otherwise block_rows
  float scale = 1.0f;         // of the product B A
  std::vector<ImagePlace> a;  // blocks [block_rows, inputs], of kEmbedding [a_block_rows, rank];
                              // empty with a rank: A is the identity
  std::vector<ImagePlace> b;  // blocks [block_rows, outputs]; empty with a rank: the identity
  ImagePlace a_table;         // room for one pointer per block
  ImagePlace b_table;
  ImagePlace gain = kNoPlace;  // [outputs] F32
  ImagePlace bias = kNoPlace;  // [outputs] F32

  bool gathers() const { return site == AdapterSite::kEmbedding; }  // A by token
};

class AdapterImage {
 public:
  AdapterId id{};
  kernels::DType dtype = kernels::DType::kBF16;  // of the factors
  int32_t max_rank = 0;
  int64_t page_bytes = 0;
  int32_t num_pages = 0;
  std::vector<ImageFactors> factors;
  std::shared_ptr<std::byte[]> content;  // [num_pages, page_bytes]
  // The images of the ranks beside the head, in order; their ids are not set.
  std::vector<std::shared_ptr<const AdapterImage>> others;

  const AdapterImage& OfRank(int32_t rank) const {
    return rank == 0 ? *this : *others[static_cast<size_t>(rank) - 1];
  }
  int32_t num_ranks() const { return static_cast<int32_t>(others.size()) + 1; }
  // Pages that the adapter takes of each rank's pool.
  int32_t pages_of_each_rank() const {
    int32_t pages = num_pages;
    for (const auto& other : others) pages = std::max(pages, other->num_pages);
    return pages;
  }
  std::span<const std::byte> page(int32_t index) const {
    return {content.get() + index * page_bytes, static_cast<size_t>(page_bytes)};
  }
  int64_t own_bytes() const { return num_pages * page_bytes; }
  // On the host, of all ranks.
  int64_t bytes() const {
    int64_t bytes = own_bytes();
    for (const auto& other : others) bytes += other->own_bytes();
    return bytes;
  }
};

}  // namespace heddle::engine
