// Products of many rows and BF16 weights on the emulated sm_90a, both by bulk copies, against the
// reference.
#include <algorithm>

#include "catch2/catch.hpp"
#include "tests/emulate/emulator.h"
#include "tests/kernels/cuda/product_case.h"

namespace heddle::kernels::test {
namespace {

void Check(ProductCase c) {
  c.weight = DType::kBF16;
  CheckProduct(c);
}

// Blocks are of 64, 96, 128, 160 and 208 rows of x; more are several blocks.
TEST_CASE("Rows, columns and outputs need not fill blocks and stages", "[cuda]") {
  for (int64_t n : {33, 64, 65, 96, 97, 128, 129, 160, 161, 200, 208, 209, 420}) {
    Check({.n = n, .cols = 160, .rows = 40});
  }
  for (int64_t rows : {1, 63, 64, 255, 257, 530}) Check({.n = 35, .cols = 96, .rows = rows});
  for (int64_t cols : {8, 32, 64, 72, 288, 416}) Check({.n = 40, .cols = cols, .rows = 20});
  // More stages than are under way at once, and a part of one.
  Check({.n = 70, .cols = 680, .rows = 70, .workspace_bytes = 32 << 10});
  Check({.n = 170, .cols = 680, .rows = 70, .workspace_bytes = 32 << 10});
}

TEST_CASE("Blocks of a product by bulk copies add up, where memory allows it", "[cuda]") {
  for (int64_t n : {50, 90, 120, 150, 200}) {
    Check({.n = n, .cols = 1536, .rows = 40, .times = 3});
    Check({.n = n, .cols = 1088, .rows = 300, .out_f32 = false});
  }
  Check({.n = 230, .cols = 1536, .rows = 270});
  // Room for the parts of two blocks; for none.
  for (int64_t parts : {2, 0}) {
    Check({.n = 50,
           .cols = 1536,
           .rows = 40,
           .workspace_bytes = std::max<int64_t>(parts * 64 * 256 * 4, 32 << 10)});
  }
  // 208 rows are six slices of 32 and a half; room for two parts of them.
  Check({.n = 200, .cols = 1536, .rows = 40, .workspace_bytes = 2 * 208 * 256 * 4});
}

TEST_CASE("Outputs of a product by bulk copies get every epilogue", "[cuda]") {
  for (int64_t out_pad : {0, 4, 3}) {
    for (bool out_f32 : {true, false}) {
      ProductCase c{.n = 40, .cols = 128, .rows = 88, .out_f32 = out_f32, .out_pad = out_pad};
      c.bias = true;
      c.activation = Activation::kGelu;
      Check(c);
      c.activation = Activation::kNone;
      c.epilogue = Epilogue::kAdd;
      Check(c);
      c.epilogue = Epilogue::kGated;
      // 42: 21 outputs, never four at a time; 300: 150, in the middle of a box of weight rows.
      for (int64_t rows : {88, 42, 300, 600}) {
        c.rows = rows;
        for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          c.activation = activation;
          Check(c);
        }
      }
    }
  }
  // Parts of gated outputs, added up.
  for (int64_t n : {40, 200}) {
    Check({.n = n,
           .cols = 1536,
           .rows = 300,
           .epilogue = Epilogue::kGated,
           .activation = Activation::kSilu,
           .bias = true,
           .out_f32 = false});
  }
}

TEST_CASE("The producer and its consumers may run in any order", "[cuda]") {
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  Check({.n = 65, .cols = 1152, .rows = 37});
  Check({.n = 200, .cols = 1280, .rows = 270});
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

}  // namespace
}  // namespace heddle::kernels::test
