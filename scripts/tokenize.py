#!/usr/bin/env python3
"""Makes a file of tokens for `train_gpt --tokens` from text, by a tokenizer.json (package `tokenizers`).

Examples:
  scripts/tokenize.py --tokenizer llama/tokenizer.json --format u32 --append-eos --out train.bin a.txt b.txt
  scripts/tokenize.py --tokenizer gpt2/tokenizer.json --format megatron --append-eos --valid-share 0.01 \\
      --out corpus corpus.jsonl
  zcat crawl.jsonl.gz | scripts/tokenize.py --tokenizer tokenizer.json --format llmc --jsonl --out train.bin -
  train_gpt --model llama --sample-only --sample 100 \\
      --prompt-tokens "$(scripts/tokenize.py --tokenizer llama --prompt 'Once upon a time')"
  scripts/tokenize.py --tokenizer qwen3 --chat model --max-tokens 2049 --out chats chats.jsonl
  train_gpt --model qwen3 --sft chats --packing --seq 2048

A line of a .jsonl file is a document, its text the member --key; any other file is one document. Documents follow each
other in the order of the files. Files are read and written piece by piece, so their size does not matter; what is
written has its name only when it is complete.

--chat makes examples for `train_gpt --sft`: a line holds {"messages": [{"role": ..., "content": ...}, ...]}, with roles
system, user, assistant and tool, and perhaps "tools" for the template. The template's text is encoded as a whole. Answers
are learned: what follows the prompt for an answer, up to and with the token that ends it, or what the template has in
{% generation %} blocks. The other tokens, and blanks behind that token, are context. Messages after the last answer are
left out. A document's tokens are i32: t where it is learned, -1 - t where it is not. An example has several documents
where the template rewrites earlier turns. Bad examples end the program, or are left out and counted (--skip-bad).
"""

import argparse
import array
import atexit
import contextlib
import itertools
import json
import os
import random
import struct
import sys
import time

from chat_examples import TEMPLATES, BadExample, BadTemplate, Chat

END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "<|im_end|>")
PIECE = 1 << 20  # characters of a plain file that are encoded at once
LLMC_MAGIC = {2: 20240520, 4: 20240801}
MEGATRON_CODE = {2: 8, 4: 4}  # u16, i32


def fail(message):
    sys.exit(f"tokenize.py: {message}")


class Output:
    """A token file of one format, under another name until close()."""

    def __init__(self, path, form, vocab, masked=False):
        self.form = form
        narrow = vocab <= 65536 and not masked
        if form == "u16" and not narrow:
            fail(f"--format u16 holds tokens below 65536, but the tokenizer has {vocab}; use u32")
        self.width = 4 if form == "u32" or not narrow else 2
        self.code = "i" if masked else {2: "H", 4: "I"}[self.width]
        if form == "megatron":
            path = path[:-4] if path.endswith((".bin", ".idx")) else path
            self.index = path + ".idx"
            path += ".bin"
        self.path, self.tokens, self.lengths = path, 0, array.array("i")
        self.parts = [path + ".part"]
        with self.named():
            self.file = open(self.parts[0], "wb")
        atexit.register(self.remove_parts)
        with self.named():
            if form == "llmc":
                self.file.write(bytes(1024))

    @contextlib.contextmanager
    def named(self):
        """What fails within is a failure to write this output."""
        try:
            yield
        except OSError as error:
            fail(f"cannot write '{self.path}': {error.strerror or error}")

    def remove_parts(self):
        """Of a run that failed."""
        # The file's buffered data would be written when the interpreter ends, and fail a second time.
        with contextlib.suppress(OSError):
            self.file.close()
        for part in self.parts:
            if os.path.exists(part):
                os.remove(part)

    def write(self, ids):
        values = array.array(self.code, ids)
        if sys.byteorder != "little":
            values.byteswap()
        with self.named():
            self.file.write(values.tobytes())
        self.tokens += len(ids)

    def end_document(self, length):
        if self.form == "megatron":
            self.lengths.append(length)

    def close(self):
        if self.form == "llmc":
            if self.tokens >= 1 << 31:
                fail(f"llm.c's files hold fewer than 2^31 tokens, these are {self.tokens}; split the text, or use u32")
        with self.named():
            if self.form == "llmc":
                self.file.seek(0)
                self.file.write(struct.pack("<3i", LLMC_MAGIC[self.width], 1, self.tokens))
            self.file.close()
            if self.form == "megatron":
                self.write_index()
            os.replace(self.parts[0], self.path)

    def write_index(self):
        count = len(self.lengths)
        self.parts.append(self.index + ".part")
        with open(self.parts[1], "wb") as out:
            out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, MEGATRON_CODE[self.width], count, count + 1))
            ends = itertools.accumulate(self.lengths, lambda end, n: end + n * self.width, initial=0)
            self.write_numbers(out, self.lengths, "i")
            self.write_numbers(out, itertools.islice(ends, count), "q")  # where each begins
            self.write_numbers(out, range(count + 1), "q")
        os.replace(self.parts[1], self.index)

    @staticmethod
    def write_numbers(out, numbers, code):
        numbers = iter(numbers)
        while some := array.array(code, itertools.islice(numbers, 1 << 16)):
            if sys.byteorder != "little":
                some.byteswap()
            out.write(some.tobytes())


def pieces_of(file, whole):
    """A plain file's text: all at once, or cut behind line breaks that a character other than a blank follows."""
    if whole:
        yield file.read()
        return
    text = ""
    while some := file.read(PIECE):
        text += some
        at = len(text) - 1
        while (at := text.rfind("\n", 0, at)) >= 0 and text[at + 1].isspace():
            pass
        if at >= 0:
            yield text[: at + 1]
            text = text[at + 1:]
    if text:
        yield text


def refuse_bytes(path, error):
    """Names the line, which the decoder, ahead of the reader, does not know."""
    place = ""
    if os.path.isfile(path):  # a pipe cannot be read twice
        with open(path, "rb") as file, contextlib.suppress(UnicodeDecodeError):
            for number, line in enumerate(file, 1):
                place = f", line {number}"
                line.decode("utf-8")
    fail(f"{path}{place}: byte 0x{error.object[error.start]:02x} is not UTF-8; convert the file, for example with iconv")


def documents(path, arguments, whole):
    """Lists of texts whose tokens belong together: (texts, last), last: the document ends here."""
    # Standard input is read as files are, whatever the locale says, and stays open.
    file = open(0 if path == "-" else path, encoding="utf-8", newline="", closefd=path != "-")
    with file:
        if not (arguments.jsonl or path.endswith(".jsonl")):
            for piece in pieces_of(file, whole):
                yield piece, False
            yield "", True
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[arguments.key]
                if not isinstance(text, str):
                    raise TypeError(f"'{arguments.key}' is not a string")
                text.encode()  # raises where it is not Unicode: "\ud800"
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                fail(f"{path}, line {number}: {type(error).__name__}: {error}; --key names the member that holds the "
                     "text")
            yield text, True


def examples(path):
    """(line number, example) of a .jsonl file of chats."""
    file = open(0 if path == "-" else path, encoding="utf-8", closefd=path != "-")
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                example = json.loads(line)
            except (ValueError, RecursionError) as error:
                fail(f"{path}, line {number}: {type(error).__name__}: {error}")
            yield number, example if isinstance(example, dict) else {}


def decoded(lines, path):
    """The same; bytes that are not UTF-8 end the program."""
    try:
        yield from lines
    except UnicodeDecodeError as error:
        refuse_bytes(path, error)


def write_chats(arguments, tokenizer, choose, progress, outputs):
    """Writes the examples of all files; reports what was left out, lost or split."""
    folder = arguments.tokenizer if os.path.isdir(arguments.tokenizer) else os.path.dirname(arguments.tokenizer)
    try:
        chat = Chat(arguments.chat, folder, tokenizer)
    except BadTemplate as error:
        fail(f"--chat {arguments.chat}: {error}")
    said, done = {}, 0  # by verb and kind of example: [examples, documents, the first of them]

    def say(verb, kind, documents, place):
        entry = said.setdefault((verb, kind), [0, 0, place])
        entry[0] += 1
        entry[1] += documents

    for path in arguments.files:
        for number, example in decoded(examples(path), path):
            to, place = choose(), f"{path}, line {number}"
            try:
                documents, notes = chat.documents(example, tokenizer)
            except BadExample as bad:
                kind, why = bad.args
                if not arguments.skip_bad:
                    fail(f"{place}: an example {kind}: {why}; correct it, or leave such examples out with --skip-bad")
                documents, notes = [], [("left out", kind, 1)]
            for note in notes:
                say(*note, place)
            for tokens in documents:
                if arguments.max_tokens and len(tokens) > arguments.max_tokens:
                    say("left out", f"of more than {arguments.max_tokens} tokens", 1, place)
                    continue
                to.write(tokens)
                to.end_document(len(tokens))
                done += 1
                progress.show(done, sum(o.tokens for o in outputs))
    for (verb, kind), (count, documents, place) in said.items():
        print(f"{verb}: {count} example{'' if count == 1 else 's'} {kind}"
              + (f", into {documents} documents" if documents > count else "") + f"; the first is {place}")
    return done


class Progress:
    def __init__(self, quiet):
        self.quiet, self.begin, self.shown = quiet, time.monotonic(), 0.0

    def show(self, done, tokens, end=""):
        now = time.monotonic()
        if self.quiet or (not end and now - self.shown < 1):
            return
        self.shown = now
        rate = tokens / max(now - self.begin, 1e-3)
        print(f"\r{done} documents, {tokens} tokens, {rate / 1e6:.2f} M a second{end}", end="", file=sys.stderr,
              flush=True)


def end_of_text(tokenizer, arguments):
    if not arguments.append_eos:
        return []
    for name in (arguments.eos,) if arguments.eos else END_NAMES:
        if (token := tokenizer.token_to_id(name)) is not None:
            return [token]
    fail(f"the tokenizer has no token {arguments.eos or 'of ' + ', '.join(END_NAMES)}; name its end of text with "
         "--eos TOKEN")


def cuts_change_tokens(tokenizer):
    """Whether text that is encoded piece by piece has other tokens than as a whole (a prefix for every piece)."""
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in ("a b\n", "c d", "a b\nc d")]
    return ids[0] + ids[1] != ids[2]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="*", metavar="FILE", help="text or .jsonl, UTF-8; - is standard input")
    p.add_argument("--tokenizer", required=True, metavar="FILE", help="tokenizer.json, or the folder it is in")
    p.add_argument("--format", choices=("u16", "u32", "llmc", "megatron"),
                   help="u16, u32: tokens and nothing else; llmc and megatron (.bin with .idx) choose 16 bits where "
                        "the vocabulary allows it (default: llmc, which --tokens reads without --token-format; "
                        "with --chat always megatron)")
    p.add_argument("--out", metavar="FILE", help="what to write; of megatron without .bin and .idx")
    p.add_argument("--prompt", metavar="TEXT", help="print this text's tokens for train_gpt's --prompt-tokens, without FILE "
                                                    "and --out")
    p.add_argument("--append-eos", action="store_true", help="end each document with the end-of-text token")
    p.add_argument("--eos", metavar="TOKEN", help=f"its spelling (default: the first of {' '.join(END_NAMES)})")
    p.add_argument("--jsonl", action="store_true", help="files are JSON lines whatever their names")
    p.add_argument("--key", default="text", help="the member of a JSON line that holds the text (default: text)")
    p.add_argument("--chat", metavar="TEMPLATE",
                   help="files are JSON lines of chats; model: the template of the tokenizer's folder; "
                        f"{', '.join(TEMPLATES)}; or a file of Jinja")
    p.add_argument("--max-tokens", type=int, default=0, metavar="N",
                   help="with --chat: leave out and count examples of more tokens (--seq + 1; default: none)")
    p.add_argument("--skip-bad", action="store_true",
                   help="with --chat: leave out and count examples that cannot be followed (default: the first one is an "
                        "error)")
    p.add_argument("--valid-share", type=float, default=0, metavar="SHARE",
                   help="of the documents, chosen at random, written to a file of their own: OUT with -valid before "
                        "its suffix")
    p.add_argument("--seed", type=int, default=0, help="of that choice (default: 0)")
    p.add_argument("--quiet", action="store_true", help="no progress")
    arguments = p.parse_args()
    if arguments.prompt is None and not (arguments.files and arguments.out):
        p.error("FILE and --out are missing; give both, or --prompt")
    if arguments.prompt is not None and (arguments.files or arguments.out):
        p.error("--prompt prints tokens and writes no file: leave FILE and --out out")
    if not 0 <= arguments.valid_share < 1:
        p.error(f"--valid-share {arguments.valid_share}: must be at least 0 and below 1")
    if arguments.chat and (arguments.append_eos or arguments.format not in (None, "megatron")):
        p.error("--chat writes megatron files, and its template ends documents: leave --append-eos and --format out")
    if (arguments.max_tokens or arguments.skip_bad) and not arguments.chat:
        p.error("--max-tokens and --skip-bad are of examples: give --chat")
    arguments.format = arguments.format or ("megatron" if arguments.chat else "llmc")
    if arguments.eos and not arguments.append_eos:
        p.error("--eos is what --append-eos appends: give both")
    return arguments


def main():
    arguments = parse()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail("needs the Python package `tokenizers` (pip install tokenizers)")
    path = arguments.tokenizer
    try:
        tokenizer = Tokenizer.from_file(os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path)
    except Exception as error:  # the package raises nothing narrower
        fail(f"cannot read the tokenizer '{path}': {error}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if arguments.prompt is not None:
        print(*tokenizer.encode(arguments.prompt).ids, sep=",")
        return
    eos = end_of_text(tokenizer, arguments)
    vocab = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    masked = arguments.chat is not None
    outputs = [Output(arguments.out, arguments.format, vocab, masked)]
    if arguments.valid_share > 0:
        base, suffix = os.path.splitext(arguments.out)
        outputs.append(Output(base + "-valid" + suffix, arguments.format, vocab, masked))
    whole = cuts_change_tokens(tokenizer)
    choice, progress = random.Random(arguments.seed), Progress(arguments.quiet)
    done = 0

    def choose():
        return outputs[-1] if len(outputs) > 1 and choice.random() < arguments.valid_share else outputs[0]

    if masked:
        try:
            done = write_chats(arguments, tokenizer, choose, progress, outputs)
        except OSError as error:
            fail(f"cannot read the examples: {error}")
    for path in () if masked else arguments.files:
        try:
            stream = iter(documents(path, arguments, whole))
            to, length = choose(), 0
            # A batch is encoded by all cores at once.
            while batch := list(itertools.islice(stream, 512 if arguments.jsonl or path.endswith(".jsonl") else 8)):
                encodings = tokenizer.encode_batch_fast([text for text, _ in batch], add_special_tokens=False)
                for (_, last), encoding in zip(batch, encodings):
                    ids = encoding.ids + (eos if last else [])
                    to.write(ids)
                    length += len(ids)
                    if last:
                        to.end_document(length)
                        to, length, done = choose(), 0, done + 1
                progress.show(done, sum(o.tokens for o in outputs))
        except UnicodeDecodeError as error:
            refuse_bytes(path, error)
        except OSError as error:
            fail(f"cannot read '{path}': {error}")
    for output in outputs:
        output.close()
    progress.show(done, sum(o.tokens for o in outputs), end="\n")
    for output in outputs:
        print(f"{output.path}: {output.tokens} tokens, {output.form} of {8 * output.width} bits"
              + (f", {len(output.lengths)} documents" if output.form == "megatron" else ""))
        if output.tokens == 0:
            fail(f"'{output.path}' has no tokens; give more text or another --valid-share")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
