// SHA-256 of an adapter as it was loaded: its factors, and what says how they are used. Two files
// with the same digest give the same answers, and may share computed prompts.
// Thread-safety: a pure function.
#pragma once

#include <array>
#include <string>

#include "engine/adapter/adapter_image.h"

namespace heddle::server {

using AdapterDigest = std::array<unsigned char, 32>;

// Reads the whole image. The id is not part of the digest.
AdapterDigest DigestOf(const engine::AdapterImage& image);

std::string HexText(const AdapterDigest& digest);

}  // namespace heddle::server
