// The sign of life of a rank's process: a counter on the abort page that a thread of its own
// advances. Knows nothing of operations; who looks at the counter is the supervisor's business.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "transport/seats.hpp"

namespace phalanx {

// In shared memory: 0 where there is no heart (no rank yet, one that has left). Written by the
// rank's heart, read by anybody.
struct alignas(128) Pulse {
    std::atomic<std::uint64_t> beats;
    Seat seat;  // by whichever thread of the rank waits
};

// Concurrency. The thread touches `pulse_` and `stop_` only, calls no Python, takes no lock and no
// signal; so it beats while the interpreter is held by C code for minutes, and stops with the
// process. A process that cannot have one more thread lives without: nobody accuses it then.
//
// A pthread and not a std::thread: its stack is small, as memory may be short (RLIMIT_AS).
class Heart {
  public:
    // Four of them fit in a second, the least time after which silence means anything.
    static constexpr std::chrono::milliseconds kBeat{250};

    explicit Heart(Pulse& pulse) noexcept;
    Heart(const Heart&) = delete;
    Heart& operator=(const Heart&) = delete;
    ~Heart();  // in a child of fork there is no such thread, and the counter is the parent's

  private:
    static void* beat(void* self) noexcept;

    Pulse& pulse_;
    std::atomic<std::uint32_t> stop_{0};
    pthread_t thread_{};
    pid_t pid_ = -1;  // whose the thread is; -1: there is none
};

}  // namespace phalanx
