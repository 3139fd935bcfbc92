// The exchange of headers and small payloads between all nodes. stream.cpp has the streams.
#include "collectives/between_hosts/node_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace phalanx {

namespace {
// Up to this size the payload is copied behind its header: cheaper than another system call buffer.
constexpr std::size_t kCopiedBytes = std::size_t{4} << 10;
}  // namespace

NodeExchange::NodeExchange(std::vector<int> ranks, std::vector<std::unique_ptr<Link>> links, int me,
                           bool is_leader, bool are_whole_hosts, LinkTuning tuning, Waiter& waiter)
    : ranks_(std::move(ranks)),
      links_(std::move(links)),
      waiter_(waiter),
      me_(me),
      are_whole_hosts_(are_whole_hosts),
      // whole elements, at least one of any dtype
      scratch_(is_leader ? std::max<std::size_t>(tuning.segment_bytes / 16 * 16, 16) : 0),
      message_(ranks_.size()),
      inbox_(ranks_.size()),
      sums_(ranks_.size()),
      sent_(ranks_.size()),
      received_(ranks_.size()) {
    for (int node = 0; is_leader && node < size(); ++node) {
        if (node != me_ && links_[index(node)] == nullptr) {
            throw UsageError("rank " + std::to_string(rank(me_)) + " has no link to rank " +
                             std::to_string(rank(node)) + ", with which it shares no arena");
        }
    }
}

void NodeExchange::exchange(const Op& op, std::span<const std::byte> payload) {
    mark_ = end_mark(op);
    outbox_.clear();
    const Message message = add_message(&op, payload, !payload.empty());
    message_.assign(ranks_.size(), message);
    run_exchange(op, static_cast<std::size_t>(message.size()));
}

void NodeExchange::exchange_parts(const Op& op, std::span<const std::byte> bytes,
                                  std::span<const Range> parts) {
    mark_ = end_mark(op);
    outbox_.clear();
    for (int node = 0; node < size(); ++node) {
        const Range part = node == me_ ? Range{} : parts[index(node)];
        const auto cut = bytes.subspan(static_cast<std::size_t>(part.begin),
                                       static_cast<std::size_t>(part.size));
        message_[index(node)] = node == me_ ? Message() : add_message(&op, cut, true);
    }
    run_exchange(op, sizeof(Op) + static_cast<std::size_t>(parts[index(me_)].size) + sizeof mark_);
}

void NodeExchange::exchange_payload(std::span<const std::byte> payload) {
    outbox_.clear();
    const Message message = add_message(nullptr, payload, true);
    const auto size = static_cast<std::size_t>(message.size());
    message_.assign(ranks_.size(), message);
    begin_exchange(size);
    advance_until(size, size, false);
    check_marks(size);
}

NodeExchange::Message NodeExchange::add_message(const Op* op, std::span<const std::byte> payload,
                                                bool has_mark) {
    const auto header = std::as_bytes(std::span(op, op != nullptr ? 1 : 0));
    payload_at_ = header.size();
    const std::uint64_t mark = has_mark ? mark_ ^ checksum_of(payload) : 0;
    const auto end = std::as_bytes(std::span(&mark, has_mark ? 1 : 0));
    const Range head = add_to_outbox(header);
    if (payload.size() > kCopiedBytes) return {head, payload, add_to_outbox(end)};
    const Range rest{add_to_outbox(payload).begin, payload.size() + add_to_outbox(end).size};
    return {{head.begin, head.size + rest.size}, {}, {}};
}

Range NodeExchange::add_to_outbox(std::span<const std::byte> bytes) {
    const Range range{outbox_.size(), bytes.size()};
    outbox_.insert(outbox_.end(), bytes.begin(), bytes.end());
    return range;
}

void NodeExchange::begin_exchange(std::size_t expected) {
    std::fill(sent_.begin(), sent_.end(), 0);
    std::fill(received_.begin(), received_.end(), 0);
    std::fill(sums_.begin(), sums_.end(), Checksum());
    // Only grown: a smaller size would be filled with zeros again at the next large message.
    for (auto& box : inbox_) {
        if (box.size() < expected) box.resize(expected);
    }
}

// Headers come first; payloads are used only after the headers were compared.
void NodeExchange::run_exchange(const Op& op, std::size_t expected) {
    begin_exchange(expected);
    advance_until(expected, sizeof(Op), true);
    check_headers(op);
    if (expected == sizeof(Op)) return;
    advance_until(expected, expected, false);
    check_marks(expected);
}

void NodeExchange::check_marks(std::size_t expected) const {
    for (int node = 0; node < size(); ++node) {
        if (node == me_) continue;
        std::uint64_t mark = 0;
        std::memcpy(&mark, inbox_[index(node)].data() + expected - sizeof mark, sizeof mark);
        if (mark != (mark_ ^ sums_[index(node)].value())) {
            links_[index(node)]->mark_broken(kWrongSum);
        }
    }
}

bool NodeExchange::advance_exchange(std::size_t expected) {
    bool has_moved = false;
    for (int node = 0; node < size(); ++node) {
        if (node == me_) continue;
        if (is_sending(node)) has_moved |= send_on(node) > 0;
        if (received_[index(node)] < expected) has_moved |= receive_on(node, expected) > 0;
    }
    return has_moved;
}

std::size_t NodeExchange::send_on(int node) {
    const Message& message = message_[index(node)];
    const auto in_outbox = [&](Range range) {
        return std::span<const std::byte>(outbox_).subspan(static_cast<std::size_t>(range.begin),
                                                           static_cast<std::size_t>(range.size));
    };
    std::array<std::span<const std::byte>, Link::kMaxParts> parts{
        in_outbox(message.head), message.payload, in_outbox(message.tail)};
    std::size_t gone = sent_[index(node)];
    for (auto& part : parts) {
        const std::size_t of_part = std::min(gone, part.size());
        part = part.subspan(of_part);
        gone -= of_part;
    }
    const auto moved = link(node).try_send(parts);
    sent_[index(node)] += moved;
    return moved;
}

std::size_t NodeExchange::receive_on(int node, std::size_t expected) {
    auto& received = received_[index(node)];
    const std::span box(inbox_[index(node)]);
    const auto room = std::min<std::size_t>(expected - received, kIoChunkBytes);
    const auto moved = link(node).try_recv(box.subspan(received, room));
    // The range between header and end mark, if there is more than a header.
    const std::size_t end =
        expected == payload_at_ ? expected : expected - std::min(expected, sizeof mark_);
    const std::size_t from = std::clamp(received, payload_at_, end);
    const std::size_t to = std::clamp(received + moved, payload_at_, end);
    sums_[index(node)].add(box.subspan(from, to - from));
    received += moved;
    return moved;
}

// Loops until `wanted` bytes have come from every node and, if that is all, everything was sent.
void NodeExchange::advance_until(std::size_t expected, std::size_t wanted, bool check_early) {
    const auto is_open = [&](int node) {
        return node != me_ &&
               (received_[index(node)] < wanted || (wanted == expected && is_sending(node)));
    };
    // Includes bytes that are only wanted later: they are read as they come, and must not be
    // drained as the rest of a stream that has ended.
    const auto events_of = [&](int node) {
        return (received_[index(node)] < expected ? POLLIN : 0) | (is_sending(node) ? POLLOUT : 0);
    };
    const auto move = [&] {
        const bool has_moved = advance_exchange(expected);
        // As on the host: a missing node must not hide a mismatch among the others.
        if (check_early && waiter_.is_patience_over()) check_headers(own_header());
        return has_moved;
    };
    move_until_over(is_open, events_of, move);
}

void NodeExchange::move_until_over(FunctionRef<bool(int)> is_open, FunctionRef<int(int)> events_of,
                                   FunctionRef<bool()> move) {
    const auto missing = [&] {
        MissingRanks who;
        for (int node = 0; node < size(); ++node) {
            if (is_open(node)) who.ranks.push_back(rank(node));
        }
        who.whole_hosts = are_whole_hosts_;
        return who;
    };
    const auto descriptors = [&]() -> std::span<const pollfd> {
        polled_.clear();
        for (int node = 0; node < size(); ++node) {
            const int events = node == me_ ? 0 : events_of(node);
            if (events == 0) continue;
            if (waiter_.is_patience_over()) link(node).check_alive();
            link(node).add_polled(polled_, events);
        }
        return polled_;
    };
    // In a long wait: checks whether a peer that is not awaited has aborted the epoch.
    const auto check_notices = [&] {
        for (int node = 0; node < size(); ++node) {
            if (node == me_ || (events_of(node) & POLLIN) != 0 || !link(node).has_ended()) continue;
            auto words = link(node).drain_for_notice(waiter_.epoch());
            // A closed peer has done its part; it is missed only when it is needed.
            if (words && words->kind != AbortKind::kClosed) throw Aborted(std::move(*words));
        }
    };
    const auto look = [&] {
        if (waiter_.is_patience_over()) check_notices();
        return move();
    };
    const auto is_over = [&] {
        for (int node = 0; node < size(); ++node) {
            if (is_open(node)) return false;
        }
        return true;
    };
    while (!is_over()) waiter_.wait_until_moved(look, descriptors, missing);
}

// Returns the header at the beginning of every message.
Op NodeExchange::own_header() const {
    Op op;
    std::memcpy(&op, outbox_.data(), sizeof op);
    return op;
}

Op NodeExchange::header(int node) const {
    Op op;
    std::memcpy(&op, inbox_[index(node)].data(), sizeof op);
    return op;
}

void NodeExchange::check_headers(const Op& own) const {
    int first = -1;
    Op first_op;
    for (int node = 0; node < size(); ++node) {
        if (node != me_ && received_[index(node)] < sizeof(Op)) continue;
        const Op op = node == me_ ? own : header(node);
        // Not a header: possibly an abort notice; the caller that catches this reads it.
        if (op.magic != Op::kMagic || op.end != Op::kEnd) {
            links_[index(node)]->mark_broken("it sent something that is no header");
        }
        if (first < 0) {
            first = node;
            first_op = op;
        } else if (op != first_op) {
            throw OpMismatch(rank(node), op, rank(first), first_op);
        }
    }
}

const std::byte* NodeExchange::payload(int node) const {
    return inbox_[index(node)].data() + payload_at_;
}

void NodeExchange::send_abort_notice(std::uint64_t epoch, const AbortReason& reason) noexcept {
    for (const auto& link : links_) {
        if (link != nullptr) link->send_abort_notice(epoch, reason);
    }
}

Link* NodeExchange::link_to(int wanted) const noexcept {
    const auto found = std::find(ranks_.begin(), ranks_.end(), wanted);
    return found == ranks_.end() ? nullptr
                                 : links_[static_cast<std::size_t>(found - ranks_.begin())].get();
}

std::optional<AbortReason> NodeExchange::drain_for_notice(std::uint64_t epoch) noexcept {
    for (const auto& link : links_) {
        if (link == nullptr) continue;
        if (auto reason = link->drain_for_notice(epoch)) return reason;
    }
    return std::nullopt;
}

}  // namespace phalanx
