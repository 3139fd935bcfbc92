// Implement trace_ring.hpp, which argues the concurrency.
#include "shm/trace_ring.hpp"

#include <sched.h>

#include <algorithm>

#include "base/cpu.hpp"

namespace phalanx {

namespace {
// Most open records in a row that are skipped: one for each thread that is in an operation.
constexpr std::uint64_t kTries = 64;
// Most looks at a taken claim, and the number of busy ones among them: some 3 us.
constexpr int kPatience = 200;
constexpr int kBusyLooks = 100;
// Tries to read a record that is overwritten meanwhile; the next overwrite is 4095 operations
// later.
constexpr int kLooks = 4;
}  // namespace

void TraceRing::begin() noexcept {
    passed_over_.store(0, std::memory_order_relaxed);
    missed_.store(0, std::memory_order_relaxed);
    claim_.store(0, std::memory_order_relaxed);  // its holder is gone
    // Skip one ticket, which the holder may have taken: its record stays as it is.
    const auto next = next_.load(std::memory_order_acquire) + 1;
    next_.store(next, std::memory_order_release);
    first_.store(next, std::memory_order_release);
}

bool TraceRing::claim() noexcept {
    for (int look = 0; look < kPatience; ++look) {
        if (claim_.load(std::memory_order_relaxed) == 0 &&
            claim_.exchange(1, std::memory_order_acquire) == 0) {
            return true;
        }
        // The holder needs some 10 ns. If it has lost its core, it may be waiting for this core.
        look < kBusyLooks ? cpu_relax() : static_cast<void>(::sched_yield());
    }
    return false;
}

// The caller holds the claim, so plain loads and stores suffice.
TraceRing::Record* TraceRing::take_next() noexcept {
    const auto first = first_.load(std::memory_order_relaxed);
    const auto next = next_.load(std::memory_order_relaxed);
    for (std::uint64_t passed = 0; passed < kTries; ++passed) {
        const auto ticket = next + passed;
        Record& record = records_[ticket % kRecords];
        // Acquire: orders all writes of the record's last writer before the new ones.
        const auto seen = record.stamp.load(std::memory_order_acquire);
        const auto state = seen & kState;
        if ((state == kWriting || state == kOpen) && seen >> 2 >= first) continue;
        record.stamp.store(ticket << 2 | kWriting, std::memory_order_relaxed);
        pass_to(ticket + 1, passed);
        // Prefetch the next record for the next call.
        __builtin_prefetch(&records_[(ticket + 1) % kRecords], 1);
        return &record;
    }
    pass_to(next + kTries, kTries);
    return nullptr;
}

void TraceRing::pass_to(std::uint64_t next, std::uint64_t passed) noexcept {
    if (passed != 0) {
        passed_over_.store(passed_over_.load(std::memory_order_relaxed) + passed,
                           std::memory_order_relaxed);
    }
    next_.store(next, std::memory_order_release);
}

TraceRing::Record* TraceRing::open(const Words& words) noexcept {
    Record* record = nullptr;
    if (claim()) {
        record = take_next();
        claim_.store(0, std::memory_order_release);
    }
    if (record == nullptr) {
        missed_.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    for (std::size_t word = 0; word < kWords; ++word) record->set(word, words[word]);
    record->pass_into(kOpen);
    return record;
}

bool TraceRing::look_at(const Record& record, std::uint64_t first, Snapshot& seen) noexcept {
    for (int look = 0; look < kLooks; ++look) {
        const auto stamp = record.stamp.load(std::memory_order_acquire);
        const auto state = stamp & kState;
        if ((state != kOpen && state != kClosed) || stamp >> 2 < first) return false;
        seen.number = (stamp >> 2) - first;
        seen.is_open = state == kOpen;
        for (std::size_t word = 0; word < kWords; ++word) {
            seen.words[word] = record.words[word].load(std::memory_order_acquire);
        }
        if (record.stamp.load(std::memory_order_relaxed) == stamp) return true;
    }
    return false;
}

std::vector<TraceRing::Snapshot> TraceRing::read_from(std::uint64_t number) const {
    const auto first = first_.load(std::memory_order_acquire);
    const auto next = next_.load(std::memory_order_acquire);
    const auto made = next - first;
    const auto from = number > made ? 0 : number;
    const auto count = std::min(made - from, kRecords);
    std::vector<Snapshot> found;
    found.reserve(count);
    // Look at the slots of these tickets. A slot with an older ticket is still open: skip it.
    for (auto ticket = next - count; ticket != next; ++ticket) {
        Snapshot seen{};
        if (!look_at(records_[ticket % kRecords], first, seen)) continue;
        // Leave newer records to the next read: otherwise records before them would be missed.
        if (seen.number >= from && seen.number < made) found.push_back(seen);
    }
    std::sort(found.begin(), found.end(),
              [](const Snapshot& one, const Snapshot& other) { return one.number < other.number; });
    return found;
}

std::vector<TraceRing::Snapshot> TraceRing::read(std::uint64_t& dropped) const {
    auto found = read_from(0);
    const auto made =
        next_.load(std::memory_order_acquire) - first_.load(std::memory_order_acquire) -
        passed_over_.load(std::memory_order_relaxed) + missed_.load(std::memory_order_relaxed);
    // The counters are read one by one during writes, so the difference may be negative.
    const auto more = static_cast<std::int64_t>(made - found.size());
    dropped = more > 0 ? static_cast<std::uint64_t>(more) : 0;
    return found;
}

}  // namespace phalanx
