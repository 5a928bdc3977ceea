// A completion or chat whose model thinks in branches (server/branches/parallel_tree.h): runs what
// the tree asks for, and sends what its answer writes. Thread: the connection's I/O thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "server/branches/parallel_answer.h"
#include "server/branches/parallel_tree.h"
#include "server/http/answer_writer.h"
#include "server/http/engine_exchange.h"

namespace heddle::server {

class ParallelExchange final : public EngineExchange,
                               public std::enable_shared_from_this<ParallelExchange> {
 public:
  // As GenerationExchange. REQUIRES: the request has parallel options, one prompt and one choice.
  ParallelExchange(ServerContext* context, std::unique_ptr<const ApiRequest> request,
                   std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                   Clock::time_point received, scheduler::AdapterUse adapter);

  // After an error nothing is left at the engine, and nothing was sent. `inbox` is owned by a
  // shared_ptr.
  absl::Status Submit(EventInbox* inbox);

 private:
  void Take(size_t run, GenerationEvent event) override;
  void Fail(const absl::Status& status) override;
  void End() override;
  void Watch() override;

  ParallelTree::NewContext ContextNames();
  void Follow(ParallelOrders orders);
  void CancelRun(size_t run);
  absl::Status SubmitWaiting();
  void Continue(ParallelOrders orders);
  void SendFrames(const std::string& frames);
  void Finish();
  void DropContexts();

  std::unique_ptr<const ApiRequest> request_;
  ParallelAnswer answer_;
  AnswerWriter sender_;
  ParallelTree tree_;
  std::shared_ptr<EventInbox> inbox_;
  std::deque<ParallelOrders::Run> waiting_;  // for room in the engine's queue
  std::vector<RequestId> id_of_;             // [runs] 0: not submitted
  bool submitted_ = false;
};

}  // namespace heddle::server
