#include "engine/adapter/image_codec.h"

#include <algorithm>
#include <cstring>

#include "engine/parallel/plan_members.h"
#include "engine/parallel/wire.h"

namespace heddle::engine {
namespace {

constexpr int64_t kBlockBorder = 16;  // bytes; tables of pointers begin at multiples of one
constexpr int64_t kAddressBytes = sizeof(const void*);

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

// Reads what the functions above write, and fails on what does not lie within the image's pages.
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
      ReadMembers(&bytes_, number);
    }
    factors.scale = bytes_.Word<float>();
    factors.a = Places();
    factors.b = Places();
    for (ImagePlace* place : {&factors.a_table, &factors.b_table, &factors.gain, &factors.bias}) {
      *place = Place();
    }
    if (!Lies(factors)) bytes_.Fail();
    return factors;
  }

 private:
  ImagePlace Place() {
    ImagePlace place;
    ReadMembers(&bytes_, &place.page);
    ReadMembers(&bytes_, &place.offset);
    return place;
  }
  std::vector<ImagePlace> Places() {
    std::vector<ImagePlace> places(bytes_.Count());
    for (ImagePlace& place : places) place = Place();
    return places;
  }

  // Whether the page of the image has so many bytes there, at a multiple of `border`.
  bool Has(const ImagePlace& place, int64_t bytes, int64_t border = kBlockBorder) const {
    return place.page >= 0 && place.page < image_.num_pages && place.offset >= 0 &&
           place.offset % border == 0 && bytes <= image_.page_bytes - place.offset;
  }
  bool HasBlocks(const std::vector<ImagePlace>& blocks, int64_t rows, int64_t block_rows,
                 int64_t cols) const {
    if (blocks.empty()) return true;  // the identity, or no product
    if (rows < 1 || block_rows < 1 || cols > image_.page_bytes ||
        static_cast<int64_t>(blocks.size()) != (rows - 1) / block_rows + 1) {
      return false;
    }
    for (const ImagePlace& block : blocks) {
      const int64_t count = std::min(block_rows, rows);
      if (!Has(block, count * kernels::RowBytes(image_.dtype, cols))) return false;
      rows -= count;
    }
    return true;
  }
  bool Lies(const ImageFactors& f) const {
    if (f.rank < 0 || f.inputs < 0 || f.outputs < 0) return false;
    const auto has_table = [this](const ImagePlace& at, const std::vector<ImagePlace>& blocks) {
      const auto bytes = static_cast<int64_t>(blocks.size()) * kAddressBytes;
      return blocks.empty() || Has(at, bytes, kAddressBytes);
    };
    const auto has_vector = [&](const ImagePlace& at) {
      return at == kNoPlace || Has(at, int64_t{f.outputs} * int64_t{sizeof(float)});
    };
    const bool has_a = f.gathers() ? HasBlocks(f.a, f.inputs, f.a_block_rows, f.rank)
                                   : HasBlocks(f.a, f.rank, f.block_rows, f.inputs);
    return has_a && HasBlocks(f.b, f.rank, f.block_rows, f.outputs) && has_table(f.a_table, f.a) &&
           has_table(f.b_table, f.b) && has_vector(f.gain) && has_vector(f.bias);
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
    bytes.Bytes({reinterpret_cast<const char*>(page.data()), page.size()});
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
  ReadMembers(&bytes, &part->max_rank);
  ReadMembers(&bytes, &part->page_bytes);
  ReadMembers(&bytes, &part->num_pages);
  ReadMembers(&bytes, &all->num_pages);
  all->max_rank = part->max_rank;
  all->page_bytes = part->page_bytes;
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
