// Read and change affinity.
#include "base/cpu.hpp"

#include <algorithm>
#include <thread>

#include "base/platform.hpp"

#if PHALANX_LINUX
#include <sched.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

namespace phalanx {

#if PHALANX_LINUX
namespace {
void fill(cpu_set_t& set) noexcept {
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &set);
}
}  // namespace
#endif

std::uint64_t this_thread_number() noexcept {
#if defined(__linux__)
    return static_cast<std::uint64_t>(::syscall(SYS_gettid));
#else
    std::uint64_t number = 0;
    ::pthread_threadid_np(nullptr, &number);
    return number;
#endif
}

int usable_cores() {
    const auto cores = usable_core_list();
    return cores.empty() ? static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))
                         : static_cast<int>(cores.size());
}

std::vector<int> usable_core_list() {
    std::vector<int> cores;
#if PHALANX_LINUX
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
#endif
    return cores;
}

int current_core() noexcept {
#if PHALANX_LINUX
    return ::sched_getcpu();
#else
    return -1;
#endif
}

bool move_to_core(int core) noexcept {
#if PHALANX_LINUX
    cpu_set_t before;
    cpu_set_t only;
    CPU_ZERO(&before);
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    if (::sched_getaffinity(0, sizeof before, &before) != 0 || !CPU_ISSET(core, &before)) {
        return false;
    }
    // The kernel does not report cores that are offline or not in the cpuset yet. A thread that was
    // not bound before must not be bound afterwards.
    if (CPU_COUNT(&before) >= ::sysconf(_SC_NPROCESSORS_ONLN)) fill(before);
    const bool has_moved = ::sched_setaffinity(0, sizeof only, &only) == 0;
    if (::sched_setaffinity(0, sizeof before, &before) != 0) {  // the cpuset has changed meanwhile
        fill(before);
        ::sched_setaffinity(0, sizeof before, &before);
    }
    return has_moved;
#else
    static_cast<void>(core);
    return false;
#endif
}

}  // namespace phalanx
