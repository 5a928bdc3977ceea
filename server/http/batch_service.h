// Files and batches (/v1/files, /v1/batches) in the folder that the operator gave (--batch-dir).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/batch/batch_figures.h"
#include "server/batch/batch_store.h"
#include "server/batch/disk.h"
#include "server/batch/file_store.h"

namespace heddle::server {

struct ServerContext;
class BatchRunner;

struct BatchOptions {
  std::string folder;                    // empty: there are no files and no batches
  int64_t max_bytes = int64_t{4} << 30;  // of all files
  int concurrency = 8;                   // lines of batches in progress at a time
};

// Thread-safety: files() and batches() may be used by any thread, as well as Wake.
class BatchService {
 public:
  // Makes the folder if it is not there. FAILED_PRECONDITION: another server uses it.
  static absl::StatusOr<std::shared_ptr<BatchService>> Open(const BatchOptions& options);
  ~BatchService();  // Stop()

  FileStore* files() { return files_.get(); }
  BatchStore* batches() { return batches_.get(); }

  // Begins to run batches, those that another process left included; `server` outlives that.
  void Start(ServerContext* server);
  // For /metrics; of all owners. O(batches that are remembered).
  BatchFigures figures() const;
  // A batch is new, or is cancelled.
  void Wake();
  // Takes back the lines in progress, which the next process will run again. Idempotent.
  void Stop();

 private:
  BatchService() = default;

  int concurrency_ = 1;
  Descriptor lock_;  // of the folder
  std::unique_ptr<FileStore> files_;
  std::unique_ptr<BatchStore> batches_;
  std::unique_ptr<BatchRunner> runner_;  // null until Start
};

}  // namespace heddle::server
