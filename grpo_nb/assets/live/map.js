// The map of a run in progress: a column of squares for each batch, with its groups from top to bottom.
// For keyboard and screen reader it is a grid: arrow keys move, and the square they reach is selected.

import {el} from './dom.js';

export class RunMap {
  // It starts with `columns` by `rows` empty squares; selecting a square calls `choose(column, row)`.
  constructor(root, {columns, rows, label, choose}) {
    this.rows = rows;
    this.choose = choose;
    this.filled = [];
    this.at = [0, 0];
    const onkeydown = e => this.key(e);
    this.grid = el('div', {class: 'cells ghosts', role: 'grid', 'aria-label': label, onkeydown});
    for (let c = 0; c < columns; c++) this.grid.append(this.ghosts());
    root.append(this.grid);
  }
  ghosts() {
    const squares = Array.from({length: this.rows}, () => el('i', {class: 'cell'}));
    return el('div', {class: 'col', 'aria-hidden': 'true'}, ...squares);
  }
  add(groups) {                        // the next column: {code, says} of each group
    const c = this.filled.length, squares = groups.map((o, r) => this.square(c, r, o));
    const column = el('div', {class: 'col new', role: 'row', 'aria-label': `batch ${c + 1}`}, ...squares);
    if (this.grid.children[c]) this.grid.children[c].replaceWith(column);
    else this.grid.append(column);
    this.grid.classList.remove('ghosts');
    this.filled.push(squares);
    const out = column.offsetLeft + column.offsetWidth - this.grid.clientWidth;   // where the map is wider than its place
    if (out > this.grid.scrollLeft) this.grid.scrollLeft = out;
    if (!c) squares[0].tabIndex = 0;
  }
  fade(c, same) {                      // the squares of a column that are the same as in the original run
    this.filled[c].forEach((o, r) => o.classList.toggle('same', same[r]));
  }
  square(c, r, {code, says}) {
    const drawn = {class: `cell s${code}`, title: says, tabindex: -1};
    const told = {type: 'button', role: 'gridcell', 'aria-selected': 'false', 'aria-label': says};
    return el('button', {...drawn, ...told, onclick: () => this.choose(c, r)});
  }
  get chosen() { return this.filled[this.at[0]]?.[this.at[1]]; }
  get isMarked() { return this.chosen?.getAttribute('aria-selected') == 'true'; }
  mark(at) {                           // select a square, or none without `at`
    this.chosen?.setAttribute('aria-selected', 'false');
    if (!at) return;
    if (this.chosen) this.chosen.tabIndex = -1;
    this.at = at;
    this.chosen.tabIndex = 0;
    this.chosen.setAttribute('aria-selected', 'true');
  }
  walk(columns, rows, focus = true) {  // to a neighbor, if there is one
    if (!this.filled.length) return;   // a new run has begun
    const within = (x, n) => Math.max(0, Math.min(n - 1, x));
    const c = within(this.at[0] + columns, this.filled.length);
    const r = within(this.at[1] + rows, this.filled[c].length);
    this.choose(c, r);
    if (focus) this.filled[c][r].focus({preventScroll: true});
  }
  key(e) {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [-1e6, 0], End: [1e6, 0]}[e.key];
    if (!step || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    this.walk(...step);
  }
}
