// In place of kernels/cuda/linear/library_matmul.cc, which the linker then leaves out.
#include "kernels/cuda/linear/library_matmul.h"

namespace heddle::kernels::cuda {

absl::StatusOr<std::unique_ptr<LibraryMatmul>> LibraryMatmul::Open(Runtime&) {
  return absl::NotFoundError("there is no cuBLASLt for PTX machines");
}

}  // namespace heddle::kernels::cuda
