"""Sweeps and pictures."""

from dataclasses import replace
from pathlib import Path

import pytest

from monolane.errors import ConfigError, RequestError
from monolane.model import ModelConfig, parse_config
from monolane.sim import (
    SWEEPS,
    Scenario,
    draw_sweep,
    draw_timeline,
    find_machine,
    run_scenario,
    run_sweep,
    with_lanes,
)

TINY: ModelConfig = parse_config(
    {
        "model_type": "laneformer",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 2048,
        "max_position_embeddings": 1024,
        "num_lanes": 8,
        "broadcast_delay": 2,
        "torch_dtype": "bfloat16",
    }
)


def scenario(device: str = "8xcpu:1", **more: object) -> Scenario:
    return Scenario(model="tiny", config=TINY, machine=find_machine(device), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SWEEPS)
def test_every_axis(name: str) -> None:
    swept = run_sweep(scenario(reduce="after:2"), name)
    points = [point for line in swept.lines_by_rule.values() for point in line]
    assert len(points) >= 4
    assert all(p.low <= p.speed <= p.high for p in points)
    assert all(reason in "\n".join(swept.lines()) for reason in swept.left_out)
    assert swept.record()["axis"] == swept.label


def test_a_longer_link_slows_blocking_more_than_a_delay() -> None:
    lines = run_sweep(scenario(), "link").lines_by_rule
    assert tuple(lines) == ("now", "after:1", "after:2", "after:4")
    kept = {rule: line[-1].speed / line[0].speed for rule, line in lines.items()}
    assert kept["now"] < kept["after:1"] < kept["after:2"] < kept["after:4"]


def test_a_rule_that_was_asked_for_is_the_only_line() -> None:
    lines = run_sweep(scenario(reduce="after:3"), "link").lines_by_rule
    assert tuple(lines) == ("after:3",)


def test_a_model_of_one_lane_has_no_rules() -> None:
    swept = run_sweep(replace(scenario("cpu:2"), config=with_lanes(TINY, 1)), "context")
    assert tuple(swept.lines_by_rule) == ("",)
    assert [p.value for p in swept.lines_by_rule[""]] == [128, 256, 512, 1024]
    assert len(swept.left_out) == 2


def test_what_cannot_be_swept() -> None:
    with pytest.raises(RequestError, match="sweep: expected one of delay, lanes, link"):
        run_sweep(scenario(), "speed")
    with pytest.raises(ConfigError, match="nothing on"):
        run_sweep(replace(scenario(), config=with_lanes(TINY, 1)), "delay")


def test_pictures_say_what_they_are_worth_and_are_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = run_scenario(scenario("h200"))
    swept = run_sweep(scenario("h200", reduce="now"), "context")
    for i in range(2):
        draw_timeline(made, tmp_path / f"pass{i}.svg", "tiny")
        draw_sweep(swept, tmp_path / f"sweep{i}.svg")
    for name in ("pass", "sweep"):
        first, second = ((tmp_path / f"{name}{i}.svg").read_text() for i in range(2))
        assert first == second
        assert "predicted: nothing of this project has run" in first
