/* The network of a plan (trace.py), and a text that it reads and continues. Nothing here knows the browser. */

/* run(ids) computes the outputs of the network: `stream`, `lens` and `calls` (of each attention q, k, v, weights). */
function makeNetwork(plan, constants) {
  const buffers = plan.sizes.map((size) => size === null ? constants.shift() : new Float32Array(size));
  const revive = (x) => Array.isArray(x) ? x.map(revive) : x?.strides ? { ...x, data: buffers[x.buffer] } : x;
  const input = revive(plan.ids), steps = revive(plan.ops), { stream, lens, calls } = plan.outputs;
  T = input.shape[1];
  return {
    T, stream: revive(stream), lens: revive(lens), calls: revive(calls), blocks: plan.blocks,
    known: [], // the ids of the last run
    rows: plan.isPure ? 8 : T, // that are computed at once

    /* How many ids are the same as in the last run, so that their rows need not be computed again. If the network
    changes a tensor in place, all are. */
    same(ids) {
      const changed = plan.isPure ? ids.findIndex((id, t) => id !== this.known[t]) : 0;
      return changed < 0 ? ids.length : changed;
    },

    run(ids) {
      [from, to] = [this.same(ids), ids.length];
      this.known = [...ids];
      input.data.fill(0).set(ids);
      for (const [name, out, values] of steps) OPS[name](out, ...values);
    },

    /* How far the logits of the last character are from those that PyTorch computed, as a share of the largest. */
    error(expected) {
      const logits = vectorOf(this.lens.at(-1), this.known.length - 1), largest = Math.max(...expected.map(Math.abs));
      return Math.max(...expected.map((x, i) => Math.abs(x - logits[i]))) / largest;
    },
  };
}

/* The vector of character t in a tensor of shape 1, T, C, or of head h in one of shape 1, H, T, D. */
function vectorOf(x, t, h = 0, length = x.shape.at(-1)) {
  const [sh, st, sc] = x.strides.slice(-3), isOne = x.shape.length < 4 || x.shape[1] === 1; // for all heads
  const start = x.offset + (isOne ? 0 : h * sh) + t * st;
  return Array.from({ length }, (_, c) => x.data[start + c * sc]);
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));

function softmax(xs) {
  const largest = Math.max(...xs), powers = xs.map((x) => Math.exp(x - largest)), sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((x) => x / sum);
}

/* A number in [0, 1) that depends on the seed and the position only: stopping changes nothing. */
function uniform(seed, position) {
  let x = Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(position + 1, 0x85ebca6b);
  for (const factor of [0x7feb352d, 0x846ca68b]) x = Math.imul(x ^ x >>> 16, factor);
  return ((x ^ x >>> 16) >>> 0) / 2 ** 32;
}

/* The text: all `ids`, of which the network reads those from `first` on, `shown`. */
function makeText(net) {
  return {
    ids: [], first: 0, shown: [], surprises: [], // in nats; none of the first one

    /* One longer than T is cut at the front, by half of T at once: what remains need not be computed anew for each
    character that is written. (page.py cuts it likewise.) */
    set(ids) {
      const step = Math.ceil(net.T / 2);
      this.ids = ids;
      this.first = Math.ceil(Math.max(0, ids.length - net.T) / step) * step;
      this.shown = ids.slice(this.first);
    },

    /* Computes some more characters; returns whether all are computed. */
    step() {
      const { shown } = this, start = net.same(shown), end = Math.min(start + net.rows, shown.length);
      net.run(shown.slice(0, end));
      this.surprises.length = start;
      for (let t = start; t < end; t++) this.surprises[t] = t ? -Math.log(this.probabilities(t - 1)[shown[t]]) : null;
      return end === shown.length;
    },

    /* Of the character after t; by the lens after part r of the network. */
    probabilities: (t, r = net.lens.length - 1) => softmax(vectorOf(net.lens[r], t)),

    /* How much character t looks at the characters 0 .. t, in attention l and its head h. */
    weights: (l, h, t) => vectorOf(net.calls[l][3], t, h, t + 1),

    /* The next id, chosen as sample.py does, with other random numbers. */
    next(temperature, seed) {
      const logits = vectorOf(net.lens.at(-1), this.shown.length - 1), likeliest = logits.indexOf(Math.max(...logits));
      const probs = softmax(logits.map((x) => x / (temperature || 1)));
      let rest = temperature > 0 ? uniform(seed, this.ids.length) : Infinity;
      const drawn = probs.findIndex((p) => (rest -= p) < 0);
      return drawn < 0 ? likeliest : drawn;
    },

    /* Where else the character of t stands: of the places whose last vectors are the most and the least similar,
    [place, similarity at each part of the network]. */
    twins(t) {
      const similarity = (x, other) => cosine(vectorOf(x, t), vectorOf(x, other)), last = net.stream.at(-1);
      const others = this.shown.flatMap((id, s) => id === this.shown[t] && s !== t ? [[s, similarity(last, s)]] : []);
      others.sort((a, b) => b[1] - a[1]);
      const ends = [...new Set([others[0], others.at(-1)])].filter(Boolean);
      return ends.map(([s]) => [s, ...net.stream.map((x) => similarity(x, s))]);
    },
  };
}
