// The policy: its weights sample answers, give log-probs, and take optimizer steps.

import {defaultDevice, init, jit, numpy as np, valueAndGrad} from './jax/index.js';
import {H, V, decode, logProbs, loss, objective, prefill, turns} from './qwen.js';
import {pick} from './replay.js';

const LANE = 80;                       // tokens: two to four long answers, or all the short ones of a group
const LANES = [6, 12, 16, 32];     // of a minibatch: each size is compiled once, which takes as long as several steps
const EMBEDDING = 'model.embed_tokens.weight';
const ROWS = [8, 16, 32, 64, 96];      // batch sizes to which sampling shrinks as answers end
const BETAS = [.9, .999], EPS = 1e-8;  // of AdamW, without decay

const floats = (x, shape) => np.array(x instanceof Float32Array ? x : Float32Array.from(x)).reshape(shape);
const ints = (x, shape) => np.array(Int32Array.from(x), {dtype: np.int32}).reshape(shape);
const refs = W => Object.fromEntries(Object.entries(W).map(([k, v]) => [k, v.ref]));

export async function ready() {        // throws if WebAssembly is refused, which `init` would not notice
  await WebAssembly.compile(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0));
  await init('wasm');
  defaultDevice('wasm');
}

export class Policy {
  constructor(weights, tokenizer, random) {
    this.tokenizer = tokenizer;
    this.random = random;
    this.steps = 0;
    this.W = {};                       // weights, and the two moments of AdamW
    this.m = {};
    this.v = {};
    for (const [k, {shape, x}] of Object.entries(weights)) {
      this.W[k] = {shape, x: x.slice()};
      [this.m[k], this.v[k]] = [new Float32Array(x.length), new Float32Array(x.length)];
    }
  }
  state() {                            // a copy of everything that the next step depends on
    const copy = o => Object.fromEntries(Object.entries(o).map(([k, x]) => [k, x.slice()]));
    const weights = Object.fromEntries(Object.entries(this.W).map(([k, o]) => [k, o.x]));
    return {W: copy(weights), m: copy(this.m), v: copy(this.v), steps: this.steps};
  }
  restore({W, m, v, steps}) {
    for (const k in W) {
      this.W[k].x.set(W[k]);
      this.m[k].set(m[k]);
      this.v[k].set(v[k]);
    }
    this.steps = steps;
  }
  arrays() { return Object.fromEntries(Object.entries(this.W).map(([k, o]) => [k, floats(o.x, o.shape)])); }

  prompts(all, least) {                // padded on the left to a multiple of four, and to `least` tokens at least
    const P = 4 * Math.ceil(Math.max(least, ...all.map(o => o.length)) / 4);
    const ids = all.flatMap(o => [...Array(P - o.length).fill(this.tokenizer.pad), ...o]);
    const hide = all.flatMap(o => Array.from({length: P}, (_, i) => i < P - o.length ? -1e9 : 0));
    return {P, ids, hide};
  }

  // -- sampling: groups of G answers {ids, logps}; `seen(rows)` is called after every token

  async sample(prompts, G, T, least, seen = null) {
    const b = prompts.length, {P, ids, hide} = this.prompts(prompts, least), S = P + T;
    const [cos, sin] = turns([...Array(S).keys()]), D = cos.length / S, W = this.arrays();
    const begun = r => ({ids: [], logps: [], done: false, prompt: Math.floor(r / G)});
    const rows = Array.from({length: b * G}, (_, r) => begun(r));
    let live = rows;
    const early = x => floats(x.slice(0, P * D), [P, D]);
    const asked = [ints(ids, [b, P]), floats(hide, [b, P]), early(cos), early(sin)];
    let [logps, cache] = PREFILL(refs(W), ...asked, G, T);
    for (let t = 0; t < T; t++) {
      this.choose(live, await logps.data(), T);
      if (seen) await seen(rows);
      if (live.every(o => o.done)) break;
      [live, cache] = this.narrow(live, cache);
      const n = live.length, at = new Float32Array(S), hidden = new Float32Array(n * S).fill(-1e9);
      at[P + t] = 1;
      live.forEach((o, i) => {
        hidden.set(hide.slice(o.prompt * P, (o.prompt + 1) * P), i * S);
        hidden.fill(0, i * S + P, i * S + P + t + 1);
      });
      const here = x => floats(x.slice((P + t) * D, (P + t + 1) * D), [D]);
      const last = live.map(o => o.ids.length > t ? o.ids[t] : this.tokenizer.pad);
      [logps, cache] = DECODE(refs(W), ints(last, [n]), cache, floats(at, [S]), floats(hidden, [n, S]),
        here(cos), here(sin));
    }
    for (const x of [...cache, ...Object.values(W)]) x.dispose();
    return prompts.map((_, i) => rows.slice(i * G, (i + 1) * G));
  }
  choose(rows, logps, T) {             // the next token of each row that isn't done
    rows.forEach((o, i) => {
      if (o.done) return;
      const own = logps.subarray(i * V, (i + 1) * V), k = pick(own.map(Math.exp), this.random);
      o.ids.push(k);
      o.logps.push(own[k]);
      o.done = k == this.tokenizer.eos || o.ids.length == T;
    });
  }
  narrow(rows, cache) {                // drop rows that are done, down to a size that is compiled
    const going = rows.filter(o => !o.done), n = ROWS.find(o => o >= going.length);
    if (!n || n >= rows.length) return [rows, cache];
    const kept = [...going, ...rows.filter(o => o.done).slice(0, n - going.length)];
    const place = new Map(rows.map((o, i) => [o, i]));
    return [kept, cache.map(x => np.take(x, ints(kept.map(o => place.get(o)), [n]), 0))];
  }

  // -- training

  // Whole groups {prompt, answers} in the form that `logProbs` needs.
  lay(groups, least) {
    const b = groups.length, {P, ids, hide} = this.prompts(groups.map(g => g.prompt), least);
    const lanes = groups.flatMap((g, i) => lanesOf(g.answers).map(answers => ({i, g, answers})));
    const N = LANES.find(n => n >= lanes.length) ?? lanes.length;
    while (lanes.length < N) lanes.push({i: -1, answers: []});
    const each = f => lanes.flatMap(({i, g, answers}) => {   // a value for each position; -1 where there is no token
      const x = answers.flatMap(k => g.answers[k].ids.map((id, t) => f(g, k, t, id, i)));
      return [...x, ...Array(LANE - x.length).fill(-1)];
    });
    const tokens = each((g, k, t, id) => id), chosen = new Float32Array(N * LANE * V);
    tokens.forEach((id, place) => { if (id >= 0) chosen[place * V + id] = 1; });
    const turned = (at, shape) => turns(at).map(x => floats(x, [...shape, x.length / at.length]));
    const layout = {hide: floats(hide, [b, P]), answer: floats(each((g, k) => k), [N, LANE]),
      group: floats(lanes.flatMap(o => groups.map((_, i) => i == o.i ? 1 : 0)), [N, b]),
      first: floats(each((g, k, t) => t ? 0 : 1).map(x => x > 0), [N, LANE]),
      promptTurns: turned([...Array(P).keys()], [P]), laneTurns: turned(each((g, k, t) => P + t), [N, LANE])};
    return {ids: [...ids, ...tokens], chosen: floats(chosen, [N * LANE, V]), layout, each, shape: [N, LANE]};
  }
  embed(ids) {                         // rows of the embedding: jax-js has no fast gradient for a lookup
    const x = new Float32Array(ids.length * H), E = this.W[EMBEDDING].x;
    ids.forEach((id, i) => { if (id >= 0) x.set(E.subarray(id * H, (id + 1) * H), i * H); });
    return floats(x, [ids.length, H]);
  }
  async logProbs(groups, least) {      // of each token of each answer of each group
    const {ids, chosen, layout, each} = this.lay(groups, least);
    const x = await LOGPROBS(this.arrays(), this.embed(ids), chosen, layout).data();
    const out = groups.map(g => g.answers.map(o => new Float32Array(o.ids.length)));
    let place = 0;
    for (const put of each((g, k, t, id, i) => value => { out[i][k][t] = value; })) {
      if (put != -1) put(x[place]);
      place++;
    }
    return out;
  }
  async gradient(groups, items, least, cap = 0) {
    const {ids, chosen, layout, each, shape} = this.lay(groups, least), out = {};
    const terms = {mask: floats(each(() => 1).map(x => x > 0), shape),
      A: floats(each((g, k) => g.advantages[k]), shape),
      old: floats(each((g, k, t) => g.answers[k].logps[t]), shape), items: np.array(items)};
    const [value, [grads, rows]] = gradientOf(cap)(this.arrays(), this.embed(ids), chosen, layout, terms);
    for (const k in grads) out[k] = await grads[k].data();
    const looked = await rows.data(), E = out[EMBEDDING];   // the part of the gradient that came through the lookup
    ids.forEach((id, i) => { for (let j = 0; id >= 0 && j < H; j++) E[id * H + j] += looked[i * H + j]; });
    return {loss: (await value.data())[0], grads: out};
  }
  async step(groups, items, least, rate, cap = 0) {      // one optimizer step
    const {loss, grads} = await this.gradient(groups, items, least, cap);
    return {loss, norm: this.update(grads, rate)};
  }
  // What each token of each answer adds to the loss, and its share of the squared gradient at the tokens' own
  // logits, from the log-probs `now` that the step finds.
  async terms(groups, now, items, cap = 0) {
    const each = f => groups.flatMap((g, i) => g.answers.flatMap((o, k) => o.ids.map((_, t) => f(g, k, t, i))));
    const p = each((g, k, t, i) => now[i][k][t]), rows = [p, each((g, k, t) => g.answers[k].logps[t]),
      each((g, k) => g.advantages[k])].map(x => floats(x, [x.length]));
    const x = await objective(...rows.map(o => o.ref), cap).data();
    const [, slope] = valueAndGrad((...rows) => np.sum(objective(...rows, cap)))(...rows);
    const pull = (await slope.data()).map((v, j) => (v * (1 - Math.exp(p[j]))) ** 2);
    const whole = pull.reduce((a, b) => a + b, 0) || 1;
    let j = 0;
    return groups.map(g => g.answers.map(o => o.ids.map(() => ({term: -x[j] / items, share: pull[j++] / whole}))));
  }
  update(grads, rate) {                // AdamW, after clipping the gradient to norm 1; returns the norm before
    const norm = Math.sqrt(Object.values(grads).reduce((a, g) => a + g.reduce((s, x) => s + x * x, 0), 0));
    const scale = Math.min(1, 1 / (norm + 1e-6)), n = ++this.steps, [b1, b2] = BETAS;
    const c1 = 1 - b1 ** n, c2 = 1 - b2 ** n;
    for (const [k, g] of Object.entries(grads)) {
      const x = this.W[k].x, m = this.m[k], v = this.v[k];
      for (let i = 0; i < g.length; i++) {
        const d = g[i] * scale;
        m[i] += (1 - b1) * (d - m[i]);
        v[i] += (1 - b2) * (d * d - v[i]);
        x[i] -= rate * (m[i] / c1) / (Math.sqrt(v[i] / c2) + EPS);
      }
    }
    return norm;
  }
}

const PREFILL = jit(prefill, {staticArgnums: [5, 6]}), DECODE = jit(decode), LOGPROBS = jit(logProbs);
const GRADIENTS = new Map();           // by cap, a plain number: `valueAndGrad` would turn it into an array

// The answers of a group packed into lanes, longest first, so that few are needed: lists of their indices.
function lanesOf(answers) {
  const lanes = [];
  const longest = answers.map((o, k) => [o.ids.length, k]).sort((a, b) => b[0] - a[0]);
  for (const [n, k] of longest) {
    let lane = lanes.find(o => o.left >= n);
    if (!lane) lanes.push(lane = {left: LANE, answers: []});
    lane.left -= n;
    lane.answers.push(k);
  }
  return lanes.map(o => o.answers);
}

function gradientOf(cap) {
  const capped = (...args) => loss(...args, cap);
  if (!GRADIENTS.has(cap)) GRADIENTS.set(cap, jit(valueAndGrad(capped, {argnums: [0, 1]})));
  return GRADIENTS.get(cap);
}
