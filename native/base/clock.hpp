// Deadlines of calls, the time of the flight recorder's records, and spans of time in words.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>

namespace phalanx {

using Clock = std::chrono::steady_clock;

// CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a host. The kernel reads its
// counter after this thread's earlier reads: if a flag was set after a peer's own read of the
// clock, this time is not before that.
inline std::uint64_t steady_ns() noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
            .count());
}

// `0.2 s`. The engine writes no streams: in a process with a second C++ library, numbers written to
// them crash, for the two number the locale's facets differently.
inline std::string in_seconds(Clock::duration time) {
    char text[32];
    const auto end =
        std::to_chars(text, text + sizeof text, std::chrono::duration<double>(time).count(),
                      std::chars_format::general, 6);
    return std::string(text, end.ptr) + " s";
}

class Deadline {
  public:
    Deadline() noexcept = default;  // never
    explicit Deadline(Clock::duration limit) noexcept {
        // A limit beyond the clock's range (centuries) means never.
        const auto now = Clock::now();
        if (limit < Clock::time_point::max() - now) at_ = now + limit;
    }
    [[nodiscard]] bool has_passed(Clock::time_point now) const noexcept { return now >= at_; }
    // Time left to wait, at most `cap`.
    [[nodiscard]] Clock::duration remaining(Clock::time_point now, Clock::duration cap) const {
        return at_ <= now ? Clock::duration::zero() : std::min(cap, at_ - now);
    }

  private:
    Clock::time_point at_ = Clock::time_point::max();
};

}  // namespace phalanx
