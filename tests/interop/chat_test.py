#!/usr/bin/env python3
"""chat_test.py SCRIPTS_FOLDER GOLDEN_FOLDER: examples of scripts/tokenize.py --chat, against transformers' templates."""

import array
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

SCRIPT = pathlib.Path(sys.argv[1]) / "tokenize.py"
TOKENIZER = pathlib.Path(sys.argv[2]) / "tokenizers" / "byte_level.json"
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
          "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
          "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
# Thoughts of earlier answers are left out once another question follows.
FORGETFUL = ("{% for m in messages %}<|im_start|>{{ m.role }}\n"
             "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
CHATS = [
    [("user", "hello"), ("assistant", "good day"), ("user", "more, ä 😀"), ("assistant", "  1 2\n3 ")],
    [("system", "be brief"), ("user", "why?"), ("tool", "42"), ("assistant", "because"), ("user", "ah")],
]


def run(*arguments, code=0):
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments), "--quiet"], capture_output=True, text=True,
                          encoding="utf-8", timeout=300)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def documents(path):
    """Lists of tokens as they are stored."""
    index = path.with_suffix(".idx").read_bytes()
    magic, version, code, count, bounds = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version, code, bounds) == (b"MMIDIDX\0\0", 1, 4, count + 1)
    values = array.array("i")
    values.frombytes(path.with_suffix(".bin").read_bytes())
    at, all_of = 0, []
    for length in struct.unpack(f"<{count}i", index[34:34 + 4 * count]):
        all_of.append(list(values[at:at + length]))
        at += length
    assert at == len(values)
    return all_of


def as_messages(chat):
    return [{"role": role, "content": content} for role, content in chat]


def write(path, chats):
    path.write_text("".join(json.dumps({"messages": as_messages(c)}) + "\n" for c in chats), encoding="utf-8")
    return path


def make_folder(folder, template):
    folder.mkdir()
    base = Tokenizer.from_file(str(TOKENIZER))
    base.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, eos_token="<|endoftext|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


def check_against_transformers(folder):
    """All tokens up to the last answer's end, and the mask of {% generation %}."""
    theirs = make_folder(folder / "chatml", CHATML)
    data = write(folder / "chats.jsonl", CHATS)
    for template in ("model", "chatml"):
        run("--tokenizer", folder / "chatml", "--chat", template, "--out", folder / template, data)
        for chat, ours in zip(CHATS, documents(folder / template), strict=True):
            want = theirs.apply_chat_template(as_messages(chat), tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
            masked = [t if m else -1 - t for t, m in zip(want["input_ids"], want["assistant_masks"])]
            assert ours == masked[:len(ours)], (template, ours, masked)
            assert all(t < 0 for t in masked[len(ours):]) and ours[-1] >= 0
            answers = [c for role, c in chat if role == "assistant"]
            learned = theirs.decode([t for t in ours if t >= 0])
            assert learned == "".join(a + "<|im_end|>" for a in answers), learned
    return data


def check_bad_examples(folder, data):
    common = ["--tokenizer", folder / "chatml", "--out", folder / "bad", "--chat"]
    bad = {
        "with an unknown role": [("user", "a"), ("oracle", "b")],
        "with an empty answer": [("user", "a"), ("assistant", " \n")],
        "without an answer": [("user", "a")],
    }
    for kind, chat in bad.items():
        said = run(*common, "chatml", write(folder / "one.jsonl", [CHATS[0], chat]), code=1)
        assert f"one.jsonl, line 2: an example {kind}" in said and "--skip-bad" in said, said
    mixed = write(folder / "mixed.jsonl", [*bad.values(), CHATS[0], *bad.values()])
    said = run(*common, "chatml", "--skip-bad", mixed)
    for line, kind in enumerate(bad, 1):
        assert f"left out: 2 examples {kind}; the first is {mixed}, line {line}" in said, said
    assert len(documents(folder / "bad")) == 1

    (folder / "forgetful.jinja").write_text(FORGETFUL)
    thoughts = [("user", "a"), ("assistant", "hm</think>b"), ("user", "c"), ("assistant", "d")]
    said = run(*common, folder / "forgetful.jinja", write(folder / "thoughts.jsonl", [thoughts]), code=1)
    assert "that the template does not build message by message" in said, said

    long = max(len(d) for d in documents(folder / "model"))
    said = run(*common, "chatml", "--max-tokens", long - 1, data)
    assert f"left out: 1 example of more than {long - 1} tokens; the first is {data}, line" in said, said
    for arguments, words, code in (
            (["llama3", data], "has no token <|begin_of_text|>", 1),
            (["none.jinja", data], "neither model, chatml nor llama3, nor a template's file", 1),
            (["chatml", "--append-eos", data], "leave --append-eos", 2),
            (["chatml", folder / "missing.jsonl"], "cannot read", 1)):
        assert words in run(*common, *arguments, code=code), arguments
    assert "has a template" in run("--tokenizer", TOKENIZER, "--chat", "model", "--out", folder / "x", data, code=1)
    assert "give --chat" in run("--tokenizer", TOKENIZER, "--skip-bad", "--out", folder / "x", data, code=2)
    assert not list(folder.glob("*.part"))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_bad_examples(folder, check_against_transformers(folder))
    print("tokenize.py --chat: tokens and masks are transformers'")


if __name__ == "__main__":
    main()
