#!/usr/bin/env python3
"""Embeddings and scores of tiny models by Hugging Face transformers: tests/golden/pooled_models.json, for
tests/model/pooled_models_test.cc.

A case has the files of a folder as users have them (config.json and what sentence-transformers keeps
beside it), tensors (name, shape, scale, offset; values by synthetic_weights.py), prompts of several
lengths, and what the folder's model makes of each: the embedding, or the logits and the scores of
classes. Everything in float32 on the CPU with eager attention.

Run with the versions in requirements.txt: ./make_pooled_goldens.py
"""

import copy
import json
import pathlib

import torch
import transformers

import make_model_goldens as models
import synthetic_weights

HERE = pathlib.Path(__file__).parent
LENGTHS = (1, 7, 33, 61)

LLAMA = dict(models.SMALL_LLAMA, num_hidden_layers=2)
QWEN3 = dict(models.QWEN3, num_hidden_layers=2)
GPT2 = dict(models.GPT2, n_layer=2)

BERT = dict(
    architectures=["BertModel"], model_type="bert", vocab_size=301, hidden_size=60,
    intermediate_size=112, num_hidden_layers=3, num_attention_heads=5, max_position_embeddings=64,
    type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12, pad_token_id=0,
    position_embedding_type="absolute")
ROBERTA = {**BERT, "architectures": ["RobertaModel"], "model_type": "roberta", "type_vocab_size": 1,
           "pad_token_id": 1, "max_position_embeddings": 66, "layer_norm_eps": 1e-5}
DISTILBERT = dict(
    architectures=["DistilBertModel"], model_type="distilbert", vocab_size=301, dim=64,
    hidden_dim=100, n_layers=2, n_heads=4, max_position_embeddings=64, activation="gelu",
    pad_token_id=0, sinusoidal_pos_embds=False)
MODERNBERT = dict(
    architectures=["ModernBertModel"], model_type="modernbert", vocab_size=301, hidden_size=64,
    intermediate_size=72, num_hidden_layers=5, num_attention_heads=4, max_position_embeddings=128,
    local_attention=12, global_attn_every_n_layers=3, global_rope_theta=5000.0,
    local_rope_theta=700.0, pad_token_id=0, norm_eps=1e-5, hidden_activation="gelu",
    position_embedding_type="absolute", cls_token_id=1, sep_token_id=2)

TRANSFORMER = dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer")


def modules(*others):
    """modules.json: pairs of a class and a folder behind the transformer."""
    return [TRANSFORMER] + [
        dict(idx=i + 1, name=str(i + 1), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (kind, path) in enumerate(others)]


def pooling(mode, hidden=64):
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
             "weightedmean_tokens", "lasttoken")
    return dict(word_embedding_dimension=hidden, include_prompt=True,
                **{f"pooling_mode_{m}": m == mode for m in modes})


def dense(inputs, outputs, activation, bias=True):
    return dict(in_features=inputs, out_features=outputs, bias=bias,
                activation_function=f"torch.nn.modules.{activation}")


def labels(*names):
    return dict(id2label={str(i): name for i, name in enumerate(names)},
                label2id={name: i for i, name in enumerate(names)})


CASES = {
    "qwen3_embedding": dict(
        config=dict(QWEN3, architectures=["Qwen3Model"]), pool="last",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("lasttoken")}),
    "qwen3_without_head": dict(  # as Qwen3-Embedding is published
        config=dict(QWEN3, tie_word_embeddings=False), pool="last",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("lasttoken")}),
    "llama_mean_dense": dict(
        config=dict(LLAMA, architectures=["LlamaModel"]), pool="mean",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Dense", "2_Dense"),
                                       ("Dense", "3_Dense")),
               "1_Pooling/config.json": pooling("mean_tokens"),
               "2_Dense/config.json": dense(64, 80, "activation.Tanh"),
               "3_Dense/config.json": dense(80, 24, "linear.Identity", bias=False)}),
    "gpt2_first": dict(
        config=dict(GPT2, architectures=["GPT2Model"]), pool="first",
        files={"modules.json": modules(("Pooling", "1_Pooling")),
               "1_Pooling/config.json": pooling("cls_token")}),
    "qwen3_reranker": dict(config=dict(
        QWEN3, architectures=["Qwen3ForSequenceClassification"], pad_token_id=0,
        **labels("LABEL_0"))),
    "llama_reward": dict(config=dict(
        LLAMA, architectures=["LlamaForSequenceClassification"], pad_token_id=0,
        problem_type="regression", **labels("reward"))),
    "gpt2_classes": dict(config=dict(
        GPT2, architectures=["GPT2ForSequenceClassification"], pad_token_id=0,
        **labels("bad", "good", "other"))),
    "llama_many_labels": dict(config=dict(
        LLAMA, architectures=["LlamaForSequenceClassification"], pad_token_id=0,
        problem_type="multi_label_classification", **labels("a", "b", "c", "d"))),
    "bert_mean": dict(
        config=BERT, pool="mean", pairs=True,
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("mean_tokens", 60)}),
    "bert_first_relu": dict(
        config=dict(BERT, hidden_act="relu", type_vocab_size=1, num_hidden_layers=2), pool="first",
        files={"modules.json": modules(("Pooling", "1_Pooling")),
               "1_Pooling/config.json": pooling("cls_token", 60)}),
    "bert_cross_encoder": dict(pairs=True, config=dict(
        BERT, architectures=["BertForSequenceClassification"], num_hidden_layers=2,
        sbert_ce_default_activation_function="torch.nn.modules.linear.Identity",
        **labels("LABEL_0"))),
    "bert_classes": dict(config=dict(
        BERT, architectures=["BertForSequenceClassification"], num_hidden_layers=2,
        **labels("a", "b", "c"))),
    "roberta_first": dict(
        config=ROBERTA, pool="first",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("cls_token", 60)}),
    "xlm_roberta_reranker": dict(config=dict(
        ROBERTA, architectures=["XLMRobertaForSequenceClassification"], model_type="xlm-roberta",
        num_hidden_layers=2, **labels("LABEL_0"))),
    "camembert_without_modules": dict(
        config=dict(ROBERTA, architectures=["CamembertModel"], model_type="camembert",
                    num_hidden_layers=2), pool="mean", files={}),
    "distilbert_mean": dict(config=DISTILBERT, pool="mean", files={}),
    "distilbert_classes": dict(config=dict(
        DISTILBERT, architectures=["DistilBertForSequenceClassification"], **labels("no", "yes"))),
    "modernbert_first": dict(
        config=MODERNBERT, pool="first",
        files={"modules.json": modules(("Pooling", "1_Pooling")),
               "1_Pooling/config.json": pooling("cls_token")}),
    "modernbert_as_saved": dict(
        config={**{k: v for k, v in MODERNBERT.items() if not k.endswith("rope_theta")
                   and k != "global_attn_every_n_layers"},
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "num_hidden_layers": 3, "norm_bias": True, "attention_bias": True,
                "rope_parameters": dict(
                    full_attention=dict(rope_type="default", rope_theta=9000.0),
                    sliding_attention=dict(rope_type="default", rope_theta=400.0))},
        pool="mean", files={}),
    "modernbert_reranker": dict(config=dict(
        MODERNBERT, architectures=["ModernBertForSequenceClassification"], num_hidden_layers=3,
        classifier_pooling="mean", **labels("LABEL_0"))),
}


def fill(module, prefix=""):
    """Sets all parameters; returns the tensors of the file."""
    tensors = []
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shape = list(parameter.shape)
            scale, offset = models.scale_and_offset(name.lower(), shape)
            parameter.copy_(torch.from_numpy(
                synthetic_weights.values(prefix + name, shape, scale, offset)))
            tensors.append([prefix + name, shape, scale, offset])
    return tensors


def build(config):
    options = copy.deepcopy(config)
    parsed = transformers.AutoConfig.for_model(**options)
    kind = config["architectures"][0]
    auto = (transformers.AutoModelForSequenceClassification
            if kind.endswith("ForSequenceClassification") else transformers.AutoModel)
    model = auto.from_config(parsed, attn_implementation="eager")
    return model.to(torch.float32).eval()


def score(logits, config):
    problem = config.get("problem_type")
    identity = config.get("sbert_ce_default_activation_function", "").endswith("Identity")
    if problem == "regression" or identity:
        return logits
    if problem == "multi_label_classification" or len(config["id2label"]) == 1:
        return torch.sigmoid(logits)
    return torch.softmax(logits, dim=-1)


def pooled(states, how):
    return {"last": states[-1], "first": states[0], "mean": states.mean(0)}[how]


def inputs(ids, second):
    given = dict(input_ids=torch.tensor([ids]))
    if second is not None:
        types = [int(0 <= second <= i) for i in range(len(ids))]
        given["token_type_ids"] = torch.tensor([types])
    return given


def embed(model, case, given, folders):
    states = model(**given).last_hidden_state[0]
    vector = pooled(states, case["pool"])
    for module in folders:
        vector = module(vector)
    types = [m["type"].rsplit(".", 1)[1] for m in case["files"].get("modules.json", [])]
    return vector / vector.norm() if "Normalize" in types or not types else vector


def dense_modules(case):
    """The Dense modules of a case, and the tensors of each folder."""
    folders, tensors = [], {}
    for module in case.get("files", {}).get("modules.json", []):
        if not module["type"].endswith("Dense"):
            continue
        config = case["files"][module["path"] + "/config.json"]
        linear = torch.nn.Linear(config["in_features"], config["out_features"], config["bias"])
        tensors[module["path"]] = fill(torch.nn.ModuleDict({"linear": linear}))
        activation = (torch.nn.Tanh() if config["activation_function"].endswith("Tanh")
                      else torch.nn.Identity())
        folders.append(torch.nn.Sequential(linear, activation))
    return folders, tensors


def make_case(name, case):
    torch.manual_seed(0)
    model = build(case["config"])
    tensors = fill(model)
    folders, folder_tensors = dense_modules(case)
    vocab = case["config"]["vocab_size"]
    prompts = [[(17 * i * i + 29 * i + 11 + n) % (vocab - 2) + 2 for i in range(n)]
               for n in LENGTHS]
    outputs, scores = [], []
    # Where the second text of each prompt begins; -1: there is none.
    seconds = [len(ids) // 2 if len(ids) > 1 else -1 for ids in prompts] if case.get("pairs") else []
    with torch.no_grad():
        for i, ids in enumerate(prompts):
            given = inputs(ids, seconds[i] if seconds else None)
            if case["config"]["architectures"][0].endswith("ForSequenceClassification"):
                logits = model(**given).logits[0]
                outputs.append(logits)
                scores.append(score(logits, case["config"]))
            else:
                outputs.append(embed(model, case, given, folders))
    rounded = [[models.rounded(x) for x in row.tolist()] for row in outputs]
    return dict(name=name, config=case["config"], files=case.get("files", {}), tensors=tensors,
                folder_tensors=folder_tensors, prompts=prompts, seconds=seconds, outputs=rounded,
                scores=[[models.rounded(x) for x in row.tolist()] for row in scores])


def main():
    lines = [json.dumps(make_case(name, case), separators=(",", ":"))
             for name, case in CASES.items()]
    text = "{\"transformers\":%s,\"cases\":[\n%s\n]}\n" % (
        json.dumps(transformers.__version__), ",\n".join(lines))
    (HERE / "pooled_models.json").write_text(text)
    print(f"{len(lines)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
