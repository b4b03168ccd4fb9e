"""Make the pictures of the documents from a run: python docs/pictures.py RUN_DIR

loss.svg from the run's curves; attention.png and tensorboard.png with Chromium. minute.svg comes
from `python -m tests.benchmarks.minute --nanogpt DIR --chart docs/minute.svg`.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from model.logger import read_losses  # noqa: E402
from tests.benchmarks.chart import draw_svg  # noqa: E402

PORT = "6017"


def screenshot(url: str, name: str, width: int, height: int) -> None:
    """Save what Chromium shows as docs/NAME."""
    # Without WebGL, TensorBoard draws its lines as SVG, which a screenshot does not miss.
    flags = ["--headless", "--no-sandbox", "--disable-3d-apis", "--hide-scrollbars"]
    flags += [f"--window-size={width},{height}", "--virtual-time-budget=20000"]
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium-browser"
    subprocess.run([chromium, *flags, f"--screenshot={DOCS / name}", url], check=True)


def main(run_dir: str) -> None:
    folders = {"training": Path(run_dir, "train"), "validation": Path(run_dir, "val")}
    curves = {name: read_losses(folder) for name, folder in folders.items()}
    (DOCS / "loss.svg").write_text(draw_svg(curves, "step"), "utf-8")

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        flags = ["--prompt", "ROMEO:", "--max_new_tokens", "250", "--attention", str(page)]
        subprocess.run([sys.executable, DOCS.parent / "sample.py", run_dir, *flags], check=True)
        screenshot(page.as_uri(), "attention.png", 1100, 1150)

    command = [sys.executable, "-m", "tensorboard.main", "--port", PORT, "--logdir", run_dir]
    with subprocess.Popen(command) as server:
        time.sleep(20)
        screenshot(f"http://localhost:{PORT}/?smoothing=0", "tensorboard.png", 1300, 700)
        server.kill()


if __name__ == "__main__":
    main(sys.argv[1])
