/* The attention page: a model made from a plan (trace.py), and the display of what it does with a text. */

/* Returns the model of a plan. read(ids) computes `logits`, and `calls` with q, k, v and weights of each attention. */
function makeModel(plan, constants) {
  const makeBuffer = ([size, isFloat]) => isFloat ? new Float32Array(size) : new Float64Array(size);
  let used = 0;
  const buffers = plan.sizes.map((size) => size ? makeBuffer(size) : constants[used++]);
  const revive = (x) => Array.isArray(x) ? x.map(revive) : x?.strides ? { ...x, data: buffers[x.buffer] } : x;
  const input = revive(plan.ids), [logits, calls] = revive(plan.outputs);
  const steps = plan.ops.map(([name, out, values, row]) => [OPS[name], { ...revive(out), row }, revive(values)]);
  const writers = calls.map(([, , , weights]) => steps.findLastIndex(([, out]) => out.data === weights.data));
  return {
    T: input.shape[1], blocks: plan.blocks, logits, calls,
    ids: [], surprises: [], // the text, and −ln p of each character in nats; the first is 0
    isWhole: false, // whether each run computes all rows
    off: [], // [attention, head] of each head that is off

    /* Computes a text of at most T characters. The weights of heads that are off become 0. The rows of characters that
    are the same as before need not be computed again. */
    read(ids, off = []) {
      if (String(off) !== String(this.off)) this.ids = [];
      const changed = ids.findIndex((id, t) => id !== this.ids[t]), same = changed < 0 ? ids.length : changed;
      [from, to] = this.isWhole ? [0, this.T] : [same, ids.length];
      input.data.fill(0).set(ids);
      steps.forEach(([compute, out, values], i) => {
        compute(out, ...values);
        for (const [l, h] of off) if (writers[l] === i) copy(part(calls[l][3], 1, h, h + 1), 0);
      });
      Object.assign(this, { ids: [...ids], off });
      this.surprises.length = this.isWhole ? 0 : same;
      for (let t = this.surprises.length; t < ids.length; t++) {
        this.surprises[t] = t ? -Math.log(this.probabilities(t - 1)[ids[t]]) : 0;
      }
    },

    /* Returns whether the model computes the same losses as in PyTorch, for the texts that page.py chose. First it
    computes only new rows. This fails if a later character changes an earlier row. Then each run computes all rows. */
    check(probe) {
      return [false, true].some((isWhole) => {
        Object.assign(this, { isWhole, ids: [] });
        return probe.every(([ids, expected]) => {
          this.read(ids);
          const rounded = (nats) => Math.min(nats ?? Infinity, 99); // above 99 nats, the probability is nearly 0
          return expected.every((x, t) => Math.abs(rounded(this.surprises[t + 1]) - rounded(x)) < 1e-3);
        });
      });
    },

    /* Returns the probabilities of the character after t. */
    probabilities: (t, temperature = 1) => softmax(vectorOf(logits, t).map((x) => x / (temperature || 1e-9))),

    /* Returns how much character t looks at characters 0 .. t, in head h of attention l. */
    weights: (l, h, t) => vectorOf(calls[l][3], t, h, calls[l][3].shape[1], t + 1),

    /* Returns the query (i = 0), key (1) or value (2) of character t, in head h of attention l. */
    part: (l, h, i, t) => vectorOf(calls[l][i], t, h, calls[l][3].shape[1]),

    /* Returns q · k / √d of character t with characters 0 .. t, and -Infinity where its weight is 0. */
    scores(l, h, t) {
      const q = this.part(l, h, 0, t), score = (s) => dot(q, this.part(l, h, 1, s)) / Math.sqrt(q.length);
      return this.weights(l, h, t).map((weight, s) => weight ? score(s) : -Infinity);
    },

    /* Returns whether these weights are softmax(Q Kᵀ / √d). */
    isTextbook(l, h, t) {
      const w = this.weights(l, h, t), error = 1e-3 * Math.max(...w);
      return softmax(this.scores(l, h, t)).every((x, s) => Math.abs(x - w[s]) <= error);
    },

    /* Returns an id for the end of the text, drawn by a random number in [0, 1). */
    next(temperature, random) {
      const probs = this.probabilities(this.ids.length - 1, temperature);
      const drawn = probs.findIndex((p) => (random -= p) < 0);
      return drawn < 0 ? probs.indexOf(Math.max(...probs)) : drawn;
    },
  };
}

/* Returns the vector of character t in a tensor of shape 1, T, C, or its vector in head h if the shape is 1, H, T, D.
If the tensor has fewer than H heads, several heads share one of them. */
function vectorOf(x, t, h = 0, H = 1, length = x.shape.at(-1)) {
  const [sh, st, sc] = x.strides.slice(-3), shared = x.shape.length < 4 ? 0 : Math.floor(h * x.shape[1] / H);
  const start = x.offset + shared * sh + t * st;
  return Array.from({ length }, (_, c) => x.data[start + c * sc]);
}

const sum = (xs) => xs.reduce((a, b) => a + b, 0);
const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

function softmax(xs) {
  const largest = Math.max(...xs), powers = xs.map((x) => Math.exp(x - largest)), total = sum(powers);
  return powers.map((x) => x / total);
}

/* Returns a random number in [0, 1). It depends only on the seed and the position, so stopping changes nothing. */
function uniform(seed, position) {
  let x = Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(position + 1, 0x85ebca6b);
  for (const factor of [0x7feb352d, 0x846ca68b]) x = Math.imul(x ^ x >>> 16, factor);
  return ((x ^ x >>> 16) >>> 0) / 2 ** 32;
}

/* What a person sees and does. */

const LARGEST = 5; // the page lists 5 attention weights and 5 next characters
const BAR = 9, EFFECT = 0.5; // the height of a full bar in pixels, and its meaning in nats while a head is off
const SLOW = 200, PAUSE = 300; // ms: after a computation that took longer than SLOW, typing waits for a pause
let vocab, idOf, all, some; // idOf: the id of each character; all, some: the model with all heads, and with some off
let shown = {}, duration = 0, timer = 0; // the state on the screen, the ms of its computation, a change that waits

/* All that a person can change. Only change() replaces it. */
let state = {
  ids: [], // the text
  typed: [], dropped: 0, // what was typed. A text that became too long has lost `dropped` characters at its start
  caret: 0, // the model has read this many characters, and guesses the next one
  layer: 0, head: 0, // the chosen head. The layer is the number of an attention in all.calls
  off: [], // [layer, head] of each head that is off
  temperature: 1, seed: 1337, isWriting: false, note: "",
};

/* Changes the state and shows it: at once, or after a pause in typing if the model is slow. */
function change(news) {
  state = { ...state, ...news };
  clearTimeout(timer);
  if (duration < SLOW || state.ids === shown.ids && state.off === shown.off) return show();
  const isTyping = state.ids !== shown.ids && !state.isWriting;
  element("text").classList.toggle("waiting", isTyping);
  say("#note", "Computing …");
  timer = setTimeout(show, isTyping ? PAUSE : 20);
}

function show() {
  const { ids, off } = state, start = performance.now();
  if (ids !== shown.ids || off !== shown.off) {
    all.read(ids);
    if (off.length) some.read(ids, off);
    duration = performance.now() - start;
    drawText();
    drawMaps();
  }
  shown = state;
  drawGuess(state.caret - 1);
  if (state.isWriting) timer = setTimeout(write);
}

/* Returns the model that computes what is shown. */
const current = () => state.off.length ? some : all;
const isOff = (l, h) => state.off.some((of) => of[0] === l && of[1] === h);
/* Returns the model that computes what is shown of a head. If the head is off, this is what it did before. */
const modelOf = (l, h) => isOff(l, h) ? all : current();

const element = (id) => document.getElementById(id);
const say = (selector, text) => document.querySelectorAll(selector).forEach((node) => node.textContent = text);
function make(tag, content = "", parent = null, properties = {}) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...[content].flat());
  parent?.append(node);
  return node;
}
const fill = (id, rows) => // fills a table with rows of cells
  element(id).tBodies[0].replaceChildren(...rows.map((cells) => make("tr", cells.map((cell) => make("td", cell)))));

/* Characters that one cannot see get a sign. */
const NAMED = { " ": "␣", "\n": "↵", "\t": "⇥" };
function visible(c) {
  if (c in NAMED) return NAMED[c];
  if (/[\p{C}\p{Z}]/u.test(c)) return "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return /\p{M}/u.test(c) ? "◌" + c : c;
}
const fixed = (x, digits = 3) => (x || 0).toFixed(digits).replace("-", "−").replace("Infinity", "∞");
const headName = (l, h) => `block ${all.blocks[l]}, head ${h + 1}`;

/* Returns the characters of a text. The model may know é as one character or as two. */
const split = (text) => [...text.normalize("NFC")].flatMap((c) => idOf.has(c) ? [c] : [...c.normalize("NFD")]);
const toIds = (text) => split(text).filter((c) => idOf.has(c)).map((c) => idOf.get(c));
const toText = (ids) => ids.map((id) => vocab[id]).join("");

/* Returns by how many nats switching heads off changed the surprise of each character. */
const effects = () => current().surprises.map((x, t) => x === all.surprises[t] ? 0 : x - all.surprises[t]);

/* Shows the text. A bar under each character is its surprise, or by how much switching a head off changed it. */
function drawText() {
  const { ids, typed, dropped, off } = state, nTyped = typed.length - dropped, box = element("typed");
  const [nats, full] = off.length ? [effects(), EFFECT] : [all.surprises, Math.log(vocab.length)];
  const height = (x) => Math.round(BAR * Math.min(1, Math.abs(x) / full));
  element("shown").replaceChildren(...ids.map((id, t) => make("span", vocab[id], null, {
    className: (vocab[id] === "\n" ? "newline " : "") + (t < nTyped ? "" : "written"),
    style: `--bar: var(--${nats[t] < 0 ? "green" : "orange"}); --height: ${height(nats[t])}px`,
  })), "\u200b"); // makes room for a last, empty line
  document.querySelector("main").classList.toggle("cut", off.length > 0);
  element("text").classList.remove("waiting");
  element("back").disabled = ids.length <= nTyped;
  if (box.value !== toText(ids)) {
    box.value = toText(ids);
    placeCaret();
  }
}

function placeCaret() {
  const place = toText(state.ids.slice(0, state.caret)).length;
  element("typed").setSelectionRange(place, place);
}

/* Draws the map of each head at the resolution of the screen. If several weights share a pixel, the largest counts. */
function drawMaps() {
  for (const button of element("maps").querySelectorAll("button")) {
    const [l, h] = button.value.split(" ").map(Number), { data, offset, strides } = modelOf(l, h).calls[l][3];
    // A canvas must fill whole pixels of the screen, because a browser that scales it loses thin columns.
    const canvas = button.firstChild, size = Math.floor(button.clientWidth * devicePixelRatio) || 1;
    const image = new ImageData(size, size), shades = image.data, n = state.ids.length, steps = n && Math.max(n, size);
    const [r, g, b] = getComputedStyle(canvas).color.match(/\d+/g), start = offset + h * strides[1];
    const [cells, places] = [n, size].map((m) => Array.from({ length: steps }, (_, i) => Math.floor(i * m / steps)));
    new Uint32Array(shades.buffer).fill(b << 16 | g << 8 | r);
    for (let y = 0; y < steps; y++) for (let x = 0; x <= y; x++) {
      const weight = data[start + cells[y] * strides[2] + cells[x] * strides[3]];
      const at = 4 * (places[y] * size + places[x]) + 3; // the root makes small weights visible
      shades[at] = Math.max(shades[at], 16 + 239 * Math.sqrt(Math.max(0, weight)));
    }
    canvas.width = canvas.height = size;
    canvas.style.width = `${size / devicePixelRatio}px`;
    canvas.getContext("2d").putImageData(image, 0, 0);
    button.parentNode.className = isOff(l, h) ? "off" : "";
  }
}

/* Shows all that belongs to the guess after character t and to the chosen head. */
function drawGuess(t) {
  const { ids, layer, head, temperature, isWriting, note } = state, box = element("text"), n = ids.length;
  const hasHead = t >= 0 && all.calls.length > 0, w = hasHead ? modelOf(layer, head).weights(layer, head, t) : [];
  const spans = element("shown").children, top = spans[t]?.offsetTop ?? 0;
  [...spans].forEach((span, s) => {
    span.style.setProperty("--used", 0.9 * Math.sqrt(Math.max(0, Math.min(1, w[s] ?? 0))));
    span.classList.toggle("last", s === t);
    span.classList.toggle("next", s === t + 1);
  });
  box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + 32 - box.clientHeight));
  for (const button of element("maps").querySelectorAll("button")) {
    button.ariaPressed = button.value === `${layer} ${head}`;
    button.lastChild.style.cssText = `top: ${100 * t / n}%; width: ${100 * (t + 1) / n}%`;
  }
  const limit = `The model reads at most ${all.T} characters at once, so the page leaves out the others.`;
  say("#note", note + (state.dropped || n === all.T ? limit : ""));
  say("#write", isWriting ? "Stop" : "Continue");
  say("#shown-temperature", fixed(temperature, 1));
  if (hasHead) say(".head", headName(layer, head));
  drawExpected(t);
  drawEffect(t);
  drawWeights(t, w);
}

/* Lists the likeliest next characters, and says what the text goes on with. */
function drawExpected(t) {
  const { ids, off, temperature } = state, next = ids[t + 1], nats = current().surprises[t + 1];
  const [now, before] = t < 0 ? [[], []] : [current(), all].map((model) => model.probabilities(t, temperature));
  const order = [...now.keys()].sort((a, b) => now[b] - now[a]).filter((id, i) => i < LARGEST || id === next);
  const bar = (p) => make("span", "", null, { className: "bar", style: `width: max(1px, ${100 * p}%)` });
  fill("next", order.map((id) => [[make("bdi", visible(vocab[id])), id === next ? " ← in the text" : ""],
    ...(off.length ? [now, before] : [now]).map((probs) => probs[id].toPrecision(3)),
    off.length ? [bar(now[id]), bar(before[id])] : bar(now[id])]));
  say("#came", t < 0 ? "Put the caret after a character, because the model needs at least one."
    : next === undefined ? "The text ends here. Continue draws a character from this table."
    : `The text goes on with ‘\u2068${visible(vocab[next])}\u2069’. At temperature 1, its surprise is ` +
      `−ln ${Math.exp(-nats).toPrecision(3)} = ${fixed(nats, 2)} nats.`);
}

/* Says what switching heads off did to the guess after character t, and to all guesses. */
function drawEffect(t) {
  const nats = current().surprises, before = all.surprises, mean = (xs) => fixed(sum(xs) / (xs.length - 1));
  const changes = effects(), count = (sign) => changes.filter((x) => sign * x > 0.01).length, change = changes[t + 1];
  const word = Math.abs(change) < 0.005 ? "hardly changes" : change > 0 ? "gets worse" : "gets better";
  const names = state.off.map((of) => headName(...of)).join(" and ");
  const one = t < 0 || change === undefined ? "" : `Without ${names}, this guess ${word}: its surprise is ` +
    `${fixed(nats[t + 1], 2)} nats instead of ${fixed(before[t + 1], 2)}. `;
  say("#loss", nats.length < 2 ? ""
    : !names ? `The loss of this text, its mean surprise, is ${mean(nats)} nats.`
    : changes.every((x) => !x) ? "Nothing changes, because the network does not use the recorded weights."
    : `${one}In the whole text, ${count(1)} guesses get worse and ${count(-1)} better by more than 0.01 nats. ` +
      `The loss, the mean surprise, is ${mean(nats)} instead of ${mean(before)}.`);
}

/* Lists the largest weights of the chosen head, and how the softmax makes them. */
function drawWeights(t, w) {
  const { ids, layer, head } = state, model = modelOf(layer, head);
  if (!w.length) return fill("weights", []);
  const scores = model.scores(layer, head, t), powers = scores.map(Math.exp);
  const order = [...w.keys()].filter((s) => w[s]).sort((a, b) => w[b] - w[a]).slice(0, LARGEST);
  const others = w.length - order.length, rest = (xs) => Math.abs(sum(xs) - sum(order.map((s) => xs[s])));
  fill("weights", [
    ...order.map((s) => [[make("bdi", visible(vocab[ids[s]])), t - s ? ` ${t - s} back` : " the last one read"],
      fixed(scores[s]), powers[s].toPrecision(4), fixed(w[s])]),
    ...(others ? [[`${others} other${others > 1 ? "s" : ""}`, "", rest(powers).toPrecision(4), fixed(rest(w))]] : []),
    ["sum", "", sum(powers).toPrecision(4), fixed(sum(w))]]);
  element("how").className = model.isTextbook(layer, head, t) ? "" : "own";
  say("#width", model.part(layer, head, 0, t).length);
}

/* Adds a map, which chooses the head, and a checkbox, which switches the head off or on. */
function makeHead(row, l, h) {
  const cell = make("div", "", row), ariaLabel = headName(l, h);
  const map = make("button", [make("canvas"), make("i")], cell, { value: `${l} ${h}`, ariaLabel });
  const box = make("input", "", null, { type: "checkbox", checked: true, autocomplete: "off", ariaLabel });
  make("label", [box, ` head ${h + 1}`], cell);
  map.onclick = () => change({ layer: l, head: h });
  box.onchange = () => {
    const others = state.off.filter((of) => String(of) !== `${l},${h}`);
    change({ layer: l, head: h, off: box.checked ? others : [...others, [l, h]] });
  };
}

/* Adds one character to the text. If the text is as long as the model can read, it first loses its first half. */
function write() {
  const { ids, dropped, temperature, seed } = state, half = ids.length < all.T ? 0 : Math.ceil(all.T / 2);
  const id = ids.length ? current().next(temperature, uniform(seed, dropped + ids.length)) : idOf.get("\n") ?? 0;
  const longer = [...ids.slice(half), id];
  change({ ids: longer, dropped: dropped + half, caret: longer.length, note: "" });
}

function onTyped(event) {
  const box = element("typed"), isComposing = event.isComposing === true; // as when one types Chinese
  element("text").classList.toggle("waiting", isComposing);
  if (isComposing) return;
  const ids = toIds(box.value).slice(0, all.T), unknown = new Set(split(box.value).filter((c) => !idOf.has(c)));
  const caret = Math.min(ids.length, toIds(box.value.slice(0, box.selectionEnd)).length);
  const note = unknown.size ? `The model does not know ${[...unknown].map(visible).join(" ")}. ` : "";
  change({ ids, typed: ids, dropped: 0, caret, isWriting: false, note });
}

function listen() {
  const box = element("typed");
  document.addEventListener("selectionchange", () => {
    const caret = toIds(box.value.slice(0, box.selectionEnd)).length, isOld = caret === state.caret || state.isWriting;
    if (document.activeElement === box && !isOld && !document.querySelector(".waiting")) change({ caret });
  });
  const go = (step) => () => {
    const caret = state.caret + (getComputedStyle(box).direction === "rtl" ? -step : step);
    change({ caret: Math.max(1, Math.min(state.ids.length, caret)), isWriting: false });
  };
  box.oninput = box.oncompositionend = onTyped;
  box.onfocus = placeCaret;
  box.onpointerdown = () => state.isWriting && change({ isWriting: false });
  element("left").onclick = go(-1);
  element("right").onclick = go(1);
  element("write").onclick = () => change({ isWriting: !state.isWriting });
  element("back").onclick = () =>
    change({ ids: state.typed, dropped: 0, caret: state.typed.length, isWriting: false, note: "" });
  for (const name of ["temperature", "seed"]) {
    element(name).value = state[name];
    element(name).oninput = (event) => change({ [name]: Number(event.target.value) });
  }
  onresize = matchMedia("(prefers-color-scheme: dark)").onchange = drawMaps;
}

async function unpack(base64, formats) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(whole).arrayBuffer();
  const types = { half: Uint16Array, float: Float32Array, double: Float64Array };
  let start = 0;
  return formats.map(([length, format]) => {
    const numbers = new types[format](buffer.slice(start, start += length * types[format].BYTES_PER_ELEMENT));
    return format === "half" ? Float32Array.from(numbers, fromHalf) : numbers;
  });
}

function fromHalf(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = (bits & 1023) / 1024;
  const size = exponent === 31 ? Infinity : exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
  return sign * size;
}

async function openPage() {
  const data = JSON.parse(element("data").textContent), constants = await unpack(data.constants, data.formats);
  vocab = data.vocab;
  idOf = new Map(vocab.map((c, id) => [c, id]));
  [all, some] = [makeModel(data.plan, constants), makeModel(data.plan, constants)];
  const isRight = all.check(data.probe), maps = element("maps");
  some.isWhole = all.isWhole;
  all.calls.forEach(([, , , weights], l) => {
    const row = make("div", make("span", `block ${all.blocks[l]}`), maps);
    row.style.setProperty("--heads", weights.shape[1]);
    for (let h = 0; h < weights.shape[1]; h++) makeHead(row, l, h);
  });
  for (const id of ["heads", "how"]) element(id).hidden = !all.calls.length;
  element("quill").hidden = data.network !== "quill";
  say("#about", data.about);
  say(".chars", vocab.length);
  say(".blind", fixed(Math.log(vocab.length), 1));
  document.querySelector("main").hidden = false;
  const { text: ids, typed } = data, layer = Math.max(0, all.calls.length - 1);
  change({ ids, typed: ids.slice(0, typed), caret: Math.ceil(ids.length / 2), layer });
  listen();
  say("#alert", isRight ? "" : "Warning: the page computes other numbers than PyTorch.");
}

/* Any failure at the start goes into the alert. */
function fail(error) {
  document.querySelector("main").hidden = true;
  say("#alert", `The page cannot start: ${error}. The file may be damaged, or the browser too old.`);
}
