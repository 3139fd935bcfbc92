// Send a heartbeat: a counter on the control page that a dedicated thread advances. The supervisor
// and waiting ranks read the counter.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "shm/core_balancer.hpp"

namespace phalanx {

// In shared memory. `beats` is 0 without a heartbeat (no rank yet, or a rank that has left). The
// rank's heartbeat thread writes it; any process reads it.
struct alignas(128) HeartbeatSlot {
    std::atomic<std::uint64_t> beats;
    CoreHint core_hint;  // written by the waiting thread of the rank
};

// Concurrency. The thread touches only `slot_` and `stop_`, calls no Python, takes no lock and no
// signal. So it advances while C code holds the interpreter for minutes, and stops with the
// process. A process that cannot start the thread has no heartbeat and is then never reported as
// frozen.
//
// A pthread and not a std::thread, to set a small stack: memory may be short (RLIMIT_AS).
class Heartbeat {
  public:
    // Four heartbeats per second: a second is the shortest significant silence.
    static constexpr std::chrono::milliseconds kBeat{250};

    explicit Heartbeat(HeartbeatSlot& slot) noexcept;
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;
    ~Heartbeat();  // does nothing in a forked child, which has no such thread and shares the
                   // counter

  private:
    static void* beat(void* self) noexcept;

    HeartbeatSlot& slot_;
    std::atomic<std::uint32_t> stop_{0};
    pthread_t thread_{};
    pid_t pid_ = -1;  // process of the thread; -1: no thread
};

}  // namespace phalanx
