// Implement the common part of links: the first failure stays, and abort notices.
#include "transport/link.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "shm/control_page.hpp"

namespace phalanx {

namespace {
constexpr std::uint64_t kMagic = 0x32'64'72'6f'77'6c'70'fe;
constexpr std::size_t kDrainBytes = std::size_t{16} << 10;
// Time that an abort notice waits for room in a full link: a few scheduler ticks of 4 ms.
constexpr int kRoomBites = 20;
constexpr std::chrono::milliseconds kRoomBite{1};
constexpr int kDrainReads = 4096;  // 64 MiB: more than any socket buffer
}  // namespace

void Link::mark_broken(const std::string& why, bool is_silent) {
    const auto where = path();
    broken_ = where.empty() ? why : where + ": " + why;
    was_silent_ = is_silent;
    lose(broken_, was_silent_);
}

std::size_t Link::try_send(Parts parts) {
    return guarded([&] { return count(sent_in_, do_send(parts)); });
}

std::size_t Link::try_recv(std::span<std::byte> bytes, std::span<std::byte> more) {
    return guarded([&] {
        const std::size_t got = count(received_in_, do_recv(bytes, more));
        const std::size_t first = std::min(got, bytes.size());
        remember(bytes.first(first));
        remember(more.first(got - first));
        return got;
    });
}

void Link::remember(std::span<const std::byte> bytes) noexcept {
    if (bytes.empty()) return;
    if (bytes.size() >= tail_.size()) {
        std::memcpy(tail_.data(), bytes.last(tail_.size()).data(), tail_.size());
        tail_size_ = tail_.size();
        return;
    }
    const std::size_t kept = std::min(tail_size_, tail_.size() - bytes.size());
    std::memmove(tail_.data(), tail_.data() + tail_size_ - kept, kept);
    std::memcpy(tail_.data() + kept, bytes.data(), bytes.size());
    tail_size_ = kept + bytes.size();
}

// FNV-1a over all bytes before the checksum.
std::uint64_t Link::checksum(const AbortNotice& notice) noexcept {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&notice);
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (std::size_t i = 0; i < offsetof(AbortNotice, checksum); ++i) {
        hash = (hash ^ bytes[i]) * 0x100000001b3U;
    }
    return hash;
}

void Link::check_alive() {
    guarded([this] { do_check_alive(); });
}

void Link::finish() noexcept {
    has_finished_ = true;
    do_finish();
}

void Link::send_abort_notice(std::uint64_t epoch, const AbortReason& reason) noexcept {
    if (has_finished_) return;
    has_finished_ = true;
    AbortNotice notice{};
    const auto text = cut_text(reason.message, notice.text.size());
    std::memcpy(notice.text.data(), text.data(), text.size());
    notice.length = text.size();
    const auto site = cut_text(reason.site, notice.site.size());
    std::memcpy(notice.site.data(), site.data(), site.size());
    notice.site_length = site.size();
    notice.kind = static_cast<std::int32_t>(reason.kind);
    notice.culprit = reason.culprit;
    notice.epoch = epoch;
    notice.checksum = checksum(notice);
    notice.magic = kMagic;
    try {
        // A working peer reads on and makes room at once. A peer that does not read gets no notice
        // and finds only the end of the stream.
        std::span<const std::byte> rest = std::as_bytes(std::span(&notice, 1));
        for (int bites = 0; bites < kRoomBites && !rest.empty(); ++bites) {
            const std::size_t taken = do_send(Parts(&rest, 1));
            rest = rest.subspan(taken);
            if (taken == 0) std::this_thread::sleep_for(kRoomBite);
        }
    } catch (const std::exception&) {  // also without memory for the text of a PeerLost
        broken_ = "the peer left";     // short: needs no memory
    }
    do_finish();
}

std::optional<AbortReason> Link::drain_for_notice(std::uint64_t epoch) noexcept {
    std::array<std::byte, kDrainBytes> drained{};
    bool has_ended = false;
    for (int reads = 0; reads < kDrainReads && !has_ended; ++reads) {
        try {
            const std::size_t got = do_recv(drained, {});
            if (got == 0) return std::nullopt;
            remember(std::span(drained).first(got));
        } catch (const std::exception&) {  // also without memory for the text of a PeerLost
            has_ended = true;
        }
    }
    AbortNotice notice{};
    if (!has_ended || tail_size_ < sizeof notice) return std::nullopt;
    std::memcpy(&notice, tail_.data() + tail_size_ - sizeof notice, sizeof notice);
    return read(notice, epoch);
}

std::optional<AbortReason> Link::peek_notice(std::uint64_t epoch, bool& is_final) noexcept {
    AbortNotice notice{};
    if (!has_ended()) return std::nullopt;
    const Peek peek = do_peek_tail(std::as_writable_bytes(std::span(&notice, 1)));
    if (peek == Peek::kUnclear) is_final = false;
    return peek == Peek::kFound ? read(notice, epoch) : std::nullopt;
}

std::optional<AbortReason> Link::read(const AbortNotice& notice, std::uint64_t epoch) noexcept {
    if (notice.magic != kMagic || notice.checksum != checksum(notice) || notice.epoch != epoch ||
        notice.length > notice.text.size() || notice.site_length > notice.site.size()) {
        return std::nullopt;
    }
    AbortReason reason{checked_kind(notice.kind), notice.culprit, kNoMemory};
    try {
        reason.message.assign(notice.text.data(), static_cast<std::size_t>(notice.length));
        reason.site.assign(notice.site.data(), static_cast<std::size_t>(notice.site_length));
    } catch (const std::bad_alloc&) {
        return reason;  // kind and culprit are known
    }
    return reason;
}

}  // namespace phalanx
