// Streams and events.
#include <chrono>
#include <memory>

#include "tests/gpu/ptx/cudart.h"

namespace heddle::ptx {
namespace {

using Milliseconds = std::chrono::duration<float, std::milli>;

cudaError_t MakeEvent(cudaEvent_t* event, unsigned flags) {
  return Call([&](Context& context) {
    *event = Add(context.events);
    (*event)->is_timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
  });
}

bool AreLive(const Context& context, CUstream_st* stream, CUevent_st* event) {
  return IsLive(context.streams, stream) && IsLive(context.events, event);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return Call([&](Context& context) {
    // Others wait for the legacy default stream, which nothing here uses.
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    *stream = Add(context.streams);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call([&](Context& context) {
    if (IsLive(context.streams, stream)) context.RunUpTo(*stream->queue, stream->queue->given);
    return Destroy(context.streams, stream);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call([&](Context& context) {
    if (!IsLive(context.streams, stream)) return cudaErrorInvalidResourceHandle;
    context.RunUpTo(*stream->queue, stream->queue->given);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Call([&](Context& context) {
    if (!AreLive(context, stream, event)) return cudaErrorInvalidResourceHandle;
    stream->follows_other = true;
    context.EnqueueWait(*stream, *event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return MakeEvent(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return MakeEvent(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([&](Context& context) { return Destroy(context.events, event); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call([&](Context& context) {
    if (!AreLive(context, stream, event)) return cudaErrorInvalidResourceHandle;
    event->stamp = std::make_shared<Stamp>();
    context.Enqueue(*stream,
                    [stamp = event->stamp] { stamp->passed = std::chrono::steady_clock::now(); });
    event->queue = stream->queue;
    event->place = stream->queue->given;
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call([&](Context& context) {
    if (!IsLive(context.events, event)) return cudaErrorInvalidResourceHandle;
    const bool is_passed = event->stamp == nullptr || event->stamp->passed.has_value();
    return is_passed ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call([&](Context& context) {
    if (!IsLive(context.events, event)) return cudaErrorInvalidResourceHandle;
    if (event->queue != nullptr) context.RunUpTo(*event->queue, event->place);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return Call([&](Context& context) {
    for (CUevent_st* event : {begin, end}) {
      if (!IsLive(context.events, event) || !event->is_timed || event->stamp == nullptr) {
        return Refuse(cudaErrorInvalidResourceHandle, "an event without a time");
      }
      if (!event->stamp->passed.has_value()) return cudaErrorNotReady;
    }
    *milliseconds = Milliseconds(*end->stamp->passed - *begin->stamp->passed).count();
    return cudaSuccess;
  });
}

}  // extern "C"

}  // namespace heddle::ptx
