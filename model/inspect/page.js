/* The network of a plan (trace.py), and a text that it reads and continues. Nothing here knows the browser. */

/* run(ids) computes the outputs of the network: `lens`, logits, and `calls` (of each attention q, k, v, weights). */
function makeNetwork(plan, constants) {
  const makeBuffer = ([size, isFloat]) => isFloat ? new Float32Array(size) : new Float64Array(size);
  const buffers = plan.sizes.map((size) => size ? makeBuffer(size) : constants.shift());
  const revive = (x) => Array.isArray(x) ? x.map(revive) : x?.strides ? { ...x, data: buffers[x.buffer] } : x;
  const input = revive(plan.ids), T = input.shape[1], [lens, calls] = revive(plan.outputs);
  const steps = plan.ops.map(([name, out, values, row]) => [OPS[name], { ...revive(out), row }, revive(values)]);
  const writers = calls.map(([, , , weights]) => steps.findLastIndex(([, out]) => out.data === weights.data));
  return {
    T, lens, calls, blocks: plan.blocks,
    known: [], // the ids of the last run
    isWhole: false, // it computes all rows in each run
    off: [], // [attention, head] of each that is switched off

    /* How many ids are the same as in the last run, so that their rows need not be computed again. */
    same(ids) {
      const changed = ids.findIndex((id, t) => id !== this.known[t]);
      return this.isWhole ? 0 : changed < 0 ? ids.length : changed;
    },

    run(ids) {
      [from, to] = this.isWhole ? [0, T] : [this.same(ids), ids.length];
      this.known = [...ids];
      input.data.fill(0).set(ids);
      steps.forEach(([compute, out, values], i) => {
        compute(out, ...values);
        for (const [l, h] of this.off) if (writers[l] === i) copy({ ...part(calls[l][3], 1, h, h + 1), row: 2 }, 0);
      });
    },

    /* Switches these heads off: their weights are 0 for all that reads them. */
    setOff(off) {
      if (String(off) !== String(this.off)) this.known = [];
      this.off = off;
    },
  };
}

/* The vector of character t in a tensor of shape 1, T, C, or of head h of H in one of shape 1, H or fewer, T, D. */
function vectorOf(x, t, h = 0, H = 1, length = x.shape.at(-1)) {
  const [sh, st, sc] = x.strides.slice(-3), shared = x.shape.length < 4 ? 0 : Math.floor(h * x.shape[1] / H);
  const start = x.offset + shared * sh + t * st;
  return Array.from({ length }, (_, c) => x.data[start + c * sc]);
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

function softmax(xs) {
  const largest = Math.max(...xs), powers = xs.map((x) => Math.exp(x - largest)), sum = powers.length * mean(powers);
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
    ids: [], first: 0, shown: [], surprises: [], // in nats; 0 of the first one

    /* Computes a text. One longer than T is cut at the front, by half of T at once: what remains need not be computed
    anew for each character that is written. */
    read(ids) {
      const half = Math.ceil(net.T / 2), first = Math.ceil(Math.max(0, ids.length - net.T) / half) * half;
      Object.assign(this, { ids, first, shown: ids.slice(first) });
      const { shown, surprises } = this, start = net.same(shown);
      net.run(shown);
      surprises.length = start;
      for (let t = start; t < shown.length; t++) surprises[t] = t ? -Math.log(this.probabilities(t - 1)[shown[t]]) : 0;
    },

    /* Whether the network computes what it computed in PyTorch, for the texts of page.py. If it does not by rows, as
    where a later character changes an earlier row, it computes all of them in each run from now on. */
    check(probe) {
      return [false, true].some((isWhole) => {
        [net.isWhole, net.known] = [isWhole, []];
        return probe.every(([ids, expected]) => {
          this.read(ids);
          return expected.every((x, t) => Math.abs(this.surprises[t + 1] - (x ?? NaN)) < 1e-3);
        });
      });
    },

    /* Of the character after t; by the lens after part r of the network. */
    probabilities: (t, r = net.lens.length - 1) => softmax(vectorOf(net.lens[r], t)),

    /* How much character t looks at the characters 0 .. t, in attention l and its head h. */
    weights: (l, h, t) => vectorOf(net.calls[l][3], t, h, net.calls[l][3].shape[1], t + 1),

    /* The query of character t, and the key or value of character s, in head h of attention l. */
    part: (l, h, i, t) => vectorOf(net.calls[l][i], t, h, net.calls[l][3].shape[1]),

    /* Whether the weights of a head are softmax(Q Kᵀ / √d), in some rows. */
    isTextbook(l, h) {
      return [0.4, 0.7, 1].every((share) => {
        const t = Math.ceil(share * (net.known.length - 1)), w = this.weights(l, h, t), q = this.part(l, h, 0, t);
        const scores = w.map((x, s) => x ? dot(q, this.part(l, h, 1, s)) / Math.sqrt(q.length) : -Infinity);
        return softmax(scores).every((x, s) => Math.abs(x - w[s]) <= 1e-3 * Math.max(...w));
      });
    },

    /* The next id, chosen as sample.py does, with other random numbers. */
    next(temperature, seed) {
      const logits = vectorOf(net.lens.at(-1), this.shown.length - 1), likeliest = logits.indexOf(Math.max(...logits));
      const probs = softmax(logits.map((x) => x / (temperature || 1)));
      let rest = temperature > 0 ? uniform(seed, this.ids.length) : Infinity;
      const drawn = probs.findIndex((p) => (rest -= p) < 0);
      return drawn < 0 ? likeliest : drawn;
    },
  };
}
