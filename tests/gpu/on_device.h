// Objects that the checks and timings of gpu_check put on a device.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {

inline void Must(const absl::Status& status) { HEDDLE_CHECK(status.ok(), status.ToString()); }

template <typename T>
T Must(absl::StatusOr<T> value) {
  HEDDLE_CHECK(value.ok(), value.status().ToString());
  return std::move(value).value();
}

// A batch of `n` rows, so that the device recognises the next step's size: it decides between
// graphs and a library.
inline void PlanRows(kernels::Device& device, int64_t n) {
  kernels::test::BatchSpec spec{{}, 16};
  for (int64_t t = 0; t < n; ++t) spec.sequences.push_back({1, 1});
  Must(device.Plan(kernels::test::TestBatch(spec).view()));
}

template <typename T>
std::unique_ptr<kernels::Buffer> Copy(kernels::Device& device, const std::vector<T>& items) {
  const auto bytes = static_cast<int64_t>(items.size() * sizeof(T));
  auto buffer = Must(device.Allocate(bytes));
  Must(device.Upload(buffer->data(), items.data(), bytes));
  return buffer;
}

// A matrix of activations on a device.
struct OnDevice {
  OnDevice(kernels::Device& d, kernels::DType type, kernels::test::Matrix& values)
      : device(d), dtype(type), rows(values.num_rows()), cols(values.num_cols()) {
    const bool is_bf16 = dtype == kernels::DType::kBF16;
    std::vector<uint16_t> halves(static_cast<size_t>(is_bf16 ? rows * cols : 0));
    std::vector<float> floats(static_cast<size_t>(is_bf16 ? 0 : rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        float& value = *values.at(r, c);
        const auto i = static_cast<size_t>(r * cols + c);
        if (is_bf16) {
          halves[i] = kernels::F32ToBF16(value);
          value = kernels::BF16ToF32(halves[i]);
        } else {
          floats[i] = value;
        }
      }
    }
    const void* from = is_bf16 ? static_cast<const void*>(halves.data()) : floats.data();
    const int64_t bytes = rows * cols * kernels::Info(dtype).block_bytes;
    buffer = Must(device.Allocate(bytes));
    Must(device.Upload(buffer->data(), from, bytes));
  }
  kernels::Tensor tensor() const { return {buffer->data(), rows, cols, cols}; }
  std::vector<float> Read() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols * kernels::Info(dtype).block_bytes));
    Must(device.Download(bytes.data(), buffer->data(), static_cast<int64_t>(bytes.size())));
    std::vector<float> values(static_cast<size_t>(rows * cols));
    kernels::DequantizeRow(dtype, bytes.data(), rows * cols, values.data());
    return values;
  }
  kernels::Device& device;
  kernels::DType dtype;
  int64_t rows, cols;
  std::unique_ptr<kernels::Buffer> buffer;
};

// Random factors of `slots` adapters for all rows of a weight, on a device, each rank row a block.
struct AdaptersOnDevice {
  AdaptersOnDevice(kernels::Device& device, int32_t slots, int32_t rank, int64_t rows, int64_t cols)
      : part{0, rows}, n_slots(slots), max_rank(rank) {
    kernels::test::Random random(5);
    std::vector<kernels::AdapterFactors> own;
    for (int32_t s = 0; s < slots; ++s) {
      const int32_t of = s % 3 == 2 ? 1 + rank / 2 : rank;
      own.push_back({.a = Table(device, random, of, cols),
                     .b = Table(device, random, of, rows),
                     .rank = of,
                     .block_rows = 1,
                     .scale = 0.5f});
    }
    factors = static_cast<const kernels::AdapterFactors*>(Keep(device, own));
  }
  kernels::AdapterMatrix view() const {
    return {.dtype = kernels::DType::kBF16,
            .parts = {&part, 1},
            .factors = factors,
            .n_slots = n_slots,
            .slot_stride = 1,
            .max_rank = max_rank};
  }

  kernels::AdapterPart part;
  int32_t n_slots, max_rank;
  const kernels::AdapterFactors* factors = nullptr;
  double bytes = 0;

 private:
  const void* const* Table(kernels::Device& device, kernels::test::Random& random, int32_t rank,
                           int64_t cols) {
    std::vector<const void*> blocks;
    for (int32_t j = 0; j < rank; ++j) {
      std::vector<uint16_t> row(static_cast<size_t>(cols));
      for (uint16_t& bits : row) bits = kernels::F32ToBF16(random.Uniform(-0.05f, 0.05f));
      blocks.push_back(Keep(device, row));
      bytes += 2.0 * static_cast<double>(cols);
    }
    return static_cast<const void* const*>(Keep(device, blocks));
  }
  template <typename T>
  const void* Keep(kernels::Device& device, const std::vector<T>& items) {
    buffers.push_back(Copy(device, items));
    return buffers.back()->data();
  }
  std::vector<std::unique_ptr<kernels::Buffer>> buffers;
};

// A cache's content on a device.
struct CacheOnDevice {
  CacheOnDevice(const kernels::KvCacheView& shape, std::unique_ptr<kernels::Buffer> k,
                std::unique_ptr<kernels::Buffer> v)
      : view(shape), keys(std::move(k)), values(std::move(v)) {
    view.keys = keys->data();
    view.values = values->data();
  }
  CacheOnDevice(kernels::Device& device, const kernels::test::TestCache& cache) : view(cache.view) {
    keys = Must(device.Allocate(static_cast<int64_t>(cache.keys.size())));
    values = Must(device.Allocate(static_cast<int64_t>(cache.values.size())));
    Must(device.Upload(keys->data(), cache.keys.data(), static_cast<int64_t>(cache.keys.size())));
    Must(device.Upload(values->data(), cache.values.data(),
                       static_cast<int64_t>(cache.values.size())));
    view.keys = keys->data();
    view.values = values->data();
  }
  kernels::KvCacheView view;
  std::unique_ptr<kernels::Buffer> keys, values;
};

inline kernels::AttentionArgs ArgsFor(const OnDevice& q, const OnDevice& out,
                                      const kernels::KvCacheView& cache, int32_t n_heads) {
  kernels::AttentionArgs args;
  args.q = q.tensor();
  args.n_heads = n_heads;
  args.cache = cache;
  args.scale = 1.0f / std::sqrt(static_cast<float>(cache.head_dim));
  args.out = out.tensor();
  return args;
}

}  // namespace heddle::gpu
