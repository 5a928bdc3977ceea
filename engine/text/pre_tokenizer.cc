#include "engine/text/pre_tokenizer.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/text/byte_level.h"
#include "engine/text/unicode.h"

namespace heddle::engine::text {
namespace {

// Combines alternating gaps and matches to pieces.
class Joiner {
 public:
  Joiner(Piece whole, SplitBehavior behavior, bool invert, PieceSink sink)
      : whole_(whole), behavior_(behavior), invert_(invert), sink_(sink) {}

  // Adds the next part of the text; parts come from left to right and cover it.
  absl::Status Add(size_t begin, size_t end, bool matched) {
    const bool is_match = matched != invert_;
    if (behavior_ == SplitBehavior::kIsolated) return Emit(begin, end);
    if (behavior_ == SplitBehavior::kRemoved) {
      return is_match ? absl::OkStatus() : Emit(begin, end);
    }
    if (has_pending_ && Joins(is_match)) {
      end_ = end;
    } else {
      HEDDLE_RETURN_IF_ERROR(Finish());
      has_pending_ = true;
      begin_ = begin;
      end_ = end;
    }
    last_is_match_ = is_match;
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (!has_pending_) return absl::OkStatus();
    has_pending_ = false;
    return Emit(begin_, end_);
  }

 private:
  bool Joins(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::kContiguous:
        return is_match == last_is_match_;
      case SplitBehavior::kMergedWithPrevious:
        return is_match && !last_is_match_;
      case SplitBehavior::kMergedWithNext:
        return !is_match && last_is_match_;
      default:
        return false;
    }
  }

  absl::Status Emit(size_t begin, size_t end) {
    if (begin == end) return absl::OkStatus();
    return sink_(
        {whole_.text.substr(begin, end - begin), whole_.at_start && begin == 0, whole_.budget});
  }

  Piece whole_;
  SplitBehavior behavior_;
  bool invert_;
  PieceSink sink_;
  bool has_pending_ = false;
  bool last_is_match_ = false;
  size_t begin_ = 0;
  size_t end_ = 0;
};

class StageSequence : public PreTokenizer {
 public:
  explicit StageSequence(std::vector<std::unique_ptr<PreTokenizer>> stages)
      : stages_(std::move(stages)) {}

  absl::Status Split(Piece piece, PieceSink sink) const override { return From(0, piece, sink); }

 private:
  absl::Status From(size_t stage, Piece piece, PieceSink sink) const {
    if (stage == stages_.size()) return sink(piece);
    if (stage + 1 == stages_.size()) return stages_[stage]->Split(piece, sink);
    return stages_[stage]->Split(piece, [&](Piece part) { return From(stage + 1, part, sink); });
  }

  std::vector<std::unique_ptr<PreTokenizer>> stages_;
};

class RegexSplit : public PreTokenizer {
 public:
  RegexSplit(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(Piece piece, PieceSink sink) const override {
    Joiner joiner(piece, behavior_, invert_, sink);
    size_t done = 0;
    const auto add = [&](size_t begin, size_t end) {
      if (begin > done) HEDDLE_RETURN_IF_ERROR(joiner.Add(done, begin, false));
      done = end;
      return joiner.Add(begin, end, true);
    };
    HEDDLE_RETURN_IF_ERROR(regex_.ForEachMatch(piece.text, add, piece.budget));
    if (done < piece.text.size()) {
      HEDDLE_RETURN_IF_ERROR(joiner.Add(done, piece.text.size(), false));
    }
    return joiner.Finish();
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class ScannerSplit : public PreTokenizer {
 public:
  explicit ScannerSplit(const ScannerSpec& spec) : spec_(spec) {}

  absl::Status Split(Piece piece, PieceSink sink) const override {
    bool at_start = piece.at_start;
    return Scan(spec_, piece.text, [&](std::string_view part) {
      return sink({part, std::exchange(at_start, false), piece.budget});
    });
  }

 private:
  ScannerSpec spec_;
};

class CharSplit : public PreTokenizer {
 public:
  CharSplit(CharKind kind, SplitBehavior behavior) : kind_(kind), behavior_(behavior) {}

  absl::Status Split(Piece piece, PieceSink sink) const override {
    Joiner joiner(piece, behavior_, false, sink);
    size_t gap = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const size_t end = at + base::Utf8Size(piece.text[at]);
      if (Matches(base::DecodeUtf8(piece.text.data() + at))) {
        if (at > gap) HEDDLE_RETURN_IF_ERROR(joiner.Add(gap, at, false));
        HEDDLE_RETURN_IF_ERROR(joiner.Add(at, end, true));
        gap = end;
      }
      at = end;
    }
    if (gap < piece.text.size()) {
      HEDDLE_RETURN_IF_ERROR(joiner.Add(gap, piece.text.size(), false));
    }
    return joiner.Finish();
  }

 private:
  bool Matches(char32_t c) const {
    const uint8_t bits = classes_[c];
    switch (kind_) {
      case CharKind::kDigit:
        return (bits & kNumber) != 0;
      case CharKind::kWhiteSpace:
        return (bits & kWhiteSpace) != 0;
      case CharKind::kPunctuation:
        // ASCII symbols count as well: $ + < = > ^ ` | ~.
        return (bits & kPunctuation) != 0 || (c < 0x80 && (bits & kSymbol) != 0);
    }
    return false;
  }

  const CharClassTable& classes_ = CharClassTable::Get();
  CharKind kind_;
  SplitBehavior behavior_;
};

// Cuts before each `marker`, or only before those that do not directly follow another.
absl::Status CutBefore(Piece whole, std::string_view marker, bool every, PieceSink sink) {
  const std::string_view text = whole.text;
  size_t begin = 0;
  size_t search = 0;
  while (true) {
    const size_t at = text.find(marker, search);
    if (at == std::string_view::npos) break;
    const bool follows = at > 0 && at == search;
    if (at > begin && (every || !follows)) {
      HEDDLE_RETURN_IF_ERROR(
          sink({text.substr(begin, at - begin), whole.at_start && begin == 0, whole.budget}));
      begin = at;
    }
    search = at + marker.size();
  }
  if (begin == text.size()) return absl::OkStatus();
  return sink({text.substr(begin), whole.at_start && begin == 0, whole.budget});
}

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  absl::Status Split(Piece piece, PieceSink sink) const override {
    std::string text = base::ReplaceAll(piece.text, " ", replacement_);
    const bool prepends =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (prepends && !text.starts_with(replacement_)) text.insert(0, replacement_);
    if (piece.budget != nullptr) HEDDLE_RETURN_IF_ERROR(piece.budget->CheckSize(text.size()));
    const Piece whole{text, piece.at_start, piece.budget};
    return split_ ? CutBefore(whole, replacement_, true, sink) : sink(whole);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

class MetaspaceBoundaries : public PreTokenizer {
 public:
  absl::Status Split(Piece piece, PieceSink sink) const override {
    return CutBefore(piece, kMetaspace, false, sink);
  }
};

class PrefixSpace : public PreTokenizer {
 public:
  absl::Status Split(Piece piece, PieceSink sink) const override {
    if (piece.text.starts_with(' ')) return sink(piece);
    const std::string text = base::StrCat(" ", piece.text);
    return sink({text, piece.at_start, piece.budget});
  }
};

class OnByteAlphabet : public PreTokenizer {
 public:
  explicit OnByteAlphabet(std::unique_ptr<PreTokenizer> inner) : inner_(std::move(inner)) {}

  absl::Status Split(Piece piece, PieceSink sink) const override {
    const std::string mapped = ToByteLevel(piece.text);
    // Parts may have been removed between two pieces, so positions come from the pointers. Each
    // code point of the mapped text is one byte of the piece.
    size_t mapped_at = 0;
    size_t at = 0;
    const auto advance = [&](size_t mapped_end) {
      while (mapped_at < mapped_end) {
        mapped_at += base::Utf8Size(mapped[mapped_at]);
        ++at;
      }
      return at;
    };
    return inner_->Split({mapped, piece.at_start, piece.budget}, [&](Piece part) {
      const auto mapped_begin = static_cast<size_t>(part.text.data() - mapped.data());
      const size_t begin = advance(mapped_begin);
      const size_t end = advance(mapped_begin + part.text.size());
      return sink({piece.text.substr(begin, end - begin), part.at_start, piece.budget});
    });
  }

 private:
  std::unique_ptr<PreTokenizer> inner_;
};

}  // namespace

std::unique_ptr<PreTokenizer> NewSequence(std::vector<std::unique_ptr<PreTokenizer>> stages) {
  if (stages.size() == 1) return std::move(stages[0]);
  return std::make_unique<StageSequence>(std::move(stages));
}

std::unique_ptr<PreTokenizer> NewRegexSplit(Regex regex, SplitBehavior behavior, bool invert) {
  return std::make_unique<RegexSplit>(std::move(regex), behavior, invert);
}

std::unique_ptr<PreTokenizer> NewScannerSplit(const ScannerSpec& spec) {
  return std::make_unique<ScannerSplit>(spec);
}

std::unique_ptr<PreTokenizer> NewCharSplit(CharKind kind, SplitBehavior behavior) {
  return std::make_unique<CharSplit>(kind, behavior);
}

std::unique_ptr<PreTokenizer> NewMetaspace(std::string replacement, Prepend prepend, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), prepend, split);
}

std::unique_ptr<PreTokenizer> NewMetaspaceBoundaries() {
  return std::make_unique<MetaspaceBoundaries>();
}

std::unique_ptr<PreTokenizer> NewPrefixSpace() { return std::make_unique<PrefixSpace>(); }

std::unique_ptr<PreTokenizer> NewOnByteAlphabet(std::unique_ptr<PreTokenizer> inner) {
  return std::make_unique<OnByteAlphabet>(std::move(inner));
}

}  // namespace heddle::engine::text
