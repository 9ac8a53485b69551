// The groups of a step as rows, and the selected one in full beside the stored group that replaced it.

import {COLOURS, why} from './cells.js';
import {button, clamp, el, many, mix, nth, num, select, times} from './dom.js';
import {buffer, ratios} from './pictures.js';
import {invitation, tokenList} from './token.js';
import {isLong, textOf} from './words.js';

const titled = (run, title, ...kids) => el('section', {class: 'gv-side'}, el(run.sub, {class: 'gv-sub'}, title), ...kids);
const dim = (...words) => el('p', {class: 'gv-dim'}, ...words);

// Why a group is dead, in words, and whether all its answers are one text.
function whyOf(g) {
  const texts = g.completions || [], known = texts.some(t => t);
  return why(g.dead_reason) + (!known ? '' : texts.every(t => t == texts[0]) ? ', one text' : ', different texts');
}

export class Groups {
  // `go(step, group)` chooses a group and returns when it is shown; `link(step, group)` is what a copied link says.
  constructor(root, selection, {go, link, say}) {
    this.root = root;
    this.selection = selection;
    this.run = selection.run;
    this.now = selection.now;
    this.go = go;
    this.link = link;
    this.say = say;
    this.place = el('div', {class: 'gv-body'});
    this.turn = 0;                     // counts requests to show a group: the latest wins
    this.listed = null;                // what the rows show now: the step's groups, and the version
  }
  get chosenRow() { return this.place.querySelector('.gv-row.gv-sel'); }

  async show() {
    const mine = ++this.turn, {run, now} = this, s = now.step;
    if (!run.B) return;
    const rows = await run.detail(s);
    if (mine != this.turn) return;
    if (!rows) {
      this.listed = null;
      this.place.replaceChildren(dim(`The texts of step ${run.steps[s]} are not in this page; open the folder with `
        + '`grpo_nb watch` to read them.'));
      return;
    }
    const g = rows.find(r => r.group == now.group) || rows[0], [left, right] = await this.pair(g, s);
    if (mine != this.turn) return;
    const top = this.rows?.scrollTop || 0;
    if (this.listed?.rows != rows || this.listed.version != this.selection.version) this.list(rows, s);
    this.mark(this.rows.children[rows.indexOf(g)], top);
    this.rest.replaceChildren(this.tools(g), ...this.sides(g, left, right),
      run.replays || g.ratio_hist ? el('div', {class: 'gv-pair'}, ratios(g, this.selection),
        run.replays ? buffer(s, this.selection) : null) : '');
  }
  mark(row, top) {                     // mark the selected row and scroll it into view
    const {rows} = this;
    for (const [o, on] of [[this.chosenRow, false], [row, true]]) {
      o?.classList.toggle('gv-sel', on);
      o?.setAttribute('aria-pressed', String(on));
    }
    rows.scrollTop = top;
    if (row.offsetTop < top || row.offsetTop + row.offsetHeight > top + rows.clientHeight)
      rows.scrollTop = row.offsetTop - rows.clientHeight / 2;
  }
  sides(g, left, right) {              // both groups, and the token of the one that was trained on
    const terms = g.replacement ? !this.selection.isWhatIf && g.replacement.terms : g.terms;
    const beside = terms && (!right || right.classList.contains('gv-empty'));   // then there is room beside it
    this.token = el('section', {class: 'gv-token', 'aria-live': 'polite'}, ...terms ? invitation(terms, this.root) : []);
    if (right && beside) right.append(this.token);
    return [el('div', {class: 'gv-pair'}, left, right || (beside ? this.token : null)), beside ? '' : this.token];
  }

  // ---- rows

  list(rows, s) {                      // rebuilt only when the step or its content has changed
    const {selection: o, run} = this, mode = o.isWhatIf ? `what if: ${o.version.name}` : run.correction;
    const dead = rows.filter(r => o.cell(s, r.group).dead).length;
    const came = rows.filter(r => o.cameIn(s, r.group) >= 0 || o.cell(s, r.group).replaced).length;
    this.rows = el('div', {class: 'gv-rows', role: 'group', 'aria-label': 'groups of this step'},
      ...rows.map(r => this.row(r, s)));
    this.rest = el('div');
    this.place.replaceChildren(
      el('p', {class: 'gv-at'}, el('b', {}, `step ${run.steps[s]} of ${run.steps[run.S - 1]}`),
        `: ${dead} of ${many(rows.length, 'group')} dead, ${came} replaced`,
        mode ? el('span', {class: 'gv-dim'}, `; ${mode}`) : null),
      this.rows, this.rest);
    this.listed = {rows, version: o.version};
  }
  row(r, s) {
    const cell = this.selection.cell(s, r.group), state = cell.dead ? whyOf(r) : cell.key;
    const focus = () => this.chosenRow?.focus({preventScroll: true});
    const onkeydown = e => {
      const group = {ArrowDown: 1, ArrowUp: -1}[e.key] || 0, step = {ArrowLeft: -1, ArrowRight: 1}[e.key] || 0;
      if (!group && !step) return;
      e.preventDefault();
      e.stopPropagation();
      this.go(this.now.step + step, this.now.group + group).then(focus);
    };
    return el('button', {type: 'button', class: 'gv-row', 'aria-pressed': 'false', onkeydown,
      style: `--state:${cell.colour || 'transparent'}`, onclick: () => this.go(s, r.group).then(focus)},
      el('span', {class: 'gv-no'}, r.group), this.dots(r.rewards), el('span', {class: 'gv-why'}, state),
      el('span', {class: 'gv-dim'}, this.fate(r, s)));
  }
  fate(r, s) {                         // what happened to a group
    const {selection: o, run} = this, k = o.cameIn(s, r.group);
    if (k >= 0) {
      const {id, step} = o.version.stored[k], use = `${nth(o.useOf(k, s, r.group))} use`;
      return `← group ${num(id)}${step == null ? '' : ` of step ${step}, ${many(run.steps[s] - step, 'step')} old`}, ${use}`;
    }
    if (o.cell(s, r.group).replaced) return 'another group was trained on instead';   // of no buffer
    if (o.cell(s, r.group).dead) return r.outcome == 'masked' ? 'left out of the loss' : 'left as it is';
    return r.id == null || o.isWhatIf ? '' : `stored as group ${num(r.id)}`;
  }
  dots(rewards) {                      // a dot for each reward, the fuller the higher
    const [lo, hi] = this.run.scale, said = rewards.map(r => r == null ? 'not scored' : num(r)).join(', ');
    const dot = r => {
      if (r == null) return el('i', {class: 'gv-none'}, '?');
      const p = clamp((r - lo) / (hi - lo || 1), 0, 1);
      return el('i', {style: `--c:${mix(COLOURS.low, COLOURS.high, p)};--p:${Math.round(100 * p)}%`});
    };
    return el('span', {class: 'gv-dots', role: 'img', 'aria-label': 'rewards ' + said, title: 'rewards ' + said},
      ...rewards.map(dot));
  }

  // ---- how the texts are shown

  tools(g) {
    const {now} = this, kinds = [['nothing', 'none'], ['advantage', 'advantage']];
    if (g.ratios || g.replacement?.ratios) kinds.push(['ratio to the policy that sampled', 'ratios']);
    if (g.logps) kinds.push(['log-prob', 'logps']);
    if ((g.terms || g.replacement?.terms)?.policy)
      kinds.push(['how far the step moved it', 'moved'], ['share of the step', 'share']);
    const [field, colour] = select('color text by', kinds, x => {
      now.colour = x;
      this.show().then(() => this.ui.colour.focus({preventScroll: true}));
    });
    if (kinds.some(k => k[1] == now.colour)) colour.value = now.colour;
    const diff = el('input', {type: 'checkbox', onchange: () => {
      now.diff = diff.checked;
      this.show().then(() => this.ui.diff.focus({preventScroll: true}));
    }});
    diff.checked = now.diff;
    this.ui = {colour, diff};
    return el('div', {class: 'gv-bar'}, field,
      el('label', {class: 'gv-field'}, diff, el('span', {}, 'mark differences')), button('copy link', () => this.copy()));
  }
  async copy() {
    const text = this.link(this.run.steps[this.now.step], this.now.group);
    let done = text;
    try {
      await navigator.clipboard.writeText(text);
      done = `copied: ${text}`;
    } catch { /* not allowed for a page opened from a file */ }
    this.say(done);
  }

  // ---- the selected group, and what replaced it

  async pair(g, s) {
    const {selection: o, run, now} = this, k = o.cameIn(s, g.group), entry = k >= 0 ? o.version.stored[k] : null;
    const came = entry && await this.textsOf(entry, g);
    const left = this.side(`Group ${g.group}, sampled at step ${run.steps[s]}`, this.life(g, s), g,
      came && now.diff ? came : null, !entry && !o.isWhatIf);
    if (!entry) return [left, run.replays ? this.nothing(o.cell(s, g.group)) : null];
    const title = `What came in: group ${num(entry.id)}`, about = this.aboutUse(entry, k, g, s);
    if (!came) return [left, titled(run, title, dim(about),
      dim('Its text is not on record: it was born at a step that was not recorded.'))];
    const then = o.isWhatIf ? {} : g.replacement || {};   // in this update, not in the one it was sampled for
    const shown = {...came, ratios: then.ratios, terms: then.terms};
    return [left, this.side(title, about, shown, now.diff ? g : null, true)];
  }
  async textsOf(entry, g) {            // the stored group's texts, as it was sampled
    const rows = entry.at && await this.run.detail(entry.at[0]);
    const born = rows && rows.find(r => r.group == entry.at[1]);
    return born || (g.replacement?.completions ? g.replacement : null);
  }
  nothing(cell) {
    const said = cell.dead ? 'Nothing: this group stayed as it is.' : 'Nothing: this group lives.';
    const out = titled(this.run, 'What came in', dim(said));
    out.classList.add('gv-empty');
    return out;
  }
  aboutUse(entry, k, g, s) {
    const {selection: o, run} = this, uses = o.version.uses[k].length, prob = g.replacement?.draw_prob, bits = [];
    if (entry.step != null) bits.push(`born at step ${entry.step}`, `${many(run.steps[s] - entry.step, 'step')} old`);
    bits.push(uses == 1 ? 'its only use' : `${nth(o.useOf(k, s, g.group))} of ${uses} uses`);
    if (entry.score != null) bits.push(`score ${num(entry.score)}`);
    if (!o.isWhatIf && prob != null) bits.push(`drawn with probability ${num(prob)}`);
    return bits.join(', ');
  }
  life(g, s) {                         // how often a group was used
    const {selection: o, run} = this, k = o.bornIn(s, g.group), cell = o.cell(s, g.group);
    if (k < 0) {
      if (cell.dead) return `${whyOf(g).replace(/^./, c => c.toUpperCase())}, so it teaches nothing.`;
      if (cell.key == 'stored') return 'Stored earlier, and trained on again beside the fresh groups.';
      return run.replays ? 'Not stored: the buffer held better ones.' : 'It lives: its answers have different rewards.';
    }
    const uses = o.version.uses[k], {id, score, out} = o.version.stored[k];
    const steps = uses.slice(0, 8).map(u => run.steps[u[0]]).join(', ') + (uses.length > 8 ? ' …' : '');
    const back = uses.length ? `came back ${times(uses.length)}, at step${uses.length == 1 ? '' : 's'} ${steps}`
      : 'never came back';
    return `Stored as group ${num(id)}${score == null ? '' : ` with score ${num(score)}`}; ${back}`
      + (out == null ? '.' : `; left the buffer at step ${run.steps[out]}.`);
  }
  text(text, other, g, i) { return textOf(text, other, g, i, this.now, () => this.show()); }
  side(title, about, g, other, trained) {
    const cards = el('div', {class: 'gv-cards', tabindex: 0, role: 'group', 'aria-label': 'answers of ' + title},
      ...g.completions.map((_, i) => this.card(g, i, other, trained)));
    const prompt = this.text(g.prompt || '', other ? other.prompt : null, g, -1);
    return titled(this.run, title, dim(about),
      el('pre', {class: 'gv-prompt', dir: 'auto', tabindex: 0, 'aria-label': 'prompt'}, ...prompt), cards);
  }
  card(g, i, other, trained) {         // an answer with its numbers
    const pick = a => a && i < a.length ? a[i] : null;
    const before = pick(g.advantages_before || g.advantages), after = trained ? pick(g.advantages) : null;
    const changed = after != null && Math.abs(after - before) > 1e-6;
    const bits = [`reward ${num(pick(g.rewards))}`], parts = Object.entries(g.rewards_by_func || {});
    if (before != null) bits.push(`advantage ${num(before, 2)}${changed ? ` → ${num(after, 2)}` : ''}`);
    if (pick(g.n_tokens) != null) bits.push(many(pick(g.n_tokens), 'token'));
    if (pick(g.truncated)) bits.push('cut off');
    if (parts.length > 1) bits.push(...parts.map(([k, v]) => `${k} ${num(pick(v))}`));
    const at = {root: this.root, run: this.run, colour: this.now.colour, place: () => this.token};
    const empty = !g.completions[i] && (pick(g.n_tokens) <= 1 || g.completions.some(t => t));
    const answer = g.completions[i] || (empty ? '(empty)' : '');
    const whole = isLong(answer) ? {class: 'gv-long', tabindex: 0, role: 'group', 'aria-label': `answer ${i}`} : {};
    const text = trained && !other && g.terms?.tokens[i] ? tokenList(g, i, at)
      : el('pre', {dir: 'auto', ...whole}, ...this.text(answer, other ? pick(other.completions) || '' : null, g, i));
    return el('article', {class: 'gv-card'}, dim(this.dots([pick(g.rewards)]), ' ', bits.join(', ')), text);
  }
}
