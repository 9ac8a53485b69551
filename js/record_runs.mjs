// Trains the page's sums with many seeds, without a browser, and keeps what the page draws behind the reader's run:
// of the 192 unseen sums, how many were right at each evaluation. About 40 s a run on one core; it goes on where it
// was stopped, and nothing is left of a run that was not finished:
//   python -c "from grpo_nb.see.live import write_live; write_live('page')"
//   node js/record_runs.mjs page grpo_nb/assets/live/recorded.json 20

import {existsSync, readFileSync, renameSync, writeFileSync} from 'node:fs';
import {join, resolve} from 'node:path';
import {pathToFileURL} from 'node:url';

const [folder, out, seeds = '20'] = process.argv.slice(2);
globalThis.self ??= globalThis;        // jax-js is made for a browser
writeFileSync(join(folder, 'package.json'), '{"type": "module"}');
const load = name => import(pathToFileURL(resolve(folder, name)));
const [{ready}, {Trainer}, {Tokenizer, safetensors}, {TASKS, UNSEEN, CHUNK, spent, over}] =
  await Promise.all(['policy.js', 'trainer.js', 'text.js', 'tasks.js'].map(load));
const read = name => readFileSync(join(folder, name));
const json = name => JSON.parse(read(name));
const weights = safetensors(Uint8Array.from(read('model.safetensors')).buffer);
const tokenizer = new Tokenizer(json('tokenizer.json')), task = json('tasks.json').sums;

const ARMS = {replay: {}, plain: {buffer: 0}, scaled: {buffer: 0, scale: 'sqrt'}};

async function run(change, seed) {     // as the worker does it
  const arm = new Trainer(weights, tokenizer, task, {...TASKS.sums.sets[0], ...change}, seed);
  const periods = () => Math.floor(spent(arm) / arm.set.every), right = [];
  const measure = async () => right.push(Math.round(UNSEEN * await arm.measure(UNSEEN, CHUNK)));
  await measure();
  while (!over(arm)) {
    const before = periods();
    await arm.batch();
    delete arm.past[arm.done - 1];
    if (over(arm) || periods() > before) await measure();
  }
  return right;
}

await ready();
const kept = existsSync(out) ? JSON.parse(readFileSync(out)) : {};
delete kept.of;
for (let seed = 0; seed < Number(seeds); seed++)
  for (const [name, change] of Object.entries(ARMS)) {
    kept[name] ??= [];
    if (kept[name][seed]) continue;
    kept[name][seed] = await run(change, seed);
    const rows = Object.entries(kept).map(([k, all]) => `"${k}": [${all.map(o => JSON.stringify(o)).join(',\n  ')}]`);
    writeFileSync(`${out}.new`, `{"of": ${UNSEEN},\n${rows.join(',\n')}}\n`);
    renameSync(`${out}.new`, out);
    console.log(name, seed, ...kept[name][seed]);
  }
