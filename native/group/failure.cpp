// How a group fails and ends: what was thrown below becomes one reason, the same on all ranks.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "group/group.hpp"

namespace phalanx {

namespace {

// A broken link is often the echo of something that the supervisor or the peer will explain in a
// moment: a parent learns of a death within milliseconds.
constexpr std::chrono::milliseconds kVerdictPatience{200};
constexpr std::chrono::milliseconds kVerdictBite{5};
// An operation leaves within one sleep of its waiter once the epoch is aborted.
constexpr int kClosePatience = 100;  // times 50 ms
constexpr std::chrono::milliseconds kCloseBite{1};

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
    return {AbortKind::kRankFailure, world_rank(lost.rank),
            std::string(lost.what()) + " during " + what};
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
    if (wake_) ring_eventfd(wake_.get());
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
void Group::close() noexcept {
    if (is_closed_.exchange(true)) return;
    if (pid_ != ::getpid()) return;  // a fork of the rank: nothing here is its to close
    const Reason reason{AbortKind::kClosed, world_rank(rank_), closed_text(world_rank(rank_))};
    // Never seen to fail; the memory must stay while somebody is inside. The turns of messages are
    // kept: whoever waits for one looks at is_closed_ as well.
    if (!take_all_turns(reason)) return;
    const TakenTurn turn(turn_);
    // What is queued fails at once: the group is closed.
    if (!queue_.close(kClosePatience * Waiter::kLongestSleep) || team_ == nullptr) return;
    const Reason last = page_->reason(epoch_).value_or(reason);
    if (pairs_ != nullptr) pairs_->close(last);
    if (team_->host() != nullptr) team_->host()->close();
    say_last_words(last);
    activity_->end_group(channel_, epoch_, tag_);
    left_ = team_->release_host();
    team_.reset();  // and the links with it
    if (left_ == nullptr) arena_.reset();
    has_left_.store(true);
}

// A member that has closed the group reads neither its staging memory nor its messages any more.
bool Group::is_left_by_all() noexcept {
    if (!is_closed_.load() || !turn_.try_take()) return false;
    const TakenTurn turn(turn_);
    if (team_ != nullptr) return false;
    if (left_ == nullptr) return true;
    if (!left_->is_left_by_all()) return false;
    left_.reset();
    arena_.reset();
    return true;
}

bool Group::settle(std::chrono::milliseconds patience) noexcept {
    const auto give_up_at = Clock::now() + patience;
    const auto left = [&] {
        const auto time = std::chrono::ceil<std::chrono::milliseconds>(give_up_at - Clock::now());
        return std::max(time, std::chrono::milliseconds::zero());
    };
    const auto is_free = [&](Turn& turn) {
        if (!turn.try_take() && !turn.try_take_for(left())) return false;
        turn.give();
        return true;
    };
    if (is_closed_.load()) {  // close() waits by itself, and keeps the turns
        while (!has_left_.load() && left().count() > 0) std::this_thread::sleep_for(kCloseBite);
        return has_left_.load();
    }
    if (!page_->is_aborted(epoch_)) return true;
    if (!is_free(turn_)) return false;
    // The rest of the queue fails without a turn, and is counted on the page till then: the group
    // of the next epoch counts there from 0.
    queue_.sleep_until_idle(left());
    if (!queue_.is_idle()) return false;
    if (pairs_ == nullptr) return true;
    auto& lanes = pairs_->lanes();
    return std::all_of(lanes.begin(), lanes.end(), [&](auto& lane) { return is_free(lane.turn); });
}

bool Group::take_all_turns(const Reason& reason) noexcept {
    std::vector<Turn*> busy;
    if (!queue_.is_idle() || !turn_.try_take()) busy.push_back(&turn_);
    if (pairs_ != nullptr) {
        for (auto& lane : pairs_->lanes()) {
            if (!lane.turn.try_take()) busy.push_back(&lane.turn);
        }
    }
    if (busy.empty()) return true;
    page_->abort(epoch_, reason);
    if (wake_) ring_eventfd(wake_.get());
    for (int i = 0; i < kClosePatience && !busy.empty(); ++i) {
        if (busy.back()->try_take_for(Waiter::kLongestSleep)) busy.pop_back();
    }
    return busy.empty();
}

}  // namespace phalanx
