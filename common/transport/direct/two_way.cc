#include <utility>

#include "common/transport/direct/direct_transport.h"

namespace tandem::transport {
namespace {

class TwoWayTransport final : public Transport {
 public:
  TwoWayTransport(std::unique_ptr<ThreadedTransport> receiver,
                  std::unique_ptr<ThreadedTransport> sender, std::string head)
      : receiver_(std::move(receiver)), sender_(std::move(sender)), head_(std::move(head)) {}

  std::string_view name() const override { return receiver_->name(); }
  std::string detail() const override {
    const std::string there = sender_->links();
    const std::string back = receiver_->links();
    if (there.empty() && back.empty()) return head_ + "not connected yet";
    if (there.empty() || there == back) return head_ + back;
    return head_ + there + (back.empty() ? "" : ", " + back);
  }
  std::string address() const override { return receiver_->address(); }
  TransportCounters counters() const override { return receiver_->counters(); }

  Status open_receive(ReceivePlan plan) override {
    return receiver_->open_receive(std::move(plan));
  }
  void close_receive(TransferId id) override { receiver_->close_receive(id); }
  void fence(Generation sender) override { receiver_->fence(sender); }
  void readmit(Generation sender) override { receiver_->readmit(sender); }

  void meet(const std::string& name, const std::string& receiver) override {
    sender_->meet(name, receiver);
  }
  Status open_send(const SendSpec& spec) override { return sender_->open_send(spec); }
  Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                    std::span<const std::span<const std::byte>> pages) override {
    return sender_->post_pages(id, layer, first_page, pages);
  }
  Status post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page) override {
    return sender_->post_tail(id, layer, page);
  }
  Status post_commit(TransferId id, std::string commit) override {
    return sender_->post_commit(id, std::move(commit));
  }
  void cancel_send(TransferId id, std::string reason) override {
    sender_->cancel_send(id, std::move(reason));
  }

 private:
  // In this order: the sender's thread also sweeps what is received, and may wait for its copies.
  const std::unique_ptr<ThreadedTransport> receiver_;
  const std::unique_ptr<ThreadedTransport> sender_;
  const std::string head_;  // "nccl 2.28.9: "
};

}  // namespace

Result<std::unique_ptr<Transport>> create_two_way_transport(
    const std::function<Result<std::unique_ptr<Fabric>>(const DirectWays&)>& create_fabric,
    const TransportDeps& deps, const std::function<void(const std::string&)>& on_warning) {
  constexpr DirectWays kOut{.sends = true, .receives = false};
  constexpr DirectWays kIn{.sends = false, .receives = true};
  TANDEM_ASSIGN(auto sends, create_fabric(kOut));
  TANDEM_ASSIGN(auto receives, create_fabric(kIn));
  const auto side = std::make_shared<ReceiveSide>(deps);
  std::string head = std::string(receives->name()) + " " + receives->version() + ": ";
  TANDEM_ASSIGN(auto receiver,
                create_direct_transport(std::move(receives), deps, on_warning, side, kIn));
  TANDEM_ASSIGN(auto sender,
                create_direct_transport(std::move(sends), deps, on_warning, side, kOut));
  return std::make_unique<TwoWayTransport>(std::move(receiver), std::move(sender), std::move(head));
}

}  // namespace tandem::transport
