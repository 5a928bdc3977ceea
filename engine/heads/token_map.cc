#include "engine/heads/token_map.h"

#include <cstring>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/heads/head_tensors.h"

namespace heddle::engine {
namespace {

int64_t EntryAt(const CheckpointTensor& tensor, size_t index) {
  if (tensor.type_name == "I64") {
    int64_t entry = 0;
    std::memcpy(&entry, tensor.data.data() + index * sizeof(entry), sizeof(entry));
    return entry;
  }
  int32_t entry = 0;
  std::memcpy(&entry, tensor.data.data() + index * sizeof(entry), sizeof(entry));
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> ReadTokenMap(const Checkpoint& file, const std::string& name,
                                                  TokenMapKind kind, int32_t draft_vocab,
                                                  int32_t vocab) {
  const auto error = [&](std::string_view what) {
    return HeadError(file, base::StrCat("tensor ", base::Quote(name), " ", what));
  };
  const CheckpointTensor* tensor = file.Find(name);
  if (tensor == nullptr) {
    return error(base::StrCat("is missing, though the draft vocabulary has ", draft_vocab,
                              " tokens and the model's ", vocab));
  }
  if (tensor->type_name != "I64" && tensor->type_name != "I32") {
    return error(base::StrCat("is of type ", tensor->type_name, "; valid are I64 and I32"));
  }
  if (tensor->shape.size() != 1 || tensor->shape[0] != draft_vocab) {
    return error(base::StrCat("has shape [", absl::StrJoin(tensor->shape, ", "), "], expected [",
                              draft_vocab, "], one entry per token of the draft vocabulary"));
  }
  std::vector<TokenId> ids(static_cast<size_t>(draft_vocab));
  std::vector<bool> is_taken(static_cast<size_t>(vocab));
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t entry = EntryAt(*tensor, i);
    const int64_t base = kind == TokenMapKind::kOffsets ? static_cast<int64_t>(i) : 0;
    if (entry < -base || entry >= vocab - base) {
      return error(base::StrCat("holds ", entry, " at ", i, ", expected from ", -base, " to ",
                                vocab - base - 1, " for a vocabulary of ", vocab));
    }
    const auto id = static_cast<size_t>(base + entry);
    if (is_taken[id]) return error(base::StrCat("gives token ", id, " a second time, at ", i));
    is_taken[id] = true;
    ids[i] = static_cast<TokenId>(id);
  }
  return ids;
}

}  // namespace heddle::engine
