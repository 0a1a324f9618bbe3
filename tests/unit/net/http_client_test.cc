#include "common/net/http_client.h"

#include <gmock/gmock.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>

#include "common/net/tls.h"
#include "tests/unit/net/http_test_support.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A self-signed certificate and its key, as files.
TlsSettings make_certificate(const std::filesystem::path& folder) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_sign(certificate, key, EVP_sha256());
  const TlsSettings files{(folder / "tls.crt").string(), (folder / "tls.key").string()};
  std::FILE* file = std::fopen(files.certificate.c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(files.key.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

class HttpClientTest : public HttpServerTest {
 protected:
  HttpClientTest() {
    router_.exact("GET", "/stream", [](HttpRequest, HttpResponder r) {
      r.start_stream(200, "text/event-stream");
      for (int i = 0; i < 1000; ++i) r.write("data: " + std::to_string(i) + "\n\n");
      r.finish();
    });
    router_.exact("GET", "/cut", [](HttpRequest, HttpResponder r) {
      r.start_stream(200, "text/event-stream");
      r.write("data: 1\n\n");
      r.abort();
    });
  }
  void connect(const std::string& scheme = "http") {
    AsyncHttpOptions options;
    options.verify_certificate = false;
    client_ =
        HttpClient::create(scheme + "://127.0.0.1:" + std::to_string(server_->port()), options)
            .value();
  }
  void exercise() {
    for (int i = 0; i < 3; ++i) {
      const auto hello =
          client_->request({.method = "GET", .target = "/hello", .headers = {}, .body = {}});
      ASSERT_TRUE(hello) << hello.error().to_string();
      EXPECT_EQ(hello->status, 200);
      EXPECT_EQ(hello->body, "hello");
    }
    const std::string large(5'000'000, 'x');
    const auto echo =
        client_->request({.method = "POST", .target = "/echo", .headers = {}, .body = large});
    ASSERT_TRUE(echo) << echo.error().to_string();
    EXPECT_EQ(echo->body, large);
    std::string streamed;
    const auto stream =
        client_->stream({.method = "GET", .target = "/stream", .headers = {}, .body = {}},
                        [&](std::string_view bytes) { streamed += bytes; });
    ASSERT_TRUE(stream) << stream.error().to_string();
    std::string expected;
    for (int i = 0; i < 1000; ++i) expected += "data: " + std::to_string(i) + "\n\n";
    EXPECT_EQ(streamed, expected);
    EXPECT_FALSE(client_->request({.method = "GET", .target = "/cut", .headers = {}, .body = {}}))
        << "a cut body is an error";
    EXPECT_EQ(
        client_->request({.method = "GET", .target = "/nope", .headers = {}, .body = {}})->status,
        404);
  }
  std::unique_ptr<HttpClient> client_;
};

TEST_F(HttpClientTest, TalksToTheServer) {
  start();
  connect();
  exercise();
}

TEST_F(HttpClientTest, ReconnectsWhenTheServerClosedTheIdleConnection) {
  settings_.idle_timeout = milliseconds(300);
  start();
  connect();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(client_->request({.method = "GET", .target = "/hello", .headers = {}, .body = {}}));
    std::this_thread::sleep_for(milliseconds(600));
  }
}

TEST_F(HttpClientTest, AnIpv6AddressIsNamedInBrackets) {
  auto client = HttpClient::create("http://[::1]:1/v1", {});
  ASSERT_TRUE(client) << client.error().detail;
  const auto reply =
      (*client)->request({.method = "GET", .target = "/", .headers = {}, .body = {}});
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().detail, HasSubstr("[::1]:1: "));
}

TEST_F(HttpClientTest, NobodyThereIsAnErrorThatNamesTheAddress) {
  start();
  connect();
  server_.reset();
  const auto reply =
      client_->request({.method = "GET", .target = "/hello", .headers = {}, .body = {}});
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().detail, HasSubstr("127.0.0.1:"));
  EXPECT_FALSE(HttpClient::create("ftp://x"));
}

class Tls : public HttpClientTest {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tandem-tls-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    settings_.tls = make_certificate(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(Tls, EverythingWorksEncrypted) {
  start();
  connect("https");
  exercise();
}

TEST_F(Tls, AnUnknownCertificateIsRefusedUnlessToldOtherwise) {
  start();
  const auto strict =
      HttpClient::create("https://127.0.0.1:" + std::to_string(server_->port())).value();
  const auto reply =
      strict->request({.method = "GET", .target = "/hello", .headers = {}, .body = {}});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kUnauthenticated);
  EXPECT_THAT(reply.error().detail, HasSubstr("certificate is not trusted: self"));
}

TEST_F(Tls, TheWrongSchemeIsNamed) {
  start();
  const std::string place = "127.0.0.1:" + std::to_string(server_->port());
  const auto plain =
      HttpClient::create("http://" + place).value()->request({"GET", "/hello", {}, {}});
  ASSERT_FALSE(plain);
  EXPECT_THAT(plain.error().detail, HasSubstr("wants https://"));
}

TEST_F(HttpClientTest, TlsTowardsAServerWithoutItIsNamed) {
  start();
  const std::string place = "127.0.0.1:" + std::to_string(server_->port());
  const auto tls =
      HttpClient::create("https://" + place).value()->request({"GET", "/hello", {}, {}});
  ASSERT_FALSE(tls);
  EXPECT_EQ(tls.error().code, ErrorCode::kTransport);
  EXPECT_THAT(tls.error().detail, HasSubstr("wants http://"));
}

TEST_F(Tls, GarbageAndPlainHttpEndTheirConnectionOnly) {
  start();
  connect("https");
  for (const std::string& bytes :
       {get("/hello"), std::string(5000, '\xff'),
        std::string("\x16\x03\x01\xff\xff", 5) + std::string(70000, 'x')}) {
    RawClient c = client();
    c.send(bytes);
    EXPECT_EQ(c.read_all().find("HTTP/1.1 200"), std::string::npos);
    EXPECT_TRUE(c.ended());
  }
  EXPECT_TRUE(client_->request({.method = "GET", .target = "/hello", .headers = {}, .body = {}}));
}

TEST_F(Tls, SilenceInTheHandshakeIsBounded) {
  settings_.header_timeout = milliseconds(100);
  start();
  RawClient c = client();
  EXPECT_EQ(c.read_all(), "");
}

TEST_F(Tls, AKeyUnderAPassphraseIsAConfigErrorThatSaysSo) {
  std::FILE* file = std::fopen(settings_.tls.key.c_str(), "rb");
  EVP_PKEY* key = PEM_read_PrivateKey(file, nullptr, nullptr, nullptr);
  std::fclose(file);
  file = std::fopen(settings_.tls.key.c_str(), "wb");
  unsigned char phrase[] = "secret";
  PEM_write_PrivateKey(file, key, EVP_aes_256_cbc(), phrase, 6, nullptr, nullptr);
  std::fclose(file);
  EVP_PKEY_free(key);
  const auto server = HttpServer::create(settings_, [](HttpRequest, HttpResponder) {},
                                         {clock_, Logger(sink_, LogLevel::kError), metrics_});
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ErrorCode::kConfig);
  EXPECT_THAT(server.error().detail, HasSubstr("a passphrase protects it"));
}

TEST_F(Tls, AKeyOfAnotherCertificateIsAConfigError) {
  std::filesystem::create_directory(folder_ / "other");
  settings_.tls.key = make_certificate(folder_ / "other").key;
  const auto server = HttpServer::create(settings_, [](HttpRequest, HttpResponder) {},
                                         {clock_, Logger(sink_, LogLevel::kError), metrics_});
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ErrorCode::kConfig);
  EXPECT_THAT(server.error().detail,
              HasSubstr(settings_.tls.key + " is not the key of " + settings_.tls.certificate));
  EXPECT_EQ(check_tls(settings_.tls).error().detail, server.error().detail);
  settings_.tls.key = settings_.tls.certificate;
  EXPECT_EQ(check_tls(settings_.tls).error().param, "router.http.tls.key");
  settings_.tls = {};
  EXPECT_TRUE(check_tls(settings_.tls));  // plain HTTP
}

}  // namespace
}  // namespace tandem
