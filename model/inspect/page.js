/* The attention page: a model made from a plan (trace.py), and the display of what it does with a text. */

/* Returns the model of a plan. read(ids) computes `logits`, and `calls` with q, k, v and weights of each attention. */
function makeModel(plan, constants) {
  const buffers = plan.buffers.map(({ constant, size, isFloat }) =>
    constants[constant] ?? (isFloat ? new Float32Array(size) : new Float64Array(size)));
  const addBuffer = (key, x) => x?.strides ? { ...x, data: buffers[x.buffer] } : x; // each tensor gets its buffer
  const { ids: input, logits, calls, ops } = JSON.parse(JSON.stringify(plan), addBuffer);
  // The number of the operation that computes the weights of each attention.
  const weightOps = calls.map(({ weights }) => ops.findLastIndex(({ out }) => out.data === weights.data));
  return {
    T: input.shape[1], logits, calls,
    ids: [], surprises: [], // the text, and −ln p of each character in nats; the first is 0
    isWhole: false, // whether each run computes all rows
    off: [], // [layer, head] of each head that is off; the layer is a number of an attention in `calls`

    /* Returns how many rows need not be computed, because the text begins as in the last run. */
    countKnown(ids, off) {
      if (this.isWhole || String(off) !== String(this.off)) return 0;
      const changed = ids.findIndex((id, t) => id !== this.ids[t]);
      return changed < 0 ? ids.length : changed;
    },

    /* Computes a text of at most T characters. The weights of heads that are off become 0. */
    read(ids, off = []) {
      const known = this.countKnown(ids, off);
      [from, to] = this.isWhole ? [0, this.T] : [known, ids.length];
      input.data.fill(0).set(ids);
      ops.forEach(({ name, out, args }, i) => {
        OPS[name](out, ...args);
        for (const [layer, head] of off) {
          if (weightOps[layer] === i) copy(part(calls[layer].weights, 1, head, head + 1), 0);
        }
      });
      Object.assign(this, { ids: [...ids], off });
      this.surprises.length = known;
      for (let t = known; t < ids.length; t++) {
        this.surprises[t] = t ? -Math.log(this.probabilities(t - 1)[ids[t]]) : 0;
      }
    },

    /* Returns whether the model computes the same surprises as in PyTorch, for the texts that page.py chose. First it
    computes only new rows. This fails if a later character changes an earlier row. Then each run computes all rows. */
    check(probe) {
      const rounded = (nats) => Math.min(nats ?? Infinity, 99); // above 99 nats, the probability is nearly 0
      return [false, true].some((isWhole) => {
        Object.assign(this, { isWhole, ids: [] });
        return probe.every(({ ids, nats }) => {
          this.read(ids.slice(0, -1));
          const surprise = (t) => -Math.log(this.probabilities(t)[ids[t + 1]]);
          return nats.every((x, t) => Math.abs(rounded(surprise(t)) - rounded(x)) < 1e-3);
        });
      });
    },

    /* Returns the probabilities of the character after t. */
    probabilities: (t, temperature = 1) => softmax(vectorOf(logits, t).map((x) => x / (temperature || 1e-9))),

    /* Returns how much character t looks at characters 0 .. t. */
    weights: (layer, head, t) => vectorOf(calls[layer].weights, t, head).slice(0, t + 1),

    /* Returns the vector of character t: its query ("q"), key ("k") or value ("v"). */
    vector: (layer, head, name, t) => vectorOf(calls[layer][name], t, head, calls[layer].weights.shape[1]),

    /* Returns q · k / √d of character t with characters 0 .. t, and -Infinity where its weight is 0. */
    scores(layer, head, t) {
      const q = this.vector(layer, head, "q", t), root = Math.sqrt(q.length);
      return this.weights(layer, head, t).map((weight, s) =>
        weight ? dot(q, this.vector(layer, head, "k", s)) / root : -Infinity);
    },

    /* Returns an id for the end of the text, drawn by a random number in [0, 1). */
    next(temperature, random) {
      const probs = this.probabilities(this.ids.length - 1, temperature);
      const drawn = probs.findIndex((p) => (random -= p) < 0);
      return drawn < 0 ? probs.indexOf(Math.max(...probs)) : drawn;
    },
  };
}

/* Returns the vector of character t in a tensor of shape 1, T, C, or its vector in a head if the shape is 1, H, T, D.
If the tensor has fewer heads than the attention, several heads share one of them. */
function vectorOf(x, t, head = 0, nHeads = x.shape[1]) {
  const [headStride, rowStride, stride] = x.strides.slice(-3);
  const shared = x.shape.length < 4 ? 0 : Math.floor(head * x.shape[1] / nHeads);
  const start = x.offset + shared * headStride + t * rowStride;
  return Array.from({ length: x.shape.at(-1) }, (_, i) => x.data[start + i * stride]);
}

const sum = (xs) => xs.reduce((a, b) => a + b, 0);
const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

function softmax(xs) {
  const largest = Math.max(...xs), powers = xs.map((x) => Math.exp(x - largest)), total = sum(powers);
  return powers.map((x) => x / total);
}

/* Returns whether these attention weights are the softmax of these scores. */
function isSoftmax(weights, scores) {
  const error = 1e-3 * Math.max(...weights);
  return softmax(scores).every((x, s) => Math.abs(x - weights[s]) <= error);
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
const SLICE = 250; // ms: a computation is cut into slices, because a browser answers no key meanwhile
let vocab, idOf, all, some; // idOf: the id of each character; all, some: the model with all heads, and with some off
let shown = {}, timer = 0; // the state on the screen, and what will be done next
let pace = 1; // ms for each row that a model computes
const heads = []; // { layer, head, map } of each head

/* All that a person can change. Only change() replaces it. */
let state = {
  ids: [], // the text
  typed: [], dropped: 0, // what was typed. A text that became too long has lost `dropped` characters at its start
  caret: 0, // the model has read this many characters, and guesses the next one
  layer: 0, head: 0, // the chosen head
  off: [], // [layer, head] of each head that is off
  temperature: 1, seed: 1337, isWriting: false, note: "",
};

function change(news) {
  state = { ...state, ...news };
  clearTimeout(timer);
  const { ids } = state, rows = ids === shown.ids ? 0 : ids.length - all.countKnown(ids, []);
  if (element("typed").value !== toText(ids)) fillBox();
  if (rows * pace > SLICE) showLater();
  else show();
}

/* Computes the text in slices, and shows it when it is complete. */
function show() {
  const { ids, off } = state, isNew = ids !== shown.ids || off !== shown.off;
  if (isNew && !(compute(all, []) && (!off.length || compute(some, off)))) return showLater();
  shown = state;
  drawText();
  if (isNew) drawMaps();
  drawGuess();
  if (state.isWriting) timer = setTimeout(write);
}

function showLater() {
  element("text").classList.toggle("waiting", state.ids !== shown.ids);
  say("#note", "Computing …");
  timer = setTimeout(show, 10); // meanwhile, the browser shows this note and answers keys
}

/* Computes as many rows as SLICE allows. Returns whether the text is complete. */
function compute(model, off) {
  const { ids } = state, known = model.countKnown(ids, off), start = performance.now();
  const end = model.isWhole ? ids.length : Math.min(ids.length, known + Math.max(16, Math.ceil(SLICE / pace)));
  model.read(ids.slice(0, end), off);
  if (end - known >= 16) pace = (performance.now() - start) / (end - known); // fewer rows take longer each
  return end === ids.length;
}

/* Returns the model that computes what is shown. */
const current = () => state.off.length ? some : all;
const isOff = (layer, head) => state.off.some((of) => of[0] === layer && of[1] === head);
/* Returns the model that computes what is shown of a head. If the head is off, this is what it did before. */
const modelOf = (layer, head) => isOff(layer, head) ? all : current();

const element = (id) => document.getElementById(id);
const say = (selector, text) => document.querySelectorAll(selector).forEach((node) => node.textContent = text);
function make(tag, content = "", parent = null, properties = {}) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...[content].flat());
  parent?.append(node);
  return node;
}

const makeRow = (cells) => make("tr", cells.map((cell) => make("td", cell)));
const fill = (id, rows) => element(id).tBodies[0].replaceChildren(...rows.map(makeRow));

/* Characters that one cannot see get a sign. */
const NAMED = { " ": "␣", "\n": "↵", "\t": "⇥" };
function visible(c) {
  if (c in NAMED) return NAMED[c];
  if (/[\p{C}\p{Z}]/u.test(c)) return "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return /\p{M}/u.test(c) ? "◌" + c : c;
}
const rounded = (x) => String(Number(x.toPrecision(4)));
const colorOf = (name) => getComputedStyle(document.body).getPropertyValue(name);
const fixed = (x, digits = 3) => (x || 0).toFixed(digits).replace("-", "−").replace("Infinity", "∞");
const headName = (layer, head) => `block ${all.calls[layer].block}, head ${head + 1}`;

/* Returns the characters of a text, in the Unicode form of which the model knows most. (é may be one or two.) */
const split = (text) => [text, text.normalize("NFC"), text.normalize("NFD")].map((form) => [...form])
  .sort((a, b) => unknownIn(a).length - unknownIn(b).length)[0];
const unknownIn = (chars) => chars.filter((c) => !idOf.has(c));
const toIds = (text) => split(text).filter((c) => idOf.has(c)).map((c) => idOf.get(c));
const toText = (ids) => ids.map((id) => vocab[id]).join("");

function fillBox() {
  const place = toText(state.ids.slice(0, state.caret)).length;
  element("typed").value = toText(state.ids);
  element("typed").setSelectionRange(place, place);
}

/* Returns by how many nats switching heads off changed the surprise of each character. */
const effects = () => current().surprises.map((x, t) => x === all.surprises[t] ? 0 : x - all.surprises[t]);

/* Returns the attention weights of the guess at the caret in the chosen head. */
const chosenWeights = ({ layer, head, caret } = state) =>
  caret && all.calls.length ? modelOf(layer, head).weights(layer, head, caret - 1) : [];

/* Shows the text. A bar under a character is its surprise, or by how much switching a head off changed the surprise.
Blue is the attention weight of a character. */
function drawText() {
  const { ids, typed, dropped, off, caret } = state, nTyped = typed.length - dropped;
  const nats = off.length ? effects() : all.surprises, full = off.length ? EFFECT : Math.log(vocab.length);
  const weights = chosenWeights(), color = colorOf("--blue"), text = element("shown"), box = element("text");
  const spans = text.getElementsByTagName("span"); // behind them, an element makes room for an empty line
  while (spans.length > ids.length) spans[ids.length].remove();
  while (spans.length < ids.length) text.lastChild.before(make("span"));
  [...spans].forEach((span, t) => {
    const char = vocab[ids[t]], height = Math.round(BAR * Math.min(1, Math.abs(nats[t]) / full));
    const blue = fixed(0.9 * Math.sqrt(Math.max(0, Math.min(1, weights[t] ?? 0))));
    const classes = { newline: char === "\n", written: t >= nTyped, next: t === caret };
    const className = Object.keys(classes).filter((name) => classes[name]).join(" ");
    const style = `--bar: var(--${nats[t] < 0 ? "green" : "orange"}); --height: ${height}px`;
    if (span.textContent !== char) span.textContent = char;
    if (span.look !== className + style) Object.assign(span, { className, style, look: className + style });
    span.style.backgroundColor = `rgb(${color} / ${blue})`; // with var(--blue), this takes twice as long
  });
  box.classList.remove("waiting");
  drawCaret();
  const top = spans[caret - 1]?.offsetTop ?? 0; // keep the caret in sight
  box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + 32 - box.clientHeight));
}

/* Draws a line beside a character. An element of its own in the text would turn around numbers in Hebrew. */
function drawCaret() {
  const text = element("shown"), { ids, caret } = state, isAfterLine = vocab[ids[caret - 1]] === "\n";
  const [before, last, next, second] = [-2, -1, 0, 1].map((i) => text.children[caret + i]);
  const pairs = (isAfterLine ? [[next, second]] : [[before, last], [last, next]])
    .filter(([a, b]) => a && b && a.offsetTop === b.offsetTop); // in one line
  const isToLeft = pairs.length > 0 && pairs.every(([a, b]) => b.offsetLeft < a.offsetLeft); // the text goes to the left
  for (const old of text.querySelectorAll("[data-caret]")) delete old.dataset.caret;
  if (caret) (isAfterLine ? next : last).dataset.caret = isToLeft === isAfterLine ? "right" : "left";
}

/* Draws the map of each head at the resolution of the screen. If several weights share a pixel, the largest counts. */
function drawMaps() {
  for (const { layer, head, map } of heads) {
    // The canvas must fill whole pixels of the screen, because a browser that scales it loses thin columns.
    const canvas = map.firstChild, size = Math.floor(map.clientWidth * devicePixelRatio) || 1;
    canvas.style.width = `${size / devicePixelRatio}px`;
    canvas.width = canvas.height = size;
    canvas.getContext("2d").putImageData(makeMap(modelOf(layer, head).calls[layer].weights, head, size), 0, 0);
    map.parentNode.className = isOff(layer, head) ? "off" : "";
  }
}

/* Returns the map of a head as an image of size x size pixels. A root makes small weights visible. */
function makeMap({ data, offset, strides }, head, size) {
  const image = new ImageData(size, size), shades = image.data, n = state.ids.length, steps = n && Math.max(n, size);
  const [red, green, blue] = colorOf("--map").split(" "), start = offset + head * strides[1];
  const scaled = (length) => Array.from({ length: steps }, (_, i) => Math.floor(i * length / steps));
  const characters = scaled(n), pixels = scaled(size);
  new Uint32Array(shades.buffer).fill(blue << 16 | green << 8 | red);
  for (let y = 0; y < steps; y++) {
    for (let x = 0; x <= y; x++) {
      const weight = data[start + characters[y] * strides[2] + characters[x] * strides[3]];
      const alpha = 4 * (pixels[y] * size + pixels[x]) + 3;
      shades[alpha] = Math.max(shades[alpha], 16 + 239 * Math.sqrt(Math.max(0, weight)));
    }
  }
  return image;
}

/* Shows all that belongs to the guess at the caret and to the chosen head, except the text. */
function drawGuess() {
  const { ids, typed, dropped, caret, layer, head, off, temperature, isWriting, note } = state, n = ids.length;
  for (const { map, ...of } of heads) {
    map.ariaPressed = of.layer === layer && of.head === head;
    map.lastChild.style.cssText = `top: ${100 * (caret - 1) / n}%; width: ${100 * caret / n}%`;
  }
  const limit = `The model reads at most ${all.T} characters at once, so the page leaves out the others.`;
  say("#note", note + (dropped || n === all.T ? limit : ""));
  say("#write", isWriting ? "Stop" : "Continue");
  say("#shown-temperature", fixed(temperature, 1));
  if (all.calls.length) say(".head", headName(layer, head));
  document.querySelector("main").classList.toggle("cut", off.length > 0);
  element("back").disabled = n <= typed.length - dropped;
  drawExpected(caret - 1);
  drawEffect(caret - 1);
  drawWeights(caret - 1);
}

/* Lists the likeliest next characters, and says what the text goes on with. */
function drawExpected(t) {
  const { ids, off, temperature } = state, next = ids[t + 1], nats = current().surprises[t + 1];
  const models = t < 0 ? [] : off.length ? [some, all] : [all];
  const columns = models.map((model) => model.probabilities(t, temperature)), now = columns[0] ?? [];
  const order = [...now.keys()].sort((a, b) => now[b] - now[a]).filter((id, i) => i < LARGEST || id === next);
  const bar = (p) => make("span", "", null, { className: "bar", style: `width: max(1px, ${100 * p}%)` });
  fill("next", order.map((id) => [
    [make("bdi", visible(vocab[id])), id === next ? " ← in the text" : ""],
    ...columns.map((probs) => probs[id].toPrecision(3)),
    columns.map((probs) => bar(probs[id])),
  ]));
  say("#came", t < 0 ? "Put the caret after a character, because the model needs at least one."
    : next === undefined ? "The text ends here. Continue draws a character from this table."
    : `The text goes on with ‘\u2068${visible(vocab[next])}\u2069’. At temperature 1, its surprise is ` +
      `−ln ${Math.exp(-nats).toPrecision(3)} = ${fixed(nats, 2)} nats.`);
}

/* Says what switching heads off did to the guess after character t, and to all guesses. */
function drawEffect(t) {
  const nats = current().surprises, before = all.surprises, mean = (xs) => fixed(sum(xs) / (xs.length - 1));
  const changes = effects(), change = changes[t + 1];
  const count = (sign) => changes.filter((x) => sign * x > 0.01).length;
  const word = Math.abs(change) < 0.005 ? "hardly changes" : change > 0 ? "gets worse" : "gets better";
  const names = state.off.map((of) => headName(...of)).join(" and ");
  const one = t < 0 || change === undefined ? "" : `Without ${names}, this guess ${word}: its surprise is ` +
    `${fixed(nats[t + 1], 2)} nats instead of ${fixed(before[t + 1], 2)}. `;
  say("#loss", nats.length < 2 ? ""
    : !state.off.length ? `The loss of this text, its mean surprise, is ${mean(nats)} nats.`
    : changes.every((x) => !x) ? "Nothing changes, because the network does not use the recorded weights."
    : `${one}In the whole text, ${count(1)} guesses get worse and ${count(-1)} better by more than 0.01 ` +
      `nats. The loss, the mean surprise, is ${mean(nats)} instead of ${mean(before)}.`);
}

/* Lists the largest weights of the chosen head, and how the softmax makes them. */
function drawWeights(t) {
  const { ids, layer, head } = state, weights = chosenWeights();
  if (!weights.length) return fill("weights", []);
  const model = modelOf(layer, head), scores = model.scores(layer, head, t), powers = scores.map(Math.exp);
  const order = [...weights.keys()].filter((s) => weights[s]).sort((a, b) => weights[b] - weights[a]);
  const largest = order.slice(0, LARGEST), nOthers = weights.length - largest.length;
  const others = (xs) => Math.abs(sum(xs) - sum(largest.map((s) => xs[s])));
  const rows = largest.map((s) => [
    [make("bdi", visible(vocab[ids[s]])), t - s ? ` ${t - s} back` : " the last one read"],
    fixed(scores[s]), rounded(powers[s]), fixed(weights[s]),
  ]);
  if (nOthers) rows.push([`others: ${nOthers}`, "", rounded(others(powers)), fixed(others(weights))]);
  fill("weights", [...rows, ["sum", "", rounded(sum(powers)), fixed(sum(weights))]]);
  element("how").className = isSoftmax(weights, scores) ? "" : "own";
  say("#width", model.vector(layer, head, "q", t).length);
}

/* Adds a map, which chooses the head, and a checkbox, which switches the head off or on. */
function makeHead(row, layer, head) {
  const cell = make("div", "", row), ariaLabel = headName(layer, head);
  const map = make("button", [make("canvas"), make("i")], cell, { ariaLabel });
  const box = make("input", "", null, { type: "checkbox", checked: true, autocomplete: "off", ariaLabel });
  make("label", [box, ` head ${head + 1}`], cell);
  heads.push({ layer, head, map });
  map.onclick = () => change({ layer, head });
  box.onchange = () => {
    const others = state.off.filter((of) => String(of) !== `${layer},${head}`);
    change({ layer, head, off: box.checked ? others : [...others, [layer, head]] });
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
  const ids = toIds(box.value).slice(0, all.T), unknown = new Set(unknownIn(split(box.value)));
  const caret = Math.min(ids.length, toIds(box.value.slice(0, box.selectionEnd)).length);
  const note = unknown.size ? `The model does not know ${[...unknown].map(visible).join(" ")}. ` : "";
  change({ ids, typed: ids, dropped: 0, caret, isWriting: false, note });
}

/* Moves the caret after a click or an arrow key. */
function onSelection() {
  const box = element("typed"), isReady = document.activeElement === box && !document.querySelector(".waiting");
  const caret = toIds(box.value.slice(0, box.selectionEnd)).length;
  if (isReady && !state.isWriting && caret !== state.caret) change({ caret });
}

function moveCaret(step) {
  const isRightToLeft = getComputedStyle(element("typed")).direction === "rtl";
  const caret = state.caret + (isRightToLeft ? -step : step);
  change({ caret: Math.max(1, Math.min(state.ids.length, caret)), isWriting: false });
}

function listen() {
  const box = element("typed");
  document.addEventListener("selectionchange", onSelection);
  box.oninput = box.oncompositionend = onTyped;
  box.onfocus = fillBox;
  box.onpointerdown = () => state.isWriting && change({ isWriting: false });
  element("left").onclick = () => moveCaret(-1);
  element("right").onclick = () => moveCaret(1);
  element("write").onclick = () => change({ isWriting: !state.isWriting });
  element("back").onclick = () =>
    change({ ids: state.typed, dropped: 0, caret: state.typed.length, isWriting: false, note: "" });
  for (const name of ["temperature", "seed"]) {
    element(name).value = state[name];
    element(name).oninput = (event) => change({ [name]: Number(event.target.value) });
  }
  onresize = matchMedia("(prefers-color-scheme: dark)").onchange = () => change({ ids: [...state.ids] }); // draws all
}

/* Returns the constants, which page.py has packed. */
async function unpack(base64, sizes) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer().catch(() => { throw new Error("its numbers are damaged"); });
  const parts = new Uint8Array(buffer), bytes = new Uint8Array(parts.length), n = parts.length / 4;
  for (let i = 0; i < bytes.length; i++) bytes[i] = parts[i % 4 * n + Math.floor(i / 4)];
  let end = 0;
  return sizes.map((size) => new Float32Array(bytes.buffer, 4 * (end += size) - 4 * size, size));
}

/* Returns the guess with most blue: the largest weight of a character before the last one read. */
function mostBlue(n) {
  let best = { caret: n, weight: 0 };
  for (const { layer, head } of heads) {
    for (let t = Math.ceil(n / 2); t < n - 1; t++) {
      const weight = Math.max(...all.weights(layer, head, t).slice(0, -1));
      if (weight > best.weight) best = { caret: t + 1, weight, layer, head };
    }
  }
  return best;
}

async function openPage() {
  const data = JSON.parse(element("data").textContent), constants = await unpack(data.constants, data.sizes);
  vocab = data.vocab;
  idOf = new Map(vocab.map((c, id) => [c, id]));
  [all, some] = [makeModel(data.plan, constants), makeModel(data.plan, constants)];
  const start = performance.now(), isRight = all.check(data.probe);
  pace = (performance.now() - start) / sum(data.probe.map(({ ids }) => ids.length));
  some.isWhole = all.isWhole;
  all.calls.forEach(({ block, weights }, layer) => {
    const row = make("div", make("span", `block ${block}`), element("maps"));
    row.style.setProperty("--heads", weights.shape[1]);
    for (let head = 0; head < weights.shape[1]; head++) makeHead(row, layer, head);
  });
  for (const id of ["heads", "how"]) element(id).hidden = !all.calls.length;
  say("#about", data.about);
  say(".chars", vocab.length);
  say(".blind", fixed(Math.log(vocab.length), 1));
  document.querySelector("main").hidden = false;
  all.read(data.text);
  const { caret, layer = 0, head = 0 } = mostBlue(data.text.length);
  change({ ids: data.text, typed: data.text.slice(0, data.typed), caret, layer, head });
  listen();
  say("#alert", isRight ? "" : "Warning: the page computes other numbers than PyTorch.");
}

function fail(error) {
  document.querySelector("main").hidden = true;
  say("#alert", `The page cannot start: ${error}. The file may be damaged, or the browser too old.`);
}
