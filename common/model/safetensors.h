#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/model/host_tensor.h"

namespace tandem::model {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // as written, "F32", "I64", …
  std::optional<StorageType> type;  // empty: a dtype that is not a weight type here
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // into the file
};

// Reads the header of a safetensors file that lies in memory (github.com/huggingface/safetensors,
// "Format"): 8 bytes little-endian header length, JSON header, data. As the reference reader does,
// requires that the tensors tile the data exactly: no overlap, no gap, no rest. Entries are ordered
// by offset.
[[nodiscard]] Result<std::vector<SafetensorsEntry>> parse_safetensors(
    std::span<const std::byte> file, std::string_view name);

}  // namespace tandem::model
