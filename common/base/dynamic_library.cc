#include "common/base/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

namespace tandem {
namespace {

std::string loader_message() {
  const char* text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(const std::string& name,
                                            std::span<const std::string> folders) {
  DynamicLibrary library;
  std::string tried;
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + name;
    library.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) break;
    tried += loader_message() + "; ";
  }
  if (library.handle_ == nullptr) {
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ == nullptr) {
      return fail(ErrorCode::kUnavailable,
                  "cannot open " + name + ": " + tried + loader_message() +
                      "; searched by the loader: rpath, LD_LIBRARY_PATH, the system");
    }
  }
  const link_map* map = nullptr;
  if (dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr)
    library.path_ = map->l_name;
  return library;
}

bool DynamicLibrary::has(const char* symbol) const { return dlsym(handle_, symbol) != nullptr; }

Result<void*> DynamicLibrary::find(const char* symbol) const {
  if (handle_ == nullptr)
    return fail(ErrorCode::kInternal, std::string(symbol) + " is wanted of a library not opened");
  void* address = dlsym(handle_, symbol);
  if (address == nullptr) {
    return fail(ErrorCode::kUnsupported, path_ + " has no function " + symbol +
                                             ": it is older than what this build was made with");
  }
  return address;
}

}  // namespace tandem
