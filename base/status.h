// Early-return macros for absl::Status and absl::StatusOr, which all interfaces between folders
// use.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define HEDDLE_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                     \
    if (absl::Status heddle_status_ = (expr); !heddle_status_.ok()) return heddle_status_; \
  } while (false)

#define HEDDLE_STATUS_CONCAT_INNER_(a, b) a##b
#define HEDDLE_STATUS_CONCAT_(a, b) HEDDLE_STATUS_CONCAT_INNER_(a, b)

// HEDDLE_ASSIGN_OR_RETURN(auto file, Open(path)); declares or assigns `file`, or returns the error.
#define HEDDLE_ASSIGN_OR_RETURN(lhs, expr) \
  HEDDLE_ASSIGN_OR_RETURN_(HEDDLE_STATUS_CONCAT_(heddle_status_or_, __LINE__), lhs, expr)
#define HEDDLE_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()
