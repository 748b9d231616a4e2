"""The figures of `vgpu bench accuracy --json`, compared with required ones: one line for each row, and FAILED before
those that miss. On a real GPU only: there, time is the GPU's own."""
import json
import sys

WINDOW, MEAN, PAIR, LONG, REACH_MS, SLOWER = 5.0, 1.0, 1.5, 2.0, 200, 1.0


def misses(row):
    """Why a row does not reach its numbers; nothing where it does."""
    name = row["workload"]
    if row.get("slower_percent") is not None:
        return [f"{row['slower_percent']:.2f}% slower"] if row["slower_percent"] > SLOWER else []
    pair, long = "two containers" in name, "50 ms" in name and "pause" not in name
    most = PAIR if pair else LONG if long else MEAN
    found = []
    if abs(row["mean"] - row["asked"]) > most:
        found.append(f"mean {row['mean']:.1f}")
    # Kernels of 50 ms are judged by their mean; pairs too.
    if not pair and not long and abs(row["worst_window"] - row["asked"]) > WINDOW:
        found.append(f"a window of {row['worst_window']:.1f}")
    if "changed" in name and row.get("reach_ms") is not None and row["reach_ms"] > REACH_MS:
        found.append(f"reached after {row['reach_ms']} ms")
    return found


def main(path):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    failed = 0
    for row in rows:
        found = misses(row)
        failed += bool(found)
        got = (
            f"mean {row['mean']:.1f}, worst window {row['worst_window']:.1f}, MAE {row['mae']:.1f}"
            if row.get("mean") is not None
            else f"{row['slower_percent']:.2f}% slower"
        )
        print(f"{'FAILED ' if found else ''}{row['workload']}, {row['asked']}%: {got}{''.join(' <- ' + text for text in found)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
