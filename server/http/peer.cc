#include "server/http/peer.h"

#include <algorithm>
#include <cstring>

#include "absl/hash/hash.h"

namespace heddle::server {

uint64_t PeerNumber(const boost::asio::ip::address& address) {
  namespace ip = boost::asio::ip;
  uint64_t bits = 0;
  const bool is_v6 = address.is_v6() && !address.to_v6().is_v4_mapped();
  if (is_v6) {
    const ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
    std::memcpy(&bits, bytes.data(), sizeof(bits));
  } else {
    bits = address.is_v4() ? address.to_v4().to_uint()
                           : ip::make_address_v4(ip::v4_mapped, address.to_v6()).to_uint();
  }
  return std::max<uint64_t>(1, absl::HashOf(is_v6, bits));
}

}  // namespace heddle::server
