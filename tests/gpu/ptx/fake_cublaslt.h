// The calls of the library of fake_cublaslt.cc; it has a function HeddleLibraryCalls that tells.
#pragma once

#include <cstdint>

namespace heddle::ptx {

struct LibraryCalls {
  int64_t products = 0;      // that were enqueued
  int64_t proposals = 0;     // of algorithms
  int64_t made = 0;          // descriptions of products, ever
  int64_t descriptions = 0;  // that live
  int64_t layouts = 0;
  int64_t preferences = 0;
  int64_t attributes = 0;  // that were set
};

}  // namespace heddle::ptx
