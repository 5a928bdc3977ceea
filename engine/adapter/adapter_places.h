// Where an adapter's modules belong in the decoder: module names of a base, as its family's
// checkpoints or GGUF files have them, mapped to linears. Private to engine/adapter.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/family/model_description.h"

namespace heddle::engine {

// Rows of a module's output that are one part of a linear.
struct ModulePart {
  int32_t part = 0;
  std::vector<int32_t> rows;  // [rows of the part] of the module's output, in the linear's order
};

// A module's place.
struct ModulePlace {
  int32_t layer = 0;
  AdapterSite site = AdapterSite::kQkv;
  int64_t inputs = 0;
  int64_t outputs = 0;
  std::vector<ModulePart> parts;
};

class AdapterPlaces {
 public:
  // For modules as a GGUF adapter names them, or as PEFT does.
  AdapterPlaces(const ModelDescription& model, bool gguf_names);

  // The place of `module`. INVALID_ARGUMENT says why it has none, and what the base has.
  absl::StatusOr<ModulePlace> Find(std::string_view module) const;

 private:
  struct Entry {
    int32_t layer;
    AdapterSite site;
    int32_t part;  // kWhole: all parts
  };
  static constexpr int32_t kWhole = -1;

  void AddLayer(const NameMap& pattern, int32_t layer);
  void Refuse(std::string_view tensor, std::string_view why);
  ModulePlace PlaceOf(const Entry& entry) const;
  std::vector<int32_t> RowsOfPart(const Entry& entry, int32_t part, int64_t first,
                                  int64_t count) const;
  std::string Known() const;

  const ModelDescription& model_;
  bool gguf_names_;
  bool base_is_gguf_;
  bool qkv_by_kv_head_ = false;  // NameMap's, of the adapter's names
  // By names within the decoder, without ".weight".
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> refused_;  // why
};

}  // namespace heddle::engine
