// One view of a run: its map, its curves, its groups. The same module serves a notebook (anywidget calls
// `render`) and a page from disk or from `grpo_nb watch` (they call `mount`). Text of a record only ever
// becomes a text node, so nothing in it can run.

const COLOURS = {alive: '#0072B2', right: '#009E73', wrong: '#D55E00', other: '#A77CB0', used: '#FFB000', pale: '#F4DDA0'};
const STATES = [   // codes of the cells, as `pack` writes them
  {name: 'no group', colour: null},
  {name: 'living', colour: COLOURS.alive},
  {name: 'dead, all right, left', colour: COLOURS.right},
  {name: 'dead, all wrong, left', colour: COLOURS.wrong},
  {name: 'dead, all alike, left', colour: COLOURS.other},
  {name: 'dead, all right, replaced', colour: COLOURS.used, mark: COLOURS.right},
  {name: 'dead, all wrong, replaced', colour: COLOURS.used, mark: COLOURS.wrong},
  {name: 'dead, all alike, replaced', colour: COLOURS.used, mark: COLOURS.other},
  {name: 'stored, trained beside the fresh ones', colour: COLOURS.used},
];
const FILTERS = [['all groups', () => true], ['living', s => s == 1], ['dead', s => s > 1 && s < 8], ['dead: all right', s => s == 2 || s == 5],
  ['dead: all wrong', s => s == 3 || s == 6], ['dead: all alike', s => s == 4 || s == 7],
  ['replaced', s => s > 4], ['dead and left', s => s > 1 && s < 5],
  ['dead: one text (collapse)', (s, same) => s > 1 && s < 8 && same],
  ['dead: different texts (cliff)', (s, same) => s > 1 && s < 8 && !same]];
const LEFT = 64, RIGHT = 10, STRIP = 62, AXIS = 20, BUSY = 10;

// ---- small tools

function el(tag, props = {}, ...kids) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) {
    if (k == 'class') e.className = v;
    else if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k == 'style') e.style.cssText = v;
    else if (v === true) e.setAttribute(k, '');
    else if (v !== false && v != null) e.setAttribute(k, v);
  }
  e.append(...kids.filter(o => o != null));
  return e;
}

function svg(tag, props = {}, ...kids) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(props)) e.setAttribute(k, v);
  e.append(...kids);
  return e;
}

const num = (x, d = 3) => x == null ? '–' : typeof x != 'number' ? String(x) :
  (Number.isInteger(x) ? String(x) : String(+x.toPrecision(d))).replace('-', '−');
const pct = x => (100 * x).toFixed(1) + '%';
const many = (n, what, more = what + 's') => `${n.toLocaleString('en')} ${n == 1 ? what : more}`;
const nth = n => n + (n % 100 >= 11 && n % 100 <= 13 ? 'th' : ['th', 'st', 'nd', 'rd'][n % 10] || 'th');
function nearestOf(sorted, x) {   // the place of the value nearest to x
  let lo = 0, hi = sorted.length - 1;
  while (lo < hi) { const m = (lo + hi + 1) >> 1; if (sorted[m] <= x) lo = m; else hi = m - 1; }
  return lo < sorted.length - 1 && sorted[lo + 1] - x < x - sorted[lo] ? lo + 1 : lo;
}
function largest(list, by, n) {   // the n with the largest values, in order
  const least = Float64Array.from(list, by).sort().at(-n) ?? -Infinity;
  return list.filter(i => by(i) >= least).sort((a, b) => by(b) - by(a)).slice(0, n);
}
const clamp = (x, lo, hi) => Math.max(lo, Math.min(hi, x));
const mix = (a, b, p) => '#' + [1, 3, 5].map(i => Math.round(parseInt(a.slice(i, i + 2), 16) * (1 - p)
  + parseInt(b.slice(i, i + 2), 16) * p).toString(16).padStart(2, '0')).join('');
const OFTEN = Array.from({length: 17}, (_, n) => mix(COLOURS.pale, COLOURS.used, Math.log2(Math.max(n, 1)) / 4));   // by times it came

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
const from64 = s => Uint8Array.from(atob(s), c => c.charCodeAt(0));
const asBytes = x => typeof x == 'string' ? from64(x) : x instanceof DataView ? new Uint8Array(x.buffer, x.byteOffset, x.byteLength) : new Uint8Array(x);
const asJson = async bytes => JSON.parse(new TextDecoder().decode(await inflate(bytes)));

// ---- what there is to see: the packed header, cells as typed arrays, texts on demand

export async function unpack(packed, ask) {
  const head = await asJson(asBytes(packed.head));
  const array = async (name, Type) => packed[name] ? new Type((await inflate(asBytes(packed[name]))).buffer) : null;
  const run = {...head, S: head.steps.length, B: head.groups, long: await array('long', Uint16Array), same: await array('same', Uint8Array), funcs: {}, versions: []};
  for (const [i, name] of (head.functions || []).entries()) run.funcs[name] = await array('func' + i, Uint8Array);
  for (const [i, v] of head.versions.entries()) {
    const by = await array('by' + i, Int32Array), uses = v.stored.map(() => []);
    if (by) for (let s = 0; s < run.S; s++) for (let g = 0; g < run.B; g++) {
      const k = by[s * run.B + g];
      if (k >= 0) uses[k].push([s, g]);
    }
    const born = new Int32Array(run.S * run.B).fill(-1);
    v.stored.forEach((o, k) => { if (o.at) born[o.at[0] * run.B + o.at[1]] = k; });
    run.versions.push({...v, state: await array('state' + i, Uint8Array), by, uses, born});
  }
  const blocks = new Map();
  run.block = b => {   // the texts of a few steps: in the page, or asked for
    if (!blocks.has(b)) {
      const here = packed.texts && packed.texts[b];
      const got = here ? asJson(asBytes(here)) : ask ? ask(b) : Promise.resolve(null);
      got.catch(() => blocks.delete(b));
      blocks.set(b, got);
      if (blocks.size > 64) blocks.delete(blocks.keys().next().value);
    }
    return blocks.get(b);
  };
  run.detail = async s => { const b = await run.block(Math.floor(s / head.per_block)); return b && b[s % head.per_block]; };
  return run;
}

// ---- the component

export async function mount(root, packed, options = {}) {
  const run = await unpack(packed, options.ask);
  [run.title, run.sub] = options.alone ? ['h1', 'h2'] : ['h2', 'h3'];
  const now = {step: run.S - 1, group: 0, version: 0, from: 0, to: run.S, filter: 0, func: '', q: '', hits: null,
    order: 'step', colour: 'none', diff: false, all: new Set()};
  const ui = {}, V = () => run.versions[now.version], at = (s, g) => s * run.B + g;
  const lastGroup = s => { let g = run.B - 1; while (g > 0 && !V().state[at(s, g)]) g--; return Math.max(0, g); };
  root.replaceChildren();
  root.classList.add('gv');
  root.dataset.lmSuppressShortcuts = 'true';   // JupyterLab leaves our keys alone
  const dark = () => {
    const c = getComputedStyle(root).color.match(/[\d.]+/g).map(Number);
    return (c[0] + c[1] + c[2]) / 3 > 127;
  };

  // -- pieces of the page

  function head() {
    const v = run.verdict, out = el('header', {class: 'gv-head'});
    out.append(el(run.title, {class: 'gv-title'}, run.name));
    if (run.about) out.append(el('p', {class: 'gv-dim'}, run.about));
    if (v) {
      out.append(el('p', {class: 'gv-verdict'}, el('b', {}, v.sentence)));
      if (v.cause) out.append(el('p', {}, el('b', {}, 'Most likely cause: '), v.cause));
      if (v.advice) out.append(el('p', {}, el('b', {}, 'What to do: '), v.advice));
    }
    for (const n of run.notes || []) out.append(el('p', {class: 'gv-dim gv-note'}, n));
    return out;
  }

  function select(label, choices, on) {
    const s = el('select', {'aria-label': label, onchange: () => on(s.value)},
      ...choices.map(([text, value]) => el('option', {value}, text)));
    return [el('label', {class: 'gv-field'}, el('span', {}, label), s), s];
  }
  const button = (text, on, label) => el('button', {type: 'button', onclick: on, 'aria-label': label}, text);

  function bar() {
    const out = el('div', {class: 'gv-bar'});
    ui.step = el('input', {type: 'number', 'aria-label': 'step', min: run.steps[0], max: run.steps[run.S - 1],
      onchange: () => go(nearest(+ui.step.value), now.group)});
    out.append(el('span', {class: 'gv-field'}, button('◀', () => go(now.step - 1), 'previous step'),
      el('label', {class: 'gv-field'}, el('span', {}, 'step'), ui.step), button('▶', () => go(now.step + 1), 'next step')));
    ui.play = button('play', play);
    ui.play.setAttribute('aria-pressed', 'false');
    out.append(ui.play);
    if (!run.B) return out;
    if (run.versions.length > 1) {
      const [field, s] = select('what if', run.versions.map((v, i) => [v.name, i]), x => { now.version = +x; refilter(); });
      ui.version = s;
      out.append(field);
    }
    const [show, fs] = select('show', FILTERS.map(([n], i) => [n, i]), x => { now.filter = +x; refilter(); });
    ui.filter = fs;
    out.append(show);
    const names = Object.keys(run.funcs);
    if (names.length) out.append(select('reward function', [['any', ''], ...names.flatMap(n => [[`${n}: differs`, '2' + n],
      [`${n}: all low`, '1' + n], [`${n}: all high`, '3' + n]])], x => { now.func = x; refilter(); })[0]);
    out.append(select('sort by', [['step', 'step'], ['longest answer', 'long'], ['most used', 'used']],
      x => { now.order = x; results(); })[0]);
    ui.q = el('input', {type: 'search', placeholder: 'in prompts and answers', 'aria-label': 'search',
      onkeydown: e => { if (e.key == 'Enter') search(ui.q.value); }, oninput: () => { if (!ui.q.value) search(''); }});
    out.append(el('span', {class: 'gv-field'}, ui.q, button('search', () => search(ui.q.value))));
    return out;
  }

  function legend() {
    const out = el('ul', {class: 'gv-legend', 'aria-label': 'colours of the map'});
    const put = (c, text) => out.append(el('li', {}, el('i', {style: `background:${c}`}), text));
    const there = new Set(run.versions.flatMap(v => [...new Set(v.state)])), any = codes => codes.some(c => there.has(c));
    put(COLOURS.alive, 'living');
    if (any([5, 6, 7])) put(`linear-gradient(90deg,${COLOURS.pale},${COLOURS.used})`, 'dead, replaced (stronger: that stored group came often)');
    if (any([8])) put(COLOURS.used, 'stored, trained beside the fresh ones');
    for (const c of [2, 3, 4]) if (any([c])) put(STATES[c].colour, STATES[c].name);
    return out;
  }

  function keys() {
    const rows = [['← → ↑ ↓', 'neighbouring step or group'], ['Page up, Page down', 'ten steps'], ['Home, End', 'first and last step'],
      ['+ and −', 'zoom around the step'], ['0', 'whole run'], ['u and U', 'next and previous use of the stored group'],
      ['d and D', 'next and previous dead group'], ['Enter', 'to the answers']];
    return el('details', {class: 'gv-keys'}, el('summary', {}, 'Keys on the map'),
      el('dl', {}, ...rows.flatMap(([k, t]) => [el('dt', {}, k), el('dd', {}, t)])),
      el('p', {}, 'With the mouse: click a cell to open it, drag across to zoom.'));
  }

  // -- the plot: strips of curves above the map, one axis

  const strips = run.curves.filter(c => c.main);
  const cellHeight = run.B ? clamp(Math.floor(320 / run.B), 5, 22) : 0;
  const mapTop = strips.length * STRIP + 4, mapHeight = cellHeight * run.B;
  let width = 0, offscreen = null;

  function plot() {
    ui.canvas = el('canvas', {'aria-hidden': 'true'});
    ui.over = el('canvas', {'aria-hidden': 'true', class: 'gv-over'});
    ui.plot = el('div', {class: 'gv-plot', tabindex: 0, role: 'application', 'aria-roledescription': 'map of a run',
      'aria-label': `${many(run.S, 'step')}${run.B ? ` by ${many(run.B, 'group')}` : ''}; arrow keys move, Enter goes to the answers`,
      onkeydown: key}, ui.canvas, ui.over);
    ui.plot.style.height = mapTop + mapHeight + AXIS + 'px';
    let down = null;
    ui.over.addEventListener('pointerdown', e => { down = e.offsetX; ui.over.setPointerCapture(e.pointerId); });
    ui.over.addEventListener('pointermove', e => {
      if (down != null && Math.abs(e.offsetX - down) > 6) drawOver([down, e.offsetX]);
      else hover(e);
    });
    ui.over.addEventListener('pointerup', e => {
      const a = down;
      down = null;
      if (a != null && Math.abs(e.offsetX - a) > 6) return zoomTo(...[xToStep(a), xToStep(e.offsetX)].sort((p, q) => p - q));
      go(xToStep(e.offsetX), e.offsetY >= mapTop && e.offsetY < mapTop + mapHeight
        ? Math.floor((e.offsetY - mapTop) / cellHeight) : now.group);
      ui.plot.focus({preventScroll: true});
    });
    ui.over.addEventListener('pointercancel', () => { down = null; drawOver(); });
    ui.over.addEventListener('pointerleave', () => { ui.tip.textContent = ''; });
    ui.over.addEventListener('dblclick', () => zoomTo(0, run.S - 1));
    return ui.plot;
  }

  const inner = () => width - LEFT - RIGHT;
  const stepToX = s => LEFT + (s - now.from) / (now.to - now.from) * inner();
  const xToStep = x => clamp(Math.floor(now.from + (x - LEFT) / inner() * (now.to - now.from)), 0, run.S - 1);
  const nearest = step => nearestOf(run.steps, step);
  function place(step) {   // a step's number as a position among the recorded ones
    let lo = 0, hi = run.S - 1;
    if (step <= run.steps[0]) return step - run.steps[0];
    if (step >= run.steps[hi]) return hi;
    while (hi - lo > 1) { const m = (lo + hi) >> 1; if (run.steps[m] <= step) lo = m; else hi = m; }
    return lo + (step - run.steps[lo]) / (run.steps[hi] - run.steps[lo]);
  }

  function colourOf(s, g) {
    const v = V(), i = at(s, g), code = v.state[i];
    return code < 5 ? STATES[code].colour : OFTEN[v.by[i] >= 0 ? Math.min(16, v.uses[v.by[i]].length) : 1];
  }
  function shower() {   // does a cell pass what is chosen now?
    const state = V().state, passes = FILTERS[now.filter][1], same = run.same || [];
    const func = now.func && run.funcs[now.func.slice(1)], want = +now.func[0], hits = now.hits;
    return i => state[i] > 0 && passes(state[i], same[i]) && (!func || func[i] == want) && (!hits || hits.has(i));
  }

  function paint() {   // a pixel per cell, once per version and filter
    offscreen = null;
    if (!run.B) return;
    offscreen = document.createElement('canvas');
    offscreen.width = run.S;
    offscreen.height = run.B;
    const c = offscreen.getContext('2d'), d = c.createImageData(run.S, run.B), shows = shower(), inks = new Map();
    const inkOf = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
    for (let s = 0; s < run.S; s++) for (let g = 0; g < run.B; g++) {
      const hex = colourOf(s, g), p = 4 * (g * run.S + s);
      if (!hex) continue;
      if (!inks.has(hex)) inks.set(hex, inkOf(hex));
      const ink = inks.get(hex);
      for (let j = 0; j < 3; j++) d.data[p + j] = ink[j];
      d.data[p + 3] = shows(at(s, g)) ? 255 : 40;
    }
    c.putImageData(d, 0, 0);
  }

  function sized(canvas) {
    const r = window.devicePixelRatio || 1, h = mapTop + mapHeight + AXIS, c = canvas.getContext('2d');
    const size = [Math.round(width * r), Math.round(h * r)];
    if (canvas.width != size[0] || canvas.height != size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.width = width + 'px';
      canvas.style.height = h + 'px';
    }
    c.setTransform(r, 0, 0, r, 0, 0);
    c.clearRect(0, 0, width, h);
    return c;
  }

  function draw() {
    width = Math.max(240, ui.plot.clientWidth);
    stale = false;
    const c = sized(ui.canvas), fg = getComputedStyle(root).color;
    root.style.colorScheme = dark() ? 'dark' : 'light';
    c.font = '12px system-ui, sans-serif';
    c.fillStyle = c.strokeStyle = fg;
    strips.forEach((o, i) => strip(c, o, i * STRIP, fg));
    if (run.B) cells(c);
    axis(c, fg);
    drawOver();
  }

  function strip(c, o, top, fg) {
    const h = STRIP - 28, all = [...o.value, ...(o.low || []), ...(o.high || [])].filter(Number.isFinite);
    const lo = o.share ? 0 : Math.min(...all), hi = o.share ? 1 : Math.max(...all, lo + 1e-9);
    const y = v => top + 20 + h * (1 - (v - lo) / (hi - lo || 1));
    const x = s => stepToX(place(s) + .5);
    c.save();
    c.globalAlpha = .25;
    c.strokeStyle = fg;
    c.strokeRect(LEFT, top + 20, inner(), h);
    c.restore();
    c.fillStyle = fg;
    c.textAlign = 'right';
    c.fillText(num(hi, 2), LEFT - 6, top + 28);
    c.fillText(num(lo, 2), LEFT - 6, top + STRIP - 8);
    c.textAlign = 'left';
    c.save();
    c.beginPath();
    c.rect(LEFT, top, inner(), STRIP);
    c.clip();
    c.strokeStyle = c.fillStyle = o.colour;
    if (o.low) {
      c.globalAlpha = .22;
      c.beginPath();
      o.step.forEach((s, i) => c.lineTo(x(s), y(o.high[i])));
      for (let i = o.step.length - 1; i >= 0; i--) c.lineTo(x(o.step[i]), y(o.low[i]));
      c.fill();
      c.globalAlpha = 1;
    }
    c.lineWidth = 1.7;
    c.beginPath();
    o.step.forEach((s, i) => c.lineTo(x(s), y(o.value[i])));
    c.stroke();
    if (o.step.length < 60) o.step.forEach((s, i) => { c.beginPath(); c.arc(x(s), y(o.value[i]), 2.2, 0, 7); c.fill(); });
    c.restore();
    c.fillStyle = fg;
    c.fillText(o.label, LEFT, top + 14);
  }

  function cells(c) {
    const n = now.to - now.from, w = inner() / n;
    c.save();
    c.beginPath();
    c.rect(LEFT, mapTop, inner(), mapHeight);
    c.clip();
    if (w < 3) {
      c.imageSmoothingQuality = 'high';
      c.imageSmoothingEnabled = w < 1;
      c.drawImage(offscreen, now.from, 0, n, run.B, LEFT, mapTop, inner(), mapHeight);
      busy(c, w);
    } else {
      const shows = shower();
      for (let s = now.from; s < now.to; s++) for (let g = 0; g < run.B; g++) cell(c, s, g, w, shows);
    }
    c.restore();
  }
  function cell(c, s, g, w, shows) {
    const colour = colourOf(s, g);
    if (!colour) return;
    const gap = w > 6 ? 1 : 0, x = stepToX(s), y = mapTop + g * cellHeight, h = cellHeight - (cellHeight > 6 ? 1 : 0);
    c.globalAlpha = shows(at(s, g)) ? 1 : .16;
    c.fillStyle = colour;
    c.fillRect(x, y, Math.max(1, w - gap), h);
    const mark = STATES[V().state[at(s, g)]].mark;
    if (mark && w >= 8 && h >= 9) { c.fillStyle = mark; c.fillRect(x, y + h - 4, w - gap, 4); }
    c.globalAlpha = 1;
  }
  function busy(c, w) {   // stored groups that came back often stay visible when a pixel holds many steps
    const shows = shower();
    c.fillStyle = COLOURS.used;
    V().uses.forEach(list => {
      if (list.length < BUSY) return;
      for (const [s, g] of list) if (s >= now.from && s < now.to && shows(at(s, g))) {
        c.fillRect(stepToX(s) - .5, mapTop + g * cellHeight, Math.max(2, w), cellHeight);
      }
    });
  }

  function axis(c, fg) {
    const y = mapTop + mapHeight, n = now.to - now.from, every = Math.max(1, Math.ceil(n * 62 / inner()));
    const nice = [1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 100, 200, 250, 500, 1000, 2000].find(o => o >= every) || every;
    c.fillStyle = fg;
    c.textAlign = 'center';
    for (let s = Math.ceil(now.from / nice) * nice; s < now.to; s += nice) c.fillText(run.steps[s], stepToX(s + .5), y + 15);
    c.textAlign = 'right';
    c.fillText('step', LEFT - 12, y + 15);
    if (run.B) {
      c.fillText('group 0', LEFT - 6, mapTop + Math.max(11, cellHeight / 2 + 4));
      if (run.B > 1) c.fillText(run.B - 1, LEFT - 6, mapTop + mapHeight - Math.max(1, cellHeight / 2 - 4));
    }
    c.textAlign = 'left';
  }

  function drawOver(drag) {   // what moves: the chosen cell, the life of its stored group, the zoom
    const c = sized(ui.over), fg = getComputedStyle(root).color, w = inner() / (now.to - now.from);
    const [paper, ink] = dark() ? ['#000', '#fff'] : ['#fff', '#000'];
    const box = (s, g, line, colour) => {
      if (s < now.from || s >= now.to) return;
      const size = Math.max(w, 4), x = stepToX(s) - (size - w) / 2;
      c.lineWidth = line + 2;
      c.strokeStyle = paper;
      c.strokeRect(x, mapTop + g * cellHeight, size - (w > 6), cellHeight);
      c.lineWidth = line;
      c.strokeStyle = colour;
      c.strokeRect(x, mapTop + g * cellHeight, size - (w > 6), cellHeight);
    };
    c.globalAlpha = .5;
    c.fillStyle = fg;
    const here = stepToX(now.step + .5) - .5;
    strips.forEach((_, i) => c.fillRect(here, i * STRIP + 20, 1, STRIP - 20));   // not through the words
    c.fillRect(here, mapTop, 1, mapHeight);
    c.globalAlpha = 1;
    c.font = '12px system-ui, sans-serif';
    c.textAlign = 'right';
    strips.forEach((o, i) => {
      const j = nearestOf(o.step, run.steps[now.step]);
      if (j >= 0) c.fillText(`${num(o.value[j], 2)} at step ${o.step[j]}`, width - RIGHT, i * STRIP + 14);
    });
    if (run.B) {
      const k = entryOf(now.step, now.group);
      if (k >= 0) {
        const o = V().stored[k], mid = ([s, g]) => [stepToX(s + .5), mapTop + (g + .5) * cellHeight];
        if (o.at) {
          c.strokeStyle = fg;
          c.globalAlpha = .35;
          for (const u of V().uses[k].slice(0, 400)) { c.beginPath(); c.moveTo(...mid(o.at)); c.lineTo(...mid(u)); c.stroke(); }
          c.globalAlpha = 1;
          box(...o.at, 2, COLOURS.alive);
        }
        for (const u of V().uses[k]) box(...u, 1.5, ink);
      }
      box(now.step, now.group, 2.5, fg);
    }
    if (drag) { c.globalAlpha = .2; c.fillStyle = fg; c.fillRect(Math.min(...drag), 0, Math.abs(drag[1] - drag[0]), mapTop + mapHeight); }
  }

  function hover(e) {
    if (!run.B || e.offsetY < mapTop || e.offsetY >= mapTop + mapHeight || e.offsetX < LEFT) { ui.tip.textContent = ''; return; }
    ui.tip.textContent = say(xToStep(e.offsetX), Math.floor((e.offsetY - mapTop) / cellHeight));
  }
  const entryOf = (s, g) => {   // the stored group that stands here: what came in, or what was born here
    const v = V(), i = at(s, g);
    return v.by[i] >= 0 ? v.by[i] : v.born[i];
  };
  function say(s, g) {
    const v = V(), code = v.state[at(s, g)], k = v.by[at(s, g)];
    let out = `step ${run.steps[s]}, group ${g}: ${STATES[code].name}`;
    if (k >= 0) {
      const o = v.stored[k];
      out += ` by group ${num(o.id)}${o.step == null ? '' : ` of step ${o.step}`}, which came ${v.uses[k].length == 1 ? 'once' : v.uses[k].length + ' times'}`;
    } else if (v.born[at(s, g)] >= 0) {
      const n = v.uses[v.born[at(s, g)]].length;
      out += `, stored${n ? `, came back ${n == 1 ? 'once' : n + ' times'}` : ', never came back'}`;
    }
    return out;
  }

  // -- moving about

  function go(step, group = now.group, quiet = false) {
    now.step = clamp(step, 0, run.S - 1);
    now.group = clamp(group, 0, lastGroup(now.step));
    if (now.step < now.from || now.step >= now.to) {
      const n = now.to - now.from;
      now.from = clamp(now.step - (n >> 1), 0, run.S - n);
      now.to = now.from + n;
      stale = true;
    }
    ui.step.value = run.steps[now.step];
    if (run.B) ui.say.textContent = say(now.step, now.group);
    if (!quiet) options.moved?.(run.steps[now.step], now.group);
    return soon();
  }
  let stale = false, due = null;
  function soon() {   // keys come faster than pictures: said at once, drawn with the next frame
    return due ??= new Promise(done => {
      const act = () => {
        if (!due) return;
        due = null;
        if (stale) draw(); else drawOver();
        done(body());
      };
      requestAnimationFrame(act);
      setTimeout(act, 200);   // a page out of sight gets no frames
    });
  }
  function zoomTo(a, b) {
    a = clamp(a, 0, run.S - 1);
    b = clamp(b, a, run.S - 1);
    if (b - a < 3) { const m = (a + b) >> 1; a = clamp(m - 2, 0, Math.max(0, run.S - 4)); b = Math.min(run.S - 1, a + 3); }
    now.from = a;
    now.to = b + 1;
    ui.whole.hidden = now.from == 0 && now.to == run.S;
    draw();
  }
  function zoomBy(f) {
    const n = clamp(Math.round((now.to - now.from) * f), Math.min(4, run.S), run.S);
    const a = clamp(now.step - (n >> 1), 0, run.S - n);
    zoomTo(a, a + n - 1);
  }
  function hop(list, dir) {   // the next [step, group] of a sorted list
    const here = at(now.step, now.group), ids = list.map(([s, g]) => at(s, g));
    const i = dir > 0 ? ids.findIndex(o => o > here) : ids.findLastIndex(o => o < here);
    if (i >= 0) go(...list[i]);
  }
  function hopDead(dir) {
    for (let i = at(now.step, now.group) + dir; i >= 0 && i < run.S * run.B; i += dir)
      if (V().state[i] > 1) return go(Math.floor(i / run.B), i % run.B);
  }
  function key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const does = {ArrowLeft: () => go(now.step - 1), ArrowRight: () => go(now.step + 1), ArrowUp: () => go(now.step, now.group - 1),
      ArrowDown: () => go(now.step, now.group + 1), PageUp: () => go(now.step - 10), PageDown: () => go(now.step + 10),
      Home: () => go(0), End: () => go(run.S - 1), '+': () => zoomBy(.5), '=': () => zoomBy(.5), '-': () => zoomBy(2),
      '0': () => zoomTo(0, run.S - 1), d: () => hopDead(1), D: () => hopDead(-1),
      u: () => useHop(1), U: () => useHop(-1), Enter: () => ui.body.querySelector('.gv-row.gv-sel')?.focus()}[e.key];
    if (!does) return;
    e.preventDefault();
    e.stopPropagation();
    does();
  }
  function useHop(dir) {
    const k = entryOf(now.step, now.group);
    if (k < 0) return;
    const o = V().stored[k], all = [...(o.at ? [o.at] : []), ...V().uses[k]];
    hop(all, dir);
  }
  let timer = null;
  function play() {
    if (timer) { clearInterval(timer); timer = null; }
    else {
      if (now.step == run.S - 1) go(0);
      timer = setInterval(() => { if (now.step >= run.S - 1 || !root.isConnected) play(); else go(now.step + 1); }, 600);
    }
    ui.play.textContent = timer ? 'stop' : 'play';
    ui.play.setAttribute('aria-pressed', String(!!timer));
  }

  // -- filters, search and the list of what they found

  function refilter() { paint(); draw(); results(); go(now.step, now.group, true); }
  async function search(q) {
    now.q = q;
    now.hits = null;
    if (q) {
      ui.found.textContent = 'searching …';
      now.hits = await found(q.toLowerCase());
    }
    refilter();
  }
  async function found(q) {   // a block after another, in the page or asked for
    const hits = new Set();
    for (let b = 0; b * run.per_block < run.S; b++) {
      const block = await run.block(b);
      (block || []).forEach((rows, j) => rows.forEach(r => {
        if ([r.prompt, ...r.completions].some(t => t && t.toLowerCase().includes(q))) hits.add(at(b * run.per_block + j, r.group));
      }));
    }
    return hits;
  }
  function results() {
    ui.found.replaceChildren();
    if (!run.B || !now.filter && !now.func && !now.hits && now.order == 'step') return;
    const v = V(), shows = shower(), entry = i => v.by[i] >= 0 ? v.by[i] : v.born[i], uses = i => v.uses[entry(i)].length;
    let list = [];
    for (let i = 0; i < run.S * run.B; i++) if (shows(i)) list.push(i);
    if (now.order == 'used') {
      const seen = new Set();   // each stored group once
      list = list.filter(i => entry(i) >= 0 && !seen.has(entry(i)) && seen.add(entry(i)));
    }
    const by = {long: i => run.long[i], used: uses}[now.order], some = by ? largest(list, by, 60) : list.slice(0, 60);
    const about = i => now.order == 'long' ? `, ${many(run.long[i], 'token')}` : now.order == 'used' ? `, came ${many(uses(i), 'time')}` : '';
    ui.found.append(el('p', {}, `${many(list.length, 'group')} found${list.length > 60 ? ', the first 60 are listed' : ''}.`),
      el('div', {class: 'gv-hits'}, ...some.map(i =>
        button(`step ${run.steps[Math.floor(i / run.B)]}, group ${i % run.B}${about(i)}`, () => go(Math.floor(i / run.B), i % run.B)))));
  }

  // -- the groups of a step, and the chosen one

  function dots(rewards) {
    const [lo, hi] = run.scale, said = rewards.map(r => r == null ? 'not scored' : num(r)).join(', ');
    return el('span', {class: 'gv-dots', role: 'img', 'aria-label': 'rewards ' + said, title: 'rewards ' + said}, ...rewards.map(r => {
      if (r == null) return el('i', {class: 'gv-none'}, '?');
      const p = clamp((r - lo) / (hi - lo || 1), 0, 1);
      return el('i', {style: `--c:${mix('#D55E00', '#0072B2', p)};--p:${Math.round(100 * p)}%`});
    }));
  }
  const WHY = {'all-right': 'dead: all right', 'all-wrong': 'dead: all wrong', equal: 'dead: all alike', 'float-noise': 'dead: differ by rounding',
    'within-tolerance': 'dead: within the tolerance', unscored: 'dead: not scored'};
  const whyOf = g => (WHY[g.why] || 'dead') + ((g.completions || []).some(t => t) ? g.completions.every(t => t == g.completions[0]) ? ', one text' : ', different texts' : '');
  function fateOf(code, k, r, s) {
    const o = k >= 0 ? V().stored[k] : null;
    if (o) {
      const age = o.step == null ? '' : `, ${many(run.steps[s] - o.step, 'step')} old`;
      return `← group ${num(o.id)}${o.step == null ? '' : ` of step ${o.step}`}${age}, ${nth(1 + V().uses[k].findIndex(u => u[0] == s && u[1] == r.group))} use`;
    }
    if (code < 2) return r.id == null || now.version ? '' : `stored as group ${num(r.id)}`;
    return r.treatment == 'masked' ? 'left out of the loss' : 'left as it is';
  }
  function row(r, s) {
    const code = V().state[at(s, r.group)], k = V().by[at(s, r.group)];
    return el('button', {type: 'button', class: 'gv-row', 'aria-pressed': 'false', style: `--state:${STATES[code].colour || 'transparent'}`,
      onclick: () => go(s, r.group).then(() => ui.body.querySelector('.gv-row.gv-sel')?.focus({preventScroll: true})),
      onkeydown: e => {
        const d = {ArrowDown: 1, ArrowUp: -1}[e.key], t = {ArrowLeft: -1, ArrowRight: 1}[e.key];
        if (!d && !t) return;
        e.preventDefault();
        e.stopPropagation();
        go(now.step + (t || 0), now.group + (d || 0)).then(() => ui.body.querySelector('.gv-row.gv-sel')?.focus({preventScroll: true}));
      }},
      el('span', {class: 'gv-no'}, r.group), dots(r.rewards), el('span', {class: 'gv-why'}, code > 1 ? whyOf(r) : 'living'),
      el('span', {class: 'gv-dim'}, fateOf(code, k, r, s)));
  }
  function list(rows, s) {   // the groups of a step, made anew only when the step or what it shows has changed
    const v = V(), dead = rows.filter(r => v.state[at(s, r.group)] > 1).length, came = rows.filter(r => v.by[at(s, r.group)] >= 0).length;
    const mode = now.version ? `what if: ${v.name}` : run.correction;
    ui.rows = el('div', {class: 'gv-rows', role: 'group', 'aria-label': 'groups of this step'}, ...rows.map(r => row(r, s)));
    ui.rest = el('div');
    ui.body.replaceChildren(
      el('p', {class: 'gv-at'}, el('b', {}, `step ${run.steps[s]} of ${run.steps[run.S - 1]}`),
        `: ${dead} of ${many(rows.length, 'group')} dead, ${came} replaced`, mode ? el('span', {class: 'gv-dim'}, `; ${mode}`) : null),
      ui.rows, ui.rest);
    listed = {rows, v};
  }

  let turn = 0, listed = null;
  async function body() {
    const mine = ++turn, s = now.step;
    if (!run.B) return;
    const rows = await run.detail(s);
    if (mine != turn) return;
    if (!rows) {
      listed = null;
      ui.body.replaceChildren(el('p', {class: 'gv-dim'}, `The texts of step ${run.steps[s]} are not in this page; open the folder with \`grpo_nb watch\` to read them.`));
      return;
    }
    const g = rows.find(r => r.group == now.group) || rows[0], [left, right] = await pair(g, s);
    if (mine != turn) return;
    const top = ui.rows?.scrollTop || 0;
    if (listed?.rows != rows || listed.v != V()) list(rows, s);
    const sel = ui.rows.children[rows.indexOf(g)];
    for (const [b, on] of [[ui.rows.querySelector('.gv-sel'), false], [sel, true]]) {
      b?.classList.toggle('gv-sel', on);
      b?.setAttribute('aria-pressed', String(on));
    }
    const terms = g.replacement ? !now.version && g.replacement.terms : g.terms, beside = terms && (!right || right.classList.contains('gv-empty'));
    ui.token = el('section', {class: 'gv-token', 'aria-live': 'polite'}, ...terms ? invited(terms) : []);
    if (right && beside) right.append(ui.token);
    ui.rest.replaceChildren(tools(g), el('div', {class: 'gv-pair'}, ...[left, right || beside && ui.token].filter(Boolean)), beside ? '' : ui.token,
      run.replays || g.ratio_hist ? el('div', {class: 'gv-pair'}, ratios(g), run.replays ? buffer(s) : '') : '');
    ui.rows.scrollTop = top;
    if (sel.offsetTop < top || sel.offsetTop + sel.offsetHeight > top + ui.rows.clientHeight)
      ui.rows.scrollTop = sel.offsetTop - ui.rows.clientHeight / 2;
  }

  function tools(g) {
    const kinds = [['nothing', 'none'], ['advantage', 'advantage']];
    if (g.ratios || g.replacement?.ratios) kinds.push(['ratio to the policy that sampled', 'ratios']);
    if (g.logps) kinds.push(['log-prob', 'logps']);
    if ((g.terms || g.replacement?.terms)?.policy) kinds.push(['how far the step moved it', 'moved'], ['share of the step', 'share']);
    const [field, s] = select('colour text by', kinds, x => { now.colour = x; body().then(() => ui.colour.focus({preventScroll: true})); });
    ui.colour = s;
    if (kinds.some(k => k[1] == now.colour)) s.value = now.colour;
    const diff = ui.diff = el('input', {type: 'checkbox', onchange: () => {
      now.diff = diff.checked;
      body().then(() => ui.diff.focus({preventScroll: true}));
    }});
    diff.checked = now.diff;
    ui.link = button('copy link', () => copy());
    return el('div', {class: 'gv-bar'}, field, el('label', {class: 'gv-field'}, diff, el('span', {}, 'mark differences')), ui.link);
  }
  async function copy() {
    const where = `step=${run.steps[now.step]}&group=${now.group}`;
    const text = options.link ? options.link(run.steps[now.step], now.group) : `${location.href.split('#')[0]}#${where}`;
    try { await navigator.clipboard.writeText(text); ui.say.textContent = `copied: ${text}`; }
    catch { ui.say.textContent = text; }
    ui.say.classList.add('gv-told');
  }

  async function pair(g, s) {
    const v = V(), k = v.by[at(s, g.group)], o = k >= 0 ? v.stored[k] : null, code = v.state[at(s, g.group)];
    let came = null;
    if (o && o.at) { const rows = await run.detail(o.at[0]); came = rows && rows.find(r => r.group == o.at[1]); }
    if (o && !came && g.replacement?.completions) came = g.replacement;
    const left = side(`Group ${g.group}, sampled at step ${run.steps[s]}`, life(g, s, code), g, came && now.diff ? came : null, !o && !now.version);
    if (!o && !run.replays) return [left, null];
    if (!o) return [left, el('section', {class: 'gv-side gv-empty'}, el(run.sub, {class: 'gv-sub'}, 'What came in'),
      el('p', {class: 'gv-dim'}, code > 1 ? 'Nothing: this group stayed as it is.' : 'Nothing: this group lives.'))];
    const r = g.replacement || {}, n = 1 + v.uses[k].findIndex(u => u[0] == s && u[1] == g.group), bits = [];
    if (o.step != null) bits.push(`born at step ${o.step}`, `${many(run.steps[s] - o.step, 'step')} old`);
    bits.push(v.uses[k].length == 1 ? 'its only use' : `${nth(n)} of ${v.uses[k].length} uses`);
    if (o.score != null) bits.push(`score ${num(o.score)}`);
    if (!now.version && r.prob != null) bits.push(`drawn with probability ${num(r.prob)}`);
    const title = `What came in: group ${num(o.id)}`;
    const [then, terms] = now.version ? [] : [r.ratios, r.terms];   // in this update, not in that of its birth
    if (came) return [left, side(title, bits.join(', '), {...came, ratios: then, terms}, now.diff ? g : null, true)];
    return [left, el('section', {class: 'gv-side'}, el(run.sub, {class: 'gv-sub'}, title), el('p', {class: 'gv-dim'}, bits.join(', ')),
      el('p', {class: 'gv-dim'}, 'Its text is not on record: it was born at a step that was not recorded.'))];
  }
  function life(g, s, code) {
    const k = V().born[at(s, g.group)];
    if (k >= 0) {
      const uses = V().uses[k], o = V().stored[k];
      const when = uses.slice(0, 8).map(u => run.steps[u[0]]).join(', ') + (uses.length > 8 ? ' …' : '');
      return `Stored as group ${num(o.id)}${o.score == null ? '' : ` with score ${num(o.score)}`}; `
        + (uses.length ? `came back ${uses.length == 1 ? 'once, at step ' : uses.length + ' times, at steps '}${when}` : 'never came back')
        + (o.out == null ? '.' : `; left the buffer at step ${run.steps[o.out]}.`);
    }
    if (code > 1) return `${whyOf(g).replace(/^./, c => c.toUpperCase())}, so it teaches nothing.`;
    return run.replays ? 'Not stored: the buffer held better ones.' : 'It lives: its answers have different rewards.';
  }

  function side(title, about, g, other, trained) {
    const n = g.completions.length, cards = el('div', {class: 'gv-cards', tabindex: 0, role: 'group', 'aria-label': 'answers of ' + title});
    for (let i = 0; i < n; i++) cards.append(card(g, i, other, trained));
    return el('section', {class: 'gv-side'}, el(run.sub, {class: 'gv-sub'}, title), el('p', {class: 'gv-dim'}, about),
      el('pre', {class: 'gv-prompt', dir: 'auto', tabindex: 0, 'aria-label': 'prompt'}, ...textOf(g.prompt || '', other ? other.prompt : null, g, -1)), cards);
  }
  function card(g, i, other, trained) {
    const pick = a => a && i < a.length ? a[i] : null;
    const before = pick(g.advantages_before || g.advantages), after = trained ? pick(g.advantages) : null;
    const bits = [`reward ${num(pick(g.rewards))}`];
    if (before != null) bits.push(`advantage ${num(before, 2)}${after != null && Math.abs(after - before) > 1e-6 ? ` → ${num(after, 2)}` : ''}`);
    if (pick(g.n_tokens) != null) bits.push(many(pick(g.n_tokens), 'token'));
    if (pick(g.truncated)) bits.push('cut off');
    for (const [k, v] of Object.entries(g.rewards_by_func || {})) if (Object.keys(g.rewards_by_func).length > 1) bits.push(`${k} ${num(pick(v))}`);
    const text = trained && !other && g.terms?.tokens[i] ? tokenList(g, i)
      : el('pre', {dir: 'auto'}, ...textOf(g.completions[i] || '', other ? pick(other.completions) || '' : null, g, i));
    return el('article', {class: 'gv-card'}, el('p', {class: 'gv-dim'}, dots([pick(g.rewards)]), ' ', bits.join(', ')), text);
  }

  // -- one token: what it added to the loss, what it would add to others, and what the step made of it

  function invited(t) {
    const own = Object.values(t.by)[0].share, top = Math.max(...(own || []).flat()), i = (own || []).findIndex(o => o.includes(top));
    return [el('p', {class: 'gv-dim'}, 'Click a token, or move to it with Tab and the arrow keys: what did it add to the loss, and what followed?'),
      ...i < 0 ? [] : [button('the one with the largest share of the step', () => root.querySelectorAll('.gv-tokens')[i]?.pick(own[i].indexOf(top)))]];
  }
  let lists = 0;
  function tokenList(g, i) {   // a list box: one stop for Tab, arrows within
    const t = g.terms, values = colours(g, i), id = `gv-${++lists}-`;
    const box = el('pre', {dir: 'auto', tabindex: 0, role: 'listbox', 'aria-label': `tokens of answer ${i + 1}`, class: 'gv-tokens'},
      ...t.tokens[i].map((word, j) => el('span', {role: 'option', id: id + j, 'aria-selected': 'false', 'aria-label': word.trim() ? null : 'space',
        style: values ? `background:${tint(values[j] ?? 0)}` : null}, word)));
    let at = -1;
    const choose = j => {
      root.querySelectorAll('.gv-tokens [aria-selected=true]').forEach(o => o.setAttribute('aria-selected', 'false'));
      at = clamp(j, 0, box.children.length - 1);
      box.children[at].setAttribute('aria-selected', 'true');
      box.setAttribute('aria-activedescendant', id + at);
      ui.token.replaceChildren(...token(g, i, at));
    };
    box.pick = choose;
    box.onclick = e => { if (e.target.role == 'option') choose([...box.children].indexOf(e.target)); };
    box.onkeydown = e => {
      const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: 1e9}[e.key];
      if (to == null || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      e.stopPropagation();
      choose(to);
    };
    return box;
  }
  function colours(g, i) {   // of its tokens, -2 to 2
    const t = g.terms, own = Object.values(t.by)[0], row = k => t[k]?.[i];
    if (!row('policy')) return now.colour == 'advantage' ? t.tokens[i].map(() => g.advantages?.[i] ?? 0) : null;
    return {none: null, advantage: t.tokens[i].map(() => g.advantages?.[i] ?? 0), logps: row('policy').map(x => Math.max(-2, x * 2 / 3)),
      ratios: row('ratio')?.map(x => Math.log2(x)), moved: row('after')?.map((x, j) => 4 * (Math.exp(x) - Math.exp(row('policy')[j]))),
      share: own.share[i].map(x => 2 * Math.sqrt(x / Math.max(...own.share.flat(), 1e-9)))}[now.colour];
  }
  const CLIPPED = {1: 'stopped, above the range', '-1': 'stopped, below the range', 2: 'weight capped', 0: 'no'};
  const likely = x => x == null ? '–' : `${num(x, 4)} (${num(100 * Math.exp(x), 3)} %)`;
  function token(g, i, j) {
    const t = g.terms, at = k => t[k]?.[i]?.[j], A = g.advantages?.[i], names = Object.keys(t.by);
    const word = JSON.stringify(t.tokens[i][j]).slice(1, -1), moved = Math.exp(at('after')) - Math.exp(at('policy'));
    const said = [el(run.sub, {class: 'gv-sub'}, `“${word}”, ${t.words ? 'word' : 'token'} ${j + 1} of answer ${i + 1}`)];
    if (at('after') != null) {
      const held = t.by[names[0]].clip[i][j], against = A && Math.abs(moved) > 1e-4 && moved > 0 != A > 0;
      const why = against && Math.abs(held) != 1 ? ' Its own push was the other way: what the step did to other tokens moved it more.'
        : Math.abs(held) == 1 ? ` The clip stopped its own push, so ${at('ref') == null ? '' : 'the KL term or '}other tokens moved it.` : '';
      const how = Math.abs(moved) < 5e-5 ? 'stayed as likely as it was' : `became ${moved > 0 ? 'more' : 'less'} likely`;
      said.push(el('p', {}, el('b', {}, `It ${how}: ${num(100 * Math.exp(at('policy')), 3)} % before the step, ${num(100 * Math.exp(at('after')), 3)} % after it.`), why));
    }
    if (t.words) said.push(el('p', {class: 'gv-dim'}, 'This file holds no log-probs. Words stand for tokens, and what is known of each loss is how much one of them weighs.'));
    const facts = [['sampler', likely(at('sampler'))], ['old policy', likely(at('old'))], ['before the step', likely(at('policy'))],
      ['after the step', likely(at('after'))], ['ratio', num(at('ratio'), 4)], ['advantage', num(A, 3)],
      ['reference', likely(at('ref'))], ['KL to it, nats', num(at('kl'), 3)]].filter(o => o[1] != '–');
    const cell = x => el('td', {}, x), of = (o, k, d) => num(o[k]?.[i]?.[j], d);
    const part = x => x > 0 && x < 1e-4 ? '<0.01 %' : `${num(100 * x, 2)} %`;
    const rows = names.map((name, k) => {
      const o = t.by[name], own = !k && t.named !== false, label = own ? `${name}, this run` : name;
      if (t.words) return el('tr', {}, el('th', {scope: 'row'}, name), cell(num(o.weight[i], 3)));
      return el('tr', {class: own ? 'gv-own' : null}, el('th', {scope: 'row'}, label), cell(of(o, 'term', 4)), cell(num(o.weight[i], 3)),
        cell(o.share ? part(o.share[i][j]) : '–'), cell(o.clip ? CLIPPED[o.clip[i][j]] : '–'));
    });
    const head = (t.words ? ['loss', 'weight'] : ['loss', 'adds', 'weight', 'share', 'clipped']).map(o => el('th', {scope: 'col'}, o));
    said.push(el('dl', {class: 'gv-facts'}, ...facts.map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v)))),
      el('div', {class: 'gv-wide', tabindex: 0, role: 'group', 'aria-label': 'this token under each loss'}, el('table', {}, el('tr', {}, ...head), ...rows)));
    const loss = Array.isArray(t.loss) ? t.loss[i] : t.loss;
    if (!t.words) said.push(el('p', {class: 'gv-dim'}, `What tokens add sums to the loss${loss == null ? '' : `, here ${num(loss, 4)}`}. The weight is that of one token of this answer in the mean. The share is of the step's squared gradient at the tokens' own logits.`));
    return said;
  }

  // -- text: coloured, compared, cut

  const ANSWER = /<answer>([^]*?)<\/answer>|\\boxed\{([^{}]*)\}|####[ \t]*([^\n]+)/dg;
  const CUT = 2000;
  function textOf(text, other, g, i) {
    const id = `${now.step},${g.group},${g.step},${i}`;
    if (i >= 0 && g.tokens?.[i] && (g[now.colour]?.[i])) return tokens(g.tokens[i], g[now.colour][i]);
    if (other != null) return compare(text, other);
    const cut = text.length > CUT && !now.all.has(id) ? text.slice(0, CUT) : text, out = [];
    const A = i >= 0 && now.colour == 'advantage' ? (g.advantages_before || g.advantages || [])[i] : null;
    const found = i >= 0 ? [...cut.matchAll(ANSWER)].pop() : null;
    const span = found && found.indices.slice(1).find(o => o);
    if (span) out.push(cut.slice(0, span[0]), el('mark', {}, cut.slice(...span)), cut.slice(span[1]));
    else out.push(cut);
    if (cut.length < text.length) out.push(button(`… show ${(text.length - CUT).toLocaleString('en')} more characters`, () => { now.all.add(id); body(); }));
    const more = (i >= 0 ? g.cut?.[i] : g.cut_prompt) || 0;
    if (more) out.push(el('i', {class: 'gv-dim'}, ` … ${more.toLocaleString('en')} more characters are in the record`));
    return A == null ? out : [el('span', {style: `background:${tint(A)}`}, ...out)];
  }
  const tint = (x, top = 2) => `color-mix(in srgb, ${x >= 0 ? '#0072B2' : '#D55E00'} ${Math.round(45 * clamp(Math.abs(x) / top, 0, 1))}%, transparent)`;
  function tokens(list, values) {
    const scale = {ratios: x => Math.log(x) / Math.log(2), logps: x => -Math.min(3, -x) * 2 / 3, advantage: x => x}[now.colour];
    return list.map((t, j) => el('span', {style: `background:${tint(scale(values[j] ?? 0))}`, title: num(values[j])}, t));
  }
  function compare(a, b) {   // words of `a` that are not in `b`, in order (longest common subsequence)
    const x = a.slice(0, 3000).match(/\s+|\S+/g) || [], y = b.slice(0, 3000).match(/\s+|\S+/g) || [];
    if (x.length * y.length > 1e6) return [a];
    const L = Array.from({length: x.length + 1}, () => new Uint16Array(y.length + 1));
    for (let i = x.length - 1; i >= 0; i--) for (let j = y.length - 1; j >= 0; j--)
      L[i][j] = x[i] == y[j] ? L[i + 1][j + 1] + 1 : Math.max(L[i + 1][j], L[i][j + 1]);
    const out = [];
    for (let i = 0, j = 0; i < x.length; i++) {
      while (j < y.length && x[i] != y[j] && L[i][j + 1] >= L[i + 1][j] && L[i][j + 1] == L[i][j]) j++;
      if (j < y.length && x[i] == y[j]) { out.push(x[i]); j++; }
      else out.push(x[i].trim() ? el('mark', {class: 'gv-diff'}, x[i]) : x[i]);
    }
    return a.length > 3000 ? [...out, a.slice(3000)] : out;
  }

  // -- ratios and buffer

  function ratios(g) {
    const h = g.ratio_hist, box = el('section', {class: 'gv-side gv-plain'}, el(run.sub, {class: 'gv-sub'}, 'Ratio to the policy that sampled'));
    if (now.version) return box.append(el('p', {class: 'gv-dim'}, 'A what-if was not trained, so its ratios are not known.')), box;
    if (!h) return box.append(el('p', {class: 'gv-dim'}, 'Not recorded here.')), box;
    const top = Math.max(...h.counts, 1), total = h.counts.reduce((a, b) => a + b, 0), n = h.counts.length;
    const bits = [many(total, 'token')];
    if (g.clip_share != null) bits.push(`share clipped ${num(g.clip_share, 2)}`);
    if (g.grad_norm != null) bits.push(`gradient norm ${num(g.grad_norm, 2)}`);
    const label = `${bits.join(', ')}; ${h.counts.map((c, i) => c ? `${c} from ${h.edges[i]} to ${h.edges[i + 1]}` : '').filter(Boolean).join(', ')}`;
    const pic = svg('svg', {viewBox: '-10 0 350 116', role: 'img', 'aria-label': label, class: 'gv-pic'});
    h.counts.forEach((c, i) => pic.append(svg('rect', {x: 6 + i * 328 / n, y: 92 - 84 * c / top, width: 328 / n - 2, height: 84 * c / top,
      fill: h.edges[i] < 1 && h.edges[i + 1] > 1 ? '#0072B2' : '#8aa'})));
    pic.append(svg('path', {d: 'M4 92H336', stroke: 'currentColor'}));
    for (const i of [0, 3, 6, 9, 12, 15]) if (h.edges[i] != null) pic.append(Object.assign(svg('text', {x: 6 + i * 328 / n, y: 108, 'text-anchor': 'middle'}), {textContent: h.edges[i]}));
    box.append(el('p', {class: 'gv-dim'}, bits.join(', ') + (run.correction?.includes('without') && g.replacement ? '. Uncorrected replay takes all of these as 1.' : '.')), pic);
    return box;
  }

  function buffer(s) {
    const v = V(), box = el('section', {class: 'gv-side gv-plain'}, el(run.sub, {class: 'gv-sub'}, 'The buffer after this step'));
    const here = [];
    v.stored.forEach((o, k) => { if (o.at && o.at[0] <= s && (o.out == null || o.out > s)) here.push({...o, k}); });
    if (!here.length) return box.append(el('p', {class: 'gv-dim'}, 'Empty.')), box;
    const ages = here.map(o => run.steps[s] - o.step), old = Math.max(...ages, 1), best = Math.max(...here.map(o => o.score || 0), 1e-9);
    const pic = svg('svg', {viewBox: '0 0 350 130', role: 'img', class: 'gv-pic',
      'aria-label': `${many(here.length, 'stored group')}, up to ${old} steps old, scores up to ${num(best)}`});
    pic.append(svg('path', {d: 'M30 6V108H344', stroke: 'currentColor', fill: 'none'}));
    here.slice(0, 400).forEach((o, i) => {
      const n = v.uses[o.k].filter(u => u[0] <= s).length;
      const dot = svg('circle', {cx: 36 + 300 * ages[i] / old, cy: 104 - 92 * (o.score || 0) / best, r: 3 + Math.min(n, 8), fill: n ? '#FFB000' : '#0072B2', 'fill-opacity': .75, stroke: 'currentColor'});
      dot.append(Object.assign(svg('title'), {textContent: `group ${num(o.id)} of step ${o.step}, score ${num(o.score)}, came back ${many(n, 'time')}`}));
      pic.append(dot);
    });
    const put = (x, y, t, a) => pic.append(Object.assign(svg('text', {x, y, 'text-anchor': a}), {textContent: t}));
    put(26, 14, num(best, 2), 'end'); put(26, 108, '0', 'end'); put(36, 124, 'age 0', 'start'); put(344, 124, many(old, 'step'), 'end'); put(190, 124, 'score over age', 'middle');
    box.append(el('p', {class: 'gv-dim'}, `${many(here.length, 'group')}${v.size ? ` of at most ${v.size}` : ' stored so far'}; larger dots came back more often.`), pic);
    return box;
  }

  // -- put together

  ui.say = el('p', {class: 'gv-say', 'aria-live': 'polite'});
  ui.tip = el('p', {class: 'gv-tip gv-dim', 'aria-hidden': 'true'});
  ui.found = el('div', {class: 'gv-found'});
  ui.body = el('div', {class: 'gv-body'});
  ui.whole = button('whole run', () => zoomTo(0, run.S - 1));
  ui.whole.hidden = true;
  ui.zoom = el('span', {class: 'gv-field'}, button('+', () => zoomBy(.5), 'zoom in'), button('−', () => zoomBy(2), 'zoom out'), ui.whole);
  root.append(head(), ...options.plain ? [] : answers(run), bar(), plot());
  if (run.B) root.append(el('div', {class: 'gv-under'}, legend(), ui.zoom), ui.say, ui.tip, ui.found, ui.body, keys());
  else root.append(el('p', {class: 'gv-dim'}, 'No groups are on record, so there is no map; the curves above are from the history.'));
  if (!options.plain) root.append(...more(run));

  paint();
  draw();
  const first = options.start || hash() || {};
  const [s0, g0] = first.step != null ? [nearest(first.step), first.group || 0] : run.start || [run.S - 1, 0];
  await go(s0, g0, true);
  const again = () => { if (root.isConnected && ui.plot.clientWidth && (ui.plot.clientWidth != width || again.dark != dark())) { again.dark = dark(); draw(); } };
  again.dark = dark();
  const watch = [new ResizeObserver(again), new MutationObserver(again)];
  watch[0].observe(root);
  for (const o of [document.body, document.documentElement]) watch[1].observe(o, {attributes: true});
  const scheme = matchMedia('(prefers-color-scheme: dark)');
  scheme.addEventListener('change', again);
  const onhash = () => { const h = hash(); if (h) go(nearest(h.step), h.group || 0, true); };
  if (!options.start) addEventListener('hashchange', onhash);
  root.gv = {run, now, go, zoomTo, search};
  return () => { watch.forEach(o => o.disconnect()); scheme.removeEventListener('change', again); removeEventListener('hashchange', onhash); clearInterval(timer); };
}

function hash() {
  const h = new URLSearchParams(location.hash.slice(1));
  return h.has('step') && Number.isFinite(+h.get('step')) ? {step: +h.get('step'), group: +h.get('group') || 0} : null;
}

// ---- the rest of a report: other curves, findings, samples, settings

function more(run) {
  const out = [];
  const fold = (title, open, ...kids) => out.push(el('details', {class: 'gv-more', open}, el('summary', {}, title), ...kids));
  if (run.findings?.length) fold('What the record shows', true, el('ul', {class: 'gv-finds'}, ...run.findings.map(f => el('li', {},
    el('b', {}, f.says), f.step == null ? '' : ` (since step ${f.step})`, el('br'), el('span', {class: 'gv-dim'}, `seen: ${f.evidence}`), el('br'), `do: ${f.remedy}`,
    f.curves?.length ? el('div', {class: 'gv-figs'}, ...f.curves.map(small)) : ''))));
  const rest = run.curves.filter(c => !c.main);
  if (rest.length) fold('More curves', true, el('div', {class: 'gv-figs'}, ...rest.map(small)));
  for (const [title, rows] of Object.entries(run.tables || {})) fold(title, false, el('div', {class: 'gv-wide', tabindex: 0, role: 'group', 'aria-label': title}, el('table', {},
    ...Object.entries(rows).map(([k, v]) => el('tr', {}, el('th', {scope: 'row'}, k),
      el('td', {}, (typeof v == 'object' ? JSON.stringify(v) : num(v, 6)).slice(0, 2000)))))));
  return out;
}
function answers(run) {   // before and after, where they were measured: first what was learned
  const {before, after} = run.measured || {}, all = [...run.samples || []];
  if (!all.length && !after) return [];
  const learned = o => (o.right_after ? 1 : 0) - (o.right_before ? 1 : 0);
  all.sort((a, b) => learned(b) - learned(a));
  const said = (o, k) => el('section', {class: 'gv-side'},
    el(run.sub, {class: 'gv-sub'}, (k == 'before' ? 'Before training' : 'After it') + (o['right_' + k] == null ? '' : o['right_' + k] ? ': right' : ': wrong')),
    k == 'after' && o.prompt_after ? el('pre', {class: 'gv-prompt', dir: 'auto'}, o.prompt_after) : '', el('pre', {dir: 'auto'}, o[k] || ''));
  const pair = o => [el('pre', {class: 'gv-prompt', dir: 'auto', tabindex: 0, 'aria-label': 'prompt'}, o.prompt || ''), el('div', {class: 'gv-pair'}, said(o, 'before'), said(o, 'after'))];
  const out = el('section', {class: 'gv-answers'});
  const share = ([mean, ...ends]) => pct(mean) + (ends[0] == null ? '' : ` (${ends.map(pct).join(' to ')})`);
  if (after) out.append(el('p', {}, 'Held-out problems solved at the first try: ',
    el('b', {}, before ? `${share(before)} before, ` : '', `${share(after)} after`), '.'));
  if (all.length) out.append(...pair(all[0]));
  if (all.length > 1) out.append(el('details', {}, el('summary', {}, `${all.length - 1} more`), ...all.slice(1).flatMap(pair)));
  return [out];
}
function small(o) {
  const all = o.value.filter(Number.isFinite), lo = Math.min(...all), hi = Math.max(...all), n = o.step.length, end = o.end ?? o.step[n - 1];
  const x = s => 44 + 300 * (s - o.step[0]) / (end - o.step[0] || 1), y = v => 96 - 84 * (v - lo) / (hi - lo || 1);
  const pic = svg('svg', {viewBox: '0 0 350 124', role: 'img', class: 'gv-pic', 'aria-label': `${o.label}: ${num(o.value[0])} at step ${o.step[0]}, ${num(o.value[n - 1])} at step ${o.step[n - 1]}`});
  const put = (a, b, t, w) => pic.append(Object.assign(svg('text', {x: a, y: b, 'text-anchor': w}), {textContent: t}));
  if (o.since != null) pic.append(svg('rect', {x: x(o.since), y: 8, width: Math.max(0, 344 - x(o.since)), height: 88, fill: '#E69F00', 'fill-opacity': .2}));
  pic.append(svg('path', {d: 'M44 8V96H344', stroke: 'currentColor', fill: 'none', 'stroke-opacity': .4}),
    svg('path', {d: o.step.map((s, i) => `${i ? 'L' : 'M'}${x(s).toFixed(1)} ${y(o.value[i]).toFixed(1)}`).join(''), stroke: o.colour || '#0072B2', fill: 'none', 'stroke-width': 1.8}));
  if (n == 1) pic.append(svg('circle', {cx: x(o.step[0]), cy: y(o.value[0]), r: 3, fill: '#0072B2'}));
  if (hi > lo) put(40, 16, num(hi, 2), 'end');
  put(40, 98, num(lo, 2), 'end'); put(44, 114, `step ${o.step[0]}`, 'start'); put(344, 114, end, 'end');
  return el('figure', {}, el('figcaption', {}, o.label), pic);
}

// ---- from `grpo_nb watch`: asks its server, on this machine, and takes in what a run has written since

export async function watch(root, token, seconds = 2) {
  const get = async what => {
    const r = await fetch(`${what}${what.includes('?') ? '&' : '?'}token=${encodeURIComponent(token)}`);
    if (!r.ok) throw new Error(await r.text());
    return r;
  };
  const ask = async b => asJson(new Uint8Array(await (await get(`block?b=${b}`)).arrayBuffer()));
  const told = el('p', {class: 'gv-dim', role: 'status'}, 'waiting for the run …'), place = el('div');
  root.replaceChildren(told, place);
  told.style.font = '14px/1.45 system-ui, sans-serif';
  let stamp = null, leave = null, came = '';
  const look = async () => {
    const newest = await (await get('stamp')).text();
    if (newest == stamp) return;
    const packed = await (await get('packed')).json(), at = place.gv, focused = document.activeElement?.classList.contains('gv-plot');
    const stay = at && at.now.step < at.run.S - 1 ? {step: at.run.steps[at.now.step], group: at.now.group} : undefined;
    leave?.();
    leave = await mount(place, packed, {ask, start: stay, alone: true});
    if (focused) place.querySelector('.gv-plot').focus({preventScroll: true});
    stamp = newest;
    const {steps, S, planned} = place.gv.run, of = planned > 0 ? ` of ${planned}` : '';
    came = `as of ${new Date().toLocaleTimeString()}`;
    told.textContent = `${came}, step ${steps[S - 1]}${of}; what the run writes comes in by itself`;
  };
  const again = async () => {
    try { await look(); } catch (e) {   // a TypeError: nobody answers
      told.textContent = e instanceof TypeError ? `The watching has ended; what is here is ${came || 'nothing yet'}.` : String(e.message || e);
    }
    setTimeout(again, seconds * 1000);
  };
  await again();
}

// ---- in a notebook

export default {
  async render({model, el: root}) {
    root.classList.add('gv-widget');
    const style = document.createElement('div');
    root.append(style);
    const waiting = new Map();
    let next = 0, leave = null;
    const ask = block => new Promise(done => { const id = ++next; waiting.set(id, done); model.send({id, block}); });
    const answer = (m, buffers) => {
      if (!waiting.has(m.id)) return;
      const done = waiting.get(m.id);
      waiting.delete(m.id);
      done(asJson(asBytes(buffers[0])));
    };
    model.on('msg:custom', answer);
    const show = async () => {
      leave?.();
      leave = await mount(style, model.get('packed'), {plain: true, ask,
        start: {step: model.get('step'), group: model.get('group')}, link: (s, g) => model.get('code').replace('@step', s).replace('@group', g),
        moved: (s, g) => { model.set('step', s); model.set('group', g); model.save_changes(); }});
    };
    const follow = () => { const at = style.gv; if (at && (at.run.steps[at.now.step] != model.get('step') || at.now.group != model.get('group')))
      at.go(at.run.steps.indexOf(model.get('step')), model.get('group'), true); };
    model.on('change:packed', show);
    model.on('change:step', follow);
    model.on('change:group', follow);
    await show();
    return () => { model.off('msg:custom', answer); model.off('change:packed', show); model.off('change:step', follow); model.off('change:group', follow); leave?.(); };
  },
};
