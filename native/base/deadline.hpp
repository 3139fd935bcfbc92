// A point in time after which a call must not wait any more, or never.
#pragma once

#include <algorithm>
#include <chrono>

namespace phalanx {

using Clock = std::chrono::steady_clock;

class Deadline {
  public:
    Deadline() noexcept = default;  // never
    explicit Deadline(Clock::duration limit) noexcept {
        // A limit beyond the clock's range (centuries) is none.
        const auto now = Clock::now();
        if (limit < Clock::time_point::max() - now) at_ = now + limit;
    }
    [[nodiscard]] bool has_passed(Clock::time_point now) const noexcept { return now >= at_; }
    // How long one may still wait, and at most `cap`.
    [[nodiscard]] Clock::duration remaining(Clock::time_point now, Clock::duration cap) const {
        return at_ <= now ? Clock::duration::zero() : std::min(cap, at_ - now);
    }

  private:
    Clock::time_point at_ = Clock::time_point::max();
};

}  // namespace phalanx
