#include "engine/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer_parts.h"

namespace heddle::engine::text {
namespace {

// Offsets inside a word are 32 bits wide, and normalisation may lengthen the text.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// One call of Encode: borrows working memory, runs the pipeline, appends to `*out`.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, const EncodeOptions& options, size_t text_bytes,
           EncodeScratch* scratch, std::vector<TokenId>* out)
      : parts_(parts),
        options_(options),
        scratch_(scratch),
        out_(out),
        budget_(WorkBudget::For(text_bytes)) {}

  // Encodes well-formed UTF-8. `at_start`: it begins the user's text.
  absl::Status Text(std::string_view text, bool at_start) {
    if (parts_.raw_added.empty()) return Raw(text, at_start);
    return parts_.raw_added.Split(
        text, options_.parse_special,
        [&](size_t begin, size_t end) {
          return Raw(text.substr(begin, end - begin), at_start && begin == 0);
        },
        [&](TokenId id) { out_->push_back(id); });
  }

  // Encodes bytes that are not UTF-8, for a byte-level model.
  void Bytes(std::string_view bytes) { Word(bytes); }

 private:
  absl::Status Raw(std::string_view text, bool at_start) {
    if (parts_.normalizer == nullptr) return Normalized(text, at_start);
    std::string normalized(text);
    HEDDLE_RETURN_IF_ERROR(parts_.normalizer->Rewrite(&normalized, &budget_));
    HEDDLE_RETURN_IF_ERROR(budget_.CheckSize(normalized.size()));
    budget_.Take(normalized.size());
    return Normalized(normalized, at_start);
  }

  absl::Status Normalized(std::string_view text, bool at_start) {
    if (parts_.normalized_added.empty()) return Words({text, at_start, &budget_});
    return parts_.normalized_added.Split(
        text, options_.parse_special,
        [&](size_t begin, size_t end) {
          return Words({text.substr(begin, end - begin), at_start && begin == 0, &budget_});
        },
        [&](TokenId id) { out_->push_back(id); });
  }

  absl::Status Words(Piece piece) {
    if (piece.text.empty()) return absl::OkStatus();
    if (parts_.pre_tokenizer == nullptr) {
      Word(piece.text);
      return absl::OkStatus();
    }
    return parts_.pre_tokenizer->Split(piece, [this](Piece word) {
      Word(word.text);
      return absl::OkStatus();
    });
  }

  void Word(std::string_view word) {
    if (word.size() > WordCache::kMaxBytes) {
      parts_.model->EncodeWord(word, &scratch_->model, out_);
      return;
    }
    const WordCache::Key key = WordCache::MakeKey(word);
    std::span<const TokenId> ids = scratch_->cache.Find(key);
    if (ids.empty()) {
      scratch_->word_ids.clear();
      parts_.model->EncodeWord(word, &scratch_->model, &scratch_->word_ids);
      ids = scratch_->word_ids;
      scratch_->cache.Put(key, ids);
    }
    if (ids.size() == 1)
      out_->push_back(ids[0]);
    else
      out_->insert(out_->end(), ids.begin(), ids.end());
  }

  const TokenizerParts& parts_;
  const EncodeOptions& options_;
  EncodeScratch* scratch_;
  std::vector<TokenId>* out_;
  WorkBudget budget_;
};

absl::Status EncodeAnyBytes(Encoding* encoding, bool byte_level, std::string_view text) {
  size_t valid = base::ValidUtf8Prefix(text);
  if (valid == text.size()) return encoding->Text(text, true);
  if (!byte_level) return encoding->Text(base::ReplaceInvalidUtf8(text), true);
  for (bool at_start = true; !text.empty(); at_start = false) {
    HEDDLE_RETURN_IF_ERROR(encoding->Text(text.substr(0, valid), at_start));
    text.remove_prefix(valid);
    size_t bad = 0;
    while (bad < text.size() &&
           base::ClassifyUtf8(text.substr(bad)).kind != base::Utf8Kind::kComplete) {
      bad += base::ClassifyUtf8(text.substr(bad)).size;
    }
    if (bad > 0) encoding->Bytes(text.substr(0, bad));
    text.remove_prefix(bad);
    valid = base::ValidUtf8Prefix(text);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<EncodeScratch> ScratchPool::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<EncodeScratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void ScratchPool::Return(std::unique_ptr<EncodeScratch> scratch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(scratch));
}

absl::Status TokenizerParts::IndexAdded() {
  std::vector<AddedTokenFinder::Pattern> raw;
  std::vector<AddedTokenFinder::Pattern> in_normalized;
  for (const AddedToken& token : added) {
    if (token.special) tokens.MarkSpecial(token.id);
    std::string content = token.content;
    if (token.normalized && normalizer != nullptr) {
      HEDDLE_RETURN_IF_ERROR(normalizer->Apply(&content));
    }
    (token.normalized ? in_normalized : raw).push_back({std::move(content), token});
  }
  raw_added = AddedTokenFinder(raw);
  normalized_added = AddedTokenFinder(in_normalized);
  return absl::OkStatus();
}

absl::Status TokenizerParts::AddRaw(std::vector<AddedToken> more) {
  if (more.empty()) return absl::OkStatus();
  for (AddedToken& token : more) {
    const auto is_same = [&token](const AddedToken& known) { return known.id == token.id; };
    if (token.content.empty() || std::any_of(added.begin(), added.end(), is_same)) continue;
    HEDDLE_RETURN_IF_ERROR(tokens.Add(token.id, token.content));
    if (token.special) tokens.MarkSpecial(token.id);
    added.push_back(std::move(token));
  }
  tokens.Finish(decoder);
  std::vector<AddedTokenFinder::Pattern> raw;
  for (const AddedToken& token : added) {
    if (!token.normalized) raw.push_back({token.content, token});
  }
  raw_added = AddedTokenFinder(raw);
  return absl::OkStatus();
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_unique<const TokenizerParts>(std::move(parts))),
      scratch_(std::make_unique<ScratchPool>()) {
  HEDDLE_CHECK(parts_->model != nullptr, "a tokenizer needs a model");
}

Tokenizer::~Tokenizer() = default;

absl::Status Tokenizer::Encode(std::string_view text, const EncodeOptions& options,
                               std::vector<TokenId>* out) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        base::StrCat("text of ", text.size(), " bytes to tokenize, the limit is ", kMaxTextBytes));
  }
  std::unique_ptr<EncodeScratch> scratch = scratch_->Take();
  if (options.add_special) out->insert(out->end(), parts_->prefix.begin(), parts_->prefix.end());
  Encoding encoding(*parts_, options, text.size(), scratch.get(), out);
  absl::Status status = EncodeAnyBytes(&encoding, parts_->byte_level, text);
  if (options.add_special) out->insert(out->end(), parts_->suffix.begin(), parts_->suffix.end());
  scratch_->Return(std::move(scratch));
  return status;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  IncrementalDetokenizer detokenizer(this, skip_special);
  std::string text;
  for (const TokenId id : ids) text.append(detokenizer.Append(id));
  text.append(detokenizer.Flush());
  return text;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const { return parts_->tokens.Bytes(id); }
std::string_view Tokenizer::TokenText(TokenId id) const { return parts_->tokens.Text(id); }
bool Tokenizer::IsSpecial(TokenId id) const { return parts_->tokens.IsSpecial(id); }
int32_t Tokenizer::vocab_size() const { return parts_->tokens.size(); }
std::optional<TokenId> Tokenizer::bos_id() const { return parts_->bos; }
const std::vector<TokenId>& Tokenizer::eos_ids() const { return parts_->eos; }
std::span<const AddedToken> Tokenizer::added_tokens() const { return parts_->added; }
const std::string& Tokenizer::chat_template() const { return parts_->chat_template; }

std::span<const TokenId> Tokenizer::suffix() const { return parts_->suffix; }
const PairTemplate& Tokenizer::pair() const { return parts_->pair; }

std::optional<TokenId> Tokenizer::Find(std::string_view token_text) const {
  return parts_->tokens.Find(token_text);
}

bool Tokenizer::add_bos() const {
  return !parts_->prefix.empty() && parts_->bos.has_value() &&
         parts_->prefix.front() == *parts_->bos;
}

}  // namespace heddle::engine::text
