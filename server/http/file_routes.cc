#include "server/http/file_routes.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/batch/batch_fields.h"
#include "server/batch/batch_input.h"
#include "server/batch/form.h"
#include "server/batch/lists.h"
#include "server/http/response_routes.h"
#include "server/http/responses.h"
#include "server/json_writer.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"
#include "server/request/query_fields.h"
#include "server/request/request_fields.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr int64_t kMaxWindowSeconds = int64_t{30} * 24 * 3600;
// Pieces of a file's content; two are in memory while it is sent.
constexpr size_t kPieceBytes = size_t{64} << 10;

absl::Status NoSuchFile(std::string_view id) {
  return WithCode(absl::NotFoundError(base::StrCat("there is no file ", base::Quote(id))),
                  "file_not_found");
}

// Sends a file's content, each piece when the one before has been taken.
// Thread: the connection's I/O thread.
class ContentExchange final : public Exchange {
 public:
  ContentExchange(Descriptor content, const PreparationParts& parts)
      : content_(std::move(content)),
        writer_(parts.writer),
        received_(parts.request.received),
        limit_(parts.server->options.request_timeout) {}

  void Begin(const std::string& cors_origin) {
    HttpResponse head = TextResponse("application/octet-stream", "");
    AddCorsHeaders(cors_origin, &head);
    writer_->StartStream(std::move(head), "");
    OnDrained();
  }

  void OnDisconnect() override { ended_ = true; }

  void OnDrained() override {
    if (ended_) return;
    const absl::StatusOr<std::string> piece = ReadAt(content_, offset_, kPieceBytes);
    if (!piece.ok()) {
      ended_ = true;
      writer_->Abort();
    } else if (piece->empty()) {
      ended_ = true;
      writer_->EndStream();
    } else {
      offset_ += static_cast<int64_t>(piece->size());
      writer_->Write(*piece);
    }
  }

  void OnTick(Clock::time_point now) override {
    if (ended_ || !IsOverdue(now - received_, limit_)) return;
    ended_ = true;
    writer_->Abort();
  }

 private:
  const Descriptor content_;
  ResponseWriter* const writer_;
  const Clock::time_point received_;
  const Clock::duration limit_;
  int64_t offset_ = 0;
  bool ended_ = false;
};

// Seconds of a text such as "24h".
absl::StatusOr<int64_t> WindowSeconds(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, number);
  int64_t factor = 0;
  if (error == std::errc() && unit + 1 == end) {
    constexpr std::pair<char, int64_t> kUnits[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    for (const auto& [letter, seconds] : kUnits) factor = letter == *unit ? seconds : factor;
  }
  if (factor > 0 && number > 0 && number <= kMaxWindowSeconds / factor) return number * factor;
  return FieldError("completion_window",
                    base::StrCat("'completion_window' must be a time such as 24h, at most 30d, ",
                                 "found ", base::Quote(text)));
}

class FileRoute final : public Preparation {
 public:
  explicit FileRoute(PreparationParts parts) : parts_(std::move(parts)) {}

  absl::Status Read(const Patience& patience) override {
    if (parts_.server->batch == nullptr) {
      return WithCode(absl::UnimplementedError(
                          "this server keeps no files and runs no batches: it was started without "
                          "--batch-dir"),
                      "batches_are_off");
    }
    if (patience.short_only) return TakesLong();  // it may wait for the disk
    const RouteMatch match = MatchRoute(parts_.request.method, parts_.request.path);
    id_ = std::string(match.parameter);
    HEDDLE_ASSIGN_OR_RETURN(body_, Answer());
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse) override {
    const std::string& origin = parts_.server->options.cors_origin;
    if (content_.has_value() && parts_.request.method != "HEAD") {
      auto exchange = std::make_shared<ContentExchange>(*std::move(content_), parts_);
      exchange->Begin(origin);
      return exchange;
    }
    HttpResponse response = JsonResponse(std::move(body_));
    AddCorsHeaders(origin, &response);
    parts_.writer->Send(std::move(response));
    return nullptr;
  }

 private:
  absl::StatusOr<std::string> Answer() {
    switch (parts_.route) {
      case RouteId::kUploadFile:
        return Upload();
      case RouteId::kFiles:
        return ListFiles();
      case RouteId::kDeleteFile:
        return DeleteFile();
      case RouteId::kFile:
      case RouteId::kFileContent:
        return DescribeFile();
      case RouteId::kCreateBatch:
        return CreateBatch();
      case RouteId::kBatches:
        return ListBatches();
      case RouteId::kCancelBatch:
        return CancelBatch();
      default:
        return DescribeBatch();
    }
  }

  absl::StatusOr<std::string> Upload() {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<FormPart> form,
                            ParseForm(parts_.request.Header("Content-Type"), parts_.request.body));
    const FormPart* content = FindPart(form, "file");
    if (content == nullptr || content->filename.empty()) {
      return FieldError("file", "'file' must be a file with a name");
    }
    HEDDLE_ASSIGN_OR_RETURN(const Json json, FieldsOf(form));
    HEDDLE_ASSIGN_OR_RETURN(const auto fields, RequestFields<fields::kUpload>::Check(json));
    StoredFile file;
    file.owner = owner();
    file.created = UnixNow();
    file.name = content->filename.substr(0, kMaxNameBytes);
    file.purpose = *fields.Text<"purpose">();
    if (const int64_t life = fields.Int<"expires_after[seconds]">(0); life > 0) {
      file.expires = file.created + life;
    }
    HEDDLE_ASSIGN_OR_RETURN(file, files()->Add(std::move(file), content->content));
    return FileJson(file);
  }

  // A form's parts as a body; of the file, its name.
  static absl::StatusOr<Json> FieldsOf(const std::vector<FormPart>& form) {
    std::vector<QueryParameter> values;
    values.reserve(form.size());
    for (const FormPart& part : form) {
      values.emplace_back(part.name,
                          part.name == "file" ? part.filename : std::string(part.content));
    }
    return QueryObject(fields::kUpload, values);
  }

  absl::StatusOr<std::string> ListFiles() {
    HEDDLE_ASSIGN_OR_RETURN(const Json json, Query(fields::kFileQuery));
    HEDDLE_ASSIGN_OR_RETURN(const auto query, RequestFields<fields::kFileQuery>::Check(json));
    ListPage page{.limit = static_cast<size_t>(query.Int<"limit">(10000))};
    if (const std::string* after = query.Text<"after">()) page.after = *after;
    if (const std::string* order = query.Text<"order">()) {
      if (*order != "asc" && *order != "desc") {
        return FieldError("order",
                          base::StrCat("'order' must be asc or desc, found ", base::Quote(*order)));
      }
      page.newest_first = *order == "desc";
    }
    const std::string* purpose = query.Text<"purpose">();
    std::vector<ListEntry> entries;
    for (const auto& file : files()->List(owner())) {
      if (purpose == nullptr || file->purpose == *purpose) {
        entries.push_back({file->id, FileJson(*file)});
      }
    }
    return ListJson(std::move(entries), page);
  }

  absl::StatusOr<std::string> DescribeFile() {
    const auto file = files()->Find(id_, owner());
    if (file == nullptr) return NoSuchFile(id_);
    if (parts_.route == RouteId::kFile) return FileJson(*file);
    absl::StatusOr<Descriptor> content = files()->OpenContent(*file);
    if (absl::IsNotFound(content.status())) return NoSuchFile(id_);  // deleted just now
    HEDDLE_RETURN_IF_ERROR(content.status());
    content_ = *std::move(content);
    return "";
  }

  absl::StatusOr<std::string> DeleteFile() {
    if (!files()->Delete(id_, owner())) return NoSuchFile(id_);
    std::string out;
    JsonWriter json(&out);
    json.BeginObject().Member("id", id_).Member("object", "file");
    json.Key("deleted").Bool(true).EndObject();
    return out;
  }

  absl::StatusOr<std::string> CreateBatch() {
    HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(parts_.request.body));
    HEDDLE_ASSIGN_OR_RETURN(const auto fields, CheckBody<fields::kBatch>(json, {}, parts_.context));
    BatchRecord batch;
    batch.id = RandomId("batch_");
    batch.owner = owner();
    batch.endpoint = *fields.Text<"endpoint">();
    if (!IsBatchEndpoint(batch.endpoint)) {
      return FieldError("endpoint", base::StrCat("'endpoint' must be ", BatchEndpoints(),
                                                 ", found ", base::Quote(batch.endpoint)));
    }
    batch.input_file = *fields.Text<"input_file_id">();
    const auto input = files()->Find(batch.input_file, batch.owner);
    if (input == nullptr) return WithParam(NoSuchFile(batch.input_file), "input_file_id");
    if (input->purpose != "batch") {
      return FieldError("input_file_id",
                        base::StrCat("the file's purpose must be \"batch\", it is ",
                                     base::Quote(input->purpose)));
    }
    batch.window = *fields.Text<"completion_window">();
    HEDDLE_ASSIGN_OR_RETURN(const int64_t seconds, WindowSeconds(batch.window));
    if (const Json* metadata = fields.Value<"metadata">()) batch.metadata = metadata->dump();
    if (const auto after = fields.Object<"output_expires_after", fields::kExpiresAfter>()) {
      batch.output_lifetime = after->Int<"seconds">(0);
    }
    batch.Become(BatchStatus::kValidating, UnixNow());
    batch.expires = batch.created() + seconds;
    batch.output_file = files()->NewId();
    batch.error_file = files()->NewId();
    HEDDLE_RETURN_IF_ERROR(batches()->Add(batch));
    parts_.server->batch->Wake();
    return BatchJson(batch);
  }

  absl::StatusOr<std::string> ListBatches() {
    HEDDLE_ASSIGN_OR_RETURN(const Json json, Query(fields::kBatchQuery));
    HEDDLE_ASSIGN_OR_RETURN(const auto query, RequestFields<fields::kBatchQuery>::Check(json));
    ListPage page{.limit = static_cast<size_t>(query.Int<"limit">(20))};
    if (const std::string* after = query.Text<"after">()) page.after = *after;
    std::vector<ListEntry> entries;
    for (const auto& batch : batches()->List(owner())) {
      entries.push_back({batch->id, BatchJson(*batch)});
    }
    return ListJson(std::move(entries), page);
  }

  absl::StatusOr<std::string> DescribeBatch() {
    const auto batch = batches()->Find(id_, owner());
    if (batch != nullptr) return BatchJson(*batch);
    return WithCode(absl::NotFoundError(base::StrCat("there is no batch ", base::Quote(id_))),
                    "batch_not_found");
  }

  absl::StatusOr<std::string> CancelBatch() {
    HEDDLE_ASSIGN_OR_RETURN(const BatchRecord batch, batches()->Cancel(id_, owner(), UnixNow()));
    parts_.server->batch->Wake();
    return BatchJson(batch);
  }

  absl::StatusOr<Json> Query(std::span<const Field> table) {
    std::vector<QueryParameter> parameters;
    if (!ParseQuery(parts_.request.query, &parameters)) return BrokenQuery();
    return QueryObject(table, parameters);
  }

  uint64_t owner() const { return parts_.context.tenant; }
  FileStore* files() { return parts_.server->batch->files(); }
  BatchStore* batches() { return parts_.server->batch->batches(); }

  PreparationParts parts_;
  std::string id_;
  std::string body_;
  std::optional<Descriptor> content_;  // of a file, in place of a body
};

}  // namespace

bool IsFileRoute(RouteId id) {
  switch (id) {
    case RouteId::kUploadFile:
    case RouteId::kFiles:
    case RouteId::kFile:
    case RouteId::kFileContent:
    case RouteId::kDeleteFile:
    case RouteId::kCreateBatch:
    case RouteId::kBatches:
    case RouteId::kBatch:
    case RouteId::kCancelBatch:
      return true;
    default:
      return false;
  }
}

std::unique_ptr<Preparation> MakeFileRoute(PreparationParts parts) {
  return std::make_unique<FileRoute>(std::move(parts));
}

}  // namespace heddle::server
