#include "server/reward/reward_client.h"

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Scores = absl::StatusOr<std::vector<double>>;

constexpr size_t kMaxAnswerBytes = size_t{1} << 20;
constexpr int kHttpOk = 200;

std::string QuestionJson(std::string_view question, std::span<const std::string> answers) {
  std::string body;
  JsonWriter json(&body);
  json.BeginObject().Member("text_1", question).Key("text_2").BeginArray();
  for (const std::string& answer : answers) json.String(answer);
  // Texts longer than its context are cut, and logits are wanted, which tell more than a sigmoid's.
  json.EndArray().Member("truncate_prompt_tokens", -1);
  json.Key("use_activation").Bool(false).EndObject();
  return body;
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseScores(std::string_view body, size_t count) {
  const auto wrong = [] {
    return absl::InvalidArgumentError("its answer has not one score for each text");
  };
  HEDDLE_ASSIGN_OR_RETURN(const Json answer, ParseJsonObject(body));
  const Json* data = Find(answer, "data");
  if (data == nullptr || !data->is_array() || data->size() != count) return wrong();
  std::vector<std::optional<double>> found(count);
  for (const Json& one : *data) {
    const Json* place = Find(one, "index");
    const Json* value = Find(one, "score");
    if (place == nullptr || value == nullptr) return wrong();
    const std::optional<int64_t> index = IntegerOf(*place);
    const std::optional<double> score = NumberOf(*value);
    const bool is_place = index.has_value() && *index >= 0 && *index < static_cast<int64_t>(count);
    if (!is_place || !score.has_value() || !std::isfinite(*score)) return wrong();
    found[static_cast<size_t>(*index)] = *score;
  }
  std::vector<double> scores;
  for (const std::optional<double>& score : found) {
    if (!score.has_value()) return wrong();
    scores.push_back(*score);
  }
  return scores;
}

struct RewardClient::Loop {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
};

// The steps of one question; the end of each begins the next. Lives in its handlers, on the
// client's thread. The timer ends it whatever it waits for, a name server included.
class RewardClient::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(RewardClient* client, size_t count, std::string body, Done done)
      : client_(*client),
        count_(count),
        done_(std::move(done)),
        timer_(client->loop_->context),
        resolver_(client->loop_->context),
        stream_(client->loop_->context) {
    const Options& options = client_.options_;
    request_ = {http::verb::post, options.target, 11};
    request_.set(http::field::host, base::StrCat(options.host, ":", options.port));
    request_.set(http::field::content_type, "application/json");
    request_.set(http::field::connection, "close");
    if (!options.key.empty()) {
      request_.set(http::field::authorization, base::StrCat("Bearer ", options.key));
    }
    request_.body() = std::move(body);
    request_.prepare_payload();
    parser_.body_limit(kMaxAnswerBytes);
  }

  void Start() {
    timer_.expires_after(client_.options_.timeout);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->End(absl::UnavailableError("it took too long"));
    });
    resolver_.async_resolve(client_.options_.host, client_.options_.port,
                            [self = shared_from_this()](const error_code& error, auto endpoints) {
                              if (!self->Failed(error)) self->Connect(endpoints);
                            });
  }

 private:
  void Connect(const asio::ip::tcp::resolver::results_type& endpoints) {
    stream_.async_connect(endpoints,
                          [self = shared_from_this()](const error_code& error, const auto&) {
                            if (!self->Failed(error)) self->Write();
                          });
  }
  void Write() {
    http::async_write(stream_, request_,
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (!self->Failed(error)) self->Read();
                      });
  }
  void Read() {
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](const error_code& error, size_t) {
                       if (!self->Failed(error)) self->Take();
                     });
  }
  void Take() {
    const auto status = static_cast<int>(parser_.get().result_int());
    if (status != kHttpOk) return End(absl::UnavailableError(base::StrCat("status ", status)));
    Scores scores = ParseScores(parser_.get().body(), count_);
    if (scores.ok()) return End(std::move(scores));
    End(absl::UnavailableError(scores.status().message()));
  }
  bool Failed(const error_code& error) {
    if (error) End(absl::UnavailableError(error.message()));
    return error || done_ == nullptr;
  }
  void End(Scores scores) {
    if (done_ == nullptr) return;  // it was too late
    const Done done = std::exchange(done_, nullptr);
    timer_.cancel();
    resolver_.cancel();
    stream_.cancel();
    client_.End(done, std::move(scores));
  }

  RewardClient& client_;
  const size_t count_;
  Done done_;  // null: it has ended
  asio::steady_timer timer_;
  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxAnswerBytes};
  http::request<http::string_body> request_;
  http::response_parser<http::string_body> parser_;
};

RewardClient::RewardClient(Options options, const Logger* log)
    : options_(std::move(options)), log_(log), loop_(std::make_unique<Loop>()) {
  loop_->thread = std::thread([this] { loop_->context.run(); });
  pthread_setname_np(loop_->thread.native_handle(), "reward-client");
}

RewardClient::~RewardClient() {
  loop_->context.stop();
  loop_->thread.join();
}

void RewardClient::Score(std::string_view question, std::span<const std::string> answers,
                         Done done) {
  const size_t count = answers.size();
  const bool has_room = open_.fetch_add(1, std::memory_order_relaxed) < options_.max_open;
  std::string body = has_room ? QuestionJson(question, answers) : "";
  asio::post(loop_->context,
             [this, count, has_room, body = std::move(body), done = std::move(done)]() mutable {
               if (!has_room)
                 return End(done, absl::UnavailableError("too many questions wait for it"));
               std::make_shared<Call>(this, count, std::move(body), std::move(done))->Start();
             });
}

void RewardClient::End(const Done& done, Scores scores) {
  open_.fetch_sub(1, std::memory_order_relaxed);
  NoteHealth(scores.status());
  done(std::move(scores));
}

// Logs one line when it begins to fail and one when it works again, instead of one per question.
void RewardClient::NoteHealth(const absl::Status& status) {
  if (status.ok() == is_healthy_) return;
  is_healthy_ = status.ok();
  const std::string where = base::StrCat(options_.host, ":", options_.port, options_.target);
  if (is_healthy_) {
    log_->Info("the reward model answers again", {{"url", where}});
  } else {
    log_->Warning("the reward model gives no scores: searches take the likeliest answer",
                  {{"url", where}, {"error", std::string(status.message())}});
  }
}

}  // namespace heddle::server
