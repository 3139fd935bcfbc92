// Lay out the control page: header, word; by slot doorbells, activities, holds, sites and
// heartbeats; a record per author; totals; then by slot tallies, let-in messages, bytes on wires
// and traces. This is only address space: pages that no group uses are never touched.
#include "shm/control_page.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/clock.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kMagic = 0x31'65'67'61'70'78'6c'70;  // "plxpage1"
constexpr std::uint32_t kVersion = 7;
constexpr std::size_t kWordAt = kCacheLine;
constexpr std::size_t kPartsAt = 2 * kCacheLine;

// Most yields to wait for another thread of the same author to finish its record.
constexpr int kClaimPatience = 1000;
// Longest such wait: if other processes want the core, each yield may take a whole time slice.
constexpr std::chrono::milliseconds kMostPatience{50};

std::uint64_t pack(std::uint64_t epoch, int author) noexcept {
    return epoch << 16 | (static_cast<std::uint64_t>(author) + 1);
}

void check_slots(int slots, int author) {
    if (slots < 1 || slots > ControlPage::kMaxSlots) {
        throw UsageError("a control page has 1 to " + std::to_string(ControlPage::kMaxSlots) +
                         " slots, not " + std::to_string(slots));
    }
    if (author < 0 || author > slots) {
        throw UsageError("author " + std::to_string(author) + " is not one of 0 to " +
                         std::to_string(slots));
    }
}

int ranks_of(int slots, int ranks) {
    if (ranks < 0 || ranks > ControlPage::kMaxRanks) {
        throw UsageError("a control page knows at most " + std::to_string(ControlPage::kMaxRanks) +
                         " ranks, not " + std::to_string(ranks));
    }
    return std::max(slots, ranks);
}

// Text in words of shared memory, each stored and loaded at once.
void store_text(std::atomic<std::uint64_t>* words, std::string_view text) noexcept {
    for (std::size_t at = 0; at < text.size(); at += 8) {
        std::uint64_t piece = 0;
        std::memcpy(&piece, text.data() + at, std::min<std::size_t>(8, text.size() - at));
        words[at / 8].store(piece, std::memory_order_release);
    }
}

std::string load_text(const std::atomic<std::uint64_t>* words, std::size_t nbytes) {
    std::string text(nbytes, '\0');
    for (std::size_t at = 0; at < nbytes; at += 8) {
        const std::uint64_t piece = words[at / 8].load(std::memory_order_acquire);
        std::memcpy(text.data() + at, &piece, std::min<std::size_t>(8, nbytes - at));
    }
    return text;
}

}  // namespace

std::string_view cut_text(std::string_view text, std::size_t limit) noexcept {
    if (text.size() <= limit) return text;
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0U) == 0x80U) --limit;
    return text.substr(0, limit);
}

ControlPage::Layout ControlPage::layout_of(int slots, int ranks) {
    const auto count = static_cast<std::size_t>(slots);
    const auto n_wires = count * static_cast<std::size_t>(ranks) * 2;
    std::size_t end = kPartsAt;
    const auto add = [&](std::size_t nbytes) {
        const auto begin = end;
        end += (nbytes + kCacheLine - 1) / kCacheLine * kCacheLine;
        return begin;
    };
    Layout its{};
    its.doorbells = add(count * sizeof(Doorbell));
    its.activities = add(count * sizeof(Activity));
    its.holds = add(count * sizeof(Hold));
    its.call_sites = add(count * sizeof(CallSiteTable));
    its.heartbeat_slots = add(count * sizeof(HeartbeatSlot));
    its.records = add((count + 1) * sizeof(AbortRecord));
    its.totals = add(count * sizeof(TrafficCounters));
    its.tallies = add(n_wires * kActivityChannels * sizeof(MessageProgress));
    its.let_in = add(n_wires * kActivityChannels * sizeof(LetIn));
    its.wires = add(n_wires * sizeof(LinkBytes));
    its.traces = add(count * sizeof(TraceRing));
    its.end = end;
    return its;
}

std::size_t ControlPage::nbytes(int slots, int ranks) {
    check_slots(slots, 0);
    return layout_of(slots, ranks_of(slots, ranks)).end;
}

void ControlPage::write_header(std::byte* base, int slots, int ranks) noexcept {
    const PageHeader header{kMagic, kVersion, static_cast<std::uint32_t>(slots),
                            static_cast<std::uint32_t>(std::max(slots, ranks))};
    std::memcpy(base, &header, sizeof header);
}

void ControlPage::format(int fd, int slots, int ranks) {
    grow_file(fd, nbytes(slots, ranks));
    const std::size_t size = layout_of(slots, slots).tallies;
    const Mapping mapping(fd, size, Access::kReadWrite);
    std::memset(mapping.data(), 0, size);  // begin_group clears the tallies
    write_header(mapping.data(), slots, ranks);
}

ControlPage::PageHeader ControlPage::read_header(const std::byte* base, int slots) {
    PageHeader header{};
    std::memcpy(&header, base, sizeof header);
    if (header.magic != kMagic || header.version != kVersion) {
        throw UsageError("this memory is not a control page of this version");
    }
    if (header.slots != static_cast<std::uint32_t>(slots)) {
        throw UsageError("the control page has " + std::to_string(header.slots) + " slots, not " +
                         std::to_string(slots));
    }
    return header;
}

void ControlPage::bind(std::byte* base, int slots, int author) {
    check_slots(slots, author);
    base_ = base;
    slots_ = slots;
    ranks_ = static_cast<int>(read_header(base, slots).ranks);
    author_ = author;
    word_ = reinterpret_cast<std::atomic<std::uint64_t>*>(base + kWordAt);
    const Layout its = layout_of(slots, ranks_);
    doorbells_ = reinterpret_cast<Doorbell*>(base + its.doorbells);
    activities_ = reinterpret_cast<Activity*>(base + its.activities);
    holds_ = reinterpret_cast<Hold*>(base + its.holds);
    call_sites_ = reinterpret_cast<CallSiteTable*>(base + its.call_sites);
    heartbeat_slots_ = reinterpret_cast<HeartbeatSlot*>(base + its.heartbeat_slots);
    records_ = reinterpret_cast<AbortRecord*>(base + its.records);
    totals_ = reinterpret_cast<TrafficCounters*>(base + its.totals);
    tallies_ = reinterpret_cast<MessageProgress*>(base + its.tallies);
    let_in_ = reinterpret_cast<LetIn*>(base + its.let_in);
    wires_ = reinterpret_cast<LinkBytes*>(base + its.wires);
    traces_ = reinterpret_cast<TraceRing*>(base + its.traces);
}

LinkBytes* ControlPage::wire(int slot, int peer, bool is_recv) const noexcept {
    if (peer >= ranks_) return nullptr;
    return wires_ +
           (static_cast<std::size_t>(slot) * static_cast<std::size_t>(ranks_) +
            static_cast<std::size_t>(peer)) *
               2 +
           (is_recv ? 1 : 0);
}

std::size_t ControlPage::lane(int slot, int channel, int peer, bool is_recv) const noexcept {
    const auto row = static_cast<std::size_t>(slot) * kActivityChannels +
                     static_cast<std::size_t>(channel % kActivityChannels);
    const auto column = static_cast<std::size_t>(peer) * 2 + (is_recv ? 1 : 0);
    return row * static_cast<std::size_t>(ranks_) * 2 + column;
}

MessageProgress* ControlPage::tally(int slot, int channel, int peer, bool is_recv) const noexcept {
    return peer >= ranks_ ? nullptr : tallies_ + lane(slot, channel, peer, is_recv);
}

LetIn* ControlPage::let_in(int slot, int channel, int peer, bool is_recv) const noexcept {
    return peer >= ranks_ ? nullptr : let_in_ + lane(slot, channel, peer, is_recv);
}

void ControlPage::begin_group(int slot, int channel, std::uint64_t epoch,
                              std::uint64_t tag) noexcept {
    Activity& its = activity(slot);
    its.of(channel).tag.store(0, std::memory_order_seq_cst);  // marks the numbers as invalid
    MessageProgress* const first = tally(slot, channel, 0, false);
    LetIn* const let_in_first = let_in(slot, channel, 0, false);
    for (int i = 0; i < 2 * ranks_; ++i) {
        first[i].store(0, std::memory_order_release);
        let_in_first[i].store(0, std::memory_order_release);
    }
    hold(slot).until[channel % kActivityChannels].store(0);
    its.begin_group(channel, epoch, tag);
}

ControlPage::ControlPage(int fd, int slots, int author, std::span<const int> wake_fds) {
    const std::size_t least = layout_of(slots, slots).tallies;
    if (file_size(fd) < least) throw UsageError("the control page's file is too small");
    mapping_ = Mapping(fd, least, Access::kReadWrite);
    const std::size_t size =
        nbytes(slots, static_cast<int>(read_header(mapping_.data(), slots).ranks));
    if (file_size(fd) < size) throw UsageError("the control page's file is too small");
    mapping_ = Mapping(fd, size, Access::kReadWrite);
    bind(mapping_.data(), slots, author);
    // A predecessor in this slot may have been killed while it slept.
    if (author < slots) {
        doorbells_[author].sleeping.store(0, std::memory_order_seq_cst);
        activities_[author].pair.store(0, std::memory_order_release);
        activities_[author].wait.number.store(0, std::memory_order_release);
        holds_[author].release();
        heartbeat_slots_[author].beats.store(0, std::memory_order_release);
        for (auto& channel : activities_[author].channels) {
            channel.tag.store(0, std::memory_order_release);
            channel.current.store(0, std::memory_order_release);
        }
        for (CallSite& site : call_sites_[author].sites) site.clear();
        records_[author].claim.store(0, std::memory_order_release);
        traces_[author].begin();
    }
    for (const int wake : wake_fds) {
        if (wake >= 0) wake_fds_.push_back(Fd::duplicate(wake));
    }
    if (author < slots) heartbeat_ = std::make_unique<Heartbeat>(heartbeat_slots_[author]);
}

std::optional<std::uint64_t> Activity::begun(int number) noexcept {
    constexpr int kLooks = 8;  // retries if an operation begins or ends meanwhile
    Channel& channel = of(number);
    for (int look = 0; look < kLooks; ++look) {
        const auto now = channel.current.load(std::memory_order_seq_cst);
        const auto last = channel.done.load(std::memory_order_seq_cst);
        const auto waiting = channel.queued.load(std::memory_order_seq_cst);
        if (channel.current.load(std::memory_order_seq_cst) != now) continue;
        if (waiting == 0) return seq_of(now != 0 ? now : last);
        if (now == 0) return std::nullopt;
        return seq_of(now) + waiting - 1;  // the present operation is one of the queued ones
    }
    return std::nullopt;
}

ControlPage ControlPage::in_process(int slots, int author, int ranks) {
    ControlPage page;
    page.mapping_ = Mapping::anonymous(nbytes(slots, ranks));
    write_header(page.mapping_.data(), slots, ranks);
    page.bind(page.mapping_.data(), slots, author);
    return page;
}

ControlPage ControlPage::view_as(int author) const {
    ControlPage page;
    page.bind(base_, slots_, author);
    return page;
}

void ControlPage::write(AbortRecord& record, std::uint64_t epoch,
                        const AbortReason& reason) noexcept {
    record.valid.store(0, std::memory_order_seq_cst);
    const auto text = cut_text(reason.message, kMaxText);
    record.kind.store(static_cast<std::int32_t>(reason.kind), std::memory_order_release);
    record.culprit.store(reason.culprit, std::memory_order_release);
    record.length.store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
    store_text(record.text, text);
    record.valid.store(epoch, std::memory_order_release);
}

std::optional<AbortReason> ControlPage::read(const AbortRecord& record, std::uint64_t epoch) {
    if (record.valid.load(std::memory_order_acquire) != epoch) return std::nullopt;
    AbortReason reason;
    reason.kind = checked_kind(record.kind.load(std::memory_order_acquire));
    reason.culprit = record.culprit.load(std::memory_order_acquire);
    reason.message =
        load_text(record.text,
                  std::min<std::size_t>(record.length.load(std::memory_order_acquire), kMaxText));
    if (record.valid.load(std::memory_order_acquire) != epoch) return std::nullopt;
    return reason;
}

bool ControlPage::abort(std::uint64_t epoch, const AbortReason& reason) noexcept {
    AbortRecord& record = records_[author_];
    const auto give_up_at = Clock::now() + kMostPatience;
    const auto claim = [&] {
        std::uint32_t unclaimed = 0;
        return record.claim.compare_exchange_strong(unclaimed, 1);
    };
    bool is_claimed = claim();
    for (int i = 0; i < kClaimPatience && !is_claimed && Clock::now() < give_up_at; ++i) {
        ::sched_yield();
        is_claimed = claim();
    }
    std::uint64_t seen = word_->load(std::memory_order_seq_cst);
    const bool is_first = seen >> 16 < epoch;
    // A record that the word already names must not change.
    if (is_first) write(record, epoch, reason);
    bool won = false;
    while (!won && seen >> 16 < epoch) {
        won = word_->compare_exchange_weak(seen, pack(epoch, author_), std::memory_order_seq_cst);
    }
    if (is_claimed) record.claim.store(0, std::memory_order_release);
    if (!won) return false;
    // Every sleeper checks the word after it has said that it sleeps, so none is missed (Doorbell).
    wake_sleepers();
    for (const Fd& wake : wake_fds_) signal_wakeup(wake.get());
    return true;
}

std::optional<AbortReason> ControlPage::reason(std::uint64_t epoch) const {
    std::uint64_t word = word_->load(std::memory_order_seq_cst);
    if (word >> 16 < epoch) return std::nullopt;
    // Retry: the same author may be writing a later epoch's record at this moment.
    const auto give_up_at = Clock::now() + kMostPatience;
    for (int look = 0; look < kClaimPatience && Clock::now() < give_up_at; ++look) {
        const auto author = (word & 0xFFFF) - 1;
        if (author <= static_cast<std::uint64_t>(slots_)) {
            if (auto reason = read(records_[author], word >> 16)) return reason;
        }
        ::sched_yield();
        word = word_->load(std::memory_order_seq_cst);
    }
    return AbortReason{AbortKind::kError, -1, "unknown"};
}

// Implement the sites on the control page: call sites of ranks' operations. See control_page.hpp.

namespace {

// Most yields while another thread writes the same site.
constexpr int kPatience = 1000;

bool is_same_operation(std::uint64_t one, std::uint64_t other) noexcept {
    if (Activity::is_message(one) || Activity::is_message(other)) return one == other;
    return Activity::seq_of(one) == Activity::seq_of(other);
}

}  // namespace

void CallSite::clear() noexcept {
    word.store(0, std::memory_order_release);
    version.store(0, std::memory_order_seq_cst);
}

void CallSite::write(std::uint64_t its_tag, std::uint64_t its_word,
                     std::string_view its_text) noexcept {
    std::uint64_t seen = version.load(std::memory_order_relaxed);
    for (int look = 0; seen % 2 != 0 ||
                       !version.compare_exchange_strong(seen, seen + 1, std::memory_order_acq_rel);
         ++look) {
        if (look == kPatience) return;
        ::sched_yield();
        seen = version.load(std::memory_order_relaxed);
    }
    its_text = cut_text(its_text, kMaxText);
    tag.store(its_tag, std::memory_order_release);
    word.store(its_word, std::memory_order_release);
    length.store(its_text.size(), std::memory_order_release);
    store_text(text, its_text);
    version.store(seen + 2, std::memory_order_seq_cst);
}

std::optional<CallSite::Published> CallSite::read() const {
    const std::uint64_t before = version.load(std::memory_order_seq_cst);
    if (before % 2 != 0) return std::nullopt;
    Published seen{tag.load(std::memory_order_acquire), word.load(std::memory_order_acquire), {}};
    if (seen.word == 0) return std::nullopt;
    const auto size = std::min<std::uint64_t>(length.load(std::memory_order_acquire), kMaxText);
    seen.text = load_text(text, static_cast<std::size_t>(size));
    if (version.load(std::memory_order_acquire) != before) return std::nullopt;
    return seen;
}

void ControlPage::show_site(int slot, int channel, std::uint64_t tag, std::uint64_t word,
                            std::string_view text) const noexcept {
    const int number = 2 * channel + (Activity::is_message(word) ? 1 : 0);
    call_sites_[slot].sites[number % CallSiteTable::kCount].write(tag, word, text);
}

void ControlPage::wake_sleepers() const noexcept {
    for (int slot = 0; slot < slots_; ++slot) doorbells_[slot].ring_if_sleeping();
}

std::optional<std::string> ControlPage::site(int slot, std::uint64_t tag,
                                             std::uint64_t word) const {
    for (const CallSite& site : call_sites_[slot].sites) {
        auto seen = site.read();
        if (seen && seen->tag == tag && is_same_operation(seen->word, word)) return seen->text;
    }
    return std::nullopt;
}

std::optional<CallSite::Published> ControlPage::current_site(int slot) const {
    Activity& activity = activities_[slot];
    for (const CallSite& site : call_sites_[slot].sites) {
        auto seen = site.read();
        if (!seen || seen->text.empty()) continue;
        if (Activity::is_message(seen->word)) {
            if (activity.pair.load(std::memory_order_acquire) == seen->word) return seen;
            continue;
        }
        for (int number = 0; number < kActivityChannels; ++number) {
            const auto& channel = activity.of(number);
            if (channel.tag.load(std::memory_order_acquire) == seen->tag &&
                channel.current.load(std::memory_order_acquire) == seen->word) {
                return seen;
            }
        }
    }
    return std::nullopt;
}

}  // namespace phalanx
