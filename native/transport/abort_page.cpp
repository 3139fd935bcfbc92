// The layout of the abort page: header, word, doorbells, activities, sites and pulses by slot, a
// record per author, totals, and then, by slot, tallies, bytes on wires and traces. These are
// address space: what no group counts in is never touched.
#include "transport/abort_page.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/deadline.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kMagic = 0x31'65'67'61'70'78'6c'70;  // "plxpage1"
constexpr std::uint32_t kVersion = 6;
constexpr std::size_t kWordAt = kCacheLine;
constexpr std::size_t kBellsAt = 2 * kCacheLine;

// How long one waits for another thread of the same author to finish its record, in yields.
constexpr int kClaimPatience = 1000;
// And at most: where other processes want the core, each yield may take as long as a time slice.
constexpr std::chrono::milliseconds kMostPatience{50};

std::uint64_t pack(std::uint64_t epoch, int author) noexcept {
    return epoch << 16 | (static_cast<std::uint64_t>(author) + 1);
}

void check_slots(int slots, int author) {
    if (slots < 1 || slots > AbortPage::kMaxSlots) {
        throw UsageError("an abort page has 1 to " + std::to_string(AbortPage::kMaxSlots) +
                         " slots, not " + std::to_string(slots));
    }
    if (author < 0 || author > slots) {
        throw UsageError("author " + std::to_string(author) + " is not one of 0 to " +
                         std::to_string(slots));
    }
}

int ranks_of(int slots, int ranks) {
    if (ranks < 0 || ranks > AbortPage::kMaxRanks) {
        throw UsageError("an abort page knows at most " + std::to_string(AbortPage::kMaxRanks) +
                         " ranks, not " + std::to_string(ranks));
    }
    return std::max(slots, ranks);
}

constexpr std::size_t round_up(std::size_t nbytes) {
    return (nbytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// Where the tallies begin.
std::size_t nbytes_before_tallies(int slots, std::size_t record) {
    const auto count = static_cast<std::size_t>(slots);
    return kBellsAt + round_up((count + 1) * record) +
           count * (sizeof(Doorbell) + sizeof(Activity) + sizeof(Sites) + sizeof(Pulse) +
                    sizeof(Totals));
}

std::size_t nbytes_of_tallies(int slots, int ranks) {
    return static_cast<std::size_t>(slots) * kActivityChannels * static_cast<std::size_t>(ranks) *
           2 * sizeof(Tally);
}

std::size_t nbytes_of_wires(int slots, int ranks) {
    return round_up(static_cast<std::size_t>(slots) * static_cast<std::size_t>(ranks) * 2 *
                    sizeof(WireBytes));
}

}  // namespace

std::string_view cut_text(std::string_view text, std::size_t limit) noexcept {
    if (text.size() <= limit) return text;
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0U) == 0x80U) --limit;
    return text.substr(0, limit);
}

std::size_t AbortPage::nbytes(int slots, int ranks) {
    check_slots(slots, 0);
    const int known = ranks_of(slots, ranks);
    return nbytes_before_tallies(slots, sizeof(Record)) + nbytes_of_tallies(slots, known) +
           nbytes_of_wires(slots, known) + static_cast<std::size_t>(slots) * sizeof(TraceRing);
}

void AbortPage::write_header(std::byte* base, int slots, int ranks) noexcept {
    const Header header{kMagic, kVersion, static_cast<std::uint32_t>(slots),
                        static_cast<std::uint32_t>(std::max(slots, ranks))};
    std::memcpy(base, &header, sizeof header);
}

void AbortPage::format(int fd, int slots, int ranks) {
    grow_file(fd, nbytes(slots, ranks));
    const std::size_t size = nbytes_before_tallies(slots, sizeof(Record));
    const Mapping mapping(fd, size, Access::kReadWrite);
    std::memset(mapping.data(), 0, size);  // tallies are cleared as groups begin
    write_header(mapping.data(), slots, ranks);
}

AbortPage::Header AbortPage::read_header(const std::byte* base, int slots) {
    Header header{};
    std::memcpy(&header, base, sizeof header);
    if (header.magic != kMagic || header.version != kVersion) {
        throw UsageError("this memory is not an abort page of this version");
    }
    if (header.slots != static_cast<std::uint32_t>(slots)) {
        throw UsageError("the abort page has " + std::to_string(header.slots) + " slots, not " +
                         std::to_string(slots));
    }
    return header;
}

void AbortPage::bind(std::byte* base, int slots, int author) {
    check_slots(slots, author);
    base_ = base;
    slots_ = slots;
    ranks_ = static_cast<int>(read_header(base, slots).ranks);
    author_ = author;
    word_ = reinterpret_cast<std::atomic<std::uint64_t>*>(base + kWordAt);
    doorbells_ = reinterpret_cast<Doorbell*>(base + kBellsAt);
    const auto count = static_cast<std::size_t>(slots);
    std::byte* at = base + kBellsAt + count * sizeof(Doorbell);
    activities_ = reinterpret_cast<Activity*>(at);
    at += count * sizeof(Activity);
    sites_ = reinterpret_cast<Sites*>(at);
    at += count * sizeof(Sites);
    pulses_ = reinterpret_cast<Pulse*>(at);
    at += count * sizeof(Pulse);
    records_ = reinterpret_cast<Record*>(at);
    at += round_up((count + 1) * sizeof(Record));
    totals_ = reinterpret_cast<Totals*>(at);
    at += count * sizeof(Totals);
    tallies_ = reinterpret_cast<Tally*>(at);
    at += nbytes_of_tallies(slots, ranks_);
    wires_ = reinterpret_cast<WireBytes*>(at);
    at += nbytes_of_wires(slots, ranks_);
    traces_ = reinterpret_cast<TraceRing*>(at);
}

WireBytes* AbortPage::wire(int slot, int peer, bool is_recv) const noexcept {
    if (peer >= ranks_) return nullptr;
    return wires_ +
           (static_cast<std::size_t>(slot) * static_cast<std::size_t>(ranks_) +
            static_cast<std::size_t>(peer)) *
               2 +
           (is_recv ? 1 : 0);
}

Tally* AbortPage::tally(int slot, int channel, int peer, bool is_recv) const noexcept {
    if (peer >= ranks_) return nullptr;
    const auto row = static_cast<std::size_t>(slot) * kActivityChannels +
                     static_cast<std::size_t>(channel % kActivityChannels);
    const auto column = static_cast<std::size_t>(peer) * 2 + (is_recv ? 1 : 0);
    return tallies_ + row * static_cast<std::size_t>(ranks_) * 2 + column;
}

void AbortPage::begin_group(int slot, int channel, std::uint64_t epoch,
                            std::uint64_t tag) noexcept {
    Activity& its = activity(slot);
    its.of(channel).tag.store(0, std::memory_order_seq_cst);  // its numbers are nobody's meanwhile
    Tally* const first = tally(slot, channel, 0, false);
    for (int i = 0; i < 2 * ranks_; ++i) first[i].store(0, std::memory_order_release);
    its.begin_group(channel, epoch, tag);
}

AbortPage::AbortPage(int fd, int slots, int author, std::span<const int> wake_fds) {
    const std::size_t least = nbytes_before_tallies(slots, sizeof(Record));
    if (file_size(fd) < least) throw UsageError("the abort page's file is too small");
    mapping_ = Mapping(fd, least, Access::kReadWrite);
    const std::size_t size =
        nbytes(slots, static_cast<int>(read_header(mapping_.data(), slots).ranks));
    if (file_size(fd) < size) throw UsageError("the abort page's file is too small");
    mapping_ = Mapping(fd, size, Access::kReadWrite);
    bind(mapping_.data(), slots, author);
    // A predecessor in this slot may have been killed while it slept.
    if (author < slots) {
        doorbells_[author].sleeping.store(0, std::memory_order_seq_cst);
        activities_[author].pair.store(0, std::memory_order_release);
        pulses_[author].beats.store(0, std::memory_order_release);
        for (auto& channel : activities_[author].channels) {
            channel.tag.store(0, std::memory_order_release);
            channel.current.store(0, std::memory_order_release);
        }
        for (Site& site : sites_[author].sites) site.clear();
        traces_[author].begin();
    }
    for (const int wake : wake_fds) {
        if (wake >= 0) wake_fds_.push_back(Fd::duplicate(wake));
    }
    if (author < slots) heart_ = std::make_unique<Heart>(pulses_[author]);
}

AbortPage AbortPage::in_process(int slots, int author, int ranks) {
    AbortPage page;
    page.mapping_ = Mapping::anonymous(nbytes(slots, ranks));
    write_header(page.mapping_.data(), slots, ranks);
    page.bind(page.mapping_.data(), slots, author);
    return page;
}

AbortPage AbortPage::view_as(int author) const {
    AbortPage page;
    page.bind(base_, slots_, author);
    return page;
}

void AbortPage::write(Record& record, std::uint64_t epoch, const Reason& reason) noexcept {
    record.valid.store(0, std::memory_order_seq_cst);
    const auto text = cut_text(reason.message, kMaxText);
    record.kind.store(static_cast<std::int32_t>(reason.kind), std::memory_order_release);
    record.culprit.store(reason.culprit, std::memory_order_release);
    record.length.store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
    for (std::size_t at = 0; at < text.size(); at += 8) {
        std::uint64_t piece = 0;
        std::memcpy(&piece, text.data() + at, std::min<std::size_t>(8, text.size() - at));
        record.text[at / 8].store(piece, std::memory_order_release);
    }
    record.valid.store(epoch, std::memory_order_release);
}

std::optional<Reason> AbortPage::read(const Record& record, std::uint64_t epoch) {
    if (record.valid.load(std::memory_order_acquire) != epoch) return std::nullopt;
    Reason reason;
    reason.kind = checked_kind(record.kind.load(std::memory_order_acquire));
    reason.culprit = record.culprit.load(std::memory_order_acquire);
    const std::size_t length =
        std::min<std::size_t>(record.length.load(std::memory_order_acquire), kMaxText);
    reason.message.resize(length);
    for (std::size_t at = 0; at < length; at += 8) {
        const std::uint64_t piece = record.text[at / 8].load(std::memory_order_acquire);
        std::memcpy(reason.message.data() + at, &piece, std::min<std::size_t>(8, length - at));
    }
    if (record.valid.load(std::memory_order_acquire) != epoch) return std::nullopt;
    return reason;
}

bool AbortPage::abort(std::uint64_t epoch, const Reason& reason) noexcept {
    Record& record = records_[author_];
    std::uint32_t unclaimed = 0;
    const auto give_up_at = Clock::now() + kMostPatience;
    for (int i = 0; i < kClaimPatience && !record.claim.compare_exchange_strong(unclaimed, 1) &&
                    Clock::now() < give_up_at;
         ++i) {
        unclaimed = 0;
        ::sched_yield();
    }
    std::uint64_t seen = word_->load(std::memory_order_seq_cst);
    const bool is_first = seen >> 16 < epoch;
    // A record that the word already names must stay as it is.
    if (is_first) write(record, epoch, reason);
    bool won = false;
    while (!won && seen >> 16 < epoch) {
        won = word_->compare_exchange_weak(seen, pack(epoch, author_), std::memory_order_seq_cst);
    }
    record.claim.store(0, std::memory_order_release);
    if (!won) return false;
    for (int slot = 0; slot < slots_; ++slot) doorbells_[slot].ring();
    for (const Fd& wake : wake_fds_) ring_wake(wake.get());
    return true;
}

std::optional<Reason> AbortPage::reason(std::uint64_t epoch) const {
    std::uint64_t word = word_->load(std::memory_order_seq_cst);
    if (word >> 16 < epoch) return std::nullopt;
    // A few looks: the same author may be writing down a later epoch at this moment.
    const auto give_up_at = Clock::now() + kMostPatience;
    for (int look = 0; look < kClaimPatience && Clock::now() < give_up_at; ++look) {
        const auto author = (word & 0xFFFF) - 1;
        if (author <= static_cast<std::uint64_t>(slots_)) {
            if (auto reason = read(records_[author], word >> 16)) return reason;
        }
        ::sched_yield();
        word = word_->load(std::memory_order_seq_cst);
    }
    return Reason{AbortKind::kError, -1, "unknown"};
}

}  // namespace phalanx
