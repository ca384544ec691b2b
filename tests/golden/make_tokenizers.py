#!/usr/bin/env python3
"""Trains three small tokenizers and writes them, with what their package decodes and encodes, to tests/golden/tokenizers/.

Needs the package `tokenizers` alone; tests/golden/README.md tells more.
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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


def words():
    """Parts of Llama 3, Qwen and gpt-oss."""
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.normalizer = normalizers.NFC()
    end = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    pattern = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{end}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{end}|"
               r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|begin_of_text|>", "<|eot|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken("lazy", single_word=True), AddedToken("\u00c5", normalized=True), "laz", "ö"])
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    return t


def encoded(t):
    texts = TEXT[:4] + [
        "", " ", "   x  ", "DON'T they'Ll 1234567 HTTPServer/\n\n\n  a\u0301\u0323 \u1e9b\u0323 \u180e\u00a0\u2003.", "lazy lazyx xlazy laz",
        "a <mask>  b<|eot|><|begin_of_text|>é \u212b Å A\u030a o\u0308", "\0\x7f\ue000\U0010ffff▁ <0x41>\u00ad", "</s>x<s>  <unk> y",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 20]
    return [{"text": text, "ids": t.encode(text, add_special_tokens=False).ids, "with_special": t.encode(text).ids} for text in texts]


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
    for name, t in (("byte_level", byte_level()), ("sentence_piece", sentence_piece()), ("words", words())):
        t.save(str(FOLDER / f"{name}.json"), pretty=False)
        for kind, made in (("decoded", cases(t, rng)), ("encoded", encoded(t))):
            content = {"tokenizers": tokenizers.__version__, "cases": made}
            (FOLDER / f"{name}_{kind}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
