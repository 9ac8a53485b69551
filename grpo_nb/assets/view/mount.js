// One view of a run: its curves, its map, its groups.

import {setColours} from './cells.js';
import {unpack} from './data.js';
import {button, clamp, el, isDark} from './dom.js';
import {Groups} from './groups.js';
import {Plot, keyHelp, legend} from './plot.js';
import {answers, details, heading} from './report.js';
import {Search} from './search.js';
import {Selection} from './selection.js';

// Show a packed run in `root`; returns a function that removes it. Options: `ask(block)` fetches missing texts;
// `start` is {step, group}; `moved(step, group)` is called after a move; `link(step, group)` makes the link to copy;
// `alone`: the page shows nothing else; `plain`: without a report's sections.
export async function mount(root, packed, options = {}) {
  const run = await unpack(packed, options.ask);
  [run.title, run.sub] = options.alone ? ['h1', 'h2'] : ['h2', 'h3'];
  const view = new View(root, run, options);
  await view.begin();
  root.gv = view;
  return () => view.end();
}

class View {
  constructor(root, run, options) {
    this.root = root;
    this.run = run;
    this.options = options;
    this.selection = new Selection(run);
    this.due = null;                   // promise of the next picture
    this.stale = false;                // must the map itself be redrawn?
    this.timer = null;                 // of the play button
    this.now = this.selection.now;
    this.go = this.go.bind(this);
    const say = text => {
      this.said.textContent = text;
      this.said.classList.add('gv-told');
    };
    this.said = el('p', {class: 'gv-say', 'aria-live': 'polite'});
    this.groups = new Groups(root, this.selection, {go: this.go, say, link: options.link || addressOf});
    const changed = () => {
      this.plot.paint();
      this.draw();
    };
    this.searcher = new Search(this.selection, {changed, go: this.go});
    root.replaceChildren();
    root.classList.add('gv');
    root.dataset.lmSuppressShortcuts = 'true';   // JupyterLab must not take our keys
    setColours(root);
    this.plot = new Plot(root, this.selection, {go: this.go, enter: () => this.groups.chosenRow?.focus(),
      zoomed: all => { this.whole.hidden = all; }});
    this.fill();
  }
  fill() {
    const {root, run, options, plot} = this;
    this.whole = button('whole run', () => plot.zoomTo(0, run.S - 1));
    this.whole.hidden = true;
    const zoom = el('span', {class: 'gv-field'}, button('+', () => plot.zoomBy(.5), 'zoom in'),
      button('−', () => plot.zoomBy(2), 'zoom out'), this.whole);
    root.append(heading(run), ...options.plain ? [] : answers(run), this.bar(), plot.place);
    if (run.B) root.append(el('div', {class: 'gv-under'}, legend(run), zoom), this.said, plot.tip,
      this.searcher.place, this.groups.place, keyHelp());
    else root.append(el('p', {class: 'gv-dim'}, 'No groups are on record, so there is no map; the curves above are '
      + 'from the history.'));
    if (!options.plain) root.append(...details(run));
  }
  bar() {                              // step controls, filters and search
    const {run} = this, {steps} = run;
    this.stepField = el('input', {type: 'number', 'aria-label': 'step', min: steps[0], max: steps[run.S - 1],
      onchange: () => this.go(this.selection.nearest(+this.stepField.value), this.now.group)});
    this.playButton = button('play', () => this.play());
    this.playButton.setAttribute('aria-pressed', 'false');
    const to = (words, by, label) => button(words, () => this.go(this.now.step + by), label);
    return el('div', {class: 'gv-bar'}, el('span', {class: 'gv-field'}, to('◀', -1, 'previous step'),
      el('label', {class: 'gv-field'}, el('span', {}, 'step'), this.stepField), to('▶', 1, 'next step')),
      this.playButton, ...run.B ? this.searcher.fields() : []);
  }

  async begin() {
    const {root, run, options, plot} = this, first = options.start || addressed();
    plot.paint();
    this.draw();
    const [s, g] = first?.step != null ? [this.selection.nearest(first.step), first.group || 0]
      : run.start || [run.S - 1, 0];
    await this.go(s, g, true);
    let dark = isDark(root);
    this.again = () => {               // after a change of size or theme
      const {clientWidth} = plot.place;
      if (!root.isConnected || !clientWidth || clientWidth == plot.width && dark == isDark(root)) return;
      dark = isDark(root);
      this.draw();
    };
    this.onhash = () => {
      const h = addressed();
      if (h) this.go(this.selection.nearest(h.step), h.group || 0, true);
    };
    const sizes = new ResizeObserver(this.again), themes = new MutationObserver(this.again);
    sizes.observe(root);
    for (const o of [document.body, document.documentElement]) themes.observe(o, {attributes: true});
    this.observers = [sizes, themes];
    this.scheme = matchMedia('(prefers-color-scheme: dark)');
    this.scheme.addEventListener('change', this.again);
    if (!options.start) addEventListener('hashchange', this.onhash);
  }
  end() {
    for (const o of this.observers) o.disconnect();
    this.scheme.removeEventListener('change', this.again);
    removeEventListener('hashchange', this.onhash);
    clearInterval(this.timer);
  }
  draw() {
    this.stale = false;
    this.plot.draw();
  }
  zoomTo(a, b) { this.plot.zoomTo(a, b); }
  search(q) { return this.searcher.search(q); }

  // Select a group; the promise resolves once it is shown.
  go(step, group = this.now.group, quiet = false) {
    const {now, run, selection} = this;
    now.step = clamp(step, 0, run.S - 1);
    now.group = clamp(group, 0, selection.lastGroup(now.step));
    if (this.plot.follow()) this.stale = true;
    this.stepField.value = run.steps[now.step];
    if (run.B) this.said.textContent = selection.describe(now.step, now.group);
    if (!quiet) this.options.moved?.(run.steps[now.step], now.group);
    return this.soon();
  }
  soon() {                             // keys arrive faster than frames: announced at once, drawn with the next frame
    return this.due ??= new Promise(done => {
      const act = () => {
        if (!this.due) return;
        this.due = null;
        if (this.stale) this.draw();
        else this.plot.drawOver();
        done(this.groups.show());
      };
      requestAnimationFrame(act);
      setTimeout(act, 200);            // a hidden page gets no frames
    });
  }
  play() {
    const {now, run} = this;
    const next = () => now.step >= run.S - 1 || !this.root.isConnected ? this.play() : this.go(now.step + 1);
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
    } else {
      if (now.step == run.S - 1) this.go(0);
      this.timer = setInterval(next, 600);
    }
    this.playButton.textContent = this.timer ? 'stop' : 'play';
    this.playButton.setAttribute('aria-pressed', String(!!this.timer));
  }
}

// ---- a step and a group in the page's address

const addressOf = (step, group) => `${location.href.split('#')[0]}#step=${step}&group=${group}`;
function addressed() {
  const h = new URLSearchParams(location.hash.slice(1)), step = h.has('step') ? +h.get('step') : NaN;
  return Number.isFinite(step) ? {step, group: +h.get('group') || 0} : null;
}
