// Two streams at once, without threads: whatever can move, moves.
#include <algorithm>
#include <cstring>
#include <limits>

#include "collectives/kernels.hpp"
#include "collectives/link_team.hpp"

namespace phalanx {

namespace {

// The sending half: walks the pieces, but never past what may be sent.
class Sender {
  public:
    Sender(Link* link, std::span<const Outgoing> pieces, std::uint64_t mark)
        : link_(link), pieces_(pieces), mark_(mark) {
        for (const Outgoing& piece : pieces) total_ += piece.nbytes;
        if (link == nullptr) total_ = 0;
    }
    [[nodiscard]] bool is_done() const noexcept {
        return link_ == nullptr || (sent_ == total_ && mark_sent_ == sizeof mark_);
    }
    // The mark needs no leave: nothing of it depends on what comes.
    [[nodiscard]] bool may_send(std::uint64_t allowed) const noexcept {
        return !is_done() && (sent_ == total_ || sent_ < allowed);
    }
    std::size_t advance(std::uint64_t allowed) {
        if (!may_send(allowed)) return 0;
        if (sent_ == total_) {
            const auto rest = std::as_bytes(std::span(&mark_, 1)).subspan(mark_sent_);
            const auto marked = link_->try_send(rest);
            mark_sent_ += marked;
            return marked;
        }
        while (at_ == pieces_[piece_].nbytes) {
            ++piece_;
            at_ = 0;
        }
        const Outgoing& piece = pieces_[piece_];
        const auto size = std::min(piece.nbytes - at_, allowed - sent_);
        const std::span rest(piece.data + at_, static_cast<std::size_t>(size));
        // The mark goes along with the last bytes: a call of its own would cost as much as they.
        const bool is_last = sent_ + size == total_;
        const auto moved = is_last ? link_->try_send(rest, std::as_bytes(std::span(&mark_, 1)))
                                   : link_->try_send(rest);
        const auto of_data = std::min<std::uint64_t>(moved, size);
        at_ += of_data;
        sent_ += of_data;
        mark_sent_ += static_cast<std::size_t>(moved - of_data);
        return moved;
    }

  private:
    Link* link_;
    std::span<const Outgoing> pieces_;
    std::uint64_t mark_;
    std::size_t mark_sent_ = 0;
    std::size_t piece_ = 0;
    std::uint64_t at_ = 0;
    std::uint64_t sent_ = 0;
    std::uint64_t total_ = 0;
};

// The receiving half: stores in place, or gathers in the scratch and reduces whole elements.
class Receiver {
  public:
    Receiver(Link* link, std::span<const Incoming> pieces, Reduction reduction, Dtype dtype,
             std::span<std::byte> scratch, std::uint64_t mark)
        : link_(link),
          pieces_(pieces),
          reduction_(reduction),
          dtype_(dtype),
          scratch_(scratch),
          mark_(mark) {
        if (link == nullptr) pieces_ = {};
        skip_finished();
    }
    [[nodiscard]] bool is_done() const noexcept {
        return link_ == nullptr || mark_received_ == sizeof mark_;
    }
    [[nodiscard]] std::uint64_t done() const noexcept { return done_; }

    std::size_t advance() {
        if (is_done()) return 0;
        if (piece_ == pieces_.size()) return advance_mark();
        const Incoming& piece = pieces_[piece_];
        const std::uint64_t left = piece.nbytes - at_;
        const bool is_last = piece_ + 1 == pieces_.size();
        if (piece.own == nullptr) {
            const auto moved = receive({piece.out + at_, static_cast<std::size_t>(left)}, is_last);
            finish(moved - mark_received_);
            check_mark();
            return moved;
        }
        const auto room = std::min<std::uint64_t>(left, scratch_.size()) - held_;
        const auto moved = receive(scratch_.subspan(held_, static_cast<std::size_t>(room)),
                                   is_last && left <= scratch_.size());
        held_ += moved - mark_received_;
        const std::size_t whole = held_ / size_of(dtype_) * size_of(dtype_);
        if (whole > 0) {
            const std::byte* inputs[] = {scratch_.data(), piece.own + at_};
            reduce(reduction_, dtype_, piece.out + at_, nullptr, inputs, whole / size_of(dtype_));
            held_ -= whole;
            std::memmove(scratch_.data(), scratch_.data() + whole, held_);
            finish(whole);
        }
        check_mark();
        return moved;
    }

  private:
    // Up to the end of `bytes`, and into the mark if it comes right behind them.
    std::size_t receive(std::span<std::byte> bytes, bool is_last) {
        if (!is_last) return link_->try_recv(bytes);
        const auto moved = link_->try_recv(bytes, std::as_writable_bytes(std::span(&came_, 1)));
        mark_received_ = moved - std::min(moved, bytes.size());
        return moved;
    }
    std::size_t advance_mark() {
        const auto rest = std::as_writable_bytes(std::span(&came_, 1)).subspan(mark_received_);
        const auto moved = link_->try_recv(rest);
        mark_received_ += moved;
        check_mark();
        return moved;
    }
    void check_mark() const {
        if (is_done() && came_ != mark_) throw PeerLost(link_->peer(), "its data was cut short");
    }
    void finish(std::uint64_t nbytes) {
        at_ += nbytes;
        done_ += nbytes;
        skip_finished();
    }
    void skip_finished() {
        while (piece_ < pieces_.size() && at_ == pieces_[piece_].nbytes) {
            ++piece_;
            at_ = 0;
        }
    }

    Link* link_;
    std::span<const Incoming> pieces_;
    Reduction reduction_;
    Dtype dtype_;
    std::span<std::byte> scratch_;
    std::uint64_t mark_;
    std::uint64_t came_ = 0;  // in place of the mark
    std::size_t mark_received_ = 0;
    std::size_t piece_ = 0;
    std::uint64_t at_ = 0;
    std::uint64_t done_ = 0;
    std::size_t held_ = 0;
};

}  // namespace

void LinkTeam::stream(int to, std::span<const Outgoing> outgoing, int from,
                      std::span<const Incoming> incoming, std::uint64_t head_start,
                      Reduction reduction, Dtype dtype, Waiter& waiter) {
    Sender sender(to < 0 ? nullptr : &link(to), outgoing, mark_);
    Receiver receiver(from < 0 ? nullptr : &link(from), incoming, reduction, dtype, scratch_,
                      mark_);
    const auto allowed = [&] { return head_start + receiver.done(); };
    const auto missing = [&] {
        Missing who;
        if (!receiver.is_done()) who.ranks.push_back(rank(from));
        if (!sender.is_done() && (to != from || receiver.is_done())) who.ranks.push_back(rank(to));
        who.whole_hosts = are_whole_hosts_;
        return who;
    };
    const auto descriptors = [&]() -> std::span<const pollfd> {
        polled_.clear();
        if (!receiver.is_done()) polled_.push_back({link(from).descriptor(), POLLIN, 0});
        if (sender.may_send(allowed())) polled_.push_back({link(to).descriptor(), POLLOUT, 0});
        return polled_;
    };
    while (!receiver.is_done() || !sender.is_done()) {
        waiter.until_moved(
            [&] {
                listen(waiter, [&](int node) { return node == from && !receiver.is_done(); });
                const auto received = receiver.advance();
                const auto sent = sender.advance(allowed());
                bytes_sent_ += sent;
                return received + sent > 0;
            },
            descriptors, missing);
    }
}

void LinkTeam::trade(std::span<const Trade> by_node, Waiter& waiter) {
    std::vector<Sender> senders;
    std::vector<Receiver> receivers;
    for (int node = 0; node < size(); ++node) {
        Link* const peer = node == me_ ? nullptr : &link(node);
        const Trade& one = by_node[index(node)];
        senders.emplace_back(peer, one.outgoing, mark_);
        receivers.emplace_back(peer, one.incoming, Reduction::kSum, Dtype::none,
                               std::span<std::byte>(), mark_);
    }
    constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
    const auto is_awaited = [&](int node) { return !receivers[index(node)].is_done(); };
    const auto is_open = [&](int node) {
        return is_awaited(node) || !senders[index(node)].is_done();
    };
    const auto any_open = [&] {
        for (int node = 0; node < size(); ++node) {
            if (is_open(node)) return true;
        }
        return false;
    };
    const auto missing = [&] {
        Missing who;
        for (int node = 0; node < size(); ++node) {
            if (is_open(node)) who.ranks.push_back(rank(node));
        }
        who.whole_hosts = are_whole_hosts_;
        return who;
    };
    const auto descriptors = [&]() -> std::span<const pollfd> {
        polled_.clear();
        for (int node = 0; node < size(); ++node) {
            if (!is_open(node)) continue;
            const int events =
                (is_awaited(node) ? POLLIN : 0) | (senders[index(node)].is_done() ? 0 : POLLOUT);
            polled_.push_back({link(node).descriptor(), static_cast<short>(events), 0});
        }
        return polled_;
    };
    while (any_open()) {
        waiter.until_moved(
            [&] {
                listen(waiter, is_awaited);
                std::size_t moved = 0;
                for (int node = 0; node < size(); ++node) {
                    moved += receivers[index(node)].advance();
                    const auto sent = senders[index(node)].advance(kAll);
                    bytes_sent_ += sent;
                    moved += sent;
                }
                return moved > 0;
            },
            descriptors, missing);
    }
}

}  // namespace phalanx
