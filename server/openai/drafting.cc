#include "server/openai/drafting.h"

#include <string>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "nlohmann/json.hpp"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"
#include "server/request/show_json.h"

namespace heddle::server {
namespace {

constexpr std::string_view kContentPath = "prediction.content";

// The text of a string, or of parts of the type text.
absl::StatusOr<std::string> ReadContent(const Json& content) {
  if (const std::string* text = TextOf(&content)) return *text;
  std::string all;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string path = base::StrCat(kContentPath, "[", i, "]");
    const Json& part = content[i];
    if (!part.is_object()) {
      return FieldError(path,
                        base::StrCat("'", path, "' must be an object, found ", JsonKind(part)),
                        "invalid_type");
    }
    if (const std::string type = TextOr(part, "type", ""); type != "text") {
      return FieldError(path, base::StrCat("'", path, "': only parts of the type text are known"));
    }
    const Json* text = Find(part, "text");
    if (TextOf(text) == nullptr) {
      return FieldError(base::StrCat(path, ".text"),
                        base::StrCat("'", path, ".text' must be a string"), "invalid_type");
    }
    all.append(*TextOf(text));
  }
  return all;
}

absl::Status ReadPrediction(const RequestFields<fields::kGeneration>& body,
                            const RequestContext& context, GenerationRequest* request) {
  const auto prediction = body.Object<"prediction", fields::kPrediction>();
  if (!prediction.has_value()) return absl::OkStatus();
  if (const std::string* type = prediction->Text<"type">(); type != nullptr && *type != "content") {
    return FieldError("prediction.type", "'prediction.type' must be content: no other is known");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadContent(*prediction->Value<"content">()));
  HEDDLE_ASSIGN_OR_RETURN(request->prediction,
                          EncodeField(text, kContentPath, /*add_special=*/false, *context.codec));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadDrafting(const RequestFields<fields::kGeneration>& body,
                          const RequestContext& context, size_t num_answers,
                          GenerationRequest* request) {
  scheduler::DraftLimits& draft = request->draft;
  draft.max_tokens = static_cast<int32_t>(body.Int<"speculative.n_max">(draft.max_tokens));
  draft.min_tokens = static_cast<int32_t>(body.Int<"speculative.n_min">(draft.min_tokens));
  draft.min_survival = static_cast<float>(body.Number<"speculative.p_min">(0));
  if (const auto own = body.Object<"speculative", fields::kSpeculative>(); own.has_value()) {
    draft.off = own->Bool<"off">(false);
    draft.max_tokens = static_cast<int32_t>(own->Int<"max">(draft.max_tokens));
    draft.min_tokens = static_cast<int32_t>(own->Int<"min">(draft.min_tokens));
    draft.min_survival =
        static_cast<float>(own->Number<"min_p">(static_cast<double>(draft.min_survival)));
    if (const std::string* mode = own->Text<"mode">(); mode != nullptr) {
      if (*mode != "exact" && *mode != "rejection") {
        return FieldError("speculative.mode",
                          base::StrCat("'speculative.mode' must be exact or rejection, not ",
                                       base::Quote(*mode)));
      }
      request->sampling.rejects_guesses = *mode == "rejection";
    }
  }
  if (body.Has<"prediction">() && num_answers > 1) {
    return FieldError("prediction", base::StrCat("'prediction' is of one answer, and this request ",
                                                 "asks for ", num_answers));
  }
  return ReadPrediction(body, context, request);
}

}  // namespace heddle::server
