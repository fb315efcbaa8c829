"""Does the picture show the steps that were recorded, where they were?"""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.engine.pictures import LEFT, Lane, Panel, colours_of, lanes_of, svg_of
from benchmarks.engine.rig.steps import Step


def _stage(offset_s: float, took_s: float, jobs: str) -> list[Step]:
    prompt = Step(offset_s, 0.5, 0.5, 18, 1, "a")
    steps = [
        Step(offset_s + 0.1 * (i + 1) + took_s, took_s, took_s, 4, 0, jobs[i % len(jobs)])
        for i in range(40)
    ]
    return [prompt, *steps]


def test_lanes_are_the_middle_of_a_run_and_hold_decode_steps_only() -> None:
    lanes = lanes_of([_stage(100.0, 0.05, "ab"), _stage(100.05, 0.025, "ab")])
    assert [lane.busy for lane in lanes] == pytest.approx([0.5, 0.25])
    for lane in lanes:
        assert all(not step.prompts for step in lane.steps)
        assert all(step.ended_s > 0 and step.began_s < 1 for step in lane.steps)
        assert len(lane.steps) in (10, 11)


def test_a_microbatch_has_one_colour_at_every_stage_and_neighbours_differ() -> None:
    lanes = lanes_of([_stage(0.0, 0.05, "abc"), _stage(0.05, 0.05, "abc")])
    assert sorted(colours_of(lanes)) == ["a", "b", "c"]
    assert len(set(colours_of(lanes).values())) == 3


def test_bars_are_drawn_to_scale_and_cut_at_the_edges() -> None:
    steps = [Step(0.25, 0.5, 0.5, 7, 0, "a"), Step(1.5, 0.75, 0.75, 9, 0, "b")]
    svg = svg_of([Panel("one & two", [Lane(steps, 0.5)])])
    root = ElementTree.fromstring(svg)
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "one & two" in texts and "stage 0, 50% busy" in texts and {"7", "9"} <= set(texts)
    bars = [
        (float(e.attrib["x"]), float(e.attrib["width"]))
        for e in root.iter("{http://www.w3.org/2000/svg}rect")
        if e.attrib.get("stroke") == "#fff"
    ]
    (first, width), (second, rest) = bars
    assert first == LEFT and width == pytest.approx(rest, abs=0.2)  # a quarter of a second each
    assert second - LEFT == pytest.approx(3 * width, abs=0.5)
