// The `BertNormalizer` of tokenizer.json.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/utf8.h"
#include "engine/text/normalizer.h"

namespace heddle::engine::text {
namespace {

bool IsIdeograph(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

bool IsSpace(char32_t c) { return (CharClassTable::Get()[c] & kWhiteSpace) != 0; }

// Controls, formats, private use and code points that are not assigned.
bool IsControl(char32_t c) {
  return c != '\t' && c != '\n' && c != '\r' && GeneralCategory(c).starts_with('C');
}

// Calls visit(code point, its bytes) for each.
template <typename Visit>
void EachCodePoint(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = base::Utf8Size(text[at]);
    visit(base::DecodeUtf8(text.data() + at), text.substr(at, size));
    at += size;
  }
}

std::string Clean(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  EachCodePoint(text, [&out](char32_t c, std::string_view bytes) {
    if (c == 0 || c == 0xFFFD || IsControl(c)) return;
    out.append(IsSpace(c) ? std::string_view(" ") : bytes);
  });
  return out;
}

std::string PutSpacesAroundIdeographs(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  EachCodePoint(text, [&out](char32_t c, std::string_view bytes) {
    const bool is_one = IsIdeograph(c);
    if (is_one) out.push_back(' ');
    out.append(bytes);
    if (is_one) out.push_back(' ');
  });
  return out;
}

std::string RemoveAccents(std::string_view text) {
  const std::string apart = IsSurelyNormalized(text, NormalForm::kNfd)
                                ? std::string(text)
                                : Normalize(text, NormalForm::kNfd);
  std::string out;
  out.reserve(apart.size());
  EachCodePoint(apart, [&out](char32_t c, std::string_view bytes) {
    if (GeneralCategory(c) != "Mn") out.append(bytes);
  });
  return out;
}

class Bert final : public Normalizer {
 public:
  explicit Bert(const BertRules& rules) : rules_(rules) {}

  absl::Status Rewrite(std::string* text, WorkBudget* /*budget*/) const override {
    if (rules_.cleans) *text = Clean(*text);
    if (rules_.separates_ideographs) *text = PutSpacesAroundIdeographs(*text);
    if (rules_.removes_accents) *text = RemoveAccents(*text);
    if (rules_.lowercases) *text = ToLowercase(*text);
    return absl::OkStatus();
  }

 private:
  const BertRules rules_;
};

}  // namespace

std::unique_ptr<Normalizer> NewBertNormalizer(const BertRules& rules) {
  return std::make_unique<Bert>(rules);
}

}  // namespace heddle::engine::text
