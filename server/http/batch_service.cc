#include "server/http/batch_service.h"

#include <utility>
#include <vector>

#include "base/status.h"
#include "server/http/batch_runner.h"

namespace heddle::server {

absl::StatusOr<std::shared_ptr<BatchService>> BatchService::Open(const BatchOptions& options) {
  auto service = std::shared_ptr<BatchService>(new BatchService());
  const std::string files = options.folder + "/files";
  const std::string batches = options.folder + "/batches";
  HEDDLE_RETURN_IF_ERROR(MakeFolder(options.folder));
  HEDDLE_ASSIGN_OR_RETURN(service->lock_, LockFolder(options.folder));
  HEDDLE_RETURN_IF_ERROR(MakeFolder(files));
  HEDDLE_RETURN_IF_ERROR(MakeFolder(batches));
  HEDDLE_ASSIGN_OR_RETURN(service->files_,
                          FileStore::Open(files, {.max_bytes = options.max_bytes}));
  HEDDLE_ASSIGN_OR_RETURN(service->batches_, BatchStore::Open(batches));
  service->concurrency_ = options.concurrency;
  std::vector<std::string> growing;
  for (const auto& batch : service->batches_->Unfinished()) {
    growing.push_back(batch->output_file);
    growing.push_back(batch->error_file);
  }
  service->files_->DeleteOrphans(growing);
  return service;
}

BatchService::~BatchService() { Stop(); }

void BatchService::Start(ServerContext* server) {
  runner_ = std::make_unique<BatchRunner>(server, files_.get(), batches_.get(), concurrency_);
}

BatchFigures BatchService::figures() const {
  BatchFigures figures;
  batches_->Count(&figures);
  figures.file_bytes = files_->bytes();
  figures.file_bytes_limit = files_->max_bytes();
  if (runner_ != nullptr) runner_->Count(&figures);
  return figures;
}

void BatchService::Wake() {
  if (runner_ != nullptr) runner_->Wake();
}

void BatchService::Stop() {
  if (runner_ != nullptr) runner_->Stop();
}

}  // namespace heddle::server
