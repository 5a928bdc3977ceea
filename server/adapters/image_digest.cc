#include "server/adapters/image_digest.h"

#include <openssl/evp.h>

#include <memory>
#include <span>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace heddle::server {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    HEDDLE_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr),
                 "SHA-256 cannot begin");
  }

  void Add(const void* data, size_t size) {
    HEDDLE_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1, "SHA-256 failed");
  }
  template <typename T>
  void AddValue(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    Add(&value, sizeof(value));
  }
  void AddPlaces(std::span<const engine::ImagePlace> places) {
    AddValue(places.size());
    for (const engine::ImagePlace& place : places) AddPlace(place);
  }
  void AddPlace(const engine::ImagePlace& place) {
    AddValue(place.page);
    AddValue(place.offset);
  }

  AdapterDigest End() {
    AdapterDigest digest{};
    HEDDLE_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1, "SHA-256 failed");
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

void AddImage(const engine::AdapterImage& image, Sha256* all) {
  Sha256& sha = *all;
  sha.AddValue(image.dtype);
  sha.AddValue(image.max_rank);
  sha.AddValue(image.page_bytes);
  sha.AddValue(image.num_pages);
  sha.AddValue(image.factors.size());
  for (const engine::ImageFactors& factors : image.factors) {
    sha.AddValue(factors.layer);
    sha.AddValue(factors.site);
    sha.AddValue(factors.member);
    sha.AddValue(factors.part);
    sha.AddValue(factors.inputs);
    sha.AddValue(factors.outputs);
    sha.AddValue(factors.rank);
    sha.AddValue(factors.block_rows);
    sha.AddValue(factors.a_block_rows);
    sha.AddValue(factors.scale);
    sha.AddPlaces(factors.a);
    sha.AddPlaces(factors.b);
    sha.AddPlace(factors.a_table);
    sha.AddPlace(factors.b_table);
    sha.AddPlace(factors.gain);
    sha.AddPlace(factors.bias);
  }
  if (image.content != nullptr) {
    sha.Add(image.content.get(), static_cast<size_t>(image.own_bytes()));
  }
}

}  // namespace

AdapterDigest DigestOf(const engine::AdapterImage& image) {
  Sha256 sha;
  for (int32_t rank = 0; rank < image.num_ranks(); ++rank) AddImage(image.OfRank(rank), &sha);
  return sha.End();
}

std::string HexText(const AdapterDigest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace heddle::server
