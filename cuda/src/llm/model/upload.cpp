// upload: reads, copies and repacks tensors concurrently.
#include "llm/model/upload.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "core/backend/owned.h"
#include "core/base/thread_pool.h"
#include "core/vram/digest.h"
#include "llm/model/first_failure.h"
#include "llm/quant/repack.h"

namespace wcuda::model {
namespace {

constexpr uint32_t kCopyStreams = 2;

// Bytes [offset, offset + bytes) of a tensor as in the file.
struct Piece {
  uint32_t tensor;
  uint64_t offset;
  uint64_t bytes;
};

class Uploader {
 public:
  explicit Uploader(const UploadArgs& args)
      : args_(args),
        plan_(*args.plan),
        backend_(*args.backend),
        slices_(plan_.slice_count),
        threads_(plan_.slice_count / kSlicesPerReader),
        pieces_left_(plan_.tensors.size()),
        repacked_(plan_.tensors.size()) {}

  Result<Uploaded> run() {
    WCUDA_TRY(prepare());
    WCUDA_ASSIGN(const std::unique_ptr<ThreadPool> pool,
                 ThreadPool::create(static_cast<uint32_t>(threads_.size())));
    pool->parallel_for(static_cast<uint32_t>(pieces_.size()),
                       [this](uint32_t piece, uint32_t thread) { run_piece(piece, thread); });
    WCUDA_TRY(failure_.take());
    for (const OwnedStream& stream : repacking_) WCUDA_TRY(backend_.synchronize(stream));
    WCUDA_TRY(args_.report(done_bytes_));
    Uploaded read;
    read.digests.resize(plan_.tensors.size());
    read.scale_bounds.resize(plan_.tensors.size());
    static_assert(sizeof(TensorDigests) == 2 * sizeof(Digest));
    WCUDA_TRY(backend_.copy_to_host(read.digests.data(), digests_of(0),
                                    read.digests.size() * sizeof read.digests[0]));
    WCUDA_TRY(backend_.copy_to_host(read.scale_bounds.data(), scale_bound_of(0),
                                    read.scale_bounds.size() * sizeof read.scale_bounds[0]));
    return read;
  }

 private:
  struct Slice {
    OwnedEvent copied;  // the last copy out of it
    bool is_used = false;
  };
  struct Thread {
    uint32_t next_slice = 0;
  };

  Status prepare() {
    for (OwnedStream& stream : repacking_)
      WCUDA_TRY(stream.take(backend_, backend_.stream_create(0)));
    for (OwnedStream& stream : copying_)
      WCUDA_TRY(stream.take(backend_, backend_.stream_create(0)));
    for (OwnedEvent& event : copied_) WCUDA_TRY(event.take(backend_, backend_.event_create()));
    for (Slice& slice : slices_) WCUDA_TRY(slice.copied.take(backend_, backend_.event_create()));
    for (OwnedEvent& event : repacked_) WCUDA_TRY(event.take(backend_, backend_.event_create()));
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const uint64_t bytes = plan_.tensors[t].file_bytes;
      for (uint64_t offset = 0; offset < bytes; offset += plan_.slice_bytes) {
        pieces_.push_back(
            {static_cast<uint32_t>(t), offset, std::min(plan_.slice_bytes, bytes - offset)});
        ++pieces_left_[t];
      }
    }
    return {};
  }

  // Runs on a pool thread, so it must not throw.
  void run_piece(uint32_t number, uint32_t thread) noexcept {
    if (failure_.happened()) return;
    const bool is_done = failure_.run(number, [&]() -> Status {
      WCUDA_TRY(upload_piece(pieces_[number], thread));
      return thread == 0 ? args_.report(done_bytes_) : Status();
    });
    if (is_done) return;
    // The lock ensures that no thread is between its check for a failure and its wait.
    const std::lock_guard<std::mutex> lock(mutex_);
    progress_.notify_all();
  }

  Status upload_piece(const Piece& piece, uint32_t thread) {
    const uint32_t number = thread * kSlicesPerReader + threads_[thread].next_slice;
    threads_[thread].next_slice = (threads_[thread].next_slice + 1) % kSlicesPerReader;
    Slice& slice = slices_[number];
    uint8_t* const data = args_.slices + number * plan_.slice_bytes;
    const PlannedTensor& tensor = plan_.tensors[piece.tensor];

    if (slice.is_used) WCUDA_TRY(backend_.event_synchronize(slice.copied));
    WCUDA_TRY(args_.check_cancelled(done_bytes_));
    WCUDA_TRY(args_.file->read_tensor(tensor.index, piece.offset, data, piece.bytes));
    const uint32_t stream = thread % kCopyStreams;
    WCUDA_ASSIGN(const bool has_room, wait_for_room(tensor, stream));
    if (!has_room) return {};
    WCUDA_TRY(backend_.copy_to_device_async(args_.staged + tensor.staged_offset + piece.offset,
                                            data, piece.bytes, copying_[stream]));
    slice.is_used = true;
    WCUDA_TRY(backend_.event_record(slice.copied, copying_[stream]));
    done_bytes_ += piece.bytes;
    return piece_copied(piece.tensor);
  }

  // Makes the copy stream wait until the tensors that this one overwrites have been repacked. False
  // if the upload has failed elsewhere.
  Result<bool> wait_for_room(const PlannedTensor& tensor, uint32_t stream) {
    std::unique_lock<std::mutex> lock(mutex_);
    progress_.wait(lock, [&] { return queued_ >= tensor.waits_for || failure_.happened(); });
    if (failure_.happened()) return false;
    // It suffices to wait for the last tensor of each repack stream.
    const size_t last = tensor.waits_for;
    size_t t = std::max(waited_for_[stream], last - std::min<size_t>(last, kRepackStreams));
    for (; t < last; ++t) WCUDA_TRY(backend_.stream_wait(copying_[stream], repacked_[t]));
    waited_for_[stream] = std::max(waited_for_[stream], last);
    return true;
  }

  // Called when a copy of this tensor has been queued. Queues the repacking of all complete
  // tensors, in order, unless another thread is doing so. The lock is not held, so readers
  // continue.
  Status piece_copied(uint32_t tensor) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--pieces_left_[tensor] != 0 || is_queueing_) return {};
    is_queueing_ = true;
    while (queued_ < plan_.tensors.size() && pieces_left_[queued_] == 0) {
      const size_t next = queued_;
      lock.unlock();
      WCUDA_TRY(repack(next));
      lock.lock();
      ++queued_;
      progress_.notify_all();
    }
    is_queueing_ = false;
    return {};
  }

  Status repack(size_t number) {
    const PlannedTensor& tensor = plan_.tensors[number];
    const uint32_t lane = number % kRepackStreams;
    const Stream stream = repacking_[lane];
    for (uint32_t i = 0; i < kCopyStreams; ++i) {
      WCUDA_TRY(backend_.event_record(copied_[i], copying_[i]));
      WCUDA_TRY(backend_.stream_wait(stream, copied_[i]));
    }
    quant::Repack weight;
    weight.source = args_.staged + tensor.staged_offset;
    weight.target = (*args_.targets)[number];
    weight.type = tensor.type;
    weight.is_vector = tensor.slot.is_vector;
    weight.rows = tensor.slot.rows;
    weight.cols = tensor.slot.cols;
    weight.scale_bound = scale_bound_of(number);
    uint8_t* const digests = digests_of(number);
    uint8_t* const scratch =
        args_.staged + plan_.digest_scratch_offset + lane * vram::kDigestScratchBytes;
    WCUDA_TRY(
        vram::digest_async(backend_, weight.source, tensor.file_bytes, digests, scratch, stream));
    WCUDA_TRY(quant::repack(backend_, weight, stream));
    WCUDA_TRY(backend_.event_record(repacked_[number], stream));
    return vram::digest_async(backend_, weight.target, tensor.bytes, digests + sizeof(Digest),
                              scratch, stream);
  }

  uint8_t* digests_of(size_t tensor) const {
    return args_.staged + plan_.digests_offset + tensor * sizeof(TensorDigests);
  }
  float* scale_bound_of(size_t tensor) const {
    return reinterpret_cast<float*>(args_.staged + plan_.scale_bounds_offset) + tensor;
  }

  const UploadArgs& args_;
  const DetailedPlan& plan_;
  Backend& backend_;
  std::vector<Piece> pieces_;
  std::vector<Slice> slices_;
  std::vector<Thread> threads_;  // each entry is used only by its thread
  std::atomic<uint64_t> done_bytes_{0};
  FirstFailure failure_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable progress_;
  std::vector<uint32_t> pieces_left_;  // of each tensor
  size_t queued_ = 0;                  // tensors whose repacking is queued
  bool is_queueing_ = false;           // a thread is queueing repacks
  size_t waited_for_[kCopyStreams] = {};
  std::vector<OwnedEvent> repacked_;  // of each tensor
  OwnedEvent copied_[kCopyStreams];
  // The last member is destroyed first, and waits for the work that uses the others.
  OwnedStream repacking_[kRepackStreams], copying_[kCopyStreams];
};

}  // namespace

Result<Uploaded> upload(const UploadArgs& args) {
  Uploader uploader(args);
  return uploader.run();
}

}  // namespace wcuda::model
