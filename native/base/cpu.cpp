// Read and change affinity; measure the latency between cores with a ping-pong.
#include "base/cpu.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
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

int usable_cores() noexcept {
#if PHALANX_LINUX
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
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

double flag_latency_ns() {
    if (usable_cores() < 2) return -1.0;
    using Clock = std::chrono::steady_clock;
    constexpr int kRounds = 100;  // 6 us near, 30 us far
    constexpr int kTries = 5;     // the minimum counts: a descheduled partner only adds time
    const auto give_up = Clock::now() + std::chrono::milliseconds(20);
    alignas(128) std::atomic<int> ball{0};
    std::atomic<bool> stop{false};
    std::thread partner([&] {
        for (int spins = 0; !stop.load(std::memory_order_relaxed); ++spins) {
            const int seen = ball.load(std::memory_order_acquire);
            if ((seen & 1) != 0) ball.store(seen + 1, std::memory_order_release);
            if (spins % 4096 == 4095) std::this_thread::yield();
        }
    });
    double best = -1.0;
    for (int attempt = 0; attempt < kTries && Clock::now() < give_up; ++attempt) {
        const auto begin = Clock::now();
        int round = 0;
        for (; round < kRounds; ++round) {
            const int sent = ball.load(std::memory_order_relaxed) + 1;
            ball.store(sent, std::memory_order_release);
            int spins = 0;
            while (ball.load(std::memory_order_acquire) == sent) {
                if (++spins % 4096 != 0) continue;
                if (Clock::now() >= give_up) break;
                std::this_thread::yield();
            }
            if (ball.load(std::memory_order_acquire) == sent) break;
        }
        if (round < kRounds) break;
        const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
        const double one_way = elapsed.count() / (2.0 * kRounds);
        if (best < 0 || one_way < best) best = one_way;
    }
    stop.store(true, std::memory_order_relaxed);
    partner.join();
    return best;
}

}  // namespace phalanx
