"""How often sound texts are warned of: python -m tests.benchmarks.split --texts FILE ...

--slices N: so many random slices of each text, of 5,000 to 1,000,000 characters.
"""

from pathlib import Path

import numpy as np

from data.check import check_split
from data.tokenizer import code_points
from tests.benchmarks.peer import arguments


def main() -> None:
    args = arguments(texts=[], slices=40)
    print(f"{'text':>32} {'slices':>6} {'unlike':>6} {'sorted':>6} {'twice':>6} {'any':>6}")
    rng = np.random.default_rng(args.seeds[0])
    for path in map(Path, args.texts):
        text = path.read_text("utf-8")
        findings = []
        for _ in range(int(args.slices)):
            length = int(np.exp(rng.uniform(np.log(5_000), np.log(min(len(text), 10**6)))))
            start = rng.integers(len(text) - length + 1)
            codes_V, ids_N = np.unique(
                code_points(text[start : start + length]), return_inverse=True
            )
            findings.append(check_split(ids_N, int(length * 0.9), codes_V))
        counts = np.array(findings, dtype=bool)
        columns = [*counts.sum(0), counts.any(1).sum()]
        numbers = " ".join(f"{number:>6}" for number in columns)
        print(f"{path.name:>32} {len(counts):>6} {numbers}", flush=True)


if __name__ == "__main__":
    main()
