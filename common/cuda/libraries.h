#pragma once

#include <span>
#include <string>
#include <vector>

namespace tandem::cuda {

// A library of NVIDIA's that is opened at run time, as it is found here and now.
struct LibraryInfo {
  std::string name;     // "cuBLASLt"
  std::string soname;   // "libcublasLt.so.13"
  std::string purpose;  // what does not work without it
  bool found = false;
  std::string path;
  std::string version;  // "13.1.0"; empty: it does not say
  std::string problem;  // why it was not found
};

// Opens each in turn, `folders` first. Works in every build; costs some tens of milliseconds.
[[nodiscard]] std::vector<LibraryInfo> inspect_libraries(std::span<const std::string> folders);

}  // namespace tandem::cuda
