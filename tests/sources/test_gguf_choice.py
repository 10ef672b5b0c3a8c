"""Which GGUF file of a repository is meant: by names, and by what fits."""

import pytest

from monolane.errors import ModelNotFoundError
from monolane.sources import _gguf_choice as choice
from monolane.sources._gguf_choice import choose_gguf, gguf_sets, name_of
from monolane.sources._hub_id import HubId, parse_hub_id

GB = 10**9
FILES = {
    "README.md": 1,
    "m-Q4_K_M.gguf": 4 * GB,
    "m-Q8_0.gguf": 8 * GB,
    "m-IQ4_XS.gguf": 3 * GB,
    "m-UD-Q6_K_XL.gguf": 7 * GB,
    "F16/m-F16-00001-of-00002.gguf": 8 * GB,
    "F16/m-F16-00002-of-00002.gguf": 7 * GB,
    "BF16/m-BF16-00001-of-00003.gguf": 8 * GB,  # its others are missing
    "mmproj-m-F16.gguf": GB,
    "m.imatrix.gguf": GB,
}


def sets() -> list[choice.GgufSet]:
    return gguf_sets(FILES)


def named(name: str) -> str:
    wanted = parse_hub_id(name)
    assert wanted is not None
    return choose_gguf(sets(), wanted).first


@pytest.mark.parametrize(
    ("name", "repo", "tag", "file", "revision"),
    [
        ("o/r", "o/r", "", "", ""),
        ("o/r@v1/x", "o/r", "", "", "v1/x"),
        ("o/r.x-GGUF:Q4_K_M", "o/r.x-GGUF", "Q4_K_M", "", ""),
        ("o/r:latest", "o/r", "", "", ""),
        ("o/r:Q8_0@abc", "o/r", "Q8_0", "", "abc"),
        ("o/r/d/m.gguf", "o/r", "", "d/m.gguf", ""),
        ("hf.co/o/r:Q8_0", "o/r", "Q8_0", "", ""),
        ("https://huggingface.co/o/r", "o/r", "", "", ""),
        ("https://hf.co/o/r/resolve/v2/d/m.gguf?download=true", "o/r", "", "d/m.gguf", "v2"),
    ],
)
def test_names_of_the_hub(name: str, repo: str, tag: str, file: str, revision: str) -> None:
    assert parse_hub_id(name) == HubId(repo, revision, tag, file)


@pytest.mark.parametrize(
    "name", ["demo", "llama3.2:3b", "o/r/m.bin", "o/r/../../m.gguf", "/o/r", "o/r:", "o//r", ""]
)
def test_no_names_of_the_hub(name: str) -> None:
    assert parse_hub_id(name) is None


def test_parts_are_one_model_and_what_is_none_is_left_out() -> None:
    found = {x.first: (x.tag, x.size) for x in sets()}
    assert found == {
        "F16/m-F16-00001-of-00002.gguf": ("F16", 15 * GB),
        "m-Q8_0.gguf": ("Q8_0", 8 * GB),
        "m-UD-Q6_K_XL.gguf": ("UD-Q6_K_XL", 7 * GB),
        "m-Q4_K_M.gguf": ("Q4_K_M", 4 * GB),
        "m-IQ4_XS.gguf": ("IQ4_XS", 3 * GB),
    }


def test_a_tag_is_the_whole_type_or_the_end_of_the_name() -> None:
    assert named("o/r:q4_k_m") == "m-Q4_K_M.gguf"
    assert named("o/r:Q6_K_XL") == "m-UD-Q6_K_XL.gguf"
    assert named("o/r:F16") == "F16/m-F16-00001-of-00002.gguf"
    with pytest.raises(ModelNotFoundError, match="expected one of F16 .15.0 GB., Q8_0 .*got Q4_K;"):
        named("o/r:Q4_K")
    both = gguf_sets({"a-Q8_0.gguf": 1, "b-Q8_0.gguf": 1})
    with pytest.raises(ModelNotFoundError, match=r"got 2: a-Q8_0.gguf, b-Q8_0.gguf; name the file"):
        choose_gguf(both, HubId("o/r", tag="Q8_0"))
    assert name_of(both[0], both, "o/r") == "o/r/a-Q8_0.gguf"
    assert name_of(sets()[1], sets(), "o/r") == "o/r:Q8_0"


@pytest.mark.parametrize(
    ("free", "best"),
    [
        (100 * GB, "m-Q8_0.gguf"),  # and no floats
        (8.7 * GB, "m-UD-Q6_K_XL.gguf"),  # a tenth stays for the rest
        (7.6 * GB, "m-Q4_K_M.gguf"),
        (4.3 * GB, "m-IQ4_XS.gguf"),
    ],
)
def test_the_best_is_the_largest_that_fits(
    free: float, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "available_bytes", lambda: int(free))
    assert named("o/r") == best


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available_bytes", lambda: GB)
    with pytest.raises(ModelNotFoundError, match=r"free, 1.0 GB, .* name it: o/r:IQ4_XS"):
        named("o/r")
    floats = gguf_sets({"m-F32.gguf": 2, "m-BF16.gguf": 1})
    assert choose_gguf(floats, HubId("o/r")).first == "m-F32.gguf"
