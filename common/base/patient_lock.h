#pragma once

#include <mutex>

namespace tandem {

// Owns a mutex that is held for less than a microsecond at a time, but very often. It tries for
// some 20 us before it sleeps: to wake up costs more, and whoever holds the mutex would have it
// again meanwhile.
class PatientLock {
 public:
  explicit PatientLock(std::mutex& mutex) : mutex_(mutex) {
    for (int i = 0; i < kTries; ++i) {
      if (mutex_.try_lock()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    mutex_.lock();
  }
  ~PatientLock() { mutex_.unlock(); }
  PatientLock(const PatientLock&) = delete;
  PatientLock& operator=(const PatientLock&) = delete;

 private:
  static constexpr int kTries = 400;
  std::mutex& mutex_;
};

}  // namespace tandem
