// Messages from call to return: what is checked, counted, and told when they fail.
#include "collectives/kernels.hpp"
#include "group/group.hpp"

namespace phalanx {

void Group::check_peer(const Call& call, bool is_recv) const {
    if (size_ == 1) {
        throw UsageError(is_recv ? "Cannot recv from a singleton group"
                                 : "Cannot send to a singleton group");
    }
    if (call.root < 0 || call.root >= size_) {
        throw UsageError((is_recv ? "Invalid source=" : "Invalid destination=") +
                         std::to_string(call.root) + " for a group of size " +
                         std::to_string(size_));
    }
    if (call.root == rank_) {
        throw UsageError(me() +
                         (is_recv ? " cannot receive from itself" : " cannot send to itself"));
    }
}

void Group::pass(const Call& call, bool is_recv) {
    check_peer(call, is_recv);
    check_usable();
    const Deadline deadline = deadline_of(call);
    Pairs::Lane& lane = pairs_->lane(call.root, is_recv);
    take_turn(lane.turn, call, deadline);
    const TakenTurn turn(lane.turn);
    check_usable();
    if (lane.link == nullptr) {
        throw UsageError(me() + " has no connection for messages with rank " +
                         std::to_string(world_rank(call.root)));
    }
    Op op = make_op(call, ++lane.seq);
    op.magic = Op::kMessageMagic;
    op.kind = OpKind::kSend;  // at both ends
    op.layout = 0;
    op.root = static_cast<std::uint32_t>(world_rank(is_recv ? call.root : rank_));
    op.target = static_cast<std::uint32_t>(world_rank(is_recv ? rank_ : call.root));
    bool has_begun = false;
    Here here(own_sites_, call,
              Activity::word_of(channel_, is_recv, world_rank(call.root), lane.seq));
    Op shown = op;
    if (is_recv) shown.kind = OpKind::kRecv;
    Recording recording(*recorder_, shown, tag_, lane.is_local ? kQueue : kWire,
                        world_rank(call.root));
    try {
        lane.waiter.begin(deadline, &here);
        if (is_recv) {
            pairs_->recv(lane, op, call.out, [&] {
                has_begun = true;
                recording.arrive();
            });
            // After the last read of the peer's memory: was it still this epoch's?
            lane.waiter.check_still_theirs();
        } else {
            pairs_->send(lane, op, call.x);
        }
    } catch (const std::exception& error) {
        const bool was_interrupted = dynamic_cast<const Interrupted*>(&error) != nullptr;
        Reason reason = reason_of_current(Pairs::describe(op, is_recv), here, has_begun,
                                          [&] { return pairs_->hear(lane); });
        learn_sites(reason, here, &lane);
        tell(reason);
        recording.fail(reason.kind);
        // A collective that runs says them itself, when it has left.
        if (turn_.try_take()) {
            const TakenTurn collective(turn_);
            say_last_words(reason);
        }
        pairs_->say_last_words(reason, &lane);
        if (has_begun) {
            poison(op.dtype, call.out, op.count);
            reason.message += "; its output was invalidated";
        }
        if (was_interrupted) throw Interrupted();
        throw Aborted(std::move(reason));
    }
    recording.finish();
    count_message(op, recording, lane.is_local);
    Pairs::count(lane);
    auto& messages = is_recv ? received_ : sent_;
    auto& bytes = is_recv ? received_bytes_ : sent_bytes_;
    messages.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(op.nbytes(), std::memory_order_relaxed);
}

void Group::count_message(const Op& op, const Recording& recording, bool is_local) noexcept {
    const auto add = [](std::atomic<std::uint64_t>& sum, std::uint64_t more) {
        sum.fetch_add(more, std::memory_order_relaxed);
    };
    Totals::Sums& sums = totals_->messages;
    add(sums.operations, 1);
    if (is_local) add(sums.arena_bytes, op.nbytes());
    add(sums.inside_ns, recording.inside());
    add(sums.waiting_ns, recording.waited());
}

}  // namespace phalanx
