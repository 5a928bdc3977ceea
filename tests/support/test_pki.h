// Certificates for tests, made by OpenSSL on the spot: an authority, and those that it signs. The
// keys are P-256, which take no time to make.
#pragma once

#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace heddle::test {

// A certificate and its key, in memory.
class Certified {
 public:
  struct Options {
    std::string name = "localhost";  // common name; a server's also gets 127.0.0.1
    bool is_authority = false;
    int valid_from_days = -1;  // from today
    int valid_to_days = 30;
  };

  // Signed by `issuer`, or by itself (nullptr).
  Certified(const Options& options, const Certified* issuer);

  std::string CertPem() const;
  std::string KeyPem(const std::string& passphrase = "") const;  // not empty: encrypted by it

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> cert_;
};

inline Certified MakeAuthority(const std::string& name) {
  return {{.name = name, .is_authority = true}, nullptr};
}

}  // namespace heddle::test
