// Memory and copies.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/cudart.h"

namespace heddle::ptx {
namespace {

using Place = Context::Place;

const char* NameOf(Place place) {
  switch (place) {
    case Place::kPageable:
      return "pageable memory";
    case Place::kPinned:
      return "page-locked memory";
    case Place::kDevice:
      return "device memory";
    case Place::kOutside:
      break;
  }
  return "memory that is allocated in part";
}

bool IsHost(Place place) { return place == Place::kPageable || place == Place::kPinned; }

// Whether both ends are where `kind` says.
bool Fits(cudaMemcpyKind kind, Place to, Place from) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to == Place::kDevice && IsHost(from);
    case cudaMemcpyDeviceToHost:
      return IsHost(to) && from == Place::kDevice;
    case cudaMemcpyDeviceToDevice:
      return to == Place::kDevice && from == Place::kDevice;
    default:
      return false;
  }
}

cudaError_t Copy(Context& context, CUstream_st& stream, void* to, const void* from, size_t bytes,
                 cudaMemcpyKind kind) {
  const Place to_place = context.PlaceOf(to, static_cast<int64_t>(bytes));
  const Place from_place = context.PlaceOf(from, static_cast<int64_t>(bytes));
  if (!Fits(kind, to_place, from_place)) {
    return Refuse(cudaErrorInvalidValue,
                  absl::StrCat("a copy of ", bytes, " bytes of kind ", kind, " from ",
                               NameOf(from_place), " to ", NameOf(to_place)));
  }
  // Pageable memory has been read, or written, when the call returns: CUDA Runtime API, "API
  // synchronization behavior".
  if (from_place == Place::kPageable) {
    const auto* begin = static_cast<const uint8_t*>(from);
    std::vector<uint8_t> read(begin, begin + bytes);
    context.Enqueue(stream,
                    [to, read = std::move(read)] { std::memcpy(to, read.data(), read.size()); });
    return cudaSuccess;
  }
  context.Enqueue(stream, [to, from, bytes] { std::memmove(to, from, bytes); });
  if (to_place == Place::kPageable) context.RunUpTo(*stream.queue, stream.queue->given);
  return cudaSuccess;
}

// Memory beyond some MiB is filled in the first page of each 64 KiB alone: to touch the others
// would take most of the time of tests that open a device often.
constexpr int64_t kFilledWhole = int64_t{2} << 20, kFilled = 4096, kFilledOf = 65536;

void Poison(void* data, int64_t bytes) {
  if (bytes <= kFilledWhole) {
    std::memset(data, 0xFF, static_cast<size_t>(bytes));
    return;
  }
  auto* const begin = static_cast<uint8_t*>(data);
  for (int64_t at = 0; at < bytes; at += kFilledOf) {
    std::memset(begin + at, 0xFF, static_cast<size_t>(std::min(kFilled, bytes - at)));
  }
}

}  // namespace

// Neither memory is cleared: what is read before it was written is a NaN of every type, or -1.
cudaError_t Context::Allocate(bool is_pinned, int64_t bytes, void** data) {
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (!is_pinned && (bytes < 0 || bytes > free_bytes())) return cudaErrorMemoryAllocation;
  *data = machine_.Allocate(bytes);
  Poison(*data, bytes);
  allocations_[static_cast<const uint8_t*>(*data)] = {bytes, is_pinned};
  if (!is_pinned) device_bytes_ += bytes;
  return cudaSuccess;
}

cudaError_t Context::Free(bool is_pinned, void* data) {
  if (data == nullptr) return cudaSuccess;
  const auto found = allocations_.find(static_cast<const uint8_t*>(data));
  if (found == allocations_.end() || found->second.is_pinned != is_pinned) {
    return Refuse(cudaErrorInvalidValue, "what is to be freed was not allocated so");
  }
  RunAll();
  if (!is_pinned) device_bytes_ -= found->second.bytes;
  allocations_.erase(found);
  machine_.Free(data);
  return cudaSuccess;
}

Context::Place Context::PlaceOf(const void* data, int64_t bytes) const {
  const auto* begin = static_cast<const uint8_t*>(data);
  auto behind = allocations_.upper_bound(begin);
  if (behind == allocations_.begin()) return Place::kPageable;
  const auto& [first, allocation] = *--behind;
  if (begin >= first + allocation.bytes) return Place::kPageable;
  if (begin + bytes > first + allocation.bytes) return Place::kOutside;
  return allocation.is_pinned ? Place::kPinned : Place::kDevice;
}

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return Call([&](Context& context) {
    return context.Allocate(/*is_pinned=*/false, static_cast<int64_t>(bytes), data);
  });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return Call([&](Context& context) {
    return context.Allocate(/*is_pinned=*/true, static_cast<int64_t>(bytes), data);
  });
}

cudaError_t cudaFree(void* data) {
  return Call([&](Context& context) { return context.Free(/*is_pinned=*/false, data); });
}

cudaError_t cudaFreeHost(void* data) {
  return Call([&](Context& context) { return context.Free(/*is_pinned=*/true, data); });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return Call([&](Context& context) {
    *free_bytes = static_cast<size_t>(context.free_bytes());
    *total_bytes = static_cast<size_t>(Context::kTotalBytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call([&](Context& context) {
    if (!IsLive(context.streams, stream)) {
      return Refuse(cudaErrorInvalidResourceHandle, "a copy on no stream");
    }
    if (bytes == 0) return cudaSuccess;
    stream->follows_other = true;
    return Copy(context, *stream, to, from, bytes, kind);
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return Call([&](Context& context) {
    if (!IsLive(context.streams, stream)) {
      return Refuse(cudaErrorInvalidResourceHandle, "memory is filled on no stream");
    }
    if (context.PlaceOf(data, static_cast<int64_t>(bytes)) != Context::Place::kDevice) {
      return Refuse(cudaErrorInvalidValue,
                    absl::StrCat("what is to be filled is not ", bytes, " bytes of the device's"));
    }
    stream->follows_other = true;
    context.Enqueue(*stream, [data, value, bytes] { std::memset(data, value, bytes); });
    return cudaSuccess;
  });
}

}  // extern "C"

}  // namespace heddle::ptx
