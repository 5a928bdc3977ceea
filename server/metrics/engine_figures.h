// The engine's figures, one row each, for all that show them: /metrics, /debug/stats and gRPC's
// GetStats read only this table, so that all have the same figures. A new figure is a field of
// EngineStats and a row here.
// Thread-safety: constant data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/generation.h"

namespace heddle::server {

enum class FigureKind : uint8_t { kGauge, kCounter };

struct EngineFigure {
  // Name in JSON and gRPC. A dot separates an object from its member; rows of one object are
  // adjacent.
  std::string_view name;
  // Name in Prometheus. Rows of one family, which differ in their label, are adjacent.
  std::string_view metric;
  std::string_view help;
  FigureKind kind = FigureKind::kGauge;
  std::string_view label_name;  // empty: the family has no labels
  std::string_view label_value;
  double (*value)(const EngineStats&) = nullptr;
};

std::span<const EngineFigure> EngineFigures();

std::string_view StateName(EngineState state);

}  // namespace heddle::server
