"""Chat templates in the styles of model families, and random chats, for chat_test.py."""

import random

TURNS = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# The last message of a user that is not a tool's answer: thoughts behind it are kept.
LAST_QUERY = r"""
{%- set ns = namespace(seek=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}{% set i = messages|length - 1 - loop.index0 %}
{%- if ns.seek and m.role == 'user' %}{% set ns.seek = false %}{% set ns.last = i %}{% endif %}{% endfor %}
"""
QWEN_TOOLS = r"""
{%- if tools %}{{ '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
{{- '# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}"""
QWEN_TOOL_ANSWER = r"""
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"""
QWEN_CALLS = r"""
{%- for call in m.tool_calls or [] %}{% if call.function %}{% set call = call.function %}{% endif %}
{{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"""
# Lists as contents become empty text here, as in the family's own template.
QWEN3 = QWEN_TOOLS + LAST_QUERY + r"""
{%- for m in messages %}{% set content = m.content if m.content is string else '' %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}{% set thought = '' %}
{%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
{{- '<|im_start|>assistant\n' }}MARK
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}{% else %}{{ content }}{% endif %}
""" + QWEN_CALLS + "{{- '<|im_end|>' }}ENDMARK{{- '\\n' }}" + QWEN_TOOL_ANSWER + "{%- endif %}{% endfor %}" + PROMPT
HERMES = r"""{%- if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- for m in messages if m.role != 'system' %}
{{- '<|im_start|>' + m.role + '\n' }}{{ m.content }}
{%- for call in m.tool_calls %}{{ '\n<tool_call>\n' }}{{ (call.function or call) | tojson(indent=2, sort_keys=true) }}
{{- '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
DEEPSEEK = r"""{{ bos_token }}{% for m in messages %}
{%- if m.role == 'system' %}{{ m.content + '\n' }}{% elif m.role == 'user' %}{{ '<|user|>' + m.content }}
{%- elif m.role == 'tool' %}{{ '<|tool|>' + m.content }}
{%- else %}{% set content = m.content or '' %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|assistant|>' + content }}
{%- for call in m.tool_calls %}{% set f = call.function or call %}{{ '<call>' + f['name'] + '\n' }}
{{- f['arguments'] | tojson(ensure_ascii=true) }}{{ '</call>' }}{% endfor %}{{ eos_token }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>PROMPT' }}{% endif %}"""

# name: (template, what it prints of answers: c calls, t calls where an example has tools, r reasoning)
TEMPLATES = {
    "chatml": ("{% for m in messages %}" + TURNS + "{% endfor %}" + PROMPT, ""),
    "qwen2.5": (QWEN_TOOLS + r"""
{%- for m in messages %}{% set content = m.content %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) or (m.role == 'assistant' and not m.tool_calls) %}
{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant' }}
{%- if content %}{{ '\n' + content }}{% endif %}""" + QWEN_CALLS + "{{ '<|im_end|>\\n' }}" + QWEN_TOOL_ANSWER
                + "{%- endif %}{% endfor %}" + PROMPT, "c"),
    "qwen3": (QWEN3.replace("ENDMARK", "").replace("MARK", ""), "cr"),
    "qwen3 with marks": (QWEN3.replace("ENDMARK", "{%- endgeneration %}").replace("MARK", "{% generation %}"), "cr"),
    "llama3.1": (r"""{{- bos_token }}
{%- set date = strftime_now('%d %b %Y') %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- '<|start|>system<|end_header|>\n\nToday Date: ' + date + '\n\n' + system + '<|end|>' }}
{%- if tools is not none and rest %}
{{- '<|start|>user<|end_header|>\n\nFunctions:\n\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}
{{- rest[0].content | trim }}{{ '<|end|>' }}{% set rest = rest[1:] %}{% endif %}
{%- for m in rest %}
{%- if m.role not in ['tool', 'ipython'] and 'tool_calls' not in m %}
{{- '<|start|>' + m.role + '<|end_header|>\n\n' + m.content | trim + '<|end|>' }}
{%- elif 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start|>assistant<|end_header|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|end|>' }}
{%- else %}{{ '<|start|>ipython<|end_header|>\n\n' }}
{%- if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}
{{- '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end_header|>\n\n' }}{% endif %}""", "c"),
    "llama3 with marks": (r"""{{ bos_token }}{% for m in messages %}
<|start|>{{ m.role }}<|end_header|>

{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}<|end|>{% endgeneration %}
{% else %}{{ m.content | trim }}<|end|>{% endif %}{% endfor %}
{% if add_generation_prompt %}<|start|>assistant<|end_header|>

{% endif %}""", "c"),
    "gpt-oss": (r"""{%- macro types(tools) %}{% for t in tools %}{% set t = t.function or t %}
{{- '// ' + (t.description or '') + '\ntype ' + t.name + ' = (_: ' }}{{ t.parameters | tojson }}{{ ') => any;\n' }}
{%- endfor %}{% endmacro %}
{{- '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
{%- if messages[0].role == 'system' %}{% set told = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set told = '' %}{% set rest = messages %}{% endif %}
{%- if told or tools %}{{ '<|start|>developer<|message|>' + told }}{% if tools %}{{ types(tools) }}{% endif %}{{ '<|end|>' }}{% endif %}
{%- set last = namespace(call=none) %}
{%- for m in rest %}{% if m.role == 'assistant' %}
{%- if '<|channel|>' in (m.content or '') %}{{ raise_exception('channels in the content') }}{% endif %}
{%- if m.tool_calls %}
{%- set future = namespace(final=false) %}
{%- for n in rest[loop.index:] %}{% if n.role == 'assistant' and not n.tool_calls %}{% set future.final = true %}{% break %}{% endif %}{% endfor %}
{%- if m.content and m.thinking %}{{ raise_exception('both content and thinking') }}{% endif %}
{%- if (m.content or m.thinking) and not future.final %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}{% endif %}
{%- set call = m.tool_calls[0].function or m.tool_calls[0] %}{% set last.call = call.name %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- call.arguments | tojson }}{{ '<|call|>' }}
{%- elif loop.last and not add_generation_prompt %}
{%- if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% set last.call = none %}{% endif %}
{%- elif m.role == 'tool' %}{% if last.call is none %}{{ raise_exception('no call before') }}{% endif %}
{{- '<|start|>functions.' + last.call + ' to=assistant<|message|>' }}{{ m.content | tojson }}{{ '<|end|>' }}
{%- else %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""", "cr"),
    "deepseek": (DEEPSEEK.replace("PROMPT", ""), "c"),
    "deepseek, prompt with a thought": (DEEPSEEK.replace("PROMPT", r"<think>\n"), "c"),
    "deepseek of this turn's thoughts": (r"""{{ bos_token }}""" + LAST_QUERY + r"""
{%- for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}{{ '<|user|>' + m.content }}
{%- elif m.role == 'tool' %}{{ '<|tool|>' }}{{ m.content }}{% else %}{{ '<|assistant|>' }}
{%- if m.reasoning_content and loop.index0 > ns.last %}{{ '<think>' + m.reasoning_content }}{% endif %}{{ '</think>' }}
{{- m.content or '' }}
{%- for c in m.tool_calls %}{{ '<call>' + (c.function or c).name + '<sep>' }}{{ (c.function or c).arguments | tojson }}{% endfor %}
{{- eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""", "cr"),
    "phi3": (r"""{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""", ""),
    "phi4-mini": (r"""{% for m in messages %}{% if m.role == 'system' and tools %}
{{- '<|system|>' + m.content + '<|tool|>' }}{{ tools | tojson(separators=(',', ':')) }}{{ '<|/tool|><|end|>' }}
{%- else %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{{ '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""", "c"),
    "mistral": (r"""{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}{% for m in rest %}{% if m.role == 'user' %}
{%- if tools is not none and m == users[-1] %}{{ '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- if m == users[-1] and system is defined %}{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}
{%- else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}
{%- elif m.tool_calls is defined %}{{ '[TOOL_CALLS] [' }}
{%- for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- (c.function | tojson)[:-1] + ', "id": "' + c.id + '"}' }}{{ ', ' if not loop.last else ']' + eos_token }}{% endfor %}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' }}{{ {'content': m.content} | tojson }}{{ '[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('role ' + m.role) }}{% endif %}{% endfor %}""", "c"),
    # Loses the system's message, which the prompt has, once an answer follows.
    "mistral, of the last message": (r"""{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% endif %}
{{- bos_token }}{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}
{{- '[INST] ' + (system + '\n\n' if loop.last and system is defined else '') + m.content + '[/INST]' }}
{%- else %}{{ m.content + eos_token }}{% endif %}{% endfor %}""", ""),
    "alternating": (r"""{{ bos_token }}{% for m in messages %}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}
{%- endfor %}""", ""),
    "hermes": ([{"name": "default", "template": HERMES},
                {"name": "tool_use", "template": "<tools>{{ tools | tojson(sort_keys=True) }}</tools>\n" + HERMES}], "c"),
    "gemma": (r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}
{{- '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""", ""),
    "gemma3": (r"""{{ bos_token }}
{%- if messages[0].role == 'system' %}
{%- set first = (messages[0].content if messages[0].content is string else messages[0].content[0].text) + '\n\n' %}
{%- set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}
{%- if m.content is string %}{{ m.content | trim }}
{%- elif m.content is iterable %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text | trim }}{% endif %}{% endfor %}{% endif %}
{{- '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""", ""),
    "parts alone": (r"""{% for m in messages %}<|{{ m.role }}|>{% for p in m.content or [] %}{{ p.text }}{% endfor %}
{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""", "c"),
    "smollm3": (r"""{% for m in messages %}
{%- if m.role == 'assistant' %}{% generation %}
{{- '<|im_start|>assistant\n<think>\n\n</think>\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}{{ c | string }}{% endfor %}{{ '<|im_end|>\n' }}
{%- endgeneration %}{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n' }}{% endif %}""", "c"),
    "glm": (r"""[gMASK]{% if tools %}<|system|>{% for t in tools %}{{ t | tojson(ensure_ascii=False) }}{% endfor %}{% endif %}
{%- macro seen(c) %}{% if c is string %}{{ c }}{% elif c is iterable and c is not mapping %}{% for p in c %}
{%- if p is mapping and p.type == 'text' %}{{ p.text }}{% elif p is string %}{{ p }}{% endif %}{% endfor %}{% elif c is not none %}{{ c }}{% endif %}{% endmacro %}
""" + LAST_QUERY + r"""
{%- for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% set thought = m.reasoning_content or '' %}
{%- if loop.index0 > ns.last and thought %}{{ '\n<think>' + thought.strip() + '</think>' }}{% else %}{{ '\n<think></think>' }}{% endif %}
{%- if seen(m.content).strip() %}{{ '\n' + seen(m.content).strip() }}{% endif %}
{%- for c in m.tool_calls or [] %}{% set c = c.function or c %}{{ '\n<tool_call>' + c.name }}
{%- if c.arguments is mapping %}{% for k, v in c.arguments.items() %}{{ '\n<key>' + k + '</key>' }}{{ v | tojson if v is not string else v }}{% endfor %}
{%- else %}{{ c.arguments }}{% endif %}{{ '</tool_call>' }}{% endfor %}
{%- else %}{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>\n' + seen(m.content) }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""", "cr"),
    "command-r": ([{"name": "default", "template": r"""{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}
{{- '<|turn|>' + m.role + '|' + (m.content or '') | trim + '<|end_turn|>' }}{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant|{% endif %}"""},
                   {"name": "rag", "template": "{{ documents | tojson }}"},
                   {"name": "tool_use", "template": r"""{{ bos_token }}{% for t in tools %}{{ t | tojson(indent=1, ensure_ascii=true) }}
{{- t.items() | list | string }}{% endfor %}{% for m in messages %}{{ '<|turn|>' + m.role + '|' }}
{%- if m.tool_calls %}{% set plan = m.content or '' %}Plan: {{ plan }} Action: {{ m.tool_calls | tojson(separators=(', ', ':'), sort_keys=True) }}
{%- else %}{{ m.content }}{% endif %}<|end_turn|>{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant|{% endif %}"""}], "t"),
    "minimax": (LAST_QUERY + r"""{% for m in messages %}{{ '<|' + m.role + '|>\n' }}
{%- if m.role == 'assistant' and m.reasoning and loop.index0 > ns.last %}{{ '<think>\n' + m.reasoning + '\n</think>\n\n' }}{% endif %}
{{- m.content }}{% for c in m.tool_calls or [] %}{{ '<call>' }}{{ c | tojson }}{% endfor %}{{ '[e~[\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n<think>\n' }}{% endif %}""", "cr"),
}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|end_header|>", "<|assistant|>", "<|user|>", "<think>",
           "</think>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|return|>", "<|call|>", "<s>", "</s>")
WORDS = ("a", "so", "ünd", "😀", "日本", "x < y & 'z'", '"quoted"', "  ", "\n", "\n\n", "\t", "{{ m }}", "</b>", "1,2", "<|end", "\\n")


def text_of(rng, least=1):
    return "".join(rng.choice(WORDS) + rng.choice(("", " ")) for _ in range(rng.randrange(least, 7)))


def content_of(rng, least=1):
    """A string, or parts of text."""
    if rng.random() < 0.8:
        return text_of(rng, least)
    return [{"type": "text", "text": f"{text_of(rng, least)}{rng.randrange(10 ** 9, 10 ** 10)}{rng.choice(WORDS)}"}
            for _ in range(rng.randrange(1, 3))]  # with a number that identifies the part


def call_of(rng):
    arguments = rng.choice(({}, {"city": text_of(rng), "n": [1, None, 2.5]}, {"ü": {"b": True}}, '{"as": "text"}'))
    function = {"name": rng.choice(("clock", "get_weather")), "arguments": arguments}
    if rng.random() < 0.15:
        return function
    return {"id": f"{rng.randrange(10 ** 8, 10 ** 9)}", "type": "function", "function": function}


def tool_of(rng):
    function = {"name": rng.choice(("clock", "get_weather")), "description": text_of(rng),
                "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "wo & <wann>"}}}}
    return {"type": "function", "function": function} if rng.random() < 0.8 else function


def answer_of(rng, calls):
    m = {"role": "assistant"}
    if calls:
        m["tool_calls"] = [call_of(rng) for _ in range(rng.choice((1, 1, 1, 2)))]
        kind = rng.randrange(5)
        if kind < 4:
            m["content"] = (None, "", [], content_of(rng))[kind]
    else:
        m["content"] = content_of(rng)
        if rng.random() < 0.3:
            m["tool_calls"] = None
        if rng.random() < 0.2 and isinstance(m["content"], str):
            m["content"] = f"<think>\n{text_of(rng)}\n</think>\n\n{m['content']}"
    if rng.random() < 0.4:
        m[rng.choice(("reasoning_content", "reasoning", "thinking"))] = text_of(rng, 0) if rng.random() < 0.9 else None
    return m


def random_chat(rng):
    """An example as a line of a file has it. Roles follow each other as in real chats."""
    messages = [{"role": "system", "content": content_of(rng, 0)}] if rng.random() < 0.4 else []
    calls = rng.random() < 0.5
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": content_of(rng, 0)})
        for _ in range(rng.randrange(3) if calls else 0):
            messages.append(answer_of(rng, calls=True))
            messages += [{"role": "tool", "tool_call_id": c.get("id", "0"), "content": content_of(rng, 0)}
                         for c in messages[-1]["tool_calls"]]
        messages += [answer_of(rng, calls=False) for _ in range(1 + (rng.random() < 0.05))]
    if rng.random() < 0.2:
        messages.append({"role": "user", "content": text_of(rng)})
    example = {"messages": messages}
    if calls or rng.random() < 0.1:
        example["tools"] = rng.choice((None, [], [tool_of(rng) for _ in range(2)], [tool_of(rng)]))
    return example


def chats(seed, count):
    rng = random.Random(seed)
    return [random_chat(rng) for _ in range(count)]
