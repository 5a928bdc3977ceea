#include "server/openai/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"
#include "server/request/show_json.h"

namespace heddle::server {
namespace {

using SamplingFields = RequestFields<fields::kSampling>;
using NumberFields = RequestFields<fields::kSamplingNumbers>;

// Each word as it stands in the middle of a text, with a space before it and without (as vLLM).
absl::Status ReadBadWords(const SamplingFields& body, const TextCodec& codec,
                          engine::SamplingParams* sampling) {
  constexpr size_t kMaxBytes = 256;
  const Json* words = body.Value<"bad_words">();
  if (words == nullptr) return absl::OkStatus();
  for (const Json& entry : *words) {
    const std::string* given = TextOf(&entry);
    std::string text = given == nullptr ? "" : *given;
    text.erase(0, text.find_first_not_of(' '));
    if (text.empty() || text.size() > kMaxBytes) {
      return FieldError("bad_words", base::StrCat("'bad_words' must hold strings of 1 to ",
                                                  kMaxBytes, " bytes, found ", ShowJson(entry)));
    }
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> plain,
                            EncodeField(text, "bad_words", false, codec));
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> spaced,
                            EncodeField(" " + text, "bad_words", false, codec));
    if (plain.empty() || spaced.empty()) continue;
    bool differs = spaced[0] != plain[0] && spaced.size() == plain.size();
    sampling->bad_words.push_back(std::move(plain));
    if (differs) sampling->bad_words.push_back(std::move(spaced));
  }
  return absl::OkStatus();
}

absl::Status AddBias(TokenId token, const Json& value, std::string_view path,
                     engine::SamplingParams* sampling) {
  const std::optional<double> bias = NumberOf(value);
  if (!bias.has_value() || !(std::abs(*bias) <= 100)) {
    return FieldError(path, base::StrCat("'", path, "' must be a number from -100 to 100, found ",
                                         ShowJson(value)));
  }
  sampling->logit_bias.emplace_back(token, static_cast<float>(*bias));
  return absl::OkStatus();
}

// The list of llama.cpp, whose entries are [id or text, bias]; false bans a token. All tokens of a
// text get its bias.
absl::Status ReadBiasPairs(const Json& pairs, const TextCodec& codec,
                           engine::SamplingParams* sampling) {
  const Json ban = -100;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::string path = base::StrCat("logit_bias[", i, "]");
    const Json& pair = pairs[i];
    if (!pair.is_array() || pair.size() != 2) {
      return FieldError("logit_bias",
                        "entries of 'logit_bias' must be pairs of a token and its bias",
                        "invalid_type");
    }
    const std::string* text = TextOf(&pair[0]);
    std::vector<TokenId> tokens;
    if (text != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(tokens, EncodeField(*text, path, /*add_special=*/false, codec));
    } else {
      HEDDLE_ASSIGN_OR_RETURN(tokens, ReadTokenIds(Json::array({pair[0]}), path, codec.vocab()));
    }
    for (TokenId token : tokens) {
      HEDDLE_RETURN_IF_ERROR(AddBias(token, pair[1] == false ? ban : pair[1], path, sampling));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const SamplingFields& body, const TextCodec& codec,
                           engine::SamplingParams* sampling) {
  const Json* map = body.Value<"logit_bias">();
  if (map == nullptr) return absl::OkStatus();
  if (map->is_array()) return ReadBiasPairs(*map, codec, sampling);
  const int32_t vocab = codec.vocab();
  for (auto it = map->begin(); it != map->end(); ++it) {
    const std::string& key = it.key();
    std::string path = base::StrCat("logit_bias.", key.substr(0, 32));
    int32_t token = -1;
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab) {
      return FieldError(path, base::StrCat("keys of 'logit_bias' must be token ids from 0 to ",
                                           vocab - 1, ", found ", base::Quote(key)));
    }
    HEDDLE_RETURN_IF_ERROR(AddBias(token, *it, path, sampling));
  }
  return absl::OkStatus();
}

// Where the tokens that end an answer come from: the model's own, and the request's.
absl::Status ReadStopTokens(const SamplingFields& body, const TextCodec& codec,
                            GenerationRequest* request) {
  std::span<const TokenId> end_tokens = codec.end_tokens();
  if (!body.Bool<"ignore_eos">(false)) {
    request->stop_tokens.assign(end_tokens.begin(), end_tokens.end());
  }
  if (const Json* ids = body.Value<"stop_token_ids">()) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                            ReadTokenIds(*ids, "stop_token_ids", codec.vocab()));
    request->stop_tokens.insert(request->stop_tokens.end(), tokens.begin(), tokens.end());
  }
  return absl::OkStatus();
}

// Beginnings of a breaker, in bytes, that tokens may end in: all but the whole, and none that ends
// within a code point.
std::vector<size_t> Beginnings(std::string_view breaker) {
  std::vector<size_t> sizes;
  for (size_t size = 1; size < breaker.size(); ++size) {
    if ((static_cast<uint8_t>(breaker[size]) & 0xC0) != 0x80) sizes.push_back(size);
  }
  return sizes;
}

// One breaker, and the tokens that end in its beginnings.
struct BreakerParts {
  std::string_view text;
  std::vector<size_t> sizes;
  std::vector<std::vector<TokenId>> heads;  // [sizes.size()]

  // Takes a token of these bytes. Returns whether they hold the whole breaker.
  bool Take(TokenId token, std::string_view bytes) {
    if (bytes.find(text) != std::string_view::npos) return true;
    for (size_t i = 0; i < sizes.size() && !bytes.empty(); ++i) {
      if (bytes.back() != text[sizes[i] - 1]) continue;
      if (bytes.ends_with(text.substr(0, sizes[i]))) heads[i].push_back(token);
    }
    return false;
  }
};

absl::Status ReadDry(const SamplingFields& body, const RequestContext& context,
                     engine::SamplingParams* sampling) {
  std::optional<std::vector<std::string>> texts;
  if (const Json* given = body.Value<"dry_sequence_breakers">()) {
    texts.emplace();
    for (const Json& entry : *given) {
      const std::string* text = TextOf(&entry);
      if (text == nullptr || text->empty() || text->size() > kMaxDryBreakerBytes) {
        return FieldError("dry_sequence_breakers",
                          base::StrCat("'dry_sequence_breakers' must hold strings of 1 to ",
                                       kMaxDryBreakerBytes, " bytes, found ", ShowJson(entry)));
      }
      texts->push_back(*text);
    }
  }
  if (!sampling->has_dry()) return absl::OkStatus();
  if (context.patience.short_only) return TakesLong();
  HEDDLE_ASSIGN_OR_RETURN(sampling->dry_breakers, FindDryBreakers(texts, *context.codec));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<engine::DryBreaker>> FindDryBreakers(
    const std::optional<std::vector<std::string>>& texts, const TextCodec& codec) {
  const std::vector<std::string> all =
      texts.value_or(std::vector<std::string>{"\n", ":", "\"", "*"});
  std::vector<BreakerParts> parts;
  for (const std::string& text : all) {
    if (all.size() > kMaxDryBreakers || text.empty() || text.size() > kMaxDryBreakerBytes) {
      return FieldError("dry_sequence_breakers",
                        base::StrCat("at most ", kMaxDryBreakers, " sequence breakers of 1 to ",
                                     kMaxDryBreakerBytes, " bytes, found ", all.size(),
                                     ", among them ", base::Quote(text)));
    }
    BreakerParts& part = parts.emplace_back();
    part.text = text;
    part.sizes = Beginnings(text);
    part.heads.resize(part.sizes.size());
  }
  std::vector<engine::DryBreaker> breakers(1);
  for (TokenId token = 0; token < codec.vocab(); ++token) {
    const std::string bytes = codec.TokenBytes(token);
    bool holds_one = false;
    for (BreakerParts& part : parts) holds_one = part.Take(token, bytes) || holds_one;
    if (holds_one) breakers[0].heads.push_back(token);
  }
  for (BreakerParts& part : parts) {
    for (size_t i = 0; i < part.sizes.size(); ++i) {
      if (part.heads[i].empty()) continue;
      HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tail,
                              EncodeField(part.text.substr(part.sizes[i]), "dry_sequence_breakers",
                                          /*add_special=*/false, codec));
      if (!tail.empty()) breakers.push_back({std::move(part.heads[i]), std::move(tail)});
    }
  }
  return breakers;
}

absl::Status ReadSamplingNumbers(const NumberFields& body, engine::SamplingParams* out) {
  engine::SamplingParams& sampling = *out;
  body.ForEachNumber(
      [&](size_t i, double value) { engine::kSamplingNumbers[i].Set(value, &sampling); });
  sampling.top_k = std::max(0, sampling.top_k);
  if (sampling.top_p == 0.0f) {  // "the likeliest alone"; 0 is not a sum that tokens can reach
    sampling.top_p = 1.0f;
    sampling.top_k = 1;
  }
  if (sampling.typical_p <= 0.0f) {
    return FieldError("typical_p", "'typical_p' must be above 0, found 0; 1 turns it off");
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const SamplingFields& body, const RequestContext& context,
                          GenerationRequest* request) {
  engine::SamplingParams& sampling = request->sampling;
  sampling = context.model->defaults;
  HEDDLE_RETURN_IF_ERROR(ReadSamplingNumbers(body, &sampling));
  sampling.seed = context.random_seed;
  if (body.Has<"seed">()) sampling.seed = body.Uint<"seed">();
  sampling.min_tokens = static_cast<int32_t>(body.Int<"min_tokens">(0));
  HEDDLE_RETURN_IF_ERROR(ReadStopTokens(body, *context.codec, request));
  if (sampling.min_tokens > 0) sampling.min_tokens_banned = request->stop_tokens;
  HEDDLE_RETURN_IF_ERROR(ReadBadWords(body, *context.codec, &sampling));
  HEDDLE_RETURN_IF_ERROR(ReadDry(body, context, &sampling));
  return ReadLogitBias(body, *context.codec, &sampling);
}

}  // namespace heddle::server
