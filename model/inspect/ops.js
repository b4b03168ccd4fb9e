/* Repeats the operations of a network that trace.py recorded. Knows PyTorch's operations, no network.

A tensor is { data, offset, shape, strides }: a view of a buffer, as in PyTorch. All have the shapes of a text of T
characters. Only a part of each is computed: the first dimension of size T is the character, and its rows from .. to - 1
are missing; of every other dimension of size T, columns .. to - 1 exist. (The rows before `from` are as in the last run, and
row t does not need the rows after it, since the network is causal; `check` tests whether that is true.) */
let T, from, to;

const extent = (size) => size === T ? to : size;
const wrap = (x, dim) => dim < 0 ? dim + x.shape.length : dim;
const scalar = (x) => ({ data: [Number(x)], offset: 0, shape: [], strides: [] });

/* Calls visit(offsets, steps, count) for each line along the last dimension: where it begins in out and in each input,
how far its elements lie apart, and how many are to be computed. Inputs are broadcast. An output whose stride is 0 in a
dimension collects all of it. */
function lines(out, inputs, visit) {
  const shape = out.shape.length ? out.shape : [1], last = shape.length - 1;
  const row = shape.findIndex((size, d) => size === T && out.strides[d]), start = (d) => d === row ? from : 0;
  const strides = [out, ...inputs].map((x) => shape.map((_, d) => {
    const own = d - shape.length + x.shape.length;
    return own < 0 || (x.shape[own] === 1 && x !== out) ? 0 : x.strides[own];
  }));
  const steps = strides.map((of) => of[last]), count = extent(shape[last]) - start(last);
  const walk = (d, at) => {
    if (d === last) return visit(at.map((offset, i) => offset + start(d) * steps[i]), steps, count);
    for (let i = start(d); i < extent(shape[d]); i++) walk(d + 1, at.map((offset, j) => offset + i * strides[j][d]));
  };
  walk(0, [out, ...inputs].map((x) => x.offset));
}

/* out = f(a, b, c, out) for each element; a, b and c are tensors or numbers. */
function pointwise(out, f, ...inputs) {
  const all = [0, 1, 2].map((i) => typeof inputs[i] === "object" ? inputs[i] : scalar(inputs[i] ?? 0));
  const O = out.data, [A, B, C] = all.map((x) => x.data);
  lines(out, all, ([o, a, b, c], [so, sa, sb, sc], count) => {
    for (let i = 0; i < count; i++, o += so, a += sa, b += sb, c += sc) O[o] = f(A[a], B[b], C[c], O[o]);
  });
}

const copy = (out, x) => pointwise(out, (a) => a, x);

/* Copies x into out, where its first element lies at `starts`; what would lie outside is left out. */
function place(out, x, starts) {
  const row = out.shape.indexOf(T), inside = { ...out, shape: [] }, source = { ...x, shape: [] };
  starts.forEach((start, d) => {
    const low = Math.max(0, start, d === row ? from : 0), size = Math.min(start + x.shape[d], extent(out.shape[d])) - low;
    inside.offset += low * out.strides[d];
    source.offset += (low - start) * x.strides[d];
    inside.shape[d] = source.shape[d] = size;
  });
  const before = from;
  from = 0; // whole: `low` has left out the rows before
  copy(inside, source);
  from = before;
}

/* Where a part of out lies that begins at `start` along a dimension. */
const placeAlong = (out, dim, start) => out.shape.map((_, d) => d === wrap(out, dim) ? start : 0);

/* Calls visit(offset in out, offset in x, length, step in out, step in x) for each line along a dimension. */
function along(out, x, dim, visit) {
  const others = (list) => list.filter((_, d) => d !== wrap(x, dim)), size = x.shape.at(dim);
  const [o, i] = [out, x].map((y) => ({ ...y, shape: [...others(y.shape), size], strides: [...others(y.strides), 0] }));
  lines(o, [i], ([a, b]) => visit(a, b, extent(size), out.strides.at(dim), x.strides.at(dim)));
}

/* out = f(x, out, other) over the dimensions `dims`, which out lacks, or has with size 1; `other` is like out. Returns
how many elements of x there are for each of out. */
function reduce(out, x, dims, keepsDims, start, f, other = out) {
  const all = x.shape.map((_, d) => d), gone = dims?.length ? dims.map((d) => wrap(x, d)) : all;
  const rest = all.filter((d) => !gone.includes(d)), strides = all.map(() => 0);
  for (const d of rest) strides[d] = out.strides[keepsDims ? d : rest.indexOf(d)];
  copy(out, start);
  pointwise({ ...out, shape: x.shape, strides }, (a, b, c, sum) => f(a, sum, b), x, { ...other, shape: x.shape, strides });
  return gone.reduce((count, d) => count * x.shape[d], 1);
}

/* A matrix whose lines lie in one piece. */
function packed(x, rows, columns) {
  if (x.strides[1] === 1) return x;
  const data = new Float32Array(rows * columns), [sr, sc] = x.strides;
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) data[r * columns + c] = x.data[x.offset + r * sr + c * sc];
  return { data, offset: 0, strides: [columns, 1] };
}

const transposed = (x) => ({ ...x, shape: [...x.shape].reverse(), strides: [...x.strides].reverse() });

/* The product of two matrices, four rows by two columns at a time: eight sums fit into the registers. */
function multiply(out, a, b) {
  const [M, N] = out.shape.map(extent), K = extent(a.shape[1]), C = out.data, [sm, sn] = out.strides;
  const isRow = out.shape[0] === T, top = isRow ? from : 0, left = !isRow && out.shape[1] === T ? from : 0;
  if (M - top < 3 && N - left > 3 && out.shape[1] !== T) return multiply(...[out, b, a].map(transposed)); // one new row
  const x = packed(a, M, K), y = packed(transposed(b), N, K);
  const A = x.data, B = y.data;
  for (let m = top; m < M; m += 4) {
    const [m1, m2, m3] = [1, 2, 3].map((i) => Math.min(m + i, M - 1)); // at the edge, some are computed again
    const a0 = x.offset + m * x.strides[0], a1 = x.offset + m1 * x.strides[0];
    const a2 = x.offset + m2 * x.strides[0], a3 = x.offset + m3 * x.strides[0];
    for (let n = left; n < N; n += 2) {
      const n1 = Math.min(n + 1, N - 1), b0 = y.offset + n * y.strides[0], b1 = y.offset + n1 * y.strides[0];
      let s00 = 0, s01 = 0, s10 = 0, s11 = 0, s20 = 0, s21 = 0, s30 = 0, s31 = 0;
      for (let k = 0; k < K; k++) {
        const x0 = A[a0 + k], x1 = A[a1 + k], x2 = A[a2 + k], x3 = A[a3 + k], y0 = B[b0 + k], y1 = B[b1 + k];
        s00 += x0 * y0; s01 += x0 * y1; s10 += x1 * y0; s11 += x1 * y1;
        s20 += x2 * y0; s21 += x2 * y1; s30 += x3 * y0; s31 += x3 * y1;
      }
      const o = out.offset + n * sn, p = out.offset + n1 * sn;
      C[o + m * sm] = s00; C[p + m * sm] = s01; C[o + m1 * sm] = s10; C[p + m1 * sm] = s11;
      C[o + m2 * sm] = s20; C[p + m2 * sm] = s21; C[o + m3 * sm] = s30; C[p + m3 * sm] = s31;
    }
  }
}

/* The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

const one = (f) => (out, x) => pointwise(out, f, x);
const two = (f) => (out, x, y) => pointwise(out, f, x, y);

/* PyTorch's operations, by their names in aten: output, then the arguments in the order of PyTorch's schema, without
dtype and device. An operation that ends in _ is the same, with an output that is also the first argument. A new one
goes here; trace.py reads the names. PyTorch itself breaks up others (mean, GELU, stack, ...) into these. */
const OPS = {
  mm: multiply,
  bmm: (out, a, b) => {
    const part = (x, i) => ({ ...x, offset: x.offset + i * x.strides[0], shape: x.shape.slice(1), strides: x.strides.slice(1) });
    for (let i = 0; i < extent(out.shape[0]); i++) multiply(part(out, i), part(a, i), part(b, i));
  },
  embedding: (out, table, ids) => {
    const [row, column] = table.strides, C = table.shape[1], step = out.strides.at(-1);
    lines(out, [{ ...ids, shape: [...ids.shape, C], strides: [...ids.strides, 0] }], ([o, i]) => {
      for (let c = 0; c < C; c++) out.data[o + c * step] = table.data[table.offset + ids.data[i] * row + c * column];
    });
  },
  native_layer_norm: (out, x, shape, gain, bias, eps) => along(out, x, -1, (o, i, n, so, si) => {
    let sum = 0, squares = 0;
    for (let c = 0; c < n; c++) sum += x.data[i + c * si];
    for (let c = 0; c < n; c++) squares += (x.data[i + c * si] - sum / n) ** 2;
    const scale = 1 / Math.sqrt(squares / n + eps);
    for (let c = 0; c < n; c++) {
      const normal = (x.data[i + c * si] - sum / n) * scale;
      out.data[o + c * so] = normal * (gain ? gain.data[gain.offset + c] : 1) + (bias ? bias.data[bias.offset + c] : 0);
    }
  }),
  _softmax: (out, x, dim) => along(out, x, dim, (o, i, n, so, si) => {
    let largest = -Infinity, sum = 0;
    for (let c = 0; c < n; c++) largest = Math.max(largest, x.data[i + c * si]);
    for (let c = 0; c < n; c++) sum += out.data[o + c * so] = Math.exp(x.data[i + c * si] - largest);
    for (let c = 0; c < n; c++) out.data[o + c * so] /= sum;
  }),
  cumsum: (out, x, dim) => along(out, x, dim, (o, i, n, so, si) => {
    for (let c = 0, sum = 0; c < n; c++) out.data[o + c * so] = sum += x.data[i + c * si];
  }),
  cat: (out, parts, dim) => {
    let start = 0;
    for (const x of parts.filter((part) => part.shape.length === out.shape.length)) {
      place(out, x, placeAlong(out, dim, start));
      start += x.shape.at(dim);
    }
  },
  constant_pad_nd: (out, x, pad, value) => {
    copy(out, value);
    place(out, x, out.shape.map((_, d) => pad[2 * (out.shape.length - 1 - d)] ?? 0));
  },
  roll: (out, x, [shift], [dim]) => {
    const size = x.shape.at(dim), start = ((shift % size) + size) % size;
    for (const begin of [start, start - size]) place(out, x, placeAlong(out, dim, begin));
  },
  sum: (out, x, dims, keeps) => reduce(out, x, dims, keeps, 0, (a, sum) => sum + a),
  var: (out, x, dims, correction, keeps) => {
    const count = reduce(out, x, dims, keeps, 0, (a, sum) => sum + a), mean = { ...out, data: out.data.map((a) => a / count) };
    reduce(out, x, dims, keeps, 0, (a, sum, m) => sum + (a - m) ** 2, mean);
    pointwise(out, (a) => a / (count - (correction ?? 1)), out);
  },
  amax: (out, x, dims, keeps) => reduce(out, x, dims, keeps, -Infinity, (a, sum) => Math.max(a, sum)),
  clone: copy, _to_copy: copy, copy: (out, self, x) => copy(out, x), fill: (out, self, value) => copy(out, value),
  where: (out, condition, x, y) => pointwise(out, (c, a, b) => c ? a : b, condition, x, y),
  add: (out, x, y, alpha) => pointwise(out, (a, b) => a + alpha * b, x, y),
  sub: (out, x, y, alpha) => pointwise(out, (a, b) => a - alpha * b, x, y),
  mul: two((a, b) => a * b), pow: two((a, b) => a ** b), div: (out, x, y, mode) =>
    pointwise(out, mode ? (a, b) => Math[mode](a / b) : (a, b) => a / b, x, y), // mode: floor or trunc
  maximum: two((a, b) => Math.max(a, b)), minimum: two((a, b) => Math.min(a, b)),
  eq: two((a, b) => a === b), lt: two((a, b) => a < b), gt: two((a, b) => a > b),
  ne: two((a, b) => a !== b), le: two((a, b) => a <= b), ge: two((a, b) => a >= b),
  bitwise_and: two((a, b) => a & b), bitwise_or: two((a, b) => a | b), bitwise_not: one((a) => !a),
  neg: one((a) => -a), abs: one(Math.abs), reciprocal: one((a) => 1 / a), sqrt: one(Math.sqrt), rsqrt: one((a) => 1 / Math.sqrt(a)),
  exp: one(Math.exp), expm1: one(Math.expm1), log: one(Math.log), log1p: one(Math.log1p), sin: one(Math.sin), cos: one(Math.cos),
  relu: one((a) => Math.max(a, 0)), sigmoid: one((a) => 1 / (1 + Math.exp(-a))), tanh: one(Math.tanh), erf: one(erf),
};
