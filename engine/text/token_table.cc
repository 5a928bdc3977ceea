#include "engine/text/token_table.h"

#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/token_decoder.h"

namespace heddle::engine::text {
namespace {

using base::Quote;

}  // namespace

absl::Status TokenTable::Reserve(int64_t id, std::string_view text) {
  if (id < 0 || id >= std::min(limit_, kMaxVocabSize)) {
    return absl::InvalidArgumentError(base::StrCat("token ", Quote(text), " has id ", id,
                                                   ", expected one in [0, ",
                                                   std::min(limit_, kMaxVocabSize), ")"));
  }
  const auto index = static_cast<size_t>(id);
  if (index >= texts_.size()) {
    texts_.resize(index + 1);
    special_.resize(index + 1);
  }
  return absl::OkStatus();
}

absl::Status TokenTable::Add(int64_t id, std::string_view text) {
  HEDDLE_RETURN_IF_ERROR(Reserve(id, text));
  std::string& entry = texts_[static_cast<size_t>(id)];
  if (entry == text) return absl::OkStatus();
  if (!entry.empty()) {
    return absl::InvalidArgumentError(
        base::StrCat("id ", id, " belongs to both ", Quote(entry), " and ", Quote(text)));
  }
  const auto [known, is_new] = id_of_.try_emplace(std::string(text), static_cast<TokenId>(id));
  if (!is_new && known->second != id) {
    return absl::InvalidArgumentError(
        base::StrCat("token ", Quote(text), " has two ids, ", known->second, " and ", id));
  }
  entry = text;
  return absl::OkStatus();
}

absl::Status TokenTable::AddPossiblyTwice(int64_t id, std::string_view text) {
  HEDDLE_RETURN_IF_ERROR(Reserve(id, text));
  texts_[static_cast<size_t>(id)] = text;
  id_of_.try_emplace(std::string(text), static_cast<TokenId>(id));
  return absl::OkStatus();
}

void TokenTable::Finish(const TokenDecoder& decoder) {
  bytes_.resize(texts_.size());
  for (size_t i = 0; i < texts_.size(); ++i) bytes_[i] = decoder.Apply(texts_[i], false);
}

std::optional<TokenId> TokenTable::Find(std::string_view text) const {
  const auto found = id_of_.find(text);
  if (found == id_of_.end()) return std::nullopt;
  return found->second;
}

}  // namespace heddle::engine::text
