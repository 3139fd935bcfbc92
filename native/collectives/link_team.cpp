// The exchange of small messages between all nodes. The streams are in stream.cpp.
#include "collectives/link_team.hpp"

#include <algorithm>
#include <cstring>

#include "collectives/checksum.hpp"

namespace phalanx {

LinkTeam::LinkTeam(std::vector<int> ranks, std::vector<std::unique_ptr<Link>> links, int me,
                   bool is_leader, bool are_whole_hosts, LinkTuning tuning)
    : ranks_(std::move(ranks)),
      links_(std::move(links)),
      me_(me),
      are_whole_hosts_(are_whole_hosts),
      // whole elements, at least one of any dtype
      scratch_(is_leader ? std::max<std::size_t>(tuning.segment_bytes / 16 * 16, 16) : 0),
      message_(ranks_.size()),
      inbox_(ranks_.size()),
      sent_(ranks_.size()),
      received_(ranks_.size()) {
    for (int node = 0; is_leader && node < size(); ++node) {
        if (node != me_ && links_[index(node)] == nullptr) {
            throw UsageError("rank " + std::to_string(rank(me_)) + " has no link to rank " +
                             std::to_string(rank(node)) + ", with which it shares no arena");
        }
    }
}

void LinkTeam::exchange(const Op& op, std::span<const std::byte> payload, Waiter& waiter) {
    mark_ = end_mark(op);
    outbox_.clear();
    const std::size_t size = add_message(&op, payload, !payload.empty());
    message_.assign(ranks_.size(), {0, size});
    run_exchange(op, size, waiter);
}

void LinkTeam::exchange_parts(const Op& op, std::span<const std::byte> bytes,
                              std::span<const Range> parts, Waiter& waiter) {
    mark_ = end_mark(op);
    outbox_.clear();
    for (int node = 0; node < size(); ++node) {
        const Range part = node == me_ ? Range{} : parts[index(node)];
        const std::size_t at = outbox_.size();
        const auto cut = bytes.subspan(static_cast<std::size_t>(part.begin),
                                       static_cast<std::size_t>(part.size));
        message_[index(node)] = {at, node == me_ ? 0 : add_message(&op, cut, true)};
    }
    run_exchange(op, sizeof(Op) + static_cast<std::size_t>(parts[index(me_)].size) + sizeof mark_,
                 waiter);
}

void LinkTeam::exchange_payload(std::span<const std::byte> payload, Waiter& waiter) {
    outbox_.clear();
    const std::size_t size = add_message(nullptr, payload, true);
    message_.assign(ranks_.size(), {0, size});
    begin_exchange(size);
    advance_until(size, size, false, waiter);
    check_marks();
}

std::size_t LinkTeam::add_message(const Op* op, std::span<const std::byte> payload, bool has_mark) {
    const std::size_t begin = outbox_.size();
    payload_at_ = op != nullptr ? sizeof *op : 0;
    const std::size_t mark_at = payload_at_ + payload.size();
    outbox_.resize(begin + mark_at + (has_mark ? sizeof mark_ : 0));
    std::byte* to = outbox_.data() + begin;
    if (op != nullptr) std::memcpy(to, op, sizeof *op);
    if (!payload.empty()) std::memcpy(to + payload_at_, payload.data(), payload.size());
    if (has_mark) {
        const std::uint64_t mark = mark_ ^ checksum_of(payload);
        std::memcpy(to + mark_at, &mark, sizeof mark);
    }
    return outbox_.size() - begin;
}

void LinkTeam::begin_exchange(std::size_t expected) {
    std::fill(sent_.begin(), sent_.end(), 0);
    std::fill(received_.begin(), received_.end(), 0);
    for (auto& box : inbox_) box.resize(expected);
}

// Headers first, and nothing of the payloads is believed before they were compared.
void LinkTeam::run_exchange(const Op& op, std::size_t expected, Waiter& waiter) {
    begin_exchange(expected);
    advance_until(expected, sizeof(Op), true, waiter);
    judge(op);
    if (expected == sizeof(Op)) return;
    advance_until(expected, expected, false, waiter);
    check_marks();
}

void LinkTeam::check_marks() const {
    for (int node = 0; node < size(); ++node) {
        if (node == me_) continue;
        std::uint64_t mark = 0;
        const std::span<const std::byte> box(inbox_[index(node)]);
        const std::size_t mark_at = box.size() - sizeof mark;
        std::memcpy(&mark, box.data() + mark_at, sizeof mark);
        if (mark != (mark_ ^ checksum_of(box.subspan(payload_at_, mark_at - payload_at_)))) {
            throw PeerLost(rank(node), "its data was damaged or cut short on the way");
        }
    }
}

bool LinkTeam::advance_exchange(std::size_t expected) {
    bool has_moved = false;
    for (int node = 0; node < size(); ++node) {
        if (node == me_) continue;
        auto& sent = sent_[index(node)];
        const Range message = message_[index(node)];
        if (sent < message.size) {
            const auto moved = link(node).try_send({outbox_.data() + message.begin + sent,
                                                    static_cast<std::size_t>(message.size) - sent});
            sent += moved;
            bytes_sent_ += moved;
            has_moved |= moved > 0;
        }
        auto& received = received_[index(node)];
        if (received < expected) {
            const auto moved =
                link(node).try_recv(std::span(inbox_[index(node)]).subspan(received));
            received += moved;
            has_moved |= moved > 0;
        }
    }
    return has_moved;
}

// Goes on until `wanted` bytes have come from every node and, once all is wanted, all was sent.
void LinkTeam::advance_until(std::size_t expected, std::size_t wanted, bool judge_early,
                             Waiter& waiter) {
    const auto is_open = [&](int node) {
        return node != me_ &&
               (received_[index(node)] < wanted || (wanted == expected && is_sending(node)));
    };
    const auto missing = [&] {
        Missing who;
        for (int node = 0; node < size(); ++node) {
            if (is_open(node)) who.ranks.push_back(rank(node));
        }
        who.whole_hosts = are_whole_hosts_;
        return who;
    };
    // Also what is wanted later only: it is read as it comes, and must not be drained as the rest
    // of a stream that has ended.
    const auto is_coming = [&](int node) {
        return node != me_ && received_[index(node)] < expected;
    };
    const auto descriptors = [&]() -> std::span<const pollfd> {
        polled_.clear();
        for (int node = 0; node < size(); ++node) {
            if (node == me_) continue;
            const int events = (is_coming(node) ? POLLIN : 0) | (is_sending(node) ? POLLOUT : 0);
            if (events == 0) continue;
            check_alive(waiter, node);
            polled_.push_back({link(node).descriptor(), static_cast<short>(events), 0});
        }
        return polled_;
    };
    const auto any_open = [&] {
        for (int node = 0; node < size(); ++node) {
            if (is_open(node)) return true;
        }
        return false;
    };
    while (any_open()) {
        waiter.until_moved(
            [&] {
                listen(waiter, is_coming);
                const bool has_moved = advance_exchange(expected);
                // As on the host: a node that never comes must not hide a mismatch of others.
                if (judge_early && waiter.is_patience_over()) judge(own_header());
                return has_moved;
            },
            descriptors, missing);
    }
}

// At the beginning of every message.
Op LinkTeam::own_header() const {
    Op op;
    std::memcpy(&op, outbox_.data(), sizeof op);
    return op;
}

Op LinkTeam::header(int node) const {
    Op op;
    std::memcpy(&op, inbox_[index(node)].data(), sizeof op);
    return op;
}

void LinkTeam::judge(const Op& own) const {
    int first = -1;
    Op first_op;
    for (int node = 0; node < size(); ++node) {
        if (node != me_ && received_[index(node)] < sizeof(Op)) continue;
        const Op op = node == me_ ? own : header(node);
        // No header at all: perhaps last words; whoever catches this will listen for them.
        if (op.magic != Op::kMagic || op.end != Op::kEnd) {
            throw PeerLost(rank(node), "it sent something that is no header");
        }
        if (first < 0) {
            first = node;
            first_op = op;
        } else if (op != first_op) {
            throw OpMismatch(rank(node), op, rank(first), first_op);
        }
    }
}

const std::byte* LinkTeam::payload(int node) const {
    return inbox_[index(node)].data() + payload_at_;
}

void LinkTeam::say_last_words(std::uint64_t epoch, const Reason& reason) noexcept {
    for (const auto& link : links_) {
        if (link != nullptr) link->say_last_words(epoch, reason);
    }
}

Link* LinkTeam::link_to(int wanted) const noexcept {
    const auto found = std::find(ranks_.begin(), ranks_.end(), wanted);
    return found == ranks_.end() ? nullptr
                                 : links_[static_cast<std::size_t>(found - ranks_.begin())].get();
}

std::optional<Reason> LinkTeam::hear_last_words(std::uint64_t epoch) noexcept {
    for (const auto& link : links_) {
        if (link == nullptr) continue;
        if (auto reason = link->hear_last_words(epoch)) return reason;
    }
    return std::nullopt;
}

}  // namespace phalanx
