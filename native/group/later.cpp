// Operations that were handed over: queueing them, and waiting for them.
#include <unistd.h>

#include <sstream>

#include "base/site_text.hpp"
#include "group/group.hpp"

namespace phalanx {

namespace {

constexpr std::chrono::milliseconds kBite{50};
// An operation ends its own time within one sleep of its waiter; after this much more it cannot,
// as it is still behind another.
constexpr std::chrono::milliseconds kGrace{100};
// Small operations of ranks that are close are over in this many looks (some microseconds).
constexpr int kEagerLooks = 64;

std::string in_seconds(Clock::duration time) {
    std::ostringstream text;
    text << std::chrono::duration<double>(time).count() << " s";
    return text.str();
}

}  // namespace

// The thread stayed in the parent, which perhaps held a lock at that moment.
void Group::check_process() const {
    if (pid_ == ::getpid()) return;
    throw Closed("this process is a fork of process " + std::to_string(pid_) +
                 ", which is the rank; call collectives there");
}

std::shared_ptr<Work> Group::submit(const Call& call, std::shared_ptr<const void> owner) {
    check_process();
    check_call(call);
    check_usable();
    const Deadline deadline = deadline_of(call);
    const auto work = std::make_shared<Work>(call, deadline, std::move(owner));
    if (size_ == 1 && queue_.is_idle()) {
        work->finish([this](const Call& now, Deadline limit) { run_now(now, limit); });
    } else {
        enqueue(work, call);
    }
    return work;
}

// On the group's thread.
void Group::run_queued(const Call& call, Deadline deadline) {
    struct Count {
        Activity* activity;
        int channel;
        ~Count() { activity->queue(channel, -1); }
    };
    const Count count{activity_, channel_};
    run_now(call, deadline);
}

// Nothing was sent yet, so leaving does the group no harm. From its room on settle() and close()
// wait for this thread, so it never counts on the page what is another group's by then.
void Group::enqueue(const std::shared_ptr<Work>& work, const Call& call) {
    take_room(*work, call);
    struct Room {
        WorkQueue& queue;
        bool is_used;
        ~Room() {
            if (!is_used) queue.give_room();
        }
    } room{queue_, false};
    check_usable();
    activity_->queue(channel_, 1);  // first: the thread may be through with it before we go on
    try {
        queue_.push(work);
        room.is_used = true;
    } catch (...) {
        activity_->queue(channel_, -1);
        throw;
    }
}

void Group::take_room(const Work& work, const Call& call) {
    while (!queue_.take_room()) {
        check_usable();
        const auto now = Clock::now();
        if (work.deadline().has_passed(now)) {
            throw Aborted({AbortKind::kTimeout, world_rank(rank_),
                           me() + ": " + name_of(call.kind) + " timed out waiting for room among " +
                               std::to_string(WorkQueue::kMost) +
                               " operations that were submitted before"});
        }
        if (call.interrupt && call.interrupt()) throw Interrupted();
        queue_.sleep_until_room(work.deadline().remaining(now, kBite));
    }
}

void Group::wait(const Work& work, std::optional<Clock::duration> timeout,
                 const std::function<bool()>& interrupt) {
    check_process();
    for (int look = 0; look < kEagerLooks && !work.is_done(); ++look) cpu_relax();
    const Deadline limit = timeout ? Deadline(*timeout) : Deadline();
    const auto what = [&] { return name_of(work.call().kind); };
    auto next_look = Clock::now() + kBite;
    bool is_overdue = false;
    while (!work.is_done()) {
        const auto now = Clock::now();
        if (limit.has_passed(now)) {
            throw Aborted({AbortKind::kTimeout, -1,
                           me() + ": " + what() + " is still under way after a wait of " +
                               in_seconds(*timeout) + "; wait again, or give the call a timeout"});
        }
        if (!is_overdue && work.deadline().has_passed(now - kGrace)) {
            is_overdue = true;
            abort({AbortKind::kTimeout, -1,
                   me() + ": " + what() + at_site(*work.call().site) + " timed out after " +
                       in_seconds(limit_of(work.call()).value_or(Clock::duration::zero())) +
                       " behind operations that were submitted before it"});
        }
        if (now >= next_look) {
            next_look = now + kBite;
            if (interrupt && interrupt()) {
                abort({AbortKind::kInterrupted, world_rank(rank_),
                       me() + " was interrupted in " + what()});
                // Aborted, it is over within a sleep of its waiter; its arrays are the caller's.
                while (!work.is_done()) work.sleep(kBite);
                throw Interrupted();
            }
        }
        if (work.sleep(limit.remaining(now, kBite)) == Woken::kBySignal) next_look = {};
    }
    work.check();
}

void Group::drop_finished() {
    if (pid_ == ::getpid()) queue_.drop_finished();
}

}  // namespace phalanx
