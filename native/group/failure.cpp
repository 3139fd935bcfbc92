// Failure and end of a group: any error below becomes one reason, the same on all ranks.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/call_site.hpp"
#include "collectives/kernels/reduce.hpp"
#include "group/group.hpp"

namespace phalanx {

namespace {

// A closed link is often a consequence of a failure that the supervisor or the peer reports a
// moment later. A parent learns of a death within milliseconds, on a busy machine within some
// hundreds (with 200 ms, one run of the tests in eight blamed a link after a rank had been killed).
// A silent peer has been waited for already: the promised bound is 0.5 s more.
constexpr std::chrono::milliseconds kPatienceAfterEnd{1000};
constexpr std::chrono::milliseconds kPatienceAfterSilence{200};
constexpr std::chrono::milliseconds kReasonPoll{5};

std::chrono::milliseconds left_until(Clock::time_point give_up_at) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up_at - Clock::now());
    return std::max(left, std::chrono::milliseconds::zero());
}

bool lock_until(TimedMutex& turn, Clock::time_point give_up_at) {
    bool is_taken = turn.try_lock();
    while (!is_taken && Clock::now() < give_up_at) {
        is_taken = turn.try_lock_for(std::min(left_until(give_up_at), Waiter::kLongestSleep));
    }
    return is_taken;
}

}  // namespace

std::string closed_text(int rank) { return "rank " + std::to_string(rank) + " closed the group"; }

void Group::fail(const std::exception& error, const Op& op, OperationContext& here,
                 Recording& recording, bool has_begun, PointToPoint::PeerEndpoint* lane) {
    const bool was_interrupted = dynamic_cast<const Interrupted*>(&error) != nullptr;
    AbortReason reason{AbortKind::kError, world_rank(rank_), kNoMemory};
    try {
        reason = describe_current(op, here, has_begun, lane);
        collect_call_sites(reason, here, lane);
    } catch (const std::exception&) {  // bad_alloc: the peers learn of it all the same
        close_site_gaps(reason.message);
    }
    if (lane == nullptr) activity_->leave(channel_, here.word(), false);
    tell(reason);
    recording.fail(reason.kind);
    if (lane == nullptr) {
        send_abort_notice(reason);
    } else if (turn_.try_lock()) {  // else the running collective sends it when it has left
        const MutexGuard collective(turn_);
        send_abort_notice(reason);
    }
    pairs_->send_abort_notice(reason, lane);
    std::byte* const out = here.call().out;
    if (has_begun && out != nullptr) {
        invalidate(op.dtype, out, out_count(op.kind, op.count, size_));
        reason.message += "; its output was invalidated";
    }
    if (was_interrupted) throw Interrupted();
    throw Aborted(std::move(reason));
}

AbortReason Group::describe_current(const Op& op, OperationContext& here, bool has_begun,
                                    PointToPoint::PeerEndpoint* lane) {
    const std::string what =
        lane == nullptr ? describe(op) : PointToPoint::describe(op, lane->is_recv);
    try {
        throw;
    } catch (const Aborted& error) {
        return error.reason;
    } catch (const OpMismatch& error) {
        return {AbortKind::kMismatch, -1,
                describe_mismatch(world_rank(error.rank), error.op, world_rank(error.other_rank),
                                  error.other)};
    } catch (const Mismatch& error) {
        return {AbortKind::kMismatch, -1, error.what()};
    } catch (const Timeout& error) {
        return reason_of_timeout(error, what, here, has_begun);
    } catch (const PeerLost& error) {
        return reason_of_loss(error, what, lane);
    } catch (const PeerClosed& error) {
        const int rank = world_rank(error.rank);
        return {AbortKind::kClosed, rank, closed_text(rank) + "; " + me() + " was in " + what};
    } catch (const Interrupted&) {
        return {AbortKind::kInterrupted, world_rank(rank_), me() + " was interrupted in " + what};
    } catch (const std::exception& error) {
        return {AbortKind::kError, world_rank(rank_),
                me() + ": " + what + " failed: " + error.what()};
    }
}

AbortReason Group::reason_of_loss(const PeerLost& lost, const std::string& what,
                                  PointToPoint::PeerEndpoint* lane) {
    const auto find_notice = [&] {
        if (lane != nullptr) return pairs_->find_notice(*lane);
        return team_->links() == nullptr ? std::nullopt : team_->links()->drain_for_notice(epoch_);
    };
    const auto give_up_at =
        Clock::now() + (lost.is_silent ? kPatienceAfterSilence : kPatienceAfterEnd);
    while (Clock::now() < give_up_at) {
        if (auto reason = page_->reason(epoch_)) return *reason;
        if (auto words = find_notice()) {
            // A rank that closes normally does not know which ranks still expect it.
            if (words->message == closed_text(words->culprit)) {
                words->message += "; " + me() + " was in " + what;
            }
            return *words;
        }
        pollfd woken{wake_.get(), POLLIN, 0};
        ::poll(&woken, 1, static_cast<int>(kReasonPoll.count()));
    }
    const int me = world_rank(rank_);
    const int there = world_rank(lost.rank);
    return {AbortKind::kLinkBroken, AbortReason::link(there, me),
            "the link between rank " + std::to_string(std::min(me, there)) + " and rank " +
                std::to_string(std::max(me, there)) + " broke (" + lost.what() + ") during " +
                what};
}

// Aborts the page first, which frees this host; then sends the winning reason on the links.
void Group::tell(AbortReason& reason) noexcept {
    page_->abort(epoch_, reason);
    if (auto first = first_reason()) reason = std::move(*first);
}

// The reason on the page; none without memory for its text.
std::optional<AbortReason> Group::first_reason() const noexcept {
    try {
        return page_->reason(epoch_);
    } catch (const std::bad_alloc&) {
        return std::nullopt;
    }
}

// Called by the holder of the turn.
void Group::send_abort_notice(const AbortReason& reason) noexcept {
    if (team_ != nullptr && team_->links() != nullptr)
        team_->links()->send_abort_notice(epoch_, reason);
}

bool Group::abort(const AbortReason& reason) noexcept {
    const bool is_first = page_->abort(epoch_, reason);
    if (wake_) signal_wakeup(wake_.get());
    const auto found = first_reason();
    const AbortReason& first = found ? *found : reason;
    // Otherwise the running operation sends the abort notice when it has left.
    if (turn_.try_lock()) {
        const MutexGuard turn(turn_);
        send_abort_notice(first);
    }
    if (pairs_ != nullptr) pairs_->send_abort_notice(first, nullptr);
    return is_first;
}

std::optional<AbortReason> Group::failure() const { return page_->reason(epoch_); }

// A peer that still expects this rank learns of the close from the arena or the link, and only when
// it waits: ranks leave at different times, and completed operations stay valid.
void Group::close(std::chrono::milliseconds patience) noexcept {
    if (!is_closed_.exchange(true)) static_cast<void>(finish_close(Clock::now() + patience));
}

// No other thread is inside, so only the group's own thread is waited for.
Group::~Group() {
    close();
    static_cast<void>(finish_close(Clock::now() + kClosePatience));
}

// The rest of a close: waits for the threads inside, in as many calls as needed (wait_until_idle,
// all_members_left). Returns true once this group no longer uses links, page and arena. Turns that
// were taken stay taken: threads that wait for a turn also check is_closed_.
bool Group::finish_close(Clock::time_point give_up_at) noexcept {
    if (has_left_.load()) return true;
    if (pid_ != ::getpid()) return false;  // a fork of the rank must not close anything
    if (!lock_until(closing_, give_up_at)) return false;
    const MutexGuard closing(closing_);
    if (has_left_.load()) return true;
    const bool has_all = take_all_turns(give_up_at);
    const auto found = first_reason();
    const AbortReason& last = found ? *found : closed_here_;
    if (!has_all) {
        // A thread that is stuck in a message must not keep the peers from hearing of the close.
        const bool has_turn = std::count(awaited_.begin(), awaited_.end(), &turn_) == 0;
        if (has_turn) send_abort_notice(last);
        return false;
    }
    if (!queue_.close(left_until(give_up_at))) return false;
    if (pairs_ != nullptr) pairs_->close(last);
    if (team_->host() != nullptr) team_->host()->close();
    send_abort_notice(last);
    activity_->end_group(channel_, epoch_, tag_);
    left_ = team_->release_host();
    team_.reset();  // also closes the links
    if (left_ == nullptr) arena_.reset();
    has_left_.store(true);
    turn_.unlock();
    return true;
}

// Also waits for an empty queue; queued operations fail at once because the group is closed.
bool Group::take_all_turns(Clock::time_point give_up_at) noexcept {
    if (!has_tried_turns_) {
        has_tried_turns_ = true;
        if (!turn_.try_lock()) awaited_.push_back(&turn_);
        if (pairs_ != nullptr) {
            for (auto& lane : pairs_->lanes()) {
                if (!lane.turn.try_lock()) awaited_.push_back(&lane.turn);
            }
        }
    }
    if (awaited_.empty() && queue_.is_idle()) return true;
    page_->abort(epoch_, closed_here_);
    if (wake_) signal_wakeup(wake_.get());
    while (!awaited_.empty() && lock_until(*awaited_.back(), give_up_at)) awaited_.pop_back();
    if (!awaited_.empty()) return false;
    queue_.sleep_until_idle(left_until(give_up_at));
    return queue_.is_idle();
}

// A member that has closed the group reads neither staging memory nor messages of this rank.
bool Group::all_members_left() noexcept {
    if (!is_closed_.load() || !finish_close(Clock::now()) || !turn_.try_lock()) return false;
    const MutexGuard turn(turn_);
    if (left_ == nullptr) return true;
    if (!left_->all_members_left()) return false;
    left_.reset();
    arena_.reset();
    return true;
}

bool Group::wait_until_idle(std::chrono::milliseconds patience) noexcept {
    const auto give_up_at = Clock::now() + patience;
    if (is_closed_.load()) return finish_close(give_up_at);
    if (!page_->is_aborted(epoch_)) return true;
    const auto is_free = [&](TimedMutex& turn) {
        if (!lock_until(turn, give_up_at)) return false;
        turn.unlock();
        return true;
    };
    if (!is_free(turn_)) return false;
    // The rest of the queue fails without a turn, and is counted on the page until then. The group
    // of the next epoch counts there from 0.
    queue_.sleep_until_idle(left_until(give_up_at));
    if (!queue_.is_idle()) return false;
    if (pairs_ == nullptr) return true;
    auto& lanes = pairs_->lanes();
    return std::all_of(lanes.begin(), lanes.end(), [&](auto& lane) { return is_free(lane.turn); });
}

// After a mismatch: completes the text with the source lines of both calls.

namespace {

// A rank named in a mismatch is inside the operation, or was, and reports its line at once or after
// the first sleep of its wait (50 ms); a busy machine doubles that.
constexpr std::chrono::milliseconds kSitePatience{100};
// A sender shows its wait after 0.2 ms if its message does not fit the buffer.
constexpr std::chrono::milliseconds kSenderPatience{10};
// Peers wake this rank, or their abort notices make a descriptor ready: this is a fallback poll.
constexpr std::chrono::milliseconds kSiteBite{5};

}  // namespace

// Collects source lines from other ranks: ranks of this host on the page, others in their failure
// messages. So this rank sends its own line in the middle. All ranks of the operation do the same,
// get the same text, and one of them is the first on the page.
void Group::collect_call_sites(AbortReason& reason, OperationContext& here,
                               PointToPoint::PeerEndpoint* lane) {
    if (site_gaps(reason.message).empty()) return;
    here.show();
    page_->wake_sleepers();
    fill_site_gap(reason.message, world_rank(rank_), here.site());
    reason.site = here.site();

    const auto begun_at = Clock::now();
    const auto is_over = [&] {
        return page_->is_aborted(epoch_) || Clock::now() >= begun_at + kSitePatience;
    };
    const auto is_complete_here = [&] {
        const bool may_come =
            lane == nullptr || !lane->was_put_aside || Clock::now() < begun_at + kSenderPatience;
        return read_local_sites(reason.message, here, lane, may_come);
    };
    while (!is_complete_here() && !is_over()) {
        page_->doorbell(own_sites_.slot).sleep(kSiteBite, [&] {
            return is_complete_here() || page_->is_aborted(epoch_);
        });
    }
    // Failure messages on links are final: if the page has a reason already, that one is sent
    // (tell).
    if (page_->is_aborted(epoch_)) return close_site_gaps(reason.message);
    if (lane == nullptr) {
        send_abort_notice(reason);
    } else {
        pairs_->send_abort_notice(reason, lane);
    }
    while (!read_remote_sites(reason.message, lane) && !is_over()) {
        std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
        for (const int rank : site_gaps(reason.message)) {
            const Link* link = link_to_rank(rank, lane);
            if (link != nullptr) link->add_polled(polled, POLLIN);
        }
        ::poll(polled.data(), static_cast<nfds_t>(polled.size()),
               static_cast<int>(kSiteBite.count()));
    }
    close_site_gaps(reason.message);
}

int Group::slot_of(int world_rank) const noexcept {
    const auto found = std::find(members_.begin(), members_.end(), world_rank);
    return found == members_.end()
               ? -1
               : page_slots_[static_cast<std::size_t>(found - members_.begin())];
}

// Returns true if no rank of this host is still awaited. `may_come`: also wait for a sender that is
// not seen waiting; if false, its message was buffered and it has gone on.
bool Group::read_local_sites(std::string& text, const OperationContext& here,
                             const PointToPoint::PeerEndpoint* lane, bool may_come) const {
    bool is_complete = true;
    for (const int rank : site_gaps(text)) {
        const int slot = slot_of(rank);
        if (slot < 0) continue;
        const std::uint64_t word =
            lane == nullptr
                ? here.word()
                : Activity::word_of(channel_, !lane->is_recv, world_rank(rank_), lane->seq);
        if (const auto site = page_->site(slot, own_sites_.tag, word)) {
            fill_site_gap(text, rank, *site);
        } else if (may_come || page_->activity(slot).pair.load() == word) {
            is_complete = false;
        }
    }
    return is_complete;
}

// The link on which a rank may still send its line; null for ranks of this page.
Link* Group::link_to_rank(int rank, const PointToPoint::PeerEndpoint* lane) const noexcept {
    if (slot_of(rank) >= 0) return nullptr;
    if (lane != nullptr) {
        return rank == lane->world_peer ? pairs_->lane(lane->peer, true).link.get() : nullptr;
    }
    const auto found = std::find(members_.begin(), members_.end(), rank);
    if (found == members_.end() || team_->links() == nullptr) return nullptr;
    return team_->links()->link_to(static_cast<int>(found - members_.begin()));
}

bool Group::read_remote_sites(std::string& text, PointToPoint::PeerEndpoint* lane) {
    bool is_complete = true;
    for (const int rank : site_gaps(text)) {
        Link* link = link_to_rank(rank, lane);
        if (link == nullptr) continue;
        const auto words =
            lane == nullptr ? link->drain_for_notice(epoch_) : pairs_->find_notice(*lane);
        if (words) {
            fill_site_gap(text, rank, words->site);
        } else {
            is_complete = false;
        }
    }
    return is_complete;
}

}  // namespace phalanx
