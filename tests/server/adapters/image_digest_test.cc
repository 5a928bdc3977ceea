// The identity of an adapter: all that its images hold, on all ranks, and not its number.
#include <cstddef>
#include <memory>

#include "catch2/catch.hpp"
#include "server/adapters/image_digest.h"

namespace heddle::server {
namespace {

std::shared_ptr<engine::AdapterImage> ImageOf(char content) {
  auto image = std::make_shared<engine::AdapterImage>();
  image->page_bytes = 64;
  image->num_pages = 1;
  image->content = std::shared_ptr<std::byte[]>(new std::byte[64]());
  image->content[63] = static_cast<std::byte>(content);
  return image;
}

TEST_CASE("Adapters have the same digest if all ranks have the same bytes", "[unit]") {
  const auto of_ranks = [](char first, char second, char third) {
    const auto head = ImageOf(first);
    head->others = {ImageOf(second), ImageOf(third)};
    return DigestOf(*head);
  };
  const AdapterDigest digest = of_ranks(1, 2, 3);
  CHECK(of_ranks(1, 2, 3) == digest);
  CHECK(of_ranks(9, 2, 3) != digest);
  CHECK(of_ranks(1, 9, 3) != digest);
  CHECK(of_ranks(1, 2, 9) != digest);
  CHECK(of_ranks(1, 3, 2) != digest);
  CHECK(DigestOf(*ImageOf(1)) != digest);
}

TEST_CASE("The number of an adapter is not part of its digest, and its factors are", "[unit]") {
  const auto image = ImageOf(1);
  const AdapterDigest digest = DigestOf(*image);
  image->id = engine::AdapterId{7};
  CHECK(DigestOf(*image) == digest);
  image->factors.push_back({.rank = 4});
  CHECK(DigestOf(*image) != digest);
}

}  // namespace
}  // namespace heddle::server
