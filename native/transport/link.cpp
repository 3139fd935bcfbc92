// What all links share: poisoning after a failure, and the last words.
#include "transport/link.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "transport/abort_page.hpp"

namespace phalanx {

namespace {
constexpr std::uint64_t kMagic = 0x32'64'72'6f'77'6c'70'fe;
constexpr std::size_t kDrainBytes = std::size_t{16} << 10;
// How long last words wait for room in a full link: a few scheduler ticks of 4 ms.
constexpr int kRoomBites = 20;
constexpr std::chrono::milliseconds kRoomBite{1};
constexpr int kDrainReads = 4096;  // 64 MiB: more than any socket holds
}  // namespace

void Link::give_up(const std::string& why) {
    const auto where = path();
    broken_ = where.empty() ? why : where + ": " + why;
    lose(broken_);
}

std::size_t Link::try_send(std::span<const std::byte> bytes) {
    return guarded([&] { return count(sent_in_, do_send(bytes)); });
}

std::size_t Link::try_recv(std::span<std::byte> bytes) {
    return guarded([&] {
        const std::size_t got = count(received_in_, do_recv(bytes));
        if (got > 0) remember(bytes.first(got));
        return got;
    });
}

std::size_t Link::try_send(Parts parts) {
    return guarded([&] { return count(sent_in_, do_send_parts(parts)); });
}

std::size_t Link::try_recv(std::span<std::byte> bytes, std::span<std::byte> more) {
    return guarded([&] {
        const std::size_t got = count(received_in_, do_recv_both(bytes, more));
        remember(bytes.first(std::min(got, bytes.size())));
        remember(more.first(got - std::min(got, bytes.size())));
        return got;
    });
}

std::size_t Link::do_send_parts(Parts parts) {
    std::size_t sent = 0;
    for (const auto part : parts) {
        const std::size_t taken = do_send(part);
        sent += taken;
        if (taken < part.size()) break;
    }
    return sent;
}

std::size_t Link::do_recv_both(std::span<std::byte> bytes, std::span<std::byte> more) {
    const std::size_t got = do_recv(bytes);
    if (got < bytes.size()) return got;
    try {
        return got + do_recv(more);
    } catch (const PeerLost&) {
        return got;  // what has come is good; the next call finds the end again
    }
}

void Link::remember(std::span<const std::byte> bytes) noexcept {
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

// FNV-1a over everything in front of the checksum.
std::uint64_t Link::checksum(const LastWords& words) noexcept {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&words);
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (std::size_t i = 0; i < offsetof(LastWords, checksum); ++i) {
        hash = (hash ^ bytes[i]) * 0x100000001b3U;
    }
    return hash;
}

void Link::check_alive() {
    guarded([this] { do_check_alive(); });
}

void Link::finish() noexcept {
    has_spoken_ = true;
    do_finish();
}

void Link::say_last_words(std::uint64_t epoch, const Reason& reason) noexcept {
    if (has_spoken_) return;
    has_spoken_ = true;
    LastWords words{};
    const auto text = cut_text(reason.message, words.text.size());
    std::memcpy(words.text.data(), text.data(), text.size());
    words.length = text.size();
    const auto site = cut_text(reason.site, words.site.size());
    std::memcpy(words.site.data(), site.data(), site.size());
    words.site_length = site.size();
    words.kind = static_cast<std::int32_t>(reason.kind);
    words.culprit = reason.culprit;
    words.epoch = epoch;
    words.checksum = checksum(words);
    words.magic = kMagic;
    try {
        // A peer that is at work reads on and makes room at once. One that does not read hears
        // nothing: it finds the end of the stream only.
        auto rest = std::as_bytes(std::span(&words, 1));
        for (int bites = 0; bites < kRoomBites && !rest.empty(); ++bites) {
            const std::size_t taken = do_send(rest);
            rest = rest.subspan(taken);
            if (taken == 0) std::this_thread::sleep_for(kRoomBite);
        }
    } catch (const Error&) {
        broken_ = "the peer left first";
    }
    do_finish();
}

std::optional<Reason> Link::hear_last_words(std::uint64_t epoch) noexcept {
    std::array<std::byte, kDrainBytes> drained{};
    bool has_ended = false;
    for (int reads = 0; reads < kDrainReads && !has_ended; ++reads) {
        try {
            const std::size_t got = do_recv(drained);
            if (got == 0) return std::nullopt;
            remember(std::span(drained).first(got));
        } catch (const Error&) {
            has_ended = true;
        }
    }
    LastWords words{};
    if (!has_ended || tail_size_ < sizeof words) return std::nullopt;
    std::memcpy(&words, tail_.data() + tail_size_ - sizeof words, sizeof words);
    return read(words, epoch);
}

std::optional<Reason> Link::overhear(std::uint64_t epoch) noexcept {
    LastWords words{};
    if (!has_ended() || !do_peek_tail(std::as_writable_bytes(std::span(&words, 1)))) {
        return std::nullopt;
    }
    return read(words, epoch);
}

std::optional<Reason> Link::read(const LastWords& words, std::uint64_t epoch) {
    if (words.magic != kMagic || words.checksum != checksum(words) || words.epoch != epoch ||
        words.length > words.text.size() || words.site_length > words.site.size()) {
        return std::nullopt;
    }
    return Reason{checked_kind(words.kind), words.culprit,
                  std::string(words.text.data(), static_cast<std::size_t>(words.length)),
                  std::string(words.site.data(), static_cast<std::size_t>(words.site_length))};
}

}  // namespace phalanx
