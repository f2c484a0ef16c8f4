"""Simulated schedules beside the JanusPipe paper's measured figures, with the phase times of its Table 5.

    python benchmarks/schedules.py

Table 5 does not split BF and BE. Figures of `split` are therefore shown twice: with BFt = FE and BEh = 0.55 BE, which
is an assumption, and with the shares measured on our phases (BFt 51 % of BF, BEh 50 % of BE). No uneven graphs, no
GARS. Speed-ups are over 1F1B-2nd, and shown twice: with free transfers that overlap, and with transfers of 0.1 FE that
block both ends as the paper's do. docs/schedules.md discusses the differences.
"""

import argparse
from collections.abc import Callable
from itertools import product

import numpy as np

from janus_jax.schedule import PAPER, PhaseTimes, lower_bound, make, paper, simulate

LAYOUTS = {"P=8 G2 D2": (8, 16), "P=4 G4 D2": (4, 16), "P=4 G2 D4": (4, 8)}
"""Stages and micro-batches (32 / D) of Figures 7 and 11."""

FIGURE_11 = {  # SymFold, SymFold + WaveK, in the order of LAYOUTS
    "UMA-1.2B": ((1.21, 1.37), (1.19, 1.33), (1.21, 1.38)),
    "UMA-2.3B": ((1.23, 1.41), (1.21, 1.39), (1.19, 1.32)),
}
FIGURE_7 = {  # JanusPipe k=P / k=best with GARS, of the three layouts as the labels stand in the text
    "UMA-1.2B": "1.50/1.57, 1.44/1.47, 1.33/1.40", "UMA-2.3B": "1.55/1.64, 1.38/1.45, 1.53/1.54",
    "eSEN-100M": "1.37/1.45, 1.54/1.55", "eSEN-220M": "1F1B-2nd and Hanayo-2nd out of memory",
}  # fmt: skip
FIGURE_12 = {4: 1.00, 5: 0.96, 6: 1.00, 7: 1.03, 8: 1.05, 9: 1.04, 10: 1.03}
"""Throughput by unit over that of unit 4 (UMA-1.2B, P=4, N=32); read off the figure's labels in order."""
SECTION_B5 = {6: 21.23, 12: 19.89}
"""Bubble in percent (UMA-1.2B, P=4, N=12)."""


SHARES: dict[str, Callable[[PhaseTimes], PhaseTimes]] = {
    "BFt = FE": PhaseTimes.bft_is_fe, "as measured": PhaseTimes.as_measured,
}  # fmt: skip
"""Of BFt in BF and of BEh in BE."""


def makespan(
    name: str, stages: int, micro: int, model: str, transfer: float = 0.0, shares: str = "BFt = FE", **option
) -> float:
    """With transfers of this length that block; 0: free and overlapped. Of BF and BE, `shares` if they are split."""
    times = SHARES[shares](paper(model))
    schedule = make(name, stages, micro, times=times, **option)
    return simulate(schedule, times, transfer, blocking=transfer > 0).makespan


def figures_7_and_11(transfer: float) -> None:
    how = f"blocking transfers of {transfer:g} FE" if transfer else "free transfers"
    print(f"Figures 7 and 11 with {how}: speed-up over 1F1B-2nd, simulated (published where the text gives it)")
    titles = f"{'Hanayo':>7} {'SymFold':>14} {'WaveK k=P':>10} {'WaveK best':>18}"
    titles += f" {'split cap 2P if BFt = FE, as measured':>38}"
    print(f"{'model':10} {'layout':10} {titles}")
    columns = []
    for model in PAPER:
        for number, (layout, (p, n)) in enumerate(LAYOUTS.items()):
            published = FIGURE_11[model][number] if model in FIGURE_11 else (None, None)
            base = makespan("1f1b_2nd", p, n, model, transfer)
            best = {k: makespan("wavek", p, n, model, transfer, unit=k) for k in range(p, n + 1)}
            k = min(best, key=lambda unit: best[unit])
            split = [makespan("split", p, n, model, transfer, shares, trials=200) for shares in SHARES]
            row = [base / makespan(name, p, n, model, transfer) for name in ("hanayo_2nd", "symfold")]
            row += [base / best[p], base / best[k], *(base / time for time in split)]
            columns.append(row)
            symfold, wavek = (f"({x:.2f})" if x else "" for x in published)
            print(
                f"{model:10} {layout:10} {row[0]:7.2f} {row[1]:7.2f} {symfold:>6} {row[2]:10.2f} "
                f"{row[3]:6.2f} {f'k={k}':>4} {wavek:>6} {row[4]:28.2f} {row[5]:10.2f}"
            )
    hanayo, symfold, default, best, ours, measured = np.mean(columns, 0)
    print(
        f"mean: Hanayo {hanayo:.2f}, SymFold {symfold:.2f}, WaveK {default:.2f} / {best:.2f}, "
        f"split {ours:.2f} if BFt = FE, {measured:.2f} as measured"
    )
    print("published means with GARS: 1.51 over 1F1B-2nd, 1.45 over Hanayo-2nd; Hanayo-2nd 1.01-1.07 over 1F1B-2nd")
    print("Figure 7's labels, k=P/k=best: " + "; ".join(f"{name}: {text}" for name, text in FIGURE_7.items()) + "\n")


def rounds() -> None:
    print("The same with blocking transfers of 0.1 FE and more micro-batches a stage (UMA-1.2B), simulated")
    for p in (4, 8):
        for n in (2 * p, 3 * p, 4 * p):
            base = makespan("1f1b_2nd", p, n, "UMA-1.2B", 0.1)
            row = {name: base / makespan(name, p, n, "UMA-1.2B", 0.1) for name in ("hanayo_2nd", "symfold")}
            print(f"P={p} N={n}: Hanayo {row['hanayo_2nd']:.2f}, SymFold {row['symfold']:.2f}")
    print("published: Hanayo 1.01-1.07, SymFold 1.19-1.23\n")


def figure_12() -> None:
    print("Figure 12: throughput over that of k=4 (UMA-1.2B, P=4, N=32), simulated (published)")
    base = makespan("wavek", 4, 32, "UMA-1.2B", unit=4)
    rates = {k: base / makespan("wavek", 4, 32, "UMA-1.2B", unit=k) for k in FIGURE_12}
    print("  ".join(f"k={k} {rates[k]:.2f} ({published:.2f})" for k, published in FIGURE_12.items()))


def section_b5() -> None:
    print("\nSection B.5: bubble in percent (UMA-1.2B, P=4, N=12), simulated (published)")
    times = paper("UMA-1.2B")
    for k, published in SECTION_B5.items():
        print(f"WaveK k={k}: {100 * simulate(make('wavek', 4, 12, unit=k), times).bubble:.1f} ({published:.1f})")
    for cap in (4, 8):
        for shares, of in SHARES.items():
            timeline = simulate(make("split", 4, 12, cap=cap, times=of(times), trials=200), of(times))
            print(f"split cap {cap}, {shares}: {100 * timeline.bubble:.1f}")


def scaling() -> None:
    print("\nFigure 16, strong scaling of WaveK k=P (UMA-2.3B, 32 micro-batches in all), over 8 devices")
    base = None
    for devices, (p, n) in {8: (4, 32), 16: (4, 16), 32: (8, 16)}.items():
        time = makespan("wavek", p, n, "UMA-2.3B", 0.1, unit=p)
        rate = p / time  # twice the stages: half the work each
        base = base or rate
        over = makespan("1f1b_2nd", p, n, "UMA-2.3B", 0.1) / time
        print(f"{devices} devices: {rate / base:.2f} of ideal {devices / 8:.0f}, {over:.2f} times 1F1B-2nd")
    print("published: efficiency 70 % at 32 devices (graph parallelism included), 1.52, 1.36 and 1.50 times 1F1B-2nd")


def bounds() -> None:
    print("\nsplit: bubble in percent, and that of the lower bound on any schedule of the six phases")
    for model in PAPER:
        for (shares, of), (p, n) in product(SHARES.items(), ((4, 12), (8, 32))):
            row, times = [], of(paper(model))
            for cap in (p, 2 * p):
                found = simulate(make("split", p, n, cap=cap, times=times), times)
                least = times.total(p, n) / p / lower_bound(p, n, times, cap)
                row.append(f"cap {cap:2d}: {100 * found.bubble:4.1f} (at least {100 * (1 - least):3.1f})")
            print(f"{model:10} {shares:11} P={p} N={n}  " + "   ".join(row))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    figures_7_and_11(0.0)
    figures_7_and_11(0.1)
    rounds()
    figure_12()
    section_b5()
    scaling()
    bounds()
