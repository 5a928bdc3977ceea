#!/usr/bin/env python3
"""config.json files that must be readable, for tests/model/known_keys_test.cc: tests/model/configs.jsonl.

    make_config_goldens.py [FOLDER]

Each line has a name and a configuration: what transformers writes for the defaults of each supported class, and files of
published models: those of FOLDER, named MODEL_config.json, whose architecture is supported, once where several are the same. What is
said of quantisation and images is cut out. Run with the versions in requirements.txt.
"""

import json
import pathlib
import sys

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

TYPES = """llama mistral ministral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi3 olmo2 olmo3
smollm3 granite gpt_oss deepseek_v2 deepseek_v3 nemotron gpt2 gpt_neox starcoder2 falcon glm glm4 seed_oss ernie4_5 arcee
cohere cohere2 exaone4 olmoe glm4_moe minimax_m2 ministral3 mamba2 bamba nemotron_h falcon_h1""".split()

# Classes whose published files are taken as well.
PUBLISHED = """DeciLMForCausalLM DeepseekV32ForCausalLM Gemma4ForConditionalGeneration GlmMoeDsaForCausalLM
KimiK25ForConditionalGeneration Llama4ForConditionalGeneration MiMoForCausalLM PhiModel Qwen3VLForConditionalGeneration
Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration""".split()


def main():
    lines = []
    for kind in TYPES:
        config = transformers.AutoConfig.for_model(kind)
        lines.append((f"transformers {kind}", json.loads(config.to_json_string(use_diff=False))
                      | {"architectures": [CLASSES[kind]]}))
    supported = {CLASSES[kind] for kind in TYPES} | set(PUBLISHED)
    seen = []
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*_config.json")) if len(sys.argv) > 1 else []:
        config = json.loads(file.read_text())
        if config.get("architectures", [None])[0] in supported:
            lines.append((file.name.removesuffix("_config.json").replace("--", "/"), config))
    target = pathlib.Path(__file__).parents[1] / "model/configs.jsonl"
    with target.open("w") as out:
        for name, config in lines:
            for part in (config, config.get("text_config", {})):
                for key in ("quantization_config", "id2label", "label2id", "vision_config", "audio_config"):
                    part.pop(key, None)
            if config in seen:
                continue
            seen.append(config)
            line = json.dumps({"name": name, "config": config}, separators=(",", ":"))
            out.write(line.replace("Infinity", "1e30") + "\n")  # the test reads plain JSON
    print(f"{len(lines)} configurations, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
