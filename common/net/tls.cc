#include "common/net/tls.h"

#include <boost/asio/ssl/context.hpp>
#include <string>

namespace tandem {

namespace {

namespace asio = boost::asio;

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
                "cannot use the certificate " + settings.certificate + ": " + error.message(),
                "router.http.tls.certificate");
  }
  tls->use_private_key_file(settings.key, asio::ssl::context::pem, error);
  if (error) {
    return fail(ErrorCode::kConfig,
                "cannot use the private key " + settings.key + ": " +
                    (*asked ? "a passphrase protects it; store one without" : error.message()),
                "router.http.tls.key");
  }
  if (SSL_CTX_check_private_key(tls->native_handle()) != 1) {
    return fail(ErrorCode::kConfig, settings.key + " is not the key of " + settings.certificate,
                "router.http.tls.key");
  }
  return tls;
}

Status check_tls(const TlsSettings& settings) {
  if (!settings.enabled()) return {};
  const auto tls = make_tls(settings);
  return tls ? Status() : fail(tls.error());
}

}  // namespace tandem
