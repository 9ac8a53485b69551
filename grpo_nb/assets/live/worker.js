// The worker: keeps the models, trains them batch by batch, and answers questions in between.

import {Policy, ready} from './policy.js';
import {Tokenizer, safetensors} from './text.js';
import {random} from './replay.js';
import {CHUNK, TASKS, UNSEEN, over, spent, turned} from './tasks.js';
import {Trainer, apart} from './trainer.js';

const get = async (name, how = 'json') => {
  const r = await fetch(new URL(name, import.meta.url));
  if (!r.ok) throw new Error(`${name}: ${r.status} ${r.statusText}`);
  return r[how]();
};
const breath = () => new Promise(go => setTimeout(go));   // lets messages in

const OFTEN = 60;                      // ms between two breaths within a batch
let kit = null, probe = null, lastBreath = 0, run = 0, arms = [], allowed = 0, told = 0, working = false, watched = false;
const questions = [], wanted = [];
const tell = message => postMessage({...message, run});   // the page ignores messages of earlier runs
const tellOf = (arm, message) => tell({...message, arm: arms.indexOf(arm), fork: arm.fork});

const ACTS = {
  async open() {
    try { await ready(); } catch (e) { return postMessage({refused: String(e.message ?? e)}); }
    const [weights, tokenizer, tasks] = await Promise.all(
      [get('model.safetensors', 'arrayBuffer'), get('tokenizer.json'), get('tasks.json')]);
    kit = {weights: safetensors(weights), tokenizer: new Tokenizer(tokenizer), tasks};
    probe = new Policy(kit.weights, kit.tokenizer, null);
    const n = Object.values(kit.weights).reduce((a, o) => a + o.x.length, 0);
    postMessage({ready: {weights: n}});
  },
  start(o) {                           // a new run, paused; `o.run` is its number
    run = o.run;
    arms = TASKS[o.task].sets.map(set => {
      const arm = new Trainer(kit.weights, kit.tokenizer, kit.tasks[o.task], turned(set, o.knobs), o.seed);
      return Object.assign(arm, {base: set, watched, breathe});
    });
    allowed = 0;
  },
  allow({n, id}) { [allowed, told] = [n, id]; },   // batches to do; 0 pauses
  change({knobs}) { for (const o of arms) o.change(turned(o.base, knobs)); },
  fork({arm, before, fork, instead}) { // a second future of an arm; replaces an earlier fork
    const from = arms[arm], other = from.forked(before, fork, instead);
    arms = [...arms.filter(o => !o.fork), Object.assign(other, {base: from.base, measured: true, watched, breathe})];
    allowed = 0;
    compare(other, before);
  },
  unfork() { arms = arms.filter(o => !o.fork); },
  watch({on}) {                        // is the inspector open? Then per-token values are sent too, for two more passes
    watched = on;
    for (const o of arms) o.watched = on;
  },
  ask({question, answer, id}) { questions.push({question, answer, id}); },
  likelier(o) { wanted.splice(0, 1, o); },   // of a group on display; only the latest matters
};
onmessage = async ({data}) => {
  await ACTS[data.do](data);
  work();
};

async function work() {
  if (working || !arms.length) return;
  working = true;
  try {
    for (;; await breath()) {          // it ends right after the check: a message let in later would be lost
      const untried = arms.find(o => !o.measured);
      if (wanted.length) await likelier(wanted.shift());
      else if (questions.length) await reply(questions.shift());
      else if (untried) await measure(untried);
      else if (allowed <= 0 || !await advance()) break;
    }
  } catch (e) {
    tell({failed: String(e.message ?? e)});
  }
  working = false;
  tell({idle: told});
}

const periods = o => Math.floor(spent(o) / o.set.every);   // that are over

async function advance() {             // a batch of the arm that has spent the least; false when all are done
  const going = arms.filter(o => !over(o)), arm = going.sort((a, b) => a.tokens - b.tokens)[0];
  if (!arm) return false;
  allowed--;
  const before = periods(arm), batch = await arm.batch();
  if (!arms.includes(arm)) return true;   // another run has begun meanwhile
  tellOf(arm, {batch});
  if (over(arm) || periods(arm) > before) await measure(arm);
  const fork = arms.find(o => o.fork);
  if (fork && [fork, fork.original].includes(arm)) compare(fork, arm.done);
  if (arms.every(over)) tell({done: true});
  return true;
}

const after = (arm, n) => arm.past[n] ?? (arm.done == n ? arm.state() : null);   // a batch may be half done
function compare(fork, n) {            // with its original, after n batches, once both have done them
  const [a, b] = [after(fork, n), after(fork.original, n)];
  if (a && b) tellOf(fork, {apart: {...apart(a, b), batch: n}});
}

// Log-probs of a group's tries, [before, after] the steps of its batch; and of the group that came in its place.
async function likelier({id, arm, batch, group}) {
  const of = arms[arm], states = [batch, batch + 1].map(n => after(of, n)?.policy);
  if (!of?.kept[batch] || !states.every(o => o)) return;
  const out = of.kept[batch][group].map(g => g && []);
  for (const state of states) {
    probe.restore(state);
    for (const [k, g] of of.kept[batch][group].entries())
      if (g) out[k].push((await probe.logProbs([g], of.set.width))[0].map(o => o.reduce((a, b) => a + b, 0)));
  }
  tell({likelier: {id, tries: out}});
}
async function breathe() {             // a tap on the map is answered while a batch is being made
  if (performance.now() - lastBreath < OFTEN) return;
  await breath();
  lastBreath = performance.now();
  if (wanted.length) await likelier(wanted.shift());
}

async function measure(arm) {
  arm.measured = true;
  const right = await arm.measure(UNSEEN, CHUNK);
  const unseen = {right, batch: arm.done, tokens: arm.tokens};
  if (arms.includes(arm)) tellOf(arm, {unseen});
}

async function reply({question, answer, id}) {   // eight tries, sent while they are being written
  const arm = arms.at(-1), shown = o => arm.tokenizer.decode(o.ids);
  arm.policy.random = random(id);      // a question must not change the run's own random draws
  const [group] = await arm.answer([[question, answer]], 8, async rows => {
    tell({writing: {id, texts: rows.map(shown)}});
    await breath();
  });
  arm.policy.random = arm.random;
  tell({answered: {id, batch: arm.done, fork: arm.fork, texts: group.texts, rights: group.rights}});
}
