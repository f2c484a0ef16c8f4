"""The examples of docs/schedules.md are what the passes give; run this file to print them anew."""

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


def test_symfold_is_that_of_figure_3():
    symfold = passes.symfold(3, 6)
    assert tuple(" ".join(str(i.micro) for i in device) for device in symfold.compute()) == FIGURE_3


def section() -> str:
    return "\n\n".join(f"{title}:\n\n{text}" for title, text in examples().items())


def test_the_page_shows_what_the_passes_give():
    assert section() in PAGE.read_text()


if __name__ == "__main__":
    print(section())
