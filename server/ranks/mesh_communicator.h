// A group of ranks of a mesh as ops see it (kernels/sending_communicator.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/sending_communicator.h"
#include "server/ranks/ucx_mesh.h"

namespace heddle::server {

// `members`: ranks of the mesh, ascending, `own` among them.
std::shared_ptr<kernels::SendingCommunicator> MakeMeshCommunicator(std::shared_ptr<UcxMesh> mesh,
                                                                   std::vector<int32_t> members,
                                                                   int32_t own,
                                                                   kernels::DType wire);

}  // namespace heddle::server
