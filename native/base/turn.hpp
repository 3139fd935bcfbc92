// One operation at a time: a lock that can be waited for in short bites, so that the waiter can
// look at signals, aborts and deadlines in between. (std::timed_mutex would do; its timed lock is
// not understood by the thread sanitizer of gcc 12.)
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/futex.hpp"

namespace phalanx {

// word_ is 0 free, 1 held, 2 held and somebody may sleep. acquire on taking, release on giving
// back: what the last holder wrote is seen by the next.
class Turn {
  public:
    [[nodiscard]] bool try_take() noexcept {
        std::uint32_t free = 0;
        return word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
    }
    [[nodiscard]] bool try_take_for(std::chrono::nanoseconds limit) noexcept {
        if (try_take()) return true;
        if (word_.exchange(2, std::memory_order_acquire) == 0) return true;
        futex_wait(word_, 2, limit);
        return word_.exchange(2, std::memory_order_acquire) == 0;
    }
    void give() noexcept {
        if (word_.exchange(0, std::memory_order_release) == 2) futex_wake_all(word_);
    }

  private:
    std::atomic<std::uint32_t> word_{0};
};

class TakenTurn {
  public:
    explicit TakenTurn(Turn& taken) noexcept : turn_(taken) {}
    TakenTurn(const TakenTurn&) = delete;
    TakenTurn& operator=(const TakenTurn&) = delete;
    ~TakenTurn() { turn_.give(); }

  private:
    Turn& turn_;
};

}  // namespace phalanx
