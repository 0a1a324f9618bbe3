#include "common/text/rust_abi.h"

namespace tandem::text {

Error rust_error(int32_t status, const RustBuffer& message, std::source_location location) {
  ErrorCode code = ErrorCode::kInternal;
  // Numbers of `Status` in rust/src/abi.rs.
  if (status == 1) code = ErrorCode::kInvalidArgument;
  if (status == 2) code = ErrorCode::kUnsupported;
  if (status == 3) code = ErrorCode::kCorruptData;
  if (status == 4) code = ErrorCode::kNotFound;
  return make_error(code, std::string(message.view()), {}, location);
}

}  // namespace tandem::text
