#include "tests/support/test_pki.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <functional>

#include "base/check.h"

namespace heddle::test {
namespace {

std::string Text(const std::function<int(BIO*)>& write) {
  BIO* bio = BIO_new(BIO_s_mem());
  HEDDLE_CHECK(write(bio) == 1, "writing PEM");
  char* data = nullptr;
  const auto bytes = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(bytes));
  BIO_free(bio);
  return text;
}

void AddExtension(X509* cert, X509V3_CTX* context, int kind, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, context, kind, value);
  HEDDLE_CHECK(extension != nullptr && X509_add_ext(cert, extension, -1) == 1, "extension");
  X509_EXTENSION_free(extension);
}

}  // namespace

Certified::Certified(const Options& options, const Certified* issuer)
    : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), cert_(X509_new(), X509_free) {
  static long serial = 1;
  constexpr long kDay = 86400;
  X509* cert = cert_.get();
  X509* signer = issuer == nullptr ? cert : issuer->cert_.get();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
  X509_gmtime_adj(X509_getm_notBefore(cert), options.valid_from_days * kDay);
  X509_gmtime_adj(X509_getm_notAfter(cert), options.valid_to_days * kDay);
  X509_set_pubkey(cert, key_.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(options.name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(cert, X509_get_subject_name(signer));
  X509V3_CTX context;
  X509V3_set_ctx(&context, signer, cert, nullptr, nullptr, 0);
  AddExtension(cert, &context, NID_basic_constraints,
               options.is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (!options.is_authority) {
    const std::string names = "DNS:" + options.name + ",IP:127.0.0.1";
    AddExtension(cert, &context, NID_subject_alt_name, names.c_str());
  }
  EVP_PKEY* signing_key = issuer == nullptr ? key_.get() : issuer->key_.get();
  HEDDLE_CHECK(X509_sign(cert, signing_key, EVP_sha256()) > 0, "signing");
}

std::string Certified::CertPem() const {
  return Text([this](BIO* bio) { return PEM_write_bio_X509(bio, cert_.get()); });
}

std::string Certified::KeyPem(const std::string& passphrase) const {
  const EVP_CIPHER* cipher = passphrase.empty() ? nullptr : EVP_aes_256_cbc();
  return Text([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key_.get(), cipher, passphrase.data(),
                                         static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
}

}  // namespace heddle::test
