// Which model and adapter a request names.
#include "server/openai/model_choice.h"

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/openai/tokenize.h"
#include "tests/server/adapters/fake_source.h"
#include "tests/server/openai/api_parser.h"

namespace heddle::server {
namespace {

struct Chooser {
  Chooser() {
    AdapterRegistry::Options options;
    options.root = "/adapters";
    options.threads = 0;
    registry = std::make_unique<AdapterRegistry>(std::move(options),
                                                 std::make_unique<test::FakeSource>(&files));
    for (const char* name : {"sql", "law"}) {
      files.files["/adapters/" + std::string(name)] = {name, 1, ""};
    }
    parser.model.aliases = {"alias"};
  }
  RequestContext Context() const {
    RequestContext context{&parser.model, &parser.codec, 1};
    context.adapters = {registry.get(), allowed};
    return context;
  }
  absl::StatusOr<ModelChoice> Choose(const std::string& name, const std::string& lora = "") const {
    const Json list = Json::parse(lora.empty() ? "[]" : lora);
    return ChooseModel(name.empty() ? nullptr : &name, &list, Context());
  }
  std::string Adapter(const std::string& name, const std::string& lora = "") const {
    const auto choice = Choose(name, lora);
    INFO(name << " " << lora << " " << choice.status());
    REQUIRE(choice.ok());
    std::string names;
    for (const ScaledAdapter& adapter : choice->adapters) {
      names += (names.empty() ? "" : "+") + adapter.name;
    }
    return names;
  }

  heddle::test::ApiParser parser;
  test::FakeFiles files;
  std::unique_ptr<AdapterRegistry> registry;
  std::shared_ptr<const std::vector<std::string>> allowed;
};

TEST_CASE("A request names the base, an adapter, or both with a colon", "[server][unit]") {
  const Chooser chooser;
  CHECK(chooser.Adapter("").empty());
  CHECK(chooser.Adapter("test-model").empty());
  CHECK(chooser.Adapter("alias").empty());
  CHECK(chooser.Adapter("sql") == "sql");
  CHECK(chooser.Adapter("test-model:sql") == "sql");
  CHECK(chooser.Adapter("alias:law") == "law");
  CHECK(chooser.Choose("test-model:sql")->shown == "test-model:sql");
  CHECK(chooser.Choose("alias")->shown == "test-model");
  for (const char* name : {"other", "other:sql", "test-model:", "test-model:other", "../sql"}) {
    INFO(name);
    const ApiError error = ToApiError(chooser.Choose(name).status());
    CHECK(error.http_status == 404);
    CHECK(error.code == "model_not_found");
  }
}

TEST_CASE("llama.cpp's list chooses adapters with scales", "[server][unit]") {
  const Chooser chooser;
  const auto scaled = chooser.Choose("", R"([{"id":"sql","scale":0.5}])");
  CHECK(scaled->adapters == std::vector<ScaledAdapter>{{"sql", 0.5f}});
  CHECK(chooser.Adapter("", R"([{"id":"sql"}])") == "sql");
  CHECK(chooser.Adapter("", R"([{"id":"law","scale":0},{"id":"sql","scale":1}])") == "sql");
  CHECK(chooser.Adapter("sql", R"([{"id":"sql","scale":2}])") == "sql");
  CHECK(chooser.Adapter("", R"([{"id":"law"}])") == "law");
  CHECK(chooser.Adapter("sql", R"([{"id":"sql","scale":0}])").empty());
  CHECK(chooser.Adapter("", R"([{"id":)" +
                                std::to_string(chooser.registry->Info("law").value().index) +
                                "}]") == "law");
  const auto several = chooser.Choose("", R"([{"id":"sql"},{"id":"law","scale":0.25}])");
  CHECK(several->adapters == std::vector<ScaledAdapter>{{"law", 0.25f}, {"sql", 1}});
  CHECK(chooser.Adapter("sql", R"([{"id":"sql","scale":2},{"id":"law"}])") == "law+sql");
  const auto twice = chooser.Choose("", R"([{"id":"sql"},{"id":"sql","scale":3}])");
  CHECK(twice->adapters == std::vector<ScaledAdapter>{{"sql", 3}});
  for (const char* wrong :
       {"[1]", "[{}]", R"([{"id":-1}])", R"([{"id":99}])", R"([{"id":"sql","scale":"x"}])",
        R"([{"id":"sql","scale":1e300}])", R"([{"id":null}])", R"([{"id":1.5}])"}) {
    INFO(wrong);
    CHECK(absl::IsInvalidArgument(chooser.Choose("", wrong).status()));
  }
  CHECK(absl::IsInvalidArgument(chooser.Choose("sql", R"([{"id":"law"}])").status()));
  CHECK(absl::IsNotFound(chooser.Choose("", R"([{"id":"other"}])").status()));
}

TEST_CASE("A base with adapters of its own answers with them unless a request says otherwise",
          "[server][unit]") {
  Chooser chooser;
  chooser.files.files["/fixed"] = {"fixed", 1, ""};
  REQUIRE(chooser.registry->AddFixed("style", "/fixed").ok());
  REQUIRE(chooser.registry->SetBaseAdapters({{"style", 0.5f}}).ok());
  const auto choose = [&chooser](const char* name, const Json* lora) {
    const std::string text = name;
    return ChooseModel(text.empty() ? nullptr : &text, lora, chooser.Context())->adapters;
  };
  const Json none = Json::array();
  const Json sql = Json::parse(R"([{"id":"sql"}])");
  const std::vector<ScaledAdapter> style = {{"style", 0.5f}};
  CHECK(choose("", nullptr) == style);
  CHECK(choose("alias", nullptr) == style);
  CHECK(choose("", &none).empty());
  CHECK(choose("sql", nullptr) == std::vector<ScaledAdapter>{{"sql", 1}});
  CHECK(choose("", &sql) == std::vector<ScaledAdapter>{{"sql", 1}});
  REQUIRE(chooser.registry->SetBaseAdapters({{"style", 0}}).ok());
  CHECK(choose("", nullptr).empty());
}

TEST_CASE("A key's list hides other adapters", "[server][unit]") {
  Chooser chooser;
  chooser.allowed = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"sql"});
  CHECK(chooser.Adapter("sql") == "sql");
  CHECK(absl::IsNotFound(chooser.Choose("law").status()));
  CHECK(absl::IsNotFound(chooser.Choose("", R"([{"id":"law"}])").status()));
  REQUIRE(chooser.registry->Look("law").ok());
  const Json list = Json::parse(*ModelList(chooser.Context()));
  REQUIRE(list["data"].size() == 3);  // the model, its alias, and one adapter
  CHECK(list["data"][2]["id"] == "sql");
  CHECK(list["data"][2]["parent"] == "test-model");
  CHECK(list["data"][2]["root"] == "/adapters/sql");
  CHECK(absl::IsNotFound(ModelCard("law", chooser.Context()).status()));
}

TEST_CASE("An I/O thread does not ask the disk", "[server][unit]") {
  const Chooser chooser;
  RequestContext context = chooser.Context();
  context.patience.short_only = true;
  const std::string name = "sql";
  CHECK(IsTakesLong(ChooseModel(&name, nullptr, context).status()));
  CHECK(chooser.files.num_stats == 0);
  context.patience.ask = [] { return absl::OkStatus(); };
  CHECK(ChooseModel(&name, nullptr, context).ok());
  context.patience.ask = nullptr;
  CHECK(ChooseModel(&name, nullptr, context).ok());  // known for a second
  CHECK(chooser.files.num_stats == 1);
}

TEST_CASE("Without adapters a name is unknown", "[server][unit]") {
  const heddle::test::ApiParser parser;
  CHECK(absl::IsNotFound(
      parser.Parse(Endpoint::kCompletion, R"({"model":"sql","prompt":"x"})").status()));
  CHECK(parser.Completion(R"({"lora":[],"prompt":"x"})").model.adapters.empty());
}

}  // namespace
}  // namespace heddle::server
