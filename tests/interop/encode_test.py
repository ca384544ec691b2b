#!/usr/bin/env python3
"""encode_test.py ENCODE_TEXT [STRINGS [SEED]]: Tokenizer::encode() beside the package `tokenizers`.

Trains tokenizers with the parts of published ones and compares the tokens of natural text, of STRINGS random ones each (default: 300),
and of long words. 10000 strings take some minutes.
"""

import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

PROGRAM = sys.argv[1]
STRINGS = int(sys.argv[2]) if len(sys.argv) > 2 else 300
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 5


def characters(unicode):
    return [c for c in map(chr, range(0x110000)) if unicode.category(c) not in ("Cn", "Cs", "Co")]


# Characters that both programs know. PCRE2 and utf8proc of Debian 12 have Unicode 14; `tokenizers` splits by Unicode 16 and
# normalizes by Unicode 9.
OLD = characters(unicodedata.ucd_3_2_0)
KNOWN = characters(unicodedata) if unicodedata.unidata_version < "15" else OLD

NATURAL = [
    "The quick brown fox jumps over the lazy dog. It's what they'll say: we've, I'm, you'd, DON'T, HE'S, they'RE.\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich — naïve façade, Ærø, Łódź, İstanbul, ıĞş, ŉ ſ's 'ſ KELVIN 'K.",
    "Le cœur a ses raisons que la raison ne connaît point ; 3,14 × 10⁵ ≈ ½ + ⅓, №7, Ⅻ, ②, ١٢٣, १२३, 12345678901.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ἐν ἀρχῇ ἦν ὁ λόγος· ΟΔΥΣΣΕΥΣ.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ґанок, їжак, Ђорђе.",
    "日本語の文章もあります。漢字、ひらがな、カタカナ、ﾊﾝｶｸ、ＡＢＣ１２３。 中文句子沒有空格,但是有標點。 한국어 문장도 있습니다, 각자의 자모 \u1100\u1161\u11a8.",
    "نص عربي مع تشكيل: السَّلَامُ عَلَيْكُمْ. עברית עם ניקוד: שָׁלוֹם. हिन्दी में वाक्य है। ภาษาไทยไม่มีช่องว่าง. தமிழ்",
    "emoji 😀😃 family 👨\u200d👩\u200d👧\u200d👦 flags 🇩🇪🇫🇷 skin 👍🏽 keycap 1\ufe0f\u20e3 heart ❤\ufe0f",
    "combining e\u0301 a\u0323\u0307 a\u0307\u0323 \u0344 \u0958 \u2126 \u212b \ufb01 \uf900 \U0002f800 q\u0307\u0323 \u0f73 ṩ s\u0323\u0307",
    "tabs\tand\r\nlines\r\rmixed\n\n\n  indented\t \n\u00a0nbsp\u2003em\u2028ls\u2029ps\u0085nel\u180emvs\u200bzwsp\ufeffbom",
    "nul \0 here, \x01\x1b[2J control, private \ue000\ue001\U000f0000, last \U0010ffff and \ufffe\uffff\ufffd",
    "int main(int argc, char** argv) { return argc > 1 ? 0x7fffffff : -1; }  // comment\n\n\n\t\tfoo_bar2 = HTTPServerXMLParser();",
    "   leading, trailing   ", " ", "", "\n", "▁ ▁▁a ▁", "<0x0A> <0x41> </s><s> <unk>", "http://example.org/a/b?c=d&e=%20//\n//",
]


def corpus():
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:30]
    return [pathlib.Path(f).read_text(encoding="utf-8", errors="replace")[:40000] for f in files] + NATURAL * 5


CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", TAIL])
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
            + TAIL)
POSSESSIVE = CONTRACTION.replace(":", ":(?:", 1) + r")|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}|\s++$|\s*[\r\n]|\s+(?!\S)|\s|(?<=x)y"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(*steps, regex=False, prefix=False):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    return pre_tokenizers.Sequence([*steps, last]) if steps else last


def make(pre, normalizer=None, special=(), template=None, vocab=3000, **model):
    t = Tokenizer(models.BPE(**model))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoders.ByteLevel()
    t.train_from_iterator(corpus() if vocab > 1000 else corpus()[-90:], trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=list(special)))
    level = processors.ByteLevel(trim_offsets=False)
    t.post_processor = level if template is None else processors.Sequence([level, template])
    return t


def pieces(pre, normalizer, **model):
    """Like SentencePiece's, with bytes for unknown characters."""
    t = Tokenizer(models.BPE(**model))
    t.normalizer, t.pre_tokenizer = normalizer, pre
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    text = [" ".join(w for w in c.split(" ") if len(w) < 30)[:6000] for c in corpus()[:40] + NATURAL[:6]]
    bytes_ = [f"<0x{b:02X}>" for b in range(256)] if model["byte_fallback"] else []
    # Without words, merges would be of lines.
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer, trained.pre_tokenizer = normalizers.Replace(" ", "▁"), split("▁+", "merged_with_next")
    trained.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=2000, show_progress=False, limit_alphabet=120, special_tokens=["<unk>", "<s>", "</s>", *bytes_]))
    learned, made = json.loads(trained.to_str()), json.loads(t.to_str())
    made["model"].update(vocab=learned["model"]["vocab"], merges=learned["model"]["merges"])
    made["added_tokens"] = [a for a in learned["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(made))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def tokenizers():
    start = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
    ends = processors.TemplateProcessing(single="<|a|> $A <|b|>:1", special_tokens=[
        {"id": "<|a|>", "ids": [1, 0], "tokens": ["x", "y"]}, {"id": "<|b|>", "ids": [2], "tokens": ["z"]}])
    yield "gpt2", make(byte_level(regex=True), special=[AddedToken("<|endoftext|>", normalized=True, special=True)])
    yield "llama3", make(byte_level(split(LLAMA3)), special=["<|begin_of_text|>", "<|eot_id|>"], template=start, ignore_merges=True)
    yield "qwen3", make(byte_level(split(QWEN)), normalizers.NFC(), special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], vocab=5000)
    yield "gpt_oss", make(byte_level(split(O200K)), special=["<|startoftext|>", "<|endoftext|>"], ignore_merges=True)
    yield "deepseek", make(byte_level(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK)), special=["<｜begin▁of▁sentence｜>"])
    zoo = make(byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True, prefix=True),
               normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s{2,}"), "  ")]), vocab=2000,
               special=["<|endoftext|>", "<|pad|>"], template=ends)
    zoo.add_tokens([AddedToken("main", single_word=True), AddedToken("ﬁn", normalized=True), AddedToken("lazy dog", lstrip=True),
                    AddedToken("the", single_word=True, rstrip=True, normalized=False), AddedToken("  ", normalized=False),
                    AddedToken("Ａ", normalized=True), AddedToken("é", normalized=False, single_word=True), "ab", "abc", "bcd"])
    zoo.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("<mask>s", rstrip=True)])
    yield "zoo", zoo
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        yield behavior, make(byte_level(split(r"\s|\p{P}", behavior), pre_tokenizers.Digits()), normalizers.NFD(), vocab=1000)
        yield f"inverted {behavior}", make(byte_level(split(LLAMA3, behavior, True)), normalizers.NFKD(), vocab=1000)
    yield "possessive", make(byte_level(split(POSSESSIVE), split("x*")), vocab=1000)
    llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "llama2", pieces(None, llama, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    yield "no bytes", pieces(None, llama, byte_fallback=False, unk_token="<unk>", fuse_unk=True)
    yield "nothing unknown", pieces(None, llama, byte_fallback=False, unk_token="<unk>", fuse_unk=False)
    yield "gemma", pieces(pre_tokenizers.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁"), byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    for scheme in ("always", "first", "never"):
        yield f"metaspace {scheme}", pieces(pre_tokenizers.Metaspace("▁", scheme, split=scheme != "first"), None, byte_fallback=True)


def strings(rng, special, known):
    yield from NATURAL
    for a in NATURAL:
        yield rng.choice(special).join([a, rng.choice(NATURAL), ""])
    source = "".join(corpus()[:5])
    for _ in range(STRINGS):
        parts = []
        for _ in range(rng.randrange(1, 12)):
            kind = rng.randrange(8)
            text = source if kind == 0 else rng.choice(NATURAL)
            at = rng.randrange(len(text) + 1)
            parts.append(
                text[at:at + rng.randrange(20)] if kind < 3 else "".join(rng.choices(known, k=rng.randrange(6))) if kind == 3
                else rng.choice(special) if kind == 4 else "".join(rng.choices(" \t\r\n\u00a0'x1aB-", k=rng.randrange(8))) if kind == 5
                else rng.choice(["'s", "'LL", "'ve", "I'M", "a'ſ", "123456", "ABCdef", "e\u0301\u0323", "  \n ", "main", "the  ", "abcd", "<mask>"])
                if kind == 6 else chr(rng.choice([0, 0xe000, 0x10fffd, 0xad, 0x200d, 0x301, 0x1f468])))
        yield "".join(parts)


def encoded(path, texts):
    data = b"".join(b"%d %d\n%s\n" % (len(t.encode()), special, t.encode()) for t, special in texts)
    done = subprocess.run([PROGRAM, str(path)], input=data, capture_output=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\n")[:-1]


def main():
    rng = random.Random(SEED)
    long = ["a" * 100000, "日本" * 50000, " " * 100000, "A" * 100000, "ab\n" * 40000, "a\u0301\u0323" * 40000, "\u0301\u0323" * 100000, "'" * 100000]
    count = 0
    with tempfile.TemporaryDirectory() as name:
        for kind, t in tokenizers():
            special = [a.content for a in t.get_added_tokens_decoder().values()] or ["<none>"]
            texts = [(s, rng.random() < 0.5) for s in strings(rng, special, OLD if t.normalizer else KNOWN)]
            if kind in ("llama3", "qwen3", "gpt_oss", "llama2"):
                texts += [(s, True) for s in long]
            path = pathlib.Path(name) / "tokenizer.json"
            content = json.loads(t.to_str())
            for legacy in (False, True):
                merges = content["model"]["merges"]
                if legacy:
                    content["model"]["merges"] = [" ".join(m) for m in merges]
                    texts = texts[:40]
                path.write_text(json.dumps(content))
                lines = encoded(path, texts)
                assert len(lines) == len(texts), (kind, lines[-1][:500])
                for (text, with_special), line in zip(texts, lines):
                    wanted = t.encode(text, add_special_tokens=with_special).ids
                    if line != " ".join(map(str, wanted)):
                        tokens = [t.id_to_token(i) for i in wanted]
                        sys.exit(f"{kind}: {text[:300]!r} special {with_special}\nis     {line[:500]}\nwanted {wanted[:100]}\n{tokens[:100]}")
                count += len(texts)
    print(f"Tokenizer::encode(): the tokens of {count} texts are those of tokenizers")


if __name__ == "__main__":
    main()
