#!/usr/bin/env python3
"""tokenize_test.py SCRIPTS_FOLDER GOLDEN_FOLDER: what scripts/tokenize.py writes, in every format."""

import array
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

SCRIPT = pathlib.Path(sys.argv[1]) / "tokenize.py"
TOKENIZERS = pathlib.Path(sys.argv[2]) / "tokenizers"
EOS = 0  # <|endoftext|> of byte_level.json


def run(*arguments, text=None, code=0, environment=None):
    command = [sys.executable, str(SCRIPT), *map(str, arguments), "--quiet"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", timeout=300,
                          env={**os.environ, **(environment or {})})
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def tokens(data, code):
    values = array.array(code)
    values.frombytes(data)
    return list(values)


def main():
    byte_level = Tokenizer.from_file(str(TOKENIZERS / "byte_level.json"))
    tokenizer = ["--tokenizer", TOKENIZERS / "byte_level.json"]

    def encoded(text):
        return byte_level.encode(text, add_special_tokens=False).ids

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts = ["first document\n\n  indented, ä 😀\n", "second"]
        lines = [f"line {i}\n" for i in range(200)]
        for i, text in enumerate(texts):
            (folder / f"{i}.txt").write_text(text, encoding="utf-8")
        (folder / "a.jsonl").write_text("".join(json.dumps({"body": t}) + "\n\n" for t in lines))
        files = [folder / "0.txt", folder / "a.jsonl", folder / "1.txt"]
        documents = [encoded(t) + [EOS] for t in (texts[0], *lines, texts[1])]
        whole = [t for d in documents for t in d]
        common = [*tokenizer, "--append-eos", "--key", "body", *files]

        # For --prompt-tokens of train_gpt.
        said = run(*tokenizer, "--prompt", "Once, ä")
        assert said == ",".join(map(str, byte_level.encode("Once, ä").ids)) + "\n", said
        run(*tokenizer, "--prompt", "a", "--out", folder / "none", code=2)
        run(*tokenizer, "--out", folder / "none", code=2)

        run(*common, "--format", "u16", "--out", folder / "u16")
        assert tokens((folder / "u16").read_bytes(), "H") == whole
        run(*common, "--format", "u32", "--out", folder / "u32")
        assert tokens((folder / "u32").read_bytes(), "I") == whole

        run(*common, "--format", "llmc", "--out", folder / "llmc")
        run(*common, "--out", folder / "default")
        assert (folder / "default").read_bytes() == (folder / "llmc").read_bytes()
        data = (folder / "llmc").read_bytes()
        assert struct.unpack("<3i", data[:12]) == (20240520, 1, len(whole)) and data[12:1024] == bytes(1012)
        assert tokens(data[1024:], "H") == whole

        for out in ("corpus", "corpus2.bin"):
            run(*common, "--format", "megatron", "--out", folder / out)
        index = (folder / "corpus.idx").read_bytes()
        assert index == (folder / "corpus2.idx").read_bytes()
        assert tokens((folder / "corpus.bin").read_bytes(), "H") == whole
        count = len(documents)
        assert index[:34] == b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
        lengths = list(struct.unpack(f"<{count}i", index[34:34 + 4 * count]))
        offsets = struct.unpack(f"<{count}q", index[34 + 4 * count:34 + 12 * count])
        assert lengths == [len(d) for d in documents]
        assert all(o == 2 * sum(lengths[:i]) for i, o in enumerate(offsets))
        assert struct.unpack(f"<{count + 1}q", index[34 + 12 * count:]) == tuple(range(count + 1))

        # Validation takes whole documents, and training has the others.
        run(*common, "--format", "u16", "--valid-share", "0.2", "--out", folder / "part.bin")
        train, valid = (tokens((folder / f).read_bytes(), "H") for f in ("part.bin", "part-valid.bin"))
        assert len(train) + len(valid) == len(whole) and train[-1] == EOS and valid[-1] == EOS
        assert 0.05 < valid.count(EOS) / count < 0.4
        assert sorted(train + valid) == sorted(whole)

        # A long text is encoded in parts, of which nothing shows; so is one whose tokenizer puts a blank first.
        long = "".join(f"some text {i}, ünd mehr\n\n    {i * i}\n" for i in range(60000))
        assert len(long) > 2 << 20
        run(*tokenizer, "--format", "u16", "--out", folder / "long", "-", text=long)
        assert tokens((folder / "long").read_bytes(), "H") == encoded(long)
        (folder / "latin.jsonl").write_bytes(b'{"body": "a"}\n{"body": "\xe4"}\n')
        (folder / "one.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        for more in (["--key", "body"], ["--chat", folder / "one.jinja"]):
            said = run(*tokenizer, *more, "--out", folder / "x", folder / "latin.jsonl", code=1)
            assert f"{folder / 'latin.jsonl'}, line 2: byte 0xe4 is not UTF-8; convert the file" in said, said

        # Standard input is a file like others: UTF-8 whatever the locale, with the line breaks that it has.
        foreign = "one\r\ntwo\rthree ä 😀\n"
        run(*tokenizer, "--format", "u16", "--out", folder / "foreign", "-", text=foreign,
            environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"})
        assert tokens((folder / "foreign").read_bytes(), "H") == encoded(foreign)
        prefixing = TOKENIZERS / "sentence_piece.json"
        run("--tokenizer", prefixing, "--format", "u16", "--out", folder / "prefixed", folder / "0.txt")
        assert tokens((folder / "prefixed").read_bytes(), "H") == \
            Tokenizer.from_file(str(prefixing)).encode(texts[0], add_special_tokens=False).ids

        for number, line in enumerate(('{"text": "a\\ud800"}', "[" * 10 ** 5)):
            (folder / f"{number}.jsonl").write_text(f'{{"text": "a"}}\n{line}\n')
        for arguments, words in (
                ([*tokenizer, "--out", folder / "x", folder / "0.jsonl"], "0.jsonl, line 2: UnicodeEncodeError"),
                ([*tokenizer, "--out", folder / "x", folder / "1.jsonl"], "1.jsonl, line 2: RecursionError"),
                ([*tokenizer, "--out", folder / "x", folder / "missing"], "missing"),
                (["--tokenizer", folder / "none", "--out", folder / "x", files[0]], "cannot read the tokenizer"),
                ([*tokenizer, "--out", folder / "x", folder / "a.jsonl"], "--key"),
                ([*tokenizer, "--out", folder / "x", "--append-eos", "--eos", "<x>", files[0]], "--eos TOKEN"),
                ([*tokenizer, "--out", folder / "no" / "x", files[0]], "cannot write")):
            assert words in run(*arguments, code=1), arguments
        # A full disk, which a short text meets at the end and a long one while it is written, is not an error of the input.
        for form in ("u16", "llmc", "megatron"):
            for text in ("short", long):
                out = folder / "full.bin"
                (folder / "full.bin.part").symlink_to("/dev/full")
                said = run(*tokenizer, "--format", form, "--out", out, "-", text=text, code=1)
                assert f"cannot write '{out}': No space left" in said and "cannot read" not in said, said
                assert not out.exists()
        assert not (folder / "x").exists() and not list(folder.glob("*.part"))
        large = json.loads((TOKENIZERS / "byte_level.json").read_text())
        large["added_tokens"].append({**large["added_tokens"][0], "id": 70000, "content": "<far>"})
        (folder / "large.json").write_text(json.dumps(large))
        if Tokenizer.from_file(str(folder / "large.json")).token_to_id("<far>") == 70000:
            assert "use u32" in run("--tokenizer", folder / "large.json", "--out", folder / "x", files[0], code=1)
        assert "tokenizer.json" in run("--help")
    print("tokenize.py: all formats are as they should be")


if __name__ == "__main__":
    main()
