// Helpers that build elements. Text of a record only ever becomes a text node, so nothing in it can run.

/** @returns {any} */
export function el(tag, props = {}, ...kids) {
  return filled(document.createElement(tag), props, kids);
}
/** @returns {any} */
export function svg(tag, props = {}, ...kids) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), props, kids);
}
function filled(e, props, kids) {
  for (const [k, v] of Object.entries(props)) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k == 'style') e.style.cssText = v;   // as a property: a page's security policy may forbid style attributes
    else if (v === true) e.setAttribute(k, '');
    else if (v !== false && v != null) e.setAttribute(k, v);
  }
  e.append(...kids.filter(o => o != null && o !== ''));
  return e;
}
export const button = (text, onclick, label) => el('button', {type: 'button', onclick, 'aria-label': label}, text);
export function select(label, choices, onchoose) {   // [the field with its label, the select itself]
  const s = el('select', {'aria-label': label, onchange: () => onchoose(s.value)},
    ...choices.map(([text, value]) => el('option', {value}, text)));
  return [el('label', {class: 'gv-field'}, el('span', {}, label), s), s];
}

// ---- numbers and words

export const num = (x, d = 3) => x == null ? '–' : typeof x != 'number' ? String(x) :
  (Number.isInteger(x) ? String(x) : String(+x.toPrecision(d))).replace('-', '−');
export const percent = x => (100 * x).toFixed(1) + '%';
export const many = (n, one, more = `${one}s`) => `${n.toLocaleString('en')} ${n == 1 ? one : more}`;
export const times = n => n == 1 ? 'once' : `${n} times`;
export const nth = n => n + (n % 100 >= 11 && n % 100 <= 13 ? 'th' : ['th', 'st', 'nd', 'rd'][n % 10] || 'th');
export const clamp = (x, lo, hi) => Math.max(lo, Math.min(hi, x));

// ---- colours

export const mix = (a, b, p) => '#' + [1, 3, 5].map(i => Math.round(parseInt(a.slice(i, i + 2), 16) * (1 - p)
  + parseInt(b.slice(i, i + 2), 16) * p).toString(16).padStart(2, '0')).join('');
export const isDark = root => {        // true if its text is light
  const [r, g, b] = getComputedStyle(root).color.match(/[\d.]+/g).map(Number);
  return (r + g + b) / 3 > 127;
};
