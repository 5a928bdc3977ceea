#include "server/http/openapi.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/anthropic/messages_fields.h"
#include "server/batch/batch_fields.h"
#include "server/branches/branch_fields.h"
#include "server/cohere/cohere_fields.h"
#include "server/http/router.h"
#include "server/json_writer.h"
#include "server/kserve/infer_fields.h"
#include "server/llamacpp/llama_fields.h"
#include "server/ollama/ollama_fields.h"
#include "server/openai/api_fields.h"
#include "server/tei/tei_fields.h"

namespace heddle::server {
namespace {

// The documentation of a route beyond router.h's table.
struct RouteDoc {
  RouteId id;
  std::span<const Field> body;            // of the request
  std::vector<std::string_view> members;  // members of every whole answer
  bool streams = false;
  std::string_view text = "";    // content type of an answer that is not JSON
  std::span<const Field> query;  // parameters of the URL
  std::string_view stream_type = "text/event-stream";
  std::span<const Field> items;  // of an array that is the body, or a GET's answer
  std::string_view body_type = "application/json";
  bool is_list = false;  // the answer is an array
};

// Routes in the form of other servers.
std::vector<RouteDoc> DocsOfOthers() {
  return {
      {RouteId::kKserve, {}, {"name", "version", "extensions"}},
      {RouteId::kKserveLive, {}, {"status"}},
      {RouteId::kKserveReady, {}, {"status"}},
      {RouteId::kKserveModel, {}, {"name", "versions", "platform", "inputs", "outputs"}},
      {RouteId::kKserveModelReady, {}, {"name", "ready"}},
      {RouteId::kKserveInfer, fields::kInfer, {"model_name", "outputs"}},
      {RouteId::kLlamaCompletion,
       fields::kLlamaCompletion,
       {"content", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "timings"},
       true},
      {RouteId::kLlamaInfill,
       fields::kLlamaInfill,
       {"content", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "timings"},
       true},
      {RouteId::kLlamaProps, {}, {"default_generation_settings", "total_slots", "chat_template"}},
      {.id = RouteId::kLlamaSlots, .query = fields::kSlotsQuery, .items = fields::kSlot},
      {RouteId::kApplyTemplate, fields::kApplyTemplate, {"prompt"}},
      {RouteId::kTokenizerInfo, {}, {"vocab_size", "model_max_length", "eos_token"}},
      {.id = RouteId::kOllamaChat,
       .body = fields::kOllamaChat,
       .members = {"model", "created_at", "message", "done"},
       .streams = true,
       .stream_type = "application/x-ndjson"},
      {.id = RouteId::kOllamaGenerate,
       .body = fields::kOllamaGenerate,
       .members = {"model", "created_at", "response", "done"},
       .streams = true,
       .stream_type = "application/x-ndjson"},
      {RouteId::kOllamaEmbed, fields::kOllamaEmbed, {"model", "embeddings"}},
      {RouteId::kOllamaEmbeddings, fields::kOllamaEmbeddings, {"embedding"}},
      {RouteId::kAnyRerank, fields::kRerank, {}},
      {.id = RouteId::kTeiEmbed, .body = fields::kTeiEmbed, .is_list = true},
      {.id = RouteId::kTeiPredict, .body = fields::kTeiPredict, .is_list = true},
      {.id = RouteId::kTeiSimilarity, .body = fields::kTeiSimilarity, .is_list = true},
      {.id = RouteId::kTeiRoot, .body = fields::kTeiEmbed, .is_list = true},
      {RouteId::kTeiInfo, {}, {"model_id", "model_type", "max_input_length"}},
      {RouteId::kCohereEmbed, fields::kCohereEmbed, {"id", "embeddings", "texts", "meta"}},
      {RouteId::kCohereEmbed2, fields::kCohereEmbed, {"id", "embeddings", "texts", "meta"}},
      {RouteId::kOllamaTags, {}, {"models"}},
      {RouteId::kOllamaRunning, {}, {"models"}},
      {RouteId::kOllamaShow, fields::kOllamaShow, {"details", "model_info", "capabilities"}},
      {RouteId::kOllamaVersion, {}, {"version"}},
  };
}

std::vector<RouteDoc> DocsOfAdapters() {
  return {
      {RouteId::kLoadAdapter, fields::kLoadAdapter, {}, false, "text/plain"},
      {RouteId::kUnloadAdapter, fields::kUnloadAdapter, {}, false, "text/plain"},
      {RouteId::kLoadPinnedAdapter,
       fields::kLoadAdapter,
       {"success", "error_message", "loaded_adapters"}},
      {RouteId::kUnloadNamedAdapter,
       fields::kUnloadAdapter,
       {"success", "error_message", "loaded_adapters"}},
      {.id = RouteId::kBaseAdapters, .items = fields::kBaseAdapter},
      {.id = RouteId::kSetBaseAdapters, .members = {"success"}, .items = fields::kBaseAdapter},
  };
}

std::vector<RouteDoc> DocsOfConversations() {
  const std::vector<std::string_view> one = {"id", "object", "created_at", "metadata"};
  const std::vector<std::string_view> list = {"object", "data", "first_id", "last_id", "has_more"};
  return {
      {RouteId::kCreateConversation, fields::kNewConversation, one},
      {RouteId::kConversation, {}, one},
      {RouteId::kUpdateConversation, fields::kConversationMetadata, one},
      {RouteId::kDeleteConversation, {}, {"id", "object", "deleted"}},
      {.id = RouteId::kConversationItems, .members = list, .query = fields::kInputItemsQuery},
      {RouteId::kAddConversationItems, fields::kConversationItems, list},
      {RouteId::kConversationItem, {}, {"id", "type"}},
      {RouteId::kDeleteConversationItem, {}, one},
  };
}

std::vector<RouteDoc> DocsOfBranches() {
  const std::vector<std::string_view> list = {"object", "root", "data"};
  return {
      {RouteId::kCreateBranches, fields::kNewBranches, list},
      {RouteId::kBranch,
       {},
       {"id", "object", "root", "parent", "children", "status", "num_tokens", "token_ids", "text",
        "tree"}},
      {RouteId::kDeleteBranch, {}, {"id", "object", "deleted"}},
      {RouteId::kContinueBranch,
       fields::kContinueBranch,
       {"id", "object", "created", "model", "choices", "usage"},
       true},
      {RouteId::kJoinBranches, fields::kJoinBranches, list},
      {RouteId::kScoreBranch, fields::kScoreBranch, {"object", "data", "best", "usage"}},
  };
}

std::vector<RouteDoc> DocsOfFiles() {
  const std::vector<std::string_view> file = {"id",         "object",   "bytes",
                                              "created_at", "filename", "purpose"};
  const std::vector<std::string_view> batch = {
      "id", "object", "endpoint", "input_file_id", "status", "created_at", "request_counts"};
  return {
      {.id = RouteId::kUploadFile,
       .body = fields::kUpload,
       .members = file,
       .body_type = "multipart/form-data"},
      {.id = RouteId::kFiles,
       .members = {"object", "data", "has_more"},
       .query = fields::kFileQuery},
      {.id = RouteId::kFile, .members = file},
      {.id = RouteId::kFileContent, .text = "application/octet-stream"},
      {.id = RouteId::kDeleteFile, .members = {"id", "object", "deleted"}},
      {.id = RouteId::kCreateBatch, .body = fields::kBatch, .members = batch},
      {.id = RouteId::kBatches,
       .members = {"object", "data", "has_more"},
       .query = fields::kBatchQuery},
      {.id = RouteId::kBatch, .members = batch},
      {.id = RouteId::kCancelBatch, .members = batch},
  };
}

std::vector<RouteDoc> OwnDocs() {
  return {
      {RouteId::kCompletions,
       fields::kCompletion,
       {"id", "object", "created", "model", "choices", "usage"},
       true},
      {RouteId::kChatCompletions,
       fields::kChat,
       {"id", "object", "created", "model", "choices", "usage"},
       true},
      {RouteId::kResponses,
       fields::kResponses,
       {"id", "object", "created_at", "status", "model", "output", "usage"},
       true},
      {.id = RouteId::kResponse,
       .members = {"id", "object", "status", "output"},
       .streams = true,
       .query = fields::kResponseQuery},
      {RouteId::kDeleteResponse, {}, {"id", "object", "deleted"}},
      {RouteId::kInputItems,
       {},
       {"object", "data", "first_id", "last_id", "has_more"},
       false,
       "",
       fields::kInputItemsQuery},
      {RouteId::kCancelResponse, {}, {"id", "object", "status"}},
      {RouteId::kInputTokens, fields::kResponses, {"object", "input_tokens"}},
      {RouteId::kCompactResponse, fields::kCompact, {"id", "object", "output", "usage"}},
      {RouteId::kMessages,
       fields::kMessages,
       {"id", "type", "role", "model", "content", "stop_reason", "usage"},
       true},
      {RouteId::kCountTokens, fields::kMessages, {"input_tokens"}},
      {RouteId::kEmbeddings, fields::kEmbeddings, {"object", "data", "model", "usage"}},
      {RouteId::kScore, fields::kScore, {"id", "object", "data", "model", "usage"}},
      {RouteId::kRerank, fields::kRerank, {"id", "model", "results", "usage"}},
      {RouteId::kClassify, fields::kClassify, {"id", "object", "data", "model", "usage"}},
      {RouteId::kModels, {}, {"object", "data"}},
      {RouteId::kModel,
       {},
       {"id", "object", "created", "owned_by", "max_model_len", "max_context_length", "type",
        "capabilities"}},
      {RouteId::kTokenize, fields::kTokenize, {"tokens", "count", "max_model_len"}},
      {RouteId::kDetokenize, fields::kDetokenize, {"prompt", "content"}},
      {RouteId::kHealth, {}, {"status"}},
      {RouteId::kReady, {}, {"status"}},
      {RouteId::kVersion, {}, {"version"}},
      {RouteId::kOpenApi, {}, {"openapi", "info", "paths"}},
      {RouteId::kMetrics, {}, {}, false, "text/plain"},
      {RouteId::kIndex, {}, {}, false, "text/plain"},
  };
}

const std::vector<RouteDoc>& Docs() {
  static const std::vector<RouteDoc> docs = [] {
    std::vector<RouteDoc> all = OwnDocs();
    for (const RouteDoc& doc : DocsOfOthers()) all.push_back(doc);
    for (const RouteDoc& doc : DocsOfAdapters()) all.push_back(doc);
    for (const RouteDoc& doc : DocsOfFiles()) all.push_back(doc);
    for (const RouteDoc& doc : DocsOfBranches()) all.push_back(doc);
    for (const RouteDoc& doc : DocsOfConversations()) all.push_back(doc);
    return all;
  }();
  return docs;
}

std::vector<std::string_view> TypeNames(FieldType type) {
  switch (type) {
    case FieldType::kBoolean:
      return {"boolean"};
    case FieldType::kInteger:
      return {"integer"};
    case FieldType::kNumber:
      return {"number"};
    case FieldType::kString:
      return {"string"};
    case FieldType::kArray:
      return {"array"};
    case FieldType::kObject:
      return {"object"};
    case FieldType::kStringOrArray:
      return {"string", "array"};
    case FieldType::kStringOrObject:
      return {"string", "object"};
    case FieldType::kArrayOrObject:
      return {"array", "object"};
    case FieldType::kSchema:
      return {"object", "boolean", "string"};
    case FieldType::kAny:
      return {"boolean", "number", "string", "array", "object"};
  }
  return {};
}

void WriteBound(std::string_view name, double bound, JsonWriter* json) {
  constexpr double kExact = 0x1p53;  // beyond it, a bound is only that of the number type
  if (std::abs(bound) > kExact) return;
  json->Key(name).Number(bound);
}

// Writes the bounds of Field, under JSON Schema's name for each type.
void WriteBounds(const Field& field, JsonWriter* json) {
  switch (field.type) {
    case FieldType::kBoolean:
    case FieldType::kSchema:
    case FieldType::kAny:
      return;
    case FieldType::kInteger:
    case FieldType::kNumber:
      WriteBound("minimum", field.minimum, json);
      WriteBound("maximum", field.maximum, json);
      return;
    case FieldType::kObject:
    case FieldType::kStringOrObject:
    case FieldType::kArrayOrObject:
      WriteBound("minProperties", std::max(0.0, field.minimum), json);
      WriteBound("maxProperties", field.maximum, json);
      return;
    case FieldType::kString:
      // The limit is in bytes, which are at least as many as JSON Schema's characters.
      WriteBound("maxLength", field.maximum, json);
      return;
    case FieldType::kArray:
    case FieldType::kStringOrArray:
      WriteBound("minItems", std::max(0.0, field.minimum), json);
      WriteBound("maxItems", field.maximum, json);
      return;
  }
}

void WriteSchema(const Field& field, bool nullable, JsonWriter* json);

// Writes the members of an object's schema that describe its own members.
void WriteMembers(std::span<const Field> fields, JsonWriter* json) {
  json->Key("properties").BeginObject();
  for (const Field& field : fields) {
    json->Key(field.name);
    WriteSchema(field, /*nullable=*/!field.required, json);
  }
  json->EndObject();
  auto required = [](const Field& field) { return field.required; };
  if (std::any_of(fields.begin(), fields.end(), required)) {
    json->Key("required").BeginArray();
    for (const Field& field : fields) {
      if (field.required) json->String(field.name);
    }
    json->EndArray();
  }
}

// The schema of a field of the body, where an optional field may also be null, or of the URL.
void WriteSchema(const Field& field, bool nullable, JsonWriter* json) {
  json->BeginObject().Key("type").BeginArray();
  for (std::string_view name : TypeNames(field.type)) json->String(name);
  if (nullable) json->String("null");
  json->EndArray();
  WriteBounds(field, json);
  bool is_json = !field.default_value.empty() && nlohmann::json::accept(field.default_value);
  if (is_json) json->Key("default").Raw(field.default_value);
  std::string description(field.description);
  if (!is_json && !field.default_value.empty()) {
    description.append("; default: ").append(field.default_value);
  }
  json->Member("description", description);
  if (!field.members.empty()) WriteMembers(field.members, json);
  json->EndObject();
}

// The schema of an array of objects.
void WriteItems(std::span<const Field> fields, JsonWriter* json) {
  json->Member("type", "array").Key("items").BeginObject().Member("type", "object");
  WriteMembers(fields, json);
  json->EndObject();
}

void WriteRequestBody(const RouteDoc& doc, JsonWriter* json) {
  json->Key("requestBody").BeginObject().Key("required").Bool(true).Key("content").BeginObject();
  json->Key(doc.body_type).BeginObject().Key("schema").BeginObject();
  if (!doc.items.empty()) {
    WriteItems(doc.items, json);
  } else {
    json->Member("type", "object");
    WriteMembers(doc.body, json);
  }
  json->EndObject().EndObject().EndObject().EndObject();
}

void WriteContent(const RouteDoc& doc, JsonWriter* json) {
  json->Key("content").BeginObject();
  if (!doc.text.empty()) {
    json->Key(doc.text).BeginObject().Key("schema").BeginObject().Member("type", "string");
    json->EndObject().EndObject();
  } else {
    json->Key("application/json").BeginObject().Key("schema").BeginObject();
    if (doc.members.empty() && !doc.items.empty()) {
      WriteItems(doc.items, json);
    } else if (doc.is_list) {
      json->Member("type", "array");
    } else {
      json->Member("type", "object").Key("required").BeginArray();
      for (std::string_view member : doc.members) json->String(member);
      json->EndArray();
    }
    json->EndObject().EndObject();
  }
  if (doc.streams) {
    // OpenAPI 3.1 cannot describe a sequence of events.
    json->Key(doc.stream_type).BeginObject().EndObject();
  }
  json->EndObject();
}

// The schema of errors at a path (ErrorBodyFor).
std::string_view ErrorSchema(std::string_view path) {
  if (path.starts_with("/api/") || path.starts_with("/v2/models/") ||
      path.starts_with("/v2/health/")) {
    return "ErrorText";
  }
  return path.starts_with("/v1/messages") ? "MessagesError" : "Error";
}

void WriteResponses(const RouteDoc& doc, std::string_view error_schema, JsonWriter* json) {
  json->Key("responses").BeginObject();
  json->Key("200").BeginObject().Member("description", "the answer");
  WriteContent(doc, json);
  json->EndObject();
  json->Key("default").BeginObject().Member("description", "an error");
  json->Key("content").BeginObject().Key("application/json").BeginObject().Key("schema");
  json->BeginObject().Member("$ref", base::StrCat("#/components/schemas/", error_schema));
  json->EndObject().EndObject().EndObject().EndObject();
  json->EndObject();
}

void WriteParameters(const Route& route, const RouteDoc& doc, JsonWriter* json) {
  if (route.pattern.find('{') == std::string_view::npos && doc.query.empty()) return;
  json->Key("parameters").BeginArray();
  for (const std::string_view name : {"id", "item"}) {
    if (route.pattern.find(base::StrCat("{", name, "}")) == std::string_view::npos) continue;
    json->BeginObject().Member("name", name).Member("in", "path");
    json->Key("required").Bool(true).Key("schema").BeginObject().Member("type", "string");
    json->EndObject().EndObject();
  }
  if (!doc.query.empty()) {
    for (const Field& field : doc.query) {
      json->BeginObject().Member("name", field.name).Member("in", "query").Key("schema");
      WriteSchema(field, /*nullable=*/false, json);
      json->EndObject();
    }
  }
  json->EndArray();
}

void WriteOperation(const Route& route, const RouteDoc& doc, JsonWriter* json) {
  std::string method(route.method);
  std::transform(method.begin(), method.end(), method.begin(),
                 [](char c) { return static_cast<char>(c - 'A' + 'a'); });
  json->Key(method).BeginObject().Member("summary", route.summary);
  WriteParameters(route, doc, json);
  const bool has_items = !doc.items.empty() && route.method == "POST";
  if (!doc.body.empty() || has_items) WriteRequestBody(doc, json);
  WriteResponses(doc, ErrorSchema(route.pattern), json);
  json->Key("security").BeginArray();
  if (route.needs_key) {
    for (std::string_view scheme : {"bearer", "key"}) {
      json->BeginObject().Key(scheme).BeginArray().EndArray().EndObject();
    }
    json->BeginObject().EndObject();  // also without a key, if none is set
  }
  json->EndArray().EndObject();
}

// All operations of a pattern are under one path.
void WritePaths(JsonWriter* json) {
  json->Key("paths").BeginObject();
  std::vector<std::string_view> seen;
  for (const Route& first : Routes()) {
    if (std::find(seen.begin(), seen.end(), first.pattern) != seen.end()) continue;
    seen.push_back(first.pattern);
    json->Key(first.pattern).BeginObject();
    for (const Route& route : Routes()) {
      if (route.pattern != first.pattern) continue;
      auto doc = std::find_if(Docs().begin(), Docs().end(),
                              [&route](const RouteDoc& d) { return d.id == route.id; });
      WriteOperation(route, doc == Docs().end() ? RouteDoc{route.id} : *doc, json);
    }
    json->EndObject();
  }
  json->EndObject();
}

constexpr std::string_view kComponents =
    R"({"securitySchemes":{"bearer":{"type":"http","scheme":"bearer"},)"
    R"("key":{"type":"apiKey","in":"header","name":"X-Api-Key"}},"schemas":{)"
    R"("Error":{"type":"object","required":["error"],"properties":{"error":{"type":"object",)"
    R"("required":["message","type","param","code"],"properties":{"message":{"type":"string"},)"
    R"("type":{"type":"string"},"param":{"type":["string","null"]},)"
    R"("code":{"type":["string","null"]}}}}},)"
    R"("ErrorText":{"type":"object","required":["error"],"properties":{)"
    R"("error":{"type":"string"}}},)"
    R"("MessagesError":{"type":"object","required":["type","error"],"properties":{)"
    R"("type":{"const":"error"},"error":{"type":"object","required":["type","message"]}}}}})";

}  // namespace

std::string OpenApiDocument(std::string_view version) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("openapi", "3.1.0");
  json.Key("info").BeginObject().Member("title", "Heddle").Member("version", version);
  json.Member("description",
              "OpenAI-compatible inference. Every field may be null where it is not "
              "required; unknown fields are ignored unless the server is told "
              "otherwise.");
  json.EndObject();
  WritePaths(&json);
  json.Key("components").Raw(kComponents).EndObject();
  return out;
}

}  // namespace heddle::server
