// Near or far: whether the other ranks' cores share a cache with this one, told from how fast this
// rank reads what they have just written. A virtual machine moves its cores about, so one answer
// at the start would not do; and a probe of its own would need a core of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/deadline.hpp"

namespace phalanx {

// Concurrency: one thread at a time (the group's turn, or the lane's).
class Placement {
  public:
    using Nanoseconds = std::chrono::nanoseconds;
    // Read as a sample: 64 lines. Fewer, and the clock's 50 ns would be much of it.
    static constexpr std::size_t kSampleBytes = 4096;
    // Bytes per ns. Far: 1.9; near: over 20 (RESULTS.md section 0).
    static constexpr double kFarRate = 5.0;
    // A rank that was descheduled in the middle looks slow as well: three in a row are no accident.
    static constexpr int kSlowReads = 3;
    // Far, one write in this time goes through the cache all the same, to see whether the cores
    // are near again: of a collective 256 KiB, which at 1.9 GB/s are 0.14 ms, 0.3 % of it.
    static constexpr std::chrono::milliseconds kProbeInterval{50};

    // `is_pinned`: far whatever is seen, for tests of what is done then.
    explicit Placement(bool is_pinned) noexcept : is_pinned_(is_pinned), is_far_(is_pinned) {}

    // A sample was read in `took`: the slowest, where several peers wrote one.
    void saw(Nanoseconds took) noexcept {
        if (is_pinned_) return;
        if (static_cast<double>(kSampleBytes) > kFarRate * static_cast<double>(took.count())) {
            slow_reads_ = 0;
            is_far_ = false;
        } else if (++slow_reads_ >= kSlowReads && !is_far_) {
            is_far_ = true;
            next_probe_ = Clock::now() + kProbeInterval;
        }
    }

    // Whether what is written now should go past the caches.
    [[nodiscard]] bool wants_streaming(Clock::time_point now) noexcept {
        if (!is_far_) return false;
        if (is_pinned_ || now < next_probe_) return true;
        next_probe_ = now + kProbeInterval;
        return false;
    }
    [[nodiscard]] bool is_far() const noexcept { return is_far_; }

  private:
    bool is_pinned_;
    bool is_far_;
    int slow_reads_ = 0;
    Clock::time_point next_probe_{};
};

// How long it takes to read a sample that another rank has written through its cache.
inline Placement::Nanoseconds read_sample(const std::byte* sample) noexcept {
    constexpr std::size_t kLine = 64;
    const auto begin = Clock::now();
    unsigned seen = 0;
    for (std::size_t at = 0; at < Placement::kSampleBytes; at += kLine) {
        seen += std::to_integer<unsigned>(*static_cast<const volatile std::byte*>(sample + at));
    }
    const auto took = Clock::now() - begin;
    return seen == ~0U ? took + Placement::Nanoseconds(1) : took;  // keeps the loads
}

}  // namespace phalanx
