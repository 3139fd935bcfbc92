// Implement the slow path of waiting.
#include "transport/waiter.hpp"

#include <sched.h>
#include <unistd.h>

#include <cerrno>

namespace phalanx {

namespace {
// Looks at memory between two reads of the clock while spinning: about 1 us.
constexpr int kLooksPerClock = 32;
}  // namespace

void Waiter::begin(Deadline deadline, WaitObserver* caller) {
    deadline_ = deadline;
    caller_ = caller;
    next_signal_check_ = {};
    first_wait_ = {};
    has_slept_ = false;
    has_sent_site_ = false;
}

void Waiter::start() {
    started_ = Clock::now();
    has_looked_ = false;
    if (first_wait_ == Clock::time_point{}) first_wait_ = started_;
    if (next_signal_check_ == Clock::time_point{}) next_signal_check_ = started_ + kLongestSleep;
}

void Waiter::throw_aborted() const {
    auto reason = page_.reason(epoch_);
    throw Aborted(reason ? std::move(*reason) : AbortReason{AbortKind::kError, -1, "unknown"});
}

void Waiter::choose_core(Clock::time_point now) {
    if (!policy_.is_full || !core_balancer_.is_due(now)) return;
    std::vector<CoreHint*> hints;
    for (int slot = 0; slot < page_.slots(); ++slot) hints.push_back(&page_.core_hint(slot));
    core_balancer_.choose_core(
        hints, slot_, current_core(), now, [] { return usable_core_list(); },
        [](int core) { return move_to_core(core); });
}

void Waiter::check_interrupts(Clock::time_point now, MissingRanksFn missing) {
    check_abort();
    if (deadline_.has_passed(now)) {
        auto who = missing();
        throw Timeout(std::move(who.ranks), who.whole_hosts);
    }
    if (now >= next_signal_check_) {
        next_signal_check_ = now + kLongestSleep;
        if (caller_ == nullptr) return;
        if (caller_->wants_to_leave()) throw Interrupted();
        if (!has_sent_site_) caller_->tell_site();
        has_sent_site_ = true;
    }
}

void Waiter::check(MissingRanksFn missing) { check_interrupts(Clock::now(), missing); }

void Waiter::back_off(FunctionRef<bool()> ready, MissingRanksFn missing) {
    auto now = Clock::now();
    check_interrupts(now, missing);
    choose_core(now);
    const auto waited = now - started_;
    if (!policy_.is_crowded && waited < policy_.spin) {
        for (int look = 0; look < kLooksPerClock && !ready(); ++look) cpu_relax();
        return;
    }
    if (waited < policy_.yield) {
        ::sched_yield();
        return;
    }
    const MissingRanks who = missing();
    if (who.closed_rank >= 0 && !ready()) throw PeerClosed(who.closed_rank);
    const auto woken = bell_.sleep(deadline_.remaining(now, kLongestSleep),
                                   [&] { return ready() || page_.is_aborted(epoch_); });
    has_slept_ = true;
    if (woken == Woken::kBySignal) next_signal_check_ = Clock::time_point::min();
}

void Waiter::back_off_polling(Descriptors descriptors, MissingRanksFn missing) {
    auto now = Clock::now();
    check_interrupts(now, missing);
    choose_core(now);
    const auto waited = now - started_;
    if (!policy_.is_crowded && waited < policy_.spin) {
        cpu_relax();
        return;
    }
    // Call descriptors() before the first yield too: it checks whether the wait has an end.
    const bool is_first = !has_looked_;
    if (waited < policy_.yield && !is_first) {
        ::sched_yield();
        return;
    }
    const auto wanted = descriptors();
    has_looked_ = true;
    if (waited < policy_.yield) return;
    auto limit = deadline_.remaining(now, kLongestSleep);
    polled_.clear();
    for (const pollfd& one : wanted) {
        if (one.fd >= 0) polled_.push_back(one);
    }
    // Links in memory have no descriptor and their peers ring no bell, so poll soon again.
    if (polled_.size() < wanted.size())
        limit = std::min<Clock::duration>(limit, std::chrono::milliseconds(1));
    polled_.push_back({wake_fd_, POLLIN, 0});
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
    const int result =
        ::poll(polled_.data(), static_cast<nfds_t>(polled_.size()), static_cast<int>(ms));
    has_slept_ = true;
    if (result < 0 && errno == EINTR) next_signal_check_ = Clock::time_point::min();
    if (result > 0 && (polled_.back().revents & POLLIN) != 0) {
        clear_wakeup(wake_fd_);  // else the ring of an older epoch's abort would keep us awake
    }
}

}  // namespace phalanx
