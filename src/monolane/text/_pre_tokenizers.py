"""How byte-level vocabularies cut a text before they merge: the names that GGUF files use.

A name stands for regular expressions, each applied to what the one before it cut; what none
matches stays a piece too. They are the published tokenizers' own, as ``llm_tokenizer_bpe`` of
llama.cpp lists them (src/llama-vocab.cpp, in llama-cpp-python 0.3.36). Names that are not here
belong to architectures that no executor computes, or need more than expressions.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut; the flags are what llama.cpp takes for granted with it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is that token, whatever merges give
    add_bos: bool = False  # unless the file says otherwise


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # what follows an apostrophe
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_QWEN2 = rf"{_SHORT}|{_WORD}|\p{{N}}|{_OTHER}|{_ENDS}"
_LLAMA3 = rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_ENDS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
# Chinese characters are words of their own, and no part of others.
_NO_HAN = (r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
_KIMI = (
    rf"\p{{Han}}+|{_CASED[0].replace(*_NO_HAN)}{_SHORT}?|{_CASED[1].replace(*_NO_HAN)}{_SHORT}?"
    rf"|\p{{N}}{{1,3}}|{_OTHER}|{_ENDS}"
)
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASHED}|{_ENDS}"
_GPT4O = rf"{_CASED[0]}{_SHORT}?|{_CASED[1]}{_SHORT}?|\p{{N}}{{1,3}}|{_SLASHED}|{_ENDS}"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
# Letters that have a case, as of the Unicode version of that vocabulary.
_DEEPSEEK_LETTERS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽ"
    r"ᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-"
    r"Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"
    r"ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)

_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_PLAIN = PreTokenizer((_GPT2,))
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_BY_LLAMA3 = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_BY_QWEN2 = PreTokenizer((_QWEN2,))
_ROWS = (
    (_DEFAULT, "default"),
    (_PLAIN, "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling"),
    (_DIGITS, "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"),
    (_BY_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer((_LLAMA3,), ignore_merges=True), "glm4 glm5"),
    (
        PreTokenizer(
            (rf"{_SHORT}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_ENDS}",),
        ),
        "seed-coder",
    ),
    (
        PreTokenizer(
            (
                (
                    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
                    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
                ),
            )
        ),
        "exaone-moe",
    ),
    (_BY_QWEN2, "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2"),
    (
        PreTokenizer(
            (
                (
                    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}"
                ),
            )
        ),
        "qwen35",
    ),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2 minimax-m2"),
    (PreTokenizer((_KIMI,)), "kimi-k2"),
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
        "falcon",
    ),
    (
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                r"\s+$",
                _CJK,
                r"\p{N}+",
            )
        ),
        "deepseek-llm",
    ),
    (
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
        "deepseek-coder",
    ),
    (PreTokenizer(_DEEPSEEK3), "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenizer((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
)
PRE_TOKENIZERS = {name: row for row, names in _ROWS for name in names.split()}
