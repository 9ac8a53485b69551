// One run of GRPO, the loop of chapter 12: sample, judge, compare, replace dead groups, take a step.

import {Policy} from './policy.js';
import {Buffer, compare, random, shuffled} from './replay.js';
import {REWARDS, right} from './text.js';

const total = (list, of) => list.reduce((a, o) => a + of(o), 0);
const lrFactor = (live, how) => ({none: 1, sqrt: Math.sqrt(live), linear: live})[how];
const tokensOf = groups => total(groups, g => total(g.answers, o => o.ids.length));

export class Trainer {
  constructor(weights, tokenizer, task, set, seed) {   // `set`: settings, from tasks.js
    this.random = random(seed);
    this.policy = new Policy(weights, tokenizer, this.random);
    this.buffer = new Buffer(set.buffer, this.random);
    this.weights = weights;
    this.tokenizer = tokenizer;
    this.task = task;
    this.set = {...set};
    this.wanted = {...set};            // settings of the batches to come
    this.settings = [];                // settings of each batch so far; a fork reads its original's
    this.past = [];                    // the state before each batch
    this.kept = [];                    // groups of each batch, [sampled or stored, what replaced it]
    this.breathe = async () => {};     // called often within a batch: the worker lets messages in
    this.fork = this.instead = null;   // of a fork: its number, and its change
    this.problems = random(seed + 1);
    this.order = [];
    this.done = this.tokens = this.ids = 0;
    this.watched = false;              // is the inspector open?
  }
  change(set) { Object.assign(this.wanted, set); }   // other settings, from the next batch on
  state() {                            // a copy of everything that the next batch depends on
    const {policy, buffer, random, problems, order, done, tokens, ids} = this;
    return {policy: policy.state(), groups: buffer.groups.map(g => ({...g})), left: [...buffer.left],
      draws: random.state, problems: problems.state, order: [...order], done, tokens, ids};
  }
  restore({policy, groups, left, draws, problems, order, done, tokens, ids}) {
    this.policy.restore(policy);
    this.buffer.groups = groups.map(g => ({...g}));
    this.buffer.left = [...left];
    this.random.state = draws;
    this.problems.state = problems;
    Object.assign(this, {order: [...order], done, tokens, ids});
  }
  // A second future from the state before batch `before` + 1. `instead` is the change: {set} replaces settings
  // from that batch on; {group} is the index of a group of that batch that is not replaced.
  forked(before, fork, instead = {}) {
    const other = new Trainer(this.weights, this.tokenizer, this.task, this.wanted, 0);
    other.restore(this.past[before]);
    other.past = this.past.slice(0, before);
    other.kept = this.kept.slice(0, before);
    other.settings = this.settings;    // shared, so that a knob turned later acts on both from the same batch
    return Object.assign(other, {fork, original: this, instead: {...instead, before}});
  }
  prompt(question) { return this.tokenizer.encode(this.task.before + question + this.task.after); }

  next(n) {                            // has its own random order, so that two arms get the same problems
    while (this.order.length < n) this.order.push(...shuffled(this.task.train.length, this.problems));
    return this.order.splice(0, n).map(i => this.task.train[i]);
  }
  async answer(problems, G, seen) {    // groups, judged and compared
    const prompts = problems.map(([question]) => this.prompt(question));
    const answers = await this.policy.sample(prompts, G, this.set.T, this.set.width, seen);
    return problems.map(([question, answer], i) => {
      const texts = answers[i].map(o => this.tokenizer.decode(o.ids));
      const pay = (t, k) => REWARDS[this.set.reward](t, answer, answers[i][k].ids.length, this.set.T);
      const rewards = texts.map(pay), rights = texts.map(t => right(t, answer));
      return {question, answer, texts, rewards, rights, pays: this.set.reward, prompt: prompts[i], answers: answers[i],
        batch: this.done + 1, step: this.policy.steps, uses: 0, ...G > 1 ? compare(rewards) : {}};
    });
  }
  // Replaces dead groups by stored ones. It draws before it stores, so that no group replaces one of its batch.
  treat(fresh) {
    const dead = fresh.filter(g => g.dead), {buffer, extra} = this;
    const n = dead.length, together = n + extra <= buffer.groups.length;   // then no group is drawn twice
    const all = together ? buffer.draw(n + extra) : [...buffer.draw(extra), ...buffer.draw(n)];
    const stored = all.slice(0, extra), drawn = all.slice(extra);
    const by = new Map(dead.slice(0, drawn.length).map((g, i) => [g, drawn[i]]));
    if (this.instead?.before == this.done) this.leave(fresh[this.instead.group], by);
    const living = fresh.filter(g => !g.dead);
    for (const g of living) g.id = ++this.ids;
    this.buffer.add(living);
    return {groups: [...fresh.map(g => by.get(g) ?? g), ...stored], by, stored};
  }
  leave(g, by) {                       // keep this dead group; the random draws are unaffected
    if (!by.has(g)) return;
    by.get(g).uses--;
    by.delete(g);
  }
  async batch() {
    this.past[this.done] = this.state();
    this.settings[this.done] ??= {...this.wanted};
    this.set = {...this.settings[this.done], ...this.instead?.set};
    this.buffer.resize(this.set.buffer);
    const {B, G, minis, rate, scale, cap, beside, width} = this.set, t0 = performance.now();
    this.extra = beside ? Math.min(B * beside / (1 + beside), this.buffer.groups.length) : 0;
    const fresh = await this.answer(this.next(B - this.extra), G, this.breathe), t1 = performance.now();
    this.tokens += tokensOf(fresh);
    const {groups, by, stored} = this.treat(fresh), began = this.policy.steps;
    const factor = lrFactor(groups.filter(g => !g.dead).length / B, scale);
    const items = tokensOf(groups) / minis, order = shuffled(B, this.random), size = B / minis, steps = [];
    for (let i = 0; i < minis; i++) {
      const mini = order.slice(i * size, (i + 1) * size).map(j => groups[j]);
      const now = this.watched ? await this.policy.logProbs(mini, width) : null;
      const terms = now && await this.policy.terms(mini, now, items, cap);
      steps.push(await this.policy.step(mini, items, width, rate * factor, cap));
      const after = now && await this.policy.logProbs(mini, width);
      mini.forEach((g, j) => {         // per-token values for the inspector, while it is open
        g.seen = now && {policy: now[j], after: after[j], terms: terms[j], weight: 1 / items, cap,
          old: g.answers.map(o => o.logps), loss: steps.at(-1).loss,
          tokens: g.answers.map(o => o.ids.map(id => this.tokenizer.text[id] ?? '?'))};
      });
      await this.breathe();
    }
    this.kept[this.done++] = [...fresh.map(g => [g, by.get(g)]), ...stored.map(g => [g])];
    const came = g => ({...told(g), age: began - g.step, uses: g.uses});
    return {batch: this.done, tokens: this.tokens, rate, factor, pays: this.set.reward, size: this.set.buffer, left: this.buffer.left.splice(0),
      loss: steps[0].loss,
      groups: [...fresh.map(g => ({...told(g), by: by.has(g) ? came(by.get(g)) : null})),
        ...stored.map(g => ({...came(g), stored: true}))],
      reward: total(fresh, g => total(g.rewards, r => r)) / (fresh.length * G),
      ms: [t1 - t0, performance.now() - t1]};
  }
  async measure(n, chunk = n) {        // share of n held-out problems solved at the first try
    let solved = 0;
    for (let i = 0; i < n; i += chunk)
      solved += total(await this.answer(this.task.test.slice(i, i + chunk), 1), g => g.rights[0]);
    return solved / n;
  }
}

// How far apart two states are: how many weights differ, the largest difference, and whether everything else
// is the same: Adam's moments, stored groups, upcoming problems and random numbers.
export function apart(a, b) {
  const weights = distance(a.policy.W, b.policy.W);
  const moments = [distance(a.policy.m, b.policy.m), distance(a.policy.v, b.policy.v)];
  return {...weights, same: !weights.differ && moments.every(o => !o.differ) && rest(a) == rest(b)};
}
function distance(a, b) {
  let differ = 0, most = 0, all = 0;
  for (const k in a) {
    all += a[k].length;
    a[k].forEach((x, i) => {
      if (x === b[k][i]) return;
      differ++;
      most = Math.max(most, Math.abs(x - b[k][i]));
    });
  }
  return {differ, most, all};
}
const rest = ({policy, groups, ...o}) =>
  JSON.stringify([policy.steps, groups.map(g => [g.id, g.uses, g.score, g.texts]), o]);

function told(g) {                     // what the page receives about a group
  const {question, answer, texts, rewards, rights, pays, advantages, dead, score, id, batch, step, seen} = g;
  const lengths = g.answers.map(o => o.ids.length);
  return {question, answer, texts, rewards, rights, pays, advantages, dead, score, id, batch, step, lengths, seen};
}
