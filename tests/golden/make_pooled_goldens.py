#!/usr/bin/env python3
"""Embeddings and scores of tiny models by Hugging Face transformers: tests/golden/pooled_models.json, for
tests/model/pooled_models_test.cc.

A case has the files of a folder as users have them (config.json and what sentence-transformers keeps
beside it), tensors (name, shape, scale, offset; values by synthetic_weights.py), prompts of several
lengths, and what the folder's model makes of each: the embedding, or the logits and the scores of
classes. Everything in float32 on the CPU with eager attention. Some cases say also what the GGUF file
holds that llama.cpp's converter makes of the folder: architecture, metadata, and for every tensor how
it comes from the folder's; names are those of the `gguf` package.

Run with the versions in requirements.txt: ./make_pooled_goldens.py
"""

import copy
import json
import pathlib

import gguf
import torch
import transformers

import make_model_goldens as models
import synthetic_weights

HERE = pathlib.Path(__file__).parent
LENGTHS = (1, 7, 33, 61)
LONG = (1, 17, 100, 700)

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

NOMIC = dict(
    architectures=["NomicBertModel"], model_type="nomic_bert", vocab_size=301, hidden_size=60,
    intermediate_size=104, num_hidden_layers=3, num_attention_heads=5, max_position_embeddings=64,
    type_vocab_size=2, hidden_act="silu", layer_norm_eps=1e-12, pad_token_id=0)
# The same as its first files have it, with GPT-2's keys.
OLDER_NOMIC = dict(
    architectures=["NomicBertModel"], model_type="nomic_bert", vocab_size=301, n_embd=60, n_inner=104,
    n_layer=3, n_head=5, n_positions=256, max_trained_positions=64, type_vocab_size=2,
    activation_function="swiglu", layer_norm_epsilon=1e-12, pad_token_id=0, rotary_emb_base=700,
    rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
    rotary_scaling_factor=2, causal=False, prenorm=False, qkv_proj_bias=False, mlp_fc1_bias=False,
    mlp_fc2_bias=False, use_rms_norm=False, parallel_block=False, parallel_block_tied_norm=False,
    attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, fused_bias_fc=True, fused_dropout_add_ln=True,
    dense_seq_output=True, use_flash_attn=True, use_xentropy=True, pad_vocab_size_multiple=64,
    scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False)
EUROBERT = dict(
    architectures=["EuroBertModel"], model_type="eurobert", vocab_size=301, hidden_size=64,
    intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, rms_norm_eps=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    rope_parameters=dict(rope_type="default", rope_theta=2500.0), mask_token_id=3)
EMBEDDING_GEMMA = {
    **{k: v for k, v in models.GEMMA3.items() if k != "rope_scaling"},
    "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True, "sliding_window": 12,
    "query_pre_attn_scalar": 32}

GTE = dict(
    architectures=["GteModel"], model_type="gte", vocab_size=301, hidden_size=60,
    intermediate_size=104, num_hidden_layers=3, num_attention_heads=5, max_position_embeddings=64,
    type_vocab_size=1, hidden_act="gelu", layer_norm_eps=1e-12, pad_token_id=1,
    rope_parameters=dict(rope_type="default", rope_theta=3000.0))
# The configuration of the authors' own code, whose fixed NTK scaling by 8 is a larger base and, with
# heads of 12, one factor of 8^(2 / 12) for all frequencies.
NEW_GTE = {
    **{k: v for k, v in GTE.items() if k != "rope_parameters"}, "architectures": ["NewModel"],
    "model_type": "new", "type_vocab_size": 0, "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False, "logn_attention_scale": False, "pack_qkv": True,
    "position_embedding_type": "rope", "rope_scaling": dict(factor=8.0, type="ntk"),
    "rope_theta": 700, "unpad_inputs": False, "use_memory_efficient_attention": True}
NEW_GTE_RUN = dict(GTE, type_vocab_size=0, rope_parameters=dict(
    rope_type="linear", factor=8.0 ** (2 / 12), rope_theta=5600.0))
JINA_V3 = dict(
    architectures=["JinaEmbeddingsV3Model"], model_type="jina_embeddings_v3", vocab_size=301,
    hidden_size=60, intermediate_size=112, num_hidden_layers=3, num_attention_heads=5,
    max_position_embeddings=66, type_vocab_size=1, hidden_act="gelu", layer_norm_eps=1e-5,
    pad_token_id=1, bos_token_id=0, eos_token_id=2,
    rope_parameters=dict(rope_type="default", rope_theta=900.0))

JINA_V2 = dict(
    {k: v for k, v in BERT.items()}, architectures=["JinaBertForMaskedLM"],
    position_embedding_type="alibi", feed_forward_type="geglu", emb_pooler="mean",
    attn_implementation="torch", model_max_length=64)
MPNET = dict(
    architectures=["MPNetModel"], model_type="mpnet", vocab_size=301, hidden_size=60,
    intermediate_size=112, num_hidden_layers=3, num_attention_heads=5, max_position_embeddings=66,
    hidden_act="gelu", layer_norm_eps=1e-12, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    relative_attention_num_buckets=32)
ELECTRA = dict(BERT, architectures=["ElectraModel"], model_type="electra", embedding_size=60)
ERNIE = dict(BERT, architectures=["ErnieModel"], model_type="ernie", use_task_id=False,
             task_type_vocab_size=3)
LLAMA_EMBED = {**{k: v for k, v in EUROBERT.items() if k != "mask_token_id"},
               "architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec",
               "pooling": "avg"}

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


def first_of(config, *keys):
    """The value of the first of these keys that the config has."""
    return next(config[key] for key in keys if key in config)


def labels(*names):
    return dict(id2label={str(i): name for i, name in enumerate(names)},
                label2id={name: i for i, name in enumerate(names)})


ARCH = gguf.MODEL_ARCH
KEYS = gguf.Keys
NOT_CAUSAL = (KEYS.Attention.CAUSAL, False)


def gguf_keys(config, pooling_type, *more):
    """Metadata of an encoder or an embedding model, as the converter writes it."""
    size = first_of(config, "hidden_size", "dim", "n_embd")
    return [
        (KEYS.LLM.VOCAB_SIZE, config["vocab_size"]), (KEYS.LLM.EMBEDDING_LENGTH, size),
        (KEYS.LLM.BLOCK_COUNT, first_of(config, "num_hidden_layers", "n_layers", "n_layer")),
        (KEYS.LLM.FEED_FORWARD_LENGTH,
         first_of(config, "intermediate_size", "hidden_dim", "n_inner")),
        (KEYS.Attention.HEAD_COUNT,
         first_of(config, "num_attention_heads", "n_heads", "n_head")),
        (KEYS.LLM.POOLING_TYPE, int(pooling_type)), *more]


POOL = gguf.PoolingType
LAYER_NORM = (KEYS.Attention.LAYERNORM_EPS, 1e-12)
LABELS = "{arch}.classifier.output_labels"


def bert_gguf(config, pooling_type, *more, offset=0, eps=1e-12):
    context = config["max_position_embeddings"] - offset
    return dict(arch=ARCH.BERT, offset=offset, keys=gguf_keys(
        config, pooling_type, (KEYS.LLM.CONTEXT_LENGTH, context), NOT_CAUSAL,
        (KEYS.Attention.LAYERNORM_EPS, eps), *more))


CASES = {
    "qwen3_embedding": dict(
        config=dict(QWEN3, architectures=["Qwen3Model"]), pool="last",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("lasttoken")}),
    "qwen3_without_head": dict(  # as Qwen3-Embedding is published
        config=dict(QWEN3, tie_word_embeddings=False), pool="last",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("lasttoken")}),
    "qwen2_both_ways": dict(  # as gte-Qwen2 is published
        config=dict(models.QWEN2, num_hidden_layers=2, tie_word_embeddings=False, is_causal=False), pool="last",
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
    "qwen3_yes_no": dict(
        config=dict(QWEN3, architectures=["Qwen3ForSequenceClassification"], pad_token_id=0,
                    **labels("yes", "no")),
        gguf=dict(arch=ARCH.QWEN3, keys=gguf_keys(
            QWEN3, POOL.RANK, (KEYS.LLM.CONTEXT_LENGTH, 128), (LABELS, ["yes", "no"]),
            (KEYS.Attention.HEAD_COUNT_KV, QWEN3["num_key_value_heads"]),
            (KEYS.Attention.KEY_LENGTH, 32), (KEYS.Attention.VALUE_LENGTH, 32),
            (KEYS.Attention.LAYERNORM_RMS_EPS, QWEN3["rms_norm_eps"]),
            (KEYS.Rope.FREQ_BASE, QWEN3.get("rope_theta", 10000.0))))),
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
        config=BERT, pool="mean", pairs=True, gguf=bert_gguf(BERT, POOL.MEAN),
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
        config=ROBERTA, pool="first", gguf=bert_gguf(ROBERTA, POOL.CLS, offset=2, eps=1e-5),
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("cls_token", 60)}),
    "xlm_roberta_reranker": dict(
        config=dict(
            ROBERTA, architectures=["XLMRobertaForSequenceClassification"],
            model_type="xlm-roberta", num_hidden_layers=2, **labels("LABEL_0")),
        gguf=bert_gguf(dict(ROBERTA, num_hidden_layers=2), POOL.RANK, (LABELS, ["LABEL_0"]),
                       offset=2, eps=1e-5)),
    "camembert_without_modules": dict(
        config=dict(ROBERTA, architectures=["CamembertModel"], model_type="camembert",
                    num_hidden_layers=2), pool="mean", files={}),
    "distilbert_mean": dict(config=DISTILBERT, pool="mean", files={}),
    "distilbert_classes": dict(
        config=dict(DISTILBERT, architectures=["DistilBertForSequenceClassification"],
                    **labels("no", "yes")),
        gguf=bert_gguf(DISTILBERT, POOL.RANK)),
    "modernbert_first": dict(
        config=MODERNBERT, pool="first",
        gguf=dict(arch=ARCH.MODERN_BERT, keys=gguf_keys(
            MODERNBERT, POOL.CLS, (KEYS.LLM.CONTEXT_LENGTH, 128), NOT_CAUSAL,
            (KEYS.Attention.LAYERNORM_EPS, 1e-5), (KEYS.Attention.SLIDING_WINDOW, 12),
            (KEYS.Attention.SLIDING_WINDOW_PATTERN, 3), (KEYS.Rope.SCALING_TYPE, "none"),
            (KEYS.Rope.FREQ_BASE, 5000.0), (KEYS.Rope.FREQ_BASE_SWA, 700.0))),
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
    "modernbert_classes": dict(
        config=dict(MODERNBERT, architectures=["ModernBertForSequenceClassification"],
                    num_hidden_layers=3, **labels("a", "b")),
        gguf=dict(arch=ARCH.MODERN_BERT, keys=gguf_keys(
            dict(MODERNBERT, num_hidden_layers=3), POOL.RANK, (KEYS.LLM.CONTEXT_LENGTH, 128),
            NOT_CAUSAL, (KEYS.Attention.LAYERNORM_EPS, 1e-5), (LABELS, ["a", "b"]),
            (KEYS.Attention.SLIDING_WINDOW, 12), (KEYS.Rope.FREQ_BASE, 5000.0),
            (KEYS.Rope.FREQ_BASE_SWA, 700.0)))),
    "nomic_mean": dict(
        config=dict(NOMIC, rope_parameters=dict(rope_type="default", rope_theta=700.0)),
        pool="mean", pairs=True, files={},
        gguf=dict(arch=ARCH.NOMIC_BERT, keys=gguf_keys(
            NOMIC, POOL.MEAN, (KEYS.LLM.CONTEXT_LENGTH, 64), NOT_CAUSAL, LAYER_NORM,
            (KEYS.Rope.FREQ_BASE, 700.0)))),
    "nomic_older_keys": dict(
        config=OLDER_NOMIC, pool="mean", files={},
        run_config=dict(NOMIC, rope_parameters=dict(rope_type="default", rope_theta=700.0))),
    "nomic_classes": dict(
        config=dict(NOMIC, architectures=["NomicBertForSequenceClassification"],
                    **labels("a", "b", "c"))),
    "gte_mean": dict(config=GTE, pool="mean", files={}),
    "gte_new": dict(config=NEW_GTE, run_config=NEW_GTE_RUN, pool="mean", files={}),
    "gte_new_reranker": dict(
        config=dict(NEW_GTE, architectures=["NewForSequenceClassification"], **labels("LABEL_0")),
        run_config=dict(NEW_GTE_RUN, architectures=["GteForSequenceClassification"],
                        **labels("LABEL_0"))),
    "jina_v3_mean": dict(config=JINA_V3, pool="mean", files={}),
    "jina_v3_classes": dict(config=dict(
        JINA_V3, architectures=["JinaEmbeddingsV3ForSequenceClassification"],
        **labels("a", "b", "c"))),
    "eurobert_mean": dict(
        config=EUROBERT, pool="mean", files={},
        gguf=dict(arch=ARCH.EUROBERT, keys=gguf_keys(
            EUROBERT, POOL.MEAN, (KEYS.LLM.CONTEXT_LENGTH, 128), NOT_CAUSAL,
            (KEYS.Attention.HEAD_COUNT_KV, 2), (KEYS.Attention.LAYERNORM_RMS_EPS, 1e-5),
            (KEYS.Rope.SCALING_TYPE, "none"), (KEYS.Rope.FREQ_BASE, 2500.0)))),
    "eurobert_reranker": dict(config=dict(
        EUROBERT, architectures=["EuroBertForSequenceClassification"], classifier_pooling="bos",
        **labels("LABEL_0"))),
    "embedding_gemma": dict(
        config=EMBEDDING_GEMMA, pool="mean",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Dense", "2_Dense"),
                                       ("Dense", "3_Dense"), ("Normalize", "4_Normalize")),
               "1_Pooling/config.json": pooling("mean_tokens"),
               "2_Dense/config.json": dense(64, 96, "linear.Identity", bias=False),
               "3_Dense/config.json": dense(96, 48, "linear.Identity", bias=False)},
        gguf=dict(arch=ARCH.GEMMA_EMBEDDING, keys=gguf_keys(
            EMBEDDING_GEMMA, POOL.MEAN, (KEYS.LLM.CONTEXT_LENGTH, 128), NOT_CAUSAL,
            (KEYS.Attention.HEAD_COUNT_KV, EMBEDDING_GEMMA["num_key_value_heads"]),
            (KEYS.Attention.KEY_LENGTH, 32), (KEYS.Attention.VALUE_LENGTH, 32),
            (KEYS.Attention.LAYERNORM_RMS_EPS, EMBEDDING_GEMMA["rms_norm_eps"]),
            (KEYS.Attention.SLIDING_WINDOW, 12), (KEYS.Attention.SLIDING_WINDOW_PATTERN, 3),
            (KEYS.Rope.FREQ_BASE, 100000.0), (KEYS.Rope.FREQ_BASE_SWA, 5000.0),
            ("{arch}.dense_2_feat_in", 64), ("{arch}.dense_2_feat_out", 96)))),
    "jina_v2_mean": dict(
        config=JINA_V2, run_config=BERT, pool="mean", pairs=True, files={},
        gguf=dict(arch=ARCH.JINA_BERT_V2, keys=gguf_keys(
            JINA_V2, POOL.MEAN, (KEYS.LLM.CONTEXT_LENGTH, 64), NOT_CAUSAL, LAYER_NORM))),
    "jina_v2_reranker": dict(
        config=dict(JINA_V2, architectures=["JinaBertForSequenceClassification"],
                    num_hidden_layers=2, **labels("LABEL_0")),
        run_config=dict(BERT, architectures=["BertForSequenceClassification"],
                        num_hidden_layers=2, **labels("LABEL_0"))),
    "mpnet_mean": dict(
        config=MPNET, pool="mean",
        files={"modules.json": modules(("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")),
               "1_Pooling/config.json": pooling("mean_tokens", 60)}),
    "mpnet_classes": dict(config=dict(
        MPNET, architectures=["MPNetForSequenceClassification"], **labels("a", "b"))),
    "electra_mean": dict(config=ELECTRA, pool="mean", pairs=True, files={}),
    "electra_reranker": dict(config=dict(
        ELECTRA, architectures=["ElectraForSequenceClassification"], num_hidden_layers=2,
        **labels("LABEL_0"))),
    "ernie_mean": dict(config=ERNIE, pool="mean", pairs=True, files={}),
    "data2vec_mean": dict(
        config=dict(ROBERTA, architectures=["Data2VecTextModel"], model_type="data2vec-text"),
        pool="mean", files={}),
    "llama_embed": dict(
        config=LLAMA_EMBED, run_config=EUROBERT, pool="mean", files={},
        gguf=dict(arch=ARCH.LLAMA_EMBED, keys=gguf_keys(
            LLAMA_EMBED, POOL.MEAN, (KEYS.LLM.CONTEXT_LENGTH, 128), NOT_CAUSAL,
            (KEYS.Attention.HEAD_COUNT_KV, 2), (KEYS.Attention.LAYERNORM_RMS_EPS, 1e-5),
            (KEYS.Rope.FREQ_BASE, 2500.0)))),
    # Texts as long as passages, some of them longer than a window.
    "bert_long": dict(config=dict(BERT, max_position_embeddings=1024), pool="mean", files={},
                      lengths=LONG),
    "modernbert_long": dict(
        config=dict(MODERNBERT, max_position_embeddings=1024, local_attention=96), pool="mean",
        files={}, lengths=LONG),
    "nomic_long": dict(
        config=dict(NOMIC, max_position_embeddings=1024,
                    rope_parameters=dict(rope_type="default", rope_theta=700.0)),
        pool="mean", files={}, lengths=LONG),
    "jina_v2_long": dict(config=dict(JINA_V2, max_position_embeddings=1024),
                         run_config=dict(BERT, max_position_embeddings=1024), pool="mean",
                         files={}, lengths=LONG),
    "mpnet_long": dict(config=dict(MPNET, max_position_embeddings=1026), pool="mean", files={},
                       lengths=LONG),
    "xlm_roberta_long": dict(
        config=dict(ROBERTA, architectures=["XLMRobertaForSequenceClassification"],
                    model_type="xlm-roberta", num_hidden_layers=2, max_position_embeddings=1026,
                    **labels("LABEL_0")), lengths=LONG),
}

# NomicBERT's files keep the names of its first code, which transformers renames while loading.
NOMIC_NAMES = (
    ("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"),
    ("self_attn.o_proj", "attn.out_proj"), ("up_proj", "fc11"), ("gate_proj", "fc12"),
    ("down_proj", "fc2"), ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2"))
QKV = ("q_proj", "k_proj", "v_proj")


# The authors' own code has BERT with a gated MLP that ends in its norm.
JINA_V2_NAMES = (("intermediate.dense", "mlp.gated_layers"),
                 (".attention.output.LayerNorm", ".attention.output.Norm"),
                 (".output.LayerNorm", ".mlp.layernorm"), (".output.Norm", ".output.LayerNorm"),
                 (".attention.output.dense", ".attention.output.own"),
                 (".output.dense", ".mlp.wo"), (".output.own", ".output.dense"))


# Those of GTE's authors, with up and gate in one tensor.
NEW_NAMES = (
    ("gte.", "new."), ("layers.", "encoder.layer."), ("self_attn.o_proj", "attention.o_proj"),
    ("post_attention_layernorm", "attn_ln"), ("post_mlp_layernorm", "mlp_ln"))


def file_name(kind, name):
    """The name in the file of a module's parameter, its part of that tensor, and their number."""
    if kind == "new":
        for old, new in NEW_NAMES:
            name = name.replace(old, new)
        for part, old in enumerate(("up_proj", "gate_proj")):
            if old in name:
                return name.replace(old, "up_gate_proj"), part, 2
        for part, old in enumerate(QKV):
            if old in name:
                return name.replace(f"self_attn.{old}", "attention.qkv_proj"), part, 3
        return name, 0, 1
    if kind == "jina_v2":
        for old, new in JINA_V2_NAMES:
            name = name.replace(old, new)
        return name, 0, 1
    if kind != "nomic_bert":
        return name, 0, 1
    for old, new in NOMIC_NAMES:
        name = name.replace(old, new)
    for part, old in enumerate(QKV):
        if old in name:
            return name.replace(f"self_attn.{old}", "attn.Wqkv"), part, 3
    return name, 0, 1


def fill(module, kind=""):
    """Sets all parameters; returns the tensors of the file."""
    tensors = []
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shape = list(parameter.shape)
            scale, offset = models.scale_and_offset(name.lower(), shape)
            stored, part, parts = file_name(kind, name)
            shape[0] *= parts
            values = torch.from_numpy(synthetic_weights.values(stored, shape, scale, offset))
            parameter.copy_(values.chunk(parts)[part])
            if part == 0:
                tensors.append([stored, shape, scale, offset])
    return tensors


# Layers behind the pooled state, as the converter names them.
HEAD_NAMES = {"classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
              "score.weight": "cls.output.weight"}


def gguf_tensor(case, names, name):
    """The name in the GGUF file of a folder's tensor and what is done to it; None: left out."""
    for prefix in ("bert.", "roberta.", "distilbert.", "nomic_bert.", "model."):
        name = name.removeprefix(prefix)
    if name.startswith("pooler."):
        return None
    operation = []
    if name == "embeddings.position_embeddings.weight" and case["gguf"].get("offset"):
        operation = ["behind", case["gguf"]["offset"]]
    for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if case["config"]["model_type"] == "llama_bidirec" and part in name:
            operation = ["permute", case["config"][heads]]
    if case["config"]["model_type"].startswith("gemma") and name.endswith("norm.weight"):
        operation = ["add_one"]
    if name in HEAD_NAMES:
        return HEAD_NAMES[name], operation
    for spelling in (name, "model." + name):
        target = names.get_name(spelling, try_suffixes=(".weight", ".bias"))
        if target is not None:
            return target, operation
    raise ValueError(f"{name} has no name in GGUF")


def gguf_file(case, tensors, folder_tensors):
    """What the GGUF file of a case holds."""
    arch = gguf.MODEL_ARCH_NAMES[case["gguf"]["arch"]]
    names = gguf.get_tensor_name_map(case["gguf"]["arch"], 16)
    made = [(gguf_tensor(case, names, name), name) for name, *_ in tensors]
    file = [[*target, [name]] for target, name in made if target is not None]
    file += [[f"dense_{folder[0]}.weight", [], [f"{folder}/linear.weight"]]
             for folder in folder_tensors]
    metadata = [[key.format(arch=arch), value] for key, value in case["gguf"]["keys"]]
    return dict(architecture=arch, metadata=metadata, file=file, short_factors=[])


class GatedUp(torch.nn.Module):
    """JinaBERT's product in place of BERT's intermediate one: GELU of one half times the other."""

    def __init__(self, hidden, inter):
        super().__init__()
        self.dense = torch.nn.Linear(hidden, 2 * inter, bias=False)

    def forward(self, states):
        gate, up = self.dense(states).chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate) * up


class JinaBert(torch.nn.Module):
    """JinaBERT, whose class is not part of transformers, as transformers' BERT with gated MLPs,
    without positions, and with the slopes of ALiBi (Press et al. 2022) as its mask."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        bert = model.bert if hasattr(model, "bert") else model
        config = model.config
        for layer in bert.encoder.layer:
            layer.intermediate = GatedUp(config.hidden_size, config.intermediate_size)
        bert.embeddings.position_embeddings = Zeros(config.hidden_size)
        self.slopes = torch.tensor(self.slopes_of(config.num_attention_heads))

    @classmethod
    def slopes_of(cls, heads):
        below = 2 ** (heads.bit_length() - 1)
        own = [2 ** (-8 * (h + 1) / below) for h in range(below)]
        return own + (cls.slopes_of(2 * below)[0::2][:heads - below] if heads > below else [])

    def forward(self, input_ids, **given):
        at = torch.arange(input_ids.shape[1])
        mask = -(at[None, :] - at[:, None]).abs() * self.slopes[:, None, None]
        return self.model(input_ids, attention_mask=mask[None], **given)


class Zeros(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden

    def forward(self, ids):
        return torch.zeros(*ids.shape, self.hidden)


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
    run_config = case.get("run_config", case["config"])
    model = build(run_config)
    kind = case["config"]["model_type"]
    if case["config"]["architectures"][0].startswith("JinaBert"):
        kind, model = "jina_v2", JinaBert(model).eval()
    tensors = fill(model.model if kind == "jina_v2" else model, kind)
    folders, folder_tensors = dense_modules(case)
    vocab = case["config"]["vocab_size"]
    prompts = [[(17 * i * i + 29 * i + 11 + n) % (vocab - 2) + 2 for i in range(n)]
               for n in case.get("lengths", LENGTHS)]
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
    extra = {}
    if "gguf" in case:
        extra["gguf"] = gguf_file(case, tensors, folder_tensors)
    return dict(name=name, **extra, config=case["config"], files=case.get("files", {}), tensors=tensors,
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
