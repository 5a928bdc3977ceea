#include "server/batch/batch_record.h"

#include <cstdlib>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

// The order of BatchStatus.
constexpr std::string_view kNames[kNumBatchStatuses] = {"validating", "in_progress", "finalizing",
                                                        "cancelling", "completed",   "failed",
                                                        "expired",    "cancelled"};

void WriteText(std::string_view name, std::string_view text, JsonWriter* json) {
  json->Key(name);
  text.empty() ? json->Null() : json->String(text);
}

void WriteTime(std::string_view name, int64_t time, JsonWriter* json) {
  json->Key(name);
  time == 0 ? json->Null() : json->Int(time);
}

void WriteFaults(const std::vector<BatchFault>& faults, JsonWriter* json) {
  json->Key("errors");
  if (faults.empty()) {
    json->Null();
    return;
  }
  json->BeginObject().Member("object", "list").Key("data").BeginArray();
  for (const BatchFault& fault : faults) {
    json->BeginObject().Member("code", fault.code).Member("message", fault.message);
    WriteText("param", fault.param, json);
    WriteTime("line", fault.line, json);
    json->EndObject();
  }
  json->EndArray().EndObject();
}

void WriteTimes(const BatchRecord& batch, JsonWriter* json) {
  json->Member("created_at", batch.created());
  WriteTime("expires_at", batch.expires, json);
  for (size_t i = 1; i < kNumBatchStatuses; ++i) {
    WriteTime(base::StrCat(kNames[i], "_at"), batch.since[i], json);
  }
}

void WriteMembers(const BatchRecord& batch, bool shows_files, JsonWriter* json) {
  json->Member("id", batch.id).Member("object", "batch").Member("endpoint", batch.endpoint);
  WriteFaults(batch.faults, json);
  json->Member("input_file_id", batch.input_file).Member("completion_window", batch.window);
  json->Member("status", BatchStatusName(batch.status));
  WriteText("output_file_id", shows_files && batch.has_output ? batch.output_file : "", json);
  WriteText("error_file_id", shows_files && batch.has_errors ? batch.error_file : "", json);
  WriteTimes(batch, json);
  json->Key("request_counts").BeginObject().Member("total", batch.total);
  json->Member("completed", batch.succeeded).Member("failed", batch.failed).EndObject();
  json->Key("metadata").Raw(batch.metadata);
}

int64_t IntegerAt(const Json& object, std::string_view name) {
  const Json* value = Find(object, name);
  return value == nullptr ? 0 : IntegerOf(*value).value_or(0);
}

bool FlagAt(const Json& object, std::string_view name) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

absl::StatusOr<BatchStatus> StatusAt(const Json& object) {
  const std::string name = TextOr(object, "status", "");
  for (size_t i = 0; i < kNumBatchStatuses; ++i) {
    if (kNames[i] == name) return static_cast<BatchStatus>(i);
  }
  return absl::InvalidArgumentError(base::StrCat("no status of a batch: ", base::Quote(name)));
}

void ReadFaults(const Json& object, BatchRecord* batch) {
  const Json* errors = Find(object, "errors");
  const Json* data = errors == nullptr ? nullptr : Find(*errors, "data");
  if (data == nullptr || !data->is_array()) return;
  for (const Json& fault : *data) {
    batch->faults.push_back({TextOr(fault, "code", ""), TextOr(fault, "message", ""),
                             TextOr(fault, "param", ""), IntegerAt(fault, "line")});
  }
}

}  // namespace

std::string_view BatchStatusName(BatchStatus status) { return kNames[static_cast<size_t>(status)]; }

std::string BatchJson(const BatchRecord& batch) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  WriteMembers(batch, HasEnded(batch.status), &json);
  json.EndObject();
  return out;
}

std::string DiskJson(const BatchRecord& batch) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  WriteMembers(batch, /*shows_files=*/false, &json);
  json.Member("owner", absl::StrFormat("%016x", batch.owner));
  json.Member("output_file", batch.output_file).Member("error_file", batch.error_file);
  json.Key("has_output").Bool(batch.has_output).Key("has_errors").Bool(batch.has_errors);
  json.Member("output_lifetime", batch.output_lifetime).EndObject();
  return out;
}

absl::StatusOr<BatchRecord> ReadDiskJson(std::string_view text) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  BatchRecord batch;
  HEDDLE_ASSIGN_OR_RETURN(batch.status, StatusAt(json));
  batch.id = TextOr(json, "id", "");
  batch.owner = std::strtoull(TextOr(json, "owner", "").c_str(), nullptr, 16);
  batch.endpoint = TextOr(json, "endpoint", "");
  batch.input_file = TextOr(json, "input_file_id", "");
  batch.window = TextOr(json, "completion_window", "");
  if (const Json* metadata = Find(json, "metadata")) batch.metadata = metadata->dump();
  batch.since[0] = IntegerAt(json, "created_at");
  for (size_t i = 1; i < kNumBatchStatuses; ++i) {
    batch.since[i] = IntegerAt(json, base::StrCat(kNames[i], "_at"));
  }
  batch.expires = IntegerAt(json, "expires_at");
  batch.output_file = TextOr(json, "output_file", "");
  batch.error_file = TextOr(json, "error_file", "");
  batch.has_output = FlagAt(json, "has_output");
  batch.has_errors = FlagAt(json, "has_errors");
  batch.output_lifetime = IntegerAt(json, "output_lifetime");
  if (const Json* counts = Find(json, "request_counts")) {
    batch.total = IntegerAt(*counts, "total");
    batch.succeeded = IntegerAt(*counts, "completed");
    batch.failed = IntegerAt(*counts, "failed");
  }
  ReadFaults(json, &batch);
  return batch;
}

}  // namespace heddle::server
