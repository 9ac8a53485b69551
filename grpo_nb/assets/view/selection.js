// What is selected in a run: step, group, version, filter; and what each cell holds, in words.

import {CELLS, FILTERS, REPLACED} from './cells.js';
import {nearestOf} from './data.js';
import {num, times} from './dom.js';

export class Selection {
  constructor(run) {
    this.run = run;
    this.now = {step: run.S - 1, group: 0, version: 0, from: 0, to: run.S, filter: 0, func: '', q: '', hits: null,
      order: 'step', colour: 'none', diff: false, all: new Set()};
  }
  get version() { return this.run.versions[this.now.version]; }
  get isWhatIf() { return this.now.version > 0; }
  at(s, g) { return s * this.run.B + g; }
  place(i) { return [Math.floor(i / this.run.B), i % this.run.B]; }   // step and group of a cell
  cell(s, g) { return CELLS[this.version.state[this.at(s, g)]]; }
  lastGroup(s) {
    let g = this.run.B - 1;
    while (g > 0 && !this.version.state[this.at(s, g)]) g--;
    return Math.max(0, g);
  }
  nearest(step) { return nearestOf(this.run.steps, step); }

  // ---- the stored group of a cell, as a number in `version.stored`; -1 where there is none

  cameIn(s, g) { return this.version.by[this.at(s, g)]; }
  bornIn(s, g) { return this.version.born[this.at(s, g)]; }
  entry(s, g) {                        // the stored group that was replayed here, or sampled here
    const k = this.cameIn(s, g);
    return k >= 0 ? k : this.bornIn(s, g);
  }
  useOf(k, s, g) { return 1 + this.version.uses[k].findIndex(u => u[0] == s && u[1] == g); }   // 1: its first

  colour(s, g) {
    const cell = this.cell(s, g), k = this.cameIn(s, g);
    if (!cell.replaced && cell.key != 'stored') return cell.colour;
    return REPLACED[k >= 0 ? Math.min(16, this.version.uses[k].length) : 1];
  }
  shower() {                           // a function: does a cell pass the current filters?
    const {now, run} = this, {state} = this.version, passes = FILTERS[now.filter][1], same = run.same || [];
    const func = now.func && run.funcs[now.func.slice(1)], want = +now.func[0], hits = now.hits;
    return i => state[i] > 0 && passes(CELLS[state[i]], same[i]) && (!func || func[i] == want)
      && (!hits || hits.has(i));
  }
  describe(s, g) {
    const v = this.version, k = this.cameIn(s, g), born = this.bornIn(s, g);
    const out = `step ${this.run.steps[s]}, group ${g}: ${this.cell(s, g).name}`;
    if (k >= 0) {
      const o = v.stored[k], of = o.step == null ? '' : ` of step ${o.step}`;
      return `${out} by group ${num(o.id)}${of}, which came ${times(v.uses[k].length)}`;
    }
    if (born < 0) return out;
    const n = v.uses[born].length;
    return `${out}, stored${n ? `, came back ${times(n)}` : ', never came back'}`;
  }
}
