// The other sections of a report: verdict, answers before and after, findings, more curves, settings.

import {el, num, percent} from './dom.js';
import {curve} from './pictures.js';

export function heading(run) {
  const v = run.verdict, out = el('header', {class: 'gv-head'});
  out.append(el(run.title, {class: 'gv-title'}, run.name));
  if (run.about) out.append(el('p', {class: 'gv-dim'}, run.about));
  if (v) {
    out.append(el('p', {class: 'gv-verdict'}, el('b', {}, v.sentence)));
    if (v.groups) out.append(el('p', {}, el('b', {}, 'Zero-variance groups: '), v.groups));
    if (v.cause) out.append(el('p', {}, el('b', {}, 'Most likely cause: '), v.cause));
    if (v.advice) out.append(el('p', {}, el('b', {}, 'What to do: '), v.advice));
  }
  if (run.measured?.after) out.append(heldOut(run.measured));
  for (const n of run.notes || []) out.append(el('p', {class: 'gv-dim gv-note'}, n));
  return out;
}

const prompt = text => el('pre', {class: 'gv-prompt', dir: 'auto', tabindex: 0, 'aria-label': 'prompt'}, text || '');
const share = ([mean, ...ends]) => percent(mean) + (ends[0] == null ? '' : ` (${ends.map(percent).join(' to ')})`);

// The held-out result as a picture: the share solved before and after, each with its interval.
function heldOut({before, after}) {
  const bar = (name, [mean, low, high], kind) => el('p', {class: 'gv-held'}, el('span', {}, name),
    el('span', {class: 'gv-track', 'aria-hidden': 'true'},
      el('i', {class: kind, style: `width:${100 * mean}%`}),
      low == null ? '' : el('b', {style: `left:${100 * low}%;width:${100 * (high - low)}%`})), el('b', {}, percent(mean)));
  const title = 'Held-out problems solved at the first try; the line is the 95 % interval';
  return el('figure', {class: 'gv-heldout'}, el('figcaption', {class: 'gv-dim'}, title),
    before ? bar('before', before, 'gv-before') : '', bar('after', after, 'gv-after'));
}

// Held-out answers before and after training, if they were measured; newly solved problems come first.
export function answers(run) {
  const {before, after} = run.measured || {}, all = [...run.samples || []];
  if (!all.length && !after) return [];
  const learned = o => (o.right_after ? 1 : 0) - (o.right_before ? 1 : 0);
  all.sort((a, b) => learned(b) - learned(a));
  const said = (o, k) => el('section', {class: 'gv-side'},
    el(run.sub, {class: 'gv-sub'}, (k == 'before' ? 'Before training' : 'After it')
      + (o['right_' + k] == null ? '' : o['right_' + k] ? ': right' : ': wrong')),
    k == 'after' && o.prompt_after ? el('pre', {class: 'gv-prompt', dir: 'auto'}, o.prompt_after) : '',
    el('pre', {dir: 'auto'}, o[k] || '(empty)'));
  const pair = o => [prompt(o.prompt), el('div', {class: 'gv-pair'}, said(o, 'before'), said(o, 'after'))];
  const out = el('section', {class: 'gv-answers'});
  if (after) out.append(el('p', {}, 'Held-out problems solved at the first try: ',
    el('b', {}, before ? `${share(before)} before, ` : '', `${share(after)} after`), '.'));
  if (all.length) out.append(...pair(all[0]));
  if (all.length > 1)
    out.append(el('details', {}, el('summary', {}, `${all.length - 1} more`), ...all.slice(1).flatMap(pair)));
  return [out];
}

export function details(run) {
  const out = [], figures = curves => el('div', {class: 'gv-figs'}, ...curves.map(curve));
  const fold = (title, open, ...kids) =>
    out.push(el('details', {class: 'gv-more', open}, el('summary', {}, title), ...kids));
  if (run.findings?.length)
    fold('What the record shows', true, el('ul', {class: 'gv-finds'}, ...run.findings.map(finding)));
  const rest = run.curves.filter(c => !c.main);
  if (rest.length) fold('More curves', true, figures(rest));
  for (const [title, rows] of Object.entries(run.tables || {})) fold(title, false, table(title, rows));
  return out;

  function finding(f) {
    return el('li', {}, el('b', {}, f.message), f.step == null ? '' : ` (since step ${f.step})`, el('br'),
      el('span', {class: 'gv-dim'}, `seen: ${f.evidence}`), el('br'), `do: ${f.remedy}`,
      f.curves?.length ? figures(f.curves) : '');
  }
}
function table(title, rows) {
  const said = v => (typeof v == 'object' ? JSON.stringify(v) : num(v, 6)).slice(0, 2000);
  return el('div', {class: 'gv-wide', tabindex: 0, role: 'group', 'aria-label': title}, el('table', {},
    ...Object.entries(rows).map(([k, v]) => el('tr', {}, el('th', {scope: 'row'}, k), el('td', {}, said(v))))));
}
