// What the waiting policy must know about the processor.
#pragma once

#include <vector>

namespace phalanx {

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// No read below comes before one above: of memory that a flag read below vouches for. Processors
// of x86 keep that order by themselves. (A fence of C++ would do; the thread sanitizer knows none.)
inline void order_reads() noexcept {
#if defined(__aarch64__)
    asm volatile("dmb ishld" ::: "memory");
#else
    asm volatile("" ::: "memory");
#endif
}

// Cores this thread may run on (the affinity mask, not the machine).
int usable_cores() noexcept;
std::vector<int> usable_core_list();
// The one that this thread is on; -1 where that is not known.
int current_core() noexcept;
// Has this thread go on there, and leaves its affinity mask as it is. False if it cannot be. A
// thread that is bound to a part of a cpuset which grows meanwhile stays bound to what it had.
bool move_to_core(int core) noexcept;

// One-way latency of a flag between two cores in ns, measured with a helper thread in about 50 us
// of flag time; a negative number where there is only one core.
double flag_latency_ns();

}  // namespace phalanx
