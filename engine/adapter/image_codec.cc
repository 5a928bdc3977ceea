#include "engine/adapter/image_codec.h"

#include <algorithm>
#include <cstring>

#include "engine/parallel/wire.h"

namespace heddle::engine {
namespace {

constexpr int32_t kPlaceAlignment = 16;

void WritePlace(const ImagePlace& place, ByteWriter* bytes) {
  bytes->Zigzag(place.page);
  bytes->Zigzag(place.offset);
}

void WritePlaces(const std::vector<ImagePlace>& places, ByteWriter* bytes) {
  bytes->Varint(places.size());
  for (const ImagePlace& place : places) WritePlace(place, bytes);
}

void WriteFactors(const ImageFactors& factors, ByteWriter* bytes) {
  bytes->Byte(static_cast<uint8_t>(factors.site));
  for (const int32_t number :
       {factors.layer, factors.member, factors.part, factors.inputs, factors.outputs, factors.rank,
        factors.block_rows, factors.a_block_rows}) {
    bytes->Zigzag(number);
  }
  bytes->Word(factors.scale);
  WritePlaces(factors.a, bytes);
  WritePlaces(factors.b, bytes);
  for (const ImagePlace& place : {factors.a_table, factors.b_table, factors.gain, factors.bias}) {
    WritePlace(place, bytes);
  }
}

// Reads what the functions above write, and fails on places outside of the image.
class FactorReader {
 public:
  FactorReader(ByteReader* bytes, const AdapterImage& image) : bytes_(*bytes), image_(image) {}

  ImageFactors Read() {
    ImageFactors factors;
    const uint8_t site = bytes_.Byte();
    if (site >= kNumAdapterSites) bytes_.Fail();
    factors.site = static_cast<AdapterSite>(site);
    for (int32_t* number :
         {&factors.layer, &factors.member, &factors.part, &factors.inputs, &factors.outputs,
          &factors.rank, &factors.block_rows, &factors.a_block_rows}) {
      *number = static_cast<int32_t>(bytes_.Zigzag());
    }
    factors.scale = bytes_.Word<float>();
    factors.a = Places();
    factors.b = Places();
    for (ImagePlace* place : {&factors.a_table, &factors.b_table, &factors.gain, &factors.bias}) {
      *place = Place();
    }
    return factors;
  }

 private:
  ImagePlace Place() {
    const ImagePlace place{static_cast<int32_t>(bytes_.Zigzag()),
                           static_cast<int32_t>(bytes_.Zigzag())};
    const bool is_there = place.page >= 0 && place.page < image_.num_pages && place.offset >= 0 &&
                          place.offset < image_.page_bytes && place.offset % kPlaceAlignment == 0;
    if (!is_there && place != kNoPlace) bytes_.Fail();
    return place;
  }
  std::vector<ImagePlace> Places() {
    std::vector<ImagePlace> places(bytes_.Count());
    for (ImagePlace& place : places) place = Place();
    return places;
  }

  ByteReader& bytes_;
  const AdapterImage& image_;
};

}  // namespace

void EncodeImage(const AdapterImage& image, int32_t rank, const StepPlan& plan, std::string* out) {
  const AdapterImage& own = image.OfRank(rank);
  ByteWriter bytes(out);
  bytes.Word(static_cast<uint64_t>(image.id));
  bytes.Byte(static_cast<uint8_t>(own.dtype));
  bytes.Zigzag(own.max_rank);
  bytes.Zigzag(own.page_bytes);
  bytes.Zigzag(own.num_pages);
  bytes.Zigzag(image.pages_of_each_rank());
  const bool is_bound =
      std::any_of(plan.adapter_binds.begin(), plan.adapter_binds.end(),
                  [&](const AdapterBind& bind) { return bind.adapter == image.id; });
  bytes.Byte(is_bound ? 1 : 0);
  if (is_bound) {
    bytes.Varint(own.factors.size());
    for (const ImageFactors& factors : own.factors) WriteFactors(factors, &bytes);
  }
  for (const AdapterPageLoad& load : plan.adapter_loads) {
    if (load.adapter != image.id || load.image_page >= own.num_pages) continue;
    bytes.Zigzag(load.image_page);
    const std::span<const std::byte> page = own.page(load.image_page);
    out->append(reinterpret_cast<const char*>(page.data()), page.size());
  }
}

absl::StatusOr<DecodedImage> DecodeImage(std::string_view message, int32_t rank,
                                         const ImageLimits& limits) {
  const absl::Status damaged =
      absl::InvalidArgumentError("a part of an adapter is damaged, or does not fit this rank");
  ByteReader bytes(message);
  auto part = std::make_shared<AdapterImage>();
  auto all = std::make_shared<AdapterImage>();
  all->id = AdapterId{bytes.Word<uint64_t>()};
  part->dtype = all->dtype = static_cast<kernels::DType>(bytes.Byte());
  part->max_rank = all->max_rank = static_cast<int32_t>(bytes.Zigzag());
  part->page_bytes = all->page_bytes = bytes.Zigzag();
  part->num_pages = static_cast<int32_t>(bytes.Zigzag());
  all->num_pages = static_cast<int32_t>(bytes.Zigzag());
  if (!bytes.ok() || part->dtype != limits.dtype || part->page_bytes != limits.page_bytes ||
      part->num_pages < 0 || part->num_pages > all->num_pages ||
      all->num_pages > limits.max_pages) {
    return damaged;
  }
  DecodedImage decoded{.has_factors = bytes.Byte() != 0};
  if (decoded.has_factors) {
    const size_t count = bytes.Count();
    FactorReader factors(&bytes, *part);
    for (size_t i = 0; i < count && bytes.ok(); ++i) part->factors.push_back(factors.Read());
  }
  // Untouched pages of it take no memory.
  part->content.reset(new std::byte[static_cast<size_t>(part->own_bytes())]);
  while (bytes.ok() && bytes.num_left() > 0) {
    const int64_t page = bytes.Zigzag();
    if (page < 0 || page >= part->num_pages ||
        bytes.num_left() < static_cast<size_t>(part->page_bytes)) {
      return damaged;
    }
    const std::string_view content = bytes.Bytes(static_cast<size_t>(part->page_bytes));
    std::memcpy(part->content.get() + page * part->page_bytes, content.data(), content.size());
    decoded.pages.push_back(static_cast<int32_t>(page));
  }
  if (!bytes.ok()) return damaged;
  all->others.assign(static_cast<size_t>(rank), part);
  decoded.image = std::move(all);
  return decoded;
}

}  // namespace heddle::engine
