// The page: starts the worker, passes the reader's actions on to it, and draws what it reports.

import {NAMES, among, lines as recordedLines} from './among.js';
import {setColours} from './cells.js';
import {draw} from './curves.js';
import {el, many} from './dom.js';
import {heading, likelier, show, tries} from './group.js';
import {choices, sameGroup, whereApart} from './fork.js';
import {RunMap} from './map.js';
import {codeOf, describe, packed} from './record.js';
import {TASKS} from './tasks.js';
import {mount} from './mount.js';

/** @type {(id: string) => any} */
const $ = id => document.getElementById(id);
/** @type {(css: string) => any} */
const all = css => document.querySelectorAll(css);
const percent = x => `${Math.round(100 * x)} %`;
const ALL = 1e9;                       // batches

// `run`, `seed`: number and seed of the run on display; `busy`: is the worker still training what was allowed?
// `follows`: does the panel follow the newest batch? `allowed`, `asked`: numbers of the latest messages;
// `fork`: number of the latest fork; `untrained`: how many tries were right before any training;
// `group`: the open one
const now = {task: TASKS.sums, run: 0, seed: 0, arms: [], running: false, busy: false, over: false,
  follows: false, allowed: 0, asked: 0, fork: 0, untrained: null, group: null,
  recorded: null};
const theFork = () => now.arms.find(o => o.fork);
const embedded = self != top;          // in a frame: the map alone, which trains at once
const begun = () => now.arms.some(o => o.batches.length);
let worker = null;
const tell = message => worker.postMessage(message);

// ---- the worker, and its messages

function begin() {
  if (location.protocol == 'file:')
    return refuse('From a file a page may not start the worker it trains in: run “grpo_nb live” instead.');
  worker = new Worker('worker.js', {type: 'module'});
  worker.onerror = e => refuse(`The training could not start (${e.message || 'no worker from a module'}).`);
  worker.onmessage = ({data}) => {
    if (data.run && data.run != now.run) return;   // from an earlier run
    if (data.fork && data.fork != theFork()?.fork) return;
    for (const what of Object.keys(data)) TOLD[what]?.(data[what], data.arm);
  };
  tell({do: 'open'});
}
function refuse(words) {
  $('word').textContent = words;
  $('word').hidden = false;
  $('status').textContent = '';
}

const TOLD = {
  refused: why => refuse('This page trains with WebAssembly, which your browser, or a rule for it, refuses. '
    + `Another browser may do; “grpo_nb demo” trains the same model without one. (It said: ${why})`),
  failed(why) {
    stop();
    refuse(`The training broke off (${why}). Reload the page to begin again.`);
  },
  ready() {
    for (const id of ['train', 'step', 'again']) $(id).disabled = false;
    turn();
    readAddress();
    anew();
    if (embedded) go(ALL);
  },
  batch(batch, i) {
    const arm = now.arms[i];
    arm.batches.push(batch);
    addColumn(arm, batch);
    if (!embedded) recorded ??= fetchRecorded();
    if (now.follows && (arm.fork || !theFork())) follow(i);
    redraw();
  },
  unseen(point, i) {
    now.arms[i].unseen.push(point);
    redraw();
    speak();
  },
  apart(found, i) {
    const arm = now.arms[i];
    arm.apart.push(found);
    redraw();
    if (arm.apart.length == 1) $('spoken').textContent = `${arm.says}. ${whereApart(arm)}`;
  },
  done() {
    now.over = true;
    stop();
    if (now.follows) ask();              // the first question again; a reader who opened a group keeps it
    speak(' The run is over.');
  },
  idle(allowed) {                      // unless more has been allowed since
    if (allowed == now.allowed) now.busy = false;
    redraw();
  },
  writing({id, texts}) { if (id == now.asked) $('tries').replaceChildren(tries(texts)); },
  likelier({id, tries}) { if (id == now.asked) likelier($('panel'), now.group, tries); },
  answered({id, texts, rights, batch, fork}) {   // by the last arm
    if (id != now.asked) return;
    $('tries').replaceChildren(tries(texts, rights));
    const right = rights.filter(r => r).length, arm = now.arms.at(-1);
    const when = (batch ? `after ${many(batch, 'batch', 'batches')}` : 'before any training')
      + (fork ? ', in the fork' : arm.name && `, ${arm.name}`);
    const question = $('question').value, first = now.untrained;
    if (!batch) now.untrained = {run: now.run, question, right};
    const before = batch && first?.run == now.run && first.question == question
      ? `; before any training ${first.right}` : '';
    $('panel').querySelector('.where').textContent = `its eight tries ${when}: ${right} right${before}`;
  },
};

// ---- controls

// The sliders go in steps; what an address gives is kept as it is, until its slider is moved.
const set = {rate: 0, buffer: 0, reward: '', G: 0, scale: ''};
const KNOBS = {rate: x => Number((10 ** x).toPrecision(2)), buffer: Number, reward: String, G: Number, scale: String};
const CHOSEN = ['reward', 'G', 'scale'];   // in a menu
const knobs = () => ({...set, buffer: $('replay').checked ? set.buffer : 0});
function turn() {                      // set the knobs to the task's settings
  for (const k in set) set[k] = now.task.sets.at(-1)[k];
  $('replay').checked = true;
  $('replay').closest('label').hidden = now.task.arms.length > 1;   // there one arm replays and the other doesn't
  read();
}
function read() {                      // show the knobs' values beside them
  $('rate').value = Math.log10(set.rate);
  $('buffer').value = set.buffer;
  for (const k of CHOSEN) $(k).value = set[k];
  for (const o of all('[data-tries]')) o.textContent = WORDS[set.G];
  $('pays').textContent = PAID[set.reward];
  const usual = now.task.sets.at(-1), turned = Object.entries(knobs()).filter(([k, x]) => x != usual[k]);
  $('unusual').textContent = turned.length ? `Turned: ${turned.map(([k, x]) => TURNED[k](x)).join(', ')}.` : '';
  $('rate-says').textContent = set.rate;
  $('buffer-says').textContent = set.buffer;
  $('buffer').disabled = !$('replay').checked;
}
const PAID = {right: 'the tries that come out right', tags: 'those that think and then answer, in tags,',
  length: 'the longest tries', short: 'the right and short ones'};
const option = k => $(k).selectedOptions[0].textContent.trim();
const TURNED = {reward: () => `reward for ${option('reward')}`, G: n => `${n} tries of each`, scale: () => `step ${option('scale')}`,
  buffer: n => n ? `at most ${n} stored groups` : 'no replay', rate: x => `learning rate ${x}`};
const WORDS = {2: 'two', 4: 'four', 8: 'eight', 16: 'sixteen'};
const taskName = () => Object.keys(TASKS).find(k => TASKS[k] == now.task);

function knobsOpen(yes) {              // on a narrow screen they are folded
  $('settings').classList.toggle('open', yes);
  $('knobs-shown').setAttribute('aria-expanded', yes);
}

// The address holds what is unusual of the task, seed and knobs with which a run begins: a link shows the same run.
function writeAddress() {
  const usual = now.task.sets.at(-1), query = new URLSearchParams();
  const put = (k, value, expected) => { if (value != expected) query.set(k, value); };
  put('task', taskName(), 'sums');
  put('seed', now.seed, 0);
  for (const [k, value] of Object.entries(knobs())) put(k, value, usual[k]);
  history.replaceState(null, '', location.pathname + (String(query) && `?${query}`) + location.hash);
}
function readAddress() {               // what is no possible value is refused, in words beside the knobs
  const query = new URLSearchParams(location.search), refused = [];
  const given = (k, fits, wanted, kind = Number) => {
    if (!query.has(k)) return null;
    knobsOpen(true);
    const said = query.get(k), x = said.trim() ? kind(said) : null;
    if (x != null && fits(x)) return x;
    refused.push(`The address has ${k}=${said.slice(0, 20)}, which is not used: ${wanted} is wanted.`);
    return null;
  };
  const whole = (k, to) => given(k, x => Number.isInteger(x) && x >= 0 && x <= to, `a whole number from 0 to ${to}`);
  if (Object.hasOwn(TASKS, query.get('task') ?? '')) {
    now.task = TASKS[query.get('task')];
    $('question').value = now.task.first;
    for (const o of all('[name=task]')) o.checked = TASKS[o.value] == now.task;
    turn();
  }
  const [seed, buffer] = [whole('seed', 999999), whole('buffer', 128)];
  const rate = given('rate', x => x >= 1e-5 && x <= 1e-3, 'a number from 0.00001 to 0.001');
  for (const k of CHOSEN) {
    const list = [...$(k).options].map(o => o.value);
    set[k] = given(k, x => list.includes(String(x)), `one of ${list.join(', ')}`, KNOBS[k]) ?? set[k];
  }
  if (seed != null) $('seed').value = seed;
  if (rate != null) set.rate = rate;
  if (buffer) set.buffer = buffer;
  $('replay').checked = buffer !== 0;
  read();
  $('knob-word').textContent = refused.join(' ');
}
// The seed that was typed; what is none is refused, and that of the run in sight stays.
const typed = () => $('seed').value && $('seed').checkValidity() ? Number($('seed').value) : now.seed;
// The seed of another run: the one that was typed, otherwise the next.
const next = () => typed() == now.seed ? (now.seed + 1) % 1e6 : typed();

function anew(seed = typed()) {        // an empty run that has not started
  now.over = now.follows = now.busy = false;
  now.run++;
  now.seed = $('seed').value = seed;
  now.arms = now.task.arms.map(arm => ({...arm, batches: [], unseen: []}));
  $('maps').replaceChildren(...now.arms.map(place));
  $('apart').textContent = '';
  $('title').textContent = now.task.title;
  const task = taskName();
  for (const o of all('[data-task]')) o.hidden = o.dataset.task != task;
  $('ask-label').textContent = now.task.asks;
  tell({do: 'start', run: now.run, task, seed, knobs: knobs()});
  writeAddress();
  stop();
  ask();
}
function place(arm, i) {               // an empty map for an arm
  arm.box = el('div', {class: `map rows${arm.rows}`}, arm.says ? el('h2', {}, arm.says) : null);
  const label = `Map of the run${arm.name && ', ' + arm.name}: a row for each batch, a cell for each group`;
  arm.map = new RunMap(arm.box, {...arm, label, choose: (c, r) => {
    now.follows = false;
    open(i, c, r);
    lift(i);
  }});
  return arm.box;
}
function addColumn(arm, {batch, groups}) {
  arm.map.add(groups.map(g => ({code: codeOf(g), says: describe(g)})));
  const fork = theFork(), pair = [fork, fork?.original];
  if (!pair.includes(arm)) return;
  const [a, b] = pair.map(o => o.batches[batch - 1]?.groups);
  if (a && b) fork.map.fade(batch - 1, a.map((g, r) => sameGroup(g, b[r])));
}

// ---- a second future from a given batch

function fork(i, c, {named, instead}) {
  $('sheet').classList.remove('up');
  stop();
  unfork();
  const original = now.arms[i], upTo = n => o => o.batch <= n;
  const arm = {...original, original, fork: ++now.fork, name: 'fork', kind: 'held fork', apart: [],
    says: `${original.name ? `Fork of “${original.name}”` : 'Fork'} at batch ${c + 1}: ${named}`,
    batches: [], unseen: original.unseen.filter(upTo(c))};
  now.arms.push(arm);
  $('maps').append(place(arm, now.arms.length - 1));
  const label = `Remove the fork at batch ${c + 1}`;
  arm.box.firstChild.append(' ', el('button', {type: 'button', class: 'drop', 'aria-label': label,
    onclick: removeFork}, 'remove'));
  for (const batch of original.batches.slice(0, c)) {
    arm.batches.push(batch);
    addColumn(arm, batch);
  }
  tell({do: 'fork', arm: i, before: c, fork: arm.fork, instead});
  now.over = false;
  go(ALL);
  $('train').focus({preventScroll: true});   // the pressed button no longer exists
  arm.box.scrollIntoView({block: 'nearest'});
}
function unfork() {                    // remove the fork; the original run stays
  theFork()?.box.remove();
  now.arms = now.arms.filter(o => !o.fork);
}
function removeFork() {
  unfork();
  tell({do: 'unfork'});
  $('train').focus();
  ask();
  redraw();
}
function offer(i, c, r) {              // in the panel: the changes that a fork offers
  if (now.arms[i].fork) return null;
  const batch = now.arms[i].batches[c], list = choices(batch, r);
  const select = el('select', {id: 'fork-what'}, ...list.map(
    (o, k) => el('option', {value: k}, o.named.replace(`group ${r + 1}`, 'this group'))));
  const onsubmit = e => {
    e.preventDefault();
    fork(i, c, list[select.value]);
  };
  return el('form', {class: 'fork', onsubmit},
    el('label', {for: 'fork-what'}, `What if, from batch ${c + 1} on:`),
    el('span', {class: 'row'}, select, el('button', {}, 'Fork')),
    el('p', {class: 'small'}, 'A second future beside this one: from the same weights, optimizer state, stored '
      + 'groups and random numbers, with this one change.'));
}
function go(n) {
  if (now.over) anew(now.seed);
  else if (!begun() && typed() != now.seed) anew();
  now.running = n == ALL;
  now.follows = now.busy = true;
  tell({do: 'allow', n, id: ++now.allowed});
  redraw();
}
function stop() {
  now.running = false;
  tell({do: 'allow', n: 0, id: ++now.allowed});
  redraw();
}
function wire() {
  $('train').onclick = () => now.running ? stop() : go(ALL);
  $('step').onclick = () => go(1);
  $('again').onclick = () => {
    anew(next());
    go(ALL);
  };
  for (const o of all('[name=task]')) o.onchange = () => {
    now.task = TASKS[o.value];
    $('question').value = now.task.first;
    turn();
    anew(now.seed);
  };
  for (const id of ['replay', ...Object.keys(KNOBS)]) {
    $(id).oninput = () => {
      if (KNOBS[id]) set[id] = KNOBS[id]($(id).value);
      read();
      tell({do: 'change', knobs: knobs()});
      redraw();
    };
    $(id).onchange = () => { if (!begun()) writeAddress(); };
  }
  $('seed').oninput = () => {
    const fits = $('seed').checkValidity();
    $('knob-word').textContent = fits ? '' : 'A seed is a whole number from 0 to 999999.';
    state();
  };
  $('knobs-shown').onclick = () => knobsOpen(!$('settings').classList.contains('open'));
  $('shut').onclick = shut;
  $('sheet').onkeydown = e => { if (e.key == 'Escape') shut(); };
  $('ask').onsubmit = e => {
    e.preventDefault();
    ask();
  };
  $('inspect').ontoggle = () => {
    tell({do: 'watch', on: $('inspect').open});
    inspect();
  };
  addEventListener('resize', () => {
    $('panel').style.minHeight = '';
    if (now.arms.length) redraw();
  });
  addEventListener('beforeunload', e => { if (begun() && !now.over && !embedded) e.preventDefault(); });
}

// ---- the panel: answers to the reader's question, or a group of the map

function ask() {
  $('ask-word').textContent = '';
  let problem;
  try { problem = now.task.read($('question').value); } catch (e) {
    $('ask-word').textContent = e.message;
    return;
  }
  const [question, answer, strange] = problem;
  $('ask-word').textContent = strange;
  now.follows = false;
  now.asked++;
  for (const arm of now.arms) arm.map.mark();
  const where = el('p', {class: 'where'}, 'its eight tries');
  $('panel').style.minHeight = '';
  $('panel').replaceChildren(where, heading(question, answer), el('div', {id: 'tries'}));
  tell({do: 'ask', question, answer, id: now.asked});
}
function open(i, c, r) {
  const arm = now.arms[i], g = arm.batches[c].groups[r];
  const place = `batch ${c + 1}, group ${r + 1}` + (arm.name && `, ${arm.name}`);
  for (const o of now.arms) o.map.mark();
  arm.map.mark([c, r]);
  now.group = g;
  show($('panel'), g, place);
  tell({do: 'likelier', id: ++now.asked, arm: i, batch: c, group: r});   // answers still being written are discarded
  $('panel').append(paths(i), offer(i, c, r) ?? '');
  $('panel').style.minHeight = `${$('panel').offsetHeight}px`;   // so that what is below doesn't move
}
// On a narrow screen the panel is far below the map: a chosen group comes up as a sheet over the page's lower half.
const narrow = matchMedia('(max-width: 860px)');
function lift(i) {
  if (!narrow.matches) return;
  if (!$('sheet').classList.contains('up')) $('sheet').scrollTop = 0;
  $('sheet').classList.add('up');
  now.arms[i].map.chosen.scrollIntoView({block: 'nearest', inline: 'nearest'});   // beside the sheet
}
function shut() {
  $('sheet').classList.remove('up');
  now.arms.find(o => o.map.isMarked)?.map.chosen.focus({preventScroll: true});
}
function paths(i) {                    // to the neighbors of the open group, without a keyboard
  const button = (words, label, onclick) =>
    el('button', {type: 'button', 'aria-label': label, onclick}, words);
  const walk = (words, label, ...to) => button(words, label, () => now.arms[i].map.walk(...to, false));
  const again = () => {
    now.follows = true;
    follow(i);
  };
  return el('p', {class: 'walk'}, walk('←', 'batch before', -1, 0), walk('→', 'next batch', 1, 0),
    walk('↑', 'group above', 0, -1), walk('↓', 'group below', 0, 1),
    now.running && !now.follows ? button('follow the run', null, again) : null);
}
function follow(i) {                   // open a replaced group of the newest batch, or a living one
  const c = now.arms[i].batches.length - 1, {groups} = now.arms[i].batches[c];
  open(i, c, Math.max(0, groups.findIndex(g => c % 2 ? g.by : !g.dead)));
}

// ---- redrawn with every batch

function redraw() {
  const {axis} = now.task;
  state();
  score();
  legend();
  const behind = others();
  const gutter = parseFloat(getComputedStyle($('maps')).getPropertyValue('--gutter'));
  $('apart').textContent = [theFork() && whereApart(theFork()), ...now.arms.map(idle)].filter(o => o).join(' ');
  const own = now.arms.flatMap(o => [
    ...o.name ? [] : [{kind: 'batch', points: o.batches.map(b => [b.batch - .5, b.reward])}],
    {kind: o.kind, dots: true, label: behind.length && !o.fork && 'yours',
      points: o.unseen.map(p => [Math.min(axis.to, axis.of(p)), p.right])}]);
  draw($('chart'), {...axis, lines: [...behind, ...own], gutter, says: now.arms.map(sentence).join(' ')});
  inspect();
}

// Recorded runs behind the reader's: fetched with the first batch, and drawn where they are of the same task.
let recorded = null;
async function fetchRecorded() {
  const r = await fetch('recorded.json');
  if (!r.ok) return;
  now.recorded = await r.json();
  $('kinds').replaceChildren(...Object.entries(NAMES).map(([kind, words]) => el('label', {class: kind},
    el('input', {type: 'checkbox', value: kind, checked: kind != 'scaled', onchange: redraw}), words)));
  redraw();
}
function others() {
  const there = now.recorded && now.task == TASKS.sums && begun();
  $('others').hidden = !there;
  if (!there) return [];
  const [usual] = now.task.sets, [arm] = now.arms;
  const own = now.over ? arm.unseen.map(o => o.right) : null;
  const apart = Object.entries(knobs()).every(([k, x]) => usual[k] == x) ? '' : 'Recorded with the usual knobs. ';
  $('among').textContent = apart + among(now.recorded, own);
  const shown = [...all('#kinds input')].filter(o => o.checked).map(o => o.value);
  const lines = recordedLines(now.recorded, shown, usual.every);
  if (lines.length && arm.unseen.length < 2) lines.at(-1).label = 'recorded runs';   // until there is one called yours
  return lines;
}
function state() {                     // the run's state, on the button and beside it
  const each = now.arms.map(o => o.batches.length), n = Math.max(...each);
  const {to, of, unit} = now.task.axis;
  const spent = Math.min(to, ...now.arms.map(o => o.batches.length && of(o.batches.at(-1))));
  const batches = unit == 'batch' ? `${each.join(' and ')} of ${to} batches`
    : `${each.join(' and ')} batches` + (now.over ? '' : ` (${Math.floor(100 * spent / to)} %)`);
  $('train').textContent = now.running ? 'Pause' : now.over ? 'Same run again' : n ? 'Go on' : 'Train';
  $('again').textContent = `Another run, seed ${next()}`;
  $('again').title = `The run in sight has seed ${now.seed}`;
  const after = now.over ? ', done' : now.running ? '' : now.busy ? ', one more …' : ', paused';
  $('status').textContent = n ? batches + after : now.busy ? 'the first batch …' : '';
}
function idle({name, batches}) {        // where the newest batch had nothing to learn from
  const last = batches.at(-1);
  if (!last || last.groups.some(g => g.stored || g.by || !g.dead)) return '';
  return `${name ? `${name}: in` : 'In'} batch ${last.batch} all groups are dead: whatever it tried, it earned the same, `
    + `and nothing was learned.`;
}
function sentence({name, unseen}) {
  const who = `${name || 'The model'}:`, [first] = unseen, last = unseen.at(-1);
  if (!first) return `${who} not measured yet.`;
  const from = last == first ? '' : `, ${percent(first.right)} ${when(first)}`;
  return `${who} ${percent(last.right)} of ${now.task.unseen} right ${when(last)}${from}.`;
}
function when(point) {                 // what the arm had spent when it was measured
  const {of, to, unit} = now.task.axis, spent = Math.min(to, of(point));
  if (!spent) return 'before any training';
  if (unit == 'batch') return `after ${many(spent, 'batch', 'batches')}`;
  const rest = of(point) > to ? ' and the rest of that batch' : '';
  return `after ${spent.toLocaleString('en')} tokens${rest}`;
}
function score() {
  const points = now.arms.map(o => o.unseen), [first] = points[0];
  if (!points.every(o => o.length)) return $('score').replaceChildren('measuring what it can do …');
  const big = (point, kind) => el('b', {class: kind}, percent(point.right));
  const small = words => el('span', {}, words);
  if (points.length > 1) {             // the latest evaluation that all have had, each with what its arm had spent
    const nth = Math.min(...points.map(o => o.length)) - 1, times = points.map(o => when(o[nth]));
    const one = times.every(o => o == times[0]);
    const each = now.arms.map(({unseen, kind, name}, i) =>
      el('span', {}, big(unseen[nth], kind), ` ${name || 'first run'}${one ? '' : ` ${times[i]}`}`));
    return $('score').replaceChildren(...each, one ? small(times[0]) : '');
  }
  const before = points[0].length > 1 ? [small(`${percent(first.right)} →`)] : [];
  $('score').replaceChildren(...before, big(points[0].at(-1)), small(`of ${now.task.unseen}`));
}
function legend() {
  const two = now.task.arms.length > 1, alone = now.arms.length < 2;
  const curves = now.arms.map(
    o => [`curve ${o.kind}`, now.task.unseen + (alone ? '' : `, ${o.name || 'first run'}`)]);
  const pays = set.reward == 'right';
  if (!two) curves.push(['curve batch', pays ? 'the sums of the batch' : 'what the batch earned']);
  const rows = [...curves, ['s1', 'tries differ: it learns'], ['s2', pays ? 'all right' : 'all earn the same'],
    ['s3', pays ? 'all wrong' : 'none earns anything']];
  if (two || knobs().buffer) rows.push(['s8', 'a stored group']);
  if (theFork()) rows.push(['s1 same', 'pale: the same in both futures']);
  $('legend').replaceChildren(...rows.map(([c, words]) => el('li', {}, el('i', {class: c}), words)));
}
function speak(end = '') {             // for a screen reader: at every evaluation, not at every batch
  $('spoken').textContent = `Batch ${now.arms.map(o => o.batches.length).join(' and ')}. ${now.arms.map(sentence).join(' ')}${end}`;
}

// The whole run in the inspector of recorded runs: rebuilt with every batch while it is open.
let drawing = null;
async function inspect() {
  const arm = now.arms.at(-1);
  if (!$('inspect').open || !arm?.batches.length || drawing) return;
  const place = $('inspector').firstElementChild ?? $('inspector').appendChild(el('div'));
  const n = arm.batches.length, {minis} = now.task.sets.at(-1), last = place.gv?.run.S - 1;
  if (place.shows == arm && last == n - 1) return;
  const stays = place.shows == arm && place.gv.now.step < last;   // the reader is looking at an earlier batch
  const {step, group} = stays ? place.gv.now : {step: n - 1, group: 0};
  drawing = packed(arm, minis, arm.says || 'This run');
  const run = await drawing;
  place.leave?.();
  place.leave = await mount(place, run, {plain: true, start: {step: step * minis, group}});
  place.shows = arm;
  drawing = null;
}

document.querySelector('.late').remove();
document.body.classList.toggle('embedded', embedded);
$('whole').hidden = !embedded;
setColours(document.documentElement);
wire();
begin();
