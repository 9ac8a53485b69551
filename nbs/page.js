// What our pages add to smalldocs: colored code, widgets that work without a kernel, keyboard and screen-reader support, and
// a search that ranks the page that answers first. It runs before smalldocs' own script, in the same file.
(() => {
  const all = (what, f, within = document) => within.querySelectorAll(what).forEach(f)
  const make = (tag, more, ...inside) => { const o = Object.assign(document.createElement(tag), more); o.append(...inside); return o }

  // ---- code: a page holds plain text; its colors and its copy button are added here
  const words = s => s.trim().split(/\s+/).join('|')
  const python = new RegExp([String.raw`(?<co>#.*)`,
    String.raw`(?<st>(?<!\w)[rbfuRBFU]{0,2}(?:"""[^]*?"""|'''[^]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))`,
    String.raw`(?<=\b(?:def|class) )(?<fu>\w+)`,
    String.raw`\b(?<cf>${words('if elif else for while return break continue try except finally raise with yield match case await')})\b`,
    String.raw`\b(?<kw>${words('and as assert async class def del from global import in is lambda nonlocal not or pass')})\b`,
    String.raw`\b(?<cn>True|False|None)\b`,
    String.raw`(?<![\w.])(?<dv>\d[\w.]*(?:(?<=e)[+-]\d+)?|\.\d+)`].join('|'), 'g')
  const shell = /(?<=^|\s)(?<co>#.*)|(?<st>"(?:\\.|[^"\\])*"|'[^']*')/gm
  const colours = {python, json: python, sh: shell, bash: shell}
  const plain = s => s.replace(/[&<]/g, c => c === '&' ? '&amp;' : '&lt;')
  const coloured = (text, rule) => {
    let done = 0, res = ''
    for (const m of text.matchAll(rule)) {
      const [kind, word] = Object.entries(m.groups).find(o => o[1])
      res += `${plain(text.slice(done, m.index))}<span class="${kind}">${plain(word)}</span>`
      done = m.index + m[0].length }
    return res + plain(text.slice(done)) }
  all('pre[class]', pre => {
    const code = pre.firstElementChild, rule = colours[pre.className]
    if (rule) code.innerHTML = coloured(code.textContent, rule)
    pre.classList.add('sourceCode'); code.classList.add('sourceCode')
    const box = make('div', {className: 'code-copy-outer-scaffold'})
    const button = make('button', {className: 'code-copy-button', title: 'Copy to Clipboard'}, make('i', {className: 'bi'}))
    pre.replaceWith(box)
    box.append(make('div', {className: 'sourceCode'}, pre), button)
  })

  // ---- widgets: the first frame is on the page, the others are packed beside it; a control switches between them
  window.unpacked = stream => new Response(stream.pipeThrough(new DecompressionStream('deflate'))).json()
  const bytes = text => new Blob([Uint8Array.from(atob(text), c => c.charCodeAt(0))]).stream()
  const controls = {
    range(o, at, turn) {
      const input = make('input', {type: 'range', min: 0, max: o.labels.length - 1, value: at}), said = make('output', {})
      const tell = () => { said.textContent = o.labels[input.value]; input.setAttribute('aria-valuetext', o.labels[input.value]) }
      input.oninput = () => { tell(); turn(+input.value) }
      tell()
      return [input, said] },
    select(o, at, turn) {
      const input = make('select', {}, ...o.labels.map(t => make('option', {textContent: t})))
      input.selectedIndex = at
      input.onchange = () => turn(input.selectedIndex)
      return [input] },
    buttons(o, at, turn) {
      const made = o.labels.map((t, i) => make('button', {type: 'button', textContent: t, onclick: () => { press(i); turn(i) }}))
      const press = at => made.forEach((b, i) => b.setAttribute('aria-pressed', i === at))
      press(at)
      return made } }
  all('script.frame', async packed => {
    packed.previousElementSibling.srcdoc = await window.unpacked(bytes(packed.textContent)) })
  all('.widget > script', async packed => {
    const shown = packed.previousElementSibling, {handles, frames, at} = await window.unpacked(bytes(packed.textContent))
    const show = () => {
      let o = frames
      while (Array.isArray(o)) o = o[1][at[o[0]]]
      shown.innerHTML = o }
    const row = handles.map((o, i) => {
      const turn = to => { at[i] = to; show() }
      const parts = controls[o.kind](o, at[i], turn), group = parts.length > 1 && o.kind === 'buttons'
      const box = make(group ? 'div' : 'label', {className: `handle ${o.kind}`}, make('span', {textContent: o.name}), ...parts)
      if (group) box.setAttribute('role', 'group')
      for (const named of group ? [box] : parts.slice(0, 1)) named.setAttribute('aria-label', o.name)
      return box })
    shown.before(make('div', {className: 'handles'}, ...row))
  })

  // ---- accessibility: links with targets, scrolling areas that the keyboard reaches, named navigation
  const tend = () => {
    document.querySelectorAll('main table.dataframe tbody :is(td, th):not(.short)').forEach(o => {   // 1e-07 and 0.1 ± 0.2 are one word each
      if (o.textContent.length < (o.tagName === 'TD' ? 28 : 10)) o.classList.add('short') })
    document.querySelectorAll('main div:not([tabindex]), main .katex-display:not([tabindex])').forEach(o => {
      if (o.scrollWidth > o.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(o).overflowX)) o.tabIndex = 0 })
  }
  let soon
  const later = () => { clearTimeout(soon); soon = setTimeout(tend, 50) }
  addEventListener('load', later); addEventListener('resize', later)
  new MutationObserver(later).observe(document.documentElement, {childList: true, subtree: true})
  all('main', o => o.tabIndex = -1)
  all('pre:not([tabindex]), table:not([tabindex])', o => o.tabIndex = 0)
  all('a[role=navigation]', o => {
    o.setAttribute('role', 'button'); o.tabIndex = 0
    o.onkeydown = e => { if (['Enter', ' '].includes(e.key)) { e.preventDefault(); o.click() } }
  })
  const names = {'nav.navbar': 'Site', '#quarto-sidebar': 'Chapters', '.quarto-secondary-nav': 'This page among the chapters',
    'nav.page-navigation': 'Next and previous', '.bi-github[role=img]': 'GitHub'}
  for (const [what, name] of Object.entries(names))
    all(what, o => { if (!o.hasAttribute('aria-label')) o.setAttribute('aria-label', name) })

  // columns are as wide as what they hold: sentences get room, and a long piece of code may break
  all('main table:not(.dataframe) td', o => o.classList.toggle('long', o.textContent.length > 30))
  all('main td code', o => o.classList.toggle('long', o.textContent.length > (o.closest('td').cellIndex ? 24 : 32)))

  // a table of four columns or more is stacked on a phone, each value under the name of its column
  all('main table:not(.dataframe)', table => {
    const heads = [...table.querySelectorAll('thead th')].map(o => o.textContent)
    if (heads.length < 4) return
    table.classList.add('stacks')
    all('tbody tr', row => [...row.cells].forEach((o, i) => { o.dataset.column = heads[i] }), table)
  })

  // the list of headings, folded above the text, where the margin has no room for it
  const list = document.querySelector('#TOC ul'), head = document.querySelector('#title-block-header')
  if (!list || document.querySelector('main img[src$="images/demo.gif"]')) return   // the first page begins with its picture
  const copy = list.cloneNode(true), folded = document.createElement('details')
  copy.querySelectorAll('*').forEach(o => ['id', 'class', 'data-scroll-target'].forEach(k => o.removeAttribute(k)))
  folded.className = 'contents-here'
  folded.innerHTML = '<summary>On this page</summary><nav aria-label="On this page, folded"></nav>'
  folded.lastChild.append(copy)
  head ? head.after(folded) : document.querySelector('main').prepend(folded)
})()

// ---- search: every word asked for must stand in a section, but for those that say nothing by themselves; where none has
// them all, those with most of them are listed. What our users say has a page, or a section of it, that answers
const IDLE = new Set(('a an and are at be can do does from goes going how i if in is it my of on or so stays that the then this to ' +
  'was what when where which why will with').split(' '))
window.rankPages = (index, q, limit) => {
  const plain = s => s.toLowerCase().replace(/[-\u2010-\u2015]/g, ' ').replace(/[.,:;?!]+(?=\s|$)/g, '').replace(/\s+/g, ' ').trim()
  const telling = s => { const all = s.split(' '), some = all.filter(w => !IDLE.has(w)); return some.length ? some : all }
  const ask = plain(q), words = telling(ask), core = words.join(' ')
  const rooms = /(parts|run|see|on_trl|scale|research|studies|dev|reference|project)\//
  const kind = e => /glossary/.test(e.href) ? 30 : /settings|metrics/.test(e.href) ? 26
    : /practise\//.test(e.href) ? 12 : rooms.test(e.href) ? 0 : 10
  const answers = href => (window.answers[href] || []).some(o => telling(plain(o)).join(' ') === core)
  const score = (e, least = words.length) => {   // of `least` of the words or more, 0 otherwise
    const title = plain(e.title || ''), section = plain(e.section || ''), text = plain(e.text || '')
    if (answers(e.href)) return 220
    if (e.href.includes('#') && answers(e.href.split('#')[0])) return 200
    const there = words.filter(w => (title + ' ' + section + ' ' + text).includes(w)).length
    if (there < least) return 0
    const head = (e.section || '').trim()
    const isName = /^[\w.]+$/.test(head) && /[_a-z][A-Z]|_|^[a-z]/.test(head)
    let n = kind(e) - (isName ? 12 : 0)
    if (section === ask) n += 60
    else if (section.includes(ask)) n += 34
    else if (text.includes(ask)) n += 18
    if (title === ask) n += 40
    else if (title.includes(ask)) n += 14
    for (const w of words) {
      const exact = w.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
      if (section.split(' ').includes(w)) n += 8
      if (new RegExp('(^|[^a-z0-9_])' + exact + '($|[^a-z0-9_])').test(text)) n += 6
    }
    return Math.max(1, n + 100 * (there - words.length))
  }
  const found = least => index.map((e, i) => [score(e, least), i, e]).filter(o => o[0] > 0)
    .sort((a, b) => b[0] - a[0] || a[1] - b[1])
  let hits = found(words.length)
  for (let least = words.length - 1; !hits.length && least > 0; least--) hits = found(least)
  const seen = {}, out = []   // three sections of one page are enough
  for (const [, , e] of hits) {
    const p = e.href.split('#')[0]
    seen[p] = (seen[p] || 0) + 1
    if (seen[p] <= 3) out.push(e)
  }
  return out.slice(0, limit)
}
