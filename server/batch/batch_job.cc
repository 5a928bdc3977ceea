#include "server/batch/batch_job.h"

#include <unistd.h>

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

// Beyond any answer.
constexpr size_t kMaxResultBytes = size_t{1} << 30;
constexpr std::string_view kBehindId = ",\"response\":";

}  // namespace

std::string ResultLine(const BatchResult& result) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", RandomId("batch_req_"));
  json.Member("custom_id", result.custom_id).Key("response");
  if (result.http_status == 0) {
    json.Null();
  } else {
    json.BeginObject().Member("status_code", result.http_status);
    json.Member("request_id", result.request_id).Key("body");
    // Answers are JSON on one line; anything else is a text.
    const bool is_json =
        result.body.starts_with('{') && result.body.find('\n') == std::string::npos;
    is_json ? json.Raw(result.body) : json.String(result.body);
    json.EndObject();
  }
  json.Key("error");
  if (result.code.empty()) {
    json.Null();
  } else {
    json.BeginObject().Member("code", result.code).Member("message", result.message).EndObject();
  }
  json.EndObject();
  return out;
}

absl::StatusOr<std::unique_ptr<BatchJob>> BatchJob::Open(BatchRecord* batch,
                                                         const BatchInputLimits& limits,
                                                         FileStore* files) {
  HEDDLE_ASSIGN_OR_RETURN(
      LineReader input, LineReader::Open(files->PathOf(batch->input_file), limits.max_line_bytes));
  HEDDLE_ASSIGN_OR_RETURN(LineWriter output, LineWriter::Open(files->PathOf(batch->output_file)));
  HEDDLE_ASSIGN_OR_RETURN(LineWriter errors, LineWriter::Open(files->PathOf(batch->error_file)));
  auto job =
      std::unique_ptr<BatchJob>(new BatchJob(std::move(input), std::move(output), std::move(errors),
                                             files, batch->endpoint, kMaxResultBytes));
  batch->succeeded = 0;
  batch->failed = 0;
  HEDDLE_RETURN_IF_ERROR(job->Recover(files->PathOf(batch->output_file), &batch->succeeded));
  HEDDLE_RETURN_IF_ERROR(job->Recover(files->PathOf(batch->error_file), &batch->failed));
  // Results that were published before a restart count as files.
  int64_t bytes = 0;
  if (files->Find(batch->output_file, batch->owner) == nullptr) bytes += job->output_.bytes();
  if (files->Find(batch->error_file, batch->owner) == nullptr) bytes += job->errors_.bytes();
  HEDDLE_RETURN_IF_ERROR(files->Grow(bytes));
  return job;
}

absl::Status BatchJob::Recover(const std::string& path, int64_t* count) {
  HEDDLE_ASSIGN_OR_RETURN(LineReader results, LineReader::Open(path, max_line_bytes_));
  while (true) {
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<std::string> line, results.Next());
    if (!line.has_value()) return absl::OkStatus();
    // Only the beginning is read: an answer may be deeper than what is taken from clients. The text
    // of an id has no such quotes in it, because they are escaped.
    const size_t id_end = line->find(kBehindId);
    const absl::StatusOr<Json> result = ParseJsonObject(line->substr(0, id_end) + "}");
    if (!result.ok()) continue;
    done_.insert(TextOr(*result, "custom_id", ""));
    ++*count;
  }
}

absl::StatusOr<std::optional<BatchLine>> BatchJob::Next() {
  while (true) {
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<std::string> text, input_.Next());
    if (!text.has_value()) return std::nullopt;
    absl::StatusOr<BatchLine> line = ReadBatchLine(*text, endpoint_);
    if (!line.ok()) continue;  // an empty one: the others were checked
    if (!done_.contains(line->custom_id)) return *std::move(line);
  }
}

absl::Status BatchJob::Add(const BatchResult& result, BatchRecord* batch) {
  const std::string line = ResultLine(result);
  const int64_t bytes = static_cast<int64_t>(line.size()) + 1;
  HEDDLE_RETURN_IF_ERROR(files_->Grow(bytes));
  LineWriter& file = result.succeeded() ? output_ : errors_;
  if (absl::Status added = file.Add(line); !added.ok()) {
    files_->Grow(-bytes).IgnoreError();
    return added;
  }
  ++(result.succeeded() ? batch->succeeded : batch->failed);
  return absl::OkStatus();
}

absl::Status BatchJob::Publish(BatchRecord* batch, int64_t now) {
  HEDDLE_RETURN_IF_ERROR(PublishOne(&output_, batch->output_file, "output", *batch, now));
  HEDDLE_RETURN_IF_ERROR(PublishOne(&errors_, batch->error_file, "error", *batch, now));
  batch->has_output = output_.bytes() > 0;
  batch->has_errors = errors_.bytes() > 0;
  return absl::OkStatus();
}

absl::Status BatchJob::PublishOne(LineWriter* file, const std::string& id, std::string_view kind,
                                  const BatchRecord& batch, int64_t now) {
  if (file->bytes() == 0) {
    unlink(files_->PathOf(id).c_str());
    return absl::OkStatus();
  }
  HEDDLE_RETURN_IF_ERROR(file->Sync());
  StoredFile published{.id = id,
                       .owner = batch.owner,
                       .bytes = file->bytes(),
                       .created = now,
                       .expires = batch.output_lifetime == 0 ? 0 : now + batch.output_lifetime,
                       .name = base::StrCat(batch.id, "_", kind, ".jsonl"),
                       .purpose = "batch_output"};
  return files_->Publish(std::move(published));
}

}  // namespace heddle::server
