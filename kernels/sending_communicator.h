// A communicator whose ranks share no memory: what a rank gives the others is sent, so that bytes
// are what a sum across ranks costs.
//
// Post sends as well: its data is free when it returns. Thread-safety and errors: as Communicator.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/communicator.h"
#include "kernels/dtype.h"

namespace heddle::kernels {

class SendingCommunicator : public Communicator {
 public:
  bool shares_memory() const final { return false; }

  // The number format in which ops send activations: kF32 as they are; kBF16: rounded to nearest,
  // half of the bytes. The same on all ranks, so that they have the same sums.
  virtual DType wire_type() const = 0;

  // Sends each other rank r a message of its own, of bytes[r] >= 0 at to[r], and waits for one of
  // each, of at most `most_bytes`. parts[r] is where rank r's can be read until the next
  // collective; nullptr: it was empty. The own message stays where it is, parts[rank()] is
  // to[rank()].
  virtual bool ExchangeEach(std::span<const void* const> to, std::span<const int64_t> bytes,
                            int64_t most_bytes, std::span<const void*> parts) = 0;
};

}  // namespace heddle::kernels
