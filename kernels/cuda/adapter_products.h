// Products with adapters on the CUDA backend: arguments of their kernels, and their place in the
// workspace. Belongs to one step. Thread-safety: none.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_step.h"
#include "kernels/cuda/linear/adapter_params.h"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// The adapters of x's rows: those of the batch or of its logit rows.
const DeviceAdapters& AdaptersOf(const DeviceStep& step, const AdapterRows& rows);

// Those of the rows of a norm; none if no row of the step has an adapter.
NormAdapters NormAdaptersOf(const DeviceStep& step, const NormArgs& args);
NormAdapters NormAdaptersOf(const DeviceStep& step, const AdapterMatrix* adapters,
                            const AdapterRows& rows);

// Parameters that all parts of the rows share. `rows` of the weight, its cols are `cols`.
AdapterParams AdapterParamsOf(const DeviceStep& step, const AdapterMatrix& adapters,
                              const AdapterRows& rows, int64_t cols);

// Bytes of an output's shrunk, delta and gains.
int64_t AdapterOutputBytes(const AdapterParams& params, bool has_gains);
// Points them into `workspace` for n outputs, which fit; returns the rest.
Workspace PlaceAdapterOutputs(const Workspace& workspace, int64_t n, bool has_gains,
                              AdapterParams* params);
// Launches both kernels of a product.
void LaunchAdapters(DeviceStep& step, const AdapterParams& params);
// Sets what a product's epilogue reads of adapters. `half`: rows of the gate.
void SetAdapters(const AdapterParams& params, int64_t half, LinearParams* linear);

// Ops::AdaptEmbedding. `tokens`: the rows that the tensor has.
void AdaptEmbedding(DeviceStep& step, const AdapterMatrix& adapters, const DeviceBatch& tokens,
                    Tensor x);
// Adds adapters' parts to the result of Ops::HeadLinear.
void AdaptHeads(DeviceStep& step, const HeadLinearArgs& args);

}  // namespace heddle::kernels::cuda
