#!/usr/bin/env bash
# Make the pictures of a default run, with Chromium:
#     python train.py --dtype float32 --out_dir runs/quill
#     bash docs/pictures.sh runs/quill
# The code that drew the other pictures is in tests/benchmarks at commit 4c6cec2.
set -euo pipefail
cd "$(dirname "$0")/.."
run=${1:?"usage: bash docs/pictures.sh RUN"}
page=$(mktemp -d)/page.html
port=6017

shoot() { # FILE WIDTH,HEIGHT URL
    # Without WebGL, TensorBoard draws its lines as SVG, so the screenshot shows them.
    chromium --headless --no-sandbox --disable-3d-apis --hide-scrollbars --window-size="$2" \
        --virtual-time-budget=20000 --screenshot="docs/$1" "$3"
    python -c "import sys; from PIL import Image as I; I.open(sys.argv[1]).convert('RGB').save(sys.argv[1], optimize=True)" "docs/$1"
}

python sample.py "$run" --prompt "ROMEO:" --attention "$page"
shoot attention.png 1280,900 "file://$page"

tensorboard --logdir "$run" --port $port &
trap 'kill $!; rm -r "$(dirname "$page")"' EXIT
sleep 20
kill -0 $! # fails if the port was taken
shoot tensorboard.png 1300,562 "http://localhost:$port/?smoothing=0"
# Keep only the chart.
python -c "from PIL import Image as I; p = 'docs/tensorboard.png'; I.open(p).crop((264, 256, 656, 562)).save(p, optimize=True)"
