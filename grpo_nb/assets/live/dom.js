// Small tools for what is drawn. Text only ever becomes a text node.

export function el(tag, props = {}, ...kids) {
  return filled(document.createElement(tag), props, kids);
}
export function svg(tag, props = {}, ...kids) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), props, kids);
}
function filled(e, props, kids) {
  for (const [k, v] of Object.entries(props)) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k == 'style') e.style.cssText = v;   // as a property: the page's policy allows no attribute
    else if (v === true) e.setAttribute(k, '');
    else if (v !== false && v != null) e.setAttribute(k, v);
  }
  e.append(...kids.filter(o => o != null && o !== ''));
  return e;
}
export const many = (n, one, more = `${one}s`) => `${n.toLocaleString('en')} ${n == 1 ? one : more}`;
