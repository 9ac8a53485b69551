// The plot: curves above the map, on a shared axis of steps, for mouse and keyboard.

import {CELLS, COLOURS} from './cells.js';
import {nearestOf} from './data.js';
import {clamp, el, isDark, many, num} from './dom.js';

const LEFT = 64, RIGHT = 10, AXIS = 20;   // pixels
const FIRST = 150, STRIP = 80;         // heights of strips, which hold a curve each: the learning curve is first
const BUSY = 10;                       // a group replayed this often stays visible when zoomed out
const FONT = '12px system-ui, sans-serif';

export class Plot {
  // `go(step, group)` selects a cell; `enter` moves to the answers; `zoomed` is called with the visible steps.
  constructor(root, selection, {go, enter, zoomed}) {
    this.root = root;
    this.selection = selection;
    this.run = selection.run;
    this.now = selection.now;
    this.go = go;
    this.enter = enter;
    this.zoomed = zoomed;
    this.strips = this.run.curves.filter(c => c.main);
    this.tops = this.strips.map((_, i) => i && FIRST + (i - 1) * STRIP);
    this.cellHeight = this.run.B ? clamp(Math.floor(320 / this.run.B), 5, 22) : 0;
    this.mapTop = this.strips.length ? this.tops.at(-1) + this.tall(this.strips.length - 1) + 4 : 4;
    this.mapHeight = this.cellHeight * this.run.B;
    this.width = 0;
    this.pixels = null;                // an image with a pixel per cell
    this.tip = el('p', {class: 'gv-tip gv-dim', 'aria-hidden': 'true'});
    this.canvas = el('canvas', {'aria-hidden': 'true'});
    this.over = el('canvas', {'aria-hidden': 'true', class: 'gv-over'});
    const what = `${many(this.run.S, 'step')}${this.run.B ? ` by ${many(this.run.B, 'group')}` : ''}`;
    this.place = el('div', {class: 'gv-plot', tabindex: 0, role: 'application', 'aria-roledescription': 'map of a run',
      'aria-label': `${what}; arrow keys move, Enter goes to the answers`, onkeydown: e => this.key(e)},
      this.canvas, this.over);
    this.place.style.height = this.height + 'px';
    this.listen();
  }
  get height() { return this.mapTop + this.mapHeight + AXIS; }
  tall(i) { return i ? STRIP : FIRST; }
  get inner() { return this.width - LEFT - RIGHT; }
  get columnWidth() { return this.inner / (this.now.to - this.now.from); }
  get ink() { return getComputedStyle(this.root).color; }
  stepToX(s) { return LEFT + (s - this.now.from) * this.columnWidth; }
  xToStep(x) { return clamp(Math.floor(this.now.from + (x - LEFT) / this.columnWidth), 0, this.run.S - 1); }
  yOf(g) { return this.mapTop + g * this.cellHeight; }
  groupAt(y) { return Math.floor((y - this.mapTop) / this.cellHeight); }
  isOnMap(y) { return y >= this.mapTop && y < this.mapTop + this.mapHeight; }
  position(step) {                     // a step's number as a position among the recorded ones
    const {steps, S} = this.run;
    let lo = 0, hi = S - 1;
    if (step <= steps[0]) return step - steps[0];
    if (step >= steps[hi]) return hi;
    while (hi - lo > 1) {
      const m = (lo + hi) >> 1;
      if (steps[m] <= step) lo = m;
      else hi = m;
    }
    return lo + (step - steps[lo]) / (steps[hi] - steps[lo]);
  }

  // ---- mouse and keys

  listen() {
    const {over, place} = this;
    let down = null;
    const drags = e => down != null && Math.abs(e.offsetX - down) > 6;
    over.addEventListener('pointerdown', e => {
      down = e.offsetX;
      over.setPointerCapture(e.pointerId);
    });
    over.addEventListener('pointermove', e => drags(e) ? this.drawOver([down, e.offsetX]) : this.hover(e));
    over.addEventListener('pointerup', e => {
      const dragged = drags(e), ends = [this.xToStep(down), this.xToStep(e.offsetX)].sort((p, q) => p - q);
      down = null;
      if (dragged) return this.zoomTo(ends[0], ends[1]);
      this.go(this.xToStep(e.offsetX), this.isOnMap(e.offsetY) ? this.groupAt(e.offsetY) : this.now.group);
      place.focus({preventScroll: true});
    });
    over.addEventListener('pointercancel', () => {
      down = null;
      this.drawOver();
    });
    over.addEventListener('pointerleave', () => { this.tip.textContent = ''; });
    over.addEventListener('dblclick', () => this.zoomTo(0, this.run.S - 1));
  }
  hover(e) {
    const outside = !this.run.B || !this.isOnMap(e.offsetY) || e.offsetX < LEFT;
    this.tip.textContent = outside ? ''
      : this.selection.describe(this.xToStep(e.offsetX), this.groupAt(e.offsetY));
  }
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const {step, group} = this.now, last = this.run.S - 1;
    const act = {ArrowLeft: () => this.go(step - 1), ArrowRight: () => this.go(step + 1),
      ArrowUp: () => this.go(step, group - 1), ArrowDown: () => this.go(step, group + 1),
      PageUp: () => this.go(step - 10), PageDown: () => this.go(step + 10),
      Home: () => this.go(0), End: () => this.go(last),
      '+': () => this.zoomBy(.5), '=': () => this.zoomBy(.5), '-': () => this.zoomBy(2),
      '0': () => this.zoomTo(0, last), d: () => this.hopDead(1), D: () => this.hopDead(-1),
      u: () => this.hopUse(1), U: () => this.hopUse(-1), Enter: () => this.enter()}[e.key];
    if (!act) return;
    e.preventDefault();
    e.stopPropagation();
    act();
  }
  hopDead(dir) {                       // to the next dead group
    const {run, selection} = this;
    for (let i = selection.at(this.now.step, this.now.group) + dir; i >= 0 && i < run.S * run.B; i += dir) {
      const [s, g] = selection.place(i);
      if (selection.cell(s, g).dead) return this.go(s, g);
    }
  }
  hopUse(dir) {                        // to the next use of the selected stored group
    const {selection, now} = this, k = selection.entry(now.step, now.group);
    if (k < 0) return;
    const {stored, uses} = selection.version, all = [...(stored[k].at ? [stored[k].at] : []), ...uses[k]];
    const here = selection.at(now.step, now.group), ids = all.map(([s, g]) => selection.at(s, g));
    const i = dir > 0 ? ids.findIndex(o => o > here) : ids.findLastIndex(o => o < here);
    if (i >= 0) this.go(all[i][0], all[i][1]);
  }

  // ---- zoom: the steps from `now.from` up to `now.to`

  zoomTo(a, b) {
    const {S} = this.run;
    a = clamp(a, 0, S - 1);
    b = clamp(b, a, S - 1);
    if (b - a < 3) {
      a = clamp(((a + b) >> 1) - 2, 0, Math.max(0, S - 4));
      b = Math.min(S - 1, a + 3);
    }
    this.now.from = a;
    this.now.to = b + 1;
    this.zoomed(a == 0 && b == S - 1);
    this.draw();
  }
  zoomBy(f) {
    const {now} = this, {S} = this.run, n = clamp(Math.round((now.to - now.from) * f), Math.min(4, S), S);
    const a = clamp(now.step - (n >> 1), 0, S - n);
    this.zoomTo(a, a + n - 1);
  }
  follow() {                           // scroll the selected step into view; true if the map moved
    const {now} = this, n = now.to - now.from;
    if (now.step >= now.from && now.step < now.to) return false;
    now.from = clamp(now.step - (n >> 1), 0, this.run.S - n);
    now.to = now.from + n;
    return true;
  }

  // ---- drawn once per version and filter

  paint() {
    this.pixels = null;
    const {run, selection} = this, {S, B} = run;
    if (!B) return;
    this.pixels = document.createElement('canvas');
    this.pixels.width = S;
    this.pixels.height = B;
    const c = this.pixels.getContext('2d'), d = c.createImageData(S, B), shows = selection.shower(), inks = new Map();
    for (let s = 0; s < S; s++) for (let g = 0; g < B; g++) {
      const hex = selection.colour(s, g), p = 4 * (g * S + s);
      if (!hex) continue;
      if (!inks.has(hex)) inks.set(hex, [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
      d.data.set([...inks.get(hex), shows(selection.at(s, g)) ? 255 : 40], p);
    }
    c.putImageData(d, 0, 0);
  }

  // ---- drawn when the size, the zoom or the theme changes

  draw() {
    this.width = Math.max(240, this.place.clientWidth);
    const c = this.cleared(this.canvas), ink = this.ink;
    this.root.style.colorScheme = isDark(this.root) ? 'dark' : 'light';
    c.font = FONT;
    c.fillStyle = c.strokeStyle = ink;
    this.strips.forEach((o, i) => this.strip(c, o, this.tops[i], this.tall(i), ink));
    if (this.run.B) this.cells(c);
    this.axis(c, ink);
    this.drawOver();
  }
  cleared(canvas) {
    const r = window.devicePixelRatio || 1, c = canvas.getContext('2d');
    const size = [Math.round(this.width * r), Math.round(this.height * r)];
    if (canvas.width != size[0] || canvas.height != size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.width = this.width + 'px';
      canvas.style.height = this.height + 'px';
    }
    c.setTransform(r, 0, 0, r, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    return c;
  }
  strip(c, o, top, tall, ink) {        // a curve with its band
    const h = tall - 28, all = [...o.value, ...(o.low || []), ...(o.high || [])].filter(Number.isFinite);
    const lo = o.share ? 0 : Math.min(...all), hi = o.share ? 1 : Math.max(...all, lo + 1e-9);
    const y = v => top + 20 + h * (1 - (v - lo) / (hi - lo || 1));
    const x = s => this.stepToX(this.position(s) + .5);
    c.save();
    c.globalAlpha = .25;
    c.strokeStyle = ink;
    c.strokeRect(LEFT, top + 20, this.inner, h);
    const middle = lo + (hi - lo) / 2;
    if (tall == FIRST) c.strokeRect(LEFT, y(middle), this.inner, 0);
    c.restore();
    c.fillStyle = ink;
    c.textAlign = 'right';
    c.fillText(num(hi, 2), LEFT - 6, top + 28);
    if (tall == FIRST) c.fillText(num(middle, 2), LEFT - 6, y(middle) + 4);
    c.fillText(num(lo, 2), LEFT - 6, top + tall - 8);
    c.textAlign = 'left';
    c.save();
    c.beginPath();
    c.rect(LEFT, top, this.inner, tall);
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
    if (o.step.length < 60) o.step.forEach((s, i) => {
      c.beginPath();
      c.arc(x(s), y(o.value[i]), 2.2, 0, 7);
      c.fill();
    });
    c.restore();
    c.fillStyle = ink;
    c.fillText(o.label, LEFT, top + 14);
  }
  cells(c) {
    const {now, run} = this, n = now.to - now.from, w = this.columnWidth, shows = this.selection.shower();
    c.save();
    c.beginPath();
    c.rect(LEFT, this.mapTop, this.inner, this.mapHeight);
    c.clip();
    if (w < 3) {
      c.imageSmoothingQuality = 'high';
      c.imageSmoothingEnabled = w < 1;
      c.drawImage(this.pixels, now.from, 0, n, run.B, LEFT, this.mapTop, this.inner, this.mapHeight);
      this.busy(c, w, shows);
    } else for (let s = now.from; s < now.to; s++) for (let g = 0; g < run.B; g++) this.cell(c, s, g, w, shows);
    c.restore();
  }
  cell(c, s, g, w, shows) {
    const {selection, cellHeight} = this, colour = selection.colour(s, g);
    if (!colour) return;
    const gap = w > 6 ? 1 : 0, x = this.stepToX(s), y = this.yOf(g), h = cellHeight - (cellHeight > 6 ? 1 : 0);
    c.globalAlpha = shows(selection.at(s, g)) ? 1 : .16;
    c.fillStyle = colour;
    c.fillRect(x, y, Math.max(1, w - gap), h);
    const {mark} = selection.cell(s, g);
    if (mark && w >= 8 && h >= 9) {
      c.fillStyle = mark;
      c.fillRect(x, y + h - 4, w - gap, 4);
    }
    c.globalAlpha = 1;
  }
  busy(c, w, shows) {                  // often replayed groups, where one pixel covers many steps
    const {now, selection} = this;
    c.fillStyle = COLOURS.stored;
    for (const uses of selection.version.uses) {
      if (uses.length < BUSY) continue;
      for (const [s, g] of uses) if (s >= now.from && s < now.to && shows(selection.at(s, g)))
        c.fillRect(this.stepToX(s) - .5, this.yOf(g), Math.max(2, w), this.cellHeight);
    }
  }
  axis(c, ink) {
    const {now, run} = this, y = this.mapTop + this.mapHeight, every = Math.max(1, Math.ceil(62 / this.columnWidth));
    const nice = [1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 100, 200, 250, 500, 1000, 2000].find(o => o >= every) || every;
    c.fillStyle = ink;
    c.textAlign = 'center';
    for (let s = Math.ceil(now.from / nice) * nice; s < now.to; s += nice)
      c.fillText(run.steps[s], this.stepToX(s + .5), y + 15);
    c.textAlign = 'right';
    c.fillText('step', LEFT - 12, y + 15);
    if (run.B) {
      c.fillText('group 0', LEFT - 6, this.mapTop + Math.max(11, this.cellHeight / 2 + 4));
      if (run.B > 1) c.fillText(String(run.B - 1), LEFT - 6, y - Math.max(1, this.cellHeight / 2 - 4));
    }
    c.textAlign = 'left';
  }

  // ---- redrawn with every move: the selected cell, the uses of its stored group, the zoom

  drawOver(drag) {
    const c = this.cleared(this.over), {now, run, strips} = this, ink = this.ink;
    c.globalAlpha = .5;
    c.fillStyle = ink;
    const here = this.stepToX(now.step + .5) - .5;
    strips.forEach((_, i) => c.fillRect(here, this.tops[i] + 20, 1, this.tall(i) - 20));   // crosses no label
    c.fillRect(here, this.mapTop, 1, this.mapHeight);
    c.globalAlpha = 1;
    c.font = FONT;
    c.textAlign = 'right';
    strips.forEach((o, i) => {
      const j = nearestOf(o.step, run.steps[now.step]);
      if (j >= 0) c.fillText(`${num(o.value[j], 2)} at step ${o.step[j]}`, this.width - RIGHT, this.tops[i] + 14);
    });
    if (run.B) {
      this.drawLife(c, this.selection.entry(now.step, now.group), ink);
      this.box(c, [now.step, now.group], 2.5, ink);
    }
    if (!drag) return;
    c.globalAlpha = .2;
    c.fillStyle = ink;
    c.fillRect(Math.min(...drag), 0, Math.abs(drag[1] - drag[0]), this.mapTop + this.mapHeight);
  }
  drawLife(c, k, ink) {                // where a stored group was sampled, and where it was replayed
    if (k < 0) return;
    const {at} = this.selection.version.stored[k], uses = this.selection.version.uses[k];
    const middle = ([s, g]) => [this.stepToX(s + .5), this.yOf(g + .5)];
    if (at) {
      c.strokeStyle = ink;
      c.globalAlpha = .35;
      for (const u of uses.slice(0, 400)) {
        c.beginPath();
        c.moveTo(...middle(at));
        c.lineTo(...middle(u));
        c.stroke();
      }
      c.globalAlpha = 1;
      this.box(c, at, 2, COLOURS.living);
    }
    for (const u of uses) this.box(c, u, 1.5, isDark(this.root) ? '#fff' : '#000');
  }
  box(c, [s, g], line, colour) {
    if (s < this.now.from || s >= this.now.to) return;
    const w = this.columnWidth, size = Math.max(w, 4), x = this.stepToX(s) - (size - w) / 2;
    for (const [wide, ink] of [[line + 2, isDark(this.root) ? '#000' : '#fff'], [line, colour]]) {
      c.lineWidth = wide;
      c.strokeStyle = ink;
      c.strokeRect(x, this.yOf(g), size - (w > 6 ? 1 : 0), this.cellHeight);
    }
  }
}

// ---- around the plot

export function legend(run) {          // the colors that occur in the map
  const out = el('ul', {class: 'gv-legend', 'aria-label': 'colors of the map'});
  const there = new Set(run.versions.flatMap(v => [...new Set(v.state)]).map(code => CELLS[code]));
  const put = (colour, text) => out.append(el('li', {}, el('i', {style: `background:${colour}`}), text));
  put(COLOURS.living, 'living');
  if ([...there].some(o => o.replaced))
    put(`linear-gradient(90deg,${COLOURS.stored_once},${COLOURS.stored})`,
      'dead, replaced' + (run.replays ? ' (stronger: that stored group came often)' : ''));
  for (const o of CELLS)
    if (there.has(o) && (o.key == 'stored' || o.dead && !o.replaced)) put(o.colour, o.name);
  if (run.replays)
    put('linear-gradient(currentColor,currentColor) center/100% 1px no-repeat',
      'from where a group was stored to where it came back');
  return out;
}
export function keyHelp() {
  const rows = [['← → ↑ ↓', 'neighbouring step or group'], ['Page up, Page down', 'ten columns'],
    ['Home, End', 'first and last step'], ['+ and −', 'zoom around the step'], ['0', 'whole run'],
    ['u and U', 'next and previous use of the stored group'], ['d and D', 'next and previous dead group'],
    ['Enter', 'to the answers']];
  return el('details', {class: 'gv-keys'}, el('summary', {}, 'Keys on the map'),
    el('dl', {}, ...rows.flatMap(([k, t]) => [el('dt', {}, k), el('dd', {}, t)])),
    el('p', {}, 'With the mouse: click a cell to open it, drag across to zoom.'));
}
