// The sites on the abort page: where ranks have called what they are in. See abort_page.hpp.
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "transport/abort_page.hpp"

namespace phalanx {

namespace {

// How often one looks whether another thread is through with the same site, in yields.
constexpr int kPatience = 1000;

bool is_same_operation(std::uint64_t one, std::uint64_t other) noexcept {
    if (Activity::is_message(one) || Activity::is_message(other)) return one == other;
    return Activity::seq_of(one) == Activity::seq_of(other);
}

}  // namespace

void Site::clear() noexcept {
    word.store(0, std::memory_order_release);
    version.store(0, std::memory_order_seq_cst);
}

void Site::write(std::uint64_t its_tag, std::uint64_t its_word,
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
    for (std::size_t at = 0; at < its_text.size(); at += 8) {
        std::uint64_t piece = 0;
        std::memcpy(&piece, its_text.data() + at, std::min<std::size_t>(8, its_text.size() - at));
        text[at / 8].store(piece, std::memory_order_release);
    }
    version.store(seen + 2, std::memory_order_seq_cst);
}

std::optional<Site::Seen> Site::read() const {
    const std::uint64_t before = version.load(std::memory_order_seq_cst);
    if (before % 2 != 0) return std::nullopt;
    Seen seen{tag.load(std::memory_order_acquire), word.load(std::memory_order_acquire), {}};
    if (seen.word == 0) return std::nullopt;
    const auto size = std::min<std::uint64_t>(length.load(std::memory_order_acquire), kMaxText);
    seen.text.resize(static_cast<std::size_t>(size));
    for (std::size_t at = 0; at < seen.text.size(); at += 8) {
        const std::uint64_t piece = text[at / 8].load(std::memory_order_acquire);
        std::memcpy(seen.text.data() + at, &piece, std::min<std::size_t>(8, seen.text.size() - at));
    }
    if (version.load(std::memory_order_acquire) != before) return std::nullopt;
    return seen;
}

void AbortPage::show_site(int slot, int channel, std::uint64_t tag, std::uint64_t word,
                          std::string_view text) const noexcept {
    const int number = 2 * channel + (Activity::is_message(word) ? 1 : 0);
    sites_[slot].sites[number % Sites::kCount].write(tag, word, text);
}

void AbortPage::wake_sleepers() const noexcept {
    for (int slot = 0; slot < slots_; ++slot) doorbells_[slot].ring_if_sleeping();
}

std::optional<std::string> AbortPage::site(int slot, std::uint64_t tag, std::uint64_t word) const {
    for (const Site& site : sites_[slot].sites) {
        auto seen = site.read();
        if (seen && seen->tag == tag && is_same_operation(seen->word, word)) return seen->text;
    }
    return std::nullopt;
}

std::optional<Site::Seen> AbortPage::current_site(int slot) const {
    Activity& activity = activities_[slot];
    for (const Site& site : sites_[slot].sites) {
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
