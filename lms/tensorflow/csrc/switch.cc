// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/switch.h"

#include <chrono>
#include <cstddef>

#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tensorflow {
namespace lms {

::lms::Switch lms_switch;

namespace {

// Ops that were running when Large Model Support was enabled have this long to end. Longer makes
// the error come later where one of them waits for the thread that enables; shorter makes enabling
// fail beside ops that only take long.
constexpr std::chrono::seconds kPatience{10};

// GPUOptions.Experimental.lms_enabled. Official builds of the proto do not know the field and keep
// it among the unknown ones.
constexpr int kEnabledField = 26700001;

bool AsksForLms(const SessionOptions& options) {
  const auto& experimental = options.config.gpu_options().experimental();
  const auto* field = experimental.GetDescriptor()->FindFieldByNumber(kEnabledField);
  if (field != nullptr) return experimental.GetReflection()->GetBool(experimental, field);
  const auto& unknown = experimental.GetReflection()->GetUnknownFields(experimental);
  bool asks = false;
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& item = unknown.field(i);
    if (item.number() == kEnabledField && item.type() == protobuf::UnknownField::TYPE_VARINT) {
      asks = item.varint() != 0;
    }
  }
  return asks;
}

class Owner final : public ::lms::Switch::Owner {
 public:
  std::size_t out() override { return static_cast<std::size_t>(Runtime::Get().backend.on_host()); }
  // Nothing to wait for: copies come after all that the ops left on a device's compute stream.
  void settle(bool) override {}
  void bring_in() override {
    Runtime::Get().engine.page_in_all(
        [](int device) { return Runtime::Get().pools.begin()[device]->transport->stream(); });
  }
  void set_poison(bool poison) override { Runtime::Get().backend.set_poison(poison); }
};

}  // namespace

::lms::Switch::Owner& SwitchOwner() {
  static auto* owner = new Owner;
  return *owner;
}

void Disable() {
  Runtime::Get();  // the switch is its
  lms_switch.disable();
}

Status Enable() {
  Runtime& runtime = Runtime::Get();
  for (Pool* pool : runtime.pools) NotePeaks(pool);  // of the time before
  if (lms_switch.enable(kPatience)) return Ok();
  return errors::FailedPrecondition(
      "Large Model Support cannot be enabled because operations that started before are still "
      "running after ",
      kPatience.count(), " seconds; enable it before the first of them starts");
}

void EnableIfAsked(const SessionOptions& options) {
  if (Enabled() || !AsksForLms(options)) return;
  const Status status = Enable();
  if (!status.ok()) LOG(ERROR) << status.ToString();
}

Status SetChaos(bool chaos) {
  Runtime::Get();
  if (lms_switch.set_chaos(chaos)) return Ok();
  return errors::FailedPrecondition(
      "chaos mode cannot be switched because tensors are in host memory; set it before Large Model "
      "Support is enabled");
}

}  // namespace lms
}  // namespace tensorflow
