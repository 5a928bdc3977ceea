#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/cuda/ranks/nccl_library.h"
#include "kernels/cuda/ranks/stream_marks.h"

namespace heddle::kernels::cuda {
namespace {

class CudaMark final : public StreamMark {
 public:
  CudaMark(const Runtime& runtime, cudaEvent_t event) : runtime_(runtime), event_(event) {}
  ~CudaMark() override { cudaEventDestroy(event_); }

  absl::Status Record(void* stream) override {
    return runtime_.ToStatus(cudaEventRecord(event_, static_cast<cudaStream_t>(stream)),
                             "marking a place on a stream");
  }
  absl::Status Await(void* stream) override {
    return runtime_.ToStatus(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event_, 0),
                             "joining streams");
  }
  bool IsPassed() const override {
    if (cudaEventQuery(event_) != cudaErrorNotReady) return true;
    cudaGetLastError();  // it is none: forget it
    return false;
  }

 private:
  const Runtime& runtime_;
  const cudaEvent_t event_;
};

class CudaSideStream final : public SideStream {
 public:
  explicit CudaSideStream(cudaStream_t stream) : stream_(stream) {}
  ~CudaSideStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  void* stream() const override { return stream_; }

 private:
  const cudaStream_t stream_;
};

}  // namespace

const char* NcclFile() { return "libnccl.so.2"; }

absl::StatusOr<std::unique_ptr<StreamMark>> StreamMark::Create(const Runtime& runtime) {
  cudaEvent_t event = nullptr;
  HEDDLE_RETURN_IF_ERROR(runtime.ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                          "creating an event"));
  return std::make_unique<CudaMark>(runtime, event);
}

absl::StatusOr<std::unique_ptr<SideStream>> SideStream::Create(const Runtime& runtime) {
  cudaStream_t stream = nullptr;
  HEDDLE_RETURN_IF_ERROR(runtime.ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                          "creating a stream"));
  return std::make_unique<CudaSideStream>(stream);
}

}  // namespace heddle::kernels::cuda
