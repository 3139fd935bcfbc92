// How a rank waits: spin while there is a core to spin on, yield, then sleep, and in between look
// at the abort page, the deadline and the caller's signals. Knows nothing of what is waited for.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>
#include <vector>

#include "base/cpu.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/function_ref.hpp"
#include "transport/abort_page.hpp"
#include "transport/seats.hpp"

namespace phalanx {

// Who is missing, asked only when a deadline has passed or a peer may have closed.
struct Missing {
    std::vector<int> ranks;
    bool whole_hosts = false;  // a rank may itself be waiting for another one of its host
    int closed_rank = -1;      // this one has closed the group and will never come
};
using WhoIsMissing = FunctionRef<Missing()>;

using Descriptors = FunctionRef<std::span<const pollfd>()>;

struct WaitPolicy {
    // 2 cores, one-way flag 0.03-0.15 us, futex wake-up 9-20 us (RESULTS.md section 2): spinning
    // as long as a wake-up costs at most doubles the wait and mostly saves it.
    std::chrono::nanoseconds spin{std::chrono::microseconds(20)};
    // A yield costs 1.4 us with a neighbour on the core, 0.25 us without. The tail of one
    // operation on 64 KiB-1 MiB is this long, and sleeping would add a wake-up to each phase.
    std::chrono::nanoseconds yield{std::chrono::microseconds(200)};
    bool is_crowded = false;  // more ranks here than cores: do not spin at all
    bool is_full = false;     // no fewer ranks than cores, and more than one: they are worth a move

    static WaitPolicy for_ranks(int ranks_here) noexcept {
        WaitPolicy policy;
        const int cores = usable_cores();
        policy.is_crowded = ranks_here > cores;
        policy.is_full = ranks_here >= cores && cores > 1;
        return policy;
    }
};

// Whose wait it is; asked only once the wait is long.
class Caller {
  public:
    virtual bool wants_to_leave() = 0;  // runs its signal handlers
    virtual void tell_site() = 0;       // once an operation: to others, where it waits

  protected:
    ~Caller() = default;
};

// Owned by a group and used by the one thread whose turn it is.
class Waiter {
  public:
    static constexpr std::chrono::milliseconds kLongestSleep{50};
    // Ranks that are all on their way meet sooner than this, however busy the machine (a scheduler
    // tick is 4 ms), so what they say of a mismatch is the same; 2 s is what was promised.
    static constexpr std::chrono::milliseconds kPatience{100};

    Waiter(AbortPage& page, int slot, std::uint64_t epoch, int wake_fd, WaitPolicy policy)
        : page_(page),
          bell_(page.doorbell(slot)),
          slot_(slot),
          epoch_(epoch),
          wake_fd_(wake_fd),
          policy_(policy) {}

    // `caller`, if there is one, must outlive the operation.
    void begin(Deadline deadline, Caller* caller);

    // Waits for `ready()`, a look at memory that peers publish with seq_cst or release stores
    // followed by a ring of this rank's doorbell.
    template <class Ready>
    void until(const Ready& ready, WhoIsMissing missing) {
        constexpr int kEagerLooks = 64;  // about 2 us: no clock is read for a peer that is close
        for (int look = 0; look < (policy_.is_crowded ? 2 : kEagerLooks); ++look) {
            if (ready()) return;
            cpu_relax();
        }
        start();
        while (!ready()) rest(ready, missing);
    }

    // Waits until a descriptor is ready, the group is woken, or `limit`; first busily for a while.
    // `look()` tries the descriptors itself and says whether anything moved.
    template <class Look>
    void until_moved(const Look& look, Descriptors descriptors, WhoIsMissing missing) {
        start();
        while (!look()) rest_on(descriptors, missing);
    }

    // One look at abort page, deadline, signals; throws if there is a reason to leave.
    void check(WhoIsMissing missing);
    void check_abort() const {
        if (page_.is_aborted(epoch_)) throw_aborted();
    }
    // After the last read of peers' memory: if the epoch was not aborted until now, what was read
    // was theirs and of this epoch, as nobody writes for another one before he has seen the abort.
    void check_still_theirs() const {
        order_reads();
        check_abort();
    }
    // True once this operation has waited long: time to ask whether all is well with the others.
    [[nodiscard]] bool is_patience_over() const noexcept {
        return has_slept_ && Clock::now() - first_wait_ >= kPatience;
    }
    // True once this wait has lasted as long.
    [[nodiscard]] bool has_stalled() const noexcept { return Clock::now() - started_ >= kPatience; }
    // For who waits for room, not for news: what it has said is on its way, and nothing is gained
    // by a core; a sleep is where it looks whether anybody still wants the rest.
    void sleep_early() noexcept {
        if (!policy_.is_crowded) policy_.yield = policy_.spin;
    }
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

  private:
    void start();
    void rest(FunctionRef<bool()> ready, WhoIsMissing missing);
    void rest_on(Descriptors descriptors, WhoIsMissing missing);
    void look_for_seat(Clock::time_point now);
    void look_around(Clock::time_point now, WhoIsMissing missing);
    [[noreturn]] void throw_aborted() const;

    AbortPage& page_;
    Doorbell& bell_;
    int slot_;
    std::uint64_t epoch_;
    int wake_fd_;
    WaitPolicy policy_;
    Seats seats_;
    Deadline deadline_;
    Caller* caller_ = nullptr;
    Clock::time_point started_;     // of this wait
    Clock::time_point first_wait_;  // of this operation
    Clock::time_point next_signal_check_;
    bool has_looked_ = false;  // in this wait, at what it is for
    bool has_slept_ = false;
    bool has_told_ = false;
    std::vector<pollfd> polled_;
};

}  // namespace phalanx
