// SentencePiece's own normalisation: rules, then white space.
// Source: sentencepiece `src/normalizer.cc`, Normalizer::Normalize.
#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"

namespace heddle::engine::text {
namespace {

class SentencePieceNormalizer : public Normalizer {
 public:
  explicit SentencePieceNormalizer(SentencePieceRules rules) : rules_(std::move(rules)) {
    // The longest symbol that fits is taken.
    std::sort(rules_.user_defined.begin(), rules_.user_defined.end(),
              [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
    for (const std::string& symbol : rules_.user_defined) {
      if (!symbol.empty()) begins_[static_cast<unsigned char>(symbol[0])] = true;
    }
    for (unsigned char byte = 0; byte < 0x80; ++byte) {
      plain_[byte] = byte != ' ' && !begins_[byte] && rules_.charsmap.LeavesAlone(byte);
    }
  }

  absl::Status Rewrite(std::string* text, WorkBudget* budget) const override {
    std::string_view rest(*text);
    if (rules_.remove_extra_whitespaces) HEDDLE_RETURN_IF_ERROR(SkipSpaces(budget, &rest));
    if (rest.empty()) {
      text->clear();
      return absl::OkStatus();
    }
    std::string out;
    out.reserve(rest.size() + rest.size() / 4 + Space().size());
    const bool prefix = rules_.add_dummy_prefix && !rules_.treat_whitespace_as_suffix;
    if (prefix) out.append(Space());
    HEDDLE_RETURN_IF_ERROR(AppendAll(rest, budget, &out));
    if (rules_.remove_extra_whitespaces) {
      while (out.ends_with(Space())) out.erase(out.size() - Space().size());
    }
    if (rules_.add_dummy_prefix && rules_.treat_whitespace_as_suffix) out.append(Space());
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  std::string_view Space() const { return rules_.escape_whitespaces ? kMetaspace : " "; }

  // The rewritten beginning of the text, and the number of bytes that it replaces.
  std::pair<std::string_view, size_t> Next(std::string_view rest) const {
    if (begins_[static_cast<unsigned char>(rest[0])]) {
      for (const std::string& symbol : rules_.user_defined) {
        if (!symbol.empty() && rest.starts_with(symbol)) return {symbol, symbol.size()};
      }
    }
    if (const auto match = rules_.charsmap.Longest(rest)) return {match->replacement, match->size};
    const size_t size = base::Utf8Size(rest[0]);
    return {rest.substr(0, size), size};
  }

  absl::Status SkipSpaces(WorkBudget* budget, std::string_view* rest) const {
    while (!rest->empty()) {
      HEDDLE_RETURN_IF_ERROR(budget->CheckTimeSometimes());
      const auto [part, size] = Next(*rest);
      if (part != " ") break;
      rest->remove_prefix(size);
    }
    return absl::OkStatus();
  }

  absl::Status AppendAll(std::string_view rest, WorkBudget* budget, std::string* out) const {
    bool after_space = rules_.remove_extra_whitespaces;
    while (!rest.empty()) {
      if (const size_t size = PlainPrefix(rest, plain_); size > 0) {
        out->append(rest.substr(0, size));
        rest.remove_prefix(size);
        after_space = false;
        continue;
      }
      HEDDLE_RETURN_IF_ERROR(budget->CheckSize(out->size()));
      HEDDLE_RETURN_IF_ERROR(budget->CheckTimeSometimes());
      auto [part, size] = Next(rest);
      rest.remove_prefix(size);
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      if (!part.empty()) {
        for (const char c : part) {
          if (c == ' ')
            out->append(Space());
          else
            out->push_back(c);
        }
        after_space = part.ends_with(' ');
      }
      if (!rules_.remove_extra_whitespaces) after_space = false;
    }
    return absl::OkStatus();
  }

  SentencePieceRules rules_;
  std::array<bool, 256> begins_{};  // first bytes of user-defined symbols
  std::array<bool, 256> plain_{};   // see PlainPrefix
};

}  // namespace

std::unique_ptr<Normalizer> NewSentencePieceNormalizer(SentencePieceRules rules) {
  return std::make_unique<SentencePieceNormalizer>(std::move(rules));
}

}  // namespace heddle::engine::text
