// A run in the forms that others display: a code and a sentence for each group, and the packed run of `pack`.

import {CODES, COLOURS} from './cells.js';
import {many} from './dom.js';

const agreed = g => g.rewards[0] > 0 ? 'right' : 'wrong';

export function codeOf(g) {
  if (g.stored) return CODES.stored;
  return g.dead ? CODES[agreed(g) + (g.by ? '_replaced' : '')] : CODES.living;
}
export function describe(g) {          // a square, in words
  const right = g.rights.filter(r => r).length, [least, most] = [Math.min(...g.rewards), Math.max(...g.rewards)];
  const paid = g.pays == 'right' ? '' : `, paid ${least.toFixed(2)} to ${most.toFixed(2)}`;
  const tries = `${g.question}: ${right} of ${g.texts.length} tries right${paid}`;
  if (g.stored) return `${tries}; a stored group, ${many(g.age, 'step')} old`;
  if (!g.dead) return `${tries}; they differ, so it learns from them`;
  return `${tries}; nothing to compare`
    + (g.by ? `, so a stored group came in its place, ${many(g.by.age, 'step')} old` : '');
}

async function zip(x) {                // compressed bytes of an array or of JSON, which `inflate` reads
  /** @type {any} */
  const bytes = ArrayBuffer.isView(x) ? x : new TextEncoder().encode(JSON.stringify(x));
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// One arm's run so far {batches, unseen}, with `minis` steps per batch, in the form that `mount` takes.
export async function packed({batches, unseen}, minis, name = 'This run') {
  const B = Math.max(...batches.map(o => o.groups.length));
  const steps = batches.map(o => (o.batch - 1) * minis);
  const {state, by, stored} = cells(batches, steps, B);
  const long = new Uint16Array(steps.length * B);
  batches.forEach(({groups}, s) => groups.forEach((g, i) => { long[s * B + i] = Math.max(...g.lengths); }));
  const curve = (label, colour, step, value) => ({label, colour, step, value, share: true, main: true});
  const measured = unseen.filter(o => o.batch <= steps.length), at = measured.map(o => o.batch * minis);
  const about = `${many(steps.length, 'batch', 'batches')} so far, each of ${minis} steps. `
    + 'Steps and groups count from 0 here, as in every record: group 1 of batch 1 is group 0 of step 0.';
  const head = {name, about, steps, groups: B, per_block: 1,
    versions: [{name: 'as the run did it', stored, size: batches.at(-1).size}], functions: [], scale: [0, 1],
    replays: by.some(k => k >= 0), start: [steps.length - 1, 0],
    curves: [curve('reward, mean of the batch', COLOURS.reward, steps, batches.map(o => o.reward)),
      curve('unseen problems right', COLOURS.held_out, at, measured.map(o => o.right))]};
  const arrays = {head, state0: state, by0: by, long}, out = {texts: {}};
  for (const [k, x] of Object.entries(arrays)) out[k] = await zip(x);
  for (const [s, {groups}] of batches.entries())
    out.texts[s] = await zip([groups.map((g, i) => row(g, i, steps[s]))]);
  return out;
}
function cells(batches, steps, B) {    // codes, which group was replayed where, and every stored group
  const state = new Uint8Array(steps.length * B), by = new Int32Array(steps.length * B).fill(-1);
  const stored = [], number = new Map();
  batches.forEach(({groups, left}, s) => {
    groups.forEach((g, i) => {
      const came = g.stored ? g : g.by;
      state[s * B + i] = codeOf(g);
      if (came) by[s * B + i] = number.get(came.id);
      if (g.stored || g.dead) return;
      number.set(g.id, stored.length);
      stored.push({id: g.id, step: steps[s], score: g.score, at: [s, i], out: null});
    });
    for (const id of left) stored[number.get(id)].out = s;   // evicted from the buffer
  });
  return {state, by, stored};
}
function row(g, group, step) {         // a group as the inspector shows it
  const by = g.by && {id: g.by.id, step: g.by.step, score: g.by.score, terms: terms(g.by)};
  return {group, step, prompt: g.question, completions: g.texts, rewards: g.rewards, advantages: g.advantages,
    n_tokens: g.lengths, score: g.score, id: g.stored || g.dead ? null : g.id, replacement: by || undefined,
    dead_reason: g.dead ? `all-${agreed(g)}` : undefined, terms: by ? undefined : terms(g)};
}
function terms({seen, advantages}) {   // loss terms of each token; none for batches trained while the inspector was closed
  if (!seen) return undefined;
  const {tokens, loss, weight, cap} = seen;
  const each = f => seen.policy.map((row, i) => Array.from(row, (x, j) => f(i, j)));
  const [old, policy, after] = ['old', 'policy', 'after'].map(k => each((i, j) => seen[k][i][j]));
  const ratio = each((i, j) => Math.exp(policy[i][j] - old[i][j]));
  const held = (r, A) => cap ? (r > cap ? 2 : 0) : A > 0 && r > 1.2 ? 1 : A < 0 && r < .8 ? -1 : 0;
  const own = {weight: policy.map(() => weight), clip: each((i, j) => held(ratio[i][j], advantages[i])),
    term: each((i, j) => seen.terms[i][j].term), share: each((i, j) => seen.terms[i][j].share)};
  return {tokens, loss, old, policy, after, ratio, by: {[cap ? 'capped weight' : 'dapo']: own}};
}
