#!/usr/bin/env python3
"""Writes the tables of docs/planning.md and docs/kimi-k2.md from what `sherd plan` says, and docs/plan_sweep.svg.

Usage: docs/planning.py [--time [--one-round]] [BUILD]     BUILD: build/release
A table stands between lines <!-- NAME --> and <!-- end -->. --time measures this machine and trains on it (the table "time"),
which needs an idle machine; without it that table stays as it is. --one-round: once instead of three times.
"""
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARGUMENTS = [a for a in sys.argv[1:] if not a.startswith('--')]
BIN = Path(ARGUMENTS[0] if ARGUMENTS else ROOT / 'build/release').resolve() / 'bin'
GIB = 2 ** 30


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'{" ".join(map(str, command))}: {done.stderr}')
    return done.stdout


def plan(flags):
    return json.loads(run(BIN / 'sherd', 'plan', '--json', *flags.split()))


def table(head, rows):
    lines = ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    return '\n'.join(lines + ['| ' + ' | '.join(str(c) for c in r) + ' |' for r in rows])


def percent(predicted, measured):
    return f'{100 * (predicted / measured - 1):+.1f} %'


def peak(p):
    return p['ranks'][0]['peak_bytes'] / GIB


# Published tokens/s and model TFLOP/s of a GPU, at a sequence length: Megatron Bridge, docs/performance-summary.md of release 25.11, and
# rows of NeMo of 2025 and 2026.
PAIRS = {('llama3-8b', 8192): {'GB300': [(37556, 1933), (36108, 1858)], 'GB200': [(31508, 1622), (29789, 1533)],
                               'B200': [(30624, 1576), (29521, 1519)], 'H100': [(14451, 744)]},
         ('llama3-70b', 8192): {'GB300': [(4520, 2030), (5248, 2348)], 'GB200': [(4312, 1937), (4224, 1892)],
                                'H100': [(1602, 719), (866.8, 389)]},
         ('llama3-405b', 8192): {'GB300': [(999, 2522)], 'GB200': [(813, 2053)], 'B200': [(661, 1667), (624, 1576)], 'H100': [(292, 737)]},
         ('qwen3-30b-a3b', 4096): {'GB300': [(28934, 666)], 'GB200': [(23766, 547)], 'B200': [(9299, 214)],
                                   'H100': [(12040, 277), (5275, 121)]},
         ('deepseek-v3', 4096): {'GB300': [(3848, 961), (4357, 1088)], 'GB200': [(3139, 782), (4018, 1003)],
                                 'H100': [(1002, 250), (865, 216)]},
         ('kimi-k2', 4096): {'H100': [(924, 189)]}}


def flops():
    rows, errors = [], []
    for (preset, seq), gpus in PAIRS.items():
        f = plan(f'--preset {preset} --seq {seq} --world 1')['flops_per_token']
        for gpu, pairs in gpus.items():
            for tokens, tflops in pairs:
                errors.append(f * tokens / 1e12 / tflops - 1)
                rows.append([preset, gpu, f'{f / 1e9:.2f}', f'{tokens:,}', f'{tflops:,}', percent(f * tokens / 1e12, tflops)])
    near = sum(abs(e) <= .005 for e in errors)
    return (f'{near} of {len(errors)} within 0.5 %.\n\n' +
            table(['model', 'GPU', 'GFLOP per token', 'tokens/s', 'published TFLOP/s', 'error'], rows))


LLAMA = '--preset llama3-8b --hardware h100 --seq 8192'
# torchtitan, benchmarks/llama3_h100_202412: eager, selective recomputation of single operations.
TITAN = {8: (82.4, 5762, 6667), 128: (67.0, 5605, 6514)}


def memory():
    plans = {n: plan(f'{LLAMA} --world {n} --batch {2 * n}') for n in TITAN}
    rows = [[f'{n} H100', f'{peak(p):.1f}', TITAN[n][0], percent(peak(p), TITAN[n][0])] for n, p in plans.items()]
    d, m = peak(plans[8]) - peak(plans[128]), TITAN[8][0] - TITAN[128][0]
    rows.append(['difference', f'{d:.1f}', f'{m:.1f}', percent(d, m)])
    return table(['Llama 3.1 8B, FSDP', 'predicted GiB', 'published GiB', 'error'], rows)


# Megatron-LM, tests/functional_tests/test_cases/moe/gpt3_moe_mcore_te_ep8_*muon*: 12 layers of 8 experts over 8 ranks, and the GB that its
# golden values count. Gated experts of 683 have as many weights as its ungated ones of 1024; the 1024 positions are further rows of the table.
MEGATRON = {'nothing sharded': 1.097, 'matrices and tables on one owner each, its largest': 0.994,
            'matrices on one owner each, the rest in shards': 0.742}
MEGATRON_CONFIG = {
    'model_type': 'qwen3_moe', 'hidden_size': 512, 'num_hidden_layers': 12, 'num_attention_heads': 8, 'num_key_value_heads': 8, 'head_dim': 64,
    'intermediate_size': 1024, 'moe_intermediate_size': 683, 'num_experts': 8, 'num_experts_per_tok': 2, 'norm_topk_prob': True,
    'vocab_size': 50304 + 1024, 'max_position_embeddings': 1024, 'rms_norm_eps': 1e-6, 'rope_theta': 1e4, 'tie_word_embeddings': True,
    'hidden_act': 'silu', 'attention_bias': False}
TABLE = 50304 * 512


def megatron_owner(folder, per_parameter, experts):
    """Bytes of the rank that owns the table: no layout of sherd's has it, for AdamW's parameters are always in shards."""
    params = [{'name': 'table', 'shape': [50304, 512]}, {'name': 'positions', 'shape': [1024, 512]}]
    for i in range(12):
        params += [{'name': f'{i}.{n}', 'shape': [rows, 512]} for n, rows in [('qkv', 1536), ('out', 512), ('router', 8)]]
    for p in params:
        p.update(dtype='bf16', optimizer='muon', unit='root')
    (folder / 'params.json').write_text(json.dumps(params))
    ranks = json.loads(run(BIN / 'sherd', 'layout', '--params', folder / 'params.json', '--world', 8, '--policy', 'whole_param:ping_pong',
                           '--json'))['buffers'][0]['ranks']
    others = max(r['elements'] for r in ranks) - TABLE
    return per_parameter + 8 * (experts + others) + 12 * TABLE


def megatron():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / 'config.json').write_text(json.dumps(MEGATRON_CONFIG))
        state = []
        for flags in ('zero0', 'zero1 --layout whole_param:ping_pong'):
            by = plan(f'--model {folder} --world 8 --expert-parallel 8 --optimizer muon --precision bf16 --hardware h100 --batch 32 '
                      f'--seq 1024 --strategy {flags}')['ranks'][0]['by_class']
            state.append(sum(by[k] for k in ('parameter', 'master', 'gradient', 'optimizer')))
            weights = by['parameter'] + by['gradient']
        state.insert(1, megatron_owner(folder, weights, 12 * 3 * 683 * 512))
    rows = [[n, f'{s / 1e9:.3f}', m, f'{m - s / 1e9:.3f}'] for (n, m), s in zip(MEGATRON.items(), state)]
    measured = list(MEGATRON.values())
    steps = [f'{(state[i] - state[j]) / 1e6 - 1e3 * (measured[i] - measured[j]):+.0f} MB' for i, j in ((0, 1), (1, 2), (0, 2))]
    return (table(['layout', 'predicted weights, gradients and state, GB', 'measured, GB', 'rest'], rows) +
            f'\n\nErrors of the three differences: {", ".join(steps)}.')


def rate(p, gpus, efficiency):
    """Tokens/s of a GPU where products reach a part of the profile's rates."""
    ms = p['step_ms']
    return p['tokens_per_s'] * ms['total'] / (ms['total'] + ms['compute'] * (1 / efficiency - 1)) / gpus


def published_time():
    runs = [('Llama 3.1 8B, 8 H100, compiled', 8, 6667, f'{LLAMA} --world 8 --batch 16'),
            ('Llama 3.1 8B, 128 H100, compiled', 128, 6514, f'{LLAMA} --world 128 --batch 256'),
            ('Llama 3 70B, 64 H100', 64, 866.8, '--preset llama3-70b --hardware h100 --world 64 --batch 64 --seq 8192')]
    plans = [(name, gpus, tokens, plan(flags)) for name, gpus, tokens, flags in runs]
    _, gpus, tokens, first = plans[0]
    low, high = .05, 1.
    for _ in range(60):  # the efficiency that the first row implies
        middle = (low + high) / 2
        low, high = (middle, high) if rate(first, gpus, middle) < tokens else (low, middle)
    rows = [[name, 'fitted' if p is first else 'predicted', f'{rate(p, g, low):,.0f}', f'{t:,}', percent(rate(p, g, low), t)]
            for name, g, t, p in plans]
    return (f'Fitted on the first row: {low:.3f} of the predicted rate of compute.\n\n' +
            table(['model', 'use', 'tokens/s per GPU', 'published', 'error'], rows))


# One H200, docs/gpu-results.md, call 3: tokens/s; ms of two traced steps by class of kinds. With the GB of a step that have gone since:
# residual sums apart and rope's narrow accesses, the pass of clipping.
H200 = {'gpt2-124m': ('--preset gpt2-124m --seq 1024 --batch 64', 503518, 477377),
        'llama3.2-1b': ('--preset llama3.2-1b --seq 2048 --batch 4', 59663, 38711),
        'bytes, 26 layers of 2048': ('--device cuda --precision bf16 --dim 2048 --layers 26 --heads 16 --seq 1024 --batch 16', 69875, 45950)}
GRAM = ' --optimizer muon --ns-form gram --muon-working fp16 --muon-payload fp16'
TRACED = {'products': (175, 177), 'attention, forward and backward': (39, 33), 'biases, residual sums, norms, rope, SwiGLU': (28, 21),
          'cross entropy': (12, 4), 'AdamW': (2, 19), 'gradient norm and clipping': (1, 11)}
KINDS = {'product': 'products', 'attention': 'attention, forward and backward', 'attention_backward': 'attention, forward and backward',
         'compute': 'biases, residual sums, norms, rope, SwiGLU', 'loss': 'cross entropy', 'optimizer': 'AdamW',
         'squares': 'gradient norm and clipping'}
GONE = {'biases, residual sums, norms, rope, SwiGLU': (4.8 / 3.89, 2.7 / 3.89), 'gradient norm and clipping': (1 / 3.93, 9.9 / 3.93)}


def h200():
    rows, traced = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, (flags, *measured) in H200.items():
            for optimizer, more, tokens in zip(('AdamW', 'Muon'), ('', GRAM), measured):
                trace = Path(folder) / 'trace.json'
                predicted = plan(f'{flags}{more} --hardware h200 --trace {trace}')['tokens_per_s']
                rows.append([name, optimizer, f'{predicted:,.0f}', f'{tokens:,}', percent(predicted, tokens)])
                if optimizer == 'AdamW' and len(traced) < 2:
                    ms = dict.fromkeys(TRACED, 0)
                    for e in json.loads(trace.read_text())['traceEvents']:
                        if e.get('ph') == 'X' and e['cat'] in KINDS:
                            ms[KINDS[e['cat']]] += e['dur'] / 1e3
                    traced.append({k: v + GONE.get(k, (0, 0))[len(traced)] for k, v in ms.items()})
    classes = [[k] + [c for i in (0, 1) for c in (f'{traced[i][k]:.1f}', f'{TRACED[k][i] / 2:.1f}')] for k in TRACED]
    return (table(['model', 'optimizer', 'predicted tokens/s', 'measured', 'error'], rows) + '\n\n' +
            table(['ms of a step', 'gpt2-124m, predicted', 'measured', 'llama3.2-1b, predicted', 'measured'], classes))


def two_efficiencies(rows):
    """Of rows (name, use, tokens/s published, plan): table and fit of the parts of the predicted rates that rows of use "fitted" reach,
    of compute and of all else."""
    def rate(p, compute, rest):
        ms = p['step_ms']
        return p['tokens_per_s'] * ms['total'] / (ms['compute'] / compute + (ms['total'] - ms['compute']) / rest)

    def misfit(e):
        return sum((rate(p, *e) / tokens - 1) ** 2 for _, use, tokens, p in rows if use == 'fitted')

    # At most the published rate of large products, 794.5 TFLOP/s, beside the plan's 700.
    best = min(((c / 100, r / 100) for c in range(50, 114) for r in range(20, 101)), key=misfit)
    lines = [[name, use, f'{rate(p, *best):,.0f}', f'{tokens:,.0f}', percent(rate(p, *best), tokens)] for name, use, tokens, p in rows]
    return (f'Fitted: {best[0]:.2f} of the predicted rate of compute, {best[1]:.2f} of that of communication and optimizer.\n\n' +
            table(['model', 'use', 'tokens/s', 'published', 'error'], lines))


# NVIDIA-NeMo/Automodel, docs/performance-summary.md of 2025-10 and its configurations: H100, bf16, sequences of 4096, AdamW, recomputed
# blocks except GPT-OSS. Tokens/s of a GPU.
AUTOMODEL = [('Qwen3 30B-A3B, 8 H100, EP8', 'fitted', 8, 12040,
              '--preset qwen3-30b-a3b --expert-parallel 8 --batch 512 --accumulation 16 --recompute blocks'),
             ('Kimi-K2, 256 H100, PP8, EP32', 'fitted', 256, 924,
              '--preset kimi-k2 --pipeline 8 --expert-parallel 32 --batch 512 --accumulation 16 --recompute blocks'),
             ('DeepSeek-V3, 256 H100, PP4, EP64', 'predicted', 256, 1002,
              '--preset deepseek-v3 --pipeline 4 --expert-parallel 64 --batch 512 --accumulation 8 --recompute blocks --strategy zero2'),
             ('DeepSeek-V3, 1024 H100, PP4, EP64', 'predicted', 1024, 865,
              '--preset deepseek-v3 --pipeline 4 --expert-parallel 64 --batch 8192 --accumulation 32 --recompute blocks --strategy zero2'),
             ('GPT-OSS 120B, 64 H100, EP64', 'other attention', 64, 7626,
              '--preset gpt-oss-120b --expert-parallel 64 --batch 512 --accumulation 4')]


def automodel():
    return two_efficiencies([(name, use, gpus * tokens, plan(f'{flags} --world {gpus} --hardware h100 --seq 4096'))
                             for name, use, gpus, tokens, flags in AUTOMODEL])


# Qwen2.5: hidden, layers, heads, key heads, ffn, vocabulary, tied; tokens/s of LLM.Q with bf16 on 1 and on 8 H100, sequences of 1024.
QWEN = {'0.5B': (896, 24, 14, 2, 4864, 151936, True), '1.5B': (1536, 28, 12, 2, 8960, 151936, True),
        '3B': (2048, 36, 16, 2, 11008, 151936, True), '7B': (3584, 28, 28, 4, 18944, 152064, False),
        '14B': (5120, 48, 40, 8, 13824, 152064, False)}
LLMQ = [('0.5B', 1, 150e3), ('1.5B', 1, 58.9e3), ('3B', 1, 30.9e3), ('7B', 1, 13.8e3), ('14B', 1, 6330), ('1.5B', 8, 457e3),
        ('3B', 8, 240e3), ('7B', 8, 112e3), ('14B', 8, 48.9e3)]
FITTED = {('0.5B', 1), ('3B', 1), ('1.5B', 8), ('7B', 8)}
OFFLOADED = {'14B'}  # state in host memory, which is not planned


def qwen(model):
    keys = ('hidden_size', 'num_hidden_layers', 'num_attention_heads', 'num_key_value_heads', 'intermediate_size', 'vocab_size',
            'tie_word_embeddings')
    return dict(zip(keys, QWEN[model]), model_type='qwen2', max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=1e6,
                hidden_act='silu', use_sliding_window=False)


def llmq():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, gpus, tokens in LLMQ:
            (Path(folder) / 'config.json').write_text(json.dumps(qwen(model)))
            p = plan(f'--model {folder} --world {gpus} --hardware h100 --seq 1024 --batch {32 * gpus} --strategy zero1')
            use = 'fitted' if (model, gpus) in FITTED else 'in host memory' if model in OFFLOADED else 'predicted'
            rows.append((f'Qwen2.5 {model}, {gpus} H100', use, tokens, p))
    return two_efficiencies(rows)


# Sizes other than those of the models by whose steps --measure takes the times of operations.
SIZES = '--dim 384 --layers 3 --heads 6 --seq 128 --batch 16'
HERE = [(1, SIZES), (1, SIZES + ' --optimizer muon'), (1, SIZES + ' --precision bf16'), (1, SIZES + ' --recompute blocks'),
        (2, SIZES), (2, SIZES + ' --optimizer muon'), (2, SIZES + ' --strategy zero1'), (2, SIZES + ' --grad-accum 2')]


ROUNDS = 1 if '--one-round' in sys.argv else 3


def time_here():
    predicted, measured = ([[] for _ in HERE] for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        profile, metrics = Path(folder) / 'profile.json', Path(folder) / 'metrics.jsonl'
        for _ in range(ROUNDS):
            for ranks in (1, 2):
                run(BIN / 'sherd', 'plan', '--measure', profile, '--ranks', ranks, '--threads', 1)
                for row in (i for i, (r, _) in enumerate(HERE) if r == ranks):
                    common = f'--ranks {ranks} --threads 1 {HERE[row][1]}'
                    run(BIN / 'train_gpt', '--steps', 12, '--metrics', metrics, '--measure-peak', 'false', *common.split())
                    steps = [json.loads(line)['step_ms'] for line in metrics.read_text().splitlines()[4:]]
                    measured[row].append(statistics.median(steps))
                    predicted[row].append(plan(f'--hardware {profile} {common}')['step_ms']['total'])
    rows = []
    for (ranks, flags), p, m in zip(HERE, predicted, measured):
        rows.append([ranks, f'`{flags.removeprefix(SIZES).strip() or "adamw, fp32"}`', f'{min(p):.1f}', f'{min(m):.1f}',
                     percent(min(p), min(m))])
    return table(['ranks', 'flags', 'predicted ms', 'measured ms', 'error'], rows)


KIMI = '--preset kimi-k2 --world 256 --recompute blocks --strategy zero1'
B200 = KIMI + ' --hardware b200 --pipeline 16 --expert-parallel 16 --accumulation 128'
MUON = ' --optimizer muon --muon-working bf16'


def kimi_row(name, flags):
    p = plan(flags)
    by, ms = p['ranks'][0]['by_class'], p['step_ms']
    state = sum(by[k] for k in ('parameter', 'master', 'gradient', 'optimizer')) / GIB
    gpus = int(re.search(r'--world (\d+)', flags)[1])
    tflops = p['tokens_per_s'] * p['flops_per_token'] / gpus / 1e12
    # The optimizer's part of the step counts as Newton-Schulz throughput, as the published pair does.
    extra = p['newton_schulz_flops'] / (ms['total'] / 1e3) / 1e12
    return [name, f'{tflops:.0f}', f'{extra:.0f}' if extra else '-', f'{ms["total"] / 1e3:.2f}', f'{state:.1f}',
            f'{by["activation"] / GIB:.1f}', f'{peak(p):.1f}', 'yes' if p['fits'] else 'no']


KIMI_HEAD = ['optimizer', 'model TFLOP/s', '+ Newton-Schulz', 'step s', 'weights, gradients, state GiB', 'activations GiB',
             'peak GiB', 'fits']


def kimi():
    return table(KIMI_HEAD, [
        kimi_row('element-wise distributed AdamW', B200),
        kimi_row('layer-wise distributed Muon', B200 + MUON + ' --layout whole_param'),
        kimi_row('Muon, owner', B200 + MUON + ' --muon-mode owner'),
        kimi_row('Muon, Gram matrices summed', B200 + ' --optimizer muon --muon-allow-inexact'),
        kimi_row('Muon, owner, Gram form of the iteration', B200 + ' --optimizer muon --ns-form gram --muon-mode owner')])


def kimi_published():
    gb300 = KIMI + ' --hardware gb300 --pipeline 4 --expert-parallel 64 --accumulation 32 --batch 4096'
    h100 = KIMI.replace('zero1', 'zero3') + ' --hardware h100 --pipeline 8 --expert-parallel 32 --accumulation 64'
    rows = []
    for name, flags, published in [('256 GB300, AdamW', gb300, '1,051 (MXFP8)'),
                                   ('256 GB300, Muon', gb300 + MUON + ' --layout whole_param', '1,029 + 51 (MXFP8)'),
                                   ('256 H100, AdamW', h100, '189 (bf16)')]:
        row = kimi_row(name, flags)
        rows.append(row[:3] + [published] + row[3:4] + row[6:])
    return table(['GPUs', 'predicted TFLOP/s', '+ Newton-Schulz', 'published', 'step s', 'peak GiB', 'fits'], rows)


def example():
    return '    ' + run(BIN / 'sherd', 'plan', *LLAMA.split(), '--world', 8, '--batch', 16, '--recompute',
                        'blocks').rstrip().replace('\n', '\n    ')


def indented(text):
    return '    ' + text.rstrip().replace('\n', '\n    ').replace('\n    \n', '\n\n')


def search():
    return indented(run(BIN / 'sherd', 'plan', *LLAMA.split(), '--world', 8, '--batch', 16, '--search', '--keep-bits'))


def searched(flags):
    return json.loads(run(BIN / 'sherd', 'plan', '--json', '--search', *flags.split()))


def found():
    """Published configurations beside what a search of their ranks, batch and sequences finds."""
    runs = [('Llama 3.1 8B, 8 H100', f'{LLAMA} --world 8 --batch 16', ''), ('Llama 3.1 8B, 128 H100', f'{LLAMA} --world 128 --batch 256', ''),
            ('Llama 3 70B, 64 H100', '--preset llama3-70b --hardware h100 --world 64 --batch 64 --seq 8192', '')]
    for name, _, gpus, _, flags in AUTOMODEL:
        if '--pipeline' not in flags:
            model, batch = re.search(r'--preset (\S+)', flags)[1], re.search(r'--batch (\d+)', flags)[1]
            base = f'--preset {model} --world {gpus} --hardware h100 --seq 4096 --batch {batch}'
            runs.append((name, base, re.sub(r'--(preset|batch) \S+', '', flags)))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, gpus, _ in LLMQ:
            (Path(folder) / model).mkdir(exist_ok=True)
            (Path(folder) / model / 'config.json').write_text(json.dumps(qwen(model)))
            runs.append((f'Qwen2.5 {model}, {gpus} H100', f'--model {folder}/{model} --world {gpus} --hardware h100 --seq 1024 --batch {32 * gpus}',
                         '--strategy zero1'))
        for name, base, flags in runs:
            published, best = plan(f'{base} {flags}'), searched(base)
            step = published['step_ms']['total']
            assert not published['fits'] or best['best'][0]['step_ms'] <= step * 1.005, name
            if best['fits']:
                answer = [f'{best["best"][0]["step_ms"]:,.0f}', f"`{' '.join(best['best'][0]['flags'])}`" if best['best'][0]['flags'] else 'defaults']
            else:
                answer = ['nothing fits', '']
            rows.append([name, f'{step:,.0f}', 'yes' if published['fits'] else 'no', *answer])
    return table(['configuration', 'published, predicted ms', 'fits', 'found ms', 'flags'], rows)


def kimi_search():
    return indented(run(BIN / 'sherd', 'plan', *'--preset kimi-k2 --hardware b200 --world 256 --batch 1024 --search'.split()))


def sweep():
    return '    ' + run(BIN / 'sherd', 'plan', *'--preset llama3-70b --hardware h100 --optimizer muon --recompute blocks --sweep '
                        'world=64..65536 --svg'.split(), ROOT / 'docs/plan_sweep.svg').rstrip().replace('\n', '\n    ')


def main():
    tables = {'example': example, 'search': search, 'kimi search': kimi_search, 'found': found, 'flops': flops, 'memory': memory, 'megatron': megatron, 'llmq': llmq, 'automodel': automodel,
              'published time': published_time, 'sweep': sweep, 'h200': h200, 'kimi': kimi, 'kimi published': kimi_published}
    if '--time' in sys.argv:
        tables['time'] = time_here
    for page in (ROOT / 'docs/planning.md', ROOT / 'docs/kimi-k2.md'):
        text = page.read_text()
        for name, make in tables.items():
            place = re.compile(f'(<!-- {name} -->\n).*?(<!-- end -->)', re.S)
            if place.search(text):
                made = make()
                text = place.sub(lambda m: m[1] + made + '\n' + m[2], text)
        page.write_text(text)


main()
