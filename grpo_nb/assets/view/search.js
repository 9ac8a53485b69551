// Filters, search, and the list of groups found.

import {FILTERS} from './cells.js';
import {largest} from './data.js';
import {button, el, many, select} from './dom.js';

const LISTED = 60;

export class Search {
  // `changed` redraws the map after another choice; `go(step, group)` selects a group.
  constructor(selection, {changed, go}) {
    this.selection = selection;
    this.run = selection.run;
    this.now = selection.now;
    this.changed = changed;
    this.go = go;
    this.place = el('div', {class: 'gv-found'});
  }
  fields() {
    const {run, now} = this, out = [];
    const field = (label, choices, set) => out.push(select(label, choices, x => {
      set(x);
      this.refilter();
    })[0]);
    if (run.versions.length > 1) field('what if', run.versions.map((v, i) => [v.name, i]), x => { now.version = +x; });
    field('show', FILTERS.map(([name], i) => [name, i]), x => { now.filter = +x; });
    const names = Object.keys(run.funcs);
    if (names.length) field('reward function', [['any', ''], ...names.flatMap(n =>
      [[`${n}: differs`, '2' + n], [`${n}: all low`, '1' + n], [`${n}: all high`, '3' + n]])], x => { now.func = x; });
    out.push(select('sort by', [['step', 'step'], ['longest answer', 'long'], ['most used', 'used']], x => {
      now.order = x;
      this.list();
    })[0]);
    const q = el('input', {type: 'search', placeholder: 'in prompts and answers', 'aria-label': 'search',
      onkeydown: e => { if (e.key == 'Enter') this.search(q.value); },
      oninput: () => { if (!q.value) this.search(''); }});
    out.push(el('span', {class: 'gv-field'}, q, button('search', () => this.search(q.value))));
    return out;
  }
  refilter() {
    this.changed();
    this.list();
    this.go(this.now.step, this.now.group, true);
  }
  async search(q) {
    this.now.q = q;
    this.now.hits = null;
    if (q) {
      this.place.textContent = 'searching …';
      this.now.hits = await this.find(q.toLowerCase());
    }
    this.refilter();
  }
  async find(q) {                      // block by block, from the page or fetched
    const {run, selection} = this, hits = new Set();
    const has = r => [r.prompt, ...r.completions].some(t => t && t.toLowerCase().includes(q));
    for (let b = 0; b * run.per_block < run.S; b++) {
      const block = await run.block(b) || [];
      block.forEach((rows, j) => rows.forEach(r => {
        if (has(r)) hits.add(selection.at(b * run.per_block + j, r.group));
      }));
    }
    return hits;
  }
  list() {
    const {run, now, selection} = this;
    this.place.replaceChildren();
    if (!run.B || !now.filter && !now.func && !now.hits && now.order == 'step') return;
    const shows = selection.shower(), entry = i => selection.entry(...selection.place(i));
    const uses = i => selection.version.uses[entry(i)].length;
    let found = [];
    for (let i = 0; i < run.S * run.B; i++) if (shows(i)) found.push(i);
    if (now.order == 'used') {         // each stored group once
      const seen = new Set();
      found = found.filter(i => entry(i) >= 0 && !seen.has(entry(i)) && seen.add(entry(i)));
    }
    const by = {long: i => run.long[i], used: uses}[now.order];
    const about = {long: i => `, ${many(run.long[i], 'token')}`, used: i => `, came ${many(uses(i), 'time')}`}[now.order];
    const hit = i => {
      const [s, g] = selection.place(i);
      return button(`step ${run.steps[s]}, group ${g}${about ? about(i) : ''}`, () => this.go(s, g));
    };
    const some = by ? largest(found, by, LISTED) : found.slice(0, LISTED);
    const more = found.length > LISTED ? `, the first ${LISTED} are listed` : '';
    this.place.append(el('p', {}, `${many(found.length, 'group')} found${more}.`),
      el('div', {class: 'gv-hits'}, ...some.map(hit)));
  }
}
