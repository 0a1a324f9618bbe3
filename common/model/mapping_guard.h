#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace tandem::model {

// A file that shrinks while it is mapped, or a disk that fails under it, raises SIGBUS at the next
// read. The bytes are gone then and no caller could go on; what can be done is to say which file it
// was. While a mapping is registered here, such a signal ends the process with exit code 1 and one
// line on standard error. Signals about any other address go where they went before.
//
// Any thread. The handler is installed with the first mapping; more than kMostGuarded mappings at
// once go unnamed.
inline constexpr size_t kMostGuarded = 1024;
void guard_mapping(std::span<const std::byte> bytes, const std::filesystem::path& path);
// Before the mapping goes.
void forget_mapping(std::span<const std::byte> bytes);

}  // namespace tandem::model
