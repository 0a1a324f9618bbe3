#pragma once

#include <memory>

#include "common/base/result.h"
#include "common/config/cluster_config.h"

namespace boost::asio::ssl {
class context;
}  // namespace boost::asio::ssl

namespace tandem {

// What a server needs of OpenSSL for these files. kConfig, with the key at fault, when they cannot
// be read, do not belong together or are protected by a passphrase.
[[nodiscard]] Result<std::unique_ptr<boost::asio::ssl::context>> make_tls(
    const TlsSettings& settings);

// Whether make_tls() would succeed, with its error if not.
[[nodiscard]] Status check_tls(const TlsSettings& settings);

}  // namespace tandem
