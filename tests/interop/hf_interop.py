#!/usr/bin/env python3
"""Exchanges model folders with transformers, both ways.

    python hf_interop.py HF_FOLDER

For random small models of all families, f32 in one file, bf16 and f16 in several, experts one by one and fused:

1. HF_FOLDER reads the folder over 1 and 3 ranks and writes one like it: the same files, byte for byte.
2. It writes a new folder with a config.json of its own: transformers opens it without a word of missing or unexpected
   tensors, its tensors have the same names, shapes, dtypes and bits, its model the same settings and logits.
3. Of an index with ./, folders below, tensors in another file than it says, and one beside model.safetensors, it reads what
   transformers reads.

The second also with the rotary scalings and every kind of windows that rope_training.py chooses, in f32.

Ends with exit code 0 when all of that holds, and prints what was compared.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV3Config, Gemma3TextConfig, Glm4MoeConfig, GPT2Config, GptOssConfig, LlamaConfig, MistralConfig, MixtralConfig,
                          Olmo2Config, Olmo3Config, Qwen2Config, Qwen3Config, Qwen3MoeConfig)
from transformers.utils import logging

import rope_training

torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()

SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
CONFIGS = {
    "llama": LlamaConfig(**SIZES, rope_parameters=LLAMA3, rms_norm_eps=3e-5, head_dim=6, attention_bias=True),
    "mistral": MistralConfig(**SIZES, rope_parameters=dict(rope_type="default", rope_theta=1234.5)),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=24,
                                norm_topk_prob=True),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
    "deepseek_v3": DeepseekV3Config(**{**SIZES, "num_key_value_heads": 4}, moe_intermediate_size=24, n_routed_experts=8,
                                    num_experts_per_tok=2, n_group=4, topk_group=2, first_k_dense_replace=1, q_lora_rank=None,
                                    kv_lora_rank=20, qk_nope_head_dim=6, qk_rope_head_dim=6, v_head_dim=16,
                                    tie_word_embeddings=True, rope_interleave=False, norm_topk_prob=False,
                                    rope_parameters=dict(rope_type="yarn", rope_theta=1234.5, factor=8.0, beta_fast=16.0, beta_slow=2.0,
                                                         original_max_position_embeddings=16)),
    "glm4_moe": Glm4MoeConfig(**SIZES, head_dim=12, moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=2,
                              n_group=2, topk_group=1, first_k_dense_replace=1, n_shared_experts=2,
                              rope_parameters=dict(rope_type="default", rope_theta=1234.5, partial_rotary_factor=0.5)),
    "olmo2": Olmo2Config(**SIZES, tie_word_embeddings=True),
    "olmo3": Olmo3Config(**{**SIZES, "num_hidden_layers": 4}, sliding_window=7, tie_word_embeddings=True,
                         rope_parameters={"sliding_attention": dict(rope_type="default", rope_theta=1234.5),
                                          "full_attention": dict(rope_type="yarn", rope_theta=2345.5, factor=8.0, attention_factor=1.2, beta_fast=16.0, beta_slow=2.0,
                                                                 original_max_position_embeddings=16)}),
    "gemma3_text": Gemma3TextConfig(**{**SIZES, "num_hidden_layers": 4}, head_dim=12, sliding_window=7, query_pre_attn_scalar=16,
                                    layer_types=["sliding_attention", "full_attention"] * 2,
                                    rope_parameters={"sliding_attention": dict(rope_type="default", rope_theta=1234.5),
                                                     "full_attention": dict(rope_type="linear", rope_theta=2345.5, factor=8.0)}),
    "gemma3_untied": Gemma3TextConfig(**SIZES, head_dim=8, attention_bias=True, tie_word_embeddings=False),
    "gpt_oss": GptOssConfig(**SIZES, head_dim=12, num_local_experts=4, num_experts_per_tok=2, sliding_window=7,
                            rope_parameters=dict(rope_type="yarn", rope_theta=1234.5, factor=8.0, truncate=False, beta_fast=16.0, beta_slow=2.0,
                                                 original_max_position_embeddings=16)),
    "gpt2": GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=80),
}
# Keys of a configuration that make the model.
MEANT = ("vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
         "rms_norm_eps layer_norm_epsilon rope_parameters tie_word_embeddings attention_bias mlp_bias num_local_experts "
         "num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob n_inner n_embd model_type kv_lora_rank q_lora_rank "
         "qk_nope_head_dim qk_rope_head_dim v_head_dim rope_interleave n_routed_experts n_shared_experts n_group topk_group "
         "first_k_dense_replace routed_scaling_factor use_qk_norm layer_types sliding_window "
         "query_pre_attn_scalar").split()


def require(ok, what):
    if not ok:
        raise AssertionError(what)


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    require(done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found.update(load_file(path))
    return found


def opened(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        require(not info[kind], f"{folder}: {kind}: {info[kind]}")
    return model.eval()


def meaning(value, config):
    """Of a setting; of rotary ones with the values of absent keys."""
    if not isinstance(value, dict):
        return value
    if "full_attention" in value:
        return {kind: meaning(value[kind], config) for kind in ("full_attention", "sliding_attention")}
    defaults = {}
    if value["rope_type"] == "yarn":
        defaults = dict(beta_fast=32.0, beta_slow=1.0)
    if value["rope_type"] == "longrope":
        defaults = dict(factor=config.max_position_embeddings / value["original_max_position_embeddings"])
    return {**defaults, **{key: item for key, item in value.items() if key != "type"}}


def copied_alike(program, folder, name):
    for ranks in (1, 3):
        like = folder.parent / f"{folder.name}.like{ranks}"
        run(program, folder, like, ranks, "like")
        require(contents(like) == contents(folder), f"{name} on {ranks} ranks: files differ")


def written_anew(program, folder, before, name):
    new = folder.parent / f"{folder.name}.new"
    run(program, folder, new, 2, "new")
    old, written = tensors(folder), tensors(new)
    require(old.keys() == written.keys(), f"{name}: names differ: {sorted(old.keys() ^ written.keys())}")
    for key, tensor in old.items():
        # A buffer, which is written in its own dtype.
        bias = key.endswith("e_score_correction_bias")
        same = torch.equal(tensor.float(), written[key]) if bias else (
            tensor.dtype == written[key].dtype and torch.equal(tensor, written[key]))
        require(same, f"{name}: {key} differs")
    after = opened(new)
    for key in MEANT:
        was, now = (meaning(getattr(of, key, None), of) for of in (before.config, after.config))
        require(was == now or (key == "head_dim" and was is None), f"{name}: {key} was {was} and is {now}")
    tokens = torch.arange(40).reshape(2, 20) % 97
    with torch.no_grad():
        a, b = before(tokens).logits, after(tokens).logits
    require((a - b).abs().max() <= 1e-5 * a.abs().max(), f"{name}: logits differ by {(a - b).abs().max()}")


def relocate(program, folder, model):
    """The same weights in other places; `model` has them."""
    index_file = "model.safetensors.index.json"
    files = json.loads((folder / index_file).read_text())["weight_map"]
    last = max(files.values())
    for name, where in {"dot": lambda tensor, file: "./" + file, "below": lambda tensor, file: "./x/y/" + file,
                        "elsewhere": lambda tensor, file: last if "q_proj" in tensor else file,
                        "whole": lambda tensor, file: "gone-" + file}.items():
        other, like = folder.parent / f"{folder.name}.{name}", folder.parent / f"{folder.name}.{name}.like"
        shutil.copytree(folder, other)
        changed = {tensor: where(tensor, file) for tensor, file in files.items()}
        (other / index_file).write_text(json.dumps({"metadata": {}, "weight_map": changed}))
        if name == "below":
            (other / "x/y").mkdir(parents=True)
            for file in set(files.values()):
                (other / file).rename(other / "x/y" / file)
        if name == "whole":
            for file in set(files.values()):
                (other / file).unlink()
            save_file({key: -tensor for key, tensor in tensors(folder).items()}, other / "model.safetensors", {"format": "pt"})
        run(program, other, like, 3, "like")
        want, got = opened(other).state_dict(), opened(like).state_dict()
        require(all(torch.equal(got[key], tensor) for key, tensor in want.items()), f"{name}: weights differ")
        require(name == "whole" or all(torch.equal(tensor, want[key]) for key, tensor in model.state_dict().items()),
                f"{name}: transformers reads other weights")
        expected = contents(other)
        if name == "whole":
            expected.pop(pathlib.Path(index_file))
        require(contents(like) == expected, f"{name}: files differ")


def main():
    program = sys.argv[1]
    count = scaled = 0
    with tempfile.TemporaryDirectory() as folder:
        for family, config in CONFIGS.items():
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0, 0.2)
                for name, buffer in model.named_buffers():
                    if name.endswith("e_score_correction_bias"):
                        buffer.normal_(0, 0.05)
            forms = [("f32", torch.float32, "1GB", True), ("bf16", torch.bfloat16, "20KB", True),
                     ("f16", torch.float16, "30KB", True)]
            if "num_experts_per_tok" in config.to_dict():
                forms.append(("fused", torch.float32, "40KB", False))
            for form, dtype, limit, one_by_one in forms:
                path = pathlib.Path(folder) / f"{family}.{form}"
                model.to(dtype).save_pretrained(path, max_shard_size=limit, save_original_format=one_by_one)
                (path / "tokenizer.json").write_text("{}")
                before = opened(path)
                copied_alike(program, path, f"{family} {form}")
                written_anew(program, path, before, f"{family} {form}")
                if (family, form) == ("llama", "bf16"):
                    relocate(program, path, before)
                count += 1
        for family, i, (scaling, rope, more) in rope_training.chosen_cases():
            path = pathlib.Path(folder) / f"{family}{i}"
            before = rope_training.make_folder(path, rope_training.config_of(family, rope, more, old_keys=i % 2 == 1))
            written_anew(program, path, before, f"{family}, {scaling}")
            scaled += 1
    print(f"{count} folders of {len(CONFIGS)} families: written back byte for byte, and anew as transformers opens them; "
          f"{scaled} with rotary scalings and windows anew")


if __name__ == "__main__":
    main()
