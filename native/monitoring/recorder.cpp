// See recorder.hpp.
#include "monitoring/recorder.hpp"

#include <utility>

namespace phalanx {

Recorder::Recorder(std::shared_ptr<ControlPage> page) : page_(std::move(page)) {
    if (page_ == nullptr || page_->author() >= page_->slots()) {
        own_ = std::make_unique<TraceRing>();
        ring_ = own_.get();
    } else {
        ring_ = &page_->trace(page_->author());
    }
}

Recording::Recording(const Recorder& recorder, const Op& op, std::uint64_t tag,
                     std::uint8_t algorithm, int peer) noexcept
    : what_(static_cast<std::uint64_t>(op.kind) | static_cast<std::uint64_t>(algorithm) << 8 |
            static_cast<std::uint64_t>(op.dtype) << 16 |
            static_cast<std::uint64_t>(op.channel) << 24 |
            static_cast<std::uint64_t>(peer & 0xFFFF) << 40),
      entered_(steady_ns()),
      record_(recorder.ring().open(
          {record_place(op.epoch, op.seq), op.nbytes(), tag, entered_, 0, 0, what_})) {}

void Recording::end(std::uint64_t what) noexcept {
    ended_ = steady_ns();
    has_ended_ = true;
    if (arrives_with_end_) arrived_ = ended_;
    if (record_ == nullptr) return;
    if (arrives_with_end_) record_->set(kRecordArrived, ended_);
    record_->set(kRecordEnded, ended_);
    record_->set(kRecordWhat, what);
    record_->close();
}

}  // namespace phalanx
