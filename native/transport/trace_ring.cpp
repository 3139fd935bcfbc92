// See trace_ring.hpp for why this is right.
#include "transport/trace_ring.hpp"

#include <algorithm>

namespace phalanx {

namespace {
// Open records in a row that are passed over: as many threads would be in operations at once.
constexpr int kTries = 64;
// Of a record that is overwritten while it is read; it is not again for another 4095 operations.
constexpr int kLooks = 4;
}  // namespace

void TraceRing::begin() noexcept {
    passed_over_.store(0, std::memory_order_relaxed);
    missed_.store(0, std::memory_order_relaxed);
    first_.store(next_.load(std::memory_order_acquire), std::memory_order_release);
}

TraceRing::Record* TraceRing::open(const Words& words) noexcept {
    const auto first = first_.load(std::memory_order_relaxed);
    for (int tries = 0; tries < kTries; ++tries) {
        const auto ticket = next_.fetch_add(1, std::memory_order_relaxed);
        Record& record = records_[ticket % kRecords];
        auto seen = record.stamp.load(std::memory_order_relaxed);
        const auto state = seen & kState;
        const bool is_taken = (state == kWriting || state == kOpen) && seen >> 2 >= first;
        if (!is_taken && seen >> 2 <= ticket &&
            record.stamp.compare_exchange_strong(seen, ticket << 2 | kWriting,
                                                 std::memory_order_acq_rel)) {
            for (std::size_t word = 0; word < kWords; ++word) record.set(word, words[word]);
            record.stamp.store(ticket << 2 | kOpen, std::memory_order_release);
            // By the time it is wanted it will be here.
            __builtin_prefetch(&records_[(ticket + 1) % kRecords], 1);
            return &record;
        }
        passed_over_.fetch_add(1, std::memory_order_relaxed);
    }
    missed_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
}

bool TraceRing::look_at(const Record& record, std::uint64_t first, Seen& seen) noexcept {
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

void TraceRing::sort(std::vector<Seen>& found) {
    std::sort(found.begin(), found.end(),
              [](const Seen& one, const Seen& other) { return one.number < other.number; });
}

std::vector<TraceRing::Seen> TraceRing::read_from(std::uint64_t number) const {
    const auto first = first_.load(std::memory_order_acquire);
    const auto next = next_.load(std::memory_order_acquire);
    const auto made = next - first;
    const auto from = number > made ? 0 : number;
    const auto count = std::min(made - from, kRecords);
    std::vector<Seen> found;
    found.reserve(count);
    // The slots of these tickets; one of an older ticket is open still, and passed over.
    for (auto ticket = next - count; ticket != next; ++ticket) {
        Seen seen{};
        if (!look_at(records_[ticket % kRecords], first, seen)) continue;
        // What has come meanwhile is for the next look: else those before it were never seen.
        if (seen.number >= from && seen.number < made) found.push_back(seen);
    }
    sort(found);
    return found;
}

std::vector<TraceRing::Seen> TraceRing::read(std::uint64_t& dropped) const {
    const auto first = first_.load(std::memory_order_acquire);
    std::vector<Seen> found;
    found.reserve(kRecords);
    for (const Record& record : records_) {
        Seen seen{};
        if (look_at(record, first, seen)) found.push_back(seen);
    }
    sort(found);
    const auto made = next_.load(std::memory_order_acquire) - first -
                      passed_over_.load(std::memory_order_relaxed) +
                      missed_.load(std::memory_order_relaxed);
    dropped = made > found.size() ? made - found.size() : 0;
    return found;
}

}  // namespace phalanx
