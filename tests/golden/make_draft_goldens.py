#!/usr/bin/env python3
"""Logits of draft networks (Medusa, EAGLE-1 to 3.1, MTP, DFlash): the goldens of tests/heads/.

The layers are those of transformers; how a network puts embedding and hidden state together, and
what it feeds back, follows the code that its authors have published (SafeAILab/EAGLE's cnets.py and
cnets1.py, FasterDecoding/Medusa's medusa_model.py, z-lab/dflash's model.py) and, for MTP and EAGLE-3.1, vLLM's models
deepseek_mtp.py, qwen3_next_mtp.py and llama_eagle3.py. The model's hidden states are made up, like
all weights (synthetic_weights.py), and so the model itself is not run.

One file, draft_networks.json: for each case the files of the network, and the logits of the last row
of a prompt and of three further tokens, each the best by the logits before. "chain" is what the
network guesses behind a prompt of the real model, of whose layers it reads those that its
configuration names: the token that the model draws, and the guesses. Everything in float32.

Run with the versions in requirements.txt: ./make_draft_goldens.py
"""

import copy
import json

import torch
import transformers
from torch import nn
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

import synthetic_weights
from make_model_goldens import (
    CASES, DEEPSEEK_V3, HERE, LLAMA, QWEN3, SEPARATE_EXPERTS, build_model, file_tensors, rounded,
    routing_biases, scale_and_offset)

ROWS = 12  # of the first pass
PASSES = 4
FEATURE_SCALE = 1.0


def causal_mask(n: int) -> torch.Tensor:
    return torch.full((n, n), float("-inf")).triu(1)[None, None]


def config_of(values: dict):
    config = transformers.AutoConfig.for_model(
        **{k: v for k, v in copy.deepcopy(values).items() if k != "architectures"})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def llama_config(hidden: int, **more) -> dict:
    return dict(LLAMA, hidden_size=hidden, num_hidden_layers=1, intermediate_size=112) | more


class Decoder(nn.Module):
    """Some layers of a family, run over a stream."""

    def __init__(self, layers, rotary):
        super().__init__()
        self.layers, self.rotary = nn.ModuleList(layers), rotary

    def run(self, stream, first=None):
        positions = torch.arange(stream.shape[1])[None]
        embeddings = self.rotary(stream, positions)
        for index, layer in enumerate(self.layers):
            arguments = dict(attention_mask=causal_mask(stream.shape[1]),
                             position_embeddings=embeddings, position_ids=positions)
            stream = first(layer, **arguments) if index == 0 and first else layer(
                stream, **arguments)
            stream = stream[0] if isinstance(stream, tuple) else stream
        return stream


def llama_decoder(values: dict) -> Decoder:
    config = config_of(values)
    return Decoder([modeling_llama.LlamaDecoderLayer(config, i)
                    for i in range(config.num_hidden_layers)],
                   modeling_llama.LlamaRotaryEmbedding(config))


class Network(nn.Module):
    """What all networks share. `tables` are the model's embedding and head; a network's own come
    first."""

    def __init__(self, hidden: int, eps: float):
        super().__init__()
        self.hidden, self.eps = hidden, eps

    def norm(self, size=None):
        return modeling_llama.LlamaRMSNorm(size or self.hidden, self.eps)

    def fuse(self, features):
        return features

    def embed(self, tokens, tables):
        own = getattr(self, "embed_tokens", None)
        return nn.functional.embedding(tokens, tables["embed"] if own is None else own.weight)

    def logits(self, x, tables):
        own = getattr(self, "lm_head", None)
        return nn.functional.linear(x, tables["head"] if own is None else own.weight)


class Eagle1(Network):
    """fc of embedding and feature; the layer has no norm before its attention."""

    def __init__(self, values: dict, target: dict, own_embedding=True, bias=True, norms=False):
        super().__init__(values["hidden_size"], values["rms_norm_eps"])
        self.decoder = llama_decoder(values)
        self.decoder.layers[0].input_layernorm = nn.Identity()
        self.fc = nn.Linear(2 * self.hidden, self.hidden, bias=bias)
        if norms:  # HASS
            self.embedding_layernorm, self.hidden_states_layernorm = self.norm(), self.norm()
        self.norms = norms
        if own_embedding:
            self.embed_tokens = nn.Embedding(target["vocab_size"], self.hidden)

    def forward(self, tokens, states, tables):
        e = self.embed(tokens, tables)
        if self.norms:
            e, states = self.embedding_layernorm(e), self.hidden_states_layernorm(states)
        x = self.decoder.run(self.fc(torch.cat([e, states], dim=-1)))
        return x, self.logits(x, tables)


class Eagle3(Network):
    """Attention of the first layer reads embedding and state side by side."""

    def __init__(self, values: dict, target: dict, features=3, draft_vocab=None, own_embedding=True,
                 residual_normed=False, joint_norm=False, each_norm=False, norm_output=False):
        super().__init__(values["hidden_size"], values["rms_norm_eps"])
        self.decoder = llama_decoder(values)
        layer, width = self.decoder.layers[0], target["hidden_size"]
        attention = layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(attention, name)
            setattr(attention, name, nn.Linear(2 * self.hidden, old.out_features, bias=False))
        layer.hidden_norm = self.norm()
        self.fc = nn.Linear(features * width, self.hidden, bias=False)
        self.norm_ = self.norm()
        self.residual_normed, self.norm_output = residual_normed, norm_output
        self.input_norm = self.norm(features * width) if joint_norm else None
        self.fc_norm = nn.ModuleList(self.norm(width) for _ in range(features)) if each_norm else []
        if own_embedding:
            self.embed_tokens = nn.Embedding(target["vocab_size"], self.hidden)
        if draft_vocab:
            self.lm_head = nn.Linear(self.hidden, draft_vocab, bias=False)

    def fuse(self, features):
        if self.input_norm is not None:
            features = self.input_norm(features)
        if len(self.fc_norm) > 0:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([n(p) for n, p in zip(self.fc_norm, parts)], dim=-1)
        return self.fc(features)

    def forward(self, tokens, states, tables):
        e = self.embed(tokens, tables)

        def first(layer, **arguments):
            normed = layer.hidden_norm(states)
            residual = normed if self.residual_normed else states
            pair = torch.cat([layer.input_layernorm(e), normed], dim=-1)
            x = residual + layer.self_attn(hidden_states=pair, **arguments)[0]
            return x + layer.mlp(layer.post_attention_layernorm(x))

        x = self.decoder.run(states, first)
        normed = self.norm_(x)
        return (normed if self.norm_output else x), self.logits(normed, tables)


class Mtp(Network):
    """A layer of the model's kind behind eh_proj of the normed embedding and the normed state."""

    def __init__(self, decoder: Decoder, target: dict, keeps_normed: bool):
        super().__init__(target["hidden_size"], target["rms_norm_eps"])
        self.decoder, self.keeps_normed = decoder, keeps_normed
        self.enorm, self.hnorm, self.norm_ = self.norm(), self.norm(), self.norm()
        self.eh_proj = nn.Linear(2 * self.hidden, self.hidden, bias=False)

    def forward(self, tokens, states, tables):
        e = self.enorm(self.embed(tokens, tables))
        x = self.decoder.run(self.eh_proj(torch.cat([e, self.hnorm(states)], dim=-1)))
        normed = self.norm_(x)
        return (normed if self.keeps_normed else x), self.logits(normed, tables)


class Dflash(Network):
    """A block of the last token and of masks attends to the features, as keys and values of each
    layer, and to all of itself."""

    def __init__(self, values: dict, target: dict, features: int, block: int, mask: int,
                 draft_vocab=None):
        super().__init__(values["hidden_size"], values["rms_norm_eps"])
        config = config_of(values)
        self.decoder = Decoder([modeling_qwen3.Qwen3DecoderLayer(config, i)
                                for i in range(config.num_hidden_layers)],
                               modeling_qwen3.Qwen3RotaryEmbedding(config))
        self.fc = nn.Linear(features * target["hidden_size"], self.hidden, bias=False)
        self.hidden_norm, self.norm_ = self.norm(), self.norm()
        self.features, self.block, self.mask = features, block, mask
        self.windows = [values["sliding_window"] if kind == "sliding_attention" else 0
                        for kind in values["layer_types"]]
        self.windows_in_order = not values.get("sliding_window_non_causal", False)
        more = values.get("dflash_config", values)
        self.embed_scale = more.get("input_embedding_scale", 1.0)
        self.multiplier = more.get("output_multiplier", 1.0)
        self.softcap = more.get("final_logit_softcapping", 0.0)
        if draft_vocab:
            self.lm_head = nn.Linear(self.hidden, draft_vocab, bias=False)

    def visible(self, layer: int, context: int):
        """[block, context + block]: z-lab's rule. A layer with a window sees its block in order, unless
        its configuration says otherwise."""
        window = self.windows[layer]
        row = context + torch.arange(self.block)[:, None]
        key = torch.arange(context + self.block)[None]
        seen = torch.ones(self.block, context + self.block, dtype=torch.bool)
        if window and self.windows_in_order:
            seen &= key <= row
        return seen & ((row - key < window) & (key - row < window) if window else True)

    def attend(self, attention, x, states, cos, sin):
        def heads(rows):
            return rows.view(1, rows.shape[1], -1, attention.head_dim)

        def rotated(rows, count):
            c, s = cos[None, None, -count:], sin[None, None, -count:]
            return rows * c + modeling_qwen3.rotate_half(rows) * s
        both = torch.cat([states, x], dim=1)
        q = rotated(attention.q_norm(heads(attention.q_proj(x))).transpose(1, 2), x.shape[1])
        k = rotated(attention.k_norm(heads(attention.k_proj(both))).transpose(1, 2), both.shape[1])
        v = heads(attention.v_proj(both)).transpose(1, 2)
        groups = attention.num_key_value_groups
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(2, 3) * attention.scaling
        seen = self.visible(attention.layer_idx, states.shape[1])
        shares = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return attention.o_proj((shares @ v).transpose(1, 2).reshape(1, x.shape[1], -1))

    def guesses(self, last: int, features, tables):
        """[block - 1, vocab]"""
        states = self.hidden_norm(self.fc(features))
        x = self.embed_scale * self.embed(
            torch.tensor([[last] + [self.mask] * (self.block - 1)]), tables)
        cos, sin = self.decoder.rotary(x, torch.arange(states.shape[1] + self.block)[None])
        for layer in self.decoder.layers:
            x = x + self.attend(layer.self_attn, layer.input_layernorm(x), states, cos[0], sin[0])
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = self.logits(self.norm_(x), tables)[0, 1:] * self.multiplier
        if self.softcap:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return list(logits)


class Medusa(Network):
    def __init__(self, target: dict, heads: int, blocks: int, own_output: bool):
        super().__init__(target["hidden_size"], target["rms_norm_eps"])
        self.heads = nn.ModuleList(
            nn.ModuleList([nn.Linear(self.hidden, self.hidden) for _ in range(blocks)]
                          + ([nn.Linear(self.hidden, target["vocab_size"], bias=False)]
                             if own_output else [])) for _ in range(heads))
        self.blocks = blocks

    def guesses(self, states, tables):
        """[heads, vocab] of the last row."""
        rows = []
        for head in self.heads:
            x = states[0, -1]
            for block in head[:self.blocks]:
                x = x + nn.functional.silu(block(x))
            output = tables["head"] if len(head) == self.blocks else head[-1].weight
            rows.append(nn.functional.linear(x, output))
        return rows


def medusa_names(blocks: int):
    def rename(name: str) -> str:
        _, head, block, leaf = name.split(".")
        return f"{head}.{block}." + ("" if int(block) == blocks else "linear.") + leaf
    return rename


def eagle_names(layer: str, top: str = ""):
    def rename(name: str) -> str:
        if name.startswith("decoder.layers."):
            index, rest = name.removeprefix("decoder.layers.").split(".", 1)
            return layer.replace("{}", index) + rest
        return name if name == "lm_head.weight" else top + name.replace("norm_.", "norm.")
    return rename


def mtp_names(table: dict):
    def rename(name: str) -> str:
        for before, after in table.items():
            if name.startswith(before):
                return after + name.removeprefix(before)
        raise ValueError(name)
    return rename


DEEPSEEK_MTP = {"decoder.layers.0.": "model.layers.3.", "enorm.": "model.layers.3.enorm.",
                "hnorm.": "model.layers.3.hnorm.", "eh_proj.": "model.layers.3.eh_proj.",
                "norm_.": "model.layers.3.shared_head.norm."}
QWEN_MTP = {"decoder.layers.0.": "mtp.layers.0.", "enorm.": "mtp.pre_fc_norm_embedding.",
            "hnorm.": "mtp.pre_fc_norm_hidden.", "eh_proj.": "mtp.fc.", "norm_.": "mtp.norm."}


def deepseek_decoder() -> Decoder:
    config = config_of(DEEPSEEK_V3)
    return Decoder([modeling_deepseek_v3.DeepseekV3DecoderLayer(config, 2)],
                   modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config))


def qwen_decoder() -> Decoder:
    config = config_of(dict(QWEN3, layer_types=["full_attention"] * 3))
    return Decoder([modeling_qwen3.Qwen3DecoderLayer(config, 2)],
                   modeling_qwen3.Qwen3RotaryEmbedding(config))


def offsets(draft_vocab: int, vocab: int) -> list[int]:
    """d2t of some ids, none twice, in no order."""
    ids = [(9 * i + 3) % vocab for i in range(draft_vocab)]
    return [id - i for i, id in enumerate(ids)]


DFLASH = dict(
    QWEN3, num_hidden_layers=2, num_target_layers=3, layer_types=["full_attention"] * 2,
    architectures=["DFlashDraftModel"], block_size=5,
    dflash_config=dict(mask_token_id=7, target_layer_ids=[0, 1]))
DFLASH_WINDOWS = dict(
    DFLASH, num_hidden_layers=3, use_sliding_window=True, sliding_window=7, max_window_layers=3,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    dflash_config=dict(mask_token_id=7, target_layer_ids=[0, 1], output_multiplier=0.5,
                       final_logit_softcapping=9.0))
DFLASH_LLAMA = dict(
    model_type="qwen3", vocab_size=301, hidden_size=96, intermediate_size=112, num_hidden_layers=3,
    num_attention_heads=6, num_key_value_heads=2, head_dim=20, rms_norm_eps=1e-5,
    max_position_embeddings=512, attention_bias=True, rope_theta=5000.0,
    tie_word_embeddings=False, hidden_act="silu", layer_types=["full_attention"] * 3)
DFLASH_SPECULATORS = dict(
    architectures=["DFlashSpeculator"], speculators_model_type="dflash", draft_vocab_size=80,
    block_size=5, mask_token_id=300, aux_hidden_state_layer_ids=[1, 2, 3],
    sample_from_anchor=False, target_hidden_size=None,
    speculators_config=dict(algorithm="dflash", default_proposal_method="greedy",
                            proposal_methods=[dict(proposal_type="greedy", speculative_tokens=4)],
                            verifier=dict(name_or_path="any/llama",
                                          architectures=["LlamaForCausalLM"])),
    transformer_layer_config=DFLASH_LLAMA)


DFLASH_LLAMA_WINDOWS = dict(
    DFLASH_LLAMA, use_sliding_window=True, sliding_window=6,
    layer_types=["full_attention", "sliding_attention", "sliding_attention"])
DFLASH_SPECULATORS_WINDOWS = dict(
    DFLASH_SPECULATORS, sliding_window_non_causal=True, input_embedding_scale=1.5,
    transformer_layer_config=DFLASH_LLAMA_WINDOWS)


NARROW = llama_config(64, num_attention_heads=4, num_key_value_heads=2)
LIKE_TARGET = llama_config(96)
SPECULATORS = dict(
    architectures=["Eagle3Speculator"], speculators_model_type="eagle3", draft_vocab_size=90,
    norm_before_residual=True, norm_before_fc=True, eagle_aux_hidden_state_layer_ids=[0, 2, 3],
    target_hidden_size=None,
    speculators_config=dict(algorithm="eagle3", default_proposal_method="greedy",
                            proposal_methods=[dict(proposal_type="greedy", speculative_tokens=3)],
                            verifier=dict(name_or_path="any/llama",
                                          architectures=["LlamaForCausalLM"])),
    transformer_layer_config={k: v for k, v in LIKE_TARGET.items() if k != "architectures"})


def cases():
    """name -> (network, the model's golden, config.json, renaming of parameters, more)"""
    yield "eagle1", Eagle1(LIKE_TARGET, LLAMA), "llama", dict(LIKE_TARGET, bias=True), eagle_names(
        "layers.{}."), {}
    yield "eagle2_hass", Eagle1(LIKE_TARGET, LLAMA, False, False, norms=True), "llama", dict(
        LIKE_TARGET, add_para_norm=True), eagle_names("model.layers.{}.", "model."), {}
    yield "eagle3", Eagle3(NARROW, LLAMA, draft_vocab=70), "llama", dict(
        NARROW, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=70,
        target_hidden_size=96), eagle_names("midlayer."), dict(
            d2t=offsets(70, 301), layers=[2, 1, 0])
    yield ("eagle3_speculators", Eagle3(LIKE_TARGET, LLAMA, draft_vocab=90, residual_normed=True,
                                        joint_norm=True), "llama", SPECULATORS,
           eagle_names("layers.{}."), dict(d2t=offsets(90, 301), layers=[0, 2, 3]))
    yield ("eagle31", Eagle3(dict(LIKE_TARGET, num_hidden_layers=2), LLAMA, own_embedding=False,
                             each_norm=True, norm_output=True), "llama",
           dict(LIKE_TARGET, architectures=["Eagle3LlamaForCausalLM"], num_hidden_layers=2,
                fc_norm=True, norm_output=True,
                eagle_config=dict(eagle_aux_hidden_state_layer_ids=[0, 1, 2])),
           eagle_names("model.layers.{}.", "model."), dict(layers=[1, 2, 3]))
    yield "mtp_deepseek", Mtp(deepseek_decoder(), DEEPSEEK_V3, False), "deepseek_v3", dict(
        num_nextn_predict_layers=1), mtp_names(DEEPSEEK_MTP), dict(in_target=True)
    yield "mtp_qwen", Mtp(qwen_decoder(), QWEN3, True), "qwen3", dict(
        mtp_num_hidden_layers=1), mtp_names(QWEN_MTP), dict(in_target=True)
    yield "dflash", Dflash(DFLASH, QWEN3, 2, 5, 7), "qwen3", DFLASH, eagle_names(
        "layers.{}."), dict(layers=[1, 2])
    yield ("dflash_speculators", Dflash(DFLASH_LLAMA, LLAMA, 3, 5, 300, draft_vocab=80), "llama",
           DFLASH_SPECULATORS, eagle_names("layers.{}."),
           dict(d2t=offsets(80, 301), layers=[1, 2, 3]))
    yield "dflash_windows", Dflash(DFLASH_WINDOWS, QWEN3, 2, 5, 7), "qwen3", DFLASH_WINDOWS, (
        eagle_names("layers.{}.")), dict(layers=[1, 2])
    yield ("dflash_speculators_windows", Dflash(
        dict(DFLASH_LLAMA_WINDOWS, sliding_window_non_causal=True, input_embedding_scale=1.5), LLAMA, 3, 5, 300,
        draft_vocab=80), "llama", DFLASH_SPECULATORS_WINDOWS, eagle_names("layers.{}."),
        dict(d2t=offsets(80, 301), layers=[1, 2, 3]))
    yield "medusa", Medusa(LLAMA, 3, 1, True), "llama", dict(
        medusa_num_heads=2, medusa_num_layers=1), medusa_names(1), {}
    yield "medusa_shared", Medusa(LLAMA, 2, 2, False), "llama", dict(
        medusa_num_heads=2, medusa_num_layers=2, version=2), medusa_names(2), {}


TARGETS = {"llama": LLAMA, "deepseek_v3": DEEPSEEK_V3, "qwen3": QWEN3}


def fill(network: nn.Module, rename) -> list:
    tensors = []
    parameters = list(network.named_parameters()) + routing_biases(network)
    with torch.no_grad():
        for name, parameter in parameters:
            for file_name, part in file_tensors(rename(name), parameter,
                                                dict(experts=SEPARATE_EXPERTS)):
                shape = list(part.shape)
                scale, offset = scale_and_offset(file_name, shape[-2:])
                part.copy_(torch.from_numpy(
                    synthetic_weights.values(file_name, shape, scale, offset)))
                tensors.append([file_name, shape, scale, offset])
    return tensors


def tables_of(target: dict) -> dict:
    shape = [target["vocab_size"], target["hidden_size"]]

    def table(name):
        scale, offset = scale_and_offset(name, shape)
        return torch.from_numpy(synthetic_weights.values(name, shape, scale, offset))
    embed = table("model.embed_tokens.weight")
    return dict(embed=embed,
                head=embed if target["tie_word_embeddings"] else table("lm_head.weight"))


def run(network: Network, tokens: list, features, tables: dict, d2t) -> list:
    """For each pass the logits behind the last row."""
    if isinstance(network, Medusa):
        return network.guesses(features, tables)
    if isinstance(network, Dflash):
        return network.guesses(tokens[-1], features, tables)
    states, tokens, passes = network.fuse(features), list(tokens), []
    for _ in range(PASSES):
        kept, logits = network(torch.tensor([tokens]), states, tables)
        passes.append(logits[0, -1])
        best = int(logits[0, -1].argmax())
        tokens.append(best if d2t is None else best + d2t[best])
        states = torch.cat([states, kept[:, -1:]], dim=1)
    return passes


def model_states(target_name: str, prompt: list, layers: list):
    """The token that the model draws behind the prompt, and at each position the streams that enter
    these layers, side by side; None: the final state behind the norm."""
    model, _, _ = build_model(CASES[target_name])
    streams = []
    hooks = [layer.register_forward_pre_hook(
        lambda _, arguments, named: streams.append(arguments[0] if arguments else
                                                   named["hidden_states"]), with_kwargs=True)
        for layer in model.model.layers]
    hooks.append(model.model.norm.register_forward_pre_hook(
        lambda _, arguments: streams.append(arguments[0])))
    output = model(torch.tensor([prompt]), output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    final = output.hidden_states[-1]
    states = torch.cat([final if layer is None else streams[layer] for layer in layers], dim=-1)
    return int(output.logits[0, -1].argmax()), states


def chain_of(network: Network, target_name: str, layers: list, d2t) -> dict:
    """The first prompt on which no guess is close to another one, and not all guesses of a block are
    the same."""
    target = TARGETS[target_name]
    for seed in range(100):
        prompt = [(13 * i * i + 31 * i + 7 * seed + 5) % target["vocab_size"] for i in range(14)]
        drawn, states = model_states(target_name, prompt, layers)
        passes = run(network, prompt[1:] + [drawn], states, tables_of(target), d2t)
        margins = [float(p.topk(2).values[0] - p.topk(2).values[1]) for p in passes]
        is_uniform = isinstance(network, Dflash) and len({int(p.argmax()) for p in passes}) == 1
        if min(margins) > 0.02 and not is_uniform:
            break
    best = [int(p.argmax()) for p in passes]
    return dict(prompt=prompt,
                chain=[drawn] + [b if d2t is None else b + d2t[b] for b in best])


def make(name, network, target_name, config, rename, more) -> dict:
    target = TARGETS[target_name]
    network = network.to(torch.float32).eval()
    tensors = fill(network, rename)
    d2t = more.get("d2t")
    if d2t is not None:
        tensors.append(["d2t", [len(d2t)], 0, 0, "I64", 0, d2t])
    width = target["hidden_size"] * getattr(
        network, "features", 3 if isinstance(network, Eagle3) else 1)
    features = torch.from_numpy(synthetic_weights.values(
        f"{name}.features", [ROWS, width], FEATURE_SCALE, 0.0))[None]
    tokens = [(17 * i * i + 29 * i + 11) % target["vocab_size"] for i in range(ROWS)]
    with torch.no_grad():
        passes = run(network, tokens, features, tables_of(target), d2t)
        chain = chain_of(network, target_name, more.get("layers", [None]), d2t)
    margins = [float((p.topk(2).values[0] - p.topk(2).values[1])) for p in passes]
    print(f"{name}: logits to {max(float(p.abs().max()) for p in passes):.1f}, "
          f"smallest margin {min(margins):.3f}")
    return dict(name=name, target=target_name, in_target=more.get("in_target", False),
                config=config, tensors=tensors, tokens=tokens, feature_scale=FEATURE_SCALE,
                passes=[[rounded(float(x)) for x in p] for p in passes], **chain)


def main() -> None:
    lines = [json.dumps(make(*case), separators=(",", ":")) for case in cases()]
    path = HERE / "draft_networks.json"
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{path.name}: {path.stat().st_size} bytes, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
