// Small pictures: a curve, the ratios of a group's tokens, the buffer after a step.

import {COLOURS} from './cells.js';
import {el, many, num, svg} from './dom.js';

const text = (x, y, anchor, words) => svg('text', {x, y, 'text-anchor': anchor}, words);
const section = (run, title) =>
  el('section', {class: 'gv-side gv-plain'}, el(run.sub, {class: 'gv-sub'}, title));
const only = (box, words) => {         // a section without a picture
  box.append(el('p', {class: 'gv-dim'}, words));
  return box;
};

export function curve(o) {
  const all = o.value.filter(Number.isFinite), lo = Math.min(...all), hi = Math.max(...all), n = o.step.length;
  const first = o.step[0], end = o.end ?? o.step[n - 1];
  const x = s => 44 + 300 * (s - first) / (end - first || 1), y = v => 96 - 84 * (v - lo) / (hi - lo || 1);
  const says = `${o.label}: ${num(o.value[0])} at step ${first}, ${num(o.value[n - 1])} at step ${o.step[n - 1]}`;
  const pic = svg('svg', {viewBox: '0 0 350 124', role: 'img', class: 'gv-pic', 'aria-label': says});
  if (o.since != null) pic.append(svg('rect', {x: x(o.since), y: 8, width: Math.max(0, 344 - x(o.since)), height: 88,
    fill: COLOURS.stored, 'fill-opacity': .2}));
  const line = o.step.map((s, i) => `${i ? 'L' : 'M'}${x(s).toFixed(1)} ${y(o.value[i]).toFixed(1)}`).join('');
  const colour = o.colour || COLOURS.curve;
  pic.append(svg('path', {d: 'M44 8V96H344', stroke: 'currentColor', fill: 'none', 'stroke-opacity': .4}),
    svg('path', {d: line, stroke: colour, fill: 'none', 'stroke-width': 1.8}));
  if (n == 1) pic.append(svg('circle', {cx: x(first), cy: y(o.value[0]), r: 3, fill: colour}));
  if (hi > lo) pic.append(text(40, 16, 'end', num(hi, 2)));
  pic.append(text(40, 98, 'end', num(lo, 2)), text(44, 114, 'start', `step ${first}`), text(344, 114, 'end', end));
  return el('figure', {}, el('figcaption', {}, o.label), pic);
}

export function ratios(g, {run, isWhatIf}) {
  const h = g.ratio_hist, box = section(run, 'Ratio to the policy that sampled');
  if (isWhatIf) return only(box, 'A what-if was not trained, so its ratios are not known.');
  if (!h) return only(box, 'Not recorded here.');
  const top = Math.max(...h.counts, 1), total = h.counts.reduce((a, b) => a + b, 0), n = h.counts.length;
  const bits = [many(total, 'token')];
  if (g.clip_frac != null) bits.push(`share clipped ${num(g.clip_frac, 2)}`);
  if (g.grad_norm != null) bits.push(`gradient norm ${num(g.grad_norm, 2)}`);
  const bins = h.counts.map((c, i) => c ? `${c} from ${h.edges[i]} to ${h.edges[i + 1]}` : '').filter(Boolean);
  const pic = svg('svg', {viewBox: '-10 0 350 116', role: 'img', class: 'gv-pic',
    'aria-label': `${bits.join(', ')}; ${bins.join(', ')}`});
  const x = i => 6 + i * 328 / n;
  h.counts.forEach((c, i) => pic.append(svg('rect', {x: x(i), y: 92 - 84 * c / top, width: 328 / n - 2,
    height: 84 * c / top, fill: h.edges[i] < 1 && h.edges[i + 1] > 1 ? COLOURS.curve : COLOURS.grey})));
  pic.append(svg('path', {d: 'M4 92H336', stroke: 'currentColor'}));
  for (const i of [0, 3, 6, 9, 12, 15]) if (h.edges[i] != null) pic.append(text(x(i), 108, 'middle', h.edges[i]));
  const uncorrected = run.correction?.includes('without') && g.replacement;
  box.append(el('p', {class: 'gv-dim'}, bits.join(', ')
    + (uncorrected ? '. Uncorrected replay takes all of these as 1.' : '.')), pic);
  return box;
}

export function buffer(s, {run, version: v}) {
  const box = section(run, 'The buffer after this step'), here = [];
  v.stored.forEach((o, k) => { if (o.at && o.at[0] <= s && (o.out == null || o.out > s)) here.push({...o, k}); });
  if (!here.length) return only(box, 'Empty.');
  const ages = here.map(o => run.steps[s] - o.step), old = Math.max(...ages, 1);
  const best = Math.max(...here.map(o => o.score || 0), 1e-9);
  const pic = svg('svg', {viewBox: '0 0 350 130', role: 'img', class: 'gv-pic',
    'aria-label': `${many(here.length, 'stored group')}, up to ${old} steps old, scores up to ${num(best)}`});
  pic.append(svg('path', {d: 'M30 6V108H344', stroke: 'currentColor', fill: 'none'}));
  here.slice(0, 400).forEach((o, i) => {
    const n = v.uses[o.k].filter(u => u[0] <= s).length;
    const says = `group ${num(o.id)} of step ${o.step}, score ${num(o.score)}, came back ${many(n, 'time')}`;
    pic.append(svg('circle', {cx: 36 + 300 * ages[i] / old, cy: 104 - 92 * (o.score || 0) / best, r: 3 + Math.min(n, 8),
      fill: n ? COLOURS.stored : COLOURS.living, 'fill-opacity': .75, stroke: 'currentColor'}, svg('title', {}, says)));
  });
  pic.append(text(26, 14, 'end', num(best, 2)), text(26, 108, 'end', '0'), text(36, 124, 'start', 'age 0'),
    text(344, 124, 'end', many(old, 'step')), text(190, 124, 'middle', 'score over age'));
  const most = v.size ? ` of at most ${v.size}` : ' stored so far';
  box.append(el('p', {class: 'gv-dim'}, `${many(here.length, 'group')}${most}; larger dots came back more often.`), pic);
  return box;
}
