#include "common/node/message_log.h"

namespace tandem::node {
namespace {

std::string_view to_string(control::FinishReason finish) {
  return finish == control::FINISH_STOP ? "stop" : "length";
}

void log_tokens(const Logger& log, const control::Tokens& tokens) {
  for (const auto& run : tokens.runs()) {
    if (run.finish() == control::FINISH_NONE) continue;
    log.info("generated",
             {{"request", run.request_id()},
              {"finish", to_string(run.finish())},
              {"tokens", run.first_index() + static_cast<uint32_t>(run.tokens_size())}});
  }
}

}  // namespace

void log_message(const Logger& log, const control::ToRouter& message) {
  switch (message.message_case()) {
    case control::ToRouter::kFailed: {
      const auto& m = message.failed();
      log.warning("request_failed", {{"request", m.request_id()},
                                     {"transfer", m.transfer_id()},
                                     {"error_code", m.code()},
                                     {"error", m.detail()}});
      break;
    }
    case control::ToRouter::kReserved: {
      const auto& m = message.reserved();
      if (m.granted()) {
        log.debug("reserved", {{"request", m.request_id()},
                               {"transfer", m.transfer_id()},
                               {"blocks", m.blocks()},
                               {"cached_tokens", m.cached_tokens()}});
      } else {
        log.info("reservation_refused", {{"request", m.request_id()},
                                         {"transfer", m.transfer_id()},
                                         {"error_code", m.error_code()},
                                         {"error", m.error()}});
      }
      break;
    }
    case control::ToRouter::kPrefillDone: {
      const auto& m = message.prefill_done();
      log.info("prefilled", {{"request", m.request_id()},
                             {"transfer", m.transfer_id()},
                             {"cached_tokens", m.cached_tokens()},
                             {"queue_seconds", m.queue_seconds()},
                             {"compute_seconds", m.compute_seconds()}});
      break;
    }
    case control::ToRouter::kTransferDone: {
      const auto& m = message.transfer_done();
      log.info("transferred", {{"request", m.request_id()},
                               {"transfer", m.transfer_id()},
                               {"raw_bytes", m.raw_bytes()},
                               {"wire_bytes", m.wire_bytes()},
                               {"seconds", m.seconds()},
                               {"exposed_seconds", m.exposed_seconds()},
                               {"transport", m.transport()}});
      break;
    }
    case control::ToRouter::kAdmitted: {
      const auto& m = message.admitted();
      log.debug("admitted", {{"request", m.request_id()},
                             {"transfer", m.transfer_id()},
                             {"seconds", m.transfer_seconds()}});
      break;
    }
    case control::ToRouter::kTokens:
      log_tokens(log, message.tokens());
      break;
    case control::ToRouter::kHello:
    case control::ToRouter::kHeartbeat:
    case control::ToRouter::MESSAGE_NOT_SET:
      break;
  }
}

}  // namespace tandem::node
