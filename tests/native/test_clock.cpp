// The clock of the flight recorder: against steady_clock, and with a counter that goes wrong.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.hpp"

using namespace phalanx;

namespace {

constexpr std::uint64_t kMicrosecond = 1'000;
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;

// Three ticks a nanosecond; every look at either clock takes some time.
struct Fake {
    static constexpr bool kExists = true;
    static inline std::uint64_t ns = 0;
    static inline double counted = 0;
    static inline double rate = 3;
    static inline std::uint64_t wobble = 0;
    static inline std::uint64_t looks = 0;

    static void begin() {
        ns = kSecond;
        counted = 1e12;
        rate = 3;
        wobble = 0;
        looks = 0;
    }
    static void pass(std::uint64_t more) {
        ns += more;
        counted += static_cast<double>(more) * rate;
    }
    static std::uint64_t ticks() {
        pass(5);
        return static_cast<std::uint64_t>(counted);
    }
    static std::uint64_t ticks_after_reads() { return ticks(); }
    static bool is_invariant() { return true; }
    static std::uint64_t steady_ns() {
        ++looks;
        pass(10 + (wobble = (wobble * 5 + 3) % 16));
        return ns;
    }
};

std::uint64_t apart(std::uint64_t one, std::uint64_t other) {
    return one > other ? one - other : other - one;
}

// So long that the rate is known.
void settle(TickClock<Fake>& clock) {
    for (int i = 0; i < 2000; ++i) {
        Fake::pass(kMillisecond);
        static_cast<void>(clock.now());
    }
}

}  // namespace

TEST_CASE("the clock of the recorder says what steady_clock says") {
    TickClock clock;
    MESSAGE("by the processor's counter: ", clock.is_trusted());
    const auto begun = Counter::steady_ns();
    std::uint64_t furthest = 0;
    for (auto before = begun; before < begun + 300 * kMillisecond;) {
        const auto told = clock.now();
        const auto after = Counter::steady_ns();
        if (told < before) furthest = std::max(furthest, before - told);
        if (told > after) furthest = std::max(furthest, told - after);
        before = after;
    }
    CHECK(furthest <= 2 * kMicrosecond);

    TickClock<> other(false);
    const auto before = Counter::steady_ns();
    const auto told = other.now();
    CHECK_FALSE(other.is_trusted());
    CHECK(told >= before);
    CHECK(told <= Counter::steady_ns());
}

TEST_CASE("time never goes back, from thread to thread") {
    TickClock clock;
    std::atomic<std::uint64_t> last{0};
    std::atomic<int> backward{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&] {
            const auto until = Counter::steady_ns() + 100 * kMillisecond;
            for (std::uint64_t told = 0; told < until;) {
                auto seen = last.load(std::memory_order_acquire);
                told = clock.now_after_reads();
                if (told < seen) ++backward;
                while (seen < told && !last.compare_exchange_weak(seen, told)) continue;
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(backward == 0);
}

TEST_CASE("a line is laid anew each millisecond, and follows a clock that is slewed") {
    Fake::begin();
    TickClock<Fake> clock;
    settle(clock);
    const auto looks = Fake::looks;
    std::uint64_t last = 0;
    std::uint64_t furthest = 0;
    int backward = 0;
    for (int i = 0; i < 100'000; ++i) {  // 20 ms
        Fake::rate = 3 * (1 + (i / 25'000 % 2 == 0 ? 4e-4 : -4e-4));
        Fake::pass(200);
        const auto told = clock.now();
        if (told < last) ++backward;
        last = told;
        furthest = std::max(furthest, apart(told, Fake::ns));
    }
    CHECK(backward == 0);
    CHECK(clock.is_trusted());
    CHECK(furthest < kMicrosecond);
    CHECK(Fake::looks - looks >= 20);
    CHECK(Fake::looks - looks < 200);  // some lines take more than one
}

TEST_CASE("a counter that jumps is given up for good, and time goes on") {
    for (const double jump : {-1e13, -9e6, 1.5e7, 1e13}) {  // ticks
        for (const bool is_settled : {false, true}) {
            CAPTURE(jump);
            CAPTURE(is_settled);
            Fake::begin();
            TickClock<Fake> clock;
            is_settled ? settle(clock) : Fake::pass(kMillisecond);
            const auto before = clock.now();
            Fake::counted = std::max(Fake::counted + jump, 1.0);
            Fake::pass(2 * kMillisecond);
            auto last = clock.now();
            CHECK(last >= before);
            CHECK(apart(last, Fake::ns) <= kMillisecond);
            CHECK_FALSE(clock.is_trusted());
            for (int i = 0; i < 10; ++i) {
                Fake::pass(i % 2 == 0 ? kMillisecond : kMicrosecond);
                const auto told = clock.now();
                CHECK(told >= last);
                last = told;
            }
            CHECK(apart(last, Fake::ns) < kMicrosecond);
        }
    }
}

TEST_CASE("a long rest is no error") {
    Fake::begin();
    TickClock<Fake> clock;
    settle(clock);
    Fake::rate = 3 * (1 + 1e-5);
    Fake::pass(600 * kSecond);
    CHECK(apart(clock.now(), Fake::ns) < kMicrosecond);
    CHECK(clock.is_trusted());
}
