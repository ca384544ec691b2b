"""Chats as examples for `train_gpt --sft`: their tokens, and which of them are learned (scripts/tokenize.py --chat)."""

import contextlib
import datetime
import glob
import itertools
import json
import os
import re


class BadTemplate(Exception):
    """A template that cannot be read."""


class BadExample(Exception):
    """An example that cannot be trained on; of one kind for each first argument."""


ROLES = ("system", "user", "assistant", "tool")
REASONING = ("reasoning_content", "thinking", "reasoning")  # names that data and templates have for it
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
              "{{ m.content | trim }}<|eot_id|>{% endfor %}"
              "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
}


def is_list_of_objects(value):
    return isinstance(value, list) and all(isinstance(v, dict) for v in value)


# Numbers that are put behind texts show what a template prints, whatever it does to the texts.
def numbered(n):
    return f"80357921{n:07}"


def numbers_in(text):
    return {int(n) for n in re.findall(r"80357921(\d{7})", text)}


class Chat:
    """Chats as tokens, by a Jinja template as `transformers` renders it."""

    def __init__(self, name, folder, tokenizer):
        try:
            import jinja2.meta
            import jinja2.sandbox
        except ImportError:
            raise BadTemplate("templates need the Python package `jinja2` (pip install jinja2)") from None

        def refuse(message):
            raise jinja2.TemplateError(message)

        def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = to_json
        # One time for all renderings, which are compared.
        environment.globals.update(raise_exception=refuse, strftime_now=datetime.datetime.now().strftime)
        self.templates = {}  # by name: (template, whether it has generation blocks)
        try:
            texts, self.names = self.source(name, folder)
            for key, text in texts.items():
                # {% generation %} marks an answer: the block's text passes through mark_answer() of render().
                text = re.sub(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})",
                              lambda m: m[1] + ("endcall" if m[2] else "call mark_answer()") + m[3], text)
                names = jinja2.meta.find_undeclared_variables(environment.parse(text))
                self.templates[key] = environment.from_string(text), "mark_answer" in names
        except BadTemplate:
            raise
        except Exception as error:  # of any kind: these files are the user's
            raise BadTemplate(f"the template cannot be read: {type(error).__name__}: {error}; correct it or "
                              "tokenizer_config.json, or choose another") from error
        for marker in re.findall(r"<\|\w+\|>", TEMPLATES.get(name, "")):
            if tokenizer.token_to_id(marker) is None:
                raise BadTemplate(f"the tokenizer has no token {marker}; choose another template, or --chat model")

    @staticmethod
    def source(name, folder):
        """Templates by their names, and the tokens that the tokenizer's folder gives names to."""
        def read(*path):
            with open(os.path.join(*path), encoding="utf-8") as file:
                return file.read()

        config, named = {}, {}
        with contextlib.suppress(FileNotFoundError):
            config = json.loads(read(folder, "tokenizer_config.json"))
        with contextlib.suppress(FileNotFoundError):  # of older folders
            if "added_tokens_decoder" not in config:
                named = json.loads(read(folder, "special_tokens_map.json"))
        named = {**config, **named}
        for group in ("extra_special_tokens", "model_specific_special_tokens"):
            named |= config[group] if isinstance(config.get(group), dict) else {}
        named = {k: v["content"] if isinstance(v, dict) else v for k, v in named.items() if k.endswith("_token")}
        named = {k: v for k, v in named.items() if isinstance(v, str)}
        if name in TEMPLATES:
            return {"default": TEMPLATES[name]}, named
        if name != "model":
            try:
                return {"default": read(name)}, named
            except OSError as error:
                raise BadTemplate(f"neither model, {' nor '.join(TEMPLATES)}, nor a template's file: "
                                  f"{error.strerror}") from error
        texts = {}
        with contextlib.suppress(FileNotFoundError):
            texts["default"] = read(folder, "chat_template.jinja")
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "additional_chat_templates", "*.jinja"))):
            texts[os.path.basename(path)[:-len(".jinja")]] = read(path)
        texts = texts or config.get("chat_template") or {}
        if isinstance(texts, list):
            texts = {t["name"]: t["template"] for t in texts}
        elif isinstance(texts, str):
            texts = {"default": texts}
        if not texts:
            raise BadTemplate(f"neither tokenizer_config.json nor chat_template.jinja in '{folder}' has a template; "
                              f"choose {', '.join(TEMPLATES)} or a template's file")
        return texts, named

    def render(self, messages, tools, prompts=False):
        """(text, spans of its generation blocks; None: the template has none)"""
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise BadExample("without tools", f"the folder has no default template, only {', '.join(self.templates)}")
        template, marked = self.templates[name]
        pieces, answers = [], []

        def mark_answer(caller):
            answer = caller()
            answers.append((sum(map(len, pieces)), answer))
            return answer

        try:
            for piece in template.generate(messages=messages, tools=tools, documents=None, mark_answer=mark_answer,
                                           add_generation_prompt=prompts, **self.names):
                pieces.append(piece)
        except Exception as error:  # of any kind: the template is the user's program
            raise BadExample("that the template refuses", f"{type(error).__name__}: {error}") from error
        text = "".join(pieces)
        if not all(text.startswith(answer, begin) for begin, answer in answers):
            raise BadExample("with misplaced generation blocks", "the template has them in a macro, filter or set block")
        return text, [(begin, begin + len(answer)) for begin, answer in answers] if marked else None

    @staticmethod
    def checked(messages, tools):
        """The messages up to the last answer, as transformers gives them to a template."""
        if not is_list_of_objects(messages):
            raise BadExample("without a list of messages", "each is an object of role and content")
        if tools is not None and not is_list_of_objects(tools):
            raise BadExample("with tools that are not a list of objects", f"they are of type {type(tools).__name__}")
        messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
        for i, m in enumerate(messages):
            if m.get("role") not in ROLES:
                raise BadExample("with an unknown role", f"{m.get('role')!r}; known are {', '.join(ROLES)}")
            content = m.get("content", "" if m["role"] == "assistant" else None)
            if not (isinstance(content, str) or is_list_of_objects(content) and all(
                    p.get("type") == "text" and isinstance(p.get("text"), str) for p in content)):
                raise BadExample("with a content that is not text", f"of {m['role']}; give a string or parts of text")
            if not is_list_of_objects(m.get("tool_calls", [])):
                raise BadExample("with tool calls that are not a list of objects", f"of {m['role']}")
            thought = next((m[k] for k in REASONING if k in m), None)
            if m["role"] == "assistant" and not (thought or m.get("tool_calls") or Chat.plain(content).strip()):
                raise BadExample("with an empty answer", "leave the message out")
            if thought is not None:
                messages[i] = {**dict.fromkeys(REASONING[1:], thought), **m, REASONING[0]: thought}
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        if not messages:
            raise BadExample("without an answer", "no message of assistant")
        return messages

    @staticmethod
    def plain(content):
        return "".join(p["text"] for p in content) if isinstance(content, list) else content

    @staticmethod
    def strings(messages):
        return [{**m, "content": Chat.plain(m["content"])} if "content" in m else m for m in messages]

    def readable(self, messages, tools):
        """The messages; with strings for parts of text where the template prints more of them."""
        if not any(isinstance(m.get("content"), list) for m in messages):
            return messages
        numbers = itertools.count()
        probe = [{**m, "content": [{**p, "text": p["text"] + numbered(next(numbers))} for p in m["content"]]}
                 if isinstance(m.get("content"), list) else m for m in messages]

        def printed(some):
            try:
                text, _ = self.render(some, tools)
            except BadExample:
                return -1
            if any(isinstance(m.get("content"), list) and str(m["content"]) in text for m in some):
                return -2  # as Python prints a list
            return len(numbers_in(text))

        return messages if printed(probe) >= printed(self.strings(probe)) else self.strings(messages)

    def parts(self, messages, tools):
        """[(number of messages, text, spans that are learned)], each answer being learned in one of them; notes."""
        text, marks = self.render(messages, tools)
        if marks is not None:
            return [(len(messages), text, marks)], [("marked", "whose template has generation blocks", 1)]
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        upto = {i: self.render(messages[:i + 1], tools)[0] for i in answers[:-1]} | {answers[-1]: text}
        begins, parts, notes = {}, [], []
        for i in answers:
            prompt, _ = self.render(messages[:i], tools, prompts=True)
            begins[i] = len(prompt)
            if not upto[i].startswith(prompt):
                begins[i] = self.begin(messages[:i], tools, prompt, upto[i])
                notes = [("not after the prompt", "with an answer that the template does not write behind its prompt", 1)]
        # A template may print earlier answers otherwise (without their thoughts). Those are learned as it printed them
        # when they were the last.
        while answers:
            text = upto[answers[-1]].rstrip()
            same = [i for i in answers if text.startswith(upto[i].rstrip())]
            parts.insert(0, (answers[-1] + 1, text, [(begins[i], len(upto[i].rstrip())) for i in same]))
            answers = [i for i in answers if i not in same]
        if len(parts) > 1:
            notes.append(("split", "whose earlier turns the template rewrites", len(parts)))
        return parts, notes

    def begin(self, before, tools, prompt, text):
        """Where the answer begins in the text of `before` and the answer, which does not begin with the prompt."""
        def same(earlier):
            return len(os.path.commonprefix([prompt, earlier]))

        # The answer changes earlier messages: it follows the last message and the prompt's end.
        end = prompt[same(self.render(before[:-1], tools)[0]) if len(before) > 1 else 0:]
        if end and (at := text.rfind(end)) >= 0:
            return at + len(end)
        # The prompt begins a thought that the answer does not have.
        context = self.render(before, tools)[0].rstrip()
        if prompt.startswith(context) and same(text) >= len(context):
            return same(text)
        raise BadExample("that the template does not build message by message",
                         f"message {len(before) + 1} changes the text before it; its answer cannot be told apart")

    def lost(self, messages, tools, ends):
        """Notes on reasoning, tool calls and tools that no rendering of the first `end` messages shows."""
        kinds, given = ("reasoning", "tool calls", "tools"), set()

        def number(kind, i):
            given.add(kinds.index(kind) * 10 ** 6 + i)
            return numbered(kinds.index(kind) * 10 ** 6 + i)

        def named(call, kind, i):
            if isinstance(call.get("function"), dict):
                return {**call, "function": named(call["function"], kind, i)}
            return {**call, "name": call["name"] + number(kind, i)} if isinstance(call.get("name"), str) else call

        probe = []
        for i, m in enumerate(messages):
            if m["role"] == "assistant":
                new = {k: m[k] + number("reasoning", i) for k in REASONING if isinstance(m.get(k), str) and m[k].strip()}
                if isinstance(m.get("content"), str) and "</think>" in m["content"]:
                    new["content"] = m["content"].replace("</think>", number("reasoning", i) + "</think>", 1)
                if m.get("tool_calls"):
                    new["tool_calls"] = [named(call, "tool calls", i) for call in m["tool_calls"]]
                m = {**m, **new}
            probe.append(m)
        tools = [named(tool, "tools", 0) for tool in tools] if tools else tools
        try:
            shown = given and numbers_in("".join(self.render(probe[:end], tools)[0] for end in ends))
        except BadExample:  # The template refuses the probe alone.
            return []
        for i, m in enumerate(messages):
            if m["role"] == "assistant" and not self.plain(m.get("content", "")).strip() and not shown & {i, 10 ** 6 + i}:
                raise BadExample("with an empty answer", "the template prints no tool calls or reasoning of it")
        return [("lost", f"with {kind} that the template does not print", 1)
                for k, kind in enumerate(kinds) if any(n // 10 ** 6 == k for n in given - shown)]

    def documents(self, example, tokenizer):
        """([tokens of a document, -1 - t where t is not learned], [(verb, kind of example, documents)])"""
        tools = example.get("tools")
        messages = self.readable(self.checked(example.get("messages"), tools), tools)
        parts, notes = self.parts(messages, tools)
        notes += self.lost(messages, tools, [end for end, _, _ in parts])
        documents = []
        for _, text, spans in parts:
            try:
                encoding = tokenizer.encode(text, add_special_tokens=False)
            except Exception as error:  # the package raises nothing narrower
                raise BadExample("with text that is not Unicode", f"the tokenizer refuses it: {error}") from error
            learned = [any(b < end and begin < e for b, e in spans) for begin, end in encoding.offsets]
            if not any(learned[1:]):
                raise BadExample("with an empty answer", "it has no token")
            while not learned[-1]:
                learned.pop()
            documents.append([t if is_learned else -1 - t for t, is_learned in zip(encoding.ids, learned)])
        return documents, notes
