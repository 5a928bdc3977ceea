#include "engine/text/normalizer.h"

#include <array>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}

  absl::Status Rewrite(std::string* text, WorkBudget* budget) const override {
    for (const auto& step : steps_) {
      HEDDLE_RETURN_IF_ERROR(step->Rewrite(text, budget));
      HEDDLE_RETURN_IF_ERROR(budget->CheckSize(text->size()));
      HEDDLE_RETURN_IF_ERROR(budget->CheckTime());
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  absl::Status Rewrite(std::string* text, WorkBudget* /*budget*/) const override {
    if (!IsSurelyNormalized(*text, form_)) *text = Normalize(*text, form_);
    return absl::OkStatus();
  }

 private:
  NormalForm form_;
};

// A step that is a pure function of the text.
class Function : public Normalizer {
 public:
  explicit Function(std::string (*function)(std::string_view)) : function_(function) {}
  absl::Status Rewrite(std::string* text, WorkBudget* /*budget*/) const override {
    *text = function_(*text);
    return absl::OkStatus();
  }

 private:
  std::string (*function_)(std::string_view);
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  absl::Status Rewrite(std::string* text, WorkBudget* /*budget*/) const override {
    const CharClassTable& classes = CharClassTable::Get();
    size_t begin = 0;
    size_t end = 0;  // behind the last code point that is not white space
    bool seen = false;
    for (size_t at = 0; at < text->size(); at += base::Utf8Size((*text)[at])) {
      if ((classes[base::DecodeUtf8(text->data() + at)] & kWhiteSpace) != 0) continue;
      if (!seen) begin = at;
      seen = true;
      end = at + base::Utf8Size((*text)[at]);
    }
    if (!seen) {
      if (left_ || right_) text->clear();
      return absl::OkStatus();
    }
    if (right_) text->resize(end);
    if (left_) text->erase(0, begin);
    return absl::OkStatus();
  }

 private:
  bool left_;
  bool right_;
};

class PrependText : public Normalizer {
 public:
  explicit PrependText(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Rewrite(std::string* text, WorkBudget* /*budget*/) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

// The number of occurrences of `part`, which is not empty, without overlap.
size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
    ++count;
  }
  return count;
}

class Replace : public Normalizer {
 public:
  Replace(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  absl::Status Rewrite(std::string* text, WorkBudget* budget) const override {
    if (from_.empty()) return absl::OkStatus();
    if (to_.size() > from_.size()) {
      const size_t growth = CountOf(*text, from_) * (to_.size() - from_.size());
      HEDDLE_RETURN_IF_ERROR(budget->CheckSize(text->size() + growth));
    }
    *text = base::ReplaceAll(*text, from_, to_);
    return absl::OkStatus();
  }

 private:
  std::string from_;
  std::string to_;
};

class ReplaceMatches : public Normalizer {
 public:
  ReplaceMatches(Regex from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  absl::Status Rewrite(std::string* text, WorkBudget* budget) const override {
    std::string out;
    size_t done = 0;
    const auto replace = [&](size_t begin, size_t end) {
      out.append(*text, done, begin - done).append(to_);
      done = end;
      return budget->CheckSize(out.size());
    };
    HEDDLE_RETURN_IF_ERROR(from_.ForEachMatch(*text, replace, budget));
    out.append(*text, done);
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  Regex from_;
  std::string to_;
};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(Charsmap charsmap) : charsmap_(std::move(charsmap)) {
    // Control characters are excluded: CR and LF are one grapheme.
    for (unsigned char byte = ' '; byte < 0x7F; ++byte) {
      plain_[byte] = charsmap_.LeavesAlone(byte);
    }
  }

  absl::Status Rewrite(std::string* text, WorkBudget* budget) const override {
    std::string out;
    out.reserve(text->size());
    std::string_view rest(*text);
    while (!rest.empty()) {
      const size_t plain = PlainPrefix(rest, plain_);
      out.append(rest.substr(0, plain));
      rest.remove_prefix(plain);
      if (rest.empty()) break;
      HEDDLE_RETURN_IF_ERROR(budget->CheckSize(out.size()));
      HEDDLE_RETURN_IF_ERROR(budget->CheckTimeSometimes());
      const std::string_view grapheme = rest.substr(0, GraphemeSize(rest));
      rest.remove_prefix(grapheme.size());
      // The library looks up short graphemes as a whole, by the shortest rule that is a prefix of
      // them.
      if (grapheme.size() < kWholeLookupBytes) {
        if (const auto match = charsmap_.Shortest(grapheme)) {
          out.append(match->replacement);
          continue;
        }
      }
      HEDDLE_RETURN_IF_ERROR(AppendByCodePoint(grapheme, budget, &out));
    }
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kWholeLookupBytes = 6;

  static size_t GraphemeSize(std::string_view text) {
    int32_t state = 0;
    char32_t before = base::DecodeUtf8(text.data());
    size_t at = base::Utf8Size(text[0]);
    while (at < text.size()) {
      const char32_t after = base::DecodeUtf8(text.data() + at);
      if (IsGraphemeBreak(before, after, &state)) break;
      at += base::Utf8Size(text[at]);
      before = after;
    }
    return at;
  }

  absl::Status AppendByCodePoint(std::string_view grapheme, WorkBudget* budget,
                                 std::string* out) const {
    for (size_t at = 0; at < grapheme.size(); at += base::Utf8Size(grapheme[at])) {
      const std::string_view one = grapheme.substr(at, base::Utf8Size(grapheme[at]));
      const auto match = charsmap_.Shortest(one);
      out->append(match ? match->replacement : one);
      HEDDLE_RETURN_IF_ERROR(budget->CheckSize(out->size()));
    }
    return absl::OkStatus();
  }

  Charsmap charsmap_;
  std::array<bool, 256> plain_{};  // see PlainPrefix
};

}  // namespace

std::unique_ptr<Normalizer> NewNormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<Normalizer> NewUnicodeNormalizer(NormalForm form) {
  return std::make_unique<UnicodeForm>(form);
}

std::unique_ptr<Normalizer> NewLowercase() { return std::make_unique<Function>(ToLowercase); }

std::unique_ptr<Normalizer> NewRemoveMarks() { return std::make_unique<Function>(RemoveMarks); }

std::unique_ptr<Normalizer> NewStrip(bool left, bool right) {
  return std::make_unique<Strip>(left, right);
}

std::unique_ptr<Normalizer> NewPrepend(std::string prefix) {
  return std::make_unique<PrependText>(std::move(prefix));
}

std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to) {
  return std::make_unique<Replace>(std::move(from), std::move(to));
}

std::unique_ptr<Normalizer> NewReplaceMatches(Regex from, std::string to) {
  return std::make_unique<ReplaceMatches>(std::move(from), std::move(to));
}

std::unique_ptr<Normalizer> NewPrecompiled(Charsmap charsmap) {
  return std::make_unique<Precompiled>(std::move(charsmap));
}

}  // namespace heddle::engine::text
