// Deadlines of calls, and the clock of the flight recorder.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "base/cpu.hpp"

namespace phalanx {

using Clock = std::chrono::steady_clock;

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

// Read CLOCK_MONOTONIC in nanoseconds at the price of the processor's counter, if the kernel's
// clock uses this counter too; elsewhere read steady_clock.

// Counter of this processor.
struct Counter {
#if defined(__linux__) && defined(__x86_64__)
    static constexpr bool kExists = true;
    static std::uint64_t ticks() noexcept { return __builtin_ia32_rdtsc(); }
    static std::uint64_t ticks_after_reads() noexcept {
        __builtin_ia32_lfence();
        return __builtin_ia32_rdtsc();
    }
#elif defined(__linux__) && defined(__aarch64__)
    static constexpr bool kExists = true;
    static std::uint64_t ticks() noexcept {
        std::uint64_t value;
        asm volatile("mrs %0, cntvct_el0" : "=r"(value));
        return value;
    }
    static std::uint64_t ticks_after_reads() noexcept {
        asm volatile("isb" ::: "memory");
        return ticks();
    }
#else
    static constexpr bool kExists = false;  // macOS: steady_clock reads the counter itself
    static std::uint64_t ticks() noexcept { return 0; }
    static std::uint64_t ticks_after_reads() noexcept { return 0; }
#endif
    // Whether the counter runs at one rate, the same on all cores. True if the kernel uses it: the
    // kernel checks the counter first, and stops using it if it turns out to be wrong.
    static bool is_invariant();
    static std::uint64_t steady_ns() noexcept {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
                .count());
    }
};

// A read costs 8.9 ns, and 16.1 ns after earlier reads; steady_clock takes 18.5 ns (recorder_cost,
// Xeon at 2.6 GHz, medians of 20 runs; the bare counter takes 8.4 and 14.5).
//
// The counter is converted to nanoseconds by a straight line through the last common sample of both
// clocks. A line is valid for a millisecond; a later read samples steady_clock too and makes the
// next line. So errors cannot grow. An error of 20 ppm, from the measured rate or because NTP has
// changed the rate since, is 20 ns; 500 ppm (the kernel's fastest slew) is half a microsecond. A
// counter that has jumped (a suspended machine, or one that was migrated) is beyond the
// millisecond, so the line is not used. A counter that is off by a millisecond when both clocks are
// compared, and by more than the kernel would slew, is not used any more.
//
// The counter is sampled after steady_clock: this clock is late by some 10 ns, and never ahead of
// steady_clock except for the errors above.
//
// Time never goes back, also from thread to thread: each line begins at or above the end of the
// line before. If this is ahead of steady_clock, the new line rises more slowly.
//
// Concurrency. Any thread reads at any time. A line is published under `version_`, which is odd
// during the update: fields are stored with release and loaded with acquire, so a thread that has
// seen a field of the next line sees an odd or later version. A thread that finds the line too old
// samples first and then takes the version (compare-and-swap), so the version is odd for a few
// stores only. A thread that finds the version odd retries; after many tries (the holder has lost
// its core) it uses steady_clock, which may be 10 ns ahead of the next line.
//
// The source is a parameter for tests.
template <class Source = Counter>
class TickClock {
  public:
    using Nanoseconds = std::uint64_t;

    explicit TickClock(bool is_usable = Source::is_invariant()) noexcept
        : is_trusted_(Source::kExists && is_usable) {
        if (is_trusted()) renew();
    }
    TickClock(const TickClock&) = delete;
    TickClock& operator=(const TickClock&) = delete;

    [[nodiscard]] Nanoseconds now() noexcept {
        return at([] { return Source::ticks(); });
    }
    // Time not before any value that this thread has read: if a flag was set after a peer's own
    // read of the clock, this time is not before that. (Later stores are not seen before a read in
    // any case.)
    [[nodiscard]] Nanoseconds now_after_reads() noexcept {
        return at([] { return Source::ticks_after_reads(); });
    }
    // Whether the counter is used (as far as is known).
    [[nodiscard]] bool is_trusted() const noexcept {
        return is_trusted_.load(std::memory_order_relaxed);
    }

  private:
    // All times in nanoseconds.
    static constexpr double kMostSpan = 1e6;     // validity of a line, argued above
    static constexpr double kLeastBase = 2e4;    // 20 ns off are 1000 ppm, over a span as short
    static constexpr double kSettledBase = 1e9;  // 20 ns off are 20 ppb
    static constexpr double kMostError = 1e6;
    static constexpr double kMostNoise = 200;  // noise of a rate's base, a generous bound
    static constexpr double kMostSlew = 1e-3;  // twice the kernel's
    static constexpr double kFastest = 10;     // ticks per ns: 10 GHz
    static constexpr int kShift = 32;
    static constexpr int kLooks = 1000;  // tries at an odd version: some 30 us
    static constexpr int kSamples = 4;

    struct Line {
        std::uint64_t tick = 0;
        std::uint64_t ns = 0;
        std::uint64_t slope = 0;  // ns per tick, << 32
        std::uint64_t span = 0;   // ticks
        [[nodiscard]] std::uint64_t at(std::uint64_t ticks) const noexcept {
            return ns + (ticks * slope >> kShift);  // at most 2^20 ns << 32: no overflow
        }
    };
    struct Sample {
        std::uint64_t tick;
        std::uint64_t ns;
        bool is_close;
    };

    template <class Ticks>
    Nanoseconds at(const Ticks& ticks) noexcept {
        if constexpr (!Source::kExists) return Source::steady_ns();
        const auto version = version_.load(std::memory_order_acquire);
        const Line line = read_line();
        if (line.span == 0) return renew();      // no line: reading the counter may be fatal
        const auto since = ticks() - line.tick;  // huge if the counter has gone back
        // Check the line again after the counter: an old line is valid only while it was the last
        // one.
        if (since < line.span && (version & 1) == 0 &&
            version_.load(std::memory_order_relaxed) == version) [[likely]] {
            return line.at(since);
        }
        return renew();
    }

    [[nodiscard]] Line read_line() const noexcept {
        return {tick_.load(std::memory_order_acquire), ns_.load(std::memory_order_acquire),
                slope_.load(std::memory_order_acquire), span_.load(std::memory_order_acquire)};
    }

    // Sample both clocks with nothing in between, such as an interrupt.
    Sample sample() noexcept {
        const auto close = close_.load(std::memory_order_relaxed);
        Sample best{};
        std::uint64_t least = ~std::uint64_t{0};
        for (int look = 0; look < kSamples && least > 2 * close; ++look) {
            const auto before = Source::ticks();
            const auto ns = Source::steady_ns();
            const auto tick = Source::ticks_after_reads();
            const auto apart = tick - before + 1;
            if (apart >= least) continue;
            least = apart;
            best = {tick, ns, true};
        }
        // The first time, the closest of all samples is good. If none was close enough, double the
        // limit: samples might never be as close again.
        best.is_close = close == 0 || least <= 2 * close;
        const auto next = close == 0 ? least : best.is_close ? std::min(close, least) : 2 * close;
        close_.store(next, std::memory_order_relaxed);
        return best;
    }

    [[gnu::noinline, gnu::cold]] Nanoseconds renew() noexcept {
        for (int look = 0; look < kLooks && is_trusted(); ++look) {
            auto version = version_.load(std::memory_order_acquire);
            if ((version & 1) != 0) {
                cpu_relax();
                continue;
            }
            const Sample seen = sample();
            if (!version_.compare_exchange_strong(version, version + 1,
                                                  std::memory_order_acq_rel)) {
                continue;
            }
            const auto ns = lay_line(seen);
            version_.store(version + 2, std::memory_order_release);
            return ns;
        }
        return std::max(Source::steady_ns(), floor_.load(std::memory_order_relaxed));
    }

    // Called by the holder of the version.
    Nanoseconds lay_line(const Sample& seen) noexcept {
        const Line old = read_line();
        const auto since = seen.tick - old.tick;
        if (since < old.span) return old.at(since);  // another thread has just made a line
        // No thread has read a time beyond the span of the old line.
        const auto earlier = std::max(old.at(old.span), floor_.load(std::memory_order_relaxed));
        const auto ns = std::max(seen.ns, earlier);
        floor_.store(ns, std::memory_order_relaxed);
        if (!seen.is_close) {
            span_.store(0, std::memory_order_release);
            return ns;
        }
        if (is_off(seen)) {
            is_trusted_.store(false, std::memory_order_relaxed);
            span_.store(0, std::memory_order_release);
            return ns;
        }
        last_ = seen;
        if (origin_tick_ == 0) {
            origin_tick_ = seen.tick;
            origin_ns_ = seen.ns;
        }
        measure_rate(seen);
        if (rate_ == 0) return ns;
        const double span = std::min(kMostSpan, rate_base_);
        const auto ahead = static_cast<double>(ns - seen.ns);
        const double slope = rate_ * std::max(1 - ahead / span, 0.5);
        tick_.store(seen.tick, std::memory_order_release);
        ns_.store(ns, std::memory_order_release);
        slope_.store(static_cast<std::uint64_t>(std::ldexp(slope, kShift)),
                     std::memory_order_release);
        span_.store(static_cast<std::uint64_t>(span / rate_), std::memory_order_release);
        return ns;
    }

    // Measures the rate over a base that grows to a second, then over the next second.
    void measure_rate(const Sample& seen) noexcept {
        const auto base = static_cast<double>(seen.ns - origin_ns_);
        if (base < kLeastBase || (is_settled_ && base < kSettledBase)) return;
        rate_ = base / static_cast<double>(seen.tick - origin_tick_);
        rate_base_ = base;
        if (base < kSettledBase) return;
        is_settled_ = true;
        origin_tick_ = seen.tick;
        origin_ns_ = seen.ns;
    }

    // Before the rate is known, detects only steps that no counter makes.
    [[nodiscard]] bool is_off(const Sample& seen) const noexcept {
        if (origin_tick_ == 0) return false;  // the first
        if (seen.tick < last_.tick) return true;
        const auto gone = static_cast<double>(seen.ns - last_.ns);
        const auto ticks = static_cast<double>(seen.tick - last_.tick);
        if (rate_ == 0) return ticks > kFastest * (gone + kMostNoise);
        const double may_be = kMostError + (kMostSlew + kMostNoise / rate_base_) * gone;
        return std::abs(ticks * rate_ - gone) > may_be;
    }

    alignas(64) std::atomic<std::uint64_t> version_{0};
    std::atomic<std::uint64_t> tick_{0};
    std::atomic<std::uint64_t> ns_{0};
    std::atomic<std::uint64_t> slope_{0};
    std::atomic<std::uint64_t> span_{0};   // 0: no valid line
    std::atomic<std::uint64_t> floor_{0};  // largest time returned when the last line was made
    std::atomic<std::uint64_t> close_{0};  // ticks between the two reads of a good sample
    std::atomic<bool> is_trusted_;
    // Fields of the holder of the version.
    alignas(64) Sample last_{};
    std::uint64_t origin_tick_ = 0;  // begin of the rate's base
    std::uint64_t origin_ns_ = 0;
    double rate_ = 0;       // ns per tick; 0: not known yet
    double rate_base_ = 0;  // ns over which the rate was measured
    bool is_settled_ = false;
};

}  // namespace phalanx
