// The files of a batch that runs: its input, read line by line, and the two that results are added
// to. What is there when it is opened has been done, by a process before this one.
// Thread-safety: none; belongs to the thread that runs batches.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "absl/status/statusor.h"
#include "server/batch/batch_input.h"
#include "server/batch/batch_record.h"
#include "server/batch/disk.h"
#include "server/batch/file_store.h"

namespace heddle::server {

// The outcome of a line: an answer, or why there is none.
struct BatchResult {
  std::string custom_id;
  int http_status = 0;  // 0: there was no answer
  std::string request_id;
  std::string body;  // of the answer, JSON
  // Why there was no answer.
  std::string code;
  std::string message;

  bool succeeded() const { return http_status >= 200 && http_status < 300; }
};

class BatchJob {
 public:
  // REQUIRES: the batch's input was checked. `files` outlives the job. The counts of `batch` become
  // those of the lines that are done.
  static absl::StatusOr<std::unique_ptr<BatchJob>> Open(BatchRecord* batch,
                                                        const BatchInputLimits& limits,
                                                        FileStore* files);

  // The next line that is not done; empty: there are no more.
  absl::StatusOr<std::optional<BatchLine>> Next();

  // Adds a result to the file that it belongs to, and counts it. UNAVAILABLE, RESOURCE_EXHAUSTED:
  // there is no room for it now, and nothing has changed.
  absl::Status Add(const BatchResult& result, BatchRecord* batch);

  // Ends both files: those with lines become files of the batch's owner. Idempotent, also from one
  // process to the next.
  absl::Status Publish(BatchRecord* batch, int64_t now);

 private:
  BatchJob(LineReader input, LineWriter output, LineWriter errors, FileStore* files,
           std::string endpoint, size_t max_line_bytes)
      : input_(std::move(input)),
        output_(std::move(output)),
        errors_(std::move(errors)),
        files_(files),
        endpoint_(std::move(endpoint)),
        max_line_bytes_(max_line_bytes) {}

  absl::Status Recover(const std::string& path, int64_t* count);
  absl::Status PublishOne(LineWriter* file, const std::string& id, std::string_view kind,
                          const BatchRecord& batch, int64_t now);

  LineReader input_;
  LineWriter output_;
  LineWriter errors_;
  FileStore* files_;
  const std::string endpoint_;
  const size_t max_line_bytes_;
  std::unordered_set<std::string> done_;  // custom_ids of lines that were done before
};

// A result as a line of its file.
std::string ResultLine(const BatchResult& result);

}  // namespace heddle::server
