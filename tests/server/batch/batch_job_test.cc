// The files of batches on the disk, from one process to the next.
#include "server/batch/batch_job.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/batch/batch_store.h"
#include "tests/support/temp_dir.h"

namespace heddle::server {
namespace {

using nlohmann::json;

std::string Content(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += json{{"custom_id", "line " + std::to_string(i)},
                 {"method", "POST"},
                 {"url", "/v1/completions"},
                 {"body", {{"prompt", "x"}}}}
                .dump() +
            "\n";
  }
  return text;
}

struct Folder {
  // As a new process finds it.
  void Open(int64_t max_bytes = 1 << 20) {
    files.reset();
    auto opened = FileStore::Open(dir.path().string(), {.max_bytes = max_bytes, .max_files = 5});
    REQUIRE(opened.ok());
    files = *std::move(opened);
  }

  test::TempDir dir;
  std::unique_ptr<FileStore> files;
};

BatchRecord NewBatch(Folder* folder, int lines) {
  folder->Open();
  BatchRecord batch;
  batch.id = "batch_1";
  batch.owner = 7;
  batch.endpoint = "/v1/completions";
  batch.input_file =
      folder->files->Add({.owner = 7, .name = "in", .purpose = "batch"}, Lines(lines))->id;
  batch.output_file = folder->files->NewId();
  batch.error_file = folder->files->NewId();
  batch.total = lines;
  return batch;
}

TEST_CASE("A job goes on where the process before it was killed", "[unit]") {
  Folder folder;
  BatchRecord batch = NewBatch(&folder, 4);
  const std::string output = folder.files->PathOf(batch.output_file);
  {
    auto job = BatchJob::Open(&batch, {}, folder.files.get());
    REQUIRE(job.ok());
    const auto first = (*job)->Next();
    CHECK((*first)->custom_id == "line 0");
    CHECK((*(*job)->Next())->custom_id == "line 1");
    CHECK((*job)
              ->Add({.custom_id = "line 1", .http_status = 200, .body = R"({"a":[[[1]]]})"}, &batch)
              .ok());
    CHECK((*job)
              ->Add({.custom_id = "line 0", .http_status = 400, .body = R"({"error":{}})"}, &batch)
              .ok());
  }
  // The process was in the middle of a line.
  std::ofstream(output, std::ios::app) << R"({"id":"batch_req_2","custom_id":"line 2","resp)";
  folder.Open();
  batch.succeeded = 99;
  auto job = BatchJob::Open(&batch, {}, folder.files.get());
  REQUIRE(job.ok());
  CHECK(batch.succeeded == 1);
  CHECK(batch.failed == 1);
  CHECK((*(*job)->Next())->custom_id == "line 2");
  CHECK((*(*job)->Next())->custom_id == "line 3");
  CHECK_FALSE((*job)->Next()->has_value());
  CHECK((*job)->Add({.custom_id = "line 2", .http_status = 200, .body = "{}"}, &batch).ok());
  CHECK((*job)
            ->Add({.custom_id = "line 3", .code = "batch_expired", .message = "too late"}, &batch)
            .ok());

  CHECK(folder.files->Find(batch.output_file, 7) == nullptr);
  REQUIRE((*job)->Publish(&batch, 1234).ok());
  REQUIRE((*job)->Publish(&batch, 1234).ok());  // the process was killed in between
  CHECK(batch.has_output);
  CHECK(batch.has_errors);
  CHECK(folder.files->Find(batch.output_file, 7)->created == 1234);
  CHECK(folder.files->Find(batch.output_file, 8) == nullptr);
  std::istringstream lines(Content(output));
  std::vector<std::string> ids;
  for (std::string line; std::getline(lines, line);) {
    ids.push_back(json::parse(line)["custom_id"]);
  }
  CHECK(ids == std::vector<std::string>{"line 1", "line 2"});
  std::istringstream errors(Content(folder.files->PathOf(batch.error_file)));
  std::string line;
  std::getline(errors, line);
  CHECK(json::parse(line)["response"]["status_code"] == 400);
  std::getline(errors, line);
  CHECK(json::parse(line)["response"].is_null());
  CHECK(json::parse(line)["error"]["code"] == "batch_expired");
  // Nothing was counted twice: what is on the disk is what the store says.
  const int64_t counted = folder.files->bytes();
  folder.Open();
  CHECK(folder.files->bytes() == counted);
}

TEST_CASE("An id with quotes and braces is found again", "[unit]") {
  Folder folder;
  BatchRecord batch = NewBatch(&folder, 1);
  const std::string id = R"(x","response":{"}\)";
  std::ofstream(folder.files->PathOf(batch.input_file)) << json{{"custom_id", id},
                                                                {"method", "POST"},
                                                                {"url", "/v1/completions"},
                                                                {"body", {{"a", 1}}}}
                                                        << "\n";
  std::string deep = std::string(100, '[') + std::string(100, ']');
  {
    auto job = BatchJob::Open(&batch, {}, folder.files.get());
    CHECK((*job)
              ->Add({.custom_id = id, .http_status = 200, .body = R"({"a":)" + deep + "}"}, &batch)
              .ok());
  }
  auto job = BatchJob::Open(&batch, {}, folder.files.get());
  CHECK_FALSE((*job)->Next()->has_value());
}

TEST_CASE("Files of a folder are found by the next process, with their owners", "[unit]") {
  Folder folder;
  folder.Open();
  const std::string id =
      folder.files
          ->Add({.owner = 7, .created = 5, .expires = 50, .name = "x\n\"", .purpose = "batch"},
                "content")
          ->id;
  folder.Open();
  CHECK(folder.files->Find(id, 8) == nullptr);
  const auto found = folder.files->Find(id, 7);
  REQUIRE(found != nullptr);
  CHECK(json::parse(FileJson(*found)) == json{{"id", id},
                                              {"object", "file"},
                                              {"bytes", 7},
                                              {"created_at", 5},
                                              {"expires_at", 50},
                                              {"filename", "x\n\""},
                                              {"purpose", "batch"},
                                              {"status", "processed"},
                                              {"status_details", nullptr}});
  CHECK_FALSE(folder.files->Delete(id, 8));
  folder.files->DeleteExpired(49);
  CHECK(folder.files->Find(id, 7) != nullptr);
  folder.files->DeleteExpired(50);
  CHECK(folder.files->Find(id, 7) == nullptr);
  CHECK(folder.files->bytes() == 0);
  CHECK_FALSE(std::filesystem::exists(folder.files->PathOf(id)));
}

TEST_CASE("Files have bounds, and what does not fit leaves nothing", "[unit]") {
  Folder folder;
  folder.Open(/*max_bytes=*/10);
  CHECK(folder.files->Add({.owner = 1}, "12345678").ok());
  CHECK(absl::IsResourceExhausted(folder.files->Add({.owner = 2}, "123").status()));
  CHECK(folder.files->Add({.owner = 2}, "12").ok());
  CHECK(folder.files->bytes() == 10);
  for (int i = 0; i < 4; ++i) CHECK(folder.files->Add({.owner = 3}, "").ok());
  CHECK(folder.files->Add({.owner = 3}, "").ok());
  CHECK(absl::IsResourceExhausted(folder.files->Add({.owner = 3}, "").status()));
}

TEST_CASE("What a killed process left half is deleted, but not what grows", "[unit]") {
  Folder folder;
  folder.Open();
  const std::string kept = folder.files->Add({.owner = 1}, "x")->id;
  const std::string growing = folder.files->NewId();
  const std::string orphan = folder.files->NewId();
  for (const std::string& id : {growing, orphan, orphan + ".new", std::string("theirs")}) {
    std::ofstream(folder.files->PathOf(id)) << "x";
  }
  folder.Open();
  folder.files->DeleteOrphans({growing});
  CHECK(std::filesystem::exists(folder.files->PathOf(kept)));
  CHECK(std::filesystem::exists(folder.files->PathOf(growing)));
  CHECK(std::filesystem::exists(folder.files->PathOf("theirs")));
  CHECK_FALSE(std::filesystem::exists(folder.files->PathOf(orphan)));
  CHECK_FALSE(std::filesystem::exists(folder.files->PathOf(orphan + ".new")));
}

TEST_CASE("A record is the same after it was on the disk", "[unit]") {
  const test::TempDir folder;
  BatchRecord batch;
  batch.id = "batch_1";
  batch.owner = 0xfedcba9876543210;
  batch.endpoint = "/v1/embeddings";
  batch.input_file = "file-1";
  batch.window = "24h";
  batch.metadata = R"({"a":"b"})";
  batch.Become(BatchStatus::kValidating, 10);
  batch.Become(BatchStatus::kInProgress, 11);
  batch.expires = 100;
  batch.output_file = "file-2";
  batch.error_file = "file-3";
  batch.output_lifetime = 3600;
  batch.total = 5;
  {
    auto store = BatchStore::Open(folder.path().string());
    REQUIRE((*store)->Add(batch).ok());
    batch.faults.push_back({"code", "message", "param", 3});
    batch.Become(BatchStatus::kFailed, 12);
    batch.has_output = true;
    batch.succeeded = 2;
    REQUIRE((*store)->Save(batch).ok());
  }
  auto store = BatchStore::Open(folder.path().string());
  CHECK((*store)->Find("batch_1", 1) == nullptr);
  const auto found = (*store)->Find("batch_1", batch.owner);
  REQUIRE(found != nullptr);
  CHECK(DiskJson(*found) == DiskJson(batch));
  const json shown = json::parse(BatchJson(*found));
  CHECK(shown["output_file_id"] == "file-2");
  CHECK(shown["error_file_id"].is_null());
  CHECK(shown["failed_at"] == 12);
  CHECK(shown["errors"]["data"][0]["line"] == 3);
  CHECK(shown["request_counts"] == json{{"total", 5}, {"completed", 2}, {"failed", 0}});
  CHECK_FALSE(shown.contains("owner"));
  CHECK((*store)->Unfinished().empty());
}

TEST_CASE("A batch that was cancelled is not shown as running again", "[unit]") {
  const test::TempDir folder;
  auto store = BatchStore::Open(folder.path().string());
  BatchRecord batch;
  batch.id = "batch_1";
  batch.Become(BatchStatus::kInProgress, 11);
  REQUIRE((*store)->Add(batch).ok());
  CHECK((*store)->Cancel("batch_1", 0, 12)->status == BatchStatus::kCancelling);
  batch.succeeded = 3;
  (*store)->Show(batch);
  CHECK((*store)->Find("batch_1", 0)->status == BatchStatus::kCancelling);
  CHECK((*store)->Find("batch_1", 0)->succeeded == 3);
  batch.Become(BatchStatus::kCancelled, 13);
  REQUIRE((*store)->Save(batch).ok());
  CHECK(absl::IsInvalidArgument((*store)->Cancel("batch_1", 0, 14).status()));
  CHECK(absl::IsNotFound((*store)->Cancel("batch_1", 1, 14).status()));
}

TEST_CASE("A batch that is cancelled while its progress is saved stays cancelled", "[unit]") {
  const test::TempDir folder;
  auto store = BatchStore::Open(folder.path().string());
  constexpr int kBatches = 100;
  const auto batch_of = [](int i) {
    BatchRecord batch;
    batch.id = "batch_" + std::to_string(i);
    batch.owner = static_cast<uint64_t>(i);
    batch.Become(BatchStatus::kInProgress, 11);
    return batch;
  };
  for (int i = 0; i < kBatches; ++i) REQUIRE((*store)->Add(batch_of(i)).ok());
  int num_unsaved = 0;
  std::thread runner([&] {
    for (int i = 0; i < kBatches; ++i) {
      BatchRecord batch = batch_of(i);
      for (batch.succeeded = 1; batch.succeeded <= 3; ++batch.succeeded) {
        num_unsaved += (*store)->Save(batch).ok() ? 0 : 1;
      }
    }
  });
  int num_refused = 0;
  for (int i = 0; i < kBatches; ++i) {
    const uint64_t owner = static_cast<uint64_t>(i);
    num_refused += (*store)->Cancel(batch_of(i).id, owner, 12).ok() ? 0 : 1;
  }
  runner.join();
  CHECK(num_unsaved == 0);
  CHECK(num_refused == 0);
  store = BatchStore::Open(folder.path().string());  // as the next process finds it
  for (int i = 0; i < kBatches; ++i) {
    const auto found = (*store)->Find(batch_of(i).id, static_cast<uint64_t>(i));
    REQUIRE(found != nullptr);
    CHECK(found->status == BatchStatus::kCancelling);
    CHECK(found->succeeded == 3);
  }
}

TEST_CASE("An owner's batches have a bound", "[unit]") {
  const test::TempDir folder;
  auto store = BatchStore::Open(folder.path().string());
  for (size_t i = 0; i <= BatchStore::kMaxOpen; ++i) {
    BatchRecord batch;
    batch.id = "batch_" + std::to_string(i);
    batch.Become(BatchStatus::kInProgress, 1);
    CHECK((*store)->Add(batch).ok() == (i < BatchStore::kMaxOpen));
  }
  BatchRecord other;
  other.id = "batch_x";
  other.owner = 1;
  CHECK((*store)->Add(other).ok());
}

}  // namespace
}  // namespace heddle::server
