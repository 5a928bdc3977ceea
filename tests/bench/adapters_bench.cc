// Decoding steps with LoRA adapters beside steps without, taken in turns on one executor, so that
// a noisy machine slows both: medians and ratios.
//
//   adapters_bench [SHAPE] [FORMAT] [ROWS] [RANK] [ISA] [ROUNDS]
//     e.g. adapters_bench tinyllama-1.1b q4_0 16 16 auto 40
//
//   adapters_bench load CONFIG ADAPTER    reads an adapter for the model of a config.json, five
//   times,
//                                         into pages of 2 MiB
//
// All linears of all layers have factors. Printed for each kind of step: ms, and the share of the
// base's tokens per second. "adapted:N" has N adapters on N of the rows; "shared" has one on all
// rows; "prompt" is a chunk of 256 rows of one sequence.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/adapter/adapter_sites.h"
#include "engine/adapter/load_adapter.h"
#include "engine/files/json_file.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "engine/whole_context.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/support/adapter_images.h"

namespace heddle {
namespace {

using engine::AdapterImage;
using engine::LocalExecutor;
using engine::PageId;
using engine::SequenceId;
using engine::StepPlan;

constexpr int32_t kContext = 96;  // tokens of each sequence before the measured steps
constexpr int32_t kPromptRows = 256;

std::shared_ptr<AdapterImage> RandomImage(const LocalExecutor& executor, int32_t rank,
                                          uint64_t id) {
  const engine::ModelSpec& spec = executor.spec();
  std::vector<test::PlainFactors> all;
  uint32_t state = static_cast<uint32_t>(id);
  const auto fill = [&](std::vector<float>* values, int64_t count) {
    values->resize(static_cast<size_t>(count));
    for (float& value : *values) {
      state = state * 1664525 + 1013904223;
      value = (static_cast<float>(state >> 8) * 0x1p-23f - 1.0f) * 0.01f;
    }
  };
  for (int32_t layer = 0; layer < spec.n_layers(); ++layer) {
    for (const auto site : {engine::AdapterSite::kQkv, engine::AdapterSite::kOut,
                            engine::AdapterSite::kUp, engine::AdapterSite::kDown}) {
      const engine::SiteShape shape = engine::ShapeOf(spec, layer, site);
      for (size_t p = 0; p < shape.parts.size(); ++p) {
        test::PlainFactors& factors = all.emplace_back();
        factors.layer = layer;
        factors.site = site;
        factors.part = static_cast<int32_t>(p);
        factors.rank = rank;
        fill(&factors.a, rank * shape.inputs);
        fill(&factors.b, rank * shape.parts[p]);
      }
    }
  }
  const engine::ExecutorLimits& limits = executor.limits();
  auto image = test::MakeAdapterImage(all, limits.adapter_dtype, limits.page_bytes,
                                      /*block_rows=*/4, id);
  image->id = engine::AdapterId{id};
  return image;
}

class Bench {
 public:
  Bench(LocalExecutor& executor, int32_t rows) : executor_(executor), rows_(rows) {}

  // Binds adapter i to slot i.
  void Load(const std::vector<std::shared_ptr<AdapterImage>>& images) {
    StepPlan plan;
    engine::StepLocals locals;
    for (size_t i = 0; i < images.size(); ++i) {
      const auto begin = static_cast<int32_t>(plan.adapter_pages.size());
      for (int32_t p = 0; p < images[i]->num_pages; ++p) {
        plan.adapter_loads.push_back({images[i]->id, p, PageId{next_page_}});
        plan.adapter_pages.push_back(PageId{next_page_++});
      }
      plan.adapter_binds.push_back(
          {images[i]->id, static_cast<int32_t>(i), 1.0f, begin, images[i]->num_pages});
      locals.adapters.push_back(images[i]);
    }
    const double ms = Run(plan, locals);
    std::printf("%zu adapters loaded: %.1f ms\n", images.size(), ms);
  }

  // One row for each sequence, the i-th with slots[i].
  double Decode(const std::vector<int32_t>& slots) {
    StepPlan plan;
    for (int32_t s = 0; s < rows_; ++s)
      AddSlice(s, kContext, 1, slots[static_cast<size_t>(s)], &plan);
    return Run(plan, {});
  }

  double Prompt(int32_t slot) {
    StepPlan plan;
    AddSlice(0, 0, kPromptRows, slot, &plan);
    return Run(plan, {});
  }

 private:
  // Rows [first, first + count) of sequence `s`, whose pages lie behind the adapters'.
  void AddSlice(int32_t s, int32_t first, int32_t count, int32_t slot, StepPlan* plan) const {
    const int32_t page_tokens = executor_.limits().page_tokens;
    const int32_t pages = (std::max(kContext + 1, kPromptRows) + page_tokens - 1) / page_tokens;
    const auto page_of = [&](int32_t at) {
      return PageId{next_page_ + s * pages + at / page_tokens};
    };
    HEDDLE_CHECK(next_page_ + (s + 1) * pages <= executor_.limits().num_pages, "pool too small");
    const auto first_row = static_cast<int32_t>(plan->token_ids.size());
    const auto first_span = static_cast<int32_t>(plan->spans.size());
    for (int32_t at = first; at < first + count; ++at) {
      plan->token_ids.push_back(1 + (at * 7 + s) % 1000);
      plan->positions.push_back(at);
      plan->kv_slots.push_back({page_of(at), at % page_tokens});
    }
    for (int32_t at = 0; at < first + count; at += page_tokens) {
      plan->spans.push_back({page_of(at), std::min(page_tokens, first + count - at)});
    }
    const SequenceId id{static_cast<uint64_t>(s) + 1};
    plan->sequences.push_back({.id = id,
                               .token_begin = first_row,
                               .num_tokens = count,
                               .span_begin = first_span,
                               .num_spans = static_cast<int32_t>(plan->spans.size()) - first_span,
                               .context_tokens = first + count,
                               .adapter_slot = slot});
    plan->scores.push_back({id, first_row + count - 1, 1, 0});
  }

  double Run(const StepPlan& plan, const engine::StepLocals& locals) {
    const auto begin = std::chrono::steady_clock::now();
    absl::Status status = executor_.Submit(plan, locals);
    if (status.ok()) status = executor_.Wait(&result_);
    HEDDLE_CHECK(status.ok(), status.ToString());
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    return ms.count();
  }

  LocalExecutor& executor_;
  int32_t rows_;
  int32_t next_page_ = 0;
  engine::StepResult result_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Kind {
  std::string name;
  std::vector<int32_t> slots;  // of decoded rows; or one, of a prompt
  bool is_prompt = false;
  size_t base = 0;  // index of the kind to compare with
  std::vector<double> ms = {};
};

int TimeLoading(const std::string& config, const std::string& adapter) {
  const auto json = engine::ReadJsonFile(config);
  HEDDLE_CHECK(json.ok(), json.status().ToString());
  const auto model = engine::DescribeConfig(*json, nlohmann::json::object(), config);
  HEDDLE_CHECK(model.ok(), model.status().ToString());
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const auto loaded = engine::LoadAdapter(
        adapter, {.model = &*model, .page_bytes = 2 << 20, .max_rank = kernels::kMaxAdapterRank});
    HEDDLE_CHECK(loaded.ok(), loaded.status().ToString());
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %.1f MB in %d pages (%.1f %% filled), %.1f ms\n",
                loaded->summary.modules.c_str(), static_cast<double>(loaded->image->bytes()) / 1e6,
                loaded->image->num_pages,
                200.0 * static_cast<double>(loaded->summary.parameters) /
                    static_cast<double>(loaded->image->bytes()),
                ms.count());
  }
  return 0;
}

}  // namespace

int Main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "load") return TimeLoading(argv[2], argv[3]);
  const std::string shape = argc > 1 ? argv[1] : "tinyllama-1.1b";
  const std::string format = argc > 2 ? argv[2] : "q4_0";
  const int32_t rows = argc > 3 ? std::atoi(argv[3]) : 16;
  const int32_t rank = argc > 4 ? std::atoi(argv[4]) : 16;
  const int rounds = argc > 6 ? std::atoi(argv[6]) : 40;
  engine::LoadOptions options;
  options.cpu.isa = argc > 5 ? argv[5] : "auto";
  options.capacity.kv_bytes = int64_t{2} << 30;
  options.capacity.max_batch_seqs = 64;
  options.capacity.max_context = 2048;
  options.capacity.adapter_max_rank = rank;
  const auto dtype = engine::RandomFormat(format);
  HEDDLE_CHECK(dtype.ok(), dtype.status().ToString());
  auto model = engine::LoadRandomModel(shape, *dtype, options);
  HEDDLE_CHECK(model.ok(), model.status().ToString());
  std::printf("%s, %s, %s, %d rows, rank %d\n", shape.c_str(), format.c_str(),
              model->device.c_str(), rows, rank);
  std::vector<std::shared_ptr<AdapterImage>> images;
  for (int32_t i = 0; i < rows; ++i) {
    images.push_back(RandomImage(*model->executor, rank, static_cast<uint64_t>(i) + 1));
  }
  std::printf("an adapter: %.1f MB, %d pages\n", static_cast<double>(images[0]->bytes()) / 1e6,
              images[0]->num_pages);
  Bench bench(*model->executor, rows);
  bench.Load(images);

  const auto with = [&](int32_t count, bool shared) {
    std::vector<int32_t> slots(static_cast<size_t>(rows), -1);
    for (int32_t i = 0; i < count; ++i) slots[static_cast<size_t>(i)] = shared ? 0 : i;
    return slots;
  };
  std::vector<Kind> kinds = {{"base", with(0, false)},
                             {"base again", with(0, false)},
                             {"adapted:1", with(1, false)},
                             {"adapted:" + std::to_string(rows / 2), with(rows / 2, false)},
                             {"adapted:" + std::to_string(rows), with(rows, false)},
                             {"shared", with(rows, true)},
                             {"prompt base", {-1}, true, 6},
                             {"prompt", {0}, true, 6}};
  for (int round = 0; round < rounds; ++round) {
    for (Kind& kind : kinds) {
      if (kind.is_prompt && round % 4 > 0) continue;
      kind.ms.push_back(kind.is_prompt ? bench.Prompt(kind.slots[0]) : bench.Decode(kind.slots));
    }
  }
  for (const Kind& kind : kinds) {
    std::printf("%-14s %8.2f ms  %5.1f %%\n", kind.name.c_str(), Median(kind.ms),
                100.0 * Median(kinds[kind.base].ms) / Median(kind.ms));
  }
  return 0;
}

}  // namespace heddle

int main(int argc, char** argv) { return heddle::Main(argc, argv); }
