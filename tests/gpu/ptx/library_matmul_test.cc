// The device build asks a library in cuBLASLt's place, which counts its calls.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/gpu/ptx/fake_cublaslt.h"

namespace heddle::kernels::cuda {
namespace {

const ptx::LibraryCalls& Calls() {
  static const auto* const calls = [] {
    void* library = dlopen(HEDDLE_FAKE_CUBLASLT, RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(library != nullptr);  // it is what was opened
    auto* tell =
        reinterpret_cast<const ptx::LibraryCalls* (*)()>(dlsym(library, "HeddleLibraryCalls"));
    REQUIRE(tell != nullptr);
    return tell();
  }();
  return *calls;
}

// [n, 64] x [64, 64]; all memory is the caller's.
CodeProduct ProductOf(uint8_t* memory, int64_t n) {
  CodeProduct product;
  product.weight = PackedLayout(WeightLayout::kF8Row, 64, 64);
  product.weight.data = memory;
  product.weight.row_factors = reinterpret_cast<float*>(memory + 8192);
  product.x = {.layout = WeightLayout::kF8Row,
               .codes = memory + 16384,
               .row_bytes = 64,
               .scales = reinterpret_cast<float*>(memory + 32768)};
  product.n = n;
  product.out = {memory + 49152, n, 64, 64};
  return product;
}

TEST_CASE("A product is described to the library once", "[ptx][kernel]") {
  auto runtime = *Runtime::Open(0);
  uint8_t* memory = static_cast<uint8_t*>(*runtime->AllocateDevice(128 << 10));
  {
    const auto library = LibraryMatmul::Open(*runtime);
    REQUIRE(library.ok());
    CodeProduct product = ProductOf(memory, 48);
    const auto multiply = [&] { return (*library)->MultiplyCodes(product, runtime->stream()); };
    REQUIRE(multiply());
    CHECK(Calls().made == 1);
    CHECK(Calls().proposals == 1);
    const ptx::LibraryCalls once = Calls();
    REQUIRE(multiply());
    CHECK(Calls().products == once.products + 1);
    CHECK(Calls().made == 1);
    CHECK(Calls().attributes == once.attributes);
    // Elsewhere, with other scales: only these are told.
    product.out.data = memory + (96 << 10);
    product.x.scales += 64;
    REQUIRE(multiply());
    CHECK(Calls().made == 1);
    CHECK(Calls().attributes == once.attributes + 2);
    // Other rows are another product, for which the algorithm is known.
    product.n = product.out.rows = 56;
    REQUIRE(multiply());
    CHECK(Calls().made == 2);
    CHECK(Calls().proposals == 1);
    CHECK(Calls().descriptions == 2);
    // With multiprocessors to spare it is another one, too.
    (*library)->SpareMultiprocessors(32);
    REQUIRE(multiply());
    CHECK(Calls().made == 3);
  }
  CHECK(Calls().descriptions == 0);
  CHECK(Calls().layouts == 0);
  CHECK(Calls().preferences == 0);
  runtime->FreeDevice(memory, 128 << 10);
}

}  // namespace
}  // namespace heddle::kernels::cuda
