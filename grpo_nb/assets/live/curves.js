// Curves over the batches or tokens of a run, drawn in pixels, so that they line up with the map below.

import {svg} from './dom.js';

const HEIGHT = 150, TOP = 14, BOTTOM = 26;
const y = share => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share);
const text = (x, y, anchor, words) => svg('text', {x, y, 'text-anchor': anchor}, words);

// `lines`: {points: [[x, share]], kind, dots, label}; `to`: the largest x; `ticks`: of x; `unit`: what x counts.
export function draw(root, {lines, to, ticks, unit, gutter, says}) {
  const width = Math.max(200, root.clientWidth), x = v => gutter + (width - gutter) * v / to;
  const pic = svg('svg', {viewBox: `0 0 ${width} ${HEIGHT}`, role: 'img', 'aria-label': says});
  for (const share of [0, .5, 1]) {
    pic.append(svg('line', {class: 'grid', x1: gutter, x2: width, y1: y(share), y2: y(share)}));
    pic.append(gutter ? text(gutter - 8, y(share) + 4, 'end', `${100 * share} %`)
      : text(0, y(share) - 4, 'start', `${100 * share} %`));
  }
  pic.append(text(gutter, HEIGHT - 6, 'start', unit));
  for (const t of ticks.filter(t => x(t) - gutter > 6.5 * unit.length + 24))   // don't overlap the unit
    pic.append(text(x(t), HEIGHT - 6, t < to ? 'middle' : 'end', t.toLocaleString('en')));
  for (const {points, kind, dots, label} of lines) {
    const at = points.map(([v, share]) => [x(v).toFixed(1), y(share).toFixed(1)]);
    pic.append(svg('polyline', {class: kind, points: at.join(' ')}));
    if (label && at.length > 1) {
      const [lx, ly] = at.at(-1), name = text(Math.min(lx, width - 6), Number(ly) + 18, 'end', label);
      name.setAttribute('class', `name ${kind}`);
      pic.append(name);
    }
    if (dots) for (const [cx, cy] of at) pic.append(svg('circle', {class: `dot ${kind}`, cx, cy, r: 4}));
  }
  root.replaceChildren(pic);
}
