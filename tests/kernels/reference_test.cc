// The reference ops against hand arithmetic and published values: all other implementations are
// compared with them.
#include <cmath>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

using reference::Activate;

TEST_CASE("Activations have the values of their published definitions", "[kernels][unit]") {
  CHECK(Activate(Activation::kSilu, 1.0) == Approx(0.7310585786));  // sigmoid(1)
  CHECK(Activate(Activation::kGelu, 1.0) == Approx(0.8413447461));  // normal CDF at 1
  CHECK(Activate(Activation::kGelu, -2.0) == Approx(-2 * 0.0227501319));
  CHECK(Activate(Activation::kGeluTanh, 1.0) == Approx(0.8411919906));  // torch, tanh variant
  CHECK(Activate(Activation::kRelu, -3.0) == 0.0);
  CHECK(Activate(Activation::kNone, -3.0) == -3.0);
}

TEST_CASE("RMS and layer norm of small vectors by hand", "[kernels][unit]") {
  float x[] = {3, 4}, out[2], weight[] = {1, 2}, bias[] = {0, 10};
  NormArgs args;
  args.x = {x, 1, 2, 2};
  args.out = {out, 1, 2, 2};
  args.eps = 0;
  reference::Norm({}, args);
  CHECK(out[0] == Approx(3 / std::sqrt(12.5)));
  CHECK(out[1] == Approx(4 / std::sqrt(12.5)));
  args.kind = NormKind::kLayer;  // mean 3.5, deviation 0.5
  args.weight = weight;
  args.bias = bias;
  reference::Norm({}, args);
  CHECK(out[0] == Approx(-1));
  CHECK(out[1] == Approx(12));
  float residual[] = {1, 1};
  args = NormArgs();
  args.x = {x, 1, 2, 2};
  args.residual = {residual, 1, 2, 2};
  args.out = {out, 1, 2, 2};
  args.eps = 0;
  args.weight = weight;
  args.weight_offset = 1;
  reference::Norm({}, args);
  CHECK(residual[0] == 4);
  CHECK(residual[1] == 5);
  CHECK(out[1] == Approx(3 * 5 / std::sqrt(20.5)));
}

TEST_CASE("Rotation by a quarter turn swaps the pairs of either layout", "[kernels][unit]") {
  for (RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
    TestBatch batch({{{1, 1}}});
    TestCache cache(DType::kF32, batch.num_pages, 16, 1, 4, 1);
    float q[] = {1, 2, 3, 4}, k[] = {5, 6, 7, 8}, v[] = {9, 10, 11, 12};
    float cos_sin[] = {0, 0, 1, 1};  // 90 degrees
    RopeKvWriteArgs args;
    args.q = {q, 1, 4, 4};
    args.k = {k, 1, 4, 4};
    args.v = {v, 1, 4, 4};
    args.n_heads = 1;
    args.cos_sin = cos_sin;
    args.rotary_dim = 4;
    args.layout = layout;
    args.cache = cache.view;
    reference::RopeKvWrite(batch.view(), args);
    std::vector<float> rotated(q, q + 4);
    // (a, b) becomes (-b, a): pairs (1, 3), (2, 4), or (1, 2), (3, 4).
    bool half = layout == RopeLayout::kHalf;
    CHECK(rotated == (half ? std::vector<float>{-3, -4, 1, 2} : std::vector<float>{-2, 1, -4, 3}));
    const auto* keys = reinterpret_cast<const float*>(cache.keys.data() +
                                                      RowOffset(cache.view, batch.kv_slot[0], 0));
    const auto* values = reinterpret_cast<const float*>(cache.values.data() +
                                                        RowOffset(cache.view, batch.kv_slot[0], 0));
    CHECK(keys[0] == (half ? -7 : -6));
    CHECK(values[3] == 12);
  }
}

TEST_CASE("Without keys a rotation turns queries alone and leaves the cache", "[kernels][unit]") {
  std::vector<NamedDevice> devices = CpuDevices(1);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    TestBatch batch({{{1, 1}}});
    TestCache cache(DType::kF32, batch.num_pages, 16, 1, 4, 1);
    const std::vector<uint8_t> before = cache.keys;
    float q[] = {1, 2, 3, 4};
    float cos_sin[] = {0, 0, 1, 1};  // 90 degrees
    RopeKvWriteArgs args;
    args.q = {q, 1, 4, 4};
    args.n_heads = 1;
    args.cos_sin = cos_sin;
    args.rotary_dim = 4;
    args.cache = cache.view;
    REQUIRE(device->Plan(batch.view()).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.RopeKvWrite(args); }).ok());
    CHECK(std::vector<float>(q, q + 4) == std::vector<float>{-3, -4, 1, 2});
    CHECK(cache.keys == before);
  }
}

TEST_CASE("Attention over two positions by hand, with a sink and a window", "[kernels][unit]") {
  TestBatch batch({{{1, 2}}});
  TestCache cache(DType::kF32, batch.num_pages, 16, 1, 1, 1);
  auto* keys =
      reinterpret_cast<float*>(cache.keys.data() + cache.view.PageOffset(batch.span_page[0]));
  auto* values =
      reinterpret_cast<float*>(cache.values.data() + cache.view.PageOffset(batch.span_page[0]));
  keys[0] = 0;
  keys[1] = std::log(3.0f);
  values[0] = 10;
  values[1] = 20;
  float q = 2, out = 0, lse = 0, sink = std::log(4.0f);
  AttentionArgs args;
  args.q = {&q, 1, 1, 1};
  args.n_heads = 1;
  args.cache = cache.view;
  args.scale = 0.5f;
  args.out = {&out, 1, 1, 1};
  args.lse = &lse;
  reference::Attention(batch.view(), args);
  CHECK(out == Approx((10 + 3 * 20) / 4.0));
  CHECK(lse == Approx(std::log(4.0)));
  args.sinks = &sink;
  reference::Attention(batch.view(), args);
  CHECK(out == Approx((10 + 3 * 20) / 8.0));
  CHECK(lse == Approx(std::log(8.0)));
  args.sinks = nullptr;
  args.window = 1;
  reference::Attention(batch.view(), args);
  CHECK(out == 20.0f);
}

// The numbers are from table 1 of the OCP 8-bit Floating Point Specification 1.0.
TEST_CASE("8-bit floats of the KV cache have their specification's values", "[kernels][unit]") {
  CHECK(F8E4M3ToF32(0x00) == 0.0f);
  CHECK(F8E4M3ToF32(0x01) == 0x1p-9f);
  CHECK(F8E4M3ToF32(0x07) == 0.875f * 0x1p-6f);
  CHECK(F8E4M3ToF32(0x08) == 0x1p-6f);
  CHECK(F8E4M3ToF32(0x38) == 1.0f);
  CHECK(F8E4M3ToF32(0x7e) == 448.0f);
  CHECK(F8E4M3ToF32(0xfe) == -448.0f);
  CHECK(std::isnan(F8E4M3ToF32(0x7f)));
  CHECK(std::isnan(F8E4M3ToF32(0xff)));
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = F8E4M3ToF32(code), high = F8E4M3ToF32(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const uint8_t even = code % 2 == 0 ? code : code + 1;
    INFO(int{code});
    CHECK(F32ToF8E4M3(low) == code);
    CHECK(F32ToF8E4M3(-low) == (code | 0x80));
    CHECK(F32ToF8E4M3(middle) == even);
    CHECK(F32ToF8E4M3(std::nextafter(middle, 0.0f)) == code);
    CHECK(F32ToF8E4M3(std::nextafter(middle, 1e9f)) == code + 1);
  }
  CHECK(F32ToF8E4M3(1e30f) == 0x7e);
  CHECK(F32ToF8E4M3(-std::numeric_limits<float>::infinity()) == 0xfe);
  CHECK(F32ToF8E4M3(std::numeric_limits<float>::quiet_NaN()) == 0x7f);
}

TEST_CASE("A row of an int8 KV cache is scaled by its largest element", "[kernels][unit]") {
  TestCache cache(DType::kInt8, 2, 4, 2, 4, 2);  // pages are adjacent
  const float row[] = {127, -63.5f, 0.5f, 1.5f};
  float found[4];
  StoreKvRow(cache.view, cache.view.keys, 6, 1, row);
  LoadKvRow(cache.view, cache.view.keys, 6, 1, found);
  CHECK(std::vector<float>(found, found + 4) == std::vector<float>{127, -64, 0, 2});
  // Page 1, head 1, position 2: after a page of 2 heads of 4 positions of 4 bytes and a scale.
  const int64_t head_bytes = 4 * 4 + 4 * 4;
  CHECK(RowOffset(cache.view, 6, 1) == 2 * head_bytes + head_bytes + 2 * 4);
  CHECK(ScaleOffset(cache.view, 6, 1) == 2 * head_bytes + head_bytes + 16 + 2 * 4);
  CHECK(cache.keys.size() == 2 * 2 * head_bytes);
}

TEST_CASE("A gated product of a single column by hand", "[kernels][unit]") {
  std::unique_ptr<Device> device = CreateReferenceDevice();
  float gate[] = {2}, up[] = {3}, x[] = {1}, bias[] = {-1, 4}, out = 0;
  std::vector<WeightSource> sources = {{gate, DType::kF32, 1, 1, "gate"},
                                       {up, DType::kF32, 1, 1, "up"}};
  auto weight = device->Pack(sources);
  REQUIRE(weight.ok());
  LinearArgs args;
  args.x = {x, 1, 1, 1};
  args.weight = weight->get();
  args.bias = bias;
  args.epilogue = Epilogue::kGated;
  args.activation = Activation::kSilu;
  args.out = {&out, 1, 1, 1};
  REQUIRE(device->Run([&](Ops& ops) { ops.Linear(args); }).ok());
  CHECK(out == Approx(0.7310585786 * 7));
}

}  // namespace
}  // namespace heddle::kernels::test
