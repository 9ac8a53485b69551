// Text of a record: shortened, colored, compared.

import {COLOURS} from './cells.js';
import {button, clamp, el, num} from './dom.js';

const ANSWER = /<answer>([^]*?)<\/answer>|\\boxed\{([^{}]*)\}|####[ \t]*([^\n]+)/dg;
const CUT = 2000, COMPARED = 3000;     // characters

// A long answer scrolls in its own box, so that the others of its group stay in view.
export const isLong = text => text.length > 280;

export const tint = (x, top = 2) => `color-mix(in srgb, ${x >= 0 ? COLOURS.high : COLOURS.low} `
  + `${Math.round(45 * clamp(Math.abs(x) / top, 0, 1))}%, transparent)`;

// The prompt (i = -1) or an answer of a group, as nodes; `other` is a text to mark differences to, and `redo`
// shows the group anew.
export function textOf(text, other, g, i, now, redo) {
  const tokens = g.tokens?.[i], values = g[now.colour]?.[i];   // in older records, fewer where a tool wrote
  if (i >= 0 && tokens && values?.length == tokens.length) return coloured(tokens, values, now.colour);
  if (other != null) return compare(text, other);
  const id = `${now.step},${g.group},${g.step},${i}`;
  const cut = text.length > CUT && !now.all.has(id) ? text.slice(0, CUT) : text;
  const out = i >= 0 ? marked(cut) : [cut];
  if (cut.length < text.length)
    out.push(button(`… show ${(text.length - CUT).toLocaleString('en')} more characters`, () => {
      now.all.add(id);
      redo();
    }));
  const more = (i >= 0 ? g.cut?.[i] : g.cut_prompt) || 0;
  if (more) out.push(el('i', {class: 'gv-dim'}, ` … ${more.toLocaleString('en')} more characters are in the record`));
  const A = i >= 0 && now.colour == 'advantage' ? (g.advantages_before || g.advantages || [])[i] : null;
  return A == null ? out : [el('span', {style: `background:${tint(A)}`}, ...out)];
}
function marked(text) {                // marks the final answer, where it was given last
  const found = [...text.matchAll(ANSWER)].pop(), span = found?.indices.slice(1).find(o => o);
  if (!span) return [text];
  return [text.slice(0, span[0]), el('mark', {}, text.slice(span[0], span[1])), text.slice(span[1])];
}
function coloured(tokens, values, by) {
  const scale = {ratios: x => Math.log(x) / Math.log(2), logps: x => -Math.min(3, -x) * 2 / 3, advantage: x => x}[by];
  return tokens.map((t, j) => values[j] == null ? t   // a tool wrote it
    : el('span', {style: `background:${tint(scale(values[j]))}`, title: num(values[j])}, t));
}
function compare(a, b) {               // words of `a` that are not in `b`, in order (longest common subsequence)
  const words = s => s.slice(0, COMPARED).match(/\s+|\S+/g) || [], x = words(a), y = words(b);
  if (x.length * y.length > 1e6) return [a];
  const L = Array.from({length: x.length + 1}, () => new Uint16Array(y.length + 1));
  for (let i = x.length - 1; i >= 0; i--) for (let j = y.length - 1; j >= 0; j--)
    L[i][j] = x[i] == y[j] ? L[i + 1][j + 1] + 1 : Math.max(L[i + 1][j], L[i][j + 1]);
  const out = [];
  for (let i = 0, j = 0; i < x.length; i++) {
    while (j < y.length && x[i] != y[j] && L[i][j + 1] >= L[i + 1][j] && L[i][j + 1] == L[i][j]) j++;
    if (j < y.length && x[i] == y[j]) {
      out.push(x[i]);
      j++;
    } else out.push(x[i].trim() ? el('mark', {class: 'gv-diff'}, x[i]) : x[i]);
  }
  return a.length > COMPARED ? [...out, a.slice(COMPARED)] : out;
}
