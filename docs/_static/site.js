document.addEventListener('DOMContentLoaded', () => {
  // what opens a part of the sidebar is an arrow without a word
  for (const o of document.querySelectorAll('.bd-sidebar-primary summary')) {
    const link = o.closest('li')?.querySelector('a')
    o.setAttribute('aria-label', `Pages of ${link?.textContent.trim()}`)
  }
  // on a phone a table of four columns or more is stacked: each cell needs the name of its column
  for (const table of document.querySelectorAll('main table:not(.dataframe)')) {
    const heads = [...table.querySelectorAll('thead th')].map(o => o.textContent)
    if (heads.length < 4) continue
    table.classList.add('stacks')
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((o, i) => { o.dataset.column = heads[i] })
  }
})

// Jupyter's sliders say no name and no value to a screen reader: they stand beside them.
const name = () => {
  for (const o of document.querySelectorAll('.widget-inline-hbox')) {
    const slider = o.querySelector('[role=slider]'), label = o.querySelector('.widget-label')
    const value = o.querySelector('.widget-readout')?.textContent
    if (!slider || !value || slider.getAttribute('aria-valuetext') === value) continue
    slider.setAttribute('aria-label', label.textContent)
    slider.setAttribute('aria-valuetext', value)
  }
  for (const o of document.querySelectorAll('main pre, main .cell_output > *, main .pst-scrollable-table-container'))
    if (o.scrollWidth > o.clientWidth + 1) o.tabIndex = 0   // the keyboard scrolls it
}
new MutationObserver(name).observe(document.documentElement, {childList: true, subtree: true, characterData: true})
addEventListener('load', name)

// The first page's picture of a run: a press starts one in its place.
addEventListener('DOMContentLoaded', () => {
  const link = document.querySelector('main a[href$="/live/index.html"]:has(> img)')
  if (!link) return
  const make = (tag, about) => Object.assign(document.createElement(tag), about)
  link.classList.add('hero')
  link.append(make('span', {textContent: '▶ Train it here (1.7 MB)'}))
  link.addEventListener('click', e => {
    if (e.ctrlKey || e.metaKey || e.shiftKey) return   // another tab
    e.preventDefault()
    const src = new URL('live/index.html', location.href)
    const frame = make('iframe', {src, className: 'hero', title: 'A language model that trains in this page'})
    link.replaceWith(frame)
    frame.focus()
  })
})
