#!/usr/bin/env python3
"""Prints a random sample of the project's text, for a reader who marks sentences that must be read twice.

Use: scripts/sample-text.py SEED [WORDS]. The same seed at the same commit prints the same sample. A third of the words
comes from docs, a third from comments in Go and Lua (with the line of code below), a sixth each from decisions and
from messages (logs, errors, help). Tests, generated pages, code blocks and tables of numbers are left out.
"""
import random
import re
import subprocess
import sys

GENERATED = ('docs/reference/cli.md', 'docs/reference/exit-codes.md', 'docs/reference/metrics.md')


def files(*patterns):
    return subprocess.run(['git', 'ls-files', '--', *patterns], check=True, text=True, capture_output=True).stdout.split()


def paragraphs(name):
    """Yields (line, text) of a Markdown file's paragraphs, without code and tables."""
    text = open(name, encoding='utf-8').read()
    text = re.sub(r'^---\n.*?\n---\n', lambda m: '\n' * m[0].count('\n'), text, flags=re.S)
    text = re.sub(r'^([ ]*)(```|~~~).*?^\1\2[ ]*$', lambda m: '\n' * m[0].count('\n'), text, flags=re.S | re.M)
    line = 1
    for block in re.split(r'(\n\s*\n)', text):
        if len(block.split()) >= 8 and not block.lstrip().startswith(('|', '<', '[', '!')):
            yield line + len(block) - len(block.lstrip('\n')), block.strip()
        line += block.count('\n')


def comments(name):
    """Yields (line, text) of a source file's comments, with the line of code that follows."""
    mark = '--' if name.endswith('.lua') else '//'
    block, at = [], 0
    for n, line in enumerate(open(name, encoding='utf-8'), 1):
        code, found, rest = line.strip().partition(mark)
        if found and not code and not rest.startswith(('go:', 'nolint', 'export ')):
            at = at or n
            block.append(mark + rest)
            continue
        if block:
            yield at, '\n'.join([*block, '    ' + line.strip()])
        elif found and code and len(rest.split()) >= 3 and '"' not in rest and 'nolint' not in rest:
            yield n, line.strip()
        block, at = [], 0


MESSAGE = re.compile(r'(?:errors\.New|Errorf|\.(?:Info|Warn|Error|Debug)(?:Context)?|LogAttrs)\([^"\n]*"((?:[^"\\\n]|\\.)+)"'
                     r'|help:"((?:[^"\\\n]|\\.)+)"|Help: *"((?:[^"\\\n]|\\.)+)"')


def messages(name):
    for m in MESSAGE.finditer(open(name, encoding='utf-8').read()):
        text = next(g for g in m.groups() if g)
        if len(text.split()) >= 4:
            yield m.string.count('\n', 0, m.start()) + 1, text


def main():
    seed, words = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    pick = random.Random(seed)
    code = [f for f in files('cmd/*.go', 'pkg/*.go', 'internal/*.go', '*.lua')
            if not f.endswith('_test.go') and 'testdata' not in f]
    pages = [f for f in files('README.md', 'CONTRIBUTING.md', 'docs/*.md') if f not in GENERATED]
    kinds = {
        'docs': (words // 3, paragraphs, [f for f in pages if '/adr/' not in f]),
        'comments': (words // 3, comments, code),
        'decisions': (words // 6, paragraphs, [f for f in pages if '/adr/0' in f]),
        'messages': (words // 6, messages, [f for f in code if f.endswith('.go')]),
    }
    for kind, (want, read, names) in kinds.items():
        found = [(name, line, text) for name in names for line, text in read(name)]
        pick.shuffle(found)
        count = 0
        print(f'# {kind}\n')
        for name, line, text in found:
            if count >= want:
                break
            count += len(text.split())
            print(f'[{name}:{line}]\n{text}\n')


if __name__ == '__main__':
    main()
