#include <vector>

#include "config/option_tables.h"

namespace heddle::config {

std::span<const Option> Options() {
  static const std::vector<Option> all = [] {
    std::vector<Option> options;
    for (const std::span<const Option> part : {EngineOptions(), AdapterOptions(), ServerOptions(),
                                               GenerationOptions(), CommandOptions()}) {
      options.insert(options.end(), part.begin(), part.end());
    }
    return options;
  }();
  return all;
}

}  // namespace heddle::config
