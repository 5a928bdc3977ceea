#include "engine/files/safetensors_header.h"

#include <limits>
#include <unordered_set>
#include <utility>

#include "base/message.h"
#include "engine/files/json_file.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// The JSON is {"<tensor>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
// "__metadata__": {...}}. Depth 1 is the outer object, 2 a tensor's, 3 a list of numbers. Values of
// a tensor's other keys are skipped, as in the reference reader.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 1 || Skipping()) return true;
    return depth_ == 2 || Unexpected("an object");
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && field_owner_ == Owner::kTensor) return FinishEntry();
    return true;
  }
  bool start_array(size_t) override {
    ++depth_;
    if (Skipping()) return true;
    bool is_list = depth_ == 3 && (field_ == Field::kShape || field_ == Field::kOffsets);
    if (!is_list) return Unexpected("an array");
    std::vector<int64_t>& list = List();
    list.clear();
    entries_.back().has_shape |= field_ == Field::kShape;
    in_list_ = true;
    return true;
  }
  bool end_array() override {
    --depth_;
    in_list_ = false;
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) return BeginEntry(name);
    if (depth_ == 2 && field_owner_ == Owner::kTensor) field_ = FieldOf(name);
    return true;
  }
  bool string(std::string& value) override {
    if (Skipping()) return true;
    if (depth_ != 2 || field_ != Field::kDtype) return Unexpected("a string");
    entries_.back().dtype = std::move(value);
    return true;
  }
  bool number_integer(int64_t value) override {
    if (Skipping()) return true;
    return Unexpected(base::StrCat("the negative number ", value));
  }
  bool number_unsigned(uint64_t value) override {
    if (Skipping()) return true;
    if (!in_list_) return Unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Unexpected(base::StrCat("the number ", value, " (overflow)"));
    }
    List().push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_float(double, const std::string& text) override {
    return Skipping() || Unexpected(base::StrCat("the number ", text));
  }
  bool boolean(bool) override { return Skipping() || Unexpected("a boolean"); }
  bool null() override { return Skipping() || Unexpected("null"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    error_ = base::StrCat("its header is not valid JSON at byte ", position, ": ",
                          ExceptionText(error.what()));
    return false;
  }

 private:
  enum class Owner { kNone, kTensor, kMetadata };
  enum class Field { kNone, kDtype, kShape, kOffsets, kOther };

  static Field FieldOf(std::string_view name) {
    if (name == "dtype") return Field::kDtype;
    if (name == "shape") return Field::kShape;
    if (name == "data_offsets") return Field::kOffsets;
    return Field::kOther;
  }

  bool Skipping() const {
    if (field_owner_ == Owner::kMetadata) return true;
    return field_owner_ == Owner::kTensor && field_ == Field::kOther;
  }

  std::vector<int64_t>& List() {
    return field_ == Field::kShape ? entries_.back().shape : entries_.back().offsets;
  }

  bool BeginEntry(const std::string& name) {
    field_ = Field::kNone;
    field_owner_ = name == "__metadata__" ? Owner::kMetadata : Owner::kTensor;
    if (!names_.insert(name).second) {
      error_ = base::StrCat("tensor ", base::Quote(name), " occurs twice in the header");
      return false;
    }
    if (field_owner_ == Owner::kTensor) entries_.emplace_back().name = name;
    return true;
  }

  bool FinishEntry() {
    const SafetensorsEntry& entry = entries_.back();
    if (!entry.dtype.empty() && entry.has_shape && entry.offsets.size() == 2) return true;
    error_ = base::StrCat("tensor ", base::Quote(entry.name),
                          " needs a \"dtype\", a \"shape\" and two \"data_offsets\" in the header");
    return false;
  }

  bool Unexpected(std::string_view found) {
    std::string where = entries_.empty() || depth_ == 0
                            ? std::string("the header")
                            : base::StrCat("tensor ", base::Quote(entries_.back().name));
    error_ = base::StrCat(where, ": the header has ", found, " where it does not belong");
    return false;
  }

  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
  std::string error_;
  int64_t depth_ = 0;
  Owner field_owner_ = Owner::kNone;
  Field field_ = Field::kNone;
  bool in_list_ = false;
};

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                                     std::string_view file_name) {
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json, &events)) {
    return absl::InvalidArgumentError(base::StrCat(file_name, ": ", events.error()));
  }
  return events.TakeEntries();
}

}  // namespace heddle::engine
