// Decide whether the processor's counter is good enough as a clock.
#include "base/clock.hpp"

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
// Return the kernel's present source of CLOCK_MONOTONIC; "" if unknown.
[[maybe_unused]] std::string clock_source() {
    std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::string name;
    file >> name;
    return name;
}
#endif

}  // namespace

// False with kvm-clock or Hyper-V's pages: a virtual machine uses these if its counter alone is not
// good enough (no fixed rate, or another rate after a migration), and else prefers the counter.
bool Counter::is_invariant() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr unsigned kPower = 0x80000007;
    constexpr unsigned kIsInvariant = 1U << 8;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid(kPower, &a, &b, &c, &d) == 0 || (d & kIsInvariant) == 0) return false;
    int allowed = 0;  // a process may be denied the counter: reading it then kills the process
    if (::prctl(PR_GET_TSC, &allowed) != 0 || allowed != PR_TSC_ENABLE) return false;
    return clock_source() == "tsc";
#elif defined(__linux__) && defined(__aarch64__)
    return clock_source() == "arch_sys_counter";
#else
    return false;
#endif
}

}  // namespace phalanx
