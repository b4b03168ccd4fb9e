/* The attention page: a network made from a plan (trace.py), a text that it reads and continues, and the display. */

/* Returns the network of a plan. Its run(ids) computes the outputs: `lens`, the logits before the first and after each
block, and `calls`, with q, k, v and weights of each attention. */
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
    isWhole: false, // whether each run computes all rows
    off: [], // [attention, head] of each head that is switched off

    /* Returns how many ids at the start are the same as in the last run. Their rows need not be computed again. */
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
        for (const [l, h] of this.off) if (writers[l] === i) copy(part(calls[l][3], 1, h, h + 1), 0);
      });
    },

    /* Switches these heads off, and all others on. The weights of a head that is off become 0. */
    setOff(off) {
      if (String(off) !== String(this.off)) this.known = [];
      this.off = off;
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

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

function softmax(xs) {
  const largest = Math.max(...xs), powers = xs.map((x) => Math.exp(x - largest)), sum = powers.length * mean(powers);
  return powers.map((x) => x / sum);
}

/* Returns a random number in [0, 1). It depends only on the seed and the position, so stopping changes nothing. */
function uniform(seed, position) {
  let x = Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(position + 1, 0x85ebca6b);
  for (const factor of [0x7feb352d, 0x846ca68b]) x = Math.imul(x ^ x >>> 16, factor);
  return ((x ^ x >>> 16) >>> 0) / 2 ** 32;
}

/* Returns a text. `ids` are all its characters. The network reads `shown`, which are the ids from `first` on. */
function makeText(net) {
  return {
    ids: [], first: 0, shown: [], surprises: [], // surprises in nats; the first is 0

    /* Computes a text. From a text longer than T, it drops T / 2 characters at the front at once. So while the model
    writes, the other characters are computed again only once in T / 2 characters. */
    read(ids) {
      const half = Math.ceil(net.T / 2), first = Math.ceil(Math.max(0, ids.length - net.T) / half) * half;
      Object.assign(this, { ids, first, shown: ids.slice(first) });
      const { shown, surprises } = this, start = net.same(shown);
      net.run(shown);
      surprises.length = start;
      for (let t = start; t < shown.length; t++) surprises[t] = t ? -Math.log(this.probabilities(t - 1)[shown[t]]) : 0;
    },

    /* Returns whether the network computes the same losses as in PyTorch, for the texts that page.py chose. First it
    computes only new rows. This fails if a later character changes an earlier row. Then each run computes all rows. */
    check(probe) {
      return [false, true].some((isWhole) => {
        [net.isWhole, net.known] = [isWhole, []];
        return probe.every(([ids, expected]) => {
          this.read(ids);
          const rounded = (nats) => Math.min(nats ?? Infinity, 99); // above 99 nats, the probability is nearly 0
          return expected.every((x, t) => Math.abs(rounded(this.surprises[t + 1]) - rounded(x)) < 1e-3);
        });
      });
    },

    /* Returns the probabilities of the character after t, from the logits lens[r], by default the network's own. */
    probabilities: (t, r = net.lens.length - 1) => softmax(vectorOf(net.lens[r], t)),

    /* Returns how much character t looks at characters 0 .. t, in head h of attention l. */
    weights: (l, h, t) => vectorOf(net.calls[l][3], t, h, net.calls[l][3].shape[1], t + 1),

    /* Returns the query (i = 0), key (1) or value (2) of character t, in head h of attention l. */
    part: (l, h, i, t) => vectorOf(net.calls[l][i], t, h, net.calls[l][3].shape[1]),

    /* Returns whether the weights of a head are softmax(Q Kᵀ / √d), by a check of three rows. */
    isTextbook(l, h) {
      return [0.4, 0.7, 1].every((share) => {
        const t = Math.ceil(share * (net.known.length - 1)), w = this.weights(l, h, t), q = this.part(l, h, 0, t);
        const scores = w.map((x, s) => x ? dot(q, this.part(l, h, 1, s)) / Math.sqrt(q.length) : -Infinity);
        return softmax(scores).every((x, s) => Math.abs(x - w[s]) <= 1e-3 * Math.max(...w));
      });
    },

    /* Returns the next id. It is chosen as in sample.py, but with other random numbers. */
    next(temperature, seed) {
      const logits = vectorOf(net.lens.at(-1), this.shown.length - 1), likeliest = logits.indexOf(Math.max(...logits));
      const probs = softmax(logits.map((x) => x / (temperature || 1)));
      let rest = temperature > 0 ? uniform(seed, this.ids.length) : Infinity;
      const drawn = probs.findIndex((p) => (rest -= p) < 0);
      return drawn < 0 ? likeliest : drawn;
    },
  };
}

/* What a person sees and does. */

const element = (id) => document.getElementById(id);
const LARGEST = 5, SHOWN = 4; // the page lists 5 weights, 5 next characters, and 4 numbers of a vector
const PAUSE = 300, LARGE = 3e6; // ms to wait after typing; a model with more numbers takes seconds for a text
let vocab, ids, isLarge, net, text, chars = []; // ids: the id of each character; chars: the shown characters
let chosen = 0, block = 0, head = 0; // block: the number of an attention in net.calls
let off = [], allHeads = null; // off: [block, head] of each head that is off; allHeads: the surprises with all heads
let writing = null, waiting = null, nextShow = 0, warning = ""; // timers of the next character and of a waiting edit

function make(tag, content = "", parent = null, properties = {}) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...[content].flat().filter((part) => part !== ""));
  parent?.append(node);
  return node;
}

const fill = (id, rows) => // fills a table with rows of cells
  element(id).tBodies[0].replaceChildren(...rows.map((cells) => make("tr", cells.map((cell) => make("td", cell)))));

/* Characters that one cannot see get a sign. */
const NAMED = { " ": "␣", "\n": "↵", "\t": "⇥", "\x7f": "␡" };
function visible(c) {
  const code = c.codePointAt(0);
  if (c in NAMED || code < 32) return NAMED[c] ?? String.fromCodePoint(0x2400 + code);
  if (/[\p{C}\p{Z}]/u.test(c)) return "U+" + code.toString(16).toUpperCase().padStart(4, "0");
  return /\p{M}/u.test(c) ? "◌" + c : c;
}
const quoted = (c) => "‘\u2068" + visible(c) + "\u2069’"; // isolated, so that right-to-left letters keep the order
const fixed = (x, digits = 3) => (x || 0).toFixed(digits).replace("-", "−").replace("Infinity", "∞");
const shownProb = (p) => p < 0.001 ? p.toLocaleString("en", { maximumSignificantDigits: 2 }) : fixed(p);
/* Returns the first numbers of a vector, as an element of the page. */
const shownVector = (xs) =>
  make("code", `(${xs.slice(0, SHOWN).map((x) => fixed(x, 2)).join(", ")}${xs.length > SHOWN ? ", …" : ""})`);
const toIds = (typed) => [...typed].filter((c) => ids.has(c)).map((c) => ids.get(c));
const headName = (l, h) => `block ${net.blocks[l]}, head ${h + 1}`;

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

/* Computes a text and shows it. Chooses its character t. */
function update(newIds, t) {
  if (!newIds.length) newIds = [ids.get("\n") ?? 0];
  allHeads = null;
  if (off.length) {
    net.setOff([]);
    text.read(newIds);
    allHeads = [...text.surprises];
  }
  net.setOff(off);
  text.read(newIds);
  show(t);
}

/* Shows the text and chooses its character t. While the model writes, this takes about a tenth of the time. */
function show(t) {
  const start = performance.now(), box = element("text");
  chars = text.shown.map((id) => vocab[id]);
  element("note").textContent = warning + (text.first ? ` The page gives the model at most ${net.T} characters at ` +
    `once. Here, the model sees the last ${chars.length} of ${text.ids.length}.` : "");
  while (box.children.length > chars.length) box.lastChild.remove();
  chars.forEach((c, t) => {
    const span = box.children[t] ?? make("span", "", box);
    const broken = c === "\n" ? visible(c) + "\n" : c === " " ? c : visible(c);
    if (span.textContent !== broken) span.textContent = broken;
  });
  box.setAttribute("aria-valuemax", chars.length);
  showSurprise();
  choose(t - text.first);
  nextShow = performance.now() + Math.max(100, 9 * (performance.now() - start));
}

function showSurprise() {
  // A surprise is infinite if the model gave the character the probability 0.
  const orange = text.surprises.map((nats, t) => nats === allHeads?.[t] ? 0 : nats - (allHeads?.[t] ?? 0));
  const largest = Math.max(...orange.filter(Number.isFinite), allHeads ? 0.1 : 1);
  const loss = fixed(mean(text.surprises.slice(1))), names = off.map((of) => headName(...of));
  orange.forEach((nats, t) => {
    const share = Math.max(0, Math.min(1, nats / largest));
    element("text").children[t].style.borderBottomColor = `rgb(var(--surprise) / ${share})`;
  });
  element("orange").textContent = (allHeads ? "how much more a character surprised the model than with all heads"
    : `how much a character surprised the model (0 nats: certain, ${fixed(Math.log(vocab.length), 1)} nats: a guess ` +
      `among ${vocab.length} characters)`) + `. The strongest line means ${fixed(largest, 1)} nats`;
  element("loss").textContent = chars.length < 2 ? ""
    : !allHeads ? `The loss of this text, its mean surprise, is ${loss}${names.length ? " without some heads" : ""}.`
    : orange.every((nats) => nats === 0) ? "Nothing changes, because the network does not use the recorded weights."
    : `The loss of this text is ${fixed(mean(allHeads.slice(1)))} with all heads, and ${loss} without ` +
      `${names.join(" and ")}. The orange lines show where the predictions got worse.`;
}

function write() {
  const id = text.next(Number(element("temperature").value), Number(element("seed").value)), box = element("typed");
  box.value = (box.value || vocab[text.ids[0]]) + vocab[id];
  box.scrollTop = box.scrollHeight;
  text.read([...text.ids, id]);
  if (performance.now() > nextShow) show(text.ids.length - 1);
  writing = setTimeout(write);
}

/* Starts or stops the writing. */
function setWriting(on) {
  clearTimeout(writing);
  writing = on ? setTimeout(write) : null;
  allHeads = null;
  element("write").textContent = on ? "Stop" : "Continue";
}

/* Stops the writing and shows character t. */
function stop(t) {
  setWriting(false);
  later(() => readBox(t));
}

/* Calls compute() at once or after `wait` milliseconds, instead of a call that still waits. Shows a note for a large
model, because its computation takes seconds. */
function later(compute, wait = isLarge ? 50 : 0) {
  clearTimeout(waiting);
  if (!wait) return compute();
  if (isLarge) element("note").textContent = "Computing …";
  waiting = setTimeout(compute, wait);
}

/* Computes the text in the box. Shows its character t, or the character before the cursor. */
function readBox(t) {
  const box = element("typed"), unknown = [...new Set(box.value)].filter((c) => !ids.has(c)).map(visible).join(" ");
  warning = unknown && `The page leaves out characters that the model does not know: ${unknown}`;
  update(toIds(box.value), t ?? toIds(box.value.slice(0, box.selectionStart)).length - 1);
}

/* Shows a change at the end of the text at once. Any other change takes longer, so it waits for a pause in typing. */
function onTyped() {
  setWriting(false);
  const newIds = toIds(element("typed").value), isEnd = newIds.every((id, t) => id === (text.ids[t] ?? id));
  later(() => readBox(), isEnd && !off.length && !isLarge ? 0 : PAUSE);
}

/* Chooses character t. Scrolls the text, but not the page, so that it is in view. */
function choose(t) {
  chosen = Math.max(0, Math.min(chars.length - 1, t));
  const box = element("text"), span = box.children[chosen], top = span.offsetTop;
  box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + span.offsetHeight - box.clientHeight));
  draw(chosen);
}

/* Shows what the model did at character t. */
function draw(t) {
  const nats = text.surprises[t], looked = "Here the model predicts the next character." + drawHead(t);
  const surprise = `${quoted(chars[t])}, character ${t + 1} of ${chars.length}: ` + (t
    ? `a surprise of ${fixed(nats, 2)} nats. The model gave it the probability ${shownProb(Math.exp(-nats))}.`
    : "nothing comes before it, so the model does not predict it.");
  element("text").querySelector(".chosen")?.classList.remove("chosen");
  element("text").children[t].classList.add("chosen");
  element("text").setAttribute("aria-valuenow", t + 1);
  element("text").setAttribute("aria-valuetext", `${surprise} ${looked}`);
  element("surprise").textContent = surprise;
  element("before").hidden = !t;
  element("looked").textContent = looked;
  drawExpected(t);
}

/* Draws all that belongs to the chosen head. Returns a sentence: what it looked at. */
function drawHead(t) {
  if (!net.calls.length) return "";
  const w = text.weights(block, head, t), largest = Math.max(...w);
  const order = [...w.keys()].filter((s) => w[s]).sort((a, b) => w[b] - w[a]).slice(0, LARGEST);
  [...element("text").children].forEach((span, s) => {
    span.style.backgroundColor = w[s] > 0 ? `rgb(var(--attention) / ${0.55 * w[s] / largest})` : "";
  });
  element("attention-max").textContent = fixed(largest);
  drawMaps(t);
  drawSteps(t, w, order);
  if (!order.length) return " The chosen head is off.";
  const back = (s) => `${quoted(chars[s])} ${t - s ? `${t - s} back` : "itself"} (${fixed(w[s], 2)})`;
  return ` For that, ${headName(block, head)} looked most at ${order.slice(0, 3).map(back).join(", ")}.`;
}

/* Fills the table of the largest weights: how each came about, and the sum of all. */
function drawSteps(t, w, order) {
  const [q, k, v] = [0, 1, 2].map((i) => (s) => text.part(block, head, i, s)), values = w.map((_, s) => v(s));
  const query = q(t), root = Math.sqrt(query.length), sum = (xs) => xs.reduce((a, b) => a + b, 0);
  const rows = order.map((s) => [[make("bdi", visible(chars[s])), t - s ? ` ${t - s} back` : " itself"],
    fixed(dot(query, k(s)), 1), fixed(dot(query, k(s)) / root, 2), fixed(w[s]), shownVector(values[s])]);
  const out = values[0].map((_, i) => sum(w.map((x, s) => x * values[s][i])));
  fill("weights", [...rows, [make("b", `all ${w.length}`), "", "", fixed(sum(w)), shownVector(out)]]);
  element("how").className = net.textbook[block][head] ? "" : "own";
  element("width").textContent = query.length;
}

/* Shows the likeliest next characters, at the end and after each block. */
function drawExpected(t) {
  const next = chars[t + 1], came = (c) => make("bdi", visible(c), null, { className: c === next ? "came" : "" });
  const likeliest = (probs) => vocab.map((c, id) => [c, probs[id]]).sort((a, b) => b[1] - a[1]);
  const expected = likeliest(text.probabilities(t)).filter(([c], i) => i < LARGEST || c === next);
  fill("next", expected.map(([c, p]) => [[came(c), c === next ? " came next" : ""], shownProb(p),
    make("span", "", null, { className: "bar", style: `width: max(1px, ${100 * p / expected[0][1]}%)` })]));
  fill("lens", net.lens.map((_, r) => {
    const probs = text.probabilities(t, r), best = likeliest(probs).slice(0, 3);
    const shown = best.flatMap(([c, p], i) => [i ? ", " : "", came(c), ` ${fixed(p, 2)}`]);
    return [r ? `block ${r}` : "embedding", shown, next === undefined ? "" : shownProb(probs[ids.get(next)])];
  }));
}

/* Draws the map of each head, with a line at character t. */
function drawMaps(t) {
  const style = getComputedStyle(document.documentElement), n = chars.length, thickness = Math.ceil(n / 80);
  const [r, g, b] = style.getPropertyValue("--attention").split(" ").map(Number);
  for (const button of element("maps").querySelectorAll("button")) {
    const [l, h] = button.value.split(" ").map(Number), { data: weights, offset, strides } = net.calls[l][3];
    const image = new ImageData(n, n), pixels = new Uint32Array(image.data.buffer), canvas = button.firstChild;
    for (let row = 0; row < n; row++) for (let s = 0; s <= row; s++) {
      const weight = weights[offset + h * strides[1] + row * strides[2] + s * strides[3]];
      const shade = Math.sqrt(Math.max(0, Math.min(1, weight))); // the root makes small weights visible
      pixels[row * n + s] = b << 16 | g << 8 | r | Math.round(255 * shade) << 24;
    }
    button.ariaPressed = l === block && h === head;
    canvas.width = canvas.height = n;
    const context = canvas.getContext("2d");
    context.putImageData(image, 0, 0);
    context.fillStyle = `rgb(${style.getPropertyValue("--surprise")})`;
    context.fillRect(0, Math.max(0, t - Math.floor(thickness / 2)), t + 1, thickness);
  }
}

/* Adds a map, which chooses the head, and a checkbox, which switches the head off or on. */
function makeHead(row, l, h) {
  const cell = make("div", "", row), box = make("input", "", null, { type: "checkbox", checked: true });
  const map = make("button", make("canvas"), cell, { value: `${l} ${h}`, ariaLabel: headName(l, h) });
  make("label", [box, ` head ${h + 1}`], cell);
  map.onclick = () => {
    [block, head] = [l, h];
    draw(chosen);
  };
  box.onchange = () => {
    off = box.checked ? off.filter((of) => String(of) !== `${l},${h}`) : [...off, [l, h]];
    [block, head] = [l, h];
    stop(text.first + chosen);
  };
}

function listen() {
  const box = element("text"), find = (event) => [...box.children].indexOf(event.target.closest("#text span"));
  box.onpointerover = (event) => {
    if (event.pointerType === "mouse" && !writing && find(event) >= 0) draw(find(event));
  };
  box.onpointerleave = () => writing || draw(chosen);
  box.onclick = (event) => {
    if (find(event) >= 0) writing ? stop(text.first + find(event)) : choose(find(event));
  };
  box.onkeydown = (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -net.T, End: net.T };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(chosen + moves[event.key]);
  };
  element("before").onclick = () => choose(chosen - 1);
  element("typed").oninput = onTyped;
  element("temperature").oninput = (event) => element("shown-temperature").textContent = event.target.value;
  element("write").onclick = () => writing ? stop(text.ids.length - 1) : later(() => {
    readBox();
    setWriting(true);
  });
  matchMedia("(prefers-color-scheme: dark)").onchange = () => draw(chosen);
}

async function openPage() {
  const data = JSON.parse(element("data").textContent);
  vocab = data.vocab;
  ids = new Map(vocab.map((c, id) => [c, id]));
  isLarge = data.formats.reduce((sum, [length]) => sum + length, 0) > LARGE;
  net = makeNetwork(data.plan, await unpack(data.constants, data.formats));
  text = makeText(net);
  block = net.calls.length - 1;
  element("about").textContent = data.about;
  element("typed").value = data.text.map((id) => vocab[id]).join("");
  if (!text.check(data.probe)) element("alert").textContent = "Warning: the page computes other numbers than PyTorch.";
  const heads = net.calls.map(([, , , weights]) => [...Array(weights.shape[1]).keys()]);
  net.textbook = heads.map((of, l) => of.map((h) => text.isTextbook(l, h)));
  heads.forEach((of, l) => {
    const row = make("div", make("strong", `Block ${net.blocks[l]}`), element("maps"));
    of.forEach((h) => makeHead(row, l, h));
  });
  for (const id of ["heads", "how"]) element(id).hidden = !heads.length;
  element("lens").closest("section").hidden = net.lens.length < 2;
  update(data.text, 0);
  choose(100);
  listen();
  document.body.inert = false;
}
