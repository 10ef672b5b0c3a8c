"""No template makes much of little: each of these is rendered in a process of its own.

Each either ends by a count, never by the clock or by the machine's memory, or is cheap. All are
within 200 MB (docs/security.md), and most of what they take is what their values weigh.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MOST_MB = 200
LOOP = "{% set n = namespace(s=SEED) %}{% for i in range(9999) %}{% set n.s = NEXT %}{% endfor %}"
BIG = "'a' * 3999999"
WIDE = "'\N{GRINNING FACE}' * 3999999"


def loop(seed: str, following: str) -> str:
    return LOOP.replace("SEED", seed).replace("NEXT", following)


# Ended by a count of the budget.
REFUSED = [
    # Lists by products, sums, slices and filters.
    "{{ ([0] * 10**8) | length }}",
    "{{ ([0] * 10**9) | length }}",
    "{{ ((0,) * 10**8) | length }}",
    "{{ (10**8 * [0]) | length }}",
    "{{ ([[]] * 10**7) | length }}",
    "{{ ([{}] * 10**7) | length }}",
    "{{ ([''] * 10**8) | length }}",
    "{{ ([0] * 10**7 + [0] * 10**7) | length }}",
    "{{ (([0] * 199000) + ([0] * 199000)) | length }}",
    "{{ {'a': [0] * 10**7} | length }}",
    "{{ cycler(*([0] * 10**8)).next() }}",
    loop("[1]", "n.s + n.s"),
    loop("(1,)", "n.s + n.s"),
    loop("[1]", "n.s * 2"),
    loop("[0] * 190000", "n.s[1:]"),
    loop("[0] * 190000", "n.s | list"),
    loop("[0] * 190000", "n.s | reverse | list"),
    loop("[]", "[n.s, i]"),
    loop("()", "(n.s,)"),
    loop("{}", "dict(n.s, a=n.s)"),
    loop("[]", "n.s + [[0] * 9000]"),
    loop("[]", "n.s + [range(9000) | list]"),
    # Texts as lists of characters, words and lines.
    "{{ (BIG) | batch(1) | list | length }}",
    "{{ (BIG) | sort | length }}",
    "{{ (BIG) | list | length }}",
    "{{ (BIG) | slice(2) | list | length }}",
    "{{ (BIG) | unique | list | length }}",
    "{{ (BIG) | groupby('x') | list | length }}",
    "{{ (BIG) | min }}",
    "{{ ('a ' * 1999999) | title | length }}",
    "{{ ('ab ' * 1299999) | wordcount }}",
    "{{ ('a,' * 1999999).split(',') | length }}",
    "{{ ('a ' * 1999999).split() | length }}",
    "{{ ('a ' * 1999999).rsplit() | length }}",
    "{{ ('\\n' * 3999999).splitlines() | length }}",
    "{{ ('\\n' * 3999999) | indent(0) | length }}",
    "{{ ','.join(BIG) | length }}",
    "{{ (BIG) | join(',') | length }}",
    # Texts.
    "{{ 'a' * 10**12 }}",
    "{{ (BIG ~ BIG) | length }}",
    "{{ (BIG) + (BIG) }}",
    "{{ ('%9999d' * 400) % ((1,) * 400) }}",
    "{{ ('{0}' * 400).format('a' * 99999) }}",
    "{{ ('{0}' * 400).format(range(99999) | list) | length }}",
    "{{ ('%s' * 400) % ((range(400) | list,) * 400) | length }}",
    "{{ ['%999999999d'] | format(1) }}",
    "{{ ('\t' * 400000).expandtabs(10000) }}",
    "{{ ('a' * 999999) | replace(new='b' * 999999, old='a') }}",
    "{{ ('a' * 99999).replace('', 'b' * 9999) }}",
    "{{ [1, 2, 3] | join(attribute='real', d='x' * 3999999) | length }}",
    "{% set l = range(99999) | list %}{{ " + " ~ ".join(["l"] * 200) + " }}",
    "{{ [{'a': 'x' * 99999}.items()] * 9999 }}",
    "{{ [{'a': 'x' * 99999}.values()] * 9999 }}",
    "{{ [0] | tojson(indent='x' * 9999999) }}",
    "{{ (range(99999) | list) | tojson(indent='x' * 99999) }}",
    "{{ (range(99999) | list) | tojson(separators=['x' * 99999, ':']) }}",
    "{% macro M() %}{% endmacro %}{{ [M] * 99999 }}".replace("M", "m" * 9999),
    # Integers.
    "{{ 10 ** 10 ** 8 }}",
    "{{ ('f' * 3999999) | int(0, 16) }}",
    "{{ (('f' * 3999999) | int(0, 16)) // (('f' * 1999999) | int(0, 16)) }}",
    "{{ range(0, 99999 * (2**61 - 1), 2**61 - 1) | unique | list | length }}",
    loop("7", "n.s + n.s"),
    loop("7", "n.s - (0 - n.s)"),
    # Values that are each small enough, kept in names and frames.
    "{% macro f(n) %}{% set x = WIDE %}{% if n %}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "".join(f"{{% set x{i} = WIDE %}}" for i in range(90)),
    "{% set x = WIDE %}" + "".join(f"{{% set x{i} = x[{i}:] %}}" for i in range(90)),
    "{% for x in [1] recursive %}{% set y = WIDE %}{{ loop([x]) }}{{ y }}{% endfor %}",
    # Time: searches that compare everywhere, attributes of attributes, a filter's own loop.
    "{{ (('b' + 'a' * 999) * 4000).rfind('c' + 'a' * 99999) }}",
    "{{ (BIG).strip('b' * 1000000 + 'a') }}",
    "{{ (BIG) | trim('b' * 1000000 + 'a') }}",
    "{% set n = namespace() %}{% set n.a = n %}{{ (([n] * 99999) | map(attribute='PATH') | list)"
    " | length }}".replace("PATH", ".".join("a" * 99999)),
    "{{ range(99999) | reject('in', range(0, -99999, -1) | list) | list | length }}",
]
# Refused, or an error as in Python: nothing large is made.
WRONG = [
    "{{ [0] | round(9, 'ceil') }}",
    "{{ 'x' | round(9, 'floor') }}",
    "{{ '%999999999d' is divisibleby(1) }}",
    "{{ '%999999999d' is even }}",
    "{{ ['%999999999d'] | select('odd') | list }}",
    "{{ [[1]] * 99999 | sum(start=[]) }}",
    "{{ range(10**9) | length }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}",
    "{{ 'a' | wordwrap(1) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | urlize }}",
    "{{ 'a'.translate({97: 'b' * 999999}) }}",
]
# Cheap as they are.
HARMLESS = [
    "{{ (BIG) | length }}",
    "{{ (WIDE) | upper | length }}",
    "{{ ('\\u0001' * 600000) | tojson | length }}",
    "{{ range(99999) | batch(1) | list | length }}",
    "{{ range(99999) | sum }}",
    "{{ ([0] * 199999) | sort | length }}",
    "{{ ([0] * 199999) | string | length }}",
    "{% set n = namespace(a='x' * 999999) %}{{ ([n] * 99999) | string | length }}",
    "{{ [1, {'a': [2, 'x']}] | tojson(indent=4) }}",
    "{{ '%Y' * 3 ~ strftime_now('%9999999999Y') | length }}",
]
ALL = [source.replace("BIG", BIG).replace("WIDE", WIDE) for source in [*REFUSED, *WRONG, *HARMLESS]]


@cache
def costs() -> list[dict[str, Any]]:
    """What each of them costs, in order."""
    script = Path(__file__).with_name("rendering_costs.py")
    done = subprocess.run(
        [sys.executable, str(script)], input=json.dumps(ALL), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(ALL)), ids=[source[:60] for source in ALL])
def test_much_is_never_made_of_little(number: int) -> None:
    cost = costs()[number]
    assert cost["mb"] < MOST_MB, cost
    assert "seconds" not in cost["outcome"], "a count ends it, the same on every machine"
    assert "MemoryError" not in cost["outcome"]
    if number < len(REFUSED):
        assert "LimitError" in cost["outcome"] or "RecursionError" in cost["outcome"], cost
    elif number < len(REFUSED) + len(WRONG):
        assert cost["outcome"].startswith("TextError"), cost
    else:
        assert not cost["outcome"]
