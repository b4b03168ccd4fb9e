/* Repeats the operations that trace.py has recorded. This file knows PyTorch's operations, but no network.

A tensor is { data, offset, shape, strides, row }: a view of a buffer, as in PyTorch. `row` is the dimension that has a
row for each character. An operation computes only rows from .. to - 1 of its output, because the other rows are as in
the last run. Without `row`, the operation computes the whole output. */
let from = 0, to = 0;

const wrap = (x, dim) => dim < 0 ? dim + x.shape.length : dim;
const scalar = (x) => ({ data: [Number(x)], offset: 0, shape: [], strides: [] });
/* Returns elements start .. end - 1 of a dimension. */
function part(x, dim, start, end) {
  return { ...x, row: null, offset: x.offset + start * x.strides[dim], shape: x.shape.with(dim, end - start) };
}

/* Calls visit(offsets, steps, count) for each line along the last dimension. `offsets` says where the line begins in
out and in each input, `steps` how far apart its elements are, and `count` how many there are. Inputs are broadcast. If
out has stride 0 in a dimension, all elements along this dimension go to one place of out. */
function lines(out, inputs, visit) {
  const shape = out.shape.length ? out.shape : [1], last = shape.length - 1;
  const start = shape.map((_, d) => d === out.row ? from : 0), end = shape.map((size, d) => d === out.row ? to : size);
  const strides = [out, ...inputs].map((x) => shape.map((_, d) => {
    const own = d - shape.length + x.shape.length;
    return own < 0 || x.shape[own] === 1 ? 0 : x.strides[own];
  }));
  const steps = strides.map((of) => of[last]), count = end[last] - start[last];
  const walk = (d, at) => {
    if (d === last) return visit(at.map((offset, i) => offset + start[d] * steps[i]), steps, count);
    for (let i = start[d]; i < end[d]; i++) walk(d + 1, at.map((offset, j) => offset + i * strides[j][d]));
  };
  walk(0, [out, ...inputs].map((x) => x.offset));
}

/* Computes out = f(a, b, c, out) for each element. a, b and c are tensors or numbers. */
function pointwise(out, f, ...inputs) {
  const all = [0, 1, 2].map((i) => typeof inputs[i] === "object" ? inputs[i] : scalar(inputs[i] ?? 0));
  const O = out.data, [A, B, C] = all.map((x) => x.data);
  lines(out, all, ([o, a, b, c], [so, sa, sb, sc], count) => {
    for (let i = 0; i < count; i++, o += so, a += sa, b += sb, c += sc) O[o] = f(A[a], B[b], C[c], O[o]);
  });
}

const copy = (out, x) => pointwise(out, (a) => a, x);

/* Calls visit(offset in out, offset in x, length, step in out, step in x) for each line along a dimension. */
function along(out, x, dim, visit) {
  const d = wrap(x, dim), one = (y) => ({ ...y, shape: y.shape.with(d, 1), row: y.row === d ? null : y.row });
  lines(one(out), [one(x)], ([o, a], [so, sa], count) => {
    for (let i = 0; i < count; i++, o += so, a += sa) visit(o, a, x.shape[d], out.strides[d], x.strides[d]);
  });
}

/* Makes an operation in which each element of out is f(the previous element of out, the element of x). */
const scan = (f) => (out, x, dim) => along(out, x, dim, (o, a, n, so, sa) => {
  for (let i = 0, last = null; i < n; i++) out.data[o + i * so] = last = i ? f(last, x.data[a + i * sa]) : x.data[a];
});

/* Makes an operation that sorts the numbers of x. If isPlace is true, it writes their old places instead. */
const sort = (isPlace) => (out, x, dim, descends) => along(out, x, dim, (o, a, n, so, sa) => {
  const value = (i) => x.data[a + i * sa], order = [...Array(n).keys()].sort((i, j) => value(i) - value(j));
  (descends ? order.reverse() : order).forEach((p, i) => out.data[o + i * so] = isPlace ? p : value(p));
});

/* Makes an operation that combines the numbers of x over the dimensions `dims`: out = f(out, x), at first `start`. In
out, these dimensions are missing or have size 1. */
const reduce = (start, f) => (out, x, dims, keepsDims) => {
  const all = x.shape.map((_, d) => d), gone = dims?.length ? dims.map((d) => wrap(x, d)) : all;
  const rest = all.filter((d) => !gone.includes(d)), strides = all.map(() => 0);
  for (const d of rest) strides[d] = out.strides[keepsDims ? d : rest.indexOf(d)];
  copy(out, start);
  const row = keepsDims ? out.row : rest[out.row];
  pointwise({ ...out, shape: x.shape, strides, row }, (a, b, c, sum) => f(sum, a), x);
};

/* Returns the same matrix with the elements of each row side by side in memory. */
function packed(x) {
  if (x.strides[1] === 1) return x;
  const { shape } = x, out = { data: new Float32Array(shape[0] * shape[1]), offset: 0, shape, strides: [shape[1], 1] };
  copy(out, x);
  return out;
}

const transposed = (x) => ({ ...x, shape: x.shape.toReversed(), strides: x.strides.toReversed() });

/* Computes a product of matrices, four rows by two columns at a time, because eight sums fit into the registers. */
function multiply(out, a, b) {
  if (out.row === 0) return multiply(part(out, 0, from, to), part(a, 0, from, to), b);
  if (out.row === 1) return multiply(part(out, 1, from, to), a, part(b, 1, from, to));
  const [M, N] = out.shape, K = a.shape[1], C = out.data, [sm, sn] = out.strides;
  if (M < 3 && N > 3) return multiply(...[out, b, a].map(transposed)); // there is one new row
  const x = packed(a), y = packed(transposed(b)), A = x.data, B = y.data;
  for (let m = 0; m < M; m += 4) {
    const [m1, m2, m3] = [1, 2, 3].map((i) => Math.min(m + i, M - 1)); // at the edge, some rows are computed twice
    const [a0, a1, a2, a3] = [m, m1, m2, m3].map((i) => x.offset + i * x.strides[0]);
    for (let n = 0; n < N; n += 2) {
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

/* Returns the error function of x, with an error up to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x)), sum = (a, b) => (a + b) * t;
  const series = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592].reduce(sum, 0);
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

const one = (f) => (out, x) => pointwise(out, f, x);
const two = (f) => (out, x, y) => pointwise(out, f, x, y);

/* PyTorch's operations, by their names in aten (PyTorch's library of operations). Each takes the output, then PyTorch's
arguments in their order, without dtype and device. To add an operation, write it here and add its name to NAMES in
trace.py. PyTorch itself breaks up other operations (softmax, layer_norm, mean, GELU, stack, ...) into these. */
const OPS = {
  mm: multiply,
  bmm: (out, a, b) => {
    const [start, end, row] = out.row === 0 ? [from, to, null] : [0, out.shape[0], out.row && out.row - 1];
    for (let i = start; i < end; i++) {
      const matrix = ({ data, offset, shape: [, ...shape], strides: [step, ...strides] }) =>
        ({ data, offset: offset + i * step, shape, strides });
      multiply({ ...matrix(out), row }, matrix(a), matrix(b));
    }
  },
  embedding: (out, table, ids) => { // the last dimension of out takes a row of the table
    const [row, column] = table.strides, C = table.shape[1];
    const spread = { ...ids, shape: [...ids.shape, C], strides: [...ids.strides, 0] };
    lines(out, [spread], ([o, i], [step]) => {
      for (let c = 0; c < C; c++) out.data[o + c * step] = table.data[table.offset + ids.data[i] * row + c * column];
    });
  },
  cat: (out, parts, dim) => {
    const d = wrap(out, dim);
    let start = 0;
    for (const x of parts.filter(({ shape }) => shape.length === out.shape.length)) {
      copy({ ...part(out, d, start, start + x.shape[d]), row: out.row === d ? null : out.row }, x);
      start += x.shape[d];
    }
  },
  roll: (out, x, [shift], [dim]) => {
    const d = wrap(x, dim), size = x.shape[d], start = ((shift % size) + size) % size;
    OPS.cat(out, [part(x, d, size - start, size), part(x, d, 0, size - start)], d);
  },
  gather: (out, x, dim, index) => {
    const d = wrap(x, dim), base = { ...x, shape: out.shape, strides: x.strides.with(d, 0) };
    lines(out, [index, base], ([o, i, a], [so, si, sa], count) => {
      for (; count > 0; count--, o += so, i += si, a += sa) out.data[o] = x.data[a + index.data[i] * x.strides[d]];
    });
  },
  scatter: (out, self, dim, index, source) => {
    const d = wrap(out, dim), row = out.row === d ? null : out.row, x = source.data ? source : scalar(source);
    copy({ ...out, row }, self);
    lines({ ...index, row }, [{ ...out, strides: out.strides.with(d, 0) }, x], ([i, o, a], [si, so, sa], count) => {
      for (; count > 0; count--, o += so, i += si, a += sa) out.data[o + index.data[i] * out.strides[d]] = x.data[a];
    });
  },
  sort: sort(false), sort_1: sort(true),
  cumsum: scan((a, b) => a + b),
  sum: reduce(0, (sum, a) => sum + a), amax: reduce(-Infinity, Math.max),
  clone: copy, _to_copy: copy, copy: (out, self, x) => copy(out, x), fill: (out, self, value) => copy(out, value),
  where: (out, condition, x, y) => pointwise(out, (c, a, b) => c ? a : b, condition, x, y),
  add: (out, x, y, alpha) => pointwise(out, (a, b) => a + alpha * b, x, y),
  sub: (out, x, y, alpha) => pointwise(out, (a, b) => a - alpha * b, x, y),
  mul: two((a, b) => a * b), pow: two((a, b) => a ** b), remainder: two((a, b) => a - b * Math.floor(a / b)),
  div: (out, x, y, mode) => pointwise(out, mode ? (a, b) => Math[mode](a / b) : (a, b) => a / b, x, y), // floor, trunc
  maximum: two((a, b) => Math.max(a, b)), minimum: two((a, b) => Math.min(a, b)),
  eq: two((a, b) => a === b), lt: two((a, b) => a < b), gt: two((a, b) => a > b),
  ne: two((a, b) => a !== b), le: two((a, b) => a <= b), ge: two((a, b) => a >= b), logical_not: one((a) => !a),
  bitwise_and: two((a, b) => a & b), bitwise_or: two((a, b) => a | b), bitwise_not: one((a) => ~a),
  neg: one((a) => -a), abs: one(Math.abs), sign: one(Math.sign), sqrt: one(Math.sqrt),
  reciprocal: one((a) => 1 / a), rsqrt: one((a) => 1 / Math.sqrt(a)), sin: one(Math.sin), cos: one(Math.cos),
  exp: one(Math.exp), expm1: one(Math.expm1), log: one(Math.log), log1p: one(Math.log1p), floor: one(Math.floor),
  ceil: one(Math.ceil), trunc: one(Math.trunc),
  // A number in the middle between two integers is rounded to the even one.
  round: one((a) => Math.round(a) - (Math.abs(a % 1) === 0.5 ? Math.abs(Math.round(a) % 2) : 0)),
  relu: one((a) => Math.max(a, 0)), sigmoid: one((a) => 1 / (1 + Math.exp(-a))), tanh: one(Math.tanh), erf: one(erf),
};
