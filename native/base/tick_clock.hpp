// CLOCK_MONOTONIC in nanoseconds at the price of the processor's own counter, where that is good
// enough for the kernel's clock as well; elsewhere steady_clock. Knows nothing of what is timed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "base/cpu.hpp"
#include "base/deadline.hpp"

namespace phalanx {

// The counter of this processor.
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
    static constexpr bool kExists = false;  // macOS: steady_clock is a look at it
    static std::uint64_t ticks() noexcept { return 0; }
    static std::uint64_t ticks_after_reads() noexcept { return 0; }
#endif
    // Whether it runs at one rate, the same on all cores: where the kernel itself goes by it, which
    // it does only after it has looked, and stops if the counter turns out wrong.
    static bool is_invariant();
    static std::uint64_t steady_ns() noexcept {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
                .count());
    }
};

// A look costs 8.9 ns, 16.1 after what was read, where steady_clock takes 18.5 (recorder_cost, Xeon
// at 2.6 GHz, medians of 20 runs; the bare counter takes 8.4 and 14.5).
//
// A counter is read, and a straight line through the last common look at both clocks makes
// nanoseconds of it. A line is believed for a millisecond; who looks later looks at steady_clock,
// too, and lays the next line. So an error cannot grow: 20 ppm that the rate was measured wrong, or
// that NTP has changed it by meanwhile, are 20 ns, 500 ppm (as fast as the kernel slews) half a
// microsecond; and a counter that has jumped (a suspended machine, one that was moved) is beyond
// the millisecond, so it is not believed. One that is off by a millisecond where both clocks are
// compared, and by more than the kernel would slew, is given up for good.
//
// The counter is taken after steady_clock: what this clock says is late by some 10 ns, never ahead
// of steady_clock but for the errors above.
//
// Time never goes back, also from thread to thread: each line begins where the last one ended, or
// above. Where that is ahead of steady_clock, it rises the slower.
//
// Concurrency. Any thread looks, at any time. A line is published under `version_`, which is odd
// meanwhile: fields are stored with release and loaded with acquire, so who has seen a field of the
// next line sees an odd or later version. Whoever finds the line too old measures first and then
// takes the version (compare-and-swap), so it is odd for a few stores only; who meets it odd looks
// again, and after many looks (its holder has lost the core) takes steady_clock's word, which may
// be 10 ns ahead of the next line.
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
    // Not before what was read from memory by now: a flag that a peer has set after its own look
    // is not seen before that. (What is stored later is not seen before a look in any case.)
    [[nodiscard]] Nanoseconds now_after_reads() noexcept {
        return at([] { return Source::ticks_after_reads(); });
    }
    // Whether the counter is used (as far as one knows).
    [[nodiscard]] bool is_trusted() const noexcept {
        return is_trusted_.load(std::memory_order_relaxed);
    }

  private:
    // Nanoseconds.
    static constexpr double kMostSpan = 1e6;     // argued above
    static constexpr double kLeastBase = 2e4;    // 20 ns off are 1000 ppm, over a span as short
    static constexpr double kSettledBase = 1e9;  // 20 ns off are 20 ppb
    static constexpr double kMostError = 1e6;
    static constexpr double kMostNoise = 200;  // of the base of a rate, generously
    static constexpr double kMostSlew = 1e-3;  // twice what the kernel does
    static constexpr double kFastest = 10;     // ticks in one: 10 GHz
    static constexpr int kShift = 32;
    static constexpr int kLooks = 1000;  // at an odd version: some 30 us
    static constexpr int kSamples = 4;

    struct Line {
        std::uint64_t tick = 0;
        std::uint64_t ns = 0;
        std::uint64_t slope = 0;  // ns << 32 of a tick
        std::uint64_t span = 0;   // ticks
        [[nodiscard]] std::uint64_t at(std::uint64_t ticks) const noexcept {
            return ns + (ticks * slope >> kShift);  // 2^20 ns << 32 is the most
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
        if (line.span == 0) return renew();      // there may be none, and a look at it may be fatal
        const auto since = ticks() - line.tick;  // huge where the counter has gone back
        // The line again after the counter: an old line is for times when it was the last one.
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

    // Both clocks at once: with nothing between the two looks, an interrupt say.
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
        // The first time the best of all is good. Where none was, another time more will do: they
        // might never be as close again.
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

    // By whoever holds the version.
    Nanoseconds lay_line(const Sample& seen) noexcept {
        const Line old = read_line();
        const auto since = seen.tick - old.tick;
        if (since < old.span) return old.at(since);  // somebody has just laid one
        // Beyond its span nobody is told anything by a line.
        const auto told = std::max(old.at(old.span), floor_.load(std::memory_order_relaxed));
        const auto ns = std::max(seen.ns, told);
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

    // Over a base that grows to a second, then over the next one.
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

    // Before the rate is known only what no counter does is seen.
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
    std::atomic<std::uint64_t> span_{0};   // 0: no line is believed
    std::atomic<std::uint64_t> floor_{0};  // told when the last line was laid
    std::atomic<std::uint64_t> close_{0};  // ticks between the two looks of a good sample
    std::atomic<bool> is_trusted_;
    // Of whoever holds the version.
    alignas(64) Sample last_{};
    std::uint64_t origin_tick_ = 0;  // from where the rate is measured
    std::uint64_t origin_ns_ = 0;
    double rate_ = 0;       // ns of a tick; 0: not known yet
    double rate_base_ = 0;  // ns over which it was measured
    bool is_settled_ = false;
};

}  // namespace phalanx
