// Run operations: from call to return, messages, and operations that are queued for later.
// setup.cpp makes a group, failure.cpp ends it.
#include "group/group.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/call_site.hpp"
#include "base/copy.hpp"
#include "collectives/kernels/reduce.hpp"

namespace phalanx {

namespace {

constexpr std::chrono::milliseconds kTurnBite{50};

// Adds to a sum that only the holder of the turn changes and any thread may read, without a lock.
void add(std::atomic<std::uint64_t>& sum, std::uint64_t more) noexcept {
    sum.store(sum.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

void Group::check_usable() const {
    if (is_closed_.load()) {
        throw Closed(me() + ": the group is closed and cannot be used any more; " +
                     (tag_ == 0 ? "px.init() makes it anew when every rank calls it"
                                : "make a new one with split"));
    }
    if (page_->is_aborted(epoch_)) throw Aborted(failure().value_or(AbortReason{}));
}

// A second thread waits here and checks signals and its deadline. It has sent nothing yet, so
// leaving does not harm the group.
void Group::take_turn(TimedMutex& turn, const Call& call, Deadline deadline) {
    while (!turn.try_lock()) {
        const auto now = Clock::now();
        if (deadline.has_passed(now)) {
            throw Aborted({AbortKind::kTimeout, world_rank(rank_),
                           me() + ": " + name_of(call.kind) +
                               " timed out waiting for another operation of this rank's"});
        }
        if (call.interrupt && call.interrupt()) throw Interrupted();
        check_usable();
        if (turn.try_lock_for(deadline.remaining(now, kTurnBite))) return;
    }
}

Op Group::make_op(const Call& call, std::uint64_t seq) const {
    Op op;
    op.epoch = epoch_;
    op.seq = seq;
    op.count = call.count;
    op.layout = layout_;
    op.kind = call.kind;
    op.dtype = call.dtype;
    op.root = static_cast<std::uint32_t>(call.root);
    op.ndim = static_cast<std::uint32_t>(call.shape.size());
    op.channel = static_cast<std::uint32_t>(channel_);
    op.shape_hash = kHashSeed;
    for (std::size_t i = 0; i < call.shape.size(); ++i) {
        op.shape_hash = hash_with(op.shape_hash, call.shape[i]);
        if (i < Op::kMaxDims) op.dims[i] = call.shape[i];
    }
    return op;
}

AlgorithmChoice Group::choice_of(const Op& op) const {
    return choose(op, tuning_, static_cast<int>(formation_.nodes.size()), is_flat_);
}

void Group::perform(const Op& op, const Call& call, AlgorithmChoice choice) {
    switch (op.kind) {
        case OpKind::kBarrier:
            return;
        case OpKind::kAllSum:
            return team_->all_reduce(op, Reduction::kSum, choice, call.x, call.out);
        case OpKind::kAllMax:
            return team_->all_reduce(op, Reduction::kMax, choice, call.x, call.out);
        case OpKind::kAllMin:
            return team_->all_reduce(op, Reduction::kMin, choice, call.x, call.out);
        case OpKind::kAllGather:
        case OpKind::kSplit:
            return team_->all_gather(op, choice, call.x, call.out);
        case OpKind::kBroadcast:
            return team_->broadcast(op, choice, call.x, call.out);
        case OpKind::kSumScatter:
            return team_->sum_scatter(op, choice, call.x, call.out);
        case OpKind::kAllToAll:
            return team_->all_to_all(op, choice, call.x, call.out);
        case OpKind::kSend:
        case OpKind::kRecv:
            break;  // messages between two ranks: run_message()
    }
}

// Checks the call locally: on an error nothing was sent, and the group stays usable.
void Group::check_call(const Call& call) const {
    const bool is_to_itself = is_message(call.kind) && call.root == rank_;
    if (call.root < 0 || call.root >= size_ || is_to_itself) {
        throw UsageError(name_of(call.kind) + ": rank " + std::to_string(call.root) + " is no" +
                         (is_to_itself ? " other" : "") + " rank of this group of " +
                         std::to_string(size_));
    }
    if (has_blocks(call.kind) && call.count % static_cast<std::uint64_t>(size_) != 0) {
        throw UsageError(name_of(call.kind) + " of " + std::to_string(call.count) +
                         " elements: they must be divisible by the size of the group, " +
                         std::to_string(size_));
    }
}

void Group::run(const Call& call) {
    check_call(call);
    check_usable();
    if (is_message(call.kind)) return run_message(call);
    pass_hold(call, nullptr);
    const Deadline deadline = deadline_of(call);
    if (queue_.is_idle()) return run_now(call, deadline);
    const auto work = std::make_shared<AsyncOperation>(call, deadline, nullptr);
    enqueue(work, call);
    wait(*work, std::nullopt, call.interrupt);
}

void Group::run_now(const Call& call, Deadline deadline) {
    check_usable();
    take_turn(turn_, call, deadline);
    const MutexGuard turn(turn_);
    check_usable();
    const std::uint64_t seq = seq_.load(std::memory_order_relaxed) + 1;
    seq_.store(seq, std::memory_order_relaxed);
    const Op op = make_op(call, seq);
    if (size_ == 1) {
        copy_cached(call.out, call.x, op.nbytes());
    } else {
        bool has_begun = false;
        const auto word = Activity::word_of(static_cast<int>(op.kind), op.seq);
        const AlgorithmChoice choice = choice_of(op);
        OperationContext here(own_sites_, call, word);
        activity_->enter(channel_, word);
        Recording recording(trace(), op, tag_, choice.code, world_rank(call.root));
        try {
            waiter_->begin(deadline, &here);
            team_->begin(op, choice, call.x);
            has_begun = true;
            // If the payload came with the headers, only the sum remains: some tens of nanoseconds,
            // as much as one read of the clock.
            const bool is_all_here = choice.is_inline && team_->links() == nullptr;
            is_all_here ? recording.arrive_with_end() : recording.arrive();
            perform(op, call, choice);
            // After the last read of peers' memory: check that it still belonged to them.
            waiter_->check_still_theirs();
        } catch (const std::exception& error) {
            fail(error, op, here, recording, has_begun, nullptr);
        }
        recording.finish();
        count(op, recording);
        activity_->leave(channel_, word, true);
    }
}

void Group::count(const Op& op, const Recording& recording) noexcept {
    TrafficCounters::Sums& sums = totals_->channels[channel_ % kActivityChannels];
    add(sums.operations, 1);
    if (team_->host() != nullptr) add(sums.arena_bytes, op.nbytes());
    add(sums.inside_ns, recording.inside());
    add(sums.waiting_ns, recording.waited());
}

std::optional<Clock::duration> Group::timeout() const noexcept {
    const auto limit = timeout_.load(std::memory_order_relaxed);
    return limit == kNoTimeout ? std::nullopt : std::optional(Clock::duration(limit));
}

void Group::set_timeout(std::optional<Clock::duration> timeout) noexcept {
    timeout_.store(timeout ? timeout->count() : kNoTimeout, std::memory_order_relaxed);
}

std::string Group::me() const { return "rank " + std::to_string(world_rank(rank_)); }

std::string Group::host_of(int world_rank) const {
    const auto index = static_cast<std::size_t>(world_rank);
    return world_rank >= 0 && index < host_names_.size() ? host_names_[index] : "";
}

std::string Group::algorithm(OpKind kind, std::uint64_t nbytes, Dtype dtype) const {
    Op op;
    op.kind = kind;
    op.dtype = dtype;
    op.count = nbytes / size_of(dtype);
    return name_of_algorithm(size_ == 1 ? Algorithm{0} : choice_of(op).code);
}

void Group::run_message(const Call& call) {
    const bool is_recv = call.kind == OpKind::kRecv;
    PointToPoint::PeerEndpoint& lane = pairs_->lane(call.root, is_recv);
    pass_hold(call, &lane);
    const Deadline deadline = deadline_of(call);
    take_turn(lane.turn, call, deadline);
    const MutexGuard turn(lane.turn);
    check_usable();
    if (lane.link == nullptr) {
        throw UsageError(me() + " has no connection for messages with rank " +
                         std::to_string(world_rank(call.root)));
    }
    Op op = make_op(call, ++lane.seq);
    op.magic = Op::kMessageMagic;
    op.kind = OpKind::kSend;  // the same at both ends
    op.layout = 0;
    op.root = static_cast<std::uint32_t>(world_rank(is_recv ? call.root : rank_));
    op.target = static_cast<std::uint32_t>(world_rank(is_recv ? rank_ : call.root));
    bool has_begun = false;
    OperationContext here(own_sites_, call,
                          Activity::word_of(channel_, is_recv, world_rank(call.root), lane.seq));
    Op shown = op;
    if (is_recv) shown.kind = OpKind::kRecv;
    Recording recording(trace(), shown, tag_, lane.is_local ? kQueue : kWire,
                        world_rank(call.root));
    try {
        lane.waiter.begin(deadline, &here);
        if (is_recv) {
            pairs_->recv(lane, op, call.out, [&] {
                has_begun = true;
                recording.arrive();
            });
            // After the last read of the peer's memory: check that it still belonged to this epoch.
            lane.waiter.check_still_theirs();
        } else {
            pairs_->send(lane, op, call.x);
        }
    } catch (const std::exception& error) {
        fail(error, op, here, recording, has_begun, &lane);
    }
    recording.finish();
    count_message(op, recording, lane.is_local);
    PointToPoint::count(lane);
}

void Group::count_message(const Op& op, const Recording& recording, bool is_local) noexcept {
    const auto add = [](std::atomic<std::uint64_t>& sum, std::uint64_t more) {
        sum.fetch_add(more, std::memory_order_relaxed);
    };
    TrafficCounters::Sums& sums = totals_->messages;
    add(sums.operations, 1);
    if (is_local) add(sums.arena_bytes, op.nbytes());
    add(sums.inside_ns, recording.inside());
    add(sums.waiting_ns, recording.waited());
}

// Submitted operations: queueing and waiting.

namespace {

constexpr std::chrono::milliseconds kBite{50};
// An operation ends at its own deadline within one sleep of its waiter. If it has not ended after
// this additional time, it is still queued behind another operation.
constexpr std::chrono::milliseconds kGrace{100};
// Small operations between ranks on near cores end within this many polls (some microseconds).
constexpr int kEagerLooks = 64;

}  // namespace

// After a fork the group's thread exists in the parent only, and may have held a lock then.
void Group::check_process() const {
    if (pid_ == ::getpid()) return;
    throw Closed("this process is a fork of process " + std::to_string(pid_) +
                 ", which is the rank; call collectives there");
}

std::shared_ptr<AsyncOperation> Group::submit(const Call& call, std::shared_ptr<const void> owner) {
    check_process();
    check_call(call);
    check_usable();
    pass_hold(call, nullptr);
    const Deadline deadline = deadline_of(call);
    const auto work = std::make_shared<AsyncOperation>(call, deadline, std::move(owner));
    if (size_ == 1 && queue_.is_idle()) {
        work->finish([this](const Call& now, Deadline limit) { run_now(now, limit); });
    } else {
        enqueue(work, call);
    }
    return work;
}

// Runs on the group's thread.
void Group::run_queued(const Call& call, Deadline deadline) {
    try {
        run_now(call, deadline);
    } catch (...) {
        activity_->queue(channel_, -1);
        throw;
    }
    activity_->queue(channel_, -1);
}

// Nothing was sent yet, so leaving does not harm the group. After reserve_slot(), wait_until_idle()
// and close() wait for this thread, so it never counts on the page for another group.
void Group::enqueue(const std::shared_ptr<AsyncOperation>& work, const Call& call) {
    reserve_slot(*work, call);
    activity_->queue(channel_, 1);  // before the push: the thread may finish it immediately
    try {
        check_usable();
        work->set_number(submitted_.fetch_add(1, std::memory_order_relaxed) + 1);
        queue_.push(work);
    } catch (...) {
        activity_->queue(channel_, -1);
        queue_.release_slot();
        throw;
    }
}

void Group::reserve_slot(const AsyncOperation& work, const Call& call) {
    ShownWait shown(own_sites_, Activity::queued_word(AsyncQueue::kMost - 1));
    while (!queue_.reserve_slot()) {
        check_usable();
        const auto now = Clock::now();
        if (work.deadline().has_passed(now)) {
            throw Aborted({AbortKind::kTimeout, world_rank(rank_),
                           me() + ": " + name_of(call.kind) + " timed out waiting for room among " +
                               std::to_string(AsyncQueue::kMost) +
                               " operations that were submitted before"});
        }
        if (call.interrupt && call.interrupt()) throw Interrupted();
        shown.look();
        queue_.sleep_until_slot(work.deadline().remaining(now, kBite));
    }
}

void Group::wait(const AsyncOperation& work, std::optional<Clock::duration> timeout,
                 const std::function<bool()>& interrupt) {
    check_process();
    for (int look = 0; look < kEagerLooks && !work.is_done(); ++look) cpu_relax();
    const Deadline limit = timeout ? Deadline(*timeout) : Deadline();
    const auto what = [&] { return name_of(work.call().kind); };
    // Counts only the works behind this one; this thread submits nothing meanwhile.
    ShownWait shown(own_sites_, Activity::queued_word(submitted_.load(std::memory_order_relaxed) -
                                                      work.number()));
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
                // The aborted work ends within a sleep of its waiter; then the caller owns its
                // arrays.
                while (!work.is_done()) work.sleep(kBite);
                throw Interrupted();
            }
            // A wait with a timeout ends by itself; its thread may then do what others wait for.
            if (interrupt && !timeout) shown.look();
        }
        if (work.sleep(limit.remaining(now, kBite)) == Woken::kBySignal) next_look = {};
    }
    work.check();
}

void Group::drop_finished() {
    if (pid_ == ::getpid()) queue_.drop_finished();
}

// A stop holds a rank here before an operation begins, until another member has begun it.

namespace {

// Between two operations of the group's thread, the number of begun operations is unknown for some
// microseconds.
constexpr std::chrono::milliseconds kUnsettled{1};

}  // namespace

std::optional<std::uint64_t> Group::number_of_next(const PointToPoint::PeerEndpoint* lane) const {
    if (lane != nullptr) {
        const auto tally = lane->tally->load(std::memory_order_seq_cst);
        return (tally & ~kTallyWaits) + ((tally & kTallyWaits) != 0 ? 2 : 1);
    }
    const auto begun = activity_->begun(channel_);
    return begun ? std::optional(*begun + 1) : std::nullopt;
}

// The operation has no number yet and is not on the page: an interrupt here leaves no trace, and
// the group stays usable.
void Group::wait_while_held(const Call& call, const PointToPoint::PeerEndpoint* lane) {
    if (size_ == 1) return;
    if (!call.is_for_main_thread && hold_->thread.load() != this_thread_number()) return;
    if (lane != nullptr && lane->tally == nullptr) return;  // no record of messages begun
    const auto& until = lane == nullptr ? hold_->until[channel_ % kActivityChannels]
                                        : *page_->let_in(own_sites_.slot, channel_,
                                                         lane->world_peer, lane->is_recv);
    if (!hold_->enter()) return;
    bool is_over = false;
    struct Leaving {
        Hold& hold;
        const bool& is_over;
        ~Leaving() { hold.leave(is_over); }
    } const leaving{*hold_, is_over};
    while (true) {
        const auto rung = hold_->bell.load();
        if (hold_->state.load() != Hold::kHeld) return;  // released
        const auto number = number_of_next(lane);
        if (number) {
            hold_->show(own_sites_.tag,
                        lane == nullptr ? Activity::word_of(static_cast<int>(call.kind), *number)
                                        : Activity::word_of(channel_, lane->is_recv,
                                                            lane->world_peer, *number));
            if (*number <= until.load()) return;
        }
        check_usable();
        if (call.interrupt && call.interrupt()) {
            is_over = true;
            throw Interrupted();
        }
        futex_wait(hold_->bell, rung, number ? kBite : kUnsettled);
    }
}

}  // namespace phalanx
