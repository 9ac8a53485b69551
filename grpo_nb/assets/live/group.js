// A group in full: the problem, each try with its reward and advantage, what came in its place, and how likely
// each try was before and after the steps of its batch.

import {el, many} from './dom.js';

export const pretty = problem => problem.replaceAll('-', '\u2212');   // a minus sign

const ANSWER = /<answer>([^]*)<\/answer>/, THOUGHT = /<think>([^]*?)(<\/think>|$)/;
const SIGNS = {writing: '·', right: '✓', wrong: '✗'};
const PAID = {tags: 'Paid for its form', length: 'Paid for length', short: 'Paid if right and short'};
const pay = x => String(Number(x.toFixed(2)));

function aTry(text, right, A, reward) {   // without `right`: still being written
  const state = right == null ? 'writing' : right ? 'right' : 'wrong';
  const said = text.match(ANSWER)?.[1], thought = text.match(THOUGHT)?.[1] ?? (said ? '' : text);
  const answer = said == null ? (right == null ? '' : 'no answer') : pretty(said);
  const push = A ? `${A > 0 ? '▲ +' : '▼ −'}${Math.abs(A).toFixed(2)}` : '';
  return el('li', {class: `try ${state}`},
    el('span', {class: 'sign', role: 'img', 'aria-label': state}, SIGNS[state]),
    el('span', {}, el('span', {class: 'said'}, answer), ' ', el('span', {class: 'thought'}, thought)),
    reward == null ? '' : el('span', {class: 'paid'}, pay(reward)),
    el('span', {class: 'push'}, push));
}
export const tries = (texts, rights = []) =>
  el('ol', {class: 'tries'}, ...texts.map((text, i) => aTry(text, rights[i])));
function pushed(g, advantages = g.advantages) {   // a place for how likely they were and are, beside them
  const list = g.texts.map((text, i) => aTry(text, g.rights[i], advantages[i], g.pays == 'right' ? null : g.rewards[i]));
  for (const o of list) o.append(el('span', {class: 'odds'}));
  const heads = [g.pays != 'right' && 'reward', advantages.some(A => A) && 'advantage', 'probability before → after'];
  return [el('p', {class: 'heads'}, heads.filter(o => o).join(' · ')), el('ol', {class: 'tries'}, ...list),
    el('p', {class: 'small together'})];
}

export function heading(question, answer) {
  const right = el('span', {class: 'answer'}, `→ ${pretty(answer)}`);
  return el('h2', {id: 'panel-title'}, `${pretty(question)} `, right);
}

function fate(g) {
  const n = g.texts.length, right = g.rights.filter(r => r).length;
  const [least, most] = [Math.min(...g.rewards), Math.max(...g.rewards)].map(pay);
  if (g.stored) return 'A stored group, trained on again beside the fresh ones.';
  if (g.dead && g.pays == 'right')
    return `All ${n} ${right ? 'right' : 'wrong'}: nothing to compare, nothing to learn. The group is dead.`;
  if (g.dead) return `${PAID[g.pays]}: all ${n} earn ${most}, so there is nothing to compare. The group is dead.`;
  if (g.pays == 'right') return `${right} of ${n} right. Right tries are pushed up (▲), wrong ones down (▼).`;
  return `${PAID[g.pays]}, ${least} to ${most}: what earns more is pushed up (▲), the rest down (▼). ${right} of ${n} right.`;
}
function born(g) {
  const nth = g.uses == 1 ? 'first' : `${g.uses}${['nd', 'rd'][g.uses - 2] ?? 'th'}`;
  return `from batch ${g.batch}, ${many(g.age, 'step')} old, back for the ${nth} time`;
}

export function show(root, g, where) {
  const at = el('p', {class: 'where'}, g.stored ? `${where}, ${born(g)}` : where);
  const told = [at, heading(g.question, g.answer), el('p', {class: 'fate'}, fate(g))];
  if (!g.by) return root.replaceChildren(...told, ...pushed(g));
  const {by} = g;
  root.replaceChildren(...told,
    el('div', {class: 'came'}, el('h3', {}, `In its place: ${pretty(by.question)} → ${pretty(by.answer)}`),
      el('p', {class: 'where'}, born(by)), ...pushed(by)),
    el('details', {class: 'more'}, el('summary', {}, `The ${g.texts.length} tries it replaced`), ...pushed(g, [])));
}

// ---- how likely each try was before the batch's steps, and is after them

const chance = p => p < 1e-4 ? '<0.01' : p < .0995 ? (100 * p).toPrecision(2) : String(Math.round(100 * p));
/** @type {(pair: number[]) => string} */
const change = ([a, b]) => `${chance(a)} → ${chance(b)} %`;

// `logps`: of the group's tries, and where it was replaced of the stored ones, [before, after].
export function likelier(root, g, logps) {
  const lists = [...root.querySelectorAll('.tries')].reverse();   // its own last
  logps.forEach((pair, k) => { if (pair) odds(lists[k], k ? g.by : g, pair); });
}
function odds(list, g, [before, after]) {
  const pairs = before.map((x, i) => [Math.exp(x), Math.exp(after[i])]), most = Math.max(...pairs.flat());
  const bar = (p, kind) => el('i', {class: kind, style: `width: ${Math.max(2, 100 * p / most)}%`});
  [...list.children].forEach((row, i) => {
    row.querySelector('.odds').replaceChildren(
      el('span', {class: 'bars', 'aria-hidden': 'true'}, bar(pairs[i][0], 'before'), bar(pairs[i][1], 'after')),
      el('span', {class: 'says'}, change(pairs[i])));
  });
  const first = g.texts.map((t, i) => g.texts.findIndex((u, j) => u == t && g.lengths[j] == g.lengths[i]) == i);
  const sum = fits => [0, 1].map(k => pairs.reduce((a, p, i) => a + (first[i] && fits(g.advantages[i]) ? p[k] : 0), 0));
  const each = g.dead ? [] : [['▲', A => A > 0], ['▼', A => A < 0]].map(([sign, fits]) => `${sign} ${change(sum(fits))}`);
  const all = `all ${change(sum(() => true))}`, once = first.every(o => o) ? '' : ', equal tries counted once';
  const moved = pairs.filter(p => chance(p[0]) != chance(p[1])).length;
  const against = pairs.filter((p, i) => g.advantages[i] * (p[1] - p[0]) < 0 && chance(p[0]) != chance(p[1])).length;
  const why = g.dead ? (moved ? 'Steps for other groups moved them.' : 'Nothing moved them.')
    : against ? `${against} went against the arrow: all tries of a batch share the same weights.` : '';
  list.nextElementSibling.textContent = `Together${once}: ${[...each, all].join(', ')}. ${why}`;
}
