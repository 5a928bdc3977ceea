#include "config/option.h"

namespace heddle::config {

std::string_view CommandName(Command command) {
  switch (command) {
    case kServe:
      return "serve";
    case kGenerate:
      return "generate";
    case kTokenize:
      return "tokenize";
    case kInspect:
      return "inspect";
    case kRender:
      return "render";
    case kBench:
      return "bench";
    case kSimulate:
      return "simulate";
    case kPlan:
      return "plan";
    case kTrace:
      return "trace";
    case kTune:
      return "tune";
    case kHealth:
      return "health";
  }
  return "";
}

std::string_view CommandSummary(Command command) {
  switch (command) {
    case kServe:
      return "Serve a model over HTTP, with the API of OpenAI";
    case kGenerate:
      return "Continue one prompt, without a server";
    case kTokenize:
      return "Turn lines of text into token ids, or back";
    case kInspect:
      return "Show what a model is, and what this machine can hold of it";
    case kRender:
      return "Render a chat template, to see the text that a model gets";
    case kBench:
      return "Measure tokens per second, and their share of this machine's limits";
    case kSimulate:
      return "Run the scheduler against a trace or a made-up load, without a model";
    case kPlan:
      return "Say how many users fit into a machine, and how fast they are served";
    case kTrace:
      return "Tell what happened to a request of a running server, step by step";
    case kTune:
      return "Find out which steps a GPU runs faster in two halves side by side";
    case kHealth:
      return "Ask a running server whether it makes progress, for health checks";
  }
  return "";
}

std::string_view CommandUsage(Command command) {
  switch (command) {
    case kServe:
      return "heddle serve MODEL [options]\n\n"
             "Serves a model on http://127.0.0.1:8000/v1 until it gets SIGTERM or Ctrl-C.\n\n"
             "  heddle serve ~/models/Qwen3-0.6B\n"
             "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
             "\\\n    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n";
    case kGenerate:
      return "heddle generate MODEL [--prompt TEXT] [options]\n\n"
             "Continues a prompt and prints the answer.\n\n"
             "  heddle generate ~/models/Qwen3-0.6B --chat --prompt 'Name three colours.'\n";
    case kTokenize:
      return "heddle tokenize MODEL [options] < texts\n\n"
             "Prints the token ids of each line of standard input as one JSON array. MODEL may be\n"
             "a model's folder, its tokenizer file, or a GGUF file, even one without weights.\n\n"
             "  echo 'Hello world' | heddle tokenize ~/models/Qwen3-0.6B\n";
    case kInspect:
      return "heddle inspect MODEL|ADAPTER [options]\n\n"
             "Shows architecture, formats and memory of a model, and how many tokens fit here.\n"
             "Reads no weights. Of a LoRA adapter: its modules, ranks and scales.\n\n"
             "  heddle inspect ~/models/Qwen3-0.6B\n  heddle inspect ./sql-adapter\n";
    case kRender:
      return "heddle render --template FILE < conversation.json\n\n"
             "Reads one JSON object with the template's variables (messages, tools,\n"
             "add_generation_prompt, bos_token, ...) from standard input and prints the text.\n\n"
             "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | "
             "heddle render --template chat.jinja\n";
    case kBench:
      return "heddle bench MODEL [options]\n"
             "       heddle bench --random-weights SHAPE [--weights FORMAT] [options]\n"
             "       heddle bench MODEL --speculate DRAFTERS --text FILE [options]\n\n"
             "Runs prompts and then decodes, step by step without a server, and prints tokens per\n"
             "second beside the machine's own limits, measured just before and after: bytes read\n"
             "while decoding, operations during prompts. Every sequence has --prompt-tokens "
             "random\n"
             "tokens. With --json each batch size gives one object on a line of its own.\n\n"
             "  heddle bench --random-weights tinyllama-1.1b --weights q4_0 --batch 1,8,32\n";
    case kSimulate:
      return "heddle simulate MODEL | --shape SHAPE [options]\n\n"
             "Runs the server's scheduler against a trace or a synthetic load on a machine that\n"
             "is only a formula, thousands of times faster than life. Prints latencies,\n"
             "throughput and the use of the KV memory over time. Reads no weights.\n\n"
             "  heddle simulate --shape llama-3.1-8b --hardware h100 --rate 20 --lengths "
             "lognormal\n";
    case kPlan:
      return "heddle plan MODEL | --shape SHAPE [--users N] [--context TOKENS] [options]\n\n"
             "Says what fits into a machine's memory, what limits it, the speed that its data "
             "sheet\n"
             "allows and the one to expect. Memory is planned by the code that serve uses. Reads "
             "no\n"
             "weights.\n\n"
             "  heddle plan --shape llama-3.1-8b --hardware h200 --users 64 --context 8192\n";
    case kTrace:
      return "heddle trace [ID] [--url URL] [--admin-key KEY]\n\n"
             "Asks a running server what happened to a request: how long it waited, what the "
             "prefix\n"
             "cache had of its prompt, chunks, decodes, preemptions and its end. Without an ID it "
             "lists\n"
             "the requests that the server remembers, the newest first.\n\n"
             "  heddle trace req-4fb9829daa22af61 --url http://127.0.0.1:8000\n";
    case kTune:
      return "heddle tune MODEL --device cuda:N [--tune-profile FILE] [options]\n"
             "       heddle tune --random-weights SHAPE [--weights FORMAT] --device cuda:N "
             "[options]\n\n"
             "Measures decoding steps and chunks of prompts of several sizes, run whole and\n"
             "split in two halves of which one attends, or sums across GPUs (--tp), while the\n"
             "other one multiplies, with the multiprocessors divided in several ways. Prints the\n"
             "times, and writes to FILE which steps are worth splitting; `heddle serve\n"
             "--tune-profile FILE` follows it, with the same model and --tp.\n\n"
             "  heddle tune ~/models/Llama-3.1-8B --device cuda:0 --tune-profile h200.jsonl\n";
    case kHealth:
      return "heddle health [--url URL]\n\n"
             "Asks a running server's /health. Ends with 0 if requests make progress, else with\n"
             "1 and the reason: for supervisors that run a program and look at its exit code.\n\n"
             "  heddle health --url http://127.0.0.1:8000\n";
  }
  return "";
}

}  // namespace heddle::config
