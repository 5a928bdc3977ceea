// Parts of the pipeline on their own, and the promises that need no reference.
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/utf8.h"
#include "catch2/catch.hpp"
#include "engine/text/byte_trie.h"
#include "engine/text/class_run.h"
#include "engine/text/gguf_patterns.h"
#include "engine/text/regex.h"
#include "engine/text/regex_scanners.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"
#include "tests/text/tokenizer/golden_tokenizer.h"
#include "tests/text/tokenizer/random_text.h"

namespace heddle::engine::text {
namespace {

std::vector<TokenId> Encode(const Tokenizer& tokenizer, std::string_view text,
                            EncodeOptions options) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.Encode(text, options, &ids).ok());
  return ids;
}

TEST_CASE("A scanner finds what PCRE2 finds with the same pattern", "[text][unit]") {
  const std::string_view pattern =
      GENERATE(as<std::string_view>(), kGpt2Pattern, kCl100kPattern, kDeepseek3Pattern);
  const auto spec = FindScanner(pattern);
  REQUIRE(spec.has_value());
  const auto regex = Regex::Compile(pattern);
  REQUIRE(regex.ok());
  for (uint64_t i = 0; i < 3000; ++i) {
    const std::string text = RandomText(1'000'000 + i);
    std::vector<std::string> scanned;
    std::vector<std::string> matched;
    REQUIRE(Scan(*spec, text, [&](std::string_view part) {
              scanned.emplace_back(part);
              return absl::OkStatus();
            }).ok());
    size_t done = 0;
    const auto add = [&](size_t begin, size_t end) {
      if (begin > done) matched.push_back(text.substr(done, begin - done));
      matched.push_back(text.substr(begin, end - begin));
      done = end;
      return absl::OkStatus();
    };
    REQUIRE(regex->ForEachMatch(text, add).ok());
    if (done < text.size()) matched.push_back(text.substr(done));
    CHECK(scanned == matched);
  }
}

std::vector<std::string> MatchesOf(const Regex& regex, const std::string& text) {
  std::vector<std::string> matches;
  REQUIRE(regex
              .ForEachMatch(text,
                            [&](size_t begin, size_t end) {
                              matches.push_back(text.substr(begin, end - begin));
                              return absl::OkStatus();
                            })
              .ok());
  return matches;
}

TEST_CASE("Runs of one class are found where PCRE2 finds them", "[text][unit]") {
  std::vector<std::string> patterns = {"\\s+$",         "a",        "[0-9]{3}",  "\\p{N}{1,3}",
                                       "[^\\s\\p{L}]+", "x?[x-z]+", "-?[-a]{2}", "\\s?\\s+",
                                       "[\\x{e9}é-ü-]+"};
  for (const char* name : {"deepseek-coder", "deepseek-llm", "falcon", "default", "bloom"}) {
    for (const std::string_view split : FindGgufPattern(name)->splits) {
      if (!FindScanner(split)) patterns.emplace_back(split);
    }
  }
  for (const std::string& pattern : patterns) {
    INFO(pattern);
    CHECK(ClassRun::Parse(pattern).has_value());
    const auto run = Regex::Compile(pattern);
    const auto engine = Regex::Compile("(?:" + pattern + ")");  // no form of a run
    REQUIRE((run.ok() && engine.ok()));
    for (uint64_t i = 0; i < 1500; ++i) {
      const std::string text = RandomText(2'000'000 + i);
      CHECK(MatchesOf(*run, text) == MatchesOf(*engine, text));
    }
    for (const char* text :
         {"", "x", "xx", "12345678", "a -a--a \n \n\n  ", "  \n  b  \n", "\n", "yxz xa"}) {
      CHECK(MatchesOf(*run, text) == MatchesOf(*engine, text));
    }
  }
}

TEST_CASE("What is more than a run of one class is left to the engine", "[text][unit]") {
  for (const char* pattern :
       {"",      "a*",     "a?",          "ab",       "a|b",    "(a)",        "a+?",
        "a++",   "a{0,2}", "a{3,2}",      "[a",       "[]a]",   "[a-z&&[b]]", "[\\s-z]",
        "[z-a]", "\\d+",   "\\w+",        "\\p{Lu}+", "\\P{L}", "[a\\S]",     "x?a+$",
        ".",     "^a",     "\\x{110000}", "a$b"}) {
    INFO(pattern);
    CHECK_FALSE(ClassRun::Parse(pattern).has_value());
  }
}

TEST_CASE("Expressions that PCRE2 would read differently are refused", "[text][unit]") {
  CHECK_FALSE(Regex::Compile("[a-z&&[^b]]").ok());
  CHECK_FALSE(Regex::Compile("[a[bc]]").ok());
  CHECK_FALSE(Regex::Compile("(").ok());
  CHECK(Regex::Compile("[[:alpha:]]+|[]a]").ok());
}

TEST_CASE("Bytes that are no UTF-8 are encoded as they are by byte-level tokenizers",
          "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("falcon_like.json");
  const std::string text = "ab\xFF\xC3\x28 cd\xE2\x82";
  std::string bytes;
  for (const TokenId id : Encode(*tokenizer, text, {.add_special = false})) {
    bytes.append(tokenizer->TokenBytes(id));
  }
  CHECK(bytes == text);
}

TEST_CASE("Bytes that are no UTF-8 are U+FFFD to other tokenizers", "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("spm_bpe.model");
  const auto ids = Encode(*tokenizer, "the\xFF", {.add_special = false});
  CHECK(ids == Encode(*tokenizer, "the\xEF\xBF\xBD", {.add_special = false}));
  CHECK(tokenizer->Decode(ids, true) == "the\xEF\xBF\xBD");
}

TEST_CASE("Special tokens in a text are text unless they are asked for", "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("cl100k.json");
  const auto bos = tokenizer->Find("<s>");
  REQUIRE(bos == TokenId{1});
  CHECK(Encode(*tokenizer, "<s>", {.add_special = false}) == std::vector<TokenId>{1});
  const auto plain = Encode(*tokenizer, "<s>", {.add_special = false, .parse_special = false});
  CHECK(plain.size() > 1);
  CHECK(tokenizer->Decode(plain, true) == "<s>");
  CHECK(Encode(*tokenizer, "", {}) == std::vector<TokenId>{1});
  CHECK(tokenizer->Decode(std::vector<TokenId>{1}, true).empty());
  CHECK(tokenizer->IsSpecial(1));
  CHECK(tokenizer->add_bos());
}

// The whole text through the library, without a look at what needs it.
std::string ComposedByUtf8proc(const std::string& text) {
  utf8proc_uint8_t* mapped = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  REQUIRE(mapped != nullptr);
  std::string out(reinterpret_cast<const char*>(mapped));
  std::free(mapped);
  return out;
}

TEST_CASE("What passes as normalised is what utf8proc's NFC leaves alone", "[text][unit]") {
  // Before: what much composes with, a leading consonant, a syllable, kana.
  int passed = 0;
  int wrong = 0;
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string one;
    base::AppendUtf8(c, &one);
    if (!IsSurelyNormalized(one, NormalForm::kNfc)) continue;
    ++passed;
    for (const char* before : {"e", "\u1100", "\uAC00", "\u304B", "\u03B1", "="}) {
      if (ComposedByUtf8proc(before + one) != before + one) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(passed > 30000);
  CHECK_FALSE(IsSurelyNormalized("e\u0301", NormalForm::kNfc));
  CHECK_FALSE(IsSurelyNormalized("\u212B", NormalForm::kNfc));
  CHECK_FALSE(IsSurelyNormalized("\u201C", NormalForm::kNfkc));
}

TEST_CASE("Normalising only the parts that need it gives what the whole gives", "[text][unit]") {
  const char* marks[] = {"", "\u0301", "\u0323\u0307", "\u3099", "\u11A8", "\u1161", "\u212B", "a"};
  int wrong = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const std::string text = RandomText(i) + marks[i % 8] + RandomText(i + 1) + marks[i / 8 % 8];
    if (text.find('\0') != std::string::npos) continue;
    if (Normalize(text, NormalForm::kNfc) != ComposedByUtf8proc(text)) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(Normalize("\u1100\u1161\u11A8 e\u0301\u0323, \u201Ca\u030A\u201D", NormalForm::kNfc) ==
        "\uAC01 \u1EB9\u0301, \u201C\u00E5\u201D");
}

TEST_CASE("A trie finds exactly the strings that it was made of", "[text][unit]") {
  // All short beginnings of random texts, some bytes of which are shared by many.
  std::map<std::string, int32_t> strings;
  for (uint64_t i = 0; i < 3000; ++i) {
    const std::string text = RandomText(i);
    for (const size_t size : {1u, 2u, 3u, 7u, 40u}) {
      if (size <= text.size()) strings[text.substr(0, size)] = static_cast<int32_t>(i);
    }
  }
  std::vector<ByteTrie::Entry> entries = {{"", 1}, {"the", 2}, {"the", 3}};
  for (const auto& [text, value] : strings) {
    if (text != "the") entries.push_back({text, value});
  }
  strings["the"] = 3;  // of two with one text the last counts
  const ByteTrie trie = ByteTrie::Build(entries);
  const auto find = [&trie](std::string_view text) {
    uint32_t node = ByteTrie::kRoot;
    for (const char byte : text) {
      node = trie.Child(node, static_cast<unsigned char>(byte));
      if (node == ByteTrie::kNoNode) return ByteTrie::kNoValue;
    }
    return trie.Value(node);
  };
  int wrong = 0;
  for (const auto& [text, value] : strings) {
    if (find(text) != value) ++wrong;
    for (const std::string& other : {text + "x", text.substr(0, text.size() - 1)}) {
      const auto known = strings.find(other);
      if (find(other) != (known == strings.end() ? ByteTrie::kNoValue : known->second)) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(find("") == ByteTrie::kNoValue);
  CHECK(ByteTrie().Child(ByteTrie::kRoot, 'a') == ByteTrie::kNoNode);
}

TEST_CASE("A word of a megabyte takes no more than n log n", "[text][unit]") {
  const char* name = GENERATE("falcon_like.json", "spm_bpe.model", "unigram.json");
  const auto tokenizer = GoldenTokenizer(name);
  const std::string word(1 << 20, 'e');
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(Encode(*tokenizer, word, {}).empty());
  // Quadratic work would be 10^12 steps; the bound leaves room for sanitizers.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("Threads that share a tokenizer get the ids that each gets alone", "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("o200k.json");
  std::vector<std::vector<TokenId>> expected;
  for (uint64_t i = 0; i < 200; ++i) expected.push_back(Encode(*tokenizer, RandomText(i), {}));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        std::vector<TokenId> ids;
        const bool ok = tokenizer->Encode(RandomText(i), {}, &ids).ok();
        if (!ok || ids != expected[i]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

}  // namespace
}  // namespace heddle::engine::text
