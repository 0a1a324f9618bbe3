#pragma once

#include <span>
#include <string>

#include "common/base/result.h"

namespace tandem {

// A shared library opened at run time, for what must not be a condition of starting: NVIDIA's
// libraries on machines without a GPU. Closing it is left out on purpose: these libraries keep
// threads and exit handlers. Any thread.
class DynamicLibrary {
 public:
  // Tries `name` (a soname such as "libnccl.so.2") in each of `folders`, then where the loader
  // looks by itself: the program's rpath, LD_LIBRARY_PATH, the system. The error names them all.
  [[nodiscard]] static Result<DynamicLibrary> open(const std::string& name,
                                                   std::span<const std::string> folders = {});

  DynamicLibrary() = default;

  // The address of a function, never null; the error names library and function.
  template <typename Function>
  [[nodiscard]] Status bind(Function*& function, const char* symbol) const {
    TANDEM_ASSIGN(void* address, find(symbol));
    function = reinterpret_cast<Function*>(address);
    return {};
  }
  [[nodiscard]] bool has(const char* symbol) const;

  [[nodiscard]] const std::string& path() const { return path_; }  // of the file that was opened
  [[nodiscard]] explicit operator bool() const { return handle_ != nullptr; }

 private:
  [[nodiscard]] Result<void*> find(const char* symbol) const;

  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace tandem
