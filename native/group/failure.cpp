// How a group fails and ends: what was thrown below becomes one reason, the same on all ranks.
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "group/group.hpp"

namespace phalanx {

namespace {

// A broken link is often the echo of something that the supervisor or the peer will explain in a
// moment: a parent learns of a death within milliseconds.
constexpr std::chrono::milliseconds kVerdictPatience{200};
constexpr std::chrono::milliseconds kVerdictBite{5};

std::chrono::milliseconds left_until(Clock::time_point give_up_at) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up_at - Clock::now());
    return std::max(left, std::chrono::milliseconds::zero());
}

bool take_until(Turn& turn, Clock::time_point give_up_at) {
    bool is_taken = turn.try_take();
    while (!is_taken && Clock::now() < give_up_at) {
        is_taken = turn.try_take_for(std::min(left_until(give_up_at), Waiter::kLongestSleep));
    }
    return is_taken;
}

std::string closed_text(int rank) { return "rank " + std::to_string(rank) + " closed the group"; }

}  // namespace

Reason Group::reason_of_current(const std::string& what, Here& here, bool has_begun, Hear hear) {
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
        return reason_of_loss(error, what, hear);
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

Reason Group::reason_of_loss(const PeerLost& lost, const std::string& what, Hear hear) {
    const auto give_up_at = Clock::now() + kVerdictPatience;
    while (Clock::now() < give_up_at) {
        if (auto verdict = page_->reason(epoch_)) return *verdict;
        if (auto words = hear()) {
            // A rank that leaves in peace does not know who still expects it, and in what.
            if (words->message == closed_text(words->culprit)) {
                words->message += "; " + me() + " was in " + what;
            }
            return *words;
        }
        pollfd woken{wake_.get(), POLLIN, 0};
        ::poll(&woken, 1, static_cast<int>(kVerdictBite.count()));
    }
    const int me = world_rank(rank_);
    const int there = world_rank(lost.rank);
    return {AbortKind::kLinkBroken, Reason::link(there, me),
            "the link between rank " + std::to_string(std::min(me, there)) + " and rank " +
                std::to_string(std::max(me, there)) + " broke (" + lost.what() + ") during " +
                what};
}

// First the page, so that this host is freed; then the links, with the reason that won.
void Group::tell(Reason& reason) noexcept {
    page_->abort(epoch_, reason);
    if (auto first = page_->reason(epoch_)) reason = std::move(*first);
}

// For the holder of the turn.
void Group::say_last_words(const Reason& reason) noexcept {
    if (team_ != nullptr && team_->links() != nullptr)
        team_->links()->say_last_words(epoch_, reason);
}

bool Group::abort(const Reason& reason) noexcept {
    const bool is_first = page_->abort(epoch_, reason);
    if (wake_) ring_wake(wake_.get());
    const Reason first = page_->reason(epoch_).value_or(reason);
    // An operation that runs says the last words itself, when it has left.
    if (turn_.try_take()) {
        const TakenTurn turn(turn_);
        say_last_words(first);
    }
    if (pairs_ != nullptr) pairs_->say_last_words(first, nullptr);
    return is_first;
}

std::optional<Reason> Group::failure() const { return page_->reason(epoch_); }

// A peer that still expects this rank learns it from the arena or the link when it waits, not
// before: ranks leave at different times, and what was completed stays good.
void Group::close(std::chrono::milliseconds patience) noexcept {
    if (!is_closed_.exchange(true)) static_cast<void>(leave(Clock::now() + patience));
}

// Nobody is inside who could be waited for in vain, but for the group's own thread.
Group::~Group() {
    close();
    static_cast<void>(leave(Clock::now() + kClosePatience));
}

// The rest of a close, which waits for those inside: as often as it takes (settle, is_left_by_all).
// True once this group touches links, page and arena no more. Turns that were taken on the way are
// kept: whoever waits for one looks at is_closed_ as well.
bool Group::leave(Clock::time_point give_up_at) noexcept {
    if (has_left_.load()) return true;
    if (pid_ != ::getpid()) return false;  // a fork of the rank: nothing here is its to close
    if (!take_until(leaving_, give_up_at)) return false;
    const TakenTurn leaving(leaving_);
    if (has_left_.load()) return true;
    const Reason reason{AbortKind::kClosed, world_rank(rank_), closed_text(world_rank(rank_))};
    const bool has_all = take_all_turns(reason, give_up_at);
    const Reason last = page_->reason(epoch_).value_or(reason);
    if (!has_all) {
        // Who is stuck in a message keeps nobody else from hearing it.
        const bool has_turn = std::count(awaited_->begin(), awaited_->end(), &turn_) == 0;
        if (has_turn) say_last_words(last);
        return false;
    }
    if (!queue_.close(left_until(give_up_at))) return false;
    if (pairs_ != nullptr) pairs_->close(last);
    if (team_->host() != nullptr) team_->host()->close();
    say_last_words(last);
    activity_->end_group(channel_, epoch_, tag_);
    left_ = team_->release_host();
    team_.reset();  // and the links with it
    if (left_ == nullptr) arena_.reset();
    has_left_.store(true);
    turn_.give();
    return true;
}

// Also waits until nothing is queued, which fails at once: the group is closed.
bool Group::take_all_turns(const Reason& reason, Clock::time_point give_up_at) noexcept {
    if (!awaited_) {
        awaited_.emplace();
        if (!turn_.try_take()) awaited_->push_back(&turn_);
        if (pairs_ != nullptr) {
            for (auto& lane : pairs_->lanes()) {
                if (!lane.turn.try_take()) awaited_->push_back(&lane.turn);
            }
        }
    }
    if (awaited_->empty() && queue_.is_idle()) return true;
    page_->abort(epoch_, reason);
    if (wake_) ring_wake(wake_.get());
    while (!awaited_->empty() && take_until(*awaited_->back(), give_up_at)) awaited_->pop_back();
    if (!awaited_->empty()) return false;
    queue_.sleep_until_idle(left_until(give_up_at));
    return queue_.is_idle();
}

// A member that has closed the group reads neither its staging memory nor its messages any more.
bool Group::is_left_by_all() noexcept {
    if (!is_closed_.load() || !leave(Clock::now()) || !turn_.try_take()) return false;
    const TakenTurn turn(turn_);
    if (left_ == nullptr) return true;
    if (!left_->is_left_by_all()) return false;
    left_.reset();
    arena_.reset();
    return true;
}

bool Group::settle(std::chrono::milliseconds patience) noexcept {
    const auto give_up_at = Clock::now() + patience;
    if (is_closed_.load()) return leave(give_up_at);
    if (!page_->is_aborted(epoch_)) return true;
    const auto is_free = [&](Turn& turn) {
        if (!take_until(turn, give_up_at)) return false;
        turn.give();
        return true;
    };
    if (!is_free(turn_)) return false;
    // The rest of the queue fails without a turn, and is counted on the page till then: the group
    // of the next epoch counts there from 0.
    queue_.sleep_until_idle(left_until(give_up_at));
    if (!queue_.is_idle()) return false;
    if (pairs_ == nullptr) return true;
    auto& lanes = pairs_->lanes();
    return std::all_of(lanes.begin(), lanes.end(), [&](auto& lane) { return is_free(lane.turn); });
}

}  // namespace phalanx
