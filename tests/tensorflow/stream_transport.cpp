// SPDX-License-Identifier: Apache-2.0
// Copies of the transport for GPUs, on the streams of StreamExecutor's host platform, each of which
// is a thread. A case holds back the stream that another one must wait for: what does not wait is
// seen.
#include "tensorflow/core/common_runtime/lms/stream_transport.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace se = stream_executor;
using tensorflow::lms::NewStreamTransport;
using tensorflow::lms::Transport;

namespace {

constexpr size_t kBytes = 1 << 16;
// Long enough for a thread that does not wait to do its work.
constexpr auto kLong = std::chrono::milliseconds(300);

using Block = std::vector<char>;

bool Is(const Block& block, char value) { return block == Block(kBytes, value); }

struct Device {
  Device()
      : executor(se::MultiPlatformManager::PlatformWithName("Host")
                     .value()
                     ->ExecutorForDevice(0)
                     .value()),
        compute(executor),
        in(executor),
        out(executor) {
    for (se::Stream* stream : {&compute, &in, &out}) stream->Init();
    transport = NewStreamTransport(executor, &compute, &in, &out);
  }

  void Finish() {
    for (se::Stream* stream : {&compute, &in, &out}) TF_CHECK_OK(stream->BlockHostUntilDone());
  }

  se::StreamExecutor* executor;
  se::Stream compute, in, out;
  std::unique_ptr<Transport> transport;
};

// What is queued on `stream` later starts when it opens.
class Gate {
 public:
  explicit Gate(se::Stream* stream) {
    auto opened = std::make_shared<std::shared_future<void>>(open_.get_future());
    stream->ThenDoHostCallback([opened] { opened->wait(); });
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

void Fill(se::Stream* stream, Block* block, char value) {
  stream->ThenDoHostCallback([block, value] { std::memset(block->data(), value, kBytes); });
}

void Copy(se::Stream* stream, const Block* from, Block* to) {
  stream->ThenDoHostCallback([from, to] { std::memcpy(to->data(), from->data(), kBytes); });
}

// A page-out takes what work that was queued before it writes.
bool OutAfterWriter() {
  Device device;
  Block block(kBytes, '-'), host(kBytes, '-');
  Gate gate(&device.compute);
  Fill(&device.compute, &block, 'a');
  const auto copied = device.transport->ToHost(host.data(), block.data(), kBytes);
  std::this_thread::sleep_for(kLong);
  const bool waited = !copied->done();
  gate.Open();
  copied->wait();
  return waited && copied->done() && Is(host, 'a');
}

// The block's next owner writes after the page-out has read it.
bool ReuseAfterOut() {
  Device device;
  Block block(kBytes, 'a'), host(kBytes, '-');
  Gate gate(&device.out);
  const auto copied = device.transport->ToHost(host.data(), block.data(), kBytes);
  Fill(&device.compute, &block, 'b');
  std::this_thread::sleep_for(kLong);
  const bool waited = Is(block, 'a') && !copied->done();
  gate.Open();
  device.Finish();
  return waited && Is(host, 'a') && Is(block, 'b');
}

// A page-in writes its block after the earlier owner has read it.
bool InAfterOwner() {
  Device device;
  Block block(kBytes, 'a'), host(kBytes, 'b'), seen(kBytes, '-');
  Gate gate(&device.compute);
  Copy(&device.compute, &block, &seen);
  const auto copied = device.transport->ToDevice(block.data(), host.data(), kBytes);
  std::this_thread::sleep_for(kLong);
  const bool waited = Is(block, 'a') && !copied->done();
  gate.Open();
  device.Finish();
  return waited && Is(seen, 'a') && Is(block, 'b');
}

// An op that is queued after the page-in reads what came in.
bool UseAfterIn() {
  Device device;
  Block block(kBytes, '-'), host(kBytes, 'b'), seen(kBytes, '-');
  Gate gate(&device.in);
  const auto copied = device.transport->ToDevice(block.data(), host.data(), kBytes);
  Copy(&device.compute, &block, &seen);
  std::this_thread::sleep_for(kLong);
  const bool waited = Is(seen, '-') && !copied->done();
  gate.Open();
  device.Finish();
  return waited && Is(seen, 'b');
}

// A page-in takes what a page-out that is under way will have written.
bool RoundTrip() {
  Device device;
  Block block(kBytes, 'a'), host(kBytes, '-'), other(kBytes, '-');
  Gate gate(&device.out);
  device.transport->ToHost(host.data(), block.data(), kBytes);
  const auto copied = device.transport->ToDevice(other.data(), host.data(), kBytes);
  std::this_thread::sleep_for(kLong);
  const bool waited = !copied->done();
  gate.Open();
  device.Finish();
  return waited && Is(other, 'a');
}

// What is overwritten for debugging is so after earlier work, before later work.
bool PoisonInOrder() {
  Device device;
  Block block(kBytes, 'a'), before(kBytes, '-'), after(kBytes, '-');
  Gate gate(&device.compute);
  Copy(&device.compute, &block, &before);
  device.transport->Poison(block.data(), kBytes);
  Copy(&device.compute, &block, &after);
  gate.Open();
  device.Finish();
  return Is(before, 'a') && Is(after, '\xFF');
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, bool (*)()> cases = {{"out_after_writer", OutAfterWriter},
                                                   {"reuse_after_out", ReuseAfterOut},
                                                   {"in_after_owner", InAfterOwner},
                                                   {"use_after_in", UseAfterIn},
                                                   {"round_trip", RoundTrip},
                                                   {"poison_in_order", PoisonInOrder}};
  for (int i = 1; i < argc; ++i) {
    const bool right = cases.at(argv[i])();
    std::printf("%s %s\n", argv[i], right ? "right" : "wrong");
    std::fflush(stdout);
  }
  std::_Exit(0);
}
