#include "kernels/host_meetings.h"

#include <cstddef>

namespace heddle::kernels {

int64_t PlaceBytes(const MeetingSizes& sizes, int32_t rank) {
  constexpr int64_t kInTurn = 2;  // places
  int64_t bytes = 0;
  for (size_t r = 0; r < sizes.parts.size(); ++r) {
    const bool is_own = static_cast<int32_t>(r) == rank;
    bytes += kInTurn * (sizes.parts[r] + (is_own ? kPartHeaderBytes : 0));
    if (sizes.late_part == 0) continue;
    bytes +=
        is_own ? kLatePartPlaces * (sizes.late_part + kPartHeaderBytes) : kInTurn * sizes.late_part;
  }
  for (const auto* messages : {&sizes.sent, &sizes.received}) {
    for (const int64_t message : *messages) bytes += kInTurn * message;
  }
  return bytes;
}

}  // namespace heddle::kernels
