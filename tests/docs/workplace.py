"""A folder in which commands of pages run: the tree's files that they name, programs, a small llama with a tokenizer, a model with a head for
multi-token prediction, and texts."""

import json
import os
import re
import shutil
import struct

from page_commands import ROOT

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
VOCABULARY = 384  # holds the tokenizer's


def link_programs(folder, programs):
    """build/release and build/debug are `programs`; in build/cuda, train_gpt computes on imitated GPUs where that is built."""
    for build in ("release", "debug", "cuda"):
        (folder / "build" / build).mkdir(parents=True)
    (folder / "build/release/bin").symlink_to(programs)
    (folder / "build/debug/bin").symlink_to(programs)
    cuda = folder / "build/cuda/bin"
    cuda.mkdir()
    for program in programs.iterdir():
        imitated = programs / f"{program.name}_cuda_host"
        (cuda / program.name).symlink_to(imitated if imitated.exists() else program)


def make_llama(folder):
    """The golden llama with long sequences and rows of zeros for the tokens that it lacks."""
    shutil.copytree(ROOT / "tests/golden/models/llama", folder)
    config = folder / "config.json"
    text = re.sub(r'("max_position_embeddings": )\d+', r"\g<1>1024", config.read_text())
    config.write_text(re.sub(r'("vocab_size": )\d+', rf"\g<1>{VOCABULARY}", text))
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:begin]), b""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        values = data[begin + first:begin + last]
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            values += bytes((VOCABULARY - entry["shape"][0]) * entry["shape"][1] * 4)
            entry["shape"][0] = VOCABULARY
        entry["data_offsets"] = [len(body), len(body) + len(values)]
        body += values
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + body)
    shutil.copy(ROOT / "tests/golden/tokenizers/byte_level.json", folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(CHAT)


def make_deepseek(folder):
    """The golden deepseek_v3 with a head for multi-token prediction, without weights."""
    folder.mkdir()
    config = (ROOT / "tests/golden/models/deepseek_v3/config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_nextn_predict_layers": 0', '"num_nextn_predict_layers": 1'))


def make_texts(folder):
    count = 4000
    header = struct.pack("<3i", 20240520, 1, count) + bytes(1012)
    (folder / "corpus.bin").write_bytes(header + struct.pack(f"<{count}H", *(7 * i % 61 for i in range(count))))
    lines = [f"{i} is more than {i - 1}, and less than {i + 1}." for i in range(200)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    chat = lambda line: {"messages": [{"role": "user", "content": "Tell."}, {"role": "assistant", "content": line}]}
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat(line)) + "\n" for line in lines))
    (folder / "text").mkdir()
    for i, line in enumerate(lines):  # documents, of which some are set apart
        (folder / f"text/{i}.txt").write_text(line)


def prepare(folder, programs):
    # Copies of what commands write to.
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copytree(ROOT / "tests/golden", folder / "tests/golden")
    for name in ("scripts", "programs"):
        os.symlink(ROOT / name, folder / name)
    link_programs(folder, programs)
    make_llama(folder / "llama")
    make_deepseek(folder / "deepseek")
    make_texts(folder)
    (folder / "hosts").write_text("host1 slots=1\nhost2 slots=1\n")  # of scripts/hosts.sh
