#!/usr/bin/env python3
"""Writes small checkpoints of many shapes with the reference implementation's logits beside them.

Needs: pip install torch transformers==5.17.0 safetensors gguf numpy
Run:   python3 tests/data/golden/make_golden.py [NAME ...]
Format of a folder: tests/support/golden.h. The folders llama3, qwen2, qwen3, qwen3_moe and smollm2 come from
elsewhere and are not written here.
"""
import copy
import json
import pathlib
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "mistral": (MistralConfig, MistralForCausalLM),
           "qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM),
           "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM)}
BASE = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
            rms_norm_eps=1e-5)
PROMPTS = (1, 7, 33, 150)
GREEDY = 12
KEPT_ROWS = 24

torch.set_num_threads(1)
torch.manual_seed(1)


def randomize(model, seed, spread=0.12):
    """Weights far enough from zero that every part of the model shows in the logits."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        if "norm" in name:
            p.data = 1 + 0.2 * noise
        elif name.endswith("bias"):
            p.data = 0.5 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            p.data = 0.5 * noise
        else:
            p.data = spread * noise * (2 if "self_attn" in name else 1)


def build(kind, seed, dtype, **config):
    config_class, model_class = CLASSES[kind]
    model = model_class(config_class(**copy.deepcopy({**BASE, **config}), attn_implementation="eager")).eval()
    randomize(model, seed)
    if model.config.tie_word_embeddings:
        model.tie_weights()
    for p in model.parameters():  # the values that the file will hold; buffers (rope) stay float32
        p.data = p.data.to(dtype).float()
    return model


def write_golden(folder, model, seed, longest=PROMPTS[-1]):
    g = torch.Generator().manual_seed(seed + 1000)
    cases, arrays = [], {}
    for j, length in enumerate(n for n in PROMPTS if n <= longest):
        margins = [0]
        while min(margins) < 2e-3:  # a near tie proves nothing: take another prompt
            prompt = torch.randint(3, model.config.vocab_size, (length,), generator=g).tolist()
            ids, margins = list(prompt), []
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].numpy()
                for _ in range(GREEDY):  # whole passes, no cache: nothing to trust but the model itself
                    last = model(torch.tensor([ids])).logits[0, -1]
                    two = last.topk(2).values
                    margins.append(round(float(two[0] - two[1]), 4))
                    ids.append(int(last.argmax()))
        arrays[f"logits_{j}"] = logits[-1].copy()
        arrays[f"logits_all_{j}"] = logits[:KEPT_ROWS].copy()
        arrays[f"top1_{j}"] = logits.argmax(-1).astype(np.int32)
        cases.append({"prompt": prompt, "greedy": ids[length:], "greedy_margin": margins})
    note = "logits_j: last position; logits_all_j: first positions; top1_j: every position; float32 reference"
    (folder / "golden.json").write_text(json.dumps({"cases": cases, "note": note}) + "\n")
    save_file(arrays, folder / "golden.safetensors")


def fresh(name):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def hf(name, kind, seed, dtype=torch.bfloat16, shards=None, edit=None, longest=PROMPTS[-1], **config):
    """A Hugging Face folder; `edit` rewrites config.json as older or odder writers would."""
    folder = fresh(name)
    model = build(kind, seed, dtype, **config)
    write_golden(folder, model, seed, longest)
    model.to(dtype).save_pretrained(folder, max_shard_size=shards or "1GB")
    path = folder / "config.json"
    written = json.loads(path.read_text())
    written.pop("_name_or_path", None)
    if edit:
        edit(written)
    path.write_text(json.dumps(written, indent=1) + "\n")


def old_style(written):
    """config.json as transformers 4 wrote it."""
    rope = written.pop("rope_parameters")
    written["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    written["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    written["torch_dtype"] = written.pop("dtype")
    written["transformers_version"] = "4.40.0"
    written.pop("layer_types", None)
    if "num_local_experts" in written:
        written["num_experts"] = written.pop("num_local_experts")


def only_type_key(written):
    written["rope_parameters"]["type"] = written["rope_parameters"].pop("rope_type")


def without_original_length(written):
    del written["rope_parameters"]["original_max_position_embeddings"]


def permute(w, heads):
    """Row order of the llama family in GGUF: rotated pairs side by side."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


GGUF_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}
Q = gguf.GGMLQuantizationType


def gguf_tensors(model):
    """(GGUF name, parameter, heads to permute) of every weight; experts come as [experts, rows, columns]."""
    c = model.config
    llama = c.model_type == "llama"
    for name, p in model.named_parameters():
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", p, 0
        elif name == "model.norm.weight":
            yield "output_norm.weight", p, 0
        elif name == "lm_head.weight":
            yield "output.weight", p, 0
        elif ".mlp.experts." in name:
            block = "blk." + name.split(".")[2]
            if name.endswith("down_proj"):
                yield f"{block}.ffn_down_exps.weight", p, 0
            else:
                half = p.shape[1] // 2
                yield f"{block}.ffn_gate_exps.weight", p[:, :half], 0
                yield f"{block}.ffn_up_exps.weight", p[:, half:], 0
        else:
            _, _, layer, rest = name.split(".", 3)
            part, suffix = rest.rsplit(".", 1)
            heads = {"self_attn.q_proj": c.num_attention_heads, "self_attn.k_proj": c.num_key_value_heads}
            yield f"blk.{layer}.{GGUF_NAMES[part]}.{suffix}", p, heads.get(part, 0) if llama else 0


def gguf_file(name, kind, seed, types, arch=None, split=0, rope_freqs=False, alignment=None, **config):
    """A GGUF file with the given type per kind of tensor; the logits are those of the dequantized weights."""
    folder = fresh(name)
    model = build(kind, seed, torch.float32, **config)
    c = model.config
    arch = arch or kind
    writer = gguf.GGUFWriter(folder / "model.gguf", arch, split_max_tensors=split)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    if head_dim * c.num_attention_heads != c.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    rope = c.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "qwen3_moe":
        writer.add_expert_count(c.num_local_experts)
        writer.add_expert_used_count(c.num_experts_per_tok)
        writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    for gguf_name, p, heads in list(gguf_tensors(model)):
        data = p.detach().numpy()
        if gguf_name == "output.weight" and c.tie_word_embeddings:
            continue
        key = next((k for k in types if k in gguf_name), None)
        quant = types[key] if key and data.ndim > 1 else Q.F32
        stored = np.ascontiguousarray(permute(data, heads) if heads else data)
        packed = gguf.quants.quantize(stored, quant)
        writer.add_tensor(gguf_name, packed, raw_dtype=quant)
        values = gguf.quants.dequantize(packed, quant).reshape(data.shape)
        if heads:  # back to the order of the checkpoint
            values = values.reshape(heads, data.shape[0] // heads // 2, 2, *data.shape[1:]).swapaxes(1, 2)
        p.data.copy_(torch.from_numpy(np.ascontiguousarray(values.reshape(data.shape))))
    if rope_freqs:
        plain = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim))
        scaled = model.model.rotary_emb.inv_freq
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_golden(folder, model, seed)


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MIXED = {"token_embd": Q.Q8_0, "attn_q.": Q.Q8_0, "attn_k.": Q.Q4_0, "attn_v.": Q.Q4_1, "attn_output": Q.F16,
         "ffn_gate_inp": Q.F32, "ffn_gate": Q.BF16, "ffn_up": Q.Q4_0, "ffn_down": Q.Q8_0, "output.weight": Q.Q4_1}


def everything(kind):
    return {"weight": kind}


MODELS = {
    "mistral_window": lambda n: hf(n, "mistral", 1, torch.float32, sliding_window=8),
    "mistral_head_dim": lambda n: hf(n, "mistral", 2, sliding_window=None, head_dim=24, num_key_value_heads=4,
                                     edit=old_style),
    "llama_biases": lambda n: hf(n, "llama", 3, attention_bias=True, mlp_bias=True, hidden_size=48, head_dim=16),
    "llama_linear_tied": lambda n: hf(n, "llama", 4, tie_word_embeddings=True, edit=old_style,
                                      rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}),
    "llama_dynamic": lambda n: hf(n, "llama", 5, edit=old_style,
                                  rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}),
    "llama_yarn": lambda n: hf(n, "llama", 6, rope_parameters=YARN, edit=only_type_key),
    "llama_yarn_no_length": lambda n: hf(n, "llama", 7, rope_parameters={
        k: v for k, v in YARN.items() if k != "original_max_position_embeddings"}, edit=without_original_length),
    "qwen2_yarn_mscale": lambda n: hf(n, "qwen2", 8, rope_parameters={
        **YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False, "beta_fast": 24.0, "beta_slow": 2.0}),
    "qwen3_yarn_factor": lambda n: hf(n, "qwen3", 9, head_dim=16,
                                      rope_parameters={**YARN, "attention_factor": 1.3}),
    "llama_llama3_sharded": lambda n: hf(n, "llama", 30, torch.float16, shards="30KB", rope_parameters=LLAMA3,
                                         num_attention_heads=8, num_key_value_heads=1),
    "qwen2_window": lambda n: hf(n, "qwen2", 11, num_hidden_layers=3, hidden_size=56, num_attention_heads=7,
                                 num_key_value_heads=1, use_sliding_window=True, sliding_window=6,
                                 max_window_layers=1, edit=old_style),
    "qwen3_layer_types": lambda n: hf(n, "qwen3", 12, num_hidden_layers=3, head_dim=8, use_sliding_window=True,
                                      sliding_window=5, attention_bias=True, tie_word_embeddings=True,
                                      layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "qwen3_moe_sparse": lambda n: hf(n, "qwen3_moe", 13, num_hidden_layers=4, decoder_sparse_step=2,
                                     mlp_only_layers=[3], norm_topk_prob=False, num_experts=6,
                                     num_experts_per_tok=3, moe_intermediate_size=24, head_dim=16,
                                     attention_bias=True, edit=old_style),
    "qwen3_moe_window": lambda n: hf(n, "qwen3_moe", 14, norm_topk_prob=True, num_experts=4, num_experts_per_tok=1,
                                     moe_intermediate_size=24, head_dim=8, use_sliding_window=True,
                                     sliding_window=7),
    "gguf_llama_mixed": lambda n: gguf_file(n, "llama", 20, MIXED, rope_freqs=True, rope_parameters=LLAMA3,
                                            num_attention_heads=4, hidden_size=64),
    "gguf_llama_biases": lambda n: gguf_file(n, "llama", 21, everything(Q.F16), attention_bias=True, mlp_bias=True,
                                             tie_word_embeddings=True, alignment=64),
    "gguf_qwen2_mixed": lambda n: gguf_file(n, "qwen2", 22, MIXED, tie_word_embeddings=True, rope_parameters=YARN),
    "gguf_qwen3_split": lambda n: gguf_file(n, "qwen3", 23, MIXED, head_dim=16, split=9),
    "gguf_qwen3moe": lambda n: gguf_file(n, "qwen3_moe", 24, MIXED, arch="qwen3moe", num_experts=4,
                                         num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16,
                                         norm_topk_prob=True),
    "gguf_q8_0": lambda n: gguf_file(n, "llama", 25, everything(Q.Q8_0)),
    "gguf_q4_0": lambda n: gguf_file(n, "llama", 26, everything(Q.Q4_0)),
    "gguf_q4_1": lambda n: gguf_file(n, "qwen2", 27, everything(Q.Q4_1)),
    "gguf_bf16": lambda n: gguf_file(n, "qwen3", 28, everything(Q.BF16), head_dim=16,
                                     rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
}

if __name__ == "__main__":
    for model_name in sys.argv[1:] or MODELS:
        print(model_name, flush=True)
        MODELS[model_name](model_name)
