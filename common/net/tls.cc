#include "common/net/tls.h"

#include <openssl/err.h>
#include <openssl/x509err.h>

#include <boost/asio/ssl/context.hpp>
#include <string>

namespace tandem {

namespace {

namespace asio = boost::asio;

tl::unexpected<Error> not_its_key(const TlsSettings& settings) {
  return fail(ErrorCode::kConfig,
              settings.key + " is not the key of " + settings.certificate +
                  "; name the two that belong together",
              "router.http.tls.key");
}

}  // namespace

Result<std::unique_ptr<asio::ssl::context>> make_tls(const TlsSettings& settings) {
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  boost::system::error_code error;
  // Else OpenSSL asks for a passphrase at the terminal, and a role under `tandem up` has none of
  // its own.
  const auto asked = std::make_shared<bool>(false);
  tls->set_password_callback(
      [asked](size_t, asio::ssl::context::password_purpose) {
        *asked = true;
        return std::string();
      },
      error);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1 | asio::ssl::context::single_dh_use |
                       SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE,
                   error);
  tls->use_certificate_chain_file(settings.certificate, error);
  if (error) {
    return fail(ErrorCode::kConfig,
                "cannot use the certificate " + settings.certificate + ": " + error.message() +
                    "; name a PEM file with the certificate chain",
                "router.http.tls.certificate");
  }
  tls->use_private_key_file(settings.key, asio::ssl::context::pem, error);
  if (error &&
      ERR_GET_REASON(static_cast<unsigned long>(error.value())) == X509_R_KEY_VALUES_MISMATCH) {
    return not_its_key(settings);
  }
  if (error) {
    return fail(ErrorCode::kConfig,
                "cannot use the private key " + settings.key + ": " +
                    (*asked ? "a passphrase protects it; store one without"
                            : error.message() + "; name a PEM file with the private key"),
                "router.http.tls.key");
  }
  if (SSL_CTX_check_private_key(tls->native_handle()) != 1) return not_its_key(settings);
  return tls;
}

Status check_tls(const TlsSettings& settings) {
  if (!settings.enabled()) return {};
  const auto tls = make_tls(settings);
  return tls ? Status() : fail(tls.error());
}

}  // namespace tandem
