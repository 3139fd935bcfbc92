// See trace_summary.hpp.
#include "monitoring/trace_summary.hpp"

#include <algorithm>
#include <array>

#include "collectives/operation/op.hpp"
#include "monitoring/recorder.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kSeq = (std::uint64_t{1} << 40) - 1;

// A record written by another process, with numbers clamped for safe arithmetic.
class UntrustedRecord {
  public:
    explicit UntrustedRecord(const TraceRing::Snapshot& seen) noexcept : seen_(&seen) {}

    [[nodiscard]] const TraceRing::Words& words() const noexcept { return seen_->words; }
    [[nodiscard]] std::int64_t number() const noexcept { return clamp_untrusted(seen_->number); }
    [[nodiscard]] bool is_open() const noexcept { return seen_->is_open; }
    [[nodiscard]] int op() const noexcept { return part(0, 0xFF); }
    [[nodiscard]] int failure() const noexcept { return part(kRecordFailure, 0xFF); }
    [[nodiscard]] int peer() const noexcept { return part(40, 0xFFFF); }
    [[nodiscard]] std::int64_t seq() const noexcept {
        return static_cast<std::int64_t>(words()[kRecordPlace] & kSeq);
    }
    [[nodiscard]] std::int64_t nbytes() const noexcept {
        return clamp_untrusted(words()[kRecordBytes]);
    }
    [[nodiscard]] std::uint64_t group() const noexcept { return words()[kRecordTag]; }
    [[nodiscard]] std::int64_t entered() const noexcept {
        return clamp_untrusted(words()[kRecordEntered]);
    }
    [[nodiscard]] std::int64_t arrived() const noexcept {
        return clamp_untrusted(words()[kRecordArrived]);
    }
    [[nodiscard]] std::int64_t ended() const noexcept {
        return clamp_untrusted(words()[kRecordEnded]);
    }

    [[nodiscard]] bool is(OpKind kind) const noexcept { return op() == static_cast<int>(kind); }
    [[nodiscard]] bool is_message() const noexcept {
        return is(OpKind::kSend) || is(OpKind::kRecv);
    }
    [[nodiscard]] std::int64_t inside() const noexcept {
        return std::max<std::int64_t>(0, ended() - entered());
    }
    [[nodiscard]] std::int64_t waited() const noexcept {
        return arrived() == 0 ? 0 : std::max<std::int64_t>(0, arrived() - entered());
    }

  private:
    [[nodiscard]] int part(int shift, std::uint64_t mask) const noexcept {
        return static_cast<int>(words()[kRecordWhat] >> shift & mask);
    }
    const TraceRing::Snapshot* seen_;
};

OperationSummary single(const UntrustedRecord& record) {
    OperationSummary span;
    span.number = record.number();
    span.op = record.op();
    span.begun = record.entered();
    span.wait = record.waited();
    span.nbytes = record.nbytes();
    span.seq = record.seq();
    span.group = record.group();
    if (record.is(OpKind::kBroadcast) || record.is_message()) span.peer = record.peer();
    if (!record.is_open()) {
        span.done = record.ended();
        span.inside = record.inside();
        span.failure = record.failure();
    } else if (record.arrived() == 0 && !record.is(OpKind::kSend)) {
        span.wait = -1;  // as far as its record tells, a sent message waits for no rank
    }
    return span;
}

// Merges finished operations of one slice of time.
OperationSummary together(std::span<const UntrustedRecord> part) {
    if (part.size() == 1) return single(part.front());
    const UntrustedRecord& newest = part.back();
    OperationSummary span = single(newest);
    span.peer = -1;
    span.count = static_cast<std::int64_t>(part.size());
    span.inside = span.wait = span.nbytes = 0;
    // Time per kind of operation, at least 1, so that an operation without duration counts too.
    std::array<std::int64_t, 256> times{};
    for (const UntrustedRecord& record : part) {
        span.begun = std::min(span.begun, record.entered());
        span.done = std::max(span.done, record.ended());
        span.inside = add_untrusted(span.inside, record.inside());
        span.wait = add_untrusted(span.wait, record.waited());
        span.nbytes = add_untrusted(span.nbytes, record.nbytes());
        span.failure = std::max(span.failure, record.failure());
        if (record.group() != newest.group()) span.group = 0;
        auto& time = times[static_cast<std::size_t>(record.op())];
        time = add_untrusted(time, add_untrusted(record.inside(), 1));
    }
    const auto n_kinds = std::count_if(times.begin(), times.end(), [](auto time) { return time; });
    span.kinds = static_cast<int>(n_kinds) - 1;
    if (span.kinds > 0) {
        span.seq = 0;
        const auto longest = std::max_element(times.begin(), times.end());
        span.op = static_cast<int>(longest - times.begin());
    }
    return span;
}

// Merges neighbours: each span is an equal slice of the total time.
void merge_by_time(std::vector<UntrustedRecord> over, std::vector<OperationSummary>& spans) {
    auto start = kMaxUntrusted;
    std::int64_t last = 0;
    bool is_in_order = true;
    for (const UntrustedRecord& record : over) {
        const auto entered = record.entered();
        is_in_order = is_in_order && entered >= last;
        start = std::min(start, entered);
        last = std::max(last, entered);
    }
    const auto length = std::max<std::int64_t>(1, last - start);
    const auto most = static_cast<std::int64_t>(length > kPauseNs ? kMostFirst : kMostSpans);
    const int shift = length >> 56 != 0 ? 6 : 0;  // over two years: only corrupt records have that
    const auto whole = (length >> shift) + 1;
    const auto scaled = [=](const UntrustedRecord& record) {
        return ((record.entered() - start) >> shift) * most;
    };
    if (!is_in_order) {  // several threads record out of order
        std::stable_sort(over.begin(), over.end(),
                         [&](const UntrustedRecord& one, const UntrustedRecord& other) {
                             return scaled(one) / whole < scaled(other) / whole;
                         });
    }
    for (auto begin = over.begin(); begin != over.end();) {
        // Avoids a division per record, which would cost a third of a look.
        const auto until = (scaled(*begin) / whole + 1) * whole;
        const auto end = std::find_if(begin, over.end(), [&](const UntrustedRecord& record) {
            return scaled(record) >= until;
        });
        spans.push_back(together({begin, end}));
        begin = end;
    }
}

std::vector<CollectiveEntry> entries_of(std::span<const UntrustedRecord> fresh) {
    std::vector<CollectiveEntry> entries;
    entries.reserve(std::min(fresh.size(), kMostEntries));
    for (auto i = fresh.size(); i-- > 0 && entries.size() < kMostEntries;) {
        if (fresh[i].is_message()) continue;
        const auto& words = fresh[i].words();
        entries.push_back({words[kRecordTag], words[kRecordPlace], words[kRecordEntered],
                           fresh[i].is_open() ? 0 : words[kRecordEnded]});
    }
    std::reverse(entries.begin(), entries.end());
    return entries;
}

}  // namespace

std::uint64_t TraceSummarizer::since() const noexcept {
    return open_.empty() ? next_ : std::min(next_, open_.front());
}

NewSpans TraceSummarizer::read(std::span<const TraceRing::Snapshot> records) {
    NewSpans found;
    if (records.empty()) return found;
    const TraceRing::Snapshot& newest = records.back();
    if (newest.number + 1 < next_) {  // the rank's process was replaced
        next_ = 0;
        open_.clear();
    }
    const bool is_first = next_ == 0;
    const auto until = clamp_untrusted(newest.words[kRecordEntered]);
    std::vector<UntrustedRecord> fresh;
    std::vector<UntrustedRecord> over;
    std::vector<std::uint64_t> open;
    fresh.reserve(records.size());
    over.reserve(records.size());
    bool is_known = true;  // all records until now were read
    for (const auto& its : records) {
        const bool is_next = its.number >= next_;
        // At the first look, overwritten records are too old to be reported.
        if (is_known && is_next && !is_first) found.missed = its.number - next_;
        is_known = is_known && !is_next;
        const UntrustedRecord record(its);
        // A running operation is reported however old: another thread may have begun more since.
        const bool is_recent = !is_first || its.is_open || record.entered() >= until - kFirstNs;
        const bool ran = std::binary_search(open_.begin(), open_.end(), its.number);
        if (!(is_next && is_recent) && !ran) continue;
        fresh.push_back(record);
        if (its.is_open) {
            open.push_back(its.number);
            found.spans.push_back(single(record));
        } else {
            over.push_back(record);
        }
    }
    next_ = std::max(next_, newest.number + 1);
    std::sort(open.begin(), open.end());
    open_ = std::move(open);
    found.entries = entries_of(fresh);
    if (over.size() > kMostSpans) {
        merge_by_time(std::move(over), found.spans);
    } else {
        for (const UntrustedRecord& record : over) found.spans.push_back(single(record));
    }
    return found;
}

}  // namespace phalanx
