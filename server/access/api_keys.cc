#include "server/access/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"

namespace heddle::server {
namespace {

constexpr int64_t kMaxLimit = int64_t{1} << 40;  // beyond any rate, and exact as a double
constexpr int64_t kMaxWeight = 1000;

std::vector<std::string_view> Words(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<std::string_view> words;
  size_t begin = line.find_first_not_of(kBlank);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlank, end);
  }
  return words;
}

bool ParseDigest(std::string_view hex, std::array<unsigned char, 32>* digest) {
  if (hex.size() != 2 * digest->size()) return false;
  for (size_t i = 0; i < digest->size(); ++i) {
    const char* begin = hex.data() + 2 * i;
    auto [end, error] = std::from_chars(begin, begin + 2, (*digest)[i], 16);
    if (error != std::errc() || end != begin + 2) return false;
  }
  return true;
}

// The names in "a,b"; empty names are skipped.
std::shared_ptr<const std::vector<std::string>> ParseNames(std::string_view list) {
  auto names = std::make_shared<std::vector<std::string>>();
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) names->emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

absl::Status ParseAttribute(std::string_view word, ApiKey* key) {
  if (word == "admin") {
    key->admin = true;
    return absl::OkStatus();
  }
  const size_t equals = std::min(word.find('='), word.size());
  const std::string_view name = word.substr(0, equals);
  if (name == "adapters" && equals < word.size()) {
    key->adapters = ParseNames(word.substr(equals + 1));
    return absl::OkStatus();
  }
  int64_t weight = key->weight;
  int64_t* number = name == "requests_per_minute" ? &key->limits.requests_per_minute
                    : name == "tokens_per_minute" ? &key->limits.tokens_per_minute
                    : name == "concurrency"       ? &key->limits.concurrency
                    : name == "weight"            ? &weight
                                                  : nullptr;
  if (number == nullptr || equals == word.size()) {
    return absl::InvalidArgumentError(
        base::StrCat(base::Quote(word),
                     " is none of admin, requests_per_minute=N, tokens_per_minute=N, "
                     "concurrency=N, weight=N, adapters=NAME,..."));
  }
  const bool is_weight = number == &weight;
  const int64_t least = is_weight ? 1 : 0;
  const int64_t most = is_weight ? kMaxWeight : kMaxLimit;
  const std::string_view digits = word.substr(equals + 1);
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *number);
  const bool is_whole = error == std::errc() && end == digits.data() + digits.size();
  if (!is_whole || *number < least || *number > most) {
    return absl::InvalidArgumentError(base::StrCat(name, " must be a whole number from ", least,
                                                   is_weight ? " to " : " (no limit) to ", most,
                                                   ", not ", base::Quote(digits)));
  }
  key->weight = static_cast<int32_t>(weight);
  return absl::OkStatus();
}

absl::StatusOr<ApiKey> ParseLine(const std::vector<std::string_view>& words,
                                 const KeyLimits& defaults) {
  ApiKey key;
  key.name = std::string(words[0]);
  key.limits = defaults;
  if (words.size() < 2 || !ParseDigest(words[1], &key.sha256)) {
    return absl::InvalidArgumentError(
        "expected a name and the key's SHA-256 as 64 hexadecimal digits (never the key itself)");
  }
  for (size_t i = 2; i < words.size(); ++i) HEDDLE_RETURN_IF_ERROR(ParseAttribute(words[i], &key));
  return key;
}

}  // namespace

std::array<unsigned char, 32> HashKey(std::string_view key) {
  std::array<unsigned char, 32> digest{};
  HEDDLE_CHECK(
      EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1,
      "SHA-256 failed");
  return digest;
}

absl::StatusOr<std::vector<ApiKey>> ParseKeyFile(std::string_view text, const KeyLimits& defaults) {
  std::vector<ApiKey> keys;
  std::set<std::string, std::less<>> names;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = Words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words[0].starts_with('#')) continue;
    absl::StatusOr<ApiKey> key = ParseLine(words, defaults);
    if (key.ok() && !names.insert(key->name).second) {
      key = absl::InvalidArgumentError("this name stands on an earlier line, too");
    }
    if (!key.ok()) {
      return absl::InvalidArgumentError(base::StrCat(
          "line ", line, ": ",
          std::string_view(key.status().message().data(), key.status().message().size())));
    }
    keys.push_back(*std::move(key));
  }
  return keys;
}

int KeyRing::Find(std::string_view given) const {
  const std::array<unsigned char, 32> digest = HashKey(given);
  int found = -1;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const bool same = CRYPTO_memcmp(digest.data(), keys_[i].sha256.data(), digest.size()) == 0;
    if (same) found = static_cast<int>(i);
  }
  return found;
}

bool KeyRing::has_ordinary() const {
  return std::any_of(keys_.begin(), keys_.end(), [](const ApiKey& key) { return !key.admin; });
}

}  // namespace heddle::server
