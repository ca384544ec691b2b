#!/usr/bin/env python3
"""Trains two small tokenizers and writes them, with what their package decodes, to tests/golden/tokenizers/.

Needs the package `tokenizers` alone; tests/golden/README.md tells more.
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
TEXT = [
    "The quick brown fox jumps over the lazy dog.\n\n    int main() { return 0; }\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich — naïve façade.",
    "日本語の文章もあります。漢字、ひらがな、カタカナ。 Ελληνικά, кириллица, עברית",
    "emoji 😀😃 family 👨‍👩‍👧 flags 🇩🇪 combining e\u0301 tabs\tand\r\nlines",
] * 4


def byte_level():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    # One with characters that are not bytes, and one that is a byte of the table but not UTF-8 as such.
    t.add_tokens([AddedToken(text, normalized=False) for text in ("    ", "é", "✓")])
    t.add_special_tokens(["<|pad|>"])
    return t


def sentence_piece():
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.train_from_iterator(TEXT[:2], trainers.BpeTrainer(
        vocab_size=400, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    # Bytes belong to the vocabulary and are not special.
    content = json.loads(t.to_str())
    content["added_tokens"] = [a for a in content["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(content))


def cases(t, rng):
    size = t.get_vocab_size()
    lists = [t.encode(text, add_special_tokens=False).ids for text in TEXT[:4]]
    lists += [ids[1:] for ids in lists[:4]] + [ids[:-1] for ids in lists[:4]]
    # Any order of tokens, so that bytes make no characters.
    lists += [[rng.randrange(size) for _ in range(rng.randrange(1, 30))] for _ in range(60)]
    lists += [[i] for i in range(size)]
    return [{"ids": ids, "text": t.decode(ids, skip_special_tokens=False),
             "without_special": t.decode(ids, skip_special_tokens=True)} for ids in lists]


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = random.Random(14)
    for name, t in (("byte_level", byte_level()), ("sentence_piece", sentence_piece())):
        t.save(str(FOLDER / f"{name}.json"), pretty=False)
        content = {"tokenizers": tokenizers.__version__, "cases": cases(t, rng)}
        (FOLDER / f"{name}_decoded.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
