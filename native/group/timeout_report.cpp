// The text of a passed deadline: the ranks that had come, the missing ones, and their activity.
#include <algorithm>

#include "base/call_site.hpp"
#include "base/clock.hpp"
#include "group/group.hpp"

namespace phalanx {

namespace {

constexpr std::size_t kMostKinds = 4;  // of missing ranks that the text lists separately
// Time for the leader of a host to free its members with the names of missing ranks elsewhere.
constexpr std::chrono::milliseconds kLeaderPatience{100};

std::string describe_word(std::uint64_t word) {
    return name_of(static_cast<OpKind>(word >> 48)) + " #" + std::to_string(Activity::seq_of(word));
}

std::string describe_message(std::uint64_t word) {
    const Activity::MessageWord its = Activity::message_of(word);
    return std::string(its.name()) + " #" + std::to_string(its.number) +
           (its.is_recv ? " from rank " : " to rank ") + std::to_string(its.peer);
}

}  // namespace

std::string list_ranks(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size();) {
        std::size_t end = i + 1;
        while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
        if (end - i < 3) end = i + 1;  // "1, 2" and not "1-2"
        text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
        if (end - i > 1) text.append("-").append(std::to_string(ranks[end - 1]));
        i = end;
    }
    return text;
}

// Activity of a rank on this page at this moment; the rank may go on meanwhile.
std::string Group::describe_activity(int slot, std::uint64_t word) const {
    Activity& there = page_->activity(slot);
    const auto& own = there.of(channel_);
    if (own.tag.load(std::memory_order_acquire) != own_sites_.tag) return "not in this group";
    const std::uint64_t current = own.current.load(std::memory_order_acquire);
    const std::uint64_t done = own.done.load(std::memory_order_acquire);
    const std::uint64_t message = there.pair.load(std::memory_order_acquire);
    const auto seen = page_->current_site(slot);
    const auto at = [&](std::uint64_t of) {
        return at_site(seen && seen->word == of ? seen->text : std::string());
    };
    if (current != 0) {
        return (current == word ? "in it" : "in " + describe_word(current)) + at(current);
    }
    const std::string last = done == 0 ? "" : ", last completed " + describe_word(done);
    if (message != 0) return "in " + describe_message(message) + at(message) + last;
    for (int number = 0; number < kActivityChannels; ++number) {
        const auto& other = there.of(number);
        const std::uint64_t its = other.current.load(std::memory_order_acquire);
        if (other.tag.load(std::memory_order_acquire) == 0 || its == 0) continue;
        return "in " + describe_word(its) + " of another group" + at(its) + last;
    }
    return "in no operation" + (done == 0 ? ", has completed none" : last);
}

std::string Group::describe_missing(const Timeout& error, std::uint64_t word) const {
    std::vector<std::pair<std::string, std::vector<int>>> kinds;
    for (const int rank : error.missing) {
        const int in_the_world = world_rank(rank);
        const int slot = page_slots_[static_cast<std::size_t>(rank)];
        const std::string host = host_of(in_the_world);
        const std::string where = host.empty() ? "" : "on " + host;
        const auto& node = formation_.nodes[static_cast<std::size_t>(formation_.node_of(rank))];
        if (error.whole_hosts && node.size() > 1) {
            std::vector<int> all;
            for (const int one : node) all.push_back(world_rank(one));
            kinds.push_back(
                {"one of " + list_ranks(std::move(all)) + (where.empty() ? "" : " (" + where + ")"),
                 {}});
            continue;
        }
        const std::string doing = slot >= 0 ? describe_activity(slot, word) : where;
        auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& known) {
            return known.first == doing && !known.second.empty();
        });
        if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {doing, {}});
        kind->second.push_back(in_the_world);
    }
    std::string text;
    for (std::size_t i = 0; i < std::min(kinds.size(), kMostKinds); ++i) {
        const auto& [doing, ranks] = kinds[i];
        if (i > 0) text += ", ";
        text += ranks.empty() ? doing : list_ranks(ranks);
        if (!ranks.empty() && !doing.empty()) text += " (" + doing + ")";
    }
    return kinds.size() > kMostKinds ? text + " and others" : text;
}

std::vector<int> Group::arrived_ranks(const Timeout& error) const {
    std::vector<int> come;
    for (int rank = 0; rank < size_; ++rank) {
        const auto is_of = [&](int missing) {
            return missing == rank ||
                   (error.whole_hosts && formation_.node_of(missing) == formation_.node_of(rank));
        };
        if (std::none_of(error.missing.begin(), error.missing.end(), is_of)) {
            come.push_back(world_rank(rank));
        }
    }
    return come;
}

// A rank in a ring sees its neighbours only, and they may wait as well for a rank that has stopped.
// A rank that has come, or that is no end of this message, is not blamed.
std::vector<int> Group::stopped_ranks(const Timeout& error, OperationContext& here,
                                      bool has_begun) const {
    const bool may_be_any = has_begun && !Activity::is_message(here.word());
    const auto is_missing = [&](int rank) {
        return std::any_of(error.missing.begin(), error.missing.end(), [&](int one) {
            return one == rank ||
                   (error.whole_hosts && formation_.node_of(one) == formation_.node_of(rank));
        });
    };
    std::vector<int> silent;
    for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_ || (!may_be_any && !is_missing(rank))) continue;
        const int slot = page_slots_[static_cast<std::size_t>(rank)];
        if (here.silence_of(slot) > Clock::duration::zero()) silent.push_back(world_rank(rank));
    }
    return silent;
}

// Whether the leader of this host is in the operation and waits for another host.
bool Group::waits_for_leader(const Timeout& error, const OperationContext& here) const {
    const int node = formation_.node_of(rank_);
    const int leader = formation_.nodes[static_cast<std::size_t>(node)].front();
    if (Activity::is_message(here.word()) || team_->links() == nullptr || leader == rank_ ||
        error.missing != std::vector<int>{leader}) {
        return false;
    }
    const int slot = page_slots_[static_cast<std::size_t>(leader)];
    return page_->activity(slot).of(channel_).current.load() == here.word();
}

AbortReason Group::reason_of_timeout(const Timeout& error, const std::string& what,
                                     OperationContext& here, bool has_begun) {
    const auto silent = stopped_ranks(error, here, has_begun);
    const bool is_for_leader = silent.empty() && waits_for_leader(error, here);
    if (is_for_leader) {
        const auto give_up_at = Clock::now() + kLeaderPatience;
        while (Clock::now() < give_up_at) {
            if (auto reason = page_->reason(epoch_)) return *reason;
            page_->doorbell(own_sites_.slot).sleep(give_up_at - Clock::now(), [&] {
                return page_->is_aborted(epoch_);
            });
        }
    }
    std::string text = me() + ": " + what + at_site(here.site()) + " timed out after " +
                       in_seconds(limit_of(here.call()).value_or(Clock::duration::zero())) + "; ";
    if (is_for_leader) {
        text += has_begun ? "all ranks had come; it waits for " : "missing: ";
        text += "a rank of another host (rank " +
                std::to_string(world_rank(error.missing.front())) + " waits for it)";
        return {AbortKind::kTimeout, -1, text};
    }
    const bool is_message = Activity::is_message(here.word());
    text += has_begun && !is_message ? "all ranks had come; it waits for " : "missing: ";
    text += describe_missing(error, here.word());
    const auto come = arrived_ranks(error);
    if (!has_begun && !is_message && come.size() > 1) text += "; had come: " + list_ranks(come);
    if (!silent.empty()) {
        text += "; " + list_ranks(silent) + (silent.size() == 1 ? " has" : " have") +
                " given no sign of life";
    }
    if (silent.size() == 1) return {AbortKind::kTimeout, silent.front(), text};
    const auto& nodes = formation_.nodes;
    const bool is_one =
        error.missing.size() == 1 &&
        (!error.whole_hosts ||
         nodes[static_cast<std::size_t>(formation_.node_of(error.missing.front()))].size() == 1);
    return {AbortKind::kTimeout, is_one ? world_rank(error.missing.front()) : -1, text};
}

}  // namespace phalanx
