// Use the processor: clones of functions per vector instruction set, pauses, and core affinity.
#pragma once

#include <cstdint>
#include <vector>

// AVX2, and AVX-512 with its masks, which select elements in one instruction while AVX2 needs a
// comparison and a blend. ifunc resolvers run before a sanitizer is ready, so only plain builds
// have clones.
#if !defined(__x86_64__) || defined(PHALANX_SANITIZED) || defined(__APPLE__)  // Mach-O has no ifunc
#define PHALANX_CLONES
#elif defined(__clang__)
#define PHALANX_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define PHALANX_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

// Query the processor for the waiting policy: cores, affinity, thread numbers, latency.
namespace phalanx {

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Order reads above before reads below. A flag that is read above the fence thus covers the data
// read below. x86 processors keep this order without an instruction. (A C++ fence would do, but
// the thread sanitizer does not support fences.)
inline void order_reads() noexcept {
#if defined(__aarch64__)
    asm volatile("dmb ishld" ::: "memory");
#else
    asm volatile("" ::: "memory");
#endif
}

// Cores that this thread may run on (its affinity mask, not the machine's cores): their number, and
// the list, which is empty on systems without affinity.
int usable_cores();
std::vector<int> usable_core_list();
// Core that this thread runs on; -1 if unknown.
int current_core() noexcept;
// Move this thread to a core and keep its affinity mask. False on failure. A thread that is bound
// to a part of a cpuset keeps its mask, even if the cpuset grows meanwhile.
bool move_to_core(int core) noexcept;

// System-wide unique number of this thread, as Python's native_id.
std::uint64_t this_thread_number() noexcept;

}  // namespace phalanx
