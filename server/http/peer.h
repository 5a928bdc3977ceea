// A number for the address that a connection comes from: who shares it shares the machine, where
// clients have no API keys. Ports do not count, and of an IPv6 address neither does what a host may
// choose by itself, the last 64 bits.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>

namespace heddle::server {

// Never 0.
uint64_t PeerNumber(const boost::asio::ip::address& address);

}  // namespace heddle::server
