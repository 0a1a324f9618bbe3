#pragma once

#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/net/http_connection.h"
#include "common/net/http_head.h"

namespace tandem {

// One client. Reads all the time, also while a request is being worked on, so that a client that
// leaves is noticed; parses one request at a time and keeps what a pipelining client sent early.
template <typename Stream>
class HttpConnection final : public HttpConnectionBase,
                             public std::enable_shared_from_this<HttpConnection<Stream>> {
 public:
  HttpConnection(Stream stream, HttpWorker& worker, HttpShared& shared);

  void start() override;
  void tick(TimePoint now) override;
  void close_if_idle() override;
  void cut() override;
  void wake() override;

 private:
  static constexpr bool kTls = !std::is_same_v<Stream, boost::asio::ip::tcp::socket>;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  enum class Phase : uint8_t {
    kHandshake,  // TLS
    kIdle,       // between requests
    kHead,
    kBody,
    kHandling,   // the handler has it, or its answer is being written
    kRefusing,   // an error of ours is being written, then the connection ends
    kLingering,  // our side is shut; reading what still comes, so that no reset eats the answer
    kClosed,
  };

  boost::asio::ip::tcp::socket& socket();
  void set_phase(Phase phase, Duration limit);
  void set_phase(Phase phase);  // without a limit
  void close(ClientLoss why = ClientLoss::kLeft);

  void read();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void on_end_of_input();
  void advance();
  bool begin_request();  // false: nothing has come yet
  void parse();
  bool on_head();  // false: refused
  void dispatch();

  void refuse(int status, const Error& error, std::string_view label);
  void refuse_parse_error(const boost::system::error_code& error);
  void refuse_timeout();
  // Answers for the handler and ends the connection.
  void answer_alone(int status, const Error& error);

  void queue_head(const HttpResponse& response, bool streaming);
  void queue_pieces(std::vector<std::string>& pieces);
  void queue(std::string bytes);
  void flush();
  void on_write(const boost::system::error_code& error, size_t bytes);
  void on_answered();
  void linger();
  void shut_tls();

  Stream stream_;
  HttpWorker& worker_;
  HttpShared& shared_;
  std::string remote_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;  // while it is being read; what is needed later stays in the fields below
  HttpHeaders cors_headers_;
  std::string request_id_;
  std::string method_;
  std::shared_ptr<HttpExchange> exchange_;

  std::vector<std::string> queue_;    // to be written next
  std::vector<std::string> writing_;  // being written, from write_index_/write_offset_ on
  size_t write_index_ = 0;
  size_t write_offset_ = 0;
  size_t piece_bytes_ = 0;     // of the exchange, within queue_
  size_t writing_pieces_ = 0;  // of the exchange, within writing_

  Phase phase_ = Phase::kIdle;
  TimePoint deadline_;
  bool has_deadline_ = false;
  TimePoint write_deadline_;
  bool reading_ = false;
  bool input_ended_ = false;
  bool write_pending_ = false;
  bool keep_alive_ = true;
  bool http10_ = false;
  bool head_only_ = false;
  bool chunked_ = false;
  bool begun_ = false;     // the answer's head is in queue_ or beyond
  bool answered_ = false;  // the whole answer is in queue_ or beyond
  size_t lingered_bytes_ = 0;
};

// Both kinds are made in http_connection.cc.
extern template class HttpConnection<boost::asio::ip::tcp::socket>;
extern template class HttpConnection<boost::asio::ssl::stream<boost::asio::ip::tcp::socket>>;

}  // namespace tandem
