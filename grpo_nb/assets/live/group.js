// A group in full: the problem, each try with its reward and advantage, and what came in its place.

import {el, many} from './dom.js';

export const pretty = problem => problem.replaceAll('-', '\u2212');   // a minus sign

const ANSWER = /<answer>([^]*)<\/answer>/, THOUGHT = /<think>([^]*?)(<\/think>|$)/;
const SIGNS = {writing: '·', right: '✓', wrong: '✗'};

function aTry(text, reward, A) {       // without a reward: still being written
  const state = reward == null ? 'writing' : reward >= 1 ? 'right' : 'wrong';
  const said = text.match(ANSWER)?.[1], thought = text.match(THOUGHT)?.[1] ?? (said ? '' : text);
  const answer = said == null ? (reward == null ? '' : 'no answer') : pretty(said);
  const push = A ? `${A > 0 ? '▲ +' : '▼ −'}${Math.abs(A).toFixed(2)}` : '';
  return el('li', {class: `try ${state}`},
    el('span', {class: 'sign', role: 'img', 'aria-label': state}, SIGNS[state]),
    el('span', {}, el('span', {class: 'said'}, answer), ' ', el('span', {class: 'thought'}, thought)),
    el('span', {class: 'push', title: push && 'advantage: how far it is pushed up or down'}, push));
}
export const tries = (texts, rewards = [], advantages = []) =>
  el('ol', {class: 'tries'}, ...texts.map((text, i) => aTry(text, rewards[i], advantages[i])));

export function heading(question, answer) {
  const right = el('span', {class: 'answer'}, `→ ${pretty(answer)}`);
  return el('h2', {id: 'panel-title'}, `${pretty(question)} `, right);
}

function fate(g) {
  const n = g.rewards.length, right = g.rewards.filter(r => r >= 1).length;
  if (g.stored) return 'A stored group, trained on again beside the fresh ones.';
  if (!g.dead) return `${right} of ${n} right. Right tries become more likely (▲), wrong ones less (▼).`;
  return `All ${n} ${right ? 'right' : 'wrong'}: nothing to compare, nothing to learn. The group is dead.`;
}
function born(g) {
  const nth = g.uses == 1 ? 'first' : `${g.uses}${['nd', 'rd'][g.uses - 2] ?? 'th'}`;
  return `from batch ${g.batch}, ${many(g.age, 'step')} old, back for the ${nth} time`;
}

export function show(root, g, where) {
  const at = el('p', {class: 'where'}, g.stored ? `${where}, ${born(g)}` : where);
  const told = [at, heading(g.question, g.answer), el('p', {class: 'fate'}, fate(g))];
  if (!g.by) return root.replaceChildren(...told, tries(g.texts, g.rewards, g.advantages));
  const {by} = g;
  root.replaceChildren(...told,
    el('div', {class: 'came'}, el('h3', {}, `In its place: ${pretty(by.question)} → ${pretty(by.answer)}`),
      el('p', {class: 'where'}, born(by)), tries(by.texts, by.rewards, by.advantages)),
    el('details', {class: 'more'}, el('summary', {}, `The ${g.rewards.length} tries it replaced`),
      tries(g.texts, g.rewards)));
}
