// Wait on shared memory (futex), lock with a deadline, and block signals on our own threads.
// If the system has no shared futex, the sleeper polls the word. So a waker must change the word,
// and callers must check their condition after every return.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>

namespace phalanx {

enum class Woken { kYes, kBySignal };

// Returns when the word is no longer `seen`, on a wake, on a signal, or after `limit`; may also
// return without a cause.
Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

// Lock a group for one operation at a time. A waiter waits in short intervals, so that it can check
// signals, aborts and deadlines in between. (std::timed_mutex would do, but the thread sanitizer of
// gcc 12 does not support its timed lock.)

// word_ is 0 free, 1 held, 2 held with possible sleepers. Taking is acquire and unlocking is
// release: the next holder sees all writes of the last one.
class TimedMutex {
  public:
    [[nodiscard]] bool try_lock() noexcept {
        std::uint32_t free = 0;
        return word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
    }
    [[nodiscard]] bool try_lock_for(std::chrono::nanoseconds limit) noexcept {
        if (try_lock()) return true;
        if (word_.exchange(2, std::memory_order_acquire) == 0) return true;
        futex_wait(word_, 2, limit);
        return word_.exchange(2, std::memory_order_acquire) == 0;
    }
    void unlock() noexcept {
        if (word_.exchange(0, std::memory_order_release) == 2) futex_wake_all(word_);
    }

  private:
    std::atomic<std::uint32_t> word_{0};
};

class MutexGuard {
  public:
    explicit MutexGuard(TimedMutex& taken) noexcept : turn_(taken) {}
    MutexGuard(const MutexGuard&) = delete;
    MutexGuard& operator=(const MutexGuard&) = delete;
    ~MutexGuard() { turn_.unlock(); }

  private:
    TimedMutex& turn_;
};

// Block signals in threads that the engine starts.

// Blocks every signal while it exists. Threads started meanwhile inherit the mask, so signals go to
// the program's own threads. Signals of a fault stay open: they go to the thread that caused them.
class SignalsBlocked {
  public:
    SignalsBlocked() noexcept {
        sigset_t set;
        sigfillset(&set);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
            sigdelset(&set, fault);
        }
        ::pthread_sigmask(SIG_SETMASK, &set, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

}  // namespace phalanx
