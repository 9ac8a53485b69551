// One token: its term in the loss, its term in other losses, and how the step changed its probability.

import {button, clamp, el, num} from './dom.js';
import {isLong, tint} from './words.js';

const CLIPPED = {1: 'stopped, above the range', '-1': 'stopped, below the range', 2: 'weight capped', 0: 'no'};
const likely = x => x == null ? '–' : `${num(x, 4)} (${num(100 * Math.exp(x), 3)} %)`;
const part = x => x > 0 && x < 1e-4 ? '<0.01 %' : `${num(100 * x, 2)} %`;
const ownTerms = t => Object.values(t.by)[0];   // terms of the run's own loss
const isOfTool = (t, i, j) => ownTerms(t).share?.[i]?.[j] === null;   // a tool wrote this token

// A hint to choose a token, with a button for the one with the largest share of the step.
export function invitation(t, root) {
  const {share = []} = ownTerms(t), top = Math.max(...share.flat()), i = share.findIndex(o => o.includes(top));
  const words = 'Click a token, or move to it with Tab and the arrow keys: what did it add to the loss, '
    + 'and what followed?';
  const pick = () => root.querySelectorAll('.gv-tokens')[i]?.pick(share[i].indexOf(top));
  return [el('p', {class: 'gv-dim'}, words),
    i < 0 ? null : button('the one with the largest share of the step', pick)].filter(Boolean);
}

// The tokens of answer `i` as a list box: one stop for Tab, arrows within. What is chosen is told in `place()`.
let lists = 0;
export function tokenList(g, i, {root, run, colour, place}) {
  const {tokens} = g.terms, id = `gv-${++lists}-`;
  const values = coloursOf(g, i, colour)?.map((x, j) => isOfTool(g.terms, i, j) ? null : x);
  const option = (word, j) => el('span', {role: 'option', id: id + j, 'aria-selected': 'false',
    'aria-label': word.trim() ? null : 'space', style: values?.[j] == null ? null : `background:${tint(values[j])}`}, word);
  const box = el('pre', {dir: 'auto', tabindex: 0, role: 'listbox', 'aria-label': `tokens of answer ${i + 1}`,
    class: isLong(tokens[i].join('')) ? 'gv-tokens gv-long' : 'gv-tokens'}, ...tokens[i].map(option));
  let at = -1;
  const choose = j => {
    for (const o of root.querySelectorAll('.gv-tokens [aria-selected=true]')) o.setAttribute('aria-selected', 'false');
    at = clamp(j, 0, box.children.length - 1);
    box.children[at].setAttribute('aria-selected', 'true');
    box.setAttribute('aria-activedescendant', id + at);
    if (box.classList.contains('gv-long')) box.children[at].scrollIntoView({block: 'nearest'});
    place().replaceChildren(...aboutToken(g, i, at, run));
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
function coloursOf(g, i, by) {         // colors of its tokens, -2 to 2; null for none
  const t = g.terms, {share} = ownTerms(t), row = k => t[k]?.[i];
  const advantage = () => t.tokens[i].map(() => g.advantages?.[i] ?? 0);
  if (by == 'advantage') return advantage();
  if (!row('policy')) return null;
  const chance = Math.exp;
  return {
    logps: () => row('policy').map(x => Math.max(-2, x * 2 / 3)),
    ratios: () => row('ratio')?.map(x => Math.log2(x)),
    moved: () => row('after')?.map((x, j) => 4 * (chance(x) - chance(row('policy')[j]))),
    share: () => share[i].map(x => 2 * Math.sqrt(x / Math.max(...share.flat(), 1e-9))),
  }[by]?.() ?? null;
}

function aboutToken(g, i, j, run) {
  const t = g.terms, value = k => t[k]?.[i]?.[j], A = g.advantages?.[i];
  const word = JSON.stringify(t.tokens[i][j]).slice(1, -1);
  const out = [el(run.sub, {class: 'gv-sub'}, `“${word}”, ${t.words ? 'word' : 'token'} ${j + 1} of answer ${i + 1}`)];
  if (isOfTool(t, i, j)) return [...out, el('p', {class: 'gv-dim'}, 'A tool wrote this token, so it is not in the loss.')];
  if (value('after') != null) out.push(fateOf(t, i, j, A));
  if (t.words) out.push(el('p', {class: 'gv-dim'}, 'This file holds no log-probs. Words stand for tokens, and what is '
    + 'known of each loss is how much one of them weighs.'));
  const facts = [['sampler', likely(value('sampler'))], ['old policy', likely(value('old'))],
    ['before the step', likely(value('policy'))], ['after the step', likely(value('after'))],
    ['ratio', num(value('ratio'), 4)], ['advantage', num(A, 3)],
    ['reference', likely(value('ref'))], ['KL to it, nats', num(value('kl'), 3)]].filter(o => o[1] != '–');
  out.push(el('dl', {class: 'gv-facts'}, ...facts.map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v)))),
    el('div', {class: 'gv-wide', tabindex: 0, role: 'group', 'aria-label': 'this token under each loss'},
      lossTable(t, i, j)));
  const loss = Array.isArray(t.loss) ? t.loss[i] : t.loss;
  if (!t.words) out.push(el('p', {class: 'gv-dim'},
    `What tokens add sums to the loss${loss == null ? '' : `, here ${num(loss, 4)}`}. The weight is that of one token `
    + "of this answer in the mean. The share is of the step's squared gradient at the tokens' own logits."));
  return out;
}
function fateOf(t, i, j, A) {          // whether the step made it likelier, and whether its own term did that
  const [before, after] = ['policy', 'after'].map(k => Math.exp(t[k][i][j])), moved = after - before;
  const stopped = Math.abs(ownTerms(t).clip[i][j]) == 1;
  const against = A && Math.abs(moved) > 1e-4 && (moved > 0) != (A > 0);
  const why = stopped ? ` The clip stopped its own push, so ${t.ref?.[i]?.[j] == null ? '' : 'the KL term or '}other `
    + 'tokens moved it.' : against ? ' Its own push was the other way: what the step did to other tokens moved it more.'
    : '';
  const how = Math.abs(moved) < 5e-5 ? 'stayed as likely as it was' : `became ${moved > 0 ? 'more' : 'less'} likely`;
  return el('p', {}, el('b', {}, `It ${how}: ${num(100 * before, 3)} % before the step, ${num(100 * after, 3)} % after it.`),
    why);
}
function lossTable(t, i, j) {
  const cell = x => el('td', {}, x), valueOf = (o, k, d) => num(o[k]?.[i]?.[j], d);
  const row = ([name, o], k) => {
    if (t.words) return el('tr', {}, el('th', {scope: 'row'}, name), cell(num(o.weight[i], 3)));
    const own = !k && t.named !== false, label = own ? `${name}, this run` : name;
    return el('tr', {class: own ? 'gv-own' : null}, el('th', {scope: 'row'}, label), cell(valueOf(o, 'term', 4)),
      cell(num(o.weight[i], 3)), cell(o.share ? part(o.share[i][j]) : '–'), cell(o.clip ? CLIPPED[o.clip[i][j]] : '–'));
  };
  const head = t.words ? ['loss', 'weight'] : ['loss', 'adds', 'weight', 'share', 'clipped'];
  return el('table', {}, el('tr', {}, ...head.map(o => el('th', {scope: 'col'}, o))), ...Object.entries(t.by).map(row));
}
