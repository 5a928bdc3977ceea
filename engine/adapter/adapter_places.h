// Where an adapter's modules belong in the decoder: module names of a base, as its family's
// checkpoints or GGUF files have them, mapped to linears, norms, embeddings. The same map, made of
// the base's own names, says where the base keeps a matrix. Private to engine/adapter.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/adapter/adapter_sites.h"
#include "engine/family/model_description.h"

namespace heddle::engine {

// Rows of a module's output that are one part of a linear.
struct ModulePart {
  int32_t part = 0;
  std::vector<int32_t> rows;  // [rows of the part] of the module's output, in the linear's order
};

// A module's place. A module of latent attention's keys and values has two: the heads of both. So
// has a norm that attention and the MLP share.
struct ModulePlace {
  int32_t layer = 0;
  AdapterSite site = AdapterSite::kQkv;
  int32_t member = 0;     // the first one of a stack that the module holds
  int32_t n_members = 1;  // how many it holds
  // Width of the module. Its outputs are those of all members only for the heads of latent
  // attention, where a member's rows are `rows` of its part, `head_stride` apart.
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t head_stride = 0;  // 0: no heads
  std::vector<ModulePart> parts;
};

// A part of a matrix in the base's checkpoint.
struct BasePart {
  std::string tensor;
  std::string bias;  // empty: none
  std::vector<int32_t>
      rows;  // [rows of the part] of the tensor, whose rows are those of all members
};

class AdapterPlaces {
 public:
  // For modules as a GGUF adapter names them, or as PEFT does.
  AdapterPlaces(const ModelDescription& model, bool gguf_names);
  // For the tensors of the base itself.
  explicit AdapterPlaces(const ModelDescription& model);

  // The places of `module`, whose factors have `outputs` rows (0: it has no factors).
  // INVALID_ARGUMENT says why it has none, and what the base has.
  absl::StatusOr<std::vector<ModulePlace>> Find(std::string_view module, int64_t outputs) const;

  // REQUIRES: made for the base's own tensors. NOT_FOUND: the base lacks it; UNIMPLEMENTED: it
  // stores it in a way that is not read here.
  absl::StatusOr<BasePart> FindBase(int32_t layer, AdapterSite site, int32_t member,
                                    int32_t part) const;

 private:
  static constexpr int32_t kWhole = -1;       // all parts
  static constexpr int32_t kAllMembers = -1;  // in one tensor
  struct Entry {
    int32_t layer = 0;
    AdapterSite site = AdapterSite::kQkv;
    int32_t part = 0;
    int32_t member = 0;
    std::string tensor;
    std::string bias;
    bool in_turns = false;    // rows of gate and up take turns
    bool with_gates = false;  // of queries, each of which has its gate behind it
    // The module's rows in a recurrence's product, whose modules are stacked.
    int64_t first_row = 0;
    int64_t n_rows = 0;  // 0: it is of another one
  };

  void AddModel(const NameMap& names);
  void AddLayer(const NameMap& pattern, int32_t layer);
  void AddAttention(const LayerNames& names, const LayerSpec& spec, int32_t layer);
  void AddRecurrence(const LayerNames& names, const RecurrenceSpec& recurrence, int32_t layer);
  // `up_first`: NameMap's.
  void AddMlp(const LayerNames& names, const LayerSpec& spec, int32_t layer, bool up_first);
  void AddExperts(const NameMap& pattern, const LayerNames& names, const MoeSpec& moe,
                  int32_t layer);
  void AddExpertMatrix(const std::string& name, const MoeSpec& moe, const Entry& entry);
  void Add(const std::string& name, Entry entry);
  void Refuse(std::string_view tensor, std::string_view why);
  ModulePlace PlaceOf(const Entry& entry) const;
  ModulePlace PlaceOfRecurrence(const Entry& entry, const SiteShape& shape) const;
  ModulePlace PlaceOfHeads(const Entry& entry, const SiteShape& shape) const;
  std::vector<int32_t> RowsOfPart(const Entry& entry, int32_t part, int64_t first,
                                  int64_t count) const;
  std::string Known() const;

  const ModelDescription& model_;
  const bool is_base_ = false;  // the names are those of the base's tensors
  bool gguf_names_;
  bool base_is_gguf_;
  bool qkv_by_kv_head_ = false;  // NameMap's, of the adapter's names
  // By names within the decoder, without ".weight".
  std::map<std::string, std::vector<Entry>, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> refused_;  // why
};

}  // namespace heddle::engine
