// Operations from call to return. How a group is put together and how it fails: build.cpp and
// failure.cpp.
#include "group/group.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/copy.hpp"
#include "collectives/kernels.hpp"

namespace phalanx {

namespace {

constexpr std::chrono::milliseconds kTurnBite{50};

// FNV-1a over words.
std::uint64_t mix(std::uint64_t hash, std::uint64_t word) noexcept {
    return (hash ^ word) * 0x100000001b3U;
}

// To a sum that only the holder of the turn adds to, and anybody reads: nothing is locked.
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
    if (page_->is_aborted(epoch_)) throw Aborted(failure().value_or(Reason{}));
}

// A second thread waits here, with an eye on signals and its deadline. Nothing was sent yet, so
// leaving does the group no harm.
void Group::take_turn(Turn& turn, const Call& call, Deadline deadline) {
    while (!turn.try_take()) {
        const auto now = Clock::now();
        if (deadline.has_passed(now)) {
            throw Aborted({AbortKind::kTimeout, world_rank(rank_),
                           me() + ": " + name_of(call.kind) +
                               " timed out waiting for another operation of this rank's"});
        }
        if (call.interrupt && call.interrupt()) throw Interrupted();
        check_usable();
        if (turn.try_take_for(deadline.remaining(now, kTurnBite))) return;
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
    op.shape_hash = 0xcbf29ce484222325U;
    for (std::size_t i = 0; i < call.shape.size(); ++i) {
        op.shape_hash = mix(op.shape_hash, call.shape[i]);
        if (i < Op::kMaxDims) op.dims[i] = call.shape[i];
    }
    return op;
}

Choice Group::choice_of(const Op& op) const {
    return choose(op, tuning_, inline_limit_, static_cast<int>(formation_.nodes.size()), is_flat_);
}

// As the group does it, also where this rank has no neighbour and others have.
Algorithm Group::algorithm_of(const Op& op, Choice choice) const noexcept {
    if (inline_limit_ == 0) {
        choice.is_inline = op.nbytes() <= tuning_.host.inline_bytes && !choice.is_wide;
    }
    return phalanx::algorithm_of(op, choice, !is_flat_, formation_.nodes.size() > 1);
}

void Group::perform(const Op& op, const Call& call, Choice choice) {
    switch (op.kind) {
        case OpKind::kBarrier:
            return;
        case OpKind::kAllSum:
            return team_->all_reduce(op, Reduction::kSum, choice, call.x, call.out, *waiter_);
        case OpKind::kAllMax:
            return team_->all_reduce(op, Reduction::kMax, choice, call.x, call.out, *waiter_);
        case OpKind::kAllMin:
            return team_->all_reduce(op, Reduction::kMin, choice, call.x, call.out, *waiter_);
        case OpKind::kAllGather:
        case OpKind::kSplit:
            return team_->all_gather(op, choice, call.x, call.out, *waiter_);
        case OpKind::kBroadcast:
            return team_->broadcast(op, choice, call.x, call.out, *waiter_);
        case OpKind::kSumScatter:
            return team_->sum_scatter(op, choice, call.x, call.out, *waiter_);
        case OpKind::kAllToAll:
            return team_->all_to_all(op, choice, call.x, call.out, *waiter_);
        case OpKind::kSend:
        case OpKind::kRecv:
            break;  // of two ranks: pass()
    }
}

// What this rank can see by itself is wrong: nothing was sent, and the group stays good.
void Group::check_call(const Call& call) const {
    if (call.root < 0 || call.root >= size_) {
        throw UsageError("root " + std::to_string(call.root) + " is not a rank of this group of " +
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
    const Deadline deadline = deadline_of(call);
    if (queue_.is_idle()) return run_now(call, deadline);
    const auto work = std::make_shared<Work>(call, deadline, nullptr);
    enqueue(work, call);
    wait(*work, std::nullopt, call.interrupt);
}

void Group::run_now(const Call& call, Deadline deadline) {
    check_usable();
    take_turn(turn_, call, deadline);
    const TakenTurn turn(turn_);
    check_usable();
    ++seq_;
    const Op op = make_op(call, seq_);
    if (size_ == 1) {
        copy_cached(call.out, call.x, op.nbytes());
    } else {
        bool has_begun = false;
        const auto word = Activity::word_of(static_cast<int>(op.kind), op.seq);
        const Choice choice = choice_of(op);
        Here here(own_sites_, call, word);
        activity_->enter(channel_, word);
        Recording recording(*recorder_, op, tag_, algorithm_of(op, choice), world_rank(call.root));
        try {
            waiter_->begin(deadline, &here);
            team_->begin(op, choice, call.x, *waiter_);
            has_begun = true;
            // Of what came with the headers only the sum is left, a few tens of nanoseconds: as
            // much as a look at the clock.
            const bool is_all_here = choice.is_inline && team_->links() == nullptr;
            is_all_here ? recording.arrive_with_end() : recording.arrive();
            perform(op, call, choice);
            // After the last read of peers' memory: was it still theirs?
            waiter_->check_still_theirs();
        } catch (const std::exception& error) {
            const bool was_interrupted = dynamic_cast<const Interrupted*>(&error) != nullptr;
            const auto hear = [&] {
                return team_->links() == nullptr ? std::nullopt
                                                 : team_->links()->hear_last_words(epoch_);
            };
            Reason reason = reason_of_current(describe(op), here, has_begun, hear);
            learn_sites(reason, here, nullptr);
            activity_->leave(channel_, word, false);
            tell(reason);
            recording.fail(reason.kind);
            say_last_words(reason);
            if (pairs_ != nullptr) pairs_->say_last_words(reason, nullptr);
            if (has_begun && call.out != nullptr) {
                poison(op.dtype, call.out, out_count(op.kind, op.count, size_));
                reason.message += "; its output was invalidated";
            }
            if (was_interrupted) throw Interrupted();
            throw Aborted(std::move(reason));
        }
        recording.finish();
        count(op, recording);
        activity_->leave(channel_, word, true);
    }
    add(operations_, 1);
    add(bytes_, op.nbytes());
    if (team_ != nullptr && team_->links() != nullptr) {
        link_bytes_.store(team_->links()->bytes_sent(), std::memory_order_relaxed);
    }
}

void Group::count(const Op& op, const Recording& recording) noexcept {
    Totals::Sums& sums = totals_->channels[channel_ % kActivityChannels];
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
    if (size_ == 1) return name_of_algorithm(0);
    // As the group does it, also where this rank has no neighbour and others have.
    const bool has_host = !formation_.has_single_ranks_only();
    const auto nodes = static_cast<int>(formation_.nodes.size());
    const auto inline_limit = has_host ? tuning_.host.inline_bytes : 0;
    const Choice choice = choose(op, tuning_, inline_limit, nodes, !has_host);
    return name_of_algorithm(phalanx::algorithm_of(op, choice, has_host, nodes > 1));
}

Counters Group::counters() const noexcept {
    return {
        operations_.load(std::memory_order_relaxed),    bytes_.load(std::memory_order_relaxed),
        link_bytes_.load(std::memory_order_relaxed),    sent_.load(std::memory_order_relaxed),
        sent_bytes_.load(std::memory_order_relaxed),    received_.load(std::memory_order_relaxed),
        received_bytes_.load(std::memory_order_relaxed)};
}

}  // namespace phalanx
