// Whether the processor's counter is good enough to be a clock.
#include "base/tick_clock.hpp"

#ifdef __linux__
#include <sys/prctl.h>

#include <fstream>
#include <string>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#endif

namespace phalanx {

namespace {

#ifdef __linux__
// What the kernel makes CLOCK_MONOTONIC of at this moment; "" where it does not say.
[[maybe_unused]] std::string clock_source() {
    std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::string name;
    file >> name;
    return name;
}
#endif

}  // namespace

// Not with kvm-clock, nor Hyper-V's pages: a guest takes those where its counter alone will not do
// (it has no promise of one rate, or another one after a move), and else prefers the counter.
bool Counter::is_invariant() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr unsigned kPower = 0x80000007;
    constexpr unsigned kIsInvariant = 1U << 8;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid(kPower, &a, &b, &c, &d) == 0 || (d & kIsInvariant) == 0) return false;
    int allowed = 0;  // a process may be denied the counter: it dies of a look
    if (::prctl(PR_GET_TSC, &allowed) != 0 || allowed != PR_TSC_ENABLE) return false;
    return clock_source() == "tsc";
#elif defined(__linux__) && defined(__aarch64__)
    return clock_source() == "arch_sys_counter";
#else
    return false;
#endif
}

}  // namespace phalanx
