#include "common/model/mapping_guard.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

namespace tandem::model {
namespace {

// Read by the signal handler, so without locks: `begin` is set last and cleared first.
struct Slot {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<size_t> size{0};
  std::array<char, 512> path{};
};

std::array<Slot, kMostGuarded> slots;  // of the process, as signal handlers are
std::mutex slots_mutex;                // for those who write
struct sigaction before {};

void say(const char* text) {
  // Nothing is left to do about a failure here.
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Slot& slot : slots) {
    const std::byte* begin = slot.begin.load(std::memory_order_acquire);
    if (begin == nullptr || at < begin || at >= begin + slot.size.load(std::memory_order_relaxed))
      continue;
    say(slot.path.data());
    say(": was cut short or became unreadable while its weights were in use; restore the file and "
        "start again\n");
    ::_exit(1);
  }
  ::sigaction(SIGBUS, &before, nullptr);  // the read is tried again and meets the old handler
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

void guard_mapping(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  static std::once_flag once;
  std::call_once(once, install);
  const std::lock_guard lock(slots_mutex);
  const auto free = std::find_if(slots.begin(), slots.end(),
                                 [](const Slot& slot) { return slot.begin.load() == nullptr; });
  if (free == slots.end()) return;
  const std::string text = path.string();
  const size_t length = std::min(text.size(), free->path.size() - 1);
  std::copy_n(text.begin(), length, free->path.begin());
  free->path[length] = '\0';
  free->size.store(bytes.size(), std::memory_order_relaxed);
  free->begin.store(bytes.data(), std::memory_order_release);
}

void forget_mapping(std::span<const std::byte> bytes) {
  const std::lock_guard lock(slots_mutex);
  for (Slot& slot : slots) {
    if (slot.begin.load() != bytes.data()) continue;
    slot.begin.store(nullptr, std::memory_order_release);
    return;
  }
}

}  // namespace tandem::model
