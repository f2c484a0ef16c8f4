"""The examples of docs/schedules.md are the paper's, and what the passes give; run this file to print them anew."""

import re
from pathlib import Path

from janus_jax.schedule import passes
from janus_jax.schedule.instructions import COMPUTE

PAGE = Path(__file__).parents[3] / "docs" / "schedules.md"


def rows(lists, *, transfers: bool = False) -> str:
    """One line a device; computations only, or transfers too."""
    lines = []
    for device, instructions in enumerate(lists):
        shown = [i for i in instructions if transfers or i.op in (*COMPUTE, "FW", "BW")]
        lines.append(f"    D{device}: " + " ".join(f"{i.op}{i.micro if i.micro >= 0 else ''}" for i in shown))
    return "\n".join(lines)


def examples() -> dict[str, str]:
    """Rendered result of every pass, P=3, N=6, k=6; the transfers of the first micro-batch where they matter."""
    first = passes.pass_0_first_order(3, 6)
    remapped = passes.pass_1_remap(first)
    folded = passes.pass_2_fold(remapped)
    symfold = passes.pass_3_prune(folded)
    (wave,) = passes.pass_4_decompose(symfold, 6)
    unit = passes.pass_5_overlap(wave)

    def of_zero(schedule):
        return rows([[i for i in d if i.micro == 0] for d in schedule.devices], transfers=True)

    return {
        "Pass 0, first-order list on 2P virtual stages": rows(first.devices),
        "Pass 1, second-order remapping": rows(remapped.devices),
        "Pass 2, symmetric folding (micro-batch 0, with transfers)": of_zero(folded),
        "Pass 3, communication pruning (micro-batch 0, with transfers)": of_zero(symfold),
        "SymFold": rows(symfold.devices),
        "Pass 4, WaveK decomposition: forward wave": rows(wave.forward),
        "Pass 4, WaveK decomposition: backward wave": rows(wave.backward),
        "Pass 5, intra-unit overlap": rows(unit),
        "Pass 6, unit composition (k=3, two units)": rows(passes.wavek(3, 6, 3).devices),
    }


FIGURE_3 = (
    "0 1 2 0 3 1 4 0 2 5 1 3 2 0 4 3 1 5 4 2 5 3 4 5",
    "0 1 0 2 1 3 2 4 0 3 5 1 0 4 2 1 5 3 2 4 3 5 4 5",
    "0 0 1 1 2 2 3 3 4 0 0 4 5 1 1 5 2 2 3 3 4 4 5 5",
)
"""Micro-batches of each device in the paper's final list."""

FIGURE_4 = {
    "forward wave": ("0 1 2 0 3 1 4 2 5 3 4 5", "0 1 0 2 1 3 2 4 3 5 4 5", "0 0 1 1 2 2 3 3 4 4 5 5"),
    "backward wave": ("0 1 2 0 3 1 4 2 5 3 4 5", "0 1 0 2 1 3 2 4 3 5 4 5", "0 0 1 1 2 2 3 3 4 4 5 5"),
    "intra-unit overlap": (
        "0 1 2 0 3 1 4 2 5 3 0 4 1 5 2 0 3 1 4 2 5 3 4 5",
        "0 1 0 2 1 3 2 4 3 5 4 0 5 1 0 2 1 3 2 4 3 5 4 5",
        "0 0 1 1 2 2 3 3 4 4 5 5 0 0 1 1 2 2 3 3 4 4 5 5",
    ),
}
"""The same of its passes 4 and 5."""

BY_HAND = {
    "micro-batch 0, pass 2": (
        "LM FE SAE RAF FF BF SGF RGE BE", "RAE FE SAE RAF FF SAF RGF BF SGF RGE BE SGE",
        "RAE FE SAE RAF FF SAF RGF BF SGF RGE BE SGE",
    ),
    "micro-batch 0, pass 3": (  # without what stays on the last device; FE there needs the graph too
        "LM FE SAE RAF FF BF SGF RGE BE", "RAE LM FE SAE RAF FF SAF RGF BF SGF RGE BE SGE",
        "RAE LM FE FF SAF RGF BF BE SGE",
    ),
    "unit composition": (  # k = 3: FE of the second unit and BE of the first take turns
        "FE0 FE1 FE2 FF0 BF0 FF1 BF1 FF2 BF2 BE0 FE3 BE1 FE4 BE2 FE5 FF3 BF3 FF4 BF4 FF5 BF5 BE3 BE4 BE5",
        "FE0 FE1 FF0 FE2 FF1 BF0 FF2 BF1 BE0 BF2 BE1 FE3 BE2 FE4 FF3 FE5 FF4 BF3 FF5 BF4 BE3 BF5 BE4 BE5",
        "FE0 FF0 FE1 FF1 FE2 FF2 BF0 BE0 BF1 BE1 BF2 BE2 FE3 FF3 FE4 FF4 FE5 FF5 BF3 BE3 BF4 BE4 BF5 BE5",
    ),
}  # fmt: skip
"""What the paper's figures show with other numbers, worked out for these."""


def test_symfold_is_that_of_figure_3():
    symfold = passes.symfold(3, 6)
    assert tuple(" ".join(str(i.micro) for i in device) for device in symfold.compute()) == FIGURE_3


def test_wavek_is_that_of_figure_4():
    schedule = passes.wavek(3, 6, 6)
    assert tuple(" ".join(str(i.micro) for i in d) for d in schedule.compute()) == FIGURE_4["intra-unit overlap"]
    ops = [" ".join(i.op for i in device) for device in schedule.compute()]
    assert ops[0] == "FE FE FE FF FE FF FE FF FE FF BF FF BF FF BF BE BF BE BF BE BF BE BE BE"
    assert ops[1] == "FE FE FF FE FF FE FF FE FF FE FF BF FF BF BE BF BE BF BE BF BE BF BE BE"
    assert ops[2] == " ".join(["FE FF"] * 6 + ["BF BE"] * 6)


def section() -> str:
    return "\n\n".join(f"{title}:\n\n{text}" for title, text in examples().items())


def page() -> dict[str, list[list[str]]]:
    """Words of each device by title, as the page has them."""
    found = re.findall(r"^(Pass .*|SymFold):\n\n((?:    D\d: .*\n)+)", PAGE.read_text(), re.MULTILINE)
    return {title: [line.split()[1:] for line in text.splitlines()] for title, text in found}


def test_the_page_shows_what_the_paper_does():
    """Against the paper's figures and lists worked out by hand; the passes do not speak for themselves."""
    shown = page()
    assert len(shown) == 9
    for title, devices in shown.items():
        ops, micro = ([["".join(filter(keep, w)) for w in d] for d in devices] for keep in (str.isalpha, str.isdigit))
        numbers = tuple(" ".join(device) for device in micro)
        if title == "SymFold":
            assert numbers == FIGURE_3
        for name, expected in FIGURE_4.items():
            if name in title:
                assert numbers == expected
        if "first-order list" in title or "remapping" in title:  # 1F1B: 2P - v ahead on virtual stage v
            for v, device in enumerate(devices):
                letter = "W" if "first-order" in title else "E" if v < 3 else "F"
                ahead = [device[: device.index(f"B{letter}{m}")].count(f"F{letter}{5}") for m in range(6)]
                assert ahead == [int(min(6, 6 - v + m) == 6) for m in range(6)]
                for kind in "FB":
                    assert [w for w in device if w[0] == kind] == [f"{kind}{letter}{m}" for m in range(6)]
                assert len(device) == 12
        for number in "23":
            if title.startswith(f"Pass {number}"):
                assert tuple(" ".join(device) for device in ops) == BY_HAND[f"micro-batch 0, pass {number}"]
        if "unit composition" in title:
            assert tuple(" ".join(device) for device in devices) == BY_HAND["unit composition"]
        if "wave" in title or title == "SymFold" or "overlap" in title:  # energy before force forward, force first back
            for device in devices:
                for phase in {word[:2] for word in device}:
                    assert [w for w in device if w[:2] == phase] == [f"{phase}{m}" for m in range(6)]
                for m in range(6):
                    order = [w[:2] for w in device if w[2:] == str(m)]
                    assert order == [op for op in ("FE", "FF", "BF", "BE") if op in order]


def test_the_passes_give_what_the_page_shows():
    assert section() in PAGE.read_text()


if __name__ == "__main__":
    print(section())
