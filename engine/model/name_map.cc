#include "engine/model/name_map.h"

#include <string>

namespace heddle::engine {

LayerNames NameMap::Layer(int32_t index) const {
  LayerNames names = layer;
  names.ForEach([index](std::string* name) {
    if (size_t at = name->find("{}"); at != std::string::npos) {
      name->replace(at, 2, std::to_string(index));
    }
  });
  return names;
}

}  // namespace heddle::engine
