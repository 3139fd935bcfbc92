// Wait for a peer: spin while there is a core to spin on, yield, then sleep. In between check the
// control page, the deadline and the caller's signals.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/cpu.hpp"
#include "base/error.hpp"
#include "base/function_ref.hpp"
#include "shm/control_page.hpp"
#include "shm/core_balancer.hpp"

namespace phalanx {

// Missing ranks of a wait; computed only when a deadline has passed or a peer may have closed.
struct MissingRanks {
    std::vector<int> ranks;
    bool whole_hosts = false;  // a rank may itself wait for another rank of its host
    int closed_rank = -1;      // rank that has closed the group and will never come
};
using MissingRanksFn = FunctionRef<MissingRanks()>;

using Descriptors = FunctionRef<std::span<const pollfd>()>;

struct WaitPolicy {
    // 2 cores, one-way flag 0.03-0.15 us, futex wake-up 9-20 us: spinning as
    // long as a wake-up at most doubles the wait and usually saves the wake-up.
    std::chrono::nanoseconds spin{std::chrono::microseconds(20)};
    // A yield costs 1.4 us with another process on the core, 0.25 us without. The tail of one
    // operation on 64 KiB-1 MiB is this long, and sleeping would add a wake-up to each phase.
    std::chrono::nanoseconds yield{std::chrono::microseconds(200)};
    bool is_crowded = false;  // more ranks here than cores: do not spin at all
    bool is_full = false;     // at least as many ranks as cores, and several cores: moves pay off

    static WaitPolicy for_ranks(int ranks_here) {
        WaitPolicy policy;
        const int cores = usable_cores();
        policy.is_crowded = ranks_here > cores;
        policy.is_full = ranks_here >= cores && cores > 1;
        return policy;
    }
};

// Caller of an operation; asked only once the wait is long.
class WaitObserver {
  public:
    virtual bool wants_to_leave() = 0;  // runs its signal handlers
    virtual void tell_site() = 0;       // publishes the call site, once per operation

  protected:
    ~WaitObserver() = default;
};

// Owned by a group and used only by the thread that holds its turn.
class Waiter {
  public:
    static constexpr std::chrono::milliseconds kLongestSleep{50};
    // Wait so long for late headers before reporting a mismatch, so that all ranks name the same
    // pair: a busy machine delays a rank by some scheduler ticks of 4 ms. The promised limit is 2
    // s.
    static constexpr std::chrono::milliseconds kPatience{100};

    Waiter(ControlPage& page, int slot, std::uint64_t epoch, int wake_fd, WaitPolicy policy)
        : page_(page),
          bell_(page.doorbell(slot)),
          slot_(slot),
          epoch_(epoch),
          wake_fd_(wake_fd),
          policy_(policy) {}

    // `caller`, if not null, must outlive the operation.
    void begin(Deadline deadline, WaitObserver* caller);

    // Waits for `ready()`. It reads memory that peers publish with seq_cst or release stores,
    // followed by a ring of this rank's doorbell.
    template <class Ready>
    void wait_until(const Ready& ready, MissingRanksFn missing) {
        constexpr int kEagerLooks = 64;  // about 2 us: a close peer needs no clock
        for (int look = 0; look < (policy_.is_crowded ? 2 : kEagerLooks); ++look) {
            if (ready()) return;
            cpu_relax();
        }
        start();
        while (!ready()) back_off(ready, missing);
    }

    // Waits until a descriptor is ready, the group is woken, or the deadline; spins first. `look()`
    // tries the descriptors itself and returns whether any bytes moved.
    template <class Look>
    void wait_until_moved(const Look& look, Descriptors descriptors, MissingRanksFn missing) {
        start();
        while (!look()) back_off_polling(descriptors, missing);
    }

    // Checks control page, deadline and signals once; throws if the operation must end.
    void check(MissingRanksFn missing);
    void check_abort() const {
        if (page_.is_aborted(epoch_)) throw_aborted();
    }
    // Call after the last read of peers' memory. If the epoch was not aborted by now, the bytes
    // were the peers' and of this epoch: a rank writes for another epoch only after it has seen the
    // abort.
    void check_still_theirs() const {
        order_reads();
        check_abort();
    }
    // True once this operation has waited long: time to check the other ranks.
    [[nodiscard]] bool is_patience_over() const noexcept {
        return has_slept_ && Clock::now() - first_wait_ >= kPatience;
    }
    // True once the present wait has lasted that long.
    [[nodiscard]] bool has_stalled() const noexcept { return Clock::now() - started_ >= kPatience; }
    // For a thread that waits for room to send: its bytes are on their way, so spinning gains
    // nothing. At a sleep it checks whether the receiver still wants the rest.
    void sleep_early() noexcept {
        if (!policy_.is_crowded) policy_.yield = policy_.spin;
    }
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

  private:
    void start();
    void back_off(FunctionRef<bool()> ready, MissingRanksFn missing);
    void back_off_polling(Descriptors descriptors, MissingRanksFn missing);
    void choose_core(Clock::time_point now);
    void check_interrupts(Clock::time_point now, MissingRanksFn missing);
    [[noreturn]] void throw_aborted() const;

    ControlPage& page_;
    Doorbell& bell_;
    int slot_;
    std::uint64_t epoch_;
    int wake_fd_;
    WaitPolicy policy_;
    CoreBalancer core_balancer_;
    Deadline deadline_;
    WaitObserver* caller_ = nullptr;
    Clock::time_point started_;     // begin of this wait
    Clock::time_point first_wait_;  // begin of this operation's first wait
    Clock::time_point next_signal_check_;
    bool has_looked_ = false;  // descriptors() was called in this wait
    bool has_slept_ = false;
    bool has_sent_site_ = false;
    std::vector<pollfd> polled_;
};

}  // namespace phalanx
