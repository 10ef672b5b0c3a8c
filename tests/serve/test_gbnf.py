"""GBNF in Lark takes the same texts as GBNF: held against a plain matcher of the rules."""

import random
from collections.abc import Iterator, Mapping

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.serve._grammar.compiler import MAX_GBNF
from monolane.serve._grammar.gbnf import Chars, Choice, Name, Node, Row, read_gbnf
from monolane.serve._grammar.gbnf_lark import lark_of

BYTES = llguidance.LLTokenizer("byte")  # a token for each byte

SUMS = r"""
root  ::= (sum "=" ws value "\n")+    # an equation a line
sum   ::= value ([-+*/] value)*
value ::= name | num | "(" ws sum ")" ws
name  ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
_VALUES = r"""
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
JSON = "root ::= object" + _VALUES
JSON_LIST = r'root ::= "[\n" ws (value (",\n" ws value)*)? "]"' + _VALUES
LIST = r"""
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
CHESS = r"""
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | piece | castle) [+#]?
piece  ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
PROGRAM = r"""
root      ::= function*
function  ::= type name "(" (type name)? ")" "{" statement* "}"
type      ::= ("int" | "float") ws
name      ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::=
    ( type name ws "=" ws sum ";" ) |
    ( name ws "=" ws sum ";" ) |
    ( "return" ws sum ";" ) |
    ( "while" "(" test ")" "{" statement* "}" ) |
    ( "if" "(" test ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
    ( "//" [^\n]* "\n" ) |
    ( "/*" ( [^*] | ("*" [^/]) )* "*/" )
test      ::= sum ("<=" | "<" | "==") sum
sum       ::= factor (("+" | "-") factor)*
factor    ::= name | [0-9]+ | "-" factor | name "(" (sum ("," ws sum)*)? ")" | "(" ws sum ws ")"
ws        ::= ([ \t\n]+)
"""
GRAMMARS = {
    "sums": SUMS,
    "json": JSON,
    "json list": JSON_LIST,
    "list": LIST,
    "chess": CHESS,
    "program": PROGRAM,
}


def takes(rules: Mapping[str, Node], text: str) -> bool:
    """Tell whether a text follows the rules: by trying all places where a part may end."""
    known: dict[tuple[str, int], set[int]] = {}

    def ends(node: Node, begins: set[int]) -> set[int]:
        if isinstance(node, Chars):
            here = {i for i in begins if i < len(text)}
            return {i + 1 for i in here if any(a <= ord(text[i]) <= b for a, b in node.ranges)}
        if isinstance(node, Row):
            for part in node.parts:
                begins = ends(part, begins)
            return begins
        if isinstance(node, Choice):
            return set().union(*(ends(part, begins) for part in node.parts))
        if isinstance(node, Name):
            return set().union(*(known.setdefault((node.name, i), set()) for i in begins))
        for _ in range(node.least):
            begins = ends(node.part, begins)
        found, more = begins, node.most is None or node.most - node.least
        while begins and more:  # from each place once
            begins = ends(node.part, begins) - found
            found, more = found | begins, more is True or more - 1
        return found

    known["root", 0] = set()
    before, now = 0, 1
    while before < now:  # until no rule begins or ends at a place more
        before = now
        for name, begin in reversed(list(known)):
            known[name, begin] |= ends(rules[name], {begin})
        now = sum(1 + len(places) for places in known.values())
    return len(text) in known["root", 0]


def matcher(gbnf: str) -> llguidance.LLMatcher:
    lark = llguidance.LLMatcher.grammar_from_lark(lark_of(gbnf))
    return llguidance.LLMatcher(BYTES, lark, log_level=0)


def follows(fresh: llguidance.LLMatcher, text: str) -> bool:
    walk = fresh.deep_copy()
    wanted = list(text.encode())
    return walk.try_consume_tokens(wanted) == len(wanted) and walk.is_accepting()


def drawn(rules: Mapping[str, Node], draw: random.Random) -> str:
    """A text of the rules, by drawing; the deeper, the shorter."""

    def text(node: Node, depth: int) -> str:
        if depth > 30:
            raise RecursionError
        if isinstance(node, Chars):
            low, high = draw.choice(node.ranges)
            return chr(draw.randint(low, min(high, low + 40)))
        if isinstance(node, Name):
            return text(rules[node.name], depth + 1)
        if isinstance(node, Row):
            return "".join(text(part, depth) for part in node.parts)
        if isinstance(node, Choice):
            return text(draw.choice(node.parts), depth)
        more = 0 if depth > 8 else draw.randint(0, 2)
        most = node.least + more if node.most is None else min(node.most, node.least + more)
        return "".join(text(node.part, depth) for _ in range(most))

    while True:
        try:
            return text(rules["root"], 0)
        except RecursionError:
            continue


def changed(text: str, draw: random.Random) -> str:
    """The text with a character less, more, or another one."""
    at = draw.randrange(len(text) + 1)
    rest = at + draw.randint(0, 1)
    more = draw.choice(["", draw.choice(text or "x"), draw.choice('a0 \n"*/é')])
    return text[:at] + more + text[rest:]


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_same_texts_follow_both(name: str) -> None:
    rules, fresh = read_gbnf(GRAMMARS[name]), matcher(GRAMMARS[name])
    draw, refused = random.Random(name), 0
    for _ in range(40):
        text = drawn(rules, draw)
        if len(text) > 60:
            continue
        assert follows(fresh, text), text
        for _ in range(3):
            other = changed(text, draw)
            met = takes(rules, other)
            assert follows(fresh, other) == met, other
            refused += not met
    assert refused > 10


def test_a_rule_leaves_what_the_next_one_needs() -> None:
    fresh = matcher(SUMS)
    for text in ("a=3\n", "a = 3\n\n", "a =3\n \n\nb=1\n", "(a )+3 *b_1= \n3\nb=1\n"):
        assert follows(fresh, text)
    for text in ("a=3", "a=3\n ", "a=\n"):
        assert not follows(fresh, text)


def test_lexemes_are_as_large_as_they_may_be() -> None:
    """A string is one: a mask within it reads the vocabulary, and parses nothing."""
    strings = [line for line in lark_of(JSON).splitlines() if "u[0-9a-fA-F]" in line]
    assert len(strings) == 1
    assert strings[0].startswith("T")
    assert lark_of(LIST).count("\n") == 1  # without recursion the whole is one
    assert "/[0-9]+/" in lark_of(SUMS)  # digits are, blanks are not: a line has to end in one
    assert r"/[\x{20}\x{9}\x{a}]/" in lark_of(SUMS)


chars = st.sampled_from(["a", "b", "é", "è"])  # two of them begin with the same byte
classes = st.lists(chars, min_size=1, max_size=2).map(lambda some: f"[{''.join(some)}]")
parts = st.recursive(
    st.one_of(
        st.lists(chars, max_size=2).map(lambda some: f'"{"".join(some)}"'),
        classes,
        classes.map("[^".__add__).map(lambda text: text.replace("[^[", "[^")),
        st.sampled_from(["root", "x", "y"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"({' | '.join(some)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0}", "{0,2}", "{2,}"])).map(
            lambda both: f"({both[0]}){both[1]}"
        ),
    ),
    max_leaves=6,
)


def all_texts(most: int) -> Iterator[str]:
    level = [""]
    for _ in range(most + 1):
        yield from level
        level = [text + char for text in level for char in "abéè"]


TEXTS = list(all_texts(4))[::3]  # which ends in each character as often


@settings(max_examples=100, deadline=None)
@given(root=parts, x=parts, y=parts)
def test_small_grammars_of_any_kind(root: str, x: str, y: str) -> None:
    gbnf = f"root ::= {root}\nx ::= {x}\ny ::= {y}"
    rules, fresh = read_gbnf(gbnf), matcher(gbnf)
    met = {text for text in TEXTS if takes(rules, text)}
    if fresh.is_error():
        assert not met, fresh.get_error()
        return
    for text in TEXTS:
        assert follows(fresh, text) == (text in met), text


@pytest.mark.parametrize(
    ("gbnf", "texts", "others"),
    [
        ('root ::= ("a"{2}){2}', ["aaaa"], ["aa", "aaa", "aaaaa"]),
        ('root ::= "a"{2}{2}', ["aaaa"], ["aa"]),
        ('root ::= "a"{0} "b"', ["b"], ["ab", "a"]),
        ('root ::= "a"{0,0}', [""], ["a"]),
        ('root ::= "" ""*', [""], ["a"]),
        ('root ::= start\nstart ::= "a" | "(" start ")"', ["a", "((a))"], ["", "(a"]),
        ('root ::= x-y x_y xY\nx-y ::= "a"\nx_y ::= "b"\nxY ::= "c"', ["abc"], ["aaa"]),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
        ('root ::=\n  "a" |\n  "b" # one\n\n# two\n', ["a", "b"], [" "]),
        ('root ::= (\n"a"\n  | "b"\r\n)+\r\n', ["abba"], [""]),
        ("root ::= . .", ["\n\0", "é😀"], ["a", "abc"]),
        (r"root ::= [-+] [a-] [\-\]/\[] [^^]", ["+-]x", "-a/\n"], ["+b/x", "-a/^"]),
        (r'root ::= "/\\\"\t\x41\u00e9\U0001F600" ".*"', ['/\\"\tAé😀.*'], ['/\\"\tAé😀xx']),
        (r"root ::= [^\u0000-\uD7FF\uE000-\U0010FFFE]", ["\U0010ffff"], ["\U0010fffe", "\ue000"]),
        ('root ::= "a" root "b" |', ["", "aabb"], ["ab b", "aab"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["", "ab"]),
        ('root ::= "(" root ")" | [0-9è]+ "é"', ["(1é)", "è0é"], ["é"]),
        ('root ::= x{2,3}\nx ::= "a" | "(" root ")"', ["aaa", "a(aa)"], ["a", "aaaa", "(a)a"]),
    ],
)
def test_spellings(gbnf: str, texts: list[str], others: list[str]) -> None:
    rules, fresh = read_gbnf(gbnf), matcher(gbnf)
    for text in (*texts, *others):
        assert follows(fresh, text) == takes(rules, text) == (text in texts), text


@pytest.mark.parametrize(
    ("gbnf", "message"),
    [
        ("root ::= (", r"Expected '\)' in line 1, got 'the end'"),
        ("\nroot ::= nowhere", "Expected a rule named 'nowhere', got none"),
        ('start ::= "a"', "Expected a rule named 'root', got none"),
        ('root "a"', "Expected '::=' in line 1"),
        ('root ::= "a" )', "Expected a line break or the end behind a rule in line 1, got '\\)'"),
        ('root ::= "a', "Expected a quote or bracket that closes"),
        ("root ::= [a", "Expected a quote or bracket that closes"),
        ("root ::= []", "Expected a character in a class"),
        (r"root ::= [^\x00-\U0010FFFF]", "Expected a character in a class"),
        ("root ::= [b-a]", "Expected a range from a lower to a higher character"),
        (r'root ::= "\q"', "Expected one of .*xHH"),
        (r'root ::= "\ud800"', "Expected the number of a character"),
        (r'root ::= "\U00110000"', "Expected the number of a character"),
        ("root ::= * ", "Expected something to repeat"),
        ('root ::= "a"{x}', r"Expected counts like \{2\}, \{2,\} or \{2,3\} in line 1, got"),
        ('root ::= "a"{3,2}', "Expected the lower count first"),
        ("root ::= <think>", "tokens are not supported"),
        ("root ::= !<[5]>", "tokens are not supported"),
        ("root ::= " + "(" * 5000, "Expected at most 50 nested parentheses"),
        ("-::=", "Expected a rule named 'root', got none"),
        ('root ::= ("a"{1001} "b"?){1001}', "at most 1000000 characters .* got more in 'root'"),
        (
            'root ::= r0\nr40 ::= "a"\n'
            + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)),
            "at most 1000000 characters with what they repeat written out, got more in 'r20'",
        ),
    ],
)
def test_what_is_no_grammar_is_named(gbnf: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lark_of(gbnf)


def filled(part: str, begin: str = "root ::= ") -> str:
    return begin + part * ((MAX_GBNF - len(begin)) // len(part) - 1)


LARGE = {
    "a literal": 'root ::= "' + "a" * 16_000 + '"',
    "choices": filled('"ab" | ', 'root ::= "(" root ")" | ') + '"c"',
    "blanks": filled("[ab]* ", 'root ::= "(" root ")" | ') + '"c"',
    "classes": 'root ::= "(" root ")" | '
    + " ".join(f"[{chr(300 + i)}-\u4000]*" for i in range(1000)),
    "chain": "root ::= r0\nr900 ::= root?\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(900)),
    "chain of texts": 'root ::= r0 root?\nr900 ::= "a"\n'
    + "\n".join(f"r{i} ::= r{i + 1}" for i in range(900)),
    "chain in a text": 'root ::= "b" r0 root?\nr900 ::= "a"\n'
    + "\n".join(f"r{i} ::= r{i + 1}" for i in range(900)),
    "ring": "root ::= r0\n"
    + "\n".join(f'r{i} ::= "{i}" r{(i * 7 + 1) % 500} | "x"' for i in range(500)),
    "counts": 'root ::= (("a"{1,900} "b"){1,900} root){1,900}',
    "nested": "root ::= " + "(" * 49 + '"b" | "a" root? ' + ")* 'c'".replace("'", '"') * 49,
}


@pytest.mark.parametrize("name", LARGE)
def test_the_time_to_translate_is_bounded(name: str) -> None:
    gbnf = LARGE[name]
    assert len(gbnf) <= MAX_GBNF
    assert lark_of(gbnf).startswith("start: ")  # without a bound, some take hours
