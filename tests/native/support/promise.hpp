// Hold the engine to its promises in seconds only on an idle machine: tests/support/promise.py.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/clock.hpp"

namespace phalanx::test {

// For anything that ends by an event: longer than every promise, and no busy machine reaches it.
inline constexpr std::chrono::seconds kPatience{20};

// How much longer than the released engine one with sanitizers may take, where a time is promised.
#if defined(PHALANX_SANITIZED)
inline constexpr int kSlowness = 10;
#else
inline constexpr int kSlowness = 1;
#endif

// The longest that something may take: what is promised with PHALANX_HOLD=1, else kPatience.
inline Clock::duration bound_of(Clock::duration promised) {
    const char* const hold = std::getenv("PHALANX_HOLD");
    if (hold != nullptr && std::string_view(hold) == "1") return kSlowness * promised;
    return kPatience;
}

// Polls until `condition()` is true; false if that takes longer than kPatience. A poll without a
// pause takes the core that the awaited thread needs.
template <class Condition>
[[nodiscard]] bool wait_until(const Condition& condition) {
    const auto deadline = Clock::now() + kPatience;
    while (!condition()) {
        if (Clock::now() >= deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace phalanx::test
