#!/usr/bin/env python3
"""chat_test.py SCRIPTS_FOLDER GOLDEN_FOLDER [CHATS [SEED]]: examples of scripts/tokenize.py --chat, beside transformers.

CHATS random chats for each template of chat_templates.py (default: 10).
"""

import array
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import chat_templates

sys.path.append(sys.argv[1])  # behind the standard library, whose tokenize.py transformers needs
from chat_examples import BadExample, BadTemplate, Chat

SCRIPT = pathlib.Path(sys.argv[1]) / "tokenize.py"
TOKENIZER = pathlib.Path(sys.argv[2]) / "tokenizers" / "byte_level.json"
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
          "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
          "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
ANSWER = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
CALL = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "ä"}}}
ASK = ("user", "time?")
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
    return [{"role": m[0], "content": m[1]} if isinstance(m, tuple) else m for m in chat]


def write(path, chats):
    """Chats are lists of (role, content) or messages, or examples."""
    examples = [c if isinstance(c, dict) else {"messages": as_messages(c)} for c in chats]
    path.write_text("".join(json.dumps(e) + "\n" for e in examples), encoding="utf-8")
    return path


def make_folder(folder, template, special=("<|im_start|>", "<|im_end|>")):
    base = Tokenizer.from_file(str(TOKENIZER))
    base.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def masked(tokens, learned):
    """Tokens as they are stored, up to the last that is learned."""
    while not learned[-1]:
        learned = learned[:-1]
    return [t if is_learned else -1 - t for t, is_learned in zip(tokens, learned)]


def expected(theirs, prints, example):
    """Documents of an example by apply_chat_template; none where it must be left out."""
    tools, messages = example.get("tools"), [dict(m) for m in example["messages"]]
    while messages[-1]["role"] != "assistant":
        messages.pop()
    marked = "{% generation %}" in theirs.get_chat_template(tools=tools)
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    turn = max(i for i, m in enumerate(messages) if m["role"] == "user")
    text_of = lambda m: m["content"] if isinstance(m.get("content"), str) else "".join(
        p["text"] for p in m.get("content") or ())
    for i in answers:
        m = messages[i]
        thought = next((m[k] for k in ("reasoning_content", "thinking", "reasoning") if m.get(k) is not None), None)
        if thought is not None:
            m["reasoning"] = thought  # a name that transformers leaves out
        shown = m.get("tool_calls") and ("c" in prints or "t" in prints and tools is not None)
        shown = shown or thought and thought.strip() and "r" in prints and (i > turn or not marked)
        if not (shown or text_of(m).strip()):
            return []

    def render(some, **more):
        return theirs.apply_chat_template(some, tools=tools, tokenize=False, **more)

    def printed(some):
        try:
            text = render(some)
        except Exception:
            return -1
        if any(isinstance(m.get("content"), list) and str(m["content"]) in text for m in some):
            return -2
        return sum(re.search(r"\d{10}", p["text"])[0] in text
                   for m in messages if isinstance(m.get("content"), list) for p in m["content"])

    def begin(before, text):
        prompt = render(before, add_generation_prompt=True)
        same = len(os.path.commonprefix([prompt, text]))
        if same == len(prompt) or text.startswith(render(before)):
            return same
        end = prompt[len(os.path.commonprefix([prompt, render(before[:-1])])):]
        return text.rindex(end) + len(end)

    strings = [{**m, "content": text_of(m)} if isinstance(m.get("content"), list) else m for m in messages]
    messages = max(messages, strings, key=printed)
    try:
        if marked:
            made = theirs.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
            return [masked(made["input_ids"], made["assistant_masks"])]
        upto = {i: render(messages[:i + 1]) for i in answers}
        begins = {i: begin(messages[:i], upto[i]) for i in answers}
    except Exception:
        return []
    found = []
    while answers:
        text = upto[answers[-1]].rstrip()
        same = [i for i in answers if text.startswith(upto[i].rstrip())]
        answers = [i for i in answers if i not in same]
        made = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = [(begins[i], len(upto[i].rstrip())) for i in same]
        found.append(masked(made["input_ids"], [any(b < end and begin < e for b, e in spans)
                                                for begin, end in made["offset_mapping"]]))
    return found[::-1]


def check_random_chats(folder, count, seed=0):
    """Random chats with tools, calls, reasoning and parts of text, by templates in the styles of many families."""
    done = left_out = split = 0
    for at, (name, (template, prints)) in enumerate(chat_templates.TEMPLATES.items()):
        theirs = make_folder(folder / "random", template, chat_templates.SPECIAL)
        chats = chat_templates.chats(seed + 1000 * at, count)
        said = run("--tokenizer", folder / "random", "--chat", "model", "--skip-bad", "--out", folder / "random" / "out",
                   write(folder / "random.jsonl", chats))
        ours, want = documents(folder / "random" / "out"), [expected(theirs, prints, c) for c in chats]
        first = 0
        for number, (chat, of_chat) in enumerate(zip(chats, want), 1):
            made = ours[first:first + len(of_chat)]
            assert made == of_chat, (name, f"seed {seed}, line {number}", chat, *(
                [theirs.decode([t if t >= 0 else -1 - t for t in d]), theirs.decode([t for t in d if t >= 0])]
                for d in (*made, *of_chat)), said)
            first += len(of_chat)
        assert first == len(ours), (name, said)
        parts = [len(w) for w in want if len(w) > 1]
        for line, number in (("left out: ", want.count([])), ("split: ", len(parts))):
            assert sum(int(re.search(r": (\d+) example", x)[1]) for x in said.splitlines() if x.startswith(line)) == number, said
        assert not parts or f", into {sum(parts)} documents; " in said, said
        done, left_out, split = done + len(chats), left_out + want.count([]), split + len(parts)
        shutil.rmtree(folder / "random")
    return f"{done} random chats by {len(chat_templates.TEMPLATES)} templates, {left_out} left out, {split} split"


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
        "with a content that is not text": [("user", None), ("assistant", "b")],
        "with tool calls that are not a list of objects": [ASK, {"role": "assistant", "tool_calls": "clock()"}],
        "with tools that are not a list of objects": {"messages": as_messages(CHATS[0]), "tools": "clock"},
        "without a list of messages": {"messages": "a"},
        "with text that is not Unicode": [("user", "\ud800"), ("assistant", "b")],
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

    long = max(len(d) for d in documents(folder / "model"))
    said = run(*common, "chatml", "--max-tokens", long - 1, data)
    assert f"left out: 1 example of more than {long - 1} tokens; the first is {data}, line" in said, said
    (folder / "deep.jsonl").write_text("[" * 10 ** 5)
    for arguments, words, code in (
            (["llama3", data], "has no token <|begin_of_text|>", 1),
            (["none.jinja", data], "neither model, chatml nor llama3, nor a template's file", 1),
            (["chatml", "--append-eos", data], "leave --append-eos", 2),
            (["chatml", folder / "missing.jsonl"], "cannot read", 1),
            (["chatml", folder / "deep.jsonl"], "deep.jsonl, line 1: RecursionError", 1)):
        assert words in run(*common, *arguments, code=code), arguments
    assert "has a template" in run("--tokenizer", TOKENIZER, "--chat", "model", "--out", folder / "x", data, code=1)
    assert "give --chat" in run("--tokenizer", TOKENIZER, "--skip-bad", "--out", folder / "x", data, code=2)
    assert not list(folder.glob("*.part"))


def check_features(folder):
    """What one template makes of one example; a document is its text with {} around what is learned, or a pair of both."""
    theirs = make_folder(folder / "plain", CHATML, ("<|im_start|>", "<|im_end|>", "<think>"))
    tokenizer = Tokenizer.from_file(str(folder / "plain" / "tokenizer.json"))

    def made(template, example):
        """(documents, notes), or why there are none"""
        (folder / "one.jinja").write_text(template, encoding="utf-8")
        example = example if isinstance(example, dict) else {"messages": as_messages(example)}
        try:
            found, notes = Chat(str(folder / "one.jinja"), str(folder / "plain"), tokenizer).documents(example, tokenizer)
        except (BadExample, BadTemplate) as error:
            return ": ".join(error.args)
        texts = []
        for tokens in found:
            text, learned = (theirs.decode(t) for t in ([t if t >= 0 else -1 - t for t in tokens], [t for t in tokens if t >= 0]))
            texts.append(text[:-len(learned)] + "{" + learned + "}" if text.endswith(learned) else (text, learned))
        return texts, " and ".join(f"{verb} {kind}, {count}" for verb, kind, count in notes)

    def answer(**members):
        return [ASK, {"role": "assistant", **members}]

    # Answers that are calls, whatever their content; a template that prints no calls has nothing to learn.
    calls = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
             "{{ c | tojson(separators=(',', ':')) }}{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
    call = '{"type":"function","function":{"name":"clock","arguments":{"zone":"ä"}}}'
    for content in ({}, {"content": None}, {"content": ""}, {"content": []}, {"content": [{"type": "text", "text": ""}]}):
        assert made(calls, answer(tool_calls=[CALL], **content)) == (["[user]time?[assistant]{" + call + "}"], ""), content
        said = made(calls.replace("m.tool_calls", "[]"), answer(tool_calls=[CALL], **content))
        assert said == "with an empty answer: the template prints no tool calls or reasoning of it", said
    texts, said = made(calls.replace("m.tool_calls", "[]"), answer(content="noon", tool_calls=[CALL]))
    assert said == "lost with tool calls that the template does not print, 1", said
    parts = [{"type": "text", "text": "no"}, {"type": "text", "text": "on"}]
    for template in (calls, calls.replace("m.content", "m.content + ''"), calls.replace("m.content", "m.content if m.content is string"),
                     calls.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}").replace(
                         "in m.content", "in (m.content if m.content is not string else [{'text': m.content}])")):
        assert made(template, answer(content=parts))[0] == ["[user]time?[assistant]{noon}"], template

    # Reasoning has three names, in data and in templates.
    names = ("reasoning_content", "reasoning", "thinking")
    thoughts = calls.replace("{{ m.content", "{% if m.NAME %}<{{ m.NAME | trim }}>{% endif %}{{ m.content")
    for name in names:
        for read in names:
            want = ["[user]time?[assistant]{<hm>noon}"], ""
            assert made(thoughts.replace("NAME", read), answer(content="noon", **{name: "hm\n"})) == want, (name, read)
        assert made(calls, answer(content="hm", **{name: "hm"})) == (
            ["[user]time?[assistant]{hm}"], "lost with reasoning that the template does not print, 1"), name
    stripping = calls.replace("m.content", "m.content.split('</think>')[-1]")
    assert "lost with reasoning" in made(stripping, answer(content="hm</think>noon"))[1]

    # tojson as transformers has it, and other errors than the template's own.
    for options in ("", "ensure_ascii=true", "indent=2", "separators=(',', ':')", "sort_keys=True", "true, 1"):
        template = "{{ tools | tojson(" + options + ") }}" + calls
        example = {"messages": as_messages(answer(content="noon")), "tools": [{"name": "Uhr", "a": "spät <&>"}]}
        theirs.chat_template = template
        want = theirs.apply_chat_template(example["messages"], tools=example["tools"], tokenize=False)
        assert made(template, example) == ([want.replace("noon", "{noon}")], ""), options
    assert "lost with tools" in made(calls, example)[1]
    for wrong in ("6 // 0", "none + ''", "messages[7].role.x", "raise_exception('no')", "messages.append(1)", "range(10 ** 9)",
                  "tools | tojson(depth=1)", "m()"):
        template = "{% macro m() %}{{ m() }}{% endmacro %}{% if messages[0].content == 'a' %}{{ " + wrong + " }}{% endif %}" + calls
        assert made(template, CHATS[0])[0]
        said = made(template, [("user", "a"), ("assistant", "b")])
        assert said.startswith("that the template refuses: ") and "Error" in said, (wrong, said)
    # Such examples are counted as others are, and end the program with their place.
    common = ["--tokenizer", folder / "plain", "--chat", folder / "one.jinja", "--out", folder / "one"]
    data = write(folder / "refused.jsonl", [[("user", "a"), ("assistant", "b")], *CHATS, [("user", "a"), ("assistant", "b")]])
    assert f"left out: 2 examples that the template refuses; the first is {data}, line 1\n" in run(*common, "--skip-bad", data)
    said = run(*common, data, code=1)
    assert f"{data}, line 1: an example that the template refuses: RecursionError: " in said and "--skip-bad" in said, said

    # Earlier turns that a template rewrites: each answer is learned where it was the last.
    chat = [ASK, ("assistant", "hm</think>noon"), ASK, ("assistant", "soon"), ASK, ("assistant", "ah</think>late")]
    split = "split whose earlier turns the template rewrites, 2"
    forgetful = calls.replace("m.content", "(m.content if loop.last else m.content.split('</think>')[-1])")
    begin, then = "[user]time?[assistant]", "noon[user]time?[assistant]soon[user]time?[assistant]"
    assert made(forgetful, chat) == ([begin + "{hm</think>noon}", (begin + then + "ah</think>late", "soonah</think>late")],
                                     split)
    data, short = write(folder / "split.jsonl", [chat, chat]), len(theirs.encode(begin + "hm</think>noon"))
    said = run(*common, "--max-tokens", short, data)
    for line in (f"split: 2 examples whose earlier turns the template rewrites, into 4 documents; the first is {data}, line 1",
                 f"left out: 2 examples of more than {short} tokens; the first is {data}, line 1"):
        assert line + "\n" in said, said
    assert [len(d) for d in documents(folder / "one")] == [short] * 2
    ending = calls + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}"
    assert made(ending, chat[2:4] * 2) == (
        [begin + "{soon<|endoftext|>}", begin + "soon" + begin + "{soon<|endoftext|>}"], split)
    opening = calls.replace("[assistant]{% endif %}", "[assistant]<think>\n{% endif %}")
    note = "not after the prompt with an answer that the template does not write behind its prompt, 1"
    assert made(opening, answer(content="noon")) == ([begin + "{noon}"], note)
    steps = [*answer(tool_calls=[CALL], thinking="hm"), ("tool", "12"), ("assistant", "noon")]
    final = calls.replace("{{ m.content", "{{ m.thinking if messages[-1].content != 'noon' }}{{ m.content")
    assert made(final, steps) == ([begin + "{hm" + call + "}", begin + call + "[tool]12[assistant]{noon}"], f"{note} and {split}")
    lossy = calls.replace("m.content", "('S' if loop.last else '') + m.content")
    assert "message 2 changes the text before it" in made(lossy, answer(content="noon"))

    # Generation blocks, whatever the text around them; a name that is set within one ends there.
    user = "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}"
    end = "{% endif %}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
    marked = "marked whose template has generation blocks, 1"
    once = [("user", "q"), ("assistant", "r")]
    assert made(user + ANSWER + "\n" + end, once * 2) == ([("[q]r<|im_end|>[q]r<|im_end|>", "r<|im_end|>" * 2)], marked)
    assert made(user + ANSWER.replace("{% gen", "{%- if loop.last %}</s>{% endif %}{% gen") + end, once * 2)[0] == [
        ("[q]r<|im_end|>[q]</s>r<|im_end|>", "r<|im_end|>" * 2)]
    assert made(user + "{% set n = 1 %}{% generation %}{% set n = 2 %}{{ m.content }}{% endgeneration %}{{ n }}" + end,
                once * 2)[0] == [("[q]r1[q]r", "rr")]
    assert made(user + "{# {% generation %} #}{{ m.content }}" + end.replace("<think>", ""), once) == (["[q]{r}"], "")
    macro = "{% macro a(m) %}-" + ANSWER + "{% endmacro %}" + user + "{{ a(m) }}" + end
    assert made(macro, once).startswith("with misplaced generation blocks: ")
    assert made("{% if %}", once).startswith("the template cannot be read: TemplateSyntaxError")
    (folder / "one.jinja").write_bytes(b"\xff")
    assert "the template cannot be read: UnicodeDecodeError" in run(*common, data, code=1)


def check_sets_of_templates(folder):
    """Several templates in a folder, in each of the forms that transformers reads."""
    named = {"default": "default" + CHATML, "tool_use": "{{ tools | tojson }}" + CHATML, "rag": "rag"}
    config = folder / "several" / "tokenizer_config.json"
    make_folder(folder / "several", CHATML)
    alone = json.loads(config.read_text())

    def first(tools, code=0):
        example = {"messages": as_messages(CHATS[0]), "tools": tools}
        said = run("--tokenizer", folder / "several", "--chat", "model", "--out", folder / "x",
                   write(folder / "tools.jsonl", [example]), code=code)
        if code:
            return said
        theirs = AutoTokenizer.from_pretrained(folder / "several")
        ours = [-1 - t if t < 0 else t for t in documents(folder / "x")[0]]
        assert ours == theirs.apply_chat_template(example["messages"], tools=tools, return_dict=False)[:len(ours)]
        return theirs.decode(ours).split("<|im_start|>")[0]

    def write_config(template):
        config.write_text(json.dumps({**alone, "chat_template": template}))

    files = folder / "several" / "chat_template.jinja", folder / "several" / "additional_chat_templates"
    for form in ("file", "files", "list", "object"):
        shutil.rmtree(files[1], ignore_errors=True)
        files[0].unlink(missing_ok=True)
        write_config({"list": [{"name": k, "template": v} for k, v in named.items()], "object": named}.get(form))
        if form == "files":
            files[1].mkdir()
            for name in ("tool_use", "rag"):
                (files[1] / f"{name}.jinja").write_text(named[name])
        if form in ("file", "files"):
            files[0].write_text(named["default"])
        tools = [{"name": "clock"}]
        assert first(None) == "default" and first([]) == ("default" if form == "file" else "[]"), form
        assert first(tools) == ("default" if form == "file" else json.dumps(tools)), form
    write_config({"tool_use": named["tool_use"]})
    assert first(tools) == json.dumps(tools)
    assert "an example without tools: the folder has no default template, only tool_use" in first(None, code=1)
    for broken in ({"tool_use": 7}, [{"name": "default"}], 7):
        write_config(broken)
        assert "the template cannot be read" in first(None, code=1), broken
    config.write_text("{")
    assert "the template cannot be read: JSONDecodeError" in first(None, code=1)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = check_against_transformers(folder)
        check_bad_examples(folder, data)
        check_features(folder)
        check_sets_of_templates(folder)
        random_chats = check_random_chats(folder, *map(int, sys.argv[3:] or (10,)))
    print(f"tokenize.py --chat: tokens and masks are transformers' ({random_chats})")


if __name__ == "__main__":
    main()
