#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/clock.h"
#include "common/cuda/cublas_lt.h"
#include "common/cuda/device.h"
#include "common/cuda/graph.h"
#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/cuda/stream_flags.h"
#include "tests/gpu/card.h"

namespace tandem::cuda {
namespace {

using Owners = CardTest;

TEST_F(Owners, OpenDescribesTheCard) {
  const auto device = Device::open(0);
  ASSERT_TRUE(device) << device.error().to_string();
  const DeviceInfo& info = device->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.uuid.size(), std::string("GPU-").size() + 36);
  EXPECT_GT(info.multiprocessors, 0);
  const auto memory = device->memory();
  ASSERT_TRUE(memory);
  EXPECT_LE(memory->free, memory->total);
  EXPECT_LE(memory->total, info.memory_bytes);
}

TEST_F(Owners, AWrongIndexNamesWhatIsThere) {
  const auto device = Device::open(99);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kConfig);
  EXPECT_NE(device.error().detail.find("99"), std::string::npos);
  EXPECT_NE(device.error().detail.find("0: "), std::string::npos) << device.error().detail;
}

TEST_F(Owners, CopiesGoThereAndBack) {
  auto stream = Stream::create();
  ASSERT_TRUE(stream);
  constexpr size_t kCount = 1 << 16;
  auto host = PinnedBuffer::create(kCount * sizeof(int));
  auto back = PinnedBuffer::create(kCount * sizeof(int));
  auto a = DeviceBuffer::create(kCount * sizeof(int));
  auto b = DeviceBuffer::create(kCount * sizeof(int));
  ASSERT_TRUE(host && back && a && b);
  std::iota(host->as<int>(), host->as<int>() + kCount, 7);
  ASSERT_TRUE(copy_to_device(a->data(), host->data(), host->bytes(), *stream));
  ASSERT_TRUE(copy_on_device(b->data(), a->data(), a->bytes(), *stream));
  ASSERT_TRUE(copy_to_host(back->data(), b->data(), b->bytes(), *stream));
  ASSERT_TRUE(stream->synchronize());
  EXPECT_TRUE(std::equal(host->as<int>(), host->as<int>() + kCount, back->as<int>()));
}

TEST_F(Owners, EventsTellTheEndAndMeasure) {
  auto stream = Stream::create(StreamPriority::kLow);
  auto start = Event::create(Event::Kind::kTiming), end = Event::create(Event::Kind::kTiming);
  auto buffer = DeviceBuffer::create(64 << 20);
  ASSERT_TRUE(stream && start && end && buffer);
  ASSERT_TRUE(start->record(*stream));
  ASSERT_CUDA(cudaMemsetAsync(buffer->data(), 1, buffer->bytes(), stream->get()));
  ASSERT_TRUE(end->record(*stream));
  ASSERT_TRUE(end->synchronize());
  EXPECT_TRUE(end->done().value());
  EXPECT_GT(end->milliseconds_since(*start).value(), 0.0f);
}

TEST_F(Owners, AFlagShowsOnceItsStreamGotThere) {
  auto stream = Stream::create();
  auto buffer = DeviceBuffer::create(64 << 20);
  auto back = PinnedBuffer::create(64 << 20);
  auto flags = StreamFlags::create(2);
  ASSERT_TRUE(stream && buffer && back && flags);
  ASSERT_TRUE(flags->usable());
  ASSERT_EQ(cudaMemsetAsync(buffer->data(), 5, buffer->bytes(), stream->get()), cudaSuccess);
  ASSERT_TRUE(copy_to_host(back->data(), buffer->data(), buffer->bytes(), *stream));
  ASSERT_TRUE(flags->write(*stream, 1, 77));
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + std::chrono::seconds(10);
  while (flags->read(1) != 77 && clock.now() < give_up) {
  }
  ASSERT_EQ(flags->read(1), 77u);
  EXPECT_TRUE(std::all_of(back->data(), back->data() + back->bytes(),
                          [](std::byte b) { return b == std::byte{5}; }));
  EXPECT_EQ(flags->read(0), 0u);
}

TEST_F(Owners, AGraphRepeatsWhatWasRecordedOnTodaysContents) {
  auto stream = Stream::create();
  auto a = DeviceBuffer::create(sizeof(int)), b = DeviceBuffer::create(sizeof(int));
  auto host = PinnedBuffer::create(2 * sizeof(int));
  ASSERT_TRUE(stream && a && b && host);
  auto graph = GraphExec::record(
      *stream, [&] { return copy_on_device(b->data(), a->data(), sizeof(int), *stream); });
  ASSERT_TRUE(graph) << graph.error().to_string();
  EXPECT_EQ(graph->nodes(), 1u);
  ASSERT_TRUE(graph->upload(*stream));
  for (int value : {11, 22}) {
    host->as<int>()[0] = value;
    ASSERT_TRUE(copy_to_device(a->data(), host->data(), sizeof(int), *stream));
    ASSERT_TRUE(graph->launch(*stream));
    ASSERT_TRUE(copy_to_host(host->as<int>() + 1, b->data(), sizeof(int), *stream));
    ASSERT_TRUE(stream->synchronize());
    EXPECT_EQ(host->as<int>()[1], value);
  }
}

TEST_F(Owners, ABodyThatFailsEndsTheRecording) {
  auto stream = Stream::create();
  ASSERT_TRUE(stream);
  auto graph = GraphExec::record(*stream, [] { return Status(fail(ErrorCode::kInternal, "no")); });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().detail, "no");
  EXPECT_TRUE(stream->synchronize());  // usable again
}

TEST_F(Owners, OutOfMemorySaysHowMuchIsFree) {
  const auto buffer = DeviceBuffer::create(size_t{1} << 46);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(buffer.error().detail.find("MiB are free"), std::string::npos) << buffer.error().detail;
  EXPECT_TRUE(DeviceBuffer::create(1 << 20));  // not sticky
}

TEST_F(Owners, CublasLtOpens) {
  const auto lt = CublasLt::create();
  if (!lt && lt.error().code == ErrorCode::kUnavailable) GTEST_SKIP() << lt.error().detail;
  ASSERT_TRUE(lt) << lt.error().to_string();
  EXPECT_GE(lt->version(), 130000u);
  EXPECT_NE(lt->path().find("cublasLt"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cuda
